//! The supervisor of one outbox: heartbeat, fair shares, lanes, sweeps, drained shutdown.

use super::handle::{DrainOutcome, Health, Process, RelayPlan, SinkEntry};
use super::lane::{self, LaneContext, LaneEnd};
use super::settings::RelaySettings;
use super::share;
use super::terms::{Tenure, Terms};
use crate::admin::RelayReport;
use crate::clock::Clock;
use crate::event::Timestamp;
use crate::health::diary::Diary;
use crate::health::progress::Progress;
use crate::health::report::{Reported, report};
use crate::health::tuned::TunedSettings;
use crate::lifecycle::ClassOverrides;
use crate::route::{RouteTable, UNROUTED};
use crate::sink::{NullSink, Sink};
use crate::store::{
    Controls, JoinPlan, LaneId, Lease, ProcessReport, REPORT_BYTES_MAX, Roll, SinkPlan, StartAt, StoreError,
};
use crate::task::{Task, spawn};
use crate::telemetry;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// A lane that cannot go on is looked at again after this long: an operator may have repaired it.
const BROKEN_PAUSE: Duration = Duration::from_secs(10);

/// A lane that owes a settlement for this long is stalled (F85).
const STALLED_AFTER: Duration = Duration::from_secs(30);

struct Held {
    epoch: i64,
    stop: watch::Sender<bool>,
    trust: watch::Sender<Instant>,
    progress: Arc<Progress>,
    task: Task<()>,
}

/// A lane that ended, by id and epoch.
type Ended = (LaneId, i64, LaneEnd);

pub(super) struct Supervisor {
    plan: RelayPlan,
    join: JoinPlan,
    /// In force: the file's, and what is laid over them.
    settings: watch::Receiver<RelaySettings>,
    tuned: TunedSettings,
    routes: watch::Receiver<RouteTable>,
    controls: watch::Sender<Controls>,
    clock: Arc<dyn Clock>,
    offset: Arc<AtomicI64>,
    health: watch::Sender<Health>,
    held: FxHashMap<LaneId, Held>,
    broken: FxHashMap<LaneId, (Instant, String)>,
    unclean_ends: usize,
    /// Leases that were lost and of which the log has not heard, with their epochs.
    lost: Vec<(LaneId, i64)>,
    /// How often operators set something.
    controls_set: u64,
    pub(super) process: Process,
    diary: Arc<Diary>,
    reported: Reported,
    started_at: Timestamp,
    ends: mpsc::Receiver<Ended>,
    ends_in: mpsc::Sender<Ended>,
}

impl Supervisor {
    pub(super) fn new(
        mut plan: RelayPlan,
        file: watch::Receiver<RelaySettings>,
        routes: watch::Receiver<RouteTable>,
        clock: Arc<dyn Clock>,
        health: watch::Sender<Health>,
    ) -> Self {
        let tuned = TunedSettings::new(Arc::clone(&plan.outbox), file);
        let settings = tuned.subscribe();
        if !plan.routes.is_total() {
            let sink: Arc<dyn Sink> = Arc::new(NullSink);
            plan.sinks.push(SinkEntry {
                name: UNROUTED.into(),
                sink,
                start_at: StartAt::Auto,
                classes: ClassOverrides::new(),
            });
        }
        let names: Vec<String> = plan.sinks.iter().map(|entry| entry.name.to_string()).collect();
        let join = JoinPlan {
            relay: Arc::clone(&plan.relay),
            sinks: plan.sinks.iter().map(|entry| sink_plan(entry, &plan.routes)).collect(),
            routes: plan.routes.fingerprint(&names),
            lanes: plan.lanes,
            lease_ttl: Duration::from_millis(settings.borrow().lease_ttl_ms),
        };
        let (ends_in, ends) = mpsc::channel(16);
        Self {
            ends,
            ends_in,
            diary: Arc::new(Diary::new(Arc::clone(&plan.outbox))),
            plan,
            join,
            settings,
            tuned,
            routes,
            controls: watch::channel(Controls::default()).0,
            started_at: clock.now(),
            clock,
            offset: Arc::new(AtomicI64::new(0)),
            health,
            held: FxHashMap::default(),
            broken: FxHashMap::default(),
            unclean_ends: 0,
            lost: Vec::new(),
            controls_set: 0,
            process: Process::default(),
            reported: Reported::default(),
        }
    }

    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<DrainOutcome, String> {
        let mut joined = false;
        let sweeper = self.sweeper();
        let store = Arc::clone(&self.plan.store);
        while !*stop.borrow() {
            self.tuned.apply(&self.controls.borrow().tuning);
            let beat = Duration::from_millis(self.settings.borrow().heartbeat_ms);
            let next = Instant::now() + beat;
            if !joined {
                joined = self.join().await?;
            }
            if joined {
                joined = self.beat().await?;
            }
            tokio::select! {
                biased;
                _ = stop.changed() => break,
                () = tokio::time::sleep_until(next) => {}
                () = self.lane_ended() => {}
                () = store.lanes_changed() => {}
            }
        }
        drop(sweeper);
        let diary = Arc::clone(&self.diary);
        let outcome = self.drain().await;
        diary.close();
        Ok(outcome)
    }

    /// `true` once the store knows this relay. A store that is down is waited for; a store that says no
    /// ends the relay.
    async fn join(&mut self) -> Result<bool, String> {
        match self.plan.store.join(&self.join).await {
            Ok(()) => {
                self.reported.forget();
                Ok(true)
            }
            Err(error) if error.is_transient() => {
                self.tell(false, "waiting for the database".to_owned());
                self.diary.database_failed("joining", &error);
                Ok(false)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// One heartbeat. `false`: the connection is gone and the relay must join again.
    async fn beat(&mut self) -> Result<bool, String> {
        let before = Instant::now();
        let leases: Vec<(LaneId, i64)> =
            self.held.iter().map(|(id, held)| (id.clone(), held.epoch)).collect();
        let roll = match self.plan.store.roll(&leases).await {
            Ok(roll) => roll,
            Err(error) if error.is_transient() => {
                self.diary.database_failed("heartbeat", &error);
                self.tell(false, format!("the database is out of reach: {error}"));
                return Ok(false);
            }
            Err(error) => return Err(error.to_string()),
        };
        if let Some(why) = &roll.refused {
            return Err(why.clone());
        }
        self.offset.store(roll.now.0 - self.clock.now().0, std::sync::atomic::Ordering::Relaxed);
        if *self.controls.borrow() != roll.controls {
            let before = self.controls.send_replace(roll.controls.clone());
            for change in roll.controls.changes_since(&before) {
                tracing::info!(outbox = %self.plan.outbox, "{change}");
            }
            self.controls_set += 1;
            self.tuned.apply(&roll.controls.tuning);
        }
        self.diary.database_answered(before);
        self.diary.catch_up();
        self.collect_dead();
        self.renew_trust(&roll, before);
        self.rebalance(&roll).await;
        self.tell_lost().await;
        self.report().await;
        Ok(true)
    }

    /// A lease that the roll shows as ours is trusted for its TTL less a margin, counted from before the
    /// call (F22). One that it does not show as ours is gone: its lane ends at once.
    fn renew_trust(&mut self, roll: &Roll, before: Instant) {
        let until = before + self.settings.borrow().lease_trust();
        let me = &self.plan.relay;
        self.held.retain(|id, held| {
            let mine = roll
                .lanes
                .iter()
                .any(|lane| lane.id == *id && lane.epoch == held.epoch && lane.owner.as_ref() == Some(me));
            if mine {
                held.trust.send_replace(until);
            } else if !held.task.is_finished() {
                self.lost.push((id.clone(), held.epoch));
                metrics::counter!(telemetry::LEASES_LOST, "service" => self.plan.service.to_string(),
                    "outbox" => self.plan.outbox.to_string(), "sink" => id.sink.to_string())
                .increment(1);
            }
            mine
        });
    }

    /// Why leases were lost: the store is asked only then, and once for each sink, however many lanes it has.
    /// An act by hand takes all of them, under an epoch above every one that was.
    async fn tell_lost(&mut self) {
        let outbox = Arc::clone(&self.plan.outbox);
        let mut lost = std::mem::take(&mut self.lost);
        while let Some(sink) = lost.first().map(|(id, _)| Arc::clone(&id.sink)) {
            let (its, others): (Vec<_>, Vec<_>) = lost.into_iter().partition(|(id, _)| id.sink == sink);
            lost = others;
            let Some((newest, epoch)) = its.iter().max_by_key(|(_, epoch)| *epoch) else { continue };
            let act = self.plan.store.taken_by_hand(newest, *epoch).await.unwrap_or_default();
            for (id, _) in &its {
                match &act {
                    Some(act) => {
                        tracing::warn!(%outbox, lane = %id, "{act}; what was not settled is read again from there")
                    }
                    None => tracing::warn!(%outbox, lane = %id,
                        "lease lost: another relay owns the lane, and reads what was not settled again"),
                }
            }
        }
    }

    async fn rebalance(&mut self, roll: &Roll) {
        let mine: Vec<LaneId> = self.held.keys().cloned().collect();
        let moves = share::moves(&self.plan.relay, &mine, roll);
        for id in moves.release {
            if let Some(held) = self.held.get(&id) {
                held.stop.send_replace(true);
            }
        }
        for id in moves.take {
            if self.is_broken(&id) {
                continue;
            }
            let before = Instant::now();
            match self.plan.store.take(&id).await {
                Ok(Some(lease)) => self.start_lane(id, lease, before),
                Ok(None) => {}
                Err(StoreError::LeaseLost(_)) => {}
                Err(error) if error.is_transient() => {
                    tracing::debug!(lane = %id, "the lane could not be taken");
                    self.diary.database_failed("taking a lane", &error);
                }
                // A missing right, a database that went back in time: not ready, and said so (F85).
                Err(error) => self.mark_broken(id, error.to_string()),
            }
        }
    }

    fn start_lane(&mut self, id: LaneId, lease: Arc<dyn Lease>, before: Instant) {
        let Some(entry) = self.plan.sinks.iter().find(|entry| entry.name == id.sink) else { return };
        let progress = Arc::new(Progress::new());
        let context = LaneContext {
            service: Arc::clone(&self.plan.service),
            outbox: Arc::clone(&self.plan.outbox),
            store: Arc::clone(&self.plan.store),
            sink: Arc::clone(&entry.sink),
            classes: entry.classes.clone(),
            limits: self.plan.limits,
            clock: Arc::clone(&self.clock),
            offset: Arc::clone(&self.offset),
            progress: Arc::clone(&progress),
            diary: Arc::clone(&self.diary),
            process: self.process.clone(),
        };
        let controls = self.controls.subscribe();
        let terms = Terms::new(self.settings.clone(), self.routes.clone(), controls, Arc::clone(&id.sink));
        let (stop, stopped) = watch::channel(false);
        let (trust, trusted) = watch::channel(before + self.settings.borrow().lease_trust());
        let epoch = lease.epoch();
        tracing::info!(outbox = %self.plan.outbox, lane = %id, epoch, "lane taken");
        let (ends, ended) = (self.ends_in.clone(), id.clone());
        let task = spawn("lane", async move {
            let end = lane::run(context, lease, terms, Tenure::new(trusted, stopped)).await;
            // The supervisor is gone only when the whole relay is.
            let _ = ends.send((ended, epoch, end)).await;
        });
        self.held.insert(id, Held { epoch, stop, trust, progress, task });
    }

    /// Waits for the end of a lane, so that its hand-over does not wait for the next heartbeat.
    async fn lane_ended(&mut self) {
        if let Some((id, epoch, end)) = self.ends.recv().await
            && self.held.get(&id).is_some_and(|held| held.epoch == epoch)
        {
            self.held.remove(&id);
            self.note_end(id, epoch, end);
        }
    }

    /// Lanes whose tasks ended since the last heartbeat, some perhaps without a word.
    fn collect_dead(&mut self) {
        let finished = |(id, held): (&LaneId, &Held)| held.task.is_finished().then(|| id.clone());
        let dead: Vec<LaneId> = self.held.iter().filter_map(finished).collect();
        // A task speaks before it finishes: whoever is finished and silent has panicked.
        while let Ok((id, epoch, end)) = self.ends.try_recv() {
            if self.held.get(&id).is_some_and(|held| held.epoch == epoch) {
                self.held.remove(&id);
                self.note_end(id, epoch, end);
            }
        }
        for id in dead {
            if self.held.remove(&id).is_some() {
                self.mark_broken(id, "its task panicked; see the log".to_owned());
            }
        }
    }

    fn note_end(&mut self, id: LaneId, epoch: i64, end: LaneEnd) {
        match end {
            LaneEnd::Released { clean: true } => {
                tracing::info!(outbox = %self.plan.outbox, lane = %id, "lane released")
            }
            LaneEnd::Released { clean: false } => self.unclean_ends += 1,
            LaneEnd::Lost => {
                self.unclean_ends += 1;
                self.lost.push((id, epoch));
            }
            LaneEnd::Broken(why) => self.mark_broken(id, why),
        }
    }

    fn mark_broken(&mut self, id: LaneId, why: String) {
        tracing::error!(outbox = %self.plan.outbox, lane = %id, "the lane stopped: {why}");
        self.broken.insert(id, (Instant::now(), why));
    }

    fn is_broken(&mut self, id: &LaneId) -> bool {
        self.broken.retain(|_, (since, _)| since.elapsed() < BROKEN_PAUSE);
        self.broken.contains_key(id)
    }

    fn tell(&self, ready: bool, why: String) {
        self.health.send_replace(Health::new(ready, why, self.held.len()));
    }

    /// Says how it is: to whoever asks this process, and, if it is news, to whoever looks at the database.
    async fn report(&mut self) {
        self.set_gauges();
        let (now, stalled) = (Instant::now(), self.stalled());
        let lanes = self.held.iter().map(|(id, held)| (id, &held.progress));
        let said = report(lanes, stalled.clone(), now);
        let why = stalled.clone().unwrap_or_else(|| self.mood(&said));
        let mut health = Health::new(stalled.is_none(), why, self.held.len());
        health.news = self.controls_set + self.held.values().map(|held| held.progress.news()).sum::<u64>();
        health.report = Some(Arc::new(said.clone()));
        self.health.send_replace(health);
        if !self.reported.is_news(&said, now) {
            return;
        }
        let written = ProcessReport {
            process: self.plan.relay.to_string(),
            role: "relay",
            name: self.plan.outbox.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.plan.host.to_string(),
            started_at: self.started_at,
            report: said.to_json(REPORT_BYTES_MAX),
        };
        match self.plan.store.report(&written).await {
            Ok(()) => self.reported.written(said, now),
            // The next heartbeat tries again. Nothing but a look at the database misses it.
            Err(error) => tracing::debug!(outbox = %self.plan.outbox, %error, "the report was not written"),
        }
    }

    fn set_gauges(&self) {
        let (service, outbox) = (self.plan.service.to_string(), self.plan.outbox.to_string());
        metrics::gauge!(telemetry::LANES_OWNED, "service" => service, "outbox" => outbox)
            .set(self.held.len() as f64);
    }

    /// Why it makes no progress, if it should.
    fn stalled(&self) -> Option<String> {
        if let Some((id, (_, why))) = self.broken.iter().next() {
            return Some(format!("stalled: {id}: {why}"));
        }
        self.held.iter().find_map(|(id, held)| {
            let (turned, clear) = held.progress.ages();
            let is_stalled = turned > STALLED_AFTER || clear > STALLED_AFTER;
            is_stalled.then(|| format!("stalled: {id} has not settled anything for {} s", clear.as_secs()))
        })
    }

    /// What it does, in a word. Ready all the same while a sink is out of reach: a restart of this relay
    /// would not bring the broker back.
    fn mood(&self, said: &RelayReport) -> String {
        let away = said.sinks.iter().find_map(|sink| Some((&sink.sink, sink.out_of_reach.as_ref()?)));
        if let Some((sink, away)) = away {
            return format!("sink {sink} is out of reach: {}", away.code);
        }
        let away = said.sinks.iter().find_map(|sink| Some((&sink.sink, sink.destinations.first()?)));
        if let Some((sink, at)) = away {
            let code = &at.out_of_reach.code;
            return format!("sink {sink}: destination {} is out of reach: {code}", at.destination);
        }
        let unsettled = |held: &Held| held.progress.unsettled.load(std::sync::atomic::Ordering::Relaxed) > 0;
        let word = if self.held.values().any(unsettled) { "delivering" } else { "idle" };
        word.to_owned()
    }

    fn sweeper(&self) -> Task<()> {
        let (store, settings) = (Arc::clone(&self.plan.store), self.settings.clone());
        let (service, outbox) = (self.plan.service.to_string(), self.plan.outbox.to_string());
        spawn("sweep", async move {
            let truncated = metrics::counter!(telemetry::SEGMENTS_TRUNCATED, "service" => service.clone(), "outbox" => outbox.clone());
            let failures = metrics::counter!(telemetry::AUDIT_FAILURES, "service" => service.clone(), "outbox" => outbox.clone());
            let dead = metrics::counter!(telemetry::DEAD_PURGED, "service" => service.clone(), "outbox" => outbox.clone());
            let full =
                metrics::gauge!(telemetry::RING_FULL, "service" => service, "outbox" => outbox.clone());
            loop {
                let pause = settings.borrow().sweep_interval_ms;
                tokio::time::sleep(Duration::from_millis(pause)).await;
                match store.sweep().await {
                    Ok(swept) => {
                        truncated.increment(u64::from(swept.truncated));
                        failures.increment(u64::from(swept.audit_failures));
                        dead.increment(swept.dead_purged);
                        full.set(if swept.ring_full { 1.0 } else { 0.0 });
                    }
                    Err(error) => tracing::debug!(outbox, %error, "sweep failed; it is tried again"),
                }
            }
        })
    }

    async fn drain(mut self) -> DrainOutcome {
        self.tell(false, "draining".to_owned());
        // What was lost before is the new owner's by now; only what ends badly from here on counts.
        self.unclean_ends = 0;
        let deadline = Instant::now() + Duration::from_millis(self.settings.borrow().drain_timeout_ms);
        for held in self.held.values() {
            held.stop.send_replace(true);
        }
        while !self.held.is_empty() {
            // The leases must outlive the drain.
            let beat = Duration::from_millis(self.settings.borrow().heartbeat_ms);
            let wait = (Instant::now() + beat).min(deadline);
            let timed_out = tokio::time::timeout_at(wait, self.lane_ended()).await.is_err();
            self.collect_dead();
            if Instant::now() >= deadline {
                tracing::warn!(lanes = self.held.len(), "drain deadline: the rest is left to lease expiry");
                return DrainOutcome::Hurried;
            }
            if timed_out {
                // A store that does not answer must not hold up the end.
                let _ = tokio::time::timeout_at(deadline, self.renew_while_draining()).await;
            }
        }
        for entry in &self.plan.sinks {
            entry.sink.close().await;
        }
        let left = tokio::time::timeout_at(deadline, lane::insist(|| self.plan.store.leave())).await;
        let said_goodbye = matches!(left, Ok(Ok(())));
        if said_goodbye && self.unclean_ends == 0 { DrainOutcome::Clean } else { DrainOutcome::Hurried }
    }

    async fn renew_while_draining(&mut self) {
        let before = Instant::now();
        let leases: Vec<(LaneId, i64)> =
            self.held.iter().map(|(id, held)| (id.clone(), held.epoch)).collect();
        if let Ok(roll) = self.plan.store.roll(&leases).await {
            self.renew_trust(&roll, before);
            self.tell_lost().await;
        }
    }
}

fn sink_plan(entry: &SinkEntry, routes: &RouteTable) -> SinkPlan {
    SinkPlan { name: Arc::clone(&entry.name), filter: routes.filter(&entry.name), start_at: entry.start_at }
}
