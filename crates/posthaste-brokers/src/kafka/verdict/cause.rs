//! Finds out why there was no answer.
//!
//! A record that times out says only that. The client complained of the cause before, beside the records: a
//! password that was refused, a certificate that was not trusted, no broker at all. The last such complaint
//! is remembered until something is delivered. Without a complaint the partition's state is asked for: it may
//! have no leader, or replicas out of sync. A broker that does not answer that question either is out of
//! reach.

use super::{Circumstances, DeliveryFault, of_fault};
use crate::kafka::KafkaConfig;
use crate::kafka::client::admin::Partitions;
use crate::lock::locked;
use posthaste::sink::{Failure, Scope, Verdict};
use rdkafka::error::RDKafkaErrorCode as Code;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A complaint older than this explains nothing, because the client repeats those that hold.
const FRESH: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ComplaintKind {
    /// Nobody answers. From a distance the other kinds look the same.
    Unreachable,
    Tls,
    Auth,
}

#[derive(Debug, Clone)]
struct Complaint {
    kind: ComplaintKind,
    text: String,
    at: Instant,
}

/// The complaints of a sink's producers.
#[derive(Debug, Default)]
pub(in crate::kafka) struct Causes {
    last: Mutex<Option<Complaint>>,
}

impl Causes {
    /// Hears an error of the client that belongs to no message.
    pub(in crate::kafka) fn hear(&self, code: Code, reason: &str) {
        let kind = match code {
            Code::Authentication | Code::SaslAuthenticationFailed | Code::UnsupportedSASLMechanism => {
                ComplaintKind::Auth
            }
            Code::SSL => ComplaintKind::Tls,
            _ if is_tls(reason) => ComplaintKind::Tls,
            Code::AllBrokersDown | Code::BrokerTransportFailure | Code::Resolve | Code::OperationTimedOut => {
                ComplaintKind::Unreachable
            }
            _ => return,
        };
        self.keep(kind, reason);
    }

    /// Hears a line of the client's log, where some complaints stand alone.
    pub(in crate::kafka) fn hear_log(&self, text: &str) {
        if is_tls(text) {
            self.keep(ComplaintKind::Tls, text);
        }
    }

    fn keep(&self, kind: ComplaintKind, text: &str) {
        let mut last = self.last();
        let now = Instant::now();
        let better = last.as_ref().filter(|last| last.kind > kind && now - last.at < FRESH);
        // "All brokers are down" says less than the reason of the last one.
        let vague = text.contains("brokers are down")
            && last.as_ref().is_some_and(|last| last.kind == kind && now - last.at < FRESH);
        if better.is_none() && !vague {
            *last = Some(Complaint { kind, text: shorten(text), at: now });
        }
    }

    /// Something was delivered, so the last complaint explains nothing any more.
    pub(in crate::kafka) fn forget(&self) {
        *self.last() = None;
    }

    /// The failure that explains a silence now, if there is one.
    pub(in crate::kafka) fn current(&self, config: &KafkaConfig) -> Option<Failure> {
        let last = self.last().clone()?;
        if last.at.elapsed() > FRESH {
            return None;
        }
        let Complaint { kind, text, .. } = last;
        Some(match kind {
            ComplaintKind::Auth => {
                Failure::of_sink("kafka.auth", format!("the brokers refuse {}: {text}", config.identity()))
            }
            ComplaintKind::Tls => {
                Failure::of_sink("kafka.tls", format!("no TLS connection ({}): {text}", config.tls_words()))
            }
            ComplaintKind::Unreachable => unreachable(config, &text),
        })
    }

    fn last(&self) -> MutexGuard<'_, Option<Complaint>> {
        locked(&self.last)
    }
}

/// Nobody answers. A port with TLS closes a connection without TLS and says nothing, so the words here
/// mention it.
pub(in crate::kafka) fn unreachable(config: &KafkaConfig, why: &str) -> Failure {
    let tls = if config.wants_tls() { "" } else { " (TLS is not asked for)" };
    Failure::of_sink("kafka.unreachable", format!("{}: {why}{tls}", config.url))
}

/// Leaves out what is of no use to anybody: the client's own number, and how long it was in its state.
fn shorten(text: &str) -> String {
    let text = text
        .split_once("]: ")
        .map_or(text, |(before, rest)| if before.starts_with('[') { rest } else { text });
    let end = text.find(" (after ").unwrap_or(text.len());
    text[..end].to_owned()
}

fn is_tls(text: &str) -> bool {
    ["SSL handshake failed", "certificate", "incorrect security.protocol", "ssl.ca.location"]
        .iter()
        .any(|words| text.contains(words))
}

/// What a topic's state says, when its messages are not answered. `wanted` is its `min.insync.replicas`, if
/// we may know it.
pub(in crate::kafka) fn of_topic(
    topic: &str,
    state: &Partitions,
    wanted: Option<usize>,
    waited_ms: u64,
) -> Failure {
    let Partitions { all, without_leader, in_sync, replicas, .. } = *state;
    if without_leader > 0 {
        let text = format!("{without_leader} of {all} partitions of topic {topic:?} have no leader");
        return Failure::of_destination("kafka.no_leader", text);
    }
    // Kafka never wants more replicas than there are.
    let wanted = wanted.map(|wanted| wanted.min(replicas));
    if wanted.map_or(in_sync < replicas, |wanted| in_sync < wanted) {
        let wanted = wanted.map_or("more".to_owned(), |wanted| wanted.to_string());
        let text = format!(
            "topic {topic:?} has {in_sync} of {replicas} replicas in sync and wants {wanted} (min.insync.replicas)"
        );
        return Failure::of_destination("kafka.not_enough_replicas", text);
    }
    of_silence(topic, waited_ms)
}

/// Nothing is wrong that we could see.
pub(in crate::kafka) fn of_silence(topic: &str, waited_ms: u64) -> Failure {
    let text = format!("the brokers answer, but topic {topic:?} acknowledged nothing within {waited_ms} ms");
    Failure::of_destination("kafka.timeout", text)
}

/// Whether the inquiry found no cause.
pub(in crate::kafka) fn is_unknown(failure: &Failure) -> bool {
    failure.code == "kafka.timeout"
}

/// The broker's own word about the topic.
pub(in crate::kafka) fn of_code(topic: &str, code: Code, identity: &str) -> Failure {
    let at = Circumstances { topic, identity, alone: true, sent: true };
    match of_fault(DeliveryFault(code), at) {
        Verdict::Retry(failure) | Verdict::Unknown(failure) | Verdict::Rejected(failure) => {
            Failure { scope: Scope::Destination, ..failure }
        }
        Verdict::Held | Verdict::Delivered => Failure::of_destination("kafka.unavailable", code.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_telling_complaint_is_kept_until_something_is_delivered() {
        let (causes, config) = (Causes::default(), KafkaConfig::new("h:9092"));
        let code = || causes.current(&config).map(|failure| failure.code.to_string());
        assert_eq!(code(), None);
        causes.hear(
            Code::BrokerTransportFailure,
            "h:9092/1: Connect to h:9092 failed: Connection refused (after 3ms in state CONNECT)",
        );
        causes.hear(Code::AllBrokersDown, "1/1 brokers are down");
        let text = causes.current(&config).expect("a cause").message;
        assert!(text.contains("failed: Connection refused (TLS"), "{text}");
        causes.hear(Code::Authentication, "SASL authentication error: no");
        causes.hear(Code::AllBrokersDown, "1/1 brokers are down");
        assert_eq!(code().as_deref(), Some("kafka.auth"));
        causes.forget();
        assert_eq!(code(), None);
        causes.hear(Code::BrokerTransportFailure, "SSL handshake failed: certificate verify failed");
        assert_eq!(code().as_deref(), Some("kafka.tls"));
    }

    #[test]
    fn a_topics_state_names_the_cause() {
        let state = |without_leader, in_sync| Partitions {
            all: 4,
            without_leader,
            in_sync,
            replicas: 3,
            replicas_min: 3,
        };
        let code = |state, wanted| of_topic("t", &state, wanted, 1).code.to_string();
        assert_eq!(code(state(1, 0), Some(2)), "kafka.no_leader");
        assert_eq!(code(state(0, 1), Some(2)), "kafka.not_enough_replicas");
        assert_eq!(code(state(0, 2), Some(2)), "kafka.timeout");
        assert_eq!(code(state(0, 2), None), "kafka.not_enough_replicas");
        assert_eq!(code(state(0, 3), None), "kafka.timeout");
    }
}
