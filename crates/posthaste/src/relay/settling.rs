//! Settling: the contiguous decided prefix, coalesced, one settlement at a time, repeated until its
//! outcome is known.

use super::lane::{Lane, ended};
use super::window::Window;
use crate::crash_point;
use crate::store::{Lease, Settlement, StoreError};
use crate::task::{Task, spawn};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// An idle lane's cursor moves now and then too, or each read would scan further back.
const IDLE_SETTLE: Duration = Duration::from_secs(1);

pub(super) struct Settling {
    task: Option<Task<Result<(), StoreError>>>,
    /// The settlement on its way, or to be tried again.
    settlement: Option<Arc<Settlement>>,
    started: Instant,
    next: Instant,
    failures: u32,
    /// Events that the store had to give up, as far as they are counted.
    given_up: u64,
}

impl Settling {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { task: None, settlement: None, started: now, next: now, failures: 0, given_up: 0 }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.task.is_some()
    }

    /// Whether a settlement is on its way, or to be tried again.
    pub(super) fn is_owed(&self) -> bool {
        self.settlement.is_some()
    }

    pub(super) async fn ended(&mut self) -> Result<(), StoreError> {
        ended(&mut self.task).await
    }

    /// When the next one may start, if there is one to start.
    pub(super) fn wakes_at(&self, window: &Window) -> Option<Instant> {
        let is_wanted = !self.is_busy() && (self.is_owed() || window.settleable().is_some());
        is_wanted.then_some(self.next)
    }

    fn begin(&mut self, lease: &Arc<dyn Lease>, now: Instant) {
        let Some(settlement) = &self.settlement else { return };
        if self.failures > 0 && now < self.next {
            return;
        }
        self.started = now;
        let (lease, settlement) = (Arc::clone(lease), Arc::clone(settlement));
        self.task = Some(spawn("settle", async move {
            // CRASH(settle.before): everything of this batch is at the broker and nothing is written
            // down. The next owner publishes it again (G2); duplicates are bounded by the window.
            crash_point!("settle.before");
            let result = lease.settle(&settlement).await;
            // CRASH(settle.after): the settlement is committed and this process does not know. The next
            // owner starts behind it: nothing is lost, nothing of it is sent again.
            crash_point!("settle.after");
            result
        }));
    }

    /// Whether or not it was applied, the same settlement is sent again: it is harmless when repeated, and
    /// answers LeaseLost if the lane has gone elsewhere.
    fn failed(&mut self, now: Instant) {
        self.failures += 1;
        self.next = now + Duration::from_millis(50 << self.failures.min(5));
    }

    /// Events that the store turned into dead letters by itself, since this was asked.
    fn newly_given_up(&mut self, lease: &dyn Lease) -> u64 {
        let all = lease.given_up();
        all.saturating_sub(std::mem::replace(&mut self.given_up, all))
    }
}

impl Lane {
    pub(super) fn start_settle(&mut self) {
        let now = Instant::now();
        if self.settling.is_busy() {
            return;
        }
        if !self.settling.is_owed() {
            self.gather(now);
        }
        self.settling.begin(&self.lease, now);
    }

    /// Takes together what can be settled, if it is time: at once when the window runs full, deferred
    /// events are decided or the lane drains; otherwise at the settle interval.
    fn gather(&mut self, now: Instant) {
        let Some(freed) = self.window.settleable() else { return };
        let settings = &self.terms.settings;
        let pressing = self.tenure.is_draining()
            || self.window.has_outcome()
            || self.is_filling(freed)
            || self.window.bytes() * 2 >= settings.max_unsettled_bytes
            || self.caution.is_one_by_one();
        if !pressing && now < self.settling.next {
            return;
        }
        let idle = freed == 0 && !self.window.has_outcome();
        let pause = if idle { IDLE_SETTLE } else { Duration::from_millis(settings.settle_interval_ms) };
        self.settling.next = now + pause;
        self.caution.progress(freed);
        self.settling.settlement = Some(Arc::new(self.window.take_settlement()));
    }

    /// Half the window can be freed; or a quarter, while the rest is nearly used up: the commit then runs
    /// while the next page is read, and reading does not stop for it.
    fn is_filling(&self, freed: usize) -> bool {
        let most = self.terms.settings.max_unsettled_events;
        freed * 2 >= most || (freed * 4 >= most && self.window.events() * 4 >= most * 3)
    }

    pub(super) fn on_settled(&mut self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        let now = Instant::now();
        if let Err(error) = result {
            self.settling.failed(now);
            return self.tolerate(error, "settling");
        }
        self.settling.failures = 0;
        // They count like those of the relay.
        let given_up = self.settling.newly_given_up(&*self.lease);
        self.metrics.failures.increment(given_up);
        self.metrics.dead.increment(given_up);
        self.metrics.settle.record(self.settling.started.elapsed().as_secs_f64());
        self.context.progress.settled();
        if let Some(settlement) = self.settling.settlement.take() {
            self.window.settled(settlement.through, self.reading.newest());
            let waits_as_before = settlement.deferred.is_empty() && settlement.delivered.is_empty();
            let is_usual = waits_as_before && settlement.dead.is_empty() && settlement.died.is_empty();
            if given_up > 0 || !is_usual {
                self.context.progress.asides.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            if !settlement.again.is_empty()
                || !settlement.deferred.is_empty()
                || !settlement.delivered.is_empty()
            {
                self.deferred.look_by(now + Duration::from_millis(1));
            }
        }
        self.metrics.unsettled.set(self.window.events() as f64);
        self.relax();
        Ok(())
    }

    /// Back to normal, if the lane went carefully and need not any more.
    pub(super) fn relax(&mut self) {
        if self.calls.are_over() {
            self.caution.relax(&self.lease);
        }
    }
}
