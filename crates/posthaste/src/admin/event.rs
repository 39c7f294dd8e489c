//! Events of the log as people look at them: lists, one event's life, what a replay did.
//!
//! A life is put together from what is there: the log's row, each sink's cursor and receipts, the deferred,
//! the dead letters, the audit. Nothing is written down for it, so an event without trouble costs nothing
//! more; and of an attempt that failed before a later one succeeded, nothing remains.

use super::{DeadLetter, IDS_AUDITED};
use crate::event::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

/// Which events of the log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventFilter {
    /// Topic pattern, `*` for any run.
    pub topic: Option<String>,
    /// Of this key.
    pub key: Option<String>,
    /// Appended at or after.
    pub since: Option<Timestamp>,
    /// Appended before.
    pub until: Option<Timestamp>,
    /// From this number on.
    pub from_seq: Option<i64>,
    /// Up to this number.
    pub to_seq: Option<i64>,
}

impl EventFilter {
    /// Whether it names nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The audit's word and detail of sending events of the log again: their numbers, and some of their ids.
    #[must_use]
    pub fn replayed(&self, sink: &str, seqs: &[i64], ids: &[Uuid]) -> (&'static str, Value) {
        let detail = json!({
            "sink": sink, "events": self, "from_seq": seqs.first(), "to_seq": seqs.last(),
            "count": ids.len(), "ids": &ids[..ids.len().min(IDS_AUDITED)],
        });
        ("replay_log", detail)
    }
}

/// An event as the log has it.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogEvent {
    /// Its number: its place in lists, too.
    pub seq: i64,
    /// Event id.
    pub id: Uuid,
    /// Topic.
    pub topic: String,
    /// Key.
    pub key: Option<String>,
    /// Headers as stored.
    pub headers: Option<serde_json::Value>,
    /// Content type.
    pub content_type: Option<String>,
    /// Size of the payload; `None` for a tombstone.
    pub payload_bytes: Option<i64>,
    /// The payload, only when one event is shown.
    #[serde(skip)]
    pub payload: Option<Vec<u8>>,
    /// Not before this instant.
    pub deliver_at: Option<Timestamp>,
    /// When it was appended.
    pub appended_at: Timestamp,
}

/// A part of the log that was looked through. Looking is bounded in rows, so a part may hold few events or
/// none, and still not be the last one.
#[derive(Debug, Clone, Serialize)]
pub struct EventPage {
    /// What matched, by number.
    pub events: Vec<LogEvent>,
    /// Go on behind this number; `None` at the end of what was asked for.
    pub next: Option<i64>,
}

/// Which event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventName {
    /// By its id.
    Id(Uuid),
    /// By its number.
    Seq(i64),
}

/// Where to look for an event by its id. The log has no index that finds any id: every append would pay for
/// it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Where {
    /// When it was appended, about; by default the time in a UUIDv7.
    pub near: Option<Timestamp>,
    /// Look through all of the log, however long that takes.
    pub everywhere: bool,
}

impl Where {
    /// The time to look around for an id: the one that was given, or the one in the id.
    #[must_use]
    pub fn time_of(&self, id: Uuid) -> Option<Timestamp> {
        self.near.or_else(|| made_at(id))
    }
}

/// When an id was made, if it says so, as a UUIDv7 does.
pub(super) fn made_at(id: Uuid) -> Option<Timestamp> {
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    let micros = i64::try_from(seconds).ok()?.checked_mul(1_000_000)?;
    Some(Timestamp(micros.saturating_add(i64::from(nanos / 1_000))))
}

/// How far one sink is with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Progress {
    /// Its cursor has not come to it.
    Ahead,
    /// It waits for a retry, for its time, or for an earlier event of its key.
    Deferred,
    /// It was given up.
    Dead,
    /// The cursor has passed it, it does not wait and is not dead: it was delivered, or discarded by an act
    /// that the life shows.
    Passed,
    /// The sink began behind it (`start_at`), and never read it.
    BeforeStart,
    /// The sink's routes do not take its topic.
    NotRouted,
}

/// The receipt with which a cursor passed an event.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PassedAt {
    /// Lane.
    pub lane: i16,
    /// Number of the receipt.
    pub receipt: i64,
    /// The owner's epoch.
    pub epoch: i64,
    /// When.
    pub settled_at: Timestamp,
}

/// An event that waits.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Waiting {
    /// Why it waits: retry, unknown, outage, scheduled, behind, replayed, …
    pub reason: String,
    /// Attempts since it was appended or last replayed.
    pub attempts: i32,
    /// Attempts of its lives before.
    pub earlier_attempts: i32,
    /// How often it was replayed.
    pub replays: i32,
    /// When it is due; `None`: behind an earlier event of its key.
    pub due_at: Option<Timestamp>,
    /// Route.
    pub route: String,
    /// Destination, if it was known.
    pub destination: String,
    /// Class of the last error.
    pub error_class: Option<String>,
    /// The last error.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_at: Option<Timestamp>,
}

/// An event's life with one sink.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SinkLife {
    /// The sink.
    pub sink: String,
    /// Whether it left the configuration.
    pub retired: bool,
    /// How far it is.
    pub progress: Progress,
    /// Highest number its lane has handled.
    pub position: i64,
    /// The receipt that passed it, while it is kept.
    pub passed: Option<PassedAt>,
    /// How it waits.
    pub waiting: Option<Waiting>,
    /// How it died.
    pub dead: Option<DeadLetter>,
    /// The number of the earlier event of its key that it waits for.
    pub behind: Option<i64>,
    /// Later events of its key that wait for it, up to a bound.
    pub holds_back: u64,
}

/// A line of the audit that names an event.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Acted {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What.
    pub action: String,
    /// Why.
    pub reason: String,
}

/// One event's life.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventLife {
    /// The event, with payload.
    pub event: LogEvent,
    /// Whether the log still holds it, or a copy of it only.
    pub in_log: bool,
    /// Its life with each sink.
    pub sinks: Vec<SinkLife>,
    /// What people did with it: the newest of them that name it.
    pub acts: Vec<Acted>,
}

/// Where a look at new events goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TailPlace {
    /// Everything up to here that could be seen was shown.
    pub seq: i64,
    /// What could be seen, where transactions commit in another order than their numbers.
    pub snapshot: Option<String>,
}

/// What a chunk of a replay did, or would do.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ReplayChunk {
    /// Events that go again.
    pub events: u64,
    /// Events that match and wait or are dead already: they are left alone.
    pub left_alone: u64,
    /// The last number looked at: go on behind it.
    pub reached: i64,
    /// The end of the range: where the sink's cursor stood, at most.
    pub to_seq: i64,
    /// Whether the range has come to its end.
    pub done: bool,
    /// The first of them.
    pub samples: Vec<LogEvent>,
}
