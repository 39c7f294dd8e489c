//! The store seam: where the relay reads events from and writes what became of them.
//!
//! The relay does not ask whether a store is a log or an adopted table. Where they differ, the lease says
//! how ([`Lease::keeps_in_outages`], [`Lease::given_up`]). The relay holds **leases** on lanes; under a
//! lease it reads numbered pages and settles them in order. The contract, which the conformance suite of
//! the testkit runs on every store:
//!
//! - Pages of a lease hold each committed event of the lane once, late commits included (G2). What a
//!   dead lease had read but not settled is read again by its successor.
//! - [`Lease::settle`] applies a whole [`Settlement`] or nothing. It is harmless when repeated: a
//!   settlement whose pages are settled already changes nothing. Under a stale epoch it answers
//!   [`StoreError::LeaseLost`] and changes nothing (G4).
//! - Expiry is judged by the store's clock alone (F24).
//! - Wakeups are hints: a store that never wakes anybody is still correct, only slower.

mod attempt;
mod care;
mod controls;
mod error;
mod process;

pub use care::{Care, Deaths, reach};
pub use controls::{ControlRow, Controls, HandAct};
pub use error::{StoreCode, StoreError};
pub use process::{ProcessReport, REPORT_BYTES_MAX};

use crate::event::{StoredEvent, Timestamp};
use crate::route::{Filter, OnDead, Order, Route, UNROUTED};
use crate::sink::Failure;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// A sink's lane: the unit of leasing, and what a cursor belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    /// The sink.
    pub sink: Arc<str>,
    /// Its number.
    pub lane: i16,
}

impl std::fmt::Display for LaneId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.sink, self.lane)
    }
}

/// Where a sink that was never seen before begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// With the oldest event if nobody has ever read this outbox, so that what was appended before the
    /// first relay started is not skipped; otherwise with what is appended from now on.
    #[default]
    Auto,
    /// With what is appended from now on.
    Now,
    /// With the oldest event that the log still holds.
    Earliest,
    /// Behind this number.
    Seq(i64),
}

/// A sink as the store sees it: a name, what it reads, and where it begins.
#[derive(Debug, Clone)]
pub struct SinkPlan {
    /// Its name.
    pub name: Arc<str>,
    /// What it reads.
    pub filter: Filter,
    /// Where it begins if it is new.
    pub start_at: StartAt,
}

/// What a relay brings along when it joins.
#[derive(Debug, Clone)]
pub struct JoinPlan {
    /// Its name among the relays: unique for the process.
    pub relay: Arc<str>,
    /// The sinks it serves.
    pub sinks: Vec<SinkPlan>,
    /// The routes in canonical form. A relay with other routes is refused while others are alive.
    pub routes: String,
    /// Lanes to create if there are none yet. Afterwards the stored number counts, whatever is said here:
    /// only `posthaste lanes set` changes it.
    pub lanes: Option<u16>,
    /// How long a lease lives without renewal.
    pub lease_ttl: Duration,
}

/// A lane as everybody sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneView {
    /// Which.
    pub id: LaneId,
    /// Its owner, if it has a live one.
    pub owner: Option<Arc<str>>,
    /// The newest epoch.
    pub epoch: i64,
    /// Whether it can be taken now: no owner, expired, or the owner's connection is gone.
    pub is_free: bool,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone)]
pub struct Roll {
    /// All lanes of the sinks this relay serves.
    pub lanes: Vec<LaneView>,
    /// Live relays, this one included.
    pub relays: usize,
    /// The store's clock.
    pub now: Timestamp,
    /// What operators set.
    pub controls: Controls,
    /// Set when this relay must stop: other routes or another lane count are in force.
    pub refused: Option<String>,
}

/// Bounds of one page. Both hold before anything is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimit {
    /// Most events.
    pub events: usize,
    /// Most bytes of payload; one event may exceed it alone.
    pub bytes: usize,
}

/// Events read in one go.
#[derive(Debug)]
pub struct Page {
    /// Its number under this lease: 1, 2, 3, … Settlement goes by it.
    pub number: u64,
    /// The events, in the order to publish them in.
    pub events: Vec<StoredEvent>,
    /// For each event, by index: what keeps it from being published at once.
    pub detained: Vec<(usize, Detained)>,
    /// Whether there is probably more to read right now.
    pub more: bool,
    /// Whether the read moved the cursor although it found nothing: worth settling now and then.
    pub moved: bool,
}

/// Why an event of a page cannot be published yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detained {
    /// An earlier event of its key is deferred, or dead and holding.
    Behind,
    /// Its delivery time has not come.
    Scheduled,
}

/// Class of an error, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ErrorClass {
    /// May pass.
    Transient,
    /// Will not.
    Permanent,
    /// Nobody knows whether it arrived.
    Unknown,
}

impl ErrorClass {
    /// Its stored word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Unknown => "unknown",
        }
    }
}

/// Why an event is deferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// An attempt failed.
    Retry,
    /// An attempt's outcome is unknown.
    Unknown,
    /// Its delivery time has not come.
    Scheduled,
    /// An earlier event of its key waits.
    Held,
    /// Its destination is out of reach.
    Outage,
    /// Its route is paused.
    Paused,
    /// The relay left before it could be published.
    Drained,
    /// An operator replayed it.
    Replayed,
}

impl Reason {
    /// Its stored word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Unknown => "unknown",
            Self::Scheduled => "scheduled",
            Self::Held => "held",
            Self::Outage => "outage",
            Self::Paused => "paused",
            Self::Drained => "drained",
            Self::Replayed => "replayed",
        }
    }

    /// Whether an event that waits for this reason holds back its key. A scheduled one does not: it was
    /// appended for another time.
    #[must_use]
    pub fn holds(self) -> bool {
        self != Self::Scheduled
    }
}

/// When a deferred event becomes due, by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// This long after the settlement.
    In(Duration),
    /// At the event's own delivery time.
    AtDelivery,
    /// When nothing of its key waits before it any more.
    Behind,
}

/// The state that travels with a deferred event.
#[derive(Debug, Clone, PartialEq)]
pub struct Deferral {
    /// Why.
    pub reason: Reason,
    /// When.
    pub due: Due,
    /// Attempts spent.
    pub attempts: u32,
    /// Class of the last error.
    pub class: Option<ErrorClass>,
    /// Code of the last error.
    pub code: Option<String>,
    /// The last error.
    pub error: Option<String>,
    /// The route that took it.
    pub route: Arc<str>,
    /// Its address.
    pub destination: String,
    /// Whether it holds back its key.
    pub holds: bool,
    /// Whether it would hold it back as a dead letter, too: for a store that has to give it up.
    pub holds_when_dead: bool,
}

impl Deferral {
    /// Of an event that this route took.
    pub(crate) fn new(route: &Route, destination: String, attempts: u32, reason: Reason, due: Due) -> Self {
        Self {
            reason,
            due,
            attempts,
            class: None,
            code: None,
            error: None,
            route: Arc::clone(&route.name),
            destination,
            holds: route.order == Order::Key && reason.holds(),
            holds_when_dead: holds_when_dead(route),
        }
    }

    /// The same, with the error that it waits after.
    pub(crate) fn after(self, class: ErrorClass, failure: &Failure) -> Self {
        let (code, error) = (failure.code.to_string(), format!("{}: {}", failure.code, failure.message));
        Self { class: Some(class), code: Some(code), error: Some(error), ..self }
    }
}

/// Why and how an event died.
#[derive(Debug, Clone, PartialEq)]
pub struct Death {
    /// Attempts spent.
    pub attempts: u32,
    /// Class of the last error.
    pub class: ErrorClass,
    /// Stable code of the last error.
    pub code: String,
    /// The last error.
    pub error: String,
    /// The route that took it.
    pub route: Arc<str>,
    /// Whether later events of its key wait for it.
    pub holds: bool,
}

impl Death {
    /// Of an event that this route took, or that no route takes.
    pub(crate) fn new(route: Option<&Route>, attempts: u32, class: ErrorClass, failure: Failure) -> Self {
        Self {
            attempts,
            class,
            code: failure.code.into_owned(),
            error: failure.message,
            route: route.map_or_else(|| UNROUTED.into(), |route| Arc::clone(&route.name)),
            holds: route.is_some_and(holds_when_dead),
        }
    }
}

/// Whether a dead letter of this route holds back its key, if it has one.
fn holds_when_dead(route: &Route) -> bool {
    route.order == Order::Key && route.on_dead == OnDead::Hold
}

/// A deferred event whose time has come.
#[derive(Debug, Clone)]
pub struct DueEvent {
    /// The event.
    pub stored: StoredEvent,
    /// Attempts spent.
    pub attempts: u32,
    /// Why it waited.
    pub reason: Reason,
}

/// What to look for among the deferred.
#[derive(Debug, Clone, Default)]
pub struct DueQuery {
    /// Bounds.
    pub events: usize,
    /// Bounds in bytes.
    pub bytes: usize,
    /// Leave out events for these destinations: their breakers are open.
    pub closed_destinations: Vec<String>,
    /// Leave out events of these routes: they are paused.
    pub paused_routes: Vec<String>,
    /// Only this destination: a probe.
    pub only_destination: Option<String>,
}

/// The answer.
#[derive(Debug, Default)]
pub struct DueBatch {
    /// Events, each key's in order.
    pub events: Vec<DueEvent>,
    /// How long until the next one is due, where known.
    pub next_in: Option<Duration>,
}

/// What became of a batch. All of it is applied, or nothing.
#[derive(Debug, Default)]
pub struct Settlement {
    /// Every page up to this number is decided.
    pub through: Option<u64>,
    /// Events of those pages that wait.
    pub deferred: Vec<(StoredEvent, Deferral)>,
    /// Events of those pages that died.
    pub dead: Vec<(StoredEvent, Death)>,
    /// Deferred events that were delivered, by seq.
    pub delivered: Vec<i64>,
    /// Deferred events that go on waiting.
    pub again: Vec<(i64, Deferral)>,
    /// Deferred events that died.
    pub died: Vec<(i64, Death)>,
}

impl Settlement {
    /// How many events it says are delivered, of so many on the pages that it settles.
    #[must_use]
    pub fn delivered_of(&self, on_pages: i64) -> i64 {
        let count = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
        let fresh = on_pages.saturating_sub(count(self.deferred.len() + self.dead.len()));
        fresh.max(0).saturating_add(count(self.delivered.len()))
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.through.is_none() && self.delivered.is_empty() && self.again.is_empty() && self.died.is_empty()
    }
}

/// The right to a lane, and the cursor that comes with it.
#[async_trait]
pub trait Lease: Send + Sync {
    /// Which lane.
    fn id(&self) -> &LaneId;
    /// Its epoch; every lease of a lane has a higher one than the lease before.
    fn epoch(&self) -> i64;
    /// How carefully to go.
    fn care(&self) -> Care;
    /// This lease's part of the sink's lanes, for dividing a rate limit.
    fn share(&self) -> f64;
    /// Reads the next page. One at a time; it may run ahead of settlement.
    async fn read(&self, limit: PageLimit) -> Result<Page, StoreError>;
    /// Deferred events that are due.
    async fn due(&self, query: DueQuery) -> Result<DueBatch, StoreError>;
    /// Writes down what became of a batch. One at a time.
    async fn settle(&self, settlement: &Settlement) -> Result<(), StoreError>;
    /// Whether the events of [`Lease::due`] may stay in hand while the sink is out of reach. A store that
    /// locks or marks what it hands out says no: then they are settled as waiting again, and nobody waits for
    /// a lock because a broker is down.
    fn keeps_in_outages(&self) -> bool {
        true
    }
    /// Events that settlements under this lease had to give up so far: the store does not take what was to be
    /// written about them, and they are dead letters that say so.
    fn given_up(&self) -> u64 {
        0
    }
    /// The longest pause between two looks at the deferred. Two seconds: a replay by an operator waits no
    /// longer, should the wakeup not come. An adopted table's owner says how long a look may be away.
    fn look_max(&self) -> Duration {
        Duration::from_secs(2)
    }
    /// Writes down which event is in hand, before it is published. Only under [`Care::OneByOne`].
    async fn take_in_hand(&self, seq: Option<i64>) -> Result<(), StoreError>;
    /// Gives the lane back, so that the next owner need not wait for anything.
    async fn release(&self) -> Result<(), StoreError>;
}

/// What a sweep of the store did: turning, sealing, truncating, purging.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// The ring was turned to the next segment.
    pub turned: bool,
    /// Segments truncated.
    pub truncated: u32,
    /// Small rows purged: receipts, idempotency keys, expired dead letters.
    pub purged: u64,
    /// Dead letters among them: nobody acted on these, their retention was over.
    pub dead_purged: u64,
    /// Segments whose audit found a difference: they stay.
    pub audit_failures: u32,
    /// The ring could not be turned because the next segment is not empty.
    pub ring_full: bool,
}

/// Where events come from.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Makes the relay known, and agrees on routes and lanes. Called again after a lost connection.
    async fn join(&self, plan: &JoinPlan) -> Result<(), StoreError>;
    /// Heartbeat: renews the leases in hand and looks around.
    async fn roll(&self, held: &[(LaneId, i64)]) -> Result<Roll, StoreError>;
    /// Takes a free lane. `None`: somebody was quicker.
    async fn take(&self, lane: &LaneId) -> Result<Option<Arc<dyn Lease>>, StoreError>;
    /// Housekeeping, bounded in time. Any relay may call it at any time; one of them does the work.
    async fn sweep(&self) -> Result<Swept, StoreError>;
    /// Asks for wakeups until `at_most` from now. `false`: this store cannot wake anybody.
    async fn doze(&self, at_most: Duration) -> Result<bool, StoreError>;
    /// Resolves at the next wakeup. A hint: it may come late, twice or never.
    async fn wakeup(&self);
    /// Resolves when a lane may have become free. A hint too: heartbeats find it out anyway.
    async fn lanes_changed(&self) {
        std::future::pending().await
    }
    /// Which act took a lane by hand from a lease of this epoch, if one did. Asked only for a lease that was
    /// lost.
    async fn taken_by_hand(&self, _lane: &LaneId, _epoch: i64) -> Result<Option<HandAct>, StoreError> {
        Ok(None)
    }
    /// Writes down what the relay says about itself, for whoever looks. A store that has no place for it does
    /// nothing.
    async fn report(&self, _report: &ProcessReport) -> Result<(), StoreError> {
        Ok(())
    }
    /// Says goodbye: the relay no longer counts for fair shares, and its report goes with it. One that has
    /// not joined has nothing to leave. CRASH: a join whose answer was lost leaves a row that expires.
    async fn leave(&self) -> Result<(), StoreError>;
}
