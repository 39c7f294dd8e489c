//! The table of [`super`] in code: what the relay is told about a message.
//!
//! The functions are pure, so each row can be read and tested without a broker. The rule behind the rows is
//! that of every sink: an event may only be rejected for something that is its own. Only the trial line may
//! judge an event, because a request there holds one record. On the main line a batch fails as a whole, the
//! innocent with the guilty.

pub(super) mod cause;

use posthaste::sink::{Failure, Verdict};
use rdkafka::types::RDKafkaErrorCode as Code;

/// Longest name of a topic.
const TOPIC_LEN_MAX: usize = 249;

/// What the client reports of a message that was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeliveryFault(pub(super) Code);

/// Whose affair a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// The event's: too large, not allowed in a compacted topic.
    Event,
    /// The topic's: it is gone, denied, without a leader.
    Destination,
    /// Nobody's in particular: its producer ended.
    Nobody,
    /// There was no answer in time. The cause is still to be found out.
    Silence,
    /// Anything else.
    Other,
}

impl DeliveryFault {
    fn blame(self) -> Blame {
        match self.0 {
            Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::InvalidTopic
            | Code::UnsupportedForMessageFormat => Blame::Event,
            Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::UnknownTopicId
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::KafkaStorageError
            | Code::PolicyViolation
            | Code::ThrottlingQuotaExceeded
            | Code::UnsupportedFeature
            | Code::UnsupportedVersion
            | Code::UnsupportedCompressionType => Blame::Destination,
            Code::PurgeQueue
            | Code::PurgeInflight
            | Code::Fatal
            | Code::GaplessGuarantee
            | Code::BrokerDestroy
            | Code::Retry
            | Code::OutOfOrderSequenceNumber
            | Code::UnknownProducerId
            | Code::InvalidProducerEpoch
            | Code::InvalidProducerIdMapping
            | Code::Fenced
            | Code::ProducerFenced => Blame::Nobody,
            Code::MessageTimedOut | Code::OperationTimedOut | Code::TimedOutQueue => Blame::Silence,
            _ => Blame::Other,
        }
    }

    /// Whether every message of the topic would fail like this one.
    pub(super) fn is_destinations(self) -> bool {
        self.blame() == Blame::Destination
    }

    /// Whether another event of the topic can bring the same about at any time.
    pub(super) fn is_events(self) -> bool {
        matches!(self.blame(), Blame::Event | Blame::Other)
    }

    /// Whether the message failed because its producer ended.
    pub(super) fn is_nobodys(self) -> bool {
        self.blame() == Blame::Nobody
    }

    /// Whether there was no answer.
    pub(super) fn is_silence(self) -> bool {
        self.blame() == Blame::Silence
    }
}

/// What is known about the one that failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances<'a> {
    pub(super) topic: &'a str,
    /// As whom we are connected, in words.
    pub(super) identity: &'a str,
    /// Whether it was alone in its request.
    pub(super) alone: bool,
    /// Whether it was handed to the producer.
    pub(super) sent: bool,
}

/// The verdict on a message whose fault is known. [`super::cause`] looks into a silence.
pub(super) fn of_fault(fault: DeliveryFault, at: Circumstances<'_>) -> Verdict {
    let Circumstances { topic, identity, .. } = at;
    let DeliveryFault(code) = fault;
    match (fault.blame(), code) {
        // It is sent again, and judged when it is alone.
        (Blame::Event | Blame::Other, _) if at.sent && !at.alone => Verdict::Held,
        (Blame::Nobody, _) => Verdict::Held,
        (_, Code::MessageSizeTooLarge | Code::MessageBatchTooLarge) => too_large(topic, at.sent),
        (_, Code::InvalidTopic) => bad_topic(topic, "is not one for Kafka"),
        (Blame::Event, _) => Verdict::Rejected(Failure::of_event(
            "kafka.bad_record",
            format!("topic {topic:?} does not take the record: {code} (a compacted topic wants a key)"),
        )),
        (_, Code::TopicAuthorizationFailed) => retry_destination("kafka.denied", denied(topic, identity)),
        (_, Code::ClusterAuthorizationFailed | Code::TransactionalIdAuthorizationFailed) => {
            let text = format!(
                "{identity} may write to no topic at all (it needs WRITE on {topic:?}); its events wait until it may"
            );
            retry_destination("kafka.denied", text)
        }
        (
            _,
            Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::UnknownTopicId,
        ) => {
            let text = format!(
                "topic {topic:?} does not exist; its events wait until it does (kafka-topics.sh --create)"
            );
            retry_destination("kafka.no_topic", text)
        }
        (_, Code::NotEnoughReplicas) => {
            retry_destination("kafka.not_enough_replicas", format!("topic {topic:?}: {code}"))
        }
        // The record was appended, but not on enough replicas.
        (_, Code::NotEnoughReplicasAfterAppend) => {
            let text = format!("topic {topic:?}: {code}");
            Verdict::Unknown(Failure::of_destination("kafka.not_enough_replicas", text))
        }
        (_, Code::LeaderNotAvailable | Code::NotLeaderForPartition) => {
            retry_destination("kafka.no_leader", format!("topic {topic:?}: {code}"))
        }
        (_, Code::ThrottlingQuotaExceeded) => {
            retry_destination("kafka.quota", format!("topic {topic:?}: {code}"))
        }
        // No event and no topic is to blame, because no topic can be written to.
        (_, Code::UnsupportedFeature | Code::UnsupportedVersion) => {
            Verdict::Retry(Failure::of_sink("kafka.unsupported", too_old(&code.to_string())))
        }
        (Blame::Destination, _) => retry_destination("kafka.unavailable", format!("topic {topic:?}: {code}")),
        _ => {
            let failure = Failure::of_event("kafka.error", format!("topic {topic:?}: {code}"));
            if at.sent { Verdict::Unknown(failure) } else { Verdict::Retry(failure) }
        }
    }
}

fn retry_destination(code: &'static str, text: String) -> Verdict {
    Verdict::Retry(Failure::of_destination(code, text))
}

/// The brokers lack what delivery needs.
pub(super) fn too_old(why: &str) -> String {
    format!("the brokers are too old: they must be Kafka 0.11 or later, for the idempotent producer ({why})")
}

fn denied(topic: &str, identity: &str) -> String {
    format!(
        "{identity} may not write to topic {topic:?} (it needs WRITE on it); its events wait until it may"
    )
}

fn too_large(topic: &str, sent: bool) -> Verdict {
    let text = if sent {
        format!("topic {topic:?} takes less: raise its max.message.bytes, or make the event smaller")
    } else {
        "payload, key and headers are larger than the option message_bytes_max".to_owned()
    };
    Verdict::Rejected(Failure::of_event("kafka.too_large", text))
}

fn bad_topic(topic: &str, why: &str) -> Verdict {
    Verdict::Rejected(Failure::of_event("kafka.bad_topic", format!("topic {topic:?} {why}")))
}

/// Whether a message can go to a topic of this name. The client would take others and wait in vain.
pub(super) fn check_topic(topic: &str) -> Result<(), Verdict> {
    check_name(topic).map_err(|why| bad_topic(topic, why))
}

/// Whether there can be a topic of this name.
pub(crate) fn check_name(topic: &str) -> Result<(), &'static str> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if topic.is_empty() || topic == "." || topic == ".." {
        Err("is no name")
    } else if topic.len() > TOPIC_LEN_MAX {
        Err("has more than 249 characters")
    } else if !topic.bytes().all(legal) {
        Err("holds something else than letters, digits, '.', '_' and '-'")
    } else if matches!(topic, "__consumer_offsets" | "__transaction_state" | "__cluster_metadata") {
        Err("belongs to the broker itself")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::sink::Scope;

    fn seen(verdict: &Verdict) -> (&'static str, String, Option<Scope>) {
        let (name, failure) = match verdict {
            Verdict::Retry(failure) => ("retry", failure),
            Verdict::Rejected(failure) => ("rejected", failure),
            Verdict::Unknown(failure) => ("unknown", failure),
            Verdict::Held => return ("held", String::new(), None),
            Verdict::Delivered => panic!("a fault is never delivered"),
        };
        (name, failure.code.to_string(), Some(failure.scope))
    }

    fn judged(code: Code, alone: bool, sent: bool) -> (&'static str, String, Option<Scope>) {
        seen(&of_fault(
            DeliveryFault(code),
            Circumstances { topic: "t", identity: "user \"u\"", alone, sent },
        ))
    }

    #[test]
    fn every_row_of_brokers_errors() {
        let rows = [
            (Code::MessageSizeTooLarge, "rejected", "kafka.too_large", Scope::Event),
            (Code::MessageBatchTooLarge, "rejected", "kafka.too_large", Scope::Event),
            (Code::InvalidRecord, "rejected", "kafka.bad_record", Scope::Event),
            (Code::InvalidTimestamp, "rejected", "kafka.bad_record", Scope::Event),
            (Code::InvalidTopic, "rejected", "kafka.bad_topic", Scope::Event),
            (Code::TopicAuthorizationFailed, "retry", "kafka.denied", Scope::Destination),
            (Code::ClusterAuthorizationFailed, "retry", "kafka.denied", Scope::Destination),
            (Code::UnknownTopicOrPartition, "retry", "kafka.no_topic", Scope::Destination),
            (Code::UnknownTopic, "retry", "kafka.no_topic", Scope::Destination),
            (Code::NotEnoughReplicas, "retry", "kafka.not_enough_replicas", Scope::Destination),
            (Code::NotEnoughReplicasAfterAppend, "unknown", "kafka.not_enough_replicas", Scope::Destination),
            (Code::LeaderNotAvailable, "retry", "kafka.no_leader", Scope::Destination),
            (Code::ThrottlingQuotaExceeded, "retry", "kafka.quota", Scope::Destination),
            (Code::KafkaStorageError, "retry", "kafka.unavailable", Scope::Destination),
            (Code::InvalidRequest, "unknown", "kafka.error", Scope::Event),
        ];
        for (code, verdict, name, scope) in rows {
            assert_eq!(judged(code, true, true), (verdict, name.to_owned(), Some(scope)), "{code}");
        }
    }

    #[test]
    fn a_batch_does_not_judge_an_event() {
        for code in [Code::MessageSizeTooLarge, Code::InvalidRecord, Code::InvalidRequest] {
            assert_eq!(judged(code, false, true).0, "held", "{code}");
        }
        // Refused here, before any batch was made.
        assert_eq!(judged(Code::MessageSizeTooLarge, false, false).0, "rejected");
        assert_eq!(judged(Code::TopicAuthorizationFailed, false, true).0, "retry");
    }

    #[test]
    fn the_end_of_a_producer_is_nobodys_fault() {
        for code in [Code::PurgeQueue, Code::PurgeInflight, Code::Fatal, Code::OutOfOrderSequenceNumber] {
            assert_eq!(judged(code, true, true).0, "held", "{code}");
        }
    }

    #[test]
    fn topics() {
        for good in ["a", "orders.placed", "A-1_b", &"x".repeat(249)] {
            assert_eq!(check_topic(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "a b", "grün", "a/b", "a\0", "__consumer_offsets", &"x".repeat(250)] {
            assert!(check_topic(bad).is_err(), "{bad}");
        }
    }
}
