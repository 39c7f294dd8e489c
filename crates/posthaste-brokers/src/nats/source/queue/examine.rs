//! What `posthaste doctor` says about a stream that is read as a queue. Nothing is taken and nothing is made.

use super::durable;
use crate::GroupMember;
use crate::nats::NatsConfig;
use crate::nats::client::session::Session;
use crate::nats::client::streams::{StreamInfo, refused};
use crate::nats::source::examine::finding;
use async_nats::RequestErrorKind;
use async_nats::jetstream::consumer::{Config, Info};
use posthaste::sink::{Finding, Level};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const ANSWER: Duration = Duration::from_secs(5);
/// A number that is none. What is no JSON would be taken for a question for one message.
const QUESTION: &str = r#"{"batch":"none"}"#;

/// The queue that the group has of this stream.
pub(in crate::nats::source) async fn examine_queue(
    session: &Arc<Session>,
    config: &NatsConfig,
    member: &GroupMember,
    stream: &StreamInfo,
) -> Vec<Finding> {
    let (name, group) = (stream.config.name.as_str(), member.group.as_str());
    let found = match durable::find(session, name, group).await {
        Ok(Some(found)) => found,
        Ok(None) => {
            let text = format!(
                "stream {name:?} has no consumer {group:?} yet: the first member makes it. {} messages are there",
                stream.state.messages
            );
            return vec![finding("queue", Level::Warn, text)];
        }
        Err(error) => return vec![finding("queue", Level::Fail, error.to_string())],
    };
    vec![
        trusted(name, &found),
        right(session, name, group).await,
        ack_wait(name, group, config, &found.config),
        max_deliver(name, group, &found.config),
        lag(name, group, member, &found),
    ]
}

fn trusted(stream: &str, found: &Info) -> Finding {
    let (name, config) = (&found.name, &found.config);
    if let Some(why) = durable::refusal(stream, config) {
        return finding("queue", Level::Fail, why);
    }
    if !config.inactive_threshold.is_zero() {
        let text = format!(
            "consumer {name:?} of stream {stream:?} is deleted when nobody reads it for {} s (inactive_threshold), and then all of \
             the stream comes again",
            config.inactive_threshold.as_secs()
        );
        return finding("queue", Level::Warn, text);
    }
    let what =
        durable::filter(config).map_or_else(String::new, |only| format!(", of the subjects {only} alone"));
    finding("queue", Level::Ok, format!("stream {stream:?} is read by its consumer {name:?}{what}"))
}

/// Asks for messages in a way that the server refuses to read: none is taken, and its answer shows that we
/// may ask.
async fn right(session: &Arc<Session>, stream: &str, group: &str) -> Finding {
    let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{group}");
    let asked = timeout(ANSWER, session.client.request(subject.clone(), QUESTION.into()));
    let fail = |why: &str| finding("rights", Level::Fail, format!("stream {stream:?} cannot be read: {why}"));
    let who = &session.identity;
    tokio::select! {
        answer = asked => match answer {
            Ok(Ok(_)) => finding("rights", Level::Ok, format!("consumer {group:?} of stream {stream:?} may be read")),
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => fail("its consumer does not answer"),
            Ok(Err(error)) => fail(&error.to_string()),
            Err(_) => fail("its consumer gives no answer"),
        },
        _ = refused(session, std::slice::from_ref(&subject)) => fail(&format!("{who} may not publish to {subject}")),
    }
}

fn ack_wait(stream: &str, group: &str, config: &NatsConfig, found: &Config) -> Finding {
    let (wanted, there) = (Duration::from_millis(config.ack_wait_ms), durable::ack_wait(found));
    let text = format!(
        "what a dead member had in hand of stream {stream:?} comes to others after {} s (ack_wait)",
        there.as_secs_f64()
    );
    if there == wanted {
        return finding("ack-wait", Level::Ok, text);
    }
    let text = format!(
        "{text}. The settings say {} s, which counts only where the consumer is made: nats consumer edit {stream} {group} --wait={}ms",
        wanted.as_secs_f64(),
        config.ack_wait_ms
    );
    finding("ack-wait", Level::Warn, text)
}

fn max_deliver(stream: &str, group: &str, found: &Config) -> Finding {
    match found.max_deliver {
        most if most > 0 => {
            let text = format!(
                "what came {most} times to consumer {group:?} of stream {stream:?} is left out in silence: nats consumer edit {stream} \
                 {group} --max-deliver=-1"
            );
            finding("max-deliver", Level::Fail, text)
        }
        _ => {
            let text =
                format!("stream {stream:?} delivers a message until it is acknowledged (max_deliver -1)");
            finding("max-deliver", Level::Ok, text)
        }
    }
}

fn lag(stream: &str, group: &str, member: &GroupMember, found: &Info) -> Finding {
    let (waiting, in_hand) = (found.num_pending, found.num_ack_pending);
    let text = format!(
        "{waiting} messages of stream {stream:?} wait for consumer {group:?}, and {in_hand} are in hand or come again"
    );
    let most = found.config.max_ack_pending;
    match usize::try_from(most) {
        Ok(bound) if bound > 0 && bound < member.in_hand_max.min(1_000) => {
            let text = format!(
                "{text}. Its members may have {most} in hand together (max_ack_pending), which one of them alone would take: nats \
                 consumer edit {stream} {group} --max-pending=65536"
            );
            finding("lag", Level::Warn, text)
        }
        _ => finding("lag", Level::Ok, text),
    }
}
