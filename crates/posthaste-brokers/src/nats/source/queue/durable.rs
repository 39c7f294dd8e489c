//! The durable consumer of a group: found or made, and whether it may be trusted.

use crate::BuildError;
use crate::nats::client::session::Session;
use crate::nats::client::streams::{AskError, StreamConfig, ask_api, is_name};
use async_nats::jetstream::consumer::pull::Config as PullConfig;
use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy, Info, IntoConsumerConfig};
use posthaste::source::{SourceError, StartFrom};
use std::sync::Arc;
use std::time::Duration;

const ANSWER: Duration = Duration::from_secs(5);
/// JetStream's numbers for "consumer not found" and "consumer already exists".
const NO_CONSUMER: u32 = 10_014;
const EXISTS: u32 = 10_148;
/// Messages of all members together that are not acknowledged. Each member bounds its own, so this one only
/// has to be out of the way; without a bound a server may refuse the consumer.
const ACK_PENDING_MAX: i64 = 65_536;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct DurablePlan<'a> {
    pub(super) group: &'a str,
    pub(super) start_from: StartFrom,
    pub(super) ack_wait: Duration,
}

/// Whether a consumer can have this name.
pub(super) fn check_group(group: &str) -> Result<(), BuildError> {
    if is_name(group) && !group.contains(['.', '*', '>', '/', '\\']) {
        return Ok(());
    }
    let why = format!(
        "{group:?} cannot be the name of a durable consumer, which a group of a stream without order is: no dots, slashes, \
         spaces and wildcards"
    );
    Err(BuildError::option("group", why))
}

fn denied(session: &Session, what: &str, subject: &str) -> SourceError {
    let who = &session.identity;
    SourceError::Transient(format!("{who} may not {what}: allow it to publish to {subject}. Messages wait"))
}

/// The consumer, if it is there.
pub(super) async fn find(
    session: &Arc<Session>,
    stream: &str,
    group: &str,
) -> Result<Option<Info>, SourceError> {
    let subject = format!("$JS.API.CONSUMER.INFO.{stream}.{group}");
    match ask_api(session, &subject, "", ANSWER).await {
        Ok(info) => Ok(Some(info)),
        Err(AskError::Refused(error)) if error.err_code == NO_CONSUMER => Ok(None),
        Err(AskError::Denied) => {
            Err(denied(session, &format!("ask for consumer {group:?} of stream {stream:?}"), &subject))
        }
        Err(error) => Err(SourceError::Transient(format!(
            "consumer {group:?} of stream {stream:?} cannot be seen: {error}"
        ))),
    }
}

/// The consumer, which is made if it is not there.
pub(super) async fn ensure(
    session: &Arc<Session>,
    stream: &StreamConfig,
    plan: DurablePlan<'_>,
) -> Result<Info, SourceError> {
    let (name, group) = (&stream.name, plan.group);
    if let Some(found) = find(session, name, group).await? {
        return Ok(found);
    }
    let subject = format!("$JS.API.CONSUMER.CREATE.{name}.{group}");
    let body = serde_json::json!({ "stream_name": name, "config": wanted(stream, plan), "action": "create" });
    match ask_api(session, &subject, &body.to_string(), ANSWER).await {
        // After a death here the consumer is there and nobody reads it: the next member finds it.
        Ok(made) => {
            tracing::info!(stream = name, consumer = group, "made a durable consumer");
            Ok(made)
        }
        Err(AskError::Refused(error)) if error.err_code == EXISTS => {
            let why = format!("consumer {group:?} of stream {name:?} was just made by another member");
            Err(SourceError::Transient(why))
        }
        Err(AskError::Denied) => {
            Err(denied(session, &format!("make consumer {group:?} of stream {name:?}"), &subject))
        }
        Err(error) => Err(SourceError::Transient(format!(
            "consumer {group:?} of stream {name:?} cannot be made: {error}. A work queue has one consumer for each of its \
             messages: give each group a stream of its own, or make its consumer with a filter"
        ))),
    }
}

/// The consumer as it is made. What is in a work queue is to be done, so it has no "from now on".
fn wanted(stream: &StreamConfig, plan: DurablePlan<'_>) -> Config {
    let is_work = stream.retention == "workqueue";
    let deliver_policy = match plan.start_from {
        StartFrom::Latest if !is_work => DeliverPolicy::New,
        _ => DeliverPolicy::All,
    };
    PullConfig {
        durable_name: Some(plan.group.to_owned()),
        name: Some(plan.group.to_owned()),
        description: Some("made by Posthaste".to_owned()),
        deliver_policy,
        ack_policy: AckPolicy::Explicit,
        ack_wait: plan.ack_wait,
        max_deliver: -1,
        max_ack_pending: ACK_PENDING_MAX,
        ..Default::default()
    }
    .into_consumer_config()
}

/// Why a consumer is not read from, if it is not: with these settings messages would be lost or mixed up.
pub(super) fn refusal(stream: &str, config: &Config) -> Option<String> {
    let name = config.durable_name.as_deref().or(config.name.as_deref()).unwrap_or_default();
    let edit = |flag: &str| format!("correct it (nats consumer edit {stream} {name} {flag})");
    let anew = || {
        "delete it, and it is made again, from the stream's first message: what was handled meets its mark while marks are kept".to_owned()
    };
    let (why, what) = match () {
        () if config.deliver_subject.is_some() => {
            ("it pushes its messages (deliver_subject), so members cannot share them".to_owned(), anew())
        }
        () if config.durable_name.is_none() => {
            ("it is not durable, and forgets what was acknowledged when nobody is there".to_owned(), anew())
        }
        () if config.ack_policy != AckPolicy::Explicit => (
            "its ack_policy is not explicit, so messages that nobody has handled count as done".to_owned(),
            anew(),
        ),
        () if config.max_deliver > 0 => {
            let most = config.max_deliver;
            let why = format!(
                "max_deliver is {most}: a message that came {most} times would be left out in silence"
            );
            (why, edit("--max-deliver=-1"))
        }
        () if config.headers_only => {
            ("it delivers headers alone (headers_only)".to_owned(), edit("--no-headers-only"))
        }
        () => return None,
    };
    Some(format!(
        "consumer {name:?} of stream {stream:?} was made or changed by somebody else: {why}. Nothing is read. Please {what}"
    ))
}

/// How long a message may be without a sign, at the least.
pub(super) fn ack_wait(config: &Config) -> Duration {
    let shortest = config.backoff.iter().copied().chain([config.ack_wait]).min();
    shortest.unwrap_or_default().max(Duration::from_millis(100))
}

/// The subjects that it takes its messages from, where that is not all of the stream.
pub(super) fn filter(config: &Config) -> Option<String> {
    let one = Some(&config.filter_subject).filter(|subject| !subject.is_empty());
    let all: Vec<&str> = config.filter_subjects.iter().chain(one).map(String::as_str).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(start_from: StartFrom) -> DurablePlan<'static> {
        DurablePlan { group: "billing", start_from, ack_wait: Duration::from_secs(30) }
    }

    #[test]
    fn what_is_made_is_trusted_and_what_loses_messages_is_not() {
        let mut stream = StreamConfig::default();
        let made = wanted(&stream, plan(StartFrom::Latest));
        assert_eq!((made.max_deliver, made.ack_wait), (-1, Duration::from_secs(30)));
        assert_eq!(made.deliver_policy, DeliverPolicy::New);
        assert_eq!(refusal("S", &made), None);
        for (changed, told) in [
            (Config { max_deliver: 5, ..made.clone() }, "--max-deliver=-1"),
            (Config { ack_policy: AckPolicy::None, ..made.clone() }, "ack_policy"),
            (Config { ack_policy: AckPolicy::All, ..made.clone() }, "ack_policy"),
            (Config { deliver_subject: Some("x".to_owned()), ..made.clone() }, "deliver_subject"),
            (Config { durable_name: None, ..made.clone() }, "not durable"),
            (Config { headers_only: true, ..made.clone() }, "headers_only"),
        ] {
            let why = refusal("S", &changed).unwrap_or_default();
            assert!(why.contains(told) && why.contains("Nothing is read"), "{told}: {why}");
        }
        stream.retention = "workqueue".to_owned();
        assert_eq!(wanted(&stream, plan(StartFrom::Latest)).deliver_policy, DeliverPolicy::All);
    }

    #[test]
    fn the_shortest_wait_counts_and_filters_are_shown() {
        let config = Config {
            ack_wait: Duration::from_secs(30),
            backoff: vec![Duration::from_secs(4), Duration::from_secs(60)],
            filter_subject: "a".to_owned(),
            ..Config::default()
        };
        assert_eq!(ack_wait(&config), Duration::from_secs(4));
        assert_eq!(filter(&config).as_deref(), Some("a"));
        assert_eq!(filter(&Config::default()), None);
    }

    #[test]
    fn a_group_must_be_a_name() {
        assert!(check_group("billing-1").is_ok());
        for group in ["a.b", "a b", "a/b", "*", ""] {
            assert!(check_group(group).is_err(), "{group:?}");
        }
    }
}
