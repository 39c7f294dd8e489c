//! One lane at work: a single task that owns everything the lane has in hand.
//!
//! ```text
//!  read ──► ingest ──► publish ──► decide ──► settle
//!   ▲         (route, held keys)   (lifecycle)   │
//!   └── due (deferred events) ◄──────────────────┘
//! ```
//!
//! The next page is read while one is in flight and the last one settles. All state lives in this task:
//! no locks, no order of events but the one written here. Bounds: pages by `max_unsettled_events` and
//! bytes, calls by `calls_in_flight`, one read, one look at the deferred and one settlement at a time.
//!
//! The state is in parts, each with its fields to itself and beside the verbs that use it. The loop begins
//! whatever may begin, waits for the first part that has an answer, and lets it be handled.

use super::calls::Calls;
use super::caution::Caution;
use super::deferred::Deferred;
use super::destinations::Destinations;
use super::handle::Process;
use super::reading::Reading;
use super::settling::Settling;
use super::terms::{Tenure, Terms};
use super::window::Window;
use crate::breaker::{Breaker, Passage};
use crate::clock::Clock;
use crate::event::{Event, Limits, Timestamp};
use crate::health::diary::Diary;
use crate::health::progress::Progress;
use crate::lifecycle::ClassOverrides;
use crate::sink::Sink;
use crate::store::{Death, Lease, Store, StoreCode, StoreError};
use crate::task::Task;
use crate::telemetry::LaneMetrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering as Atomic};
use std::time::Duration;
use tokio::time::Instant;

/// How often, and how far apart, the store is asked to take something back at the end.
const GOODBYE_TRIES: u32 = 5;
const GOODBYE_PAUSE: Duration = Duration::from_millis(100);

/// What a lane works with.
pub(crate) struct LaneContext {
    pub(crate) service: Arc<str>,
    pub(crate) outbox: Arc<str>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) classes: ClassOverrides,
    pub(crate) limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
    /// The store's clock minus ours, in microseconds.
    pub(crate) offset: Arc<AtomicI64>,
    pub(crate) progress: Arc<Progress>,
    /// What the log hears once for all lanes of the outbox.
    pub(crate) diary: Arc<Diary>,
    /// Whom a call must not meet at the sinks.
    pub(crate) process: Process,
}

impl LaneContext {
    /// The store's clock, as far as this host can tell.
    pub(crate) fn store_now(&self) -> Timestamp {
        self.clock.now().plus_micros(self.offset.load(Atomic::Relaxed))
    }
}

/// How a lane ended.
#[derive(Debug)]
pub(crate) enum LaneEnd {
    /// Given back; `clean` when nothing acknowledged was left unsettled.
    Released { clean: bool },
    /// Somebody else owns it.
    Lost,
    /// It cannot go on without an operator.
    Broken(String),
}

pub(crate) struct Lane {
    pub(super) context: LaneContext,
    pub(super) lease: Arc<dyn Lease>,
    pub(super) metrics: LaneMetrics,
    pub(super) terms: Terms,
    pub(super) tenure: Tenure,
    pub(super) caution: Caution,
    pub(super) window: Window,
    pub(super) reading: Reading,
    pub(super) deferred: Deferred,
    pub(super) calls: Calls,
    /// The sink's.
    pub(super) breaker: Breaker,
    pub(super) destinations: Destinations,
    pub(super) settling: Settling,
}

/// Runs a lane until it is released or lost.
pub(crate) async fn run(
    context: LaneContext,
    lease: Arc<dyn Lease>,
    terms: Terms,
    tenure: Tenure,
) -> LaneEnd {
    let mut lane = Lane::new(context, lease, terms, tenure);
    match lane.work().await {
        Ok(end) => end,
        Err(StoreError::LeaseLost(id)) => {
            lane.metrics.leases_lost.increment(1);
            tracing::debug!(lane = %id, "lease lost");
            LaneEnd::Lost
        }
        Err(error) => LaneEnd::Broken(error.to_string()),
    }
}

/// Asks a store that stumbles a few times more: what is not given back at the end stays taken until it
/// expires (G8). Few enough that a store which is down holds nobody up.
pub(super) async fn insist<F>(ask: impl Fn() -> F) -> Result<(), StoreError>
where
    F: Future<Output = Result<(), StoreError>>,
{
    for _ in 1..GOODBYE_TRIES {
        match ask().await {
            Err(error) if error.is_transient() => tokio::time::sleep(GOODBYE_PAUSE).await,
            settled => return settled,
        }
    }
    ask().await
}

/// Resolves when the task in the slot ends, and empties the slot; never, when there is none. A task that died
/// takes the lane with it: its state is unknown.
pub(super) async fn ended<T>(slot: &mut Option<Task<Result<T, StoreError>>>) -> Result<T, StoreError> {
    let Some(task) = slot else { return std::future::pending().await };
    let result = task.await;
    *slot = None;
    result.unwrap_or_else(|died| Err(StoreError::broken(StoreCode::Panicked, died.to_string())))
}

impl Lane {
    fn new(context: LaneContext, lease: Arc<dyn Lease>, terms: Terms, tenure: Tenure) -> Self {
        Self {
            metrics: LaneMetrics::new(&context.service, &context.outbox, lease.id()),
            caution: Caution::new(&*lease, &terms.settings),
            terms,
            tenure,
            window: Window::new(context.sink.capabilities().ordering),
            reading: Reading::new(),
            deferred: Deferred::new(),
            calls: Calls::default(),
            breaker: Breaker::new(),
            destinations: Destinations::new(lease.id().clone(), Arc::clone(&context.progress)),
            settling: Settling::new(),
            context,
            lease,
        }
    }

    async fn work(&mut self) -> Result<LaneEnd, StoreError> {
        loop {
            self.context.progress.turn(self.window.events());
            self.refresh();
            self.start_read();
            self.start_look();
            self.start_publish();
            self.start_settle();
            self.start_doze();
            if self.tenure.is_draining() && self.is_drained() {
                return Ok(self.finish().await);
            }
            let timer = self.next_timer();
            tokio::select! {
                biased;
                result = self.settling.ended() => self.on_settled(result)?,
                returned = self.calls.next() => self.on_returned(returned),
                page = self.reading.next(&self.terms.settings) => self.on_read(page)?,
                result = self.deferred.ended() => self.on_due(result)?,
                () = self.tenure.changed() => {}
                () = tokio::time::sleep_until(timer) => {}
            }
        }
    }

    /// Settings, routes and controls as they are now.
    fn refresh(&mut self) {
        let (now, are_new) = (Instant::now(), self.terms.refresh());
        self.reading.hurry(now, &self.terms.settings);
        self.deferred.hurry(now, self.lease.look_max());
        if are_new {
            self.deferred.look_by(now);
        }
        self.calls.limit(self.terms.rate_limit().map(|rate| rate * self.lease.share()));
    }

    /// Whether new work may be begun at all.
    pub(super) fn is_open(&self) -> bool {
        !self.tenure.is_draining() && !self.terms.are_paused()
    }

    /// Whether events may be fetched for the sink: it is in reach, or a probe is due and nothing is in
    /// hand to make one of. Without the latter an open breaker would stay open for ever.
    pub(super) fn may_fetch(&self, now: Instant) -> bool {
        match self.breaker.passage(now) {
            Passage::Free => true,
            Passage::Probe => self.calls.are_over() && !self.window.has_waiting(),
            Passage::Shut => false,
        }
    }

    fn next_timer(&self) -> Instant {
        let now = Instant::now();
        let timers = [
            Some(now + Duration::from_secs(1)),
            self.reads_at(now),
            self.looks_at(now),
            self.settling.wakes_at(&self.window),
            self.calls.wakes_at(now, self.window.has_waiting()),
            // What a breaker allowed already and was not begun in this turn waits for something else, whose
            // end wakes the lane.
            self.breaker.wakes_at().filter(|at| *at > now),
            self.destinations.wakes_at(now),
        ];
        // Whatever was due in the past has been looked at in this turn: never spin.
        let soonest = now + Duration::from_micros(200);
        timers.into_iter().flatten().min().unwrap_or(soonest).max(soonest)
    }

    fn is_drained(&mut self) -> bool {
        if !self.calls.are_over() || self.settling.is_busy() {
            return false;
        }
        self.window.abandon();
        !self.settling.is_owed() && self.window.is_empty()
    }

    async fn finish(&mut self) -> LaneEnd {
        let clean = self.window.is_empty() && !self.settling.is_owed();
        match insist(|| self.lease.release()).await {
            Ok(()) => LaneEnd::Released { clean },
            Err(StoreError::LeaseLost(_)) => LaneEnd::Lost,
            Err(error) => {
                tracing::warn!(lane = %self.lease.id(), %error, "the lane could not be given back; its lease expires by itself");
                LaneEnd::Released { clean: false }
            }
        }
    }

    /// Counts a store error; transient ones are waited out, the others end the lane.
    pub(super) fn tolerate(&mut self, error: StoreError, what: &str) -> Result<(), StoreError> {
        self.metrics.store_errors.increment(1);
        if !error.is_transient() {
            return Err(error);
        }
        self.context.diary.database_failed(what, &error);
        Ok(())
    }

    /// An event becomes a dead letter: counted, and said.
    pub(super) fn died(&self, event: &Event, death: &Death) {
        self.metrics.failures.increment(1);
        self.metrics.dead.increment(1);
        self.context.diary.died(self.lease.id(), event, death);
    }
}
