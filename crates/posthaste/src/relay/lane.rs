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

use super::batch::Pending;
use super::breaker::{Breaker, Passage};
use super::calls::Calls;
use super::diary::Diary;
use super::pace::{Pace, RateLimit};
use super::progress::Progress;
use super::publish::Returned;
use super::settings::RelaySettings;
use super::window::Window;
use crate::clock::Clock;
use crate::event::{Event, Limits, Timestamp};
use crate::lifecycle::ClassOverrides;
use crate::route::RouteTable;
use crate::sink::Sink;
use crate::store::{Care, Controls, Death, DueBatch, Lease, Page, Settlement, Store, StoreCode, StoreError};
use crate::task::{Task, TaskDied, spawn};
use crate::telemetry::LaneMetrics;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering as Atomic};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How often, and how far apart, the store is asked to take something back at the end.
const GOODBYE_TRIES: u32 = 5;
const GOODBYE_PAUSE: Duration = Duration::from_millis(100);

/// What all lanes of a sink share.
pub(crate) struct LaneContext {
    pub(crate) service: Arc<str>,
    pub(crate) outbox: Arc<str>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) classes: ClassOverrides,
    pub(crate) limits: Limits,
    pub(crate) settings: watch::Receiver<RelaySettings>,
    pub(crate) routes: watch::Receiver<RouteTable>,
    pub(crate) controls: watch::Receiver<Controls>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The store's clock minus ours, in microseconds.
    pub(crate) offset: Arc<AtomicI64>,
    pub(crate) progress: Arc<Progress>,
    /// What the log hears once for all lanes of the outbox.
    pub(crate) diary: Arc<Diary>,
    /// Whoever goes one by one holds it while an event is in hand: one in the whole process.
    pub(crate) one_hand: Arc<tokio::sync::Mutex<()>>,
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
    pub(super) context: Arc<LaneContext>,
    pub(super) lease: Arc<dyn Lease>,
    pub(super) metrics: LaneMetrics,
    pub(super) settings: RelaySettings,
    pub(super) routes: RouteTable,
    pub(super) controls: Controls,
    pub(super) window: Window,
    pub(super) breaker: Breaker,
    pub(super) destinations: FxHashMap<String, Breaker>,
    pub(super) rate: Option<RateLimit>,
    pub(super) pace: Pace,
    pub(super) care: Care,
    /// Events still to be settled before a careful lane goes back to normal.
    pub(super) careful_left: usize,
    pub(super) calls: FuturesUnordered<BoxFuture<'static, Returned>>,
    /// What is known of them.
    pub(super) begun: Calls,
    /// Whether the last look at the deferred was a probe.
    pub(super) probed_last: bool,
    /// Nothing is published before this: the sink held everything.
    pub(super) next_publish: Instant,
    /// Whether a destination's breaker opened since waiting events were looked at.
    pub(super) closed_anew: bool,
    /// A call that was answered at once. It is handled before another one starts, and before those that wait.
    pub(super) answered: Option<Returned>,
    pub(super) reading: Option<Task<Result<Page, StoreError>>>,
    pub(super) last_read: u64,
    pub(super) read_started: Instant,
    pub(super) looking: Option<Task<Result<DueBatch, StoreError>>>,
    pub(super) probing_destination: Option<String>,
    pub(super) next_look: Instant,
    /// Whether the last look at the deferred found nothing, not even for later.
    pub(super) nothing_deferred: bool,
    pub(super) due_index: u32,
    pub(super) settling: Option<Task<Result<(), StoreError>>>,
    /// The settlement on its way, or to be tried again.
    pub(super) settlement: Option<Arc<Settlement>>,
    pub(super) settle_started: Instant,
    pub(super) next_settle: Instant,
    pub(super) settle_failures: u32,
    /// Events that the store had to give up, as far as they are counted.
    pub(super) given_up: u64,
    dozing: Option<(Task<Result<bool, StoreError>>, Duration)>,
    listening: Option<Task<()>>,
    /// Writing down that nothing is in hand any more.
    pub(super) forgetting: Option<Task<()>>,
    trust: watch::Receiver<Instant>,
    stop: watch::Receiver<bool>,
    draining: bool,
}

/// Runs a lane until it is released or lost.
pub(crate) async fn run(
    context: Arc<LaneContext>,
    lease: Arc<dyn Lease>,
    trust: watch::Receiver<Instant>,
    stop: watch::Receiver<bool>,
) -> LaneEnd {
    let mut lane = Lane::new(context, lease, trust, stop);
    match lane.work().await {
        Ok(end) => end,
        Err(StoreError::LeaseLost(id)) => {
            lane.metrics.leases_lost.increment(1);
            tracing::warn!(lane = %id, "lease lost; the new owner reads what was not settled again");
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

/// Resolves when the task in the slot ends, and empties the slot; never, when there is none.
async fn ended<T>(slot: &mut Option<Task<T>>) -> Result<T, TaskDied> {
    match slot {
        Some(task) => {
            let result = task.await;
            *slot = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// What is in the slot, at once.
async fn taken<T>(slot: &mut Option<T>) -> Option<T> {
    slot.take()
}

impl Lane {
    fn new(
        context: Arc<LaneContext>,
        lease: Arc<dyn Lease>,
        trust: watch::Receiver<Instant>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let now = Instant::now();
        let metrics = LaneMetrics::new(&context.service, &context.outbox, lease.id());
        let settings = context.settings.borrow().clone();
        let (routes, controls) = (context.routes.borrow().clone(), context.controls.borrow().clone());
        let (ordering, care) = (context.sink.capabilities().ordering, lease.care());
        if care != Care::None {
            tracing::warn!(lane = %lease.id(), ?care, "former owners died here: going carefully");
        }
        Self {
            metrics,
            careful_left: settings.max_unsettled_events,
            settings,
            routes,
            controls,
            care,
            window: Window::new(ordering),
            breaker: Breaker::new(),
            destinations: FxHashMap::default(),
            rate: None,
            pace: Pace::new(),
            calls: FuturesUnordered::new(),
            begun: Calls::default(),
            probed_last: false,
            next_publish: Instant::now(),
            closed_anew: false,
            answered: None,
            reading: None,
            last_read: 0,
            read_started: now,
            looking: None,
            probing_destination: None,
            next_look: now,
            nothing_deferred: false,
            due_index: 0,
            settling: None,
            settlement: None,
            settle_started: now,
            next_settle: now,
            settle_failures: 0,
            given_up: 0,
            dozing: None,
            listening: None,
            forgetting: None,
            trust,
            stop,
            draining: false,
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
            if self.draining && self.is_drained() {
                return Ok(self.finish().await);
            }
            let timer = self.next_timer();
            tokio::select! {
                biased;
                result = ended(&mut self.settling) => self.on_settled(result)?,
                Some(returned) = taken(&mut self.answered), if self.answered.is_some() => self.on_returned(returned),
                Some(returned) = self.calls.next(), if !self.calls.is_empty() => self.on_returned(returned),
                result = ended(&mut self.reading) => self.on_read(result)?,
                result = ended(&mut self.looking) => self.on_due(result)?,
                result = doze_ended(&mut self.dozing) => self.on_dozing(result),
                _ = ended(&mut self.listening) => self.pace.woken(Instant::now(), &self.settings),
                _ = self.trust.changed() => {}
                stopped = self.stop.changed(), if !self.draining => {
                    // A supervisor that vanished means the same as one that says stop.
                    self.draining = stopped.is_err() || *self.stop.borrow();
                }
                () = tokio::time::sleep_until(timer) => {}
            }
        }
    }

    /// Settings, routes and controls as they are now.
    fn refresh(&mut self) {
        let context = &self.context;
        if context.settings.has_changed().unwrap_or(false) || *context.settings.borrow() != self.settings {
            self.settings = context.settings.borrow().clone();
        }
        if *context.routes.borrow() != self.routes {
            self.routes = context.routes.borrow().clone();
        }
        let controls = context.controls.borrow();
        if *controls != self.controls {
            self.controls = controls.clone();
            self.next_look = Instant::now();
        }
        drop(controls);
        let sink = &self.lease.id().sink;
        let limit =
            self.controls.rate_limits.iter().find(|(name, _)| **name == **sink).map(|(_, rate)| *rate);
        let limit = limit.map(|rate| rate * self.lease.share());
        if limit != self.rate.as_ref().map(RateLimit::per_second) {
            self.rate = limit.map(|rate| RateLimit::new(rate, Instant::now()));
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.controls.paused_sinks.iter().any(|name| **name == *self.lease.id().sink)
    }

    /// Whether a publish may start: the lease outlives its timeout (F22).
    pub(super) fn is_trusted(&self, now: Instant) -> bool {
        now + self.settings.publish_timeout() <= *self.trust.borrow()
    }

    pub(super) fn trusted_until(&self) -> watch::Receiver<Instant> {
        self.trust.clone()
    }

    /// Whether new work may be begun at all.
    pub(super) fn is_open(&self) -> bool {
        !self.draining && !self.is_paused()
    }

    /// Whether a call is with the sink, or back and not handled yet.
    pub(super) fn is_calling(&self) -> bool {
        !self.calls.is_empty() || self.answered.is_some()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Asks the store for wakeups before a long pause, and listens for them.
    fn start_doze(&mut self) {
        if self.draining {
            return;
        }
        if self.listening.is_none() {
            let store = Arc::clone(&self.context.store);
            self.listening = Some(spawn("wakeup", async move { store.wakeup().await }));
        }
        let idle = self.reading.is_none() && self.dozing.is_none() && !self.is_calling();
        if !idle || self.is_paused() || !self.breaker.is_closed() {
            return;
        }
        if let Some(length) = self.pace.wants_doze(Instant::now()) {
            let store = Arc::clone(&self.context.store);
            self.dozing = Some((spawn("doze", async move { store.doze(length).await }), length));
        }
    }

    fn on_dozing(&mut self, result: (Result<Result<bool, StoreError>, TaskDied>, Duration)) {
        let now = Instant::now();
        match result {
            (Ok(Ok(true)), length) => self.pace.flagged(now, length),
            (Ok(Ok(false)), _) => self.pace.cannot_wake(),
            // A hint that could not be asked for: polling goes on.
            (Ok(Err(_)) | Err(_), _) => {}
        }
    }

    fn next_timer(&self) -> Instant {
        let now = Instant::now();
        let mut timer = now + Duration::from_secs(1);
        let mut sooner = |at: Instant| timer = timer.min(at);
        if self.reading.is_none() && self.wants_read() {
            sooner(self.pace.next_read());
        }
        if self.may_look(now) {
            sooner(self.next_look);
        }
        if self.settling.is_none() && (self.settlement.is_some() || self.window.settleable().is_some()) {
            sooner(self.next_settle);
        }
        // What a breaker or a rate allowed already and was not begun in this turn waits for something
        // else, whose end wakes the lane.
        let breakers = self.destinations.values().chain([&self.breaker]);
        breakers.filter_map(Breaker::wakes_at).filter(|at| *at > now).for_each(&mut sooner);
        if let Some(rate) = self.rate.as_ref().filter(|_| self.window.has_waiting()) {
            sooner(rate.next_at().max(now + Duration::from_millis(1)));
        }
        if let Some(at) = self.begun.next_slow() {
            sooner(at);
        }
        if self.next_publish > now && self.window.has_waiting() {
            sooner(self.next_publish);
        }
        // Whatever was due in the past has been looked at in this turn: never spin.
        timer.max(now + Duration::from_micros(200))
    }

    fn is_drained(&mut self) -> bool {
        if self.is_calling() || self.settling.is_some() {
            return false;
        }
        let left: Vec<Pending> = self.window.abandon();
        left.into_iter().for_each(|pending| self.defer_drained(pending));
        self.settlement.is_none() && self.window.is_empty()
    }

    async fn finish(&mut self) -> LaneEnd {
        let clean = self.window.is_empty() && self.settlement.is_none();
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

    pub(super) fn open_breaker(&mut self, now: Instant) {
        let initial = Duration::from_millis(self.settings.breaker_initial_ms);
        let max = Duration::from_millis(self.settings.breaker_max_ms);
        if self.breaker.is_closed() {
            tracing::warn!(outbox = %self.context.outbox, lane = %self.lease.id(), "sink out of reach: breaker open, no attempt is counted");
        }
        self.breaker.fail(now, initial, max);
        self.metrics.breaker.set(self.breaker.level());
    }

    pub(super) fn close_breaker(&mut self) {
        if !self.breaker.is_closed() {
            tracing::info!(outbox = %self.context.outbox, lane = %self.lease.id(), "sink is back: breaker closed");
            self.context.progress.set_outage(None);
            self.breaker.succeed();
            self.metrics.breaker.set(0.0);
            self.next_look = Instant::now();
        }
    }

    /// Whether events may be fetched for the sink: it is in reach, or a probe is due and nothing is in
    /// hand to make one of. Without the latter an open breaker would stay open for ever.
    pub(super) fn may_fetch(&self, now: Instant) -> bool {
        match self.passage(now) {
            Passage::Free => true,
            Passage::Probe => !self.is_calling() && !self.window.has_waiting(),
            Passage::Shut => false,
        }
    }

    pub(super) fn passage(&self, now: Instant) -> Passage {
        self.breaker.passage(now)
    }
}

async fn doze_ended(
    slot: &mut Option<(Task<Result<bool, StoreError>>, Duration)>,
) -> (Result<Result<bool, StoreError>, TaskDied>, Duration) {
    match slot {
        Some((task, length)) => {
            let result = (task.await, *length);
            *slot = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// A task that died takes the lane with it: its state is unknown.
pub(super) fn alive<T>(result: Result<Result<T, StoreError>, TaskDied>) -> Result<T, StoreError> {
    result.unwrap_or_else(|died| Err(StoreError::broken(StoreCode::Panicked, died.to_string())))
}
