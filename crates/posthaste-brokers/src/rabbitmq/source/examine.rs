//! What `posthaste doctor` says about a source: whether the broker lets us in, and whether the queues are
//! there, may be read, keep the order, lose nothing and are not far behind.
//!
//! Nobody subscribes: a look must not become the active consumer.

use super::declared::{self, DeclaredQueue};
use super::refusal::Refusal;
use super::wire::{self, Wire};
use crate::GroupMember;
use crate::findings::no_session;
use crate::rabbitmq::RabbitmqConfig;
use posthaste::consumer::Order;
use posthaste::sink::{Failure, Finding, Level};

/// Names of all checks of a source. Each finding bears one of them.
pub const CHECKS: &[&str] =
    &["reachable", "authenticated", "queue", "order", "durability", "delivery-limit", "lag"];

pub(crate) async fn examine(config: &RabbitmqConfig, plan: &GroupMember) -> Vec<Finding> {
    let wire = match open(config).await {
        Ok(wire) => wire,
        Err(failure) => return no_session(&failure, &["rabbitmq.auth", "rabbitmq.vhost"]),
    };
    let who = config.options.identity("the default user \"guest\"");
    let mut findings = vec![
        finding("reachable", Level::Ok, format!("RabbitMQ {} answers", wire.version)),
        finding("authenticated", Level::Ok, format!("connected as {who}")),
    ];
    for queue in &plan.topics {
        match declared::look(&wire.connection, queue, plan.order).await {
            Ok(found) => {
                findings.push(right(&wire, queue).await);
                findings.extend(of_queue(config, plan, queue, &wire.version, &found));
            }
            Err(Refusal { failure, .. }) => {
                findings.push(finding("queue", Level::Fail, failure.message.to_string()));
            }
        }
    }
    findings
}

async fn open(config: &RabbitmqConfig) -> Result<Wire, Failure> {
    let wrong = |error: crate::BuildError| Failure::of_sink("rabbitmq.config", error.to_string());
    let mut failure = Failure::of_sink("rabbitmq.unreachable", "there is no server to connect to");
    for server in config.check().map_err(wrong)? {
        match wire::open(&server, config, "posthaste doctor").await {
            Ok(wire) => return Ok(wire),
            Err(why) => failure = why,
        }
    }
    Err(failure)
}

fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

async fn right(wire: &Wire, queue: &str) -> Finding {
    match declared::may_read(&wire.connection, queue).await {
        Ok(true) => finding("queue", Level::Ok, format!("queue {queue:?} is there, and may be read")),
        Ok(false) => {
            let text = format!(
                "queue {queue:?} may not be read by this user. Its messages wait; allow `read` on it"
            );
            finding("queue", Level::Fail, text)
        }
        Err(Refusal { failure, .. }) => finding("queue", Level::Fail, failure.message.to_string()),
    }
}

fn of_queue(
    config: &RabbitmqConfig,
    plan: &GroupMember,
    queue: &str,
    version: &str,
    found: &DeclaredQueue,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if found.arguments.is_none() {
        findings.push(match config.quorum_queues {
            true => {
                let text = format!(
                    "queue {queue:?}: this user may not see how it was declared; quorum_queues vouches for it"
                );
                finding("order", Level::Warn, text)
            }
            false => {
                let refused = found.check(queue, version, plan.order, false).err();
                let text = refused.map_or_else(String::new, |refusal| refusal.failure.message.to_string());
                finding("order", Level::Fail, text)
            }
        });
    } else {
        findings.extend([
            durability(queue, found),
            order(plan.order, queue, found),
            delivery_limit(queue, version, found),
        ]);
    }
    let DeclaredQueue { ready, consumers, .. } = found;
    let text = format!("{ready} messages wait in queue {queue:?}, and {consumers} consumers are there");
    findings.push(finding("lag", Level::Ok, text));
    findings
}

fn durability(queue: &str, found: &DeclaredQueue) -> Finding {
    match found.is_quorum() {
        true => finding("durability", Level::Ok, format!("queue {queue:?} is a quorum queue")),
        false => {
            let refusal = super::refusal::not_quorum(queue);
            finding("durability", Level::Fail, refusal.failure.message.to_string())
        }
    }
}

fn order(order: Order, queue: &str, found: &DeclaredQueue) -> Finding {
    match (order, found.is_single()) {
        (Order::None, true) => {
            let text =
                format!("queue {queue:?} has a single active consumer: more members make it no faster");
            finding("order", Level::Warn, text)
        }
        (Order::None, false) => finding("order", Level::Ok, "no order is asked for"),
        (_, true) => finding("order", Level::Ok, format!("queue {queue:?} has a single active consumer")),
        (_, false) => {
            let refusal = super::refusal::not_single(queue);
            finding("order", Level::Fail, refusal.failure.message.to_string())
        }
    }
}

fn delivery_limit(queue: &str, version: &str, found: &DeclaredQueue) -> Finding {
    match (found.delivery_limit(version), found.dead_letters()) {
        (None, _) => {
            let text = format!(
                "queue {queue:?} was declared without a delivery limit. One of a policy cannot be seen"
            );
            finding("delivery-limit", Level::Ok, text)
        }
        (Some(limit), Some(exchange)) => {
            let text =
                format!("what comes back to queue {queue:?} {limit} times goes to exchange {exchange:?}");
            finding("delivery-limit", Level::Ok, text)
        }
        (Some(limit), None) => {
            let refusal = super::refusal::drops(queue, limit);
            finding("delivery-limit", Level::Fail, refusal.failure.message.to_string())
        }
    }
}
