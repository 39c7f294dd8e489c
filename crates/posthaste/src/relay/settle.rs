//! Settling: the contiguous decided prefix, coalesced, one settlement at a time, repeated until its
//! outcome is known.

use super::lane::{Lane, alive};
use crate::crash_point;
use crate::store::{Care, StoreError};
use crate::task::{TaskDied, spawn};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// An idle lane's cursor moves now and then too, or each read would scan further back.
const IDLE_SETTLE: Duration = Duration::from_secs(1);

impl Lane {
    pub(super) fn start_settle(&mut self) {
        if self.settling.is_some() {
            return;
        }
        let now = Instant::now();
        if self.settlement.is_none() && !self.gather(now) {
            return;
        }
        if now < self.next_settle && self.settle_failures > 0 {
            return;
        }
        let Some(settlement) = &self.settlement else { return };
        self.settle_started = now;
        let (lease, settlement) = (Arc::clone(&self.lease), Arc::clone(settlement));
        self.settling = Some(spawn("settle", async move {
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

    /// Takes together what can be settled, if it is time: at once when the window runs full, deferred
    /// events are decided or the lane drains; otherwise at the settle interval.
    fn gather(&mut self, now: Instant) -> bool {
        let Some(freed) = self.window.settleable() else { return false };
        let pressing = self.is_draining()
            || self.window.has_outcome()
            || self.is_filling(freed)
            || self.window.bytes() * 2 >= self.settings.max_unsettled_bytes
            || matches!(self.care, Care::OneByOne { .. });
        if !pressing && now < self.next_settle {
            return false;
        }
        let idle = freed == 0 && !self.window.has_outcome();
        let pause = if idle { IDLE_SETTLE } else { Duration::from_millis(self.settings.settle_interval_ms) };
        self.next_settle = now + pause;
        self.careful_left = self.careful_left.saturating_sub(freed);
        self.settlement = Some(Arc::new(self.window.take_settlement()));
        true
    }

    /// Half the window can be freed; or a quarter, while the rest is nearly used up: the commit then runs
    /// while the next page is read, and reading does not stop for it.
    fn is_filling(&self, freed: usize) -> bool {
        let most = self.settings.max_unsettled_events;
        freed * 2 >= most || (freed * 4 >= most && self.window.events() * 4 >= most * 3)
    }

    pub(super) fn on_settled(
        &mut self,
        result: Result<Result<(), StoreError>, TaskDied>,
    ) -> Result<(), StoreError> {
        let now = Instant::now();
        if let Err(error) = alive(result) {
            // Whether or not it was applied, the same settlement is sent again: it is harmless when
            // repeated, and answers LeaseLost if the lane has gone elsewhere.
            self.settle_failures += 1;
            let pause = Duration::from_millis(50 << self.settle_failures.min(5));
            self.next_settle = now + pause;
            return self.tolerate(error, "settling");
        }
        self.settle_failures = 0;
        self.count_given_up();
        self.metrics.settle.record(self.settle_started.elapsed().as_secs_f64());
        self.context.progress.settled();
        if let Some(settlement) = self.settlement.take() {
            let last_read = if self.reading.is_some() { self.last_read + 1 } else { self.last_read };
            self.window.settled(settlement.through, last_read);
            if !settlement.again.is_empty()
                || !settlement.deferred.is_empty()
                || !settlement.delivered.is_empty()
            {
                self.next_look = self.next_look.min(now + Duration::from_millis(1));
            }
        }
        self.metrics.unsettled.set(self.window.events() as f64);
        self.leave_careful_mode();
        Ok(())
    }

    /// Events that the store turned into dead letters by itself count like those of the relay.
    fn count_given_up(&mut self) {
        let all = self.lease.given_up();
        let new = all.saturating_sub(std::mem::replace(&mut self.given_up, all));
        if new > 0 {
            self.metrics.failures.increment(new);
            self.metrics.dead.increment(new);
        }
    }

    /// Clean progress past the place where former owners died: back to normal.
    pub(super) fn leave_careful_mode(&mut self) {
        if self.care == Care::None || self.careful_left > 0 || self.is_calling() {
            return;
        }
        tracing::info!(lane = %self.lease.id(), "past the dangerous place: back to normal");
        self.care = Care::None;
        let lease = Arc::clone(&self.lease);
        self.forgetting = Some(spawn("in hand", async move {
            // A failure only leaves the lane more careful than it needs to be after the next death.
            let _ = lease.take_in_hand(None).await;
        }));
    }
}
