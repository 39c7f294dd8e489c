//! The engine: one task owns all state of a consumer, and its loop is its table of contents.
//!
//! ```text
//! next ──► intake ──► key queues ──► transactions ──► settled prefix ──► save ──► ack
//!                        ▲   │ fails                                      │
//!                        └───┴── waits, alone, deferred, dead             └─ seeks, controls, witness
//! ```
//!
//! Bounds (G7): messages and bytes in hand by the window, transactions by `transactions_max`, one read, one
//! save, one acknowledgement, one look at the deferred and one sweep at a time. Every question to the source
//! or the database is a task of its own; its answer comes back here and is handled before anything else is
//! begun.

use super::begin::Beginning;
use super::dependencies::Dependencies;
use super::errands::{AWAY_PAUSE, Answer, Errand};
use super::failing::Failing;
use super::failure::Failure;
use super::handle::{ConsumerEnd, ConsumerHealth, ConsumerPlan, EngineStep};
use super::meter::Meter;
use super::partition::{Leaving, PartitionState, Stage};
use super::queue::QueueKey;
use super::settings::ConsumerSettings;
use super::share::Share;
use super::store::{ConsumerControls, InboxError, SavedPosition, Witness, Work};
use super::transaction::BatchSize;
use crate::breaker::{Breaker, Passage, Pauses};
use crate::clock::Clock;
use crate::event::Timestamp;
use crate::relay::{DrainOutcome, RateLimit};
use crate::source::{AckScope, Batch, Delivery, Partition, SourceError, Ticket};
use crate::task::{Task, spawn};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a call for messages waits.
const NEXT_WAIT: Duration = Duration::from_secs(1);
/// Between two turns of the loop, at most.
const TURN_MAX: Duration = Duration::from_secs(1);
/// Pauses of the database's breaker. It resumes by itself at most this long after an outage.
const DATABASE_PAUSES: Pauses = Pauses { initial: Duration::from_millis(200), max: Duration::from_secs(2) };
/// Between two saves while something moves, and while nothing does.
pub(super) const SAVE_MOVED: Duration = Duration::from_millis(200);
pub(super) const SAVE_IDLE: Duration = Duration::from_secs(1);
/// Between two saves while what is settled fills the source's hands.
pub(super) const SAVE_FILLED: Duration = Duration::from_millis(20);

pub(super) struct Engine {
    pub(super) plan: ConsumerPlan,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) settings: ConsumerSettings,
    settings_in: watch::Receiver<ConsumerSettings>,
    stop: watch::Receiver<bool>,
    health_out: watch::Sender<ConsumerHealth>,
    /// The life of the database that everything here was learnt from.
    pub(super) witness: Option<Witness>,
    pub(super) partitions: BTreeMap<Partition, PartitionState>,
    pub(super) leaving: Vec<Leaving>,
    /// What is to be written about partitions that went elsewhere, again until it is.
    pub(super) releases: Vec<SavedPosition>,
    pub(super) lives: u64,
    pub(super) arrivals: u64,
    answers: FuturesUnordered<Task<Answer>>,
    pub(super) reading: Option<Reading>,
    pub(super) not_read_before: Instant,
    /// Why the source could not be asked the last time, and when that was.
    pub(super) source_away: Option<(String, Instant)>,
    /// Transactions under way, deferrals and burials among them.
    pub(super) transactions: usize,
    /// Those among them whose message has met somebody's lock before, and whether one of these is next.
    pub(super) in_conflict: usize,
    pub(super) is_conflicts_turn: bool,
    /// One of them is of a message in whose handler the connection was lost before. Nothing runs beside it: a
    /// message that brings the server down would take its neighbours with it.
    pub(super) is_suspect_out: bool,
    pub(super) batch_size: BatchSize,
    pub(super) database: Breaker,
    pub(super) dependencies: Dependencies,
    pub(super) failing: Failing,
    pub(super) begins: Errand,
    pub(super) saves: Errand,
    pub(super) saved_at: Instant,
    pub(super) acks: Errand,
    pub(super) to_ack: Vec<Ticket>,
    pub(super) looks: Errand,
    /// When the last one began.
    pub(super) looked_at: Instant,
    /// Whether the one that is under way says whether everything still fails.
    pub(super) is_look_probe: bool,
    /// Whether a look at the deferred comes before the next transaction, where only one of them runs.
    pub(super) is_looks_turn: bool,
    /// How long a deferred message waits whose dependency is away.
    pub(super) away_pause: Duration,
    pub(super) sweeps: Errand,
    pub(super) views: Errand,
    pub(super) controls: ConsumerControls,
    /// Whether the database was asked for them: one that is paused must not begin anything before.
    pub(super) are_controls_known: bool,
    pub(super) rate: Option<RateLimit>,
    /// Deferred messages: as counted last, and those that came since.
    pub(super) deferred: u64,
    /// Messages without an identity, while none has one.
    pub(super) unidentified: Vec<(Delivery, i64, usize, Option<Failure>)>,
    /// Skipped messages, where the store writes them down, without their bytes.
    pub(super) skipped: Vec<Work>,
    pub(super) is_identified: bool,
    /// When something was last settled or under way, or there was nothing to do.
    pub(super) well_at: Instant,
    /// The source said nothing for so long that another one is to take its place.
    pub(super) is_source_dead: bool,
    pub(super) last_error: Option<String>,
    /// What has met a lock for so long that people should know, and when it did last.
    pub(super) stuck: Option<(Instant, String)>,
    pub(super) metrics: Meter,
    pub(super) began: Instant,
    /// The last report of the process, and when it was given.
    pub(super) reported: Option<(Instant, String)>,
    pub(super) started_at: Timestamp,
    pub(super) probes: u64,
    pub(super) draining_since: Option<Instant>,
}

impl Engine {
    pub(super) fn new(
        plan: ConsumerPlan,
        mut settings_in: watch::Receiver<ConsumerSettings>,
        clock: Arc<dyn Clock>,
        stop: watch::Receiver<bool>,
        health_out: watch::Sender<ConsumerHealth>,
    ) -> Self {
        let now = Instant::now();
        let settings = settings_in.borrow_and_update().clone();
        let (metrics, started_at) = (Meter::new(&plan), clock.now());
        Self {
            plan,
            clock,
            settings,
            settings_in,
            stop,
            health_out,
            witness: None,
            partitions: BTreeMap::new(),
            leaving: Vec::new(),
            releases: Vec::new(),
            lives: 0,
            arrivals: 0,
            answers: FuturesUnordered::new(),
            reading: None,
            not_read_before: now,
            source_away: None,
            transactions: 0,
            in_conflict: 0,
            is_conflicts_turn: false,
            is_suspect_out: false,
            batch_size: BatchSize::new(),
            database: Breaker::new(),
            dependencies: Dependencies::default(),
            failing: Failing::new(now),
            begins: Errand::new(now),
            saves: Errand::new(now),
            saved_at: now,
            acks: Errand::new(now),
            to_ack: Vec::new(),
            looks: Errand::new(now),
            looked_at: now,
            is_look_probe: false,
            is_looks_turn: false,
            away_pause: AWAY_PAUSE,
            sweeps: Errand::new(now),
            views: Errand::new(now),
            controls: ConsumerControls::default(),
            are_controls_known: false,
            rate: None,
            deferred: 0,
            unidentified: Vec::new(),
            skipped: Vec::new(),
            is_identified: false,
            well_at: now,
            is_source_dead: false,
            last_error: None,
            stuck: None,
            metrics,
            began: now,
            reported: None,
            started_at,
            probes: 0,
            draining_since: None,
        }
    }

    /// Runs until it is drained, or cannot go on.
    pub(super) async fn run(mut self) -> Result<DrainOutcome, ConsumerEnd> {
        let capabilities = self.plan.source.capabilities();
        if !capabilities.seeks && capabilities.ack_scope == AckScope::Prefix {
            let name = &self.plan.name;
            let why = "this source cannot seek, and a consumer reads from the database's position";
            return Err(ConsumerEnd::Failed(format!("{name}: {why}")));
        }
        loop {
            let now = Instant::now();
            self.refresh(now);
            self.start_read(now);
            self.start_begin(now);
            self.start_transactions(now);
            self.start_look(now);
            self.start_save(now);
            self.start_ack(now);
            self.start_pauses();
            self.start_view(now);
            self.start_sweep(now);
            if let Some(outcome) = self.drained(now).await {
                return self.end(outcome);
            }
            let timer = self.next_timer(now);
            tokio::select! {
                biased;
                Some(answer) = self.answers.next() => {
                    // A task that died takes the consumer with it: what it did is unknown.
                    let answer = answer.map_err(|died| died.to_string())?;
                    if let Err(end) = self.on_answer(answer) {
                        return self.fail(end).await;
                    }
                }
                batch = read(&mut self.reading) => {
                    if let Err(end) = self.on_read(batch) {
                        return self.fail(end).await;
                    }
                }
                Ok(()) = self.stop.changed() => {}
                // Whoever reloads nothing may have dropped the sender.
                Ok(()) = self.settings_in.changed() => self.settings = self.settings_in.borrow().clone(),
                () = tokio::time::sleep_until(timer) => {}
            }
        }
    }

    /// Settings and controls as they are now; whatever waited until now is ready.
    fn refresh(&mut self, now: Instant) {
        if self.settings_in.has_changed().unwrap_or(false) {
            self.settings = self.settings_in.borrow_and_update().clone();
        }
        if *self.stop.borrow_and_update() || self.watch(now) {
            self.draining_since.get_or_insert(now);
        }
        if self.controls.rate_limit != self.rate.as_ref().map(RateLimit::per_second) {
            self.rate = self.controls.rate_limit.map(|rate| RateLimit::new(rate, now));
        }
        for state in self.partitions.values_mut() {
            state.queues.wake(now);
        }
        self.reconsider_all_failing();
        self.share_window(now);
        self.relieve_positions(now);
        self.stop_beyond();
        self.report(now);
    }

    pub(super) fn is_told_to_stop(&self) -> bool {
        *self.stop.borrow()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining_since.is_some()
    }

    /// Whether work may be begun at all.
    pub(super) fn is_open(&self) -> bool {
        let may_begin = self.are_controls_known && !self.controls.paused;
        may_begin && !self.is_draining() && self.database.is_closed()
    }

    /// Messages in hand, with those that are settled behind one that is not, or not written down yet.
    pub(super) fn in_hand(&self) -> usize {
        let open = self.partitions.values().map(|state| state.hand.open() + state.early.len());
        open.sum::<usize>() + self.skipped.len()
    }

    /// What is free of the window.
    pub(super) fn share(&self) -> Share {
        let bytes = self.partitions.values().map(|state| state.bytes).sum();
        Share {
            events: self.settings.in_hand_max.saturating_sub(self.in_hand()),
            bytes: self.settings.in_hand_bytes_max.saturating_sub(bytes),
            is_shared: self.partitions.len() != 1,
        }
    }

    /// Finds who crowds the window. One that filled it while it was alone is read again, in its share.
    ///
    /// One that has a single message has no less after that, and would begin its attempts anew for ever.
    fn share_window(&mut self, now: Instant) {
        let share = self.share();
        self.partitions.values_mut().for_each(|state| share.note(state, now));
        let is_crowding =
            |state: &PartitionState| state.is_crowding && state.running == 0 && state.hand.open() > 1;
        let crowding = self.partitions.iter().filter(|(_, state)| is_crowding(state));
        let largest = crowding.max_by_key(|(_, state)| state.hand.open()).map(|(at, _)| at.clone());
        if let Some(partition) = largest.filter(|_| share.is_full()) {
            self.retake(&partition);
        }
    }

    /// Calls the source in any case: with its hands full, as a sign of life alone.
    fn start_read(&mut self, now: Instant) {
        if self.is_draining() || now < self.not_read_before {
            return;
        }
        let share = self.share();
        let limit = share.room(self.partitions.values());
        if let Some(reading) = &mut self.reading {
            // Room came back while a mere sign of life is out. It may have an answer already, so it is ended
            // and still waited for.
            let is_much = limit.events > self.settings.in_hand_max / if share.is_shared { 16 } else { 4 };
            if reading.is_sign && !reading.is_ended && is_much {
                reading.is_ended = true;
                reading.task.abort();
            }
            return;
        }
        let source = Arc::clone(&self.plan.source);
        let task = spawn("next", async move { source.next(limit, NEXT_WAIT).await });
        self.reading = Some(Reading { task, is_sign: limit.events == 0, is_ended: false });
    }

    fn start_begin(&mut self, now: Instant) {
        if !self.begins.is_due(now) || !self.database.is_closed() || self.is_draining() {
            return;
        }
        // One that came back is taken once it was given back: a release must not follow a taking.
        let releases = &self.releases;
        let to_begin = |(partition, state): (&Partition, &PartitionState)| {
            state.stage == Stage::Assigned && !releases.iter().any(|release| release.partition == *partition)
        };
        let partitions: Vec<_> = self
            .partitions
            .iter_mut()
            .filter(|(partition, state)| to_begin((partition, state)))
            .map(|(partition, state)| {
                state.stage = Stage::Starting;
                (partition.clone(), state.life)
            })
            .collect();
        if partitions.is_empty() {
            return;
        }
        self.begins.is_out = true;
        let known = self.partitions.iter().filter(|(_, state)| state.was_known);
        let old_topics = known.map(|(partition, _)| Arc::clone(&partition.topic)).collect();
        let beginning = Beginning {
            source: Arc::clone(&self.plan.source),
            store: Arc::clone(&self.plan.store),
            member: Arc::clone(&self.plan.member),
            start_from: self.plan.start_from,
            in_hand_max: self.settings.in_hand_max as i64,
            old_topics,
            partitions,
        };
        self.ask("begin", async move { Answer::Begun(beginning.run().await) });
    }

    pub(super) fn ask(&self, name: &'static str, question: impl Future<Output = Answer> + Send + 'static) {
        self.answers.push(spawn(name, question));
    }

    fn on_answer(&mut self, answer: Answer) -> EngineStep {
        let now = Instant::now();
        match answer {
            Answer::Begun(result) => self.on_begun(result, now),
            Answer::Applied { transaction, began, result } => {
                self.on_applied(transaction, began, result, now)
            }
            Answer::SetAside { place, entries, how, result } => {
                self.on_set_aside(place, entries, &how, result, now)
            }
            Answer::Due(result) => self.on_due(result, now),
            Answer::Saved { positions, skipped, result } => {
                if result.is_ok() {
                    self.skipped.drain(..skipped);
                }
                self.on_saved(positions, result, now)
            }
            Answer::Acked(result) => {
                self.on_acked(result, now);
                Ok(())
            }
            Answer::Swept(result) => self.on_swept(result, now),
            Answer::Viewed(result) => {
                self.on_viewed(result, now);
                Ok(())
            }
            Answer::Paused { partition, life, paused, result } => {
                if let Some(state) = self.partitions.get_mut(&partition).filter(|state| state.life == life) {
                    state.is_pausing = false;
                    // A source that did not do it is asked again with the next change.
                    state.is_paused = if result.is_ok() { paused } else { !paused };
                }
                Ok(())
            }
        }
    }

    fn next_timer(&self, now: Instant) -> Instant {
        let save = self.saved_at + self.save_pause();
        let timers = [
            self.dependencies.wakes_at(now),
            self.database.wakes_at(),
            self.looks.wakes_at(),
            self.begins.wakes_at(),
            Some(save),
            self.acks.wakes_at(),
            Some(self.not_read_before),
            self.leaving.iter().map(|leaving| leaving.until).min(),
        ];
        // What was due before was looked at in this turn. If it could not be done, an answer is awaited.
        let timers = timers.into_iter().flatten().filter(|at| *at > now);
        let may_begin = self.is_open() && self.transactions < self.transactions_max();
        let has_ready = |state: &PartitionState| state.queues.has_ready();
        let rate = self.rate.as_ref().filter(|_| may_begin && self.partitions.values().any(has_ready));
        let queues = self.partitions.values().filter_map(|state| state.queues.wakes_at());
        // These may be over by a hair, or since this turn.
        let soonest = now + Duration::from_micros(200);
        let others = queues.chain(rate.map(RateLimit::next_at)).map(|at| at.max(soonest));
        timers.chain(others).fold(now + TURN_MAX, Instant::min)
    }

    /// Whether the database may be asked: it works, or it is time for a probe.
    pub(super) fn may_ask_database(&self, now: Instant) -> bool {
        self.database.passage(now) != Passage::Shut
    }

    fn report(&mut self, now: Instant) {
        let health = self.health(now);
        self.health_out.send_if_modified(|before| {
            let is_new = *before != health;
            if is_new {
                *before = health;
            }
            is_new
        });
    }

    /// An error of the database: waited out, or the end.
    pub(super) fn tolerate(&mut self, error: &InboxError, what: &str, now: Instant) -> EngineStep {
        match error {
            InboxError::Conflict(_) => Ok(()),
            InboxError::Unavailable(why) => {
                self.database_failed(why, now);
                Ok(())
            }
            InboxError::Broken(why) => self.refused(format!("{what} failed: {why}")),
        }
    }

    pub(super) fn database_failed(&mut self, why: &str, now: Instant) {
        if self.database.is_closed() {
            tracing::warn!(consumer = %self.plan.name, why, "the database is away: nothing is begun until it is back");
        }
        self.last_error = Some(why.to_owned());
        self.database.fail(now, DATABASE_PAUSES);
    }

    pub(super) fn database_works(&mut self) {
        if !self.database.is_closed() {
            tracing::info!(consumer = %self.plan.name, "the database is back");
            self.database.succeed();
        }
    }
}

/// A call of the source that is under way.
pub(super) struct Reading {
    task: Task<Result<Batch, SourceError>>,
    /// Whether it asks for changes alone.
    is_sign: bool,
    /// Whether it was ended before its time.
    is_ended: bool,
}

/// Resolves when the source answered; never, when it was not asked.
async fn read(slot: &mut Option<Reading>) -> Result<Batch, SourceError> {
    let Some(Reading { task, is_ended, .. }) = slot else { return std::future::pending().await };
    let (result, is_ended) = (task.await, *is_ended);
    *slot = None;
    match result {
        Ok(answer) => answer,
        Err(_) if is_ended => Ok(Batch::default()),
        Err(died) => Err(SourceError::Fatal(died.to_string())),
    }
}

/// The key queue that a message goes to.
pub(super) fn queue_of(work: &Work, arrival: u64) -> QueueKey {
    work.order_id.map_or(QueueKey::Single(arrival), QueueKey::Ordered)
}
