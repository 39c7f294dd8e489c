//! The administration seam: what people look at and act on. No engine may call it.
//!
//! Keeping it apart is what keeps the store seam small. Lists go by keyset pages; bulk acts mean the
//! filter, not the page (F58), run in bounded chunks, and are audited with actor and reason (G6).

mod bounds;
mod control;
mod error;
mod event;
mod fingerprint;
pub mod history;
mod refuse;

pub use bounds::{DISORDER_MICROS, IDS_AUDITED, LANES_MAX, ROWS_MAX, SAMPLES};
pub use control::{Control, ControlTarget, Setting};
pub use error::{AdminCode, AdminError};
pub use event::{
    Acted, EventFilter, EventLife, EventName, EventPage, LogEvent, PassedAt, Progress, ReplayChunk, SinkLife,
    TailPlace, Waiting, Where,
};
pub use fingerprint::fingerprint;
pub use history::{ATTEMPTS_MAX, Attempt, History, TEXT_BYTES_MAX};

use crate::event::Timestamp;
use crate::sink::Finding;
use async_trait::async_trait;
use serde::Serialize;
use uuid::Uuid;

/// Who acts, and why. Both go into the audit.
#[derive(Debug, Clone)]
pub struct Actor {
    /// A person or a program.
    pub name: String,
    /// The reason they gave.
    pub reason: String,
}

/// A number that is exact, or estimated above a bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Count {
    /// The number.
    pub count: u64,
    /// Whether it was counted.
    pub exact: bool,
}

/// State of one lane of a sink.
#[derive(Debug, Clone, Serialize)]
pub struct LaneStatus {
    /// Its number.
    pub lane: i16,
    /// Its owner, while the lease is alive.
    pub owner: Option<String>,
    /// Its epoch.
    pub epoch: i64,
    /// Milliseconds until the lease expires; negative when it has.
    pub lease_ms: Option<i64>,
    /// Highest number handled.
    pub position: i64,
    /// Whether it catches up with a long transaction's events.
    pub catching_up: bool,
    /// Seconds since the last settlement.
    pub settled_seconds_ago: Option<f64>,
    /// Owners that died at this place.
    pub unclean: i32,
}

/// State of one sink.
#[derive(Debug, Clone, Serialize)]
pub struct SinkStatus {
    /// Its name.
    pub sink: String,
    /// Events in the log that it has not handled.
    pub backlog: Count,
    /// Age of the oldest of them, deferred ones that are overdue included.
    pub oldest_age_seconds: f64,
    /// Average age of the backlog.
    pub average_age_seconds: f64,
    /// Events that wait.
    pub deferred: Count,
    /// Dead letters.
    pub dead: Count,
    /// Events settled in the last minute, as a rate a second.
    pub settled_per_second: f64,
    /// Whether an operator paused it.
    pub paused: bool,
    /// Events a second an operator allows.
    #[serde(rename = "rate_limit_per_s")]
    pub rate_limit: Option<f64>,
    /// Its lanes.
    pub lanes: Vec<LaneStatus>,
}

/// State of one segment of the log.
#[derive(Debug, Clone, Serialize)]
pub struct SegmentStatus {
    /// Its number.
    pub segment: i16,
    /// `current`, `closed` (turned away from), `sealed` (nothing can appear in it any more) or `empty`.
    pub state: String,
    /// Bytes on disk.
    pub bytes: i64,
    /// When it became the current one.
    pub opened_at: Option<Timestamp>,
}

/// State of one outbox.
#[derive(Debug, Clone, Serialize)]
pub struct OutboxStatus {
    /// The store's clock.
    pub now: Timestamp,
    /// Live relays.
    pub relays: Vec<String>,
    /// Schema version.
    pub schema_version: i32,
    /// Sinks.
    pub sinks: Vec<SinkStatus>,
    /// Segments.
    pub segments: Vec<SegmentStatus>,
    /// Routes that are paused.
    pub paused_routes: Vec<String>,
}

/// Which dead letters. An empty filter is refused for acts: `all` says it out loud.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DeadFilter {
    /// Everything, said out loud.
    pub all: bool,
    /// These ids.
    pub ids: Vec<Uuid>,
    /// Of this sink.
    pub sink: Option<String>,
    /// Topic pattern, `*` for any run.
    pub topic: Option<String>,
    /// Of this key.
    pub key: Option<String>,
    /// With this error code.
    pub code: Option<String>,
    /// Died at or after.
    pub since: Option<Timestamp>,
    /// Died before.
    pub until: Option<Timestamp>,
}

impl DeadFilter {
    /// Whether it names nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.all
            && self.ids.is_empty()
            && self.sink.is_none()
            && self.topic.is_none()
            && self.key.is_none()
            && self.code.is_none()
            && self.since.is_none()
            && self.until.is_none()
    }
}

/// A dead letter.
#[derive(Debug, Clone, Serialize)]
pub struct DeadLetter {
    /// Its place in the list: pass the last one on for the next page.
    pub cursor: i64,
    /// The sink it was meant for.
    pub sink: String,
    /// Its number in the log.
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
    /// The payload, only when one letter is shown.
    #[serde(skip)]
    pub payload: Option<Vec<u8>>,
    /// When it was appended.
    pub appended_at: Timestamp,
    /// When it died.
    pub dead_at: Timestamp,
    /// Attempts over its whole life.
    pub attempts: i32,
    /// How often it was replayed before.
    pub replays: i32,
    /// Class of the last error.
    pub error_class: String,
    /// Code of the last error.
    pub error_code: String,
    /// The last error.
    pub error: String,
    /// Whether later events of its key wait for it.
    pub holds_key: bool,
}

/// What to do with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadAct {
    /// Make them due again, in their place.
    Replay,
    /// Remove them for good.
    Discard,
}

impl DeadAct {
    /// The audit's word.
    #[must_use]
    pub fn action(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Discard => "discard",
        }
    }
}

/// Where to rewind a sink to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RewindTo {
    /// The oldest event the log still holds.
    Earliest,
    /// Behind this number.
    Seq(i64),
    /// The first event appended at or after this instant.
    Time(Timestamp),
}

/// Looking and acting, for CLI, API and dashboard.
#[async_trait]
pub trait Admin: Send + Sync {
    /// State of the whole outbox. Its cost does not grow with backlog or history (F82).
    async fn status(&self) -> Result<OutboxStatus, AdminError>;
    /// Dead letters after a place in the list, oldest first.
    async fn dead_list(
        &self,
        filter: &DeadFilter,
        after: i64,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError>;
    /// One event's dead letters (one for each sink), with payload.
    async fn dead_show(&self, id: Uuid) -> Result<Vec<DeadLetter>, AdminError>;
    /// How many match.
    async fn dead_count(&self, filter: &DeadFilter) -> Result<u64, AdminError>;
    /// Acts on the next chunk of what matches; 0 means done. Call again for the rest: each chunk is a
    /// transaction of its own, so it can be stopped and resumed at any time.
    async fn dead_act(
        &self,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError>;
    /// Events of the log behind a number, oldest first. Looks at a bounded part of the log.
    async fn events(&self, filter: &EventFilter, after: i64, limit: i64) -> Result<EventPage, AdminError>;
    /// One event's life. By number it costs a few steps into indexes; by id what [`Where`] says.
    async fn event(&self, name: EventName, place: Where) -> Result<EventLife, AdminError>;
    /// New events since a place; without one, the place where the log ends now.
    async fn events_since(
        &self,
        filter: &EventFilter,
        place: Option<&TailPlace>,
    ) -> Result<(Vec<LogEvent>, TailPlace), AdminError>;
    /// Sends the next chunk of what matches behind a number to a sink again: copies that wait, so that relays
    /// deliver them in the ordinary way. Only what the sink has passed already. Without an actor it only
    /// looks.
    async fn events_replay(
        &self,
        sink: &str,
        filter: &EventFilter,
        after: i64,
        chunk: i64,
        actor: Option<&Actor>,
    ) -> Result<ReplayChunk, AdminError>;
    /// Sets a control.
    async fn control(
        &self,
        target: &ControlTarget,
        control: &Control,
        actor: &Actor,
    ) -> Result<(), AdminError>;
    /// Changes the number of lanes. Lanes are drained first; some events may be sent twice, none is skipped.
    async fn set_lanes(&self, lanes: u16, actor: &Actor) -> Result<(), AdminError>;
    /// Moves a sink's cursors back.
    async fn rewind(&self, sink: &str, to: RewindTo, actor: &Actor) -> Result<(), AdminError>;
    /// Re-bases a sink's cursors after the database went back in time: nothing skipped, some sent twice.
    async fn repair(&self, sink: &str, actor: &Actor) -> Result<String, AdminError>;
    /// Checks every assumption the store rests on.
    async fn doctor(&self) -> Result<Vec<Finding>, AdminError>;
}
