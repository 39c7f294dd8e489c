//! The source seam: taking messages from a broker, and telling it what became of them.
//!
//! A source belongs to one member of a consumer group. It keeps its membership alive, gets partitions
//! assigned, hands out their messages and remembers which of them are **in hand**: delivered, and neither
//! acknowledged nor given back. Policy (retries, dead letters, breakers) belongs to the consumer. The
//! contract, which the conformance suite of the testkit runs on every source:
//!
//! - **At least once.** A message that was not acknowledged is delivered again: to the next owner of its
//!   partition after a crash, to this one after a [`nack`](Source::nack). [`ack`](Source::ack) comes after
//!   the handler's transaction has committed, never before (G5).
//! - **Prefix.** Where the broker keeps one position for a partition ([`AckScope::Prefix`]), the committed
//!   position is the contiguous prefix of what is acknowledged. An acknowledgement never covers an earlier
//!   message that is still in hand (F26, F61).
//! - **Order.** Messages of one partition are delivered in the order of their positions, and those of one
//!   key are in one partition. What a nack does to it is declared ([`NackOrder`]).
//! - **Fencing.** Every assignment of a partition has a higher epoch than the one before. A ticket of an
//!   earlier epoch settles nothing and is answered [`Standing::Revoked`] (G4), also by a member that has
//!   not yet heard that it lost the partition. So the next owner's work is never marked as done by others.
//! - **Bounds.** A call hands out no more than asked for, in events and in bytes, and what is in hand is
//!   bounded by the source (G7): when its bound is reached, `next` waits for settlements.
//! - **Signs of life.** The source renews its leases by itself, but only while the consumer calls `next`
//!   now and then ([`Capabilities::stall_limit`]). A consumer that hangs must not keep its partitions for
//!   ever behind a heart that goes on beating (F67, F85).
//!
//! Refused: a stream of messages, which has no place for changes of the assignment and an unbounded buffer.
//! Acknowledging by dropping the message: a panic would acknowledge.

pub mod hand;
pub mod leased;
pub mod log;

use crate::event::{TYPE_HEADER, Timestamp};
use async_trait::async_trait;
use bytes::Bytes;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Part of a topic: the unit that a group's members divide, and the unit of order.
///
/// A broker without partitions has one for each stream or queue, with the number 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// The broker's name for it: topic, stream, queue.
    pub topic: Arc<str>,
    /// Its number within the topic.
    pub number: i32,
}

impl Partition {
    /// A partition by name and number.
    #[must_use]
    pub fn new(topic: impl Into<Arc<str>>, number: i32) -> Self {
        Self { topic: topic.into(), number }
    }
}

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

/// A message as the broker has it. It may come from anybody: nothing about it is certain but its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Received {
    /// The header `Message-ID`, or the broker's own dedup id. Any text; ours are UUIDs.
    pub id: Option<String>,
    /// The key, as bytes: other producers need not write text.
    pub key: Option<Bytes>,
    /// Headers in order, as they came. Names may repeat and differ in case, values need not be text.
    pub headers: Vec<(String, Bytes)>,
    /// The bytes, untouched. `None` is a tombstone.
    pub payload: Option<Bytes>,
}

impl Received {
    /// The first header of this name, in any case, if its value is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.and_then(|(_, value)| std::str::from_utf8(value).ok())
    }

    /// The event's id, where it is one of ours.
    #[must_use]
    pub fn event_id(&self) -> Option<Uuid> {
        self.id.as_deref().and_then(|id| Uuid::try_parse(id).ok())
    }

    /// The event's type, where the message says it.
    #[must_use]
    pub fn event_type(&self) -> Option<&str> {
        self.header(TYPE_HEADER)
    }

    /// Media type of the payload, where the message says it.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.header("content-type")
    }

    /// Bytes this message holds in memory, roughly: what byte bounds count.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, Bytes::len)
            + self.key.as_ref().map_or(0, Bytes::len)
            + self.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
            + 200
    }
}

/// A message in the consumer's hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// What to settle it with.
    pub ticket: Ticket,
    /// Its place in the partition, where the broker has one: the same at every redelivery.
    pub position: Option<i64>,
    /// How often it was handed out before, at most, where the broker knows. It may count a death of a
    /// former owner that had only read up to here: an upper bound, so that a message which kills its
    /// consumer is recognised (F21).
    pub redelivery: Option<u32>,
    /// When the broker took it, or the sender says so: from [`Timestamp::FIRST`] to [`Timestamp::LAST`].
    pub published_at: Option<Timestamp>,
    /// What it was addressed to, where that is more than the topic: a subject, a routing key.
    pub address: Option<String>,
    /// The message.
    pub message: Received,
}

impl Delivery {
    /// Where it comes from.
    #[must_use]
    pub fn partition(&self) -> &Partition {
        &self.ticket.partition
    }

    /// What the inbox knows this message by: its id, or its place if it has none. Never a hash of the
    /// payload: two equal payloads are two events (F72). `None`: it has neither, and the consumer must
    /// say what to do with such messages.
    #[must_use]
    pub fn identity(&self) -> Option<Cow<'_, str>> {
        match &self.message.id {
            Some(id) if !id.is_empty() => Some(Cow::Borrowed(id)),
            _ => self.place().map(Cow::Owned),
        }
    }

    /// Its place as a text that is its own for ever: `orders/3@7#1763280000123`. The time is part of it,
    /// in milliseconds: a topic that was deleted and made again has the same numbers once more.
    #[must_use]
    pub fn place(&self) -> Option<String> {
        let place = format!("{}@{}", self.ticket.partition, self.position?);
        Some(match self.published_at {
            Some(at) => format!("{place}#{}", at.0.div_euclid(1_000)),
            None => place,
        })
    }
}

/// The right to settle one delivery, once. A source makes it and reads it back; others only keep it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The partition.
    pub partition: Partition,
    /// The epoch of the assignment under which it was delivered.
    pub epoch: i64,
    /// The delivery's number there: its position, or a running number of the source.
    pub number: i64,
}

/// What a ticket was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It was in hand and is settled. Said again, it is so again.
    Settled,
    /// The partition was taken away, or sought elsewhere. The message is another's now; nothing was changed.
    Revoked,
}

/// Bounds of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Most messages. With 0 the call answers with changes alone: a sign of life from a consumer that has
    /// its hands full.
    pub events: usize,
    /// Most bytes; one message may exceed it alone.
    pub bytes: usize,
}

/// What changed about the assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The partition is this member's from now on. It is not paused.
    Assigned {
        /// Which.
        partition: Partition,
        /// Its epoch; tickets carry it.
        epoch: i64,
    },
    /// The partition is no longer this member's. Tickets of this epoch settle nothing; forget what is in
    /// hand. A partition that is given up on purpose is first emptied: no more deliveries come from it,
    /// and for a bounded time the source waits for what is in hand.
    Revoked {
        /// Which.
        partition: Partition,
        /// The epoch that ended.
        epoch: i64,
    },
    /// Messages between these positions were never delivered to the group and are gone: the topic's
    /// retention was shorter than the group's lag. The one loss a source can report; it is never silent.
    /// A source without positions says by these how many are gone, whether the partition is still its own
    /// or not.
    Lost {
        /// Which partition.
        partition: Partition,
        /// The first missing position.
        from: i64,
        /// The first position that is there again.
        until: i64,
    },
    /// The position to go on with is beyond the end of the log: it belongs to another log, or this one lost
    /// its end. Whatever is delivered from this partition before a [`seek`](Source::seek) is not what was
    /// asked for.
    Beyond {
        /// Which partition.
        partition: Partition,
        /// The position.
        position: i64,
        /// The position that the next published message gets, where it is known.
        end: Option<i64>,
    },
    /// Behind what was delivered no message lies before this position, only what a broker writes for itself:
    /// markers of transactions, records that were aborted or compacted away.
    Empty {
        /// Which partition.
        partition: Partition,
        /// The assignment that it was read under.
        epoch: i64,
        /// The first position that is not known to be empty.
        until: i64,
    },
}

/// The answer of one call: changes first, then deliveries, which belong to the assignment after them.
#[derive(Debug, Default)]
pub struct Batch {
    /// What changed, in order.
    pub changes: Vec<Change>,
    /// What was delivered; of each partition in order.
    pub deliveries: Vec<Delivery>,
}

impl Batch {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.deliveries.is_empty()
    }
}

/// Where to go on reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// With the oldest message that is there.
    Earliest,
    /// With what is published from now on.
    Latest,
    /// With this position, or the first one after it that is there. What is missing between them is reported
    /// as [`Change::Lost`], a position beyond the end as [`Change::Beyond`].
    Position(i64),
    /// With the first message that the broker took at or after this time.
    Time(Timestamp),
}

/// Where a group begins that has no position yet. A source never chooses for itself (F62).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StartFrom {
    /// With the oldest message that is there: nothing is missed.
    #[default]
    Earliest,
    /// With what is published from now on.
    Latest,
}

/// What an acknowledgement covers at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckScope {
    /// One position for a partition: after a crash everything behind the contiguous prefix comes again,
    /// also what was acknowledged.
    Prefix,
    /// Each message by itself.
    Each,
}

/// What a nack does to the order of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NackOrder {
    /// Kept: until the delay is over the partition delivers nothing; then what was given back comes again,
    /// by position, before anything newer. What is in hand already is the consumer's to give back too.
    Kept,
    /// Later messages overtake it.
    Overtaken,
}

/// What a source promises; conformance cases are chosen by it.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// What an acknowledgement covers.
    pub ack_scope: AckScope,
    /// Order under a nack.
    pub nack_order: NackOrder,
    /// Whether messages of one key are delivered in the order they were published in.
    pub orders_keys: bool,
    /// Whether deliveries say how often they were handed out before.
    pub counts_redeliveries: bool,
    /// Whether [`seek`](Source::seek) works. A queue has no positions, and answers to `Earliest` alone.
    pub seeks: bool,
    /// How long the source may go without a call of `next` before it lets its partitions go.
    pub stall_limit: Duration,
    /// Most messages that the broker hands out ahead of their acknowledgement, where it has such a bound.
    pub ahead_max: Option<usize>,
}

/// A partition as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionView {
    /// Which.
    pub partition: Partition,
    /// The epoch of the assignment.
    pub epoch: i64,
    /// The position after the last one that is settled for good. `None`: the group has none at the broker.
    pub committed: Option<i64>,
    /// Whether the source declared it, for the group had none, and nothing was settled since.
    pub declared: bool,
    /// The oldest position that is there, where it is known.
    pub first: Option<i64>,
    /// The position that the next published message will get, where it is known.
    pub end: Option<i64>,
    /// Which log the positions belong to, where the broker says so: Kafka's cluster id.
    pub log_id: Option<Arc<str>>,
    /// Deliveries in hand.
    pub in_hand: usize,
    /// Whether it is paused.
    pub paused: bool,
}

/// How a drain ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drained {
    /// Deliveries that were still in hand at the deadline. They come again elsewhere.
    pub abandoned: usize,
    /// How many messages of a partition were found to be gone, and `next` has not told: see
    /// [`Change::Lost`].
    pub lost: Vec<(Partition, u64)>,
}

/// Errors of a source, by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Worth another try after a pause: the broker is out of reach, busy, full. Every call is harmless
    /// when repeated.
    #[error("{0}")]
    Transient(String),
    /// The source was drained. Stop.
    #[error("this source was drained")]
    Closed,
    /// The partition is not this member's. Nothing was changed.
    #[error("{0} is not assigned to this consumer")]
    NotAssigned(Partition),
    /// This broker cannot do it.
    #[error("this source cannot {0}")]
    Unsupported(&'static str),
    /// It cannot go on without an operator: a corrupt file, a stream that is gone, a wrong password.
    #[error("{0}")]
    Fatal(String),
}

impl SourceError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Transient(_))
    }
}

/// Where messages come from.
///
/// One task calls `next`; everything else may be called at any time, from anywhere.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// What this source promises.
    fn capabilities(&self) -> Capabilities;

    /// The next messages. Answers as soon as there is anything, and with an empty batch after `wait`.
    /// Dropping the future loses nothing: what it had taken comes with the next call.
    async fn next(&self, limit: Limit, wait: Duration) -> Result<Batch, SourceError>;

    /// Says that these are done, after the handler's transaction has committed. One answer for each, in
    /// order. When it returns, the broker has it: give it many at once. Dropping the future takes none back.
    async fn ack(&self, tickets: &[Ticket]) -> Result<Vec<Standing>, SourceError>;

    /// Gives a message back: it is delivered again, not before `delay` has passed. The delay is this source's
    /// own: if the partition goes to another member meanwhile, that one may deliver it at once.
    async fn nack(&self, ticket: &Ticket, delay: Duration) -> Result<Standing, SourceError>;

    /// Delivers nothing more from this partition until [`resume`](Self::resume), and keeps the
    /// assignment. What is in hand can be settled. For the pauses of a breaker, not for back-pressure:
    /// that is what the bounds of `next` are for (F63). A pause ends with the assignment.
    async fn pause(&self, partition: &Partition) -> Result<(), SourceError>;

    /// Ends a pause.
    async fn resume(&self, partition: &Partition) -> Result<(), SourceError>;

    /// Goes on elsewhere in the partition, for this group. The epoch grows: what is in hand is revoked, and
    /// settles nothing. Answers with the new epoch, and the next changes tell the same: revoked, assigned
    /// again. `Earliest` of a queue is what was not acknowledged: what is in hand, in order, then the rest.
    async fn seek(&self, _partition: &Partition, _to: SeekTo) -> Result<i64, SourceError> {
        Err(SourceError::Unsupported("seek"))
    }

    /// The partitions of this member.
    async fn view(&self) -> Result<Vec<PartitionView>, SourceError>;

    /// Stops delivering, waits up to `wait` for what is in hand, and gives everything back, so that others
    /// need not wait for anything (G8). Afterwards `next` answers [`SourceError::Closed`], and a ticket
    /// that was not settled is revoked.
    async fn drain(&self, wait: Duration) -> Result<Drained, SourceError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(id: Option<&str>, position: Option<i64>) -> Delivery {
        Delivery {
            ticket: Ticket { partition: Partition::new("orders", 3), epoch: 1, number: 7 },
            position,
            redelivery: None,
            published_at: None,
            address: None,
            message: Received { id: id.map(str::to_owned), ..Received::default() },
        }
    }

    #[test]
    fn f72_a_message_is_known_by_its_id_or_its_place_and_never_by_its_payload() {
        assert_eq!(delivery(Some("any text"), Some(7)).identity().as_deref(), Some("any text"));
        assert_eq!(delivery(None, Some(7)).identity().as_deref(), Some("orders/3@7"));
        assert_eq!(delivery(Some(""), Some(7)).identity().as_deref(), Some("orders/3@7"));
        assert_eq!(delivery(None, None).identity(), None);
        let timed =
            Delivery { published_at: Some(Timestamp(1_763_280_000_123_456)), ..delivery(None, Some(7)) };
        assert_eq!(timed.identity().as_deref(), Some("orders/3@7#1763280000123"));
    }

    #[test]
    fn a_foreign_message_is_read_as_far_as_it_can_be() {
        let message = Received {
            id: Some("not-a-uuid".to_owned()),
            headers: vec![
                ("Content-Type".to_owned(), Bytes::from_static(b"text/plain")),
                ("content-type".to_owned(), Bytes::from_static(b"second")),
                ("blob".to_owned(), Bytes::from_static(&[0xff])),
            ],
            ..Received::default()
        };
        assert_eq!(message.event_id(), None);
        assert_eq!(message.content_type(), Some("text/plain"));
        assert_eq!((message.header("blob"), message.header("absent")), (None, None));
        let ours = Uuid::now_v7();
        assert_eq!(Received { id: Some(ours.to_string()), ..message }.event_id(), Some(ours));
    }

    #[test]
    fn only_an_outage_is_worth_another_try() {
        assert!(SourceError::Transient("busy".to_owned()).is_transient());
        for error in [
            SourceError::Closed,
            SourceError::NotAssigned(Partition::new("t", 0)),
            SourceError::Unsupported("seek"),
            SourceError::Fatal("corrupt".to_owned()),
        ] {
            assert!(!error.is_transient(), "{error}");
        }
    }
}
