//! The sink seam: handing messages to a broker, and what it says of each.
//!
//! A sink encodes, sends and classifies. It does not retry beyond its client's own idempotent protocol
//! retries, it does not sleep, and it drops nothing: policy belongs to the relay. A batch never has one
//! error (F28): every message gets its own verdict, in the order of the input.

pub mod chain;
mod null;
mod stdout;
mod vetted;

pub use null::NullSink;
pub use stdout::StdoutSink;
pub use vetted::Vetted;

use crate::envelope::{self, Envelope};
use crate::event::StoredEvent;
use async_trait::async_trait;
use bytes::Bytes;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// An event encoded for one broker. It exists only at this edge.
#[derive(Debug)]
pub struct Message {
    /// The event behind it.
    pub stored: StoredEvent,
    /// The broker's address for it: subject, topic, stream, URL.
    pub destination: String,
    /// What travels: the event's payload, or the envelope a route put around it. `None` is a tombstone.
    pub payload: Option<Bytes>,
    /// Whether the route asks for order by key.
    pub ordered: bool,
    /// The service that speaks, for the `source` header.
    pub source: Arc<str>,
    /// What the route put around the payload: it decides about headers too.
    pub envelope: Envelope,
    /// What decides about the broker's partition, where the route names something else than the key.
    pub partition_key: Option<String>,
}

impl Message {
    /// The key whose order must be kept, if any.
    #[must_use]
    pub fn order_key(&self) -> Option<&str> {
        if self.ordered { self.stored.event.key.as_deref() } else { None }
    }

    /// What decides about the broker's partition, where it has any: what the route names, or the key.
    #[must_use]
    pub fn partition_key(&self) -> Option<&str> {
        self.partition_key.as_deref().or(self.stored.event.key.as_deref())
    }

    /// The event id in its usual text form: the broker's dedup slot.
    #[must_use]
    pub fn id(&self) -> String {
        self.stored.event.id.hyphenated().to_string()
    }

    /// Every header that travels, ours first, then the event's own, then the envelope's. Made on demand: a
    /// sink that sends no headers pays nothing.
    pub fn each_header(&self, header: impl FnMut(&str, &str)) {
        envelope::each_header(self, envelope::HTTP_BINDING, header);
    }

    /// The same, with the attributes of a CloudEvent named and encoded as another protocol's binding asks
    /// for.
    pub fn each_header_for(&self, binding: envelope::Binding, header: impl FnMut(&str, &str)) {
        envelope::each_header(self, binding, header);
    }
}

/// What the broker said of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Durably acknowledged by the broker. Nothing less may be called so.
    Delivered,
    /// Not there, and may succeed later.
    Retry(Failure),
    /// Not there, and never will be.
    Rejected(Failure),
    /// It may have arrived: timeout, connection lost after sending.
    Unknown(Failure),
    /// Not sent, because an earlier message of its key was not delivered.
    Held,
}

/// Why a message was not delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Stable code, `broker.reason`: what config overrides and metrics name.
    pub code: Cow<'static, str>,
    /// For people. Never holds payload or secrets.
    pub message: String,
    /// Whose fault it is.
    pub scope: Scope,
    /// Not before this long from now, where the broker said so. A lower bound, and bounded itself
    /// ([`RETRY_AFTER_MAX`]).
    pub retry_after: Option<Duration>,
}

/// The longest wait that a broker can ask for. It is a stranger's word: without a bound one wrong header
/// would put a destination to sleep for years. Asked again after this time, it can say it again.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// A destination as it may be printed: of a URL no more than scheme and host, for the rest may be somebody's
/// secret.
#[must_use]
pub fn shown(destination: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = destination.split_once("://") else { return destination.into() };
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}/…").into()
}

/// Whose fault a failure is. Only an event's own fault spends one of its attempts (F50).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// This event's.
    Event,
    /// The destination's: others of the same sink are not touched.
    Destination,
    /// The whole sink's: the broker is out of reach, refuses us, or does not answer.
    Sink,
}

impl Failure {
    /// A failure that is the event's own fault.
    pub fn of_event(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), scope: Scope::Event, retry_after: None }
    }

    /// A failure of one destination.
    pub fn of_destination(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), scope: Scope::Destination, retry_after: None }
    }

    /// A failure of the whole sink.
    pub fn of_sink(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), scope: Scope::Sink, retry_after: None }
    }

    /// The same, not to be tried again before this long from now.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait.map(|wait| wait.min(RETRY_AFTER_MAX));
        self
    }

    /// How long the broker asked to be left alone; zero if it did not.
    #[must_use]
    pub fn wait_at_least(&self) -> Duration {
        self.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX)
    }
}

/// Which order of a key a sink keeps by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// None: the relay has at most one message of a key with the sink.
    None,
    /// Within one call: the relay keeps one call in flight for a key.
    Call,
    /// Across overlapping calls too: a message is never in flight while an earlier one of its key, in
    /// this or an unresolved earlier call, could still fail alone; if that one fails, it is `Held`.
    Overlap,
}

/// What a sink promises; conformance cases are chosen by it.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// Order of a key.
    pub ordering: Ordering,
    /// Whether the broker drops a second message with the same event id, for some time.
    pub dedupes: bool,
    /// Largest payload the broker takes, where it is known.
    pub payload_bytes_max: Option<usize>,
}

/// Name of the check whether an acknowledged event can be lost. A sink makes it for each destination that it
/// is asked about and can see.
pub const DURABILITY: &str = "durability";

/// One remark of a sink about its broker, for `posthaste doctor`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// Name of the check.
    pub check: String,
    /// How bad it is.
    pub level: Level,
    /// What was found, what it means for events, what to do.
    pub text: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, but can lose or stall in a way that is named.
    Warn,
    /// Does not work.
    Fail,
}

/// Where messages go.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// What this sink promises.
    fn capabilities(&self) -> Capabilities;

    /// Publishes messages and answers with one verdict for each, in order. This is the whole contract:
    ///
    /// - **One attempt.** A call is bounded by the sink's own delivery timeout, and that whole time is one
    ///   attempt. The sink does not try again, but for what its client's idempotent protocol repeats, or what
    ///   a server has said that it did not take.
    /// - **Overlap.** Calls may overlap. Their order is the order of their first polls, not that in which the
    ///   futures were made: a sink registers its messages before it waits for anything. What of a key's order
    ///   holds over overlapping calls is said by [`Capabilities::ordering`].
    /// - **Delivered** is only what the broker has acknowledged durably. What may have arrived and has no
    ///   such answer is [`Verdict::Unknown`]. What is certainly not there is [`Verdict::Retry`] or
    ///   [`Verdict::Rejected`].
    /// - **Held.** A message that was not sent because an earlier one of its key was not delivered, or
    ///   because there was no room or no time for it, is [`Verdict::Held`]: nothing is known against it or
    ///   its destination. A message that may have been sent is held only where a second copy and the order of
    ///   its key are safe (Kafka's producer that ended for another message's sake).
    /// - **The second half.** Nothing is sent after half of the delivery timeout. So whatever was sent had at
    ///   least the other half for its answer, and a missing answer may be blamed on its destination. The call
    ///   returns as soon as what was sent has its answers.
    /// - **A silence** is looked into before the call ends: if the broker answers a question, the fault is
    ///   the destination's, otherwise the sink's ([`Scope`]).
    /// - **Dropping** the future is allowed at any time. Every message of it counts as [`Verdict::Unknown`].
    ///   Nothing of it is sent afterwards but what the client already had; its keys and its room are free for
    ///   the next call, and a late answer to it is nobody's.
    /// - **Bad input** costs its own message a verdict, and nobody else anything. A mistake of the
    ///   configuration is the sink's failure and never the event's.
    async fn publish(&self, messages: &[Message]) -> Vec<Verdict>;

    /// Flushes nothing, keeps nothing: gives the connection back.
    async fn close(&self) {}

    /// Looks at the broker and the destinations without publishing anything.
    async fn examine(&self, _destinations: &[String]) -> Vec<Finding> {
        Vec::new()
    }

    /// How long the broker remembers the ids of what was sent to a destination, where it drops duplicates and
    /// can be asked. What is retried later than that may be stored twice (F39).
    async fn dedup_window(&self, _destination: &str) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_shows_no_more_than_its_host() {
        assert_eq!(shown("orders.placed"), "orders.placed");
        for url in [
            "https://u:p@h.example:8443/hooks/SECRET",
            "https://h.example:8443?t=SECRET",
            "https://h.example:8443#SECRET",
        ] {
            assert_eq!(shown(url), "https://h.example:8443/…");
        }
    }
}
