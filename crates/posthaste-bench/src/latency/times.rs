//! The times of an open loop: when each event should go out, was committed, and arrived.
//!
//! Appenders and the reader of acknowledgements write at the same time and must not hold each other up, so
//! a moment is one atomic number: nanoseconds since the start, where 0 is "not yet".

use crate::load::Load;
use posthaste::Event;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Appenders need a moment until the first of them is waiting.
const HEAD_START: Duration = Duration::from_millis(20);

pub(crate) struct EventTimes {
    load: Arc<Load>,
    start: Instant,
    /// When the first event should go out.
    began: AtomicU64,
    rate: u64,
    /// Events of the steady part. There is room for one more, which comes after the idle time.
    pub(crate) steady: u64,
    committed: Vec<AtomicU64>,
    arrived: Vec<AtomicU64>,
    received: AtomicU64,
    duplicates: AtomicU64,
}

impl EventTimes {
    pub(crate) fn new(load: &Arc<Load>, rate: u64, steady: u64) -> Self {
        let column = || (0..=steady).map(|_| AtomicU64::new(0)).collect();
        Self {
            load: Arc::clone(load),
            start: Instant::now(),
            began: AtomicU64::new(0),
            rate,
            steady,
            committed: column(),
            arrived: column(),
            received: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
        }
    }

    pub(crate) fn event(&self, index: u64) -> Event {
        self.load.event(index)
    }

    /// The first event goes out very soon.
    pub(crate) fn begin(&self) {
        self.began.store(self.at(Instant::now() + HEAD_START), Ordering::Relaxed);
    }

    fn at(&self, moment: Instant) -> u64 {
        (moment.duration_since(self.start).as_nanos() as u64).max(1)
    }

    /// When an event should go out.
    pub(crate) fn moment(&self, index: u64) -> Instant {
        self.start + Duration::from_nanos(self.intended(index).unwrap_or(0))
    }

    /// The COMMIT of an event has returned.
    pub(crate) fn commit(&self, index: u64) {
        self.committed[index as usize].store(self.at(Instant::now()), Ordering::Relaxed);
    }

    /// An event is acknowledged.
    pub(crate) fn arrive(&self, id: Uuid, moment: Instant) {
        let Some(place) = self.load.index(id).and_then(|index| self.arrived.get(index as usize)) else {
            return;
        };
        match place.compare_exchange(0, self.at(moment), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => self.received.fetch_add(1, Ordering::Release),
            Err(_) => self.duplicates.fetch_add(1, Ordering::Relaxed),
        };
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    pub(crate) fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    pub(crate) fn committed(&self, index: u64) -> Option<u64> {
        Some(self.committed[index as usize].load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    pub(crate) fn intended(&self, index: u64) -> Option<u64> {
        Some(self.began.load(Ordering::Relaxed) + index * 1_000_000_000 / self.rate)
    }

    pub(crate) fn arrived(&self, index: u64) -> Option<u64> {
        Some(self.arrived[index as usize].load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    /// Milliseconds from one moment of each event to its arrival. A line may be here before the COMMIT has
    /// returned to the appender: that counts as nothing.
    pub(crate) fn latencies(&self, events: Range<u64>, from: fn(&Self, u64) -> Option<u64>) -> Vec<f64> {
        self.spans(events, from, Self::arrived)
    }

    /// Milliseconds from one moment of each event to another.
    pub(crate) fn spans(
        &self,
        events: Range<u64>,
        from: fn(&Self, u64) -> Option<u64>,
        to: fn(&Self, u64) -> Option<u64>,
    ) -> Vec<f64> {
        events.filter_map(|n| Some(to(self, n)?.saturating_sub(from(self, n)?) as f64 / 1e6)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Spread;

    #[test]
    fn an_event_counts_once_and_a_missing_one_not_at_all() {
        let load = Arc::new(Load::new(1, 1, Spread::Uniform));
        let times = EventTimes::new(&load, 100, 3);
        times.begin();
        for index in [0, 1, 1] {
            times.commit(index);
            times.arrive(load.id(index), Instant::now());
        }
        times.arrive(Uuid::now_v7(), Instant::now());
        assert_eq!((times.received(), times.duplicates()), (2, 1));
        assert_eq!(times.latencies(0..3, EventTimes::committed).len(), 2);
        assert_eq!(times.moment(2) - times.moment(0), Duration::from_millis(20));
    }
}
