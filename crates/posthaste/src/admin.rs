//! The administration seam: what people look at and act on. No engine may call it.
//!
//! Keeping it apart is what keeps the store seam small. Lists go by keyset pages; bulk acts mean the
//! filter, not the page (F58), run in bounded chunks, and are audited with actor and reason (G6).

mod again;
mod aside;
mod audit;
mod bounds;
mod control;
mod diagnosis;
mod error;
mod event;
pub mod history;
pub mod job;
mod refuse;
mod report;

pub use crate::fingerprint::fingerprint;
pub use crate::tuning::{Ends, InForce, Tunable, TuneAct, Tuned};
pub use again::{count_again, count_again_within};
pub(crate) use aside::hex;
pub use aside::{
    DeadCause, DeadCauses, DeferredCause, DeferredEvent, DeferredFilter, fingerprint_of_text,
    fingerprint_text,
};
pub use audit::{Actor, AuditFilter, AuditLine, audited_filter, compare_topics, trace_of};
pub use bounds::{
    DISORDER_MICROS, IDS_AUDITED, IDS_NAMED_MAX, LANES_MAX, LOOKED_MAX, ROWS_MAX, SAMPLES, TOPICS_AUDITED,
};
pub use control::{Beside, Control, ControlTarget, Setting};
pub use diagnosis::{Problem, diagnose, diagnose_consumer, lanes_owned};
pub use error::{AdminCode, AdminError};
pub use event::{
    Acted, EventFilter, EventLife, EventName, EventPage, LogEvent, PassedAt, Progress, ReplayChunk, SinkLife,
    TailPlace, Waiting, Where,
};
pub use history::{ATTEMPTS_MAX, Attempt, History, TEXT_BYTES_MAX};
pub use refuse::letter_of_place;
pub use report::{DESTINATIONS_NAMED, DestinationReport, OutOfReach, Pulse, RelayReport, Said, SinkReport};

use crate::event::Timestamp;
use crate::sink::Finding;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A number that is exact, or estimated above a bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Count {
    /// The number.
    pub count: u64,
    /// Whether it was counted.
    pub exact: bool,
}

/// State of one lane of a sink.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Events delivered in the last minute, as a rate a second. Those put aside or given up do not count.
    pub delivered_per_second: f64,
    /// Whether an operator paused it.
    pub paused: bool,
    /// Events a second an operator allows.
    #[serde(rename = "rate_limit_per_s")]
    pub rate_limit: Option<f64>,
    /// Who set that, and why.
    pub set_by: Option<SetBy>,
    /// What waits, by cause, the most frequent first. A bounded part of it, like its count.
    pub waiting: Vec<DeferredCause>,
    /// Whether it left the configuration. It is shown for as long as something of it is left.
    pub retired: bool,
    /// Its lanes.
    pub lanes: Vec<LaneStatus>,
}

/// Who set something, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SetBy {
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Timestamp,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
}

/// A relay that lives, and what it says about itself.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RelayProcess {
    /// Its name.
    pub relay: String,
    /// Its version.
    pub version: String,
    /// Its host.
    pub host: String,
    /// When it started.
    pub started_at: Timestamp,
    /// When it wrote its report last.
    pub seen_at: Timestamp,
    /// What it says.
    pub said: Said,
}

/// State of one segment of the log.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutboxStatus {
    /// The store's clock.
    pub now: Timestamp,
    /// Live relays.
    pub relays: Vec<String>,
    /// What they say about themselves; those of an older version say nothing.
    pub reports: Vec<RelayProcess>,
    /// Schema version.
    pub schema_version: i32,
    /// Sinks.
    pub sinks: Vec<SinkStatus>,
    /// Segments.
    pub segments: Vec<SegmentStatus>,
    /// Routes that are paused.
    pub paused_routes: Vec<PausedRoute>,
    /// Whether a job waits that nobody runs. For whoever runs jobs, who asks nothing by themselves (F83);
    /// people have a list of jobs.
    #[serde(skip)]
    pub jobs_wait: bool,
    /// What waits in a log that no relay has ever read. People have the sentence of [`diagnose`].
    #[serde(skip)]
    pub unread: Option<UnreadLog>,
}

/// What waits in a log that no relay has ever read: there is no sink yet whose backlog it would be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnreadLog {
    /// How many events, counted up to a bound.
    pub count: Count,
    /// When the oldest of those was appended.
    pub oldest_at: Option<Timestamp>,
}

/// Something that a store cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lack {
    /// What.
    pub of: &'static str,
    /// Why not, and what to do in its place.
    pub why: &'static str,
}

/// A route that is paused.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PausedRoute {
    /// Its name.
    pub route: String,
    /// Who paused it, and why; `None` if an older version did.
    pub set_by: Option<SetBy>,
}

/// Which dead letters. An empty filter is refused for acts: `all` says it out loud.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeadFilter {
    /// Everything, said out loud.
    pub all: bool,
    /// These ids, at most 1000.
    pub ids: Vec<Uuid>,
    /// Of this sink.
    pub sink: Option<String>,
    /// Topic pattern, `*` for any run.
    pub topic: Option<String>,
    /// Of this key.
    pub key: Option<String>,
    /// By this route. Messages of a consumer have none.
    pub route: Option<String>,
    /// With this error code.
    pub code: Option<String>,
    /// Of this class of errors.
    pub class: Option<String>,
    /// With this text somewhere in the error.
    pub error: Option<String>,
    /// Of this cause.
    #[serde(with = "aside::optional_hex")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub fingerprint: Option<i64>,
    /// With this header.
    pub header: Option<String>,
    /// With a header of this value; where `header` is given, that one.
    pub header_value: Option<String>,
    /// Whether later ones of the key wait for it.
    pub holds_key: Option<bool>,
    /// Whether it was replayed before.
    pub replayed: Option<bool>,
    /// Died at or after.
    pub since: Option<Timestamp>,
    /// Died before.
    pub until: Option<Timestamp>,
}

impl DeadFilter {
    /// Whether it names nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // Every error has the empty text in it: that names no letter.
        let error = self.error.clone().filter(|text| !text.is_empty());
        Self { error, ..self.clone() } == Self::default()
    }
}

/// A dead letter.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeadLetter {
    /// Its place in the list: pass the last one on for the next page. Only the store knows what it says.
    pub cursor: String,
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
    /// The number of its cause; `None` for a letter that an older relay wrote.
    #[serde(serialize_with = "aside::optional_hex::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub fingerprint: Option<i64>,
    /// The last attempts.
    pub history: History,
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
    /// What this store cannot do: such a look or act is refused with this sentence.
    fn lacks(&self) -> &'static [Lack] {
        &[]
    }
    /// Dead letters after a place in the list, oldest first; without a place, the oldest.
    async fn dead_list(
        &self,
        filter: &DeadFilter,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError>;
    /// Dead letters before a place in the list, newest first; without a place, the newest.
    async fn dead_newest(
        &self,
        filter: &DeadFilter,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError>;
    /// Why they died, the most frequent cause first.
    async fn dead_causes(&self, filter: &DeadFilter, limit: i64) -> Result<DeadCauses, AdminError>;
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
    /// Deferred events behind a sink's number, by sink and number; without one, from the first.
    async fn deferred_list(
        &self,
        filter: &DeferredFilter,
        after: Option<(&str, i64)>,
        limit: i64,
    ) -> Result<Vec<DeferredEvent>, AdminError>;
    /// What events wait for, the most frequent cause first.
    async fn deferred_causes(
        &self,
        filter: &DeferredFilter,
        limit: i64,
    ) -> Result<Vec<DeferredCause>, AdminError>;
    /// Lets the next chunk of what matches be tried now; 0 means done. What waits behind another of its key
    /// goes on waiting, and what waits for its delivery time, too.
    async fn deferred_retry(
        &self,
        filter: &DeferredFilter,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError>;
    /// Lines of the audit before a place in the list, newest first; without a place, the newest.
    async fn audit_lines(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<AuditLine>, AdminError>;
    /// Writes down that somebody asked for what they may not: a line of the audit with the outcome `denied`,
    /// which is not sent on as an event. An adopted table has no place for it, and nothing is written.
    async fn audit_denied(
        &self,
        actor: &Actor,
        action: &str,
        detail: &serde_json::Value,
    ) -> Result<(), AdminError>;
    /// Sets a control for good.
    async fn control(
        &self,
        target: &ControlTarget,
        control: &Control,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        self.control_until(target, control, None, actor).await
    }
    /// Sets a control, and when it ends by itself.
    async fn control_until(
        &self,
        target: &ControlTarget,
        control: &Control,
        ends: Option<Ends>,
        actor: &Actor,
    ) -> Result<(), AdminError>;
    /// What is laid over `[relay]`, as it is stored and has not ended.
    async fn tuning(&self) -> Result<Vec<Tuned>, AdminError>;
    /// Lays settings over `[relay]`, or takes them off again. Answers with when they end.
    async fn tune(&self, act: &TuneAct, actor: &Actor) -> Result<Option<Timestamp>, AdminError>;
    /// Changes the number of lanes. Lanes are drained first; some events may be sent twice, none is skipped.
    async fn set_lanes(&self, lanes: u16, actor: &Actor) -> Result<(), AdminError>;
    /// Moves a sink's cursors back.
    async fn rewind(&self, sink: &str, to: RewindTo, actor: &Actor) -> Result<(), AdminError>;
    /// Re-bases a sink's cursors after the database went back in time: nothing skipped, some sent twice.
    async fn repair(&self, sink: &str, actor: &Actor) -> Result<String, AdminError>;
    /// Bulk acts that are written down. `None`: this store has no place for them, and acts run in the process
    /// that was asked.
    fn jobs(&self) -> Option<&dyn job::JobStore> {
        None
    }
    /// Checks every assumption the store rests on.
    async fn doctor(&self) -> Result<Vec<Finding>, AdminError>;
}
