//! What `posthaste doctor` says about a RabbitMQ server and the places behind the destinations.

use super::client::{Close, Question, Session};
use super::sink::RabbitmqLink;
use super::{RabbitmqConfig, verdict};
use crate::findings::no_session;
use posthaste::sink::{Finding, Level};
use std::collections::BTreeSet;
use std::time::Duration;

/// The time for a first try at every server. A diagnosis is not in a hurry.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// Names of all checks. Each finding bears one of them.
pub const CHECKS: &[&str] =
    &["reachable", "authenticated", "transport", "version", "alarm", "destination", "durability"];

pub(super) async fn examine(
    config: &RabbitmqConfig,
    link: &RabbitmqLink,
    destinations: &[String],
) -> Vec<Finding> {
    let session = match link.session_if_any(CONNECT_WAIT).await {
        Ok(session) => session,
        Err(failure) => return no_session(&failure, &["rabbitmq.auth", "rabbitmq.vhost"]),
    };
    let product = &session.terms().product;
    let reachable = format!("{} {}, cluster {:?}", product.name, product.version, product.cluster);
    let mut findings = vec![
        finding("reachable", Level::Ok, reachable),
        finding("authenticated", Level::Ok, format!("connected as {}", session.identity())),
        transport(config, &session),
        version(&product.name, &product.version),
    ];
    findings.extend(alarm(&session));
    findings.extend(places(config, &session, destinations).await);
    findings
}

fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

fn transport(config: &RabbitmqConfig, session: &Session) -> Finding {
    let terms = session.terms();
    match (terms.encrypted, config.sends_secret() && !terms.local) {
        (true, _) => finding("transport", Level::Ok, "TLS, with the server's certificate verified"),
        (false, false) => finding("transport", Level::Ok, "not encrypted"),
        (false, true) => {
            finding("transport", Level::Warn, "not encrypted, and a password travels over it: use amqps://")
        }
    }
}

fn version(product: &str, text: &str) -> Finding {
    if product != "RabbitMQ" {
        let text = format!("{product:?} {text} is not RabbitMQ: its confirmations may mean something else");
        return finding("version", Level::Warn, text);
    }
    let mut numbers = text.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    if (next(), next()) < (3, 10) {
        let text =
            format!("version {text} is older than 3.10, the oldest that Posthaste is tested with: upgrade");
        return finding("version", Level::Warn, text);
    }
    finding("version", Level::Ok, format!("version {text}"))
}

fn alarm(session: &Session) -> Option<Finding> {
    let reason = session.blocked()?;
    let text = format!("the broker has blocked the connection ({reason}): events wait until its alarm ends");
    Some(finding("alarm", Level::Fail, text))
}

async fn places(config: &RabbitmqConfig, session: &Session, destinations: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut durability = BTreeSet::new();
    for destination in destinations {
        match config.place(destination) {
            Ok((exchange, routing_key)) => {
                findings.push(place(session, exchange, routing_key).await);
                durability.insert((exchange, if exchange.is_empty() { routing_key } else { "" }));
            }
            Err(why) => {
                let text = format!("destination {destination:?} {why}: its events are rejected");
                findings.push(finding("destination", Level::Fail, text));
            }
        }
    }
    let word = config.quorum_queues;
    findings.extend(durability.into_iter().map(|(exchange, queue)| unseen_durability(exchange, queue, word)));
    findings
}

async fn place(session: &Session, exchange: &str, routing_key: &str) -> Finding {
    let question = match exchange {
        "" => Question::Queue(routing_key.to_owned()),
        name => Question::Exchange(name.to_owned()),
    };
    let place = verdict::place(exchange, routing_key);
    match session.ask(question, ANSWER_WAIT).await {
        Ok(()) if exchange.is_empty() => finding("destination", Level::Ok, format!("{place} is there")),
        Ok(()) => finding(
            "destination",
            Level::Ok,
            format!(
                "{place}: the exchange is there; whether a queue is bound shows only when an event is published"
            ),
        ),
        Err(refusal) => not_there(&place, refusal),
    }
}

fn not_there(place: &str, refusal: Option<Close>) -> Finding {
    match refusal {
        Some(close) if close.code == 404 => finding(
            "destination",
            Level::Fail,
            format!("{place} is not there: {}; its events wait until it is declared", close.text),
        ),
        Some(close) => finding("destination", Level::Warn, format!("cannot see {place}: {}", close.text)),
        None => {
            finding("destination", Level::Fail, format!("cannot see {place}: the broker does not answer"))
        }
    }
}

/// A client cannot see what kind of queue takes a message. In AMQP that shows only in a declaration, which
/// would make the queue if it were not there. So the operator must say it, and the finding tells whose word
/// it is.
fn unseen_durability(exchange: &str, queue: &str, quorum_queues: bool) -> Finding {
    let what = match exchange {
        "" => format!("the queue {queue:?}"),
        name => format!("every queue behind the exchange {name:?}"),
    };
    if quorum_queues {
        let text = format!("{what} is a quorum queue by the word of quorum_queues; a client cannot see it");
        return finding("durability", Level::Ok, text);
    }
    let text = format!(
        "a client cannot see whether {what} is a quorum queue: a classic one is on one machine, a mirrored one has lost confirmed events, one that is not durable is gone at a restart. If it is, say quorum_queues = true"
    );
    finding("durability", Level::Warn, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (product, text, level) in [
            ("RabbitMQ", "3.10.8", Level::Ok),
            ("RabbitMQ", "4.2.0", Level::Ok),
            ("RabbitMQ", "3.9.29", Level::Warn),
            ("RabbitMQ", "", Level::Warn),
            ("LavinMQ", "2.0.0", Level::Warn),
        ] {
            assert_eq!(version(product, text).level, level, "{product} {text}");
        }
    }
}
