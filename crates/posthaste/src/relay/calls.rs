//! The calls that are with the sink: how many, for how long, and when the next one may start.
//!
//! A call that is not back after [`SLOW`] no longer counts against those that may be in flight: it waits for
//! something that the others do not need, and what that is becomes a suspect (`destinations.rs`).

use super::batch::Batch;
use super::call::Call;
use super::destinations::Destinations;
use super::pace::RateLimit;
use crate::sink::Verdict;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rustc_hash::FxHashSet;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// Far above what a broker needs in health, far below the delivery timeout of one that is silent.
const SLOW: Duration = Duration::from_millis(250);

/// Calls with the sink, slow ones included, in multiples of those that may start.
const MOST_FACTOR: usize = 16;

/// Destinations of one call that are remembered. With more of them nobody can tell which one is silent.
const DESTINATIONS_MAX: usize = 64;

struct Begun {
    number: u64,
    at: Instant,
    destinations: Vec<String>,
    is_slow: bool,
    /// It goes to one suspect alone.
    is_trial: bool,
}

/// A call that came back.
pub(super) struct Returned {
    number: u64,
    pub(super) batch: Batch,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) took: Duration,
}

#[derive(Default)]
pub(super) struct Calls {
    started: u64,
    /// Those that are not handled yet, in order.
    begun: Vec<Begun>,
    with_sink: FuturesUnordered<BoxFuture<'static, Returned>>,
    /// One that was answered at once. It is handled before another one starts, and before those that wait.
    answered: Option<Returned>,
    /// None starts before this: the sink held everything.
    not_before: Option<Instant>,
    rate: Option<RateLimit>,
}

impl Calls {
    /// Events a second, at most.
    pub(super) fn limit(&mut self, per_second: Option<f64>) {
        if per_second != self.rate.as_ref().map(RateLimit::per_second) {
            self.rate = per_second.map(|rate| RateLimit::new(rate, Instant::now()));
        }
    }

    /// Whether none is with the sink, or back and not handled yet.
    pub(super) fn are_over(&self) -> bool {
        self.with_sink.is_empty() && self.answered.is_none()
    }

    /// Events that one more call may hold, where `calls` may be with the sink in health. None while one is
    /// back and not handled: what follows of a key that failed in it must not start (G3).
    pub(super) fn room(&mut self, now: Instant, calls: usize) -> usize {
        let quick = self.begun.iter().filter(|call| !call.is_slow && !call.is_trial).count();
        let is_full = quick >= calls || self.begun.len() >= calls * MOST_FACTOR;
        if is_full || self.answered.is_some() || self.not_before.is_some_and(|at| now < at) {
            return 0;
        }
        self.rate.as_mut().map_or(usize::MAX, |rate| rate.allowance(now))
    }

    /// Whether few places are left. They are for fresh events of destinations that answer: probes and trials
    /// of many silent ones must not take them all.
    pub(super) fn are_crowded(&self, calls: usize) -> bool {
        self.begun.len() + calls >= calls * MOST_FACTOR
    }

    /// Whether a call to this suspect alone is with the sink.
    pub(super) fn is_trying(&self, suspect: &str) -> bool {
        self.begun.iter().any(|call| call.is_trial && call.destinations.iter().any(|name| name == suspect))
    }

    pub(super) fn begin(&mut self, call: Call, is_trial: bool, now: Instant) {
        if let Some(rate) = &mut self.rate {
            rate.spend(call.batch.len());
        }
        self.started += 1;
        let (number, destinations) = (self.started, distinct(&call.batch));
        self.begun.push(Begun { number, at: now, destinations, is_slow: false, is_trial });
        let published = call.publish();
        let mut returned = async move {
            let (batch, verdicts) = published.await;
            Returned { number, batch, verdicts, took: now.elapsed() }
        }
        .boxed();
        // The sink must hear of this call before an earlier one can come back: which of two overlapping
        // calls is the earlier one is decided by who entered first, and a future enters when it is
        // polled. The waker does not matter: whoever waits for the calls polls it again.
        match returned.poll_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(returned) => self.answered = Some(returned),
            Poll::Pending => self.with_sink.push(returned),
        }
    }

    /// The next one that comes back; never, when there is none.
    pub(super) async fn next(&mut self) -> Returned {
        if let Some(returned) = self.answered.take() {
            return returned;
        }
        match self.with_sink.next().await {
            Some(returned) => returned,
            None => std::future::pending().await,
        }
    }

    /// One that came back is handled.
    pub(super) fn end(&mut self, returned: &Returned) {
        self.begun.retain(|call| call.number != returned.number);
    }

    /// The oldest that is with the sink.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.begun.first().map(|call| call.number)
    }

    /// The newest, as long as one is with the sink.
    pub(super) fn newest(&self) -> Option<u64> {
        (!self.begun.is_empty()).then_some(self.started)
    }

    /// None starts for this long: asked again at once, the sink would hold again at once.
    pub(super) fn pause(&mut self, pause: Duration) {
        self.not_before = Some(Instant::now() + pause);
    }

    /// Suspects the destinations of calls that have become slow.
    pub(super) fn notice_slow(&mut self, now: Instant, destinations: &mut Destinations) {
        for call in self.begun.iter_mut().filter(|call| !call.is_slow && now >= call.at + SLOW) {
            call.is_slow = true;
            destinations.suspect(&call.destinations);
        }
    }

    /// When the next call becomes slow; or may start, if events wait for that.
    pub(super) fn wakes_at(&self, now: Instant, is_wanted: bool) -> Option<Instant> {
        let slow = self.begun.iter().filter(|call| !call.is_slow).map(|call| call.at + SLOW).min();
        let rate = self.rate.as_ref().map(|rate| rate.next_at().max(now + Duration::from_millis(1)));
        let start = [rate, self.not_before.filter(|at| *at > now)].into_iter().flatten().min();
        [slow, start.filter(|_| is_wanted)].into_iter().flatten().min()
    }
}

/// Where a call goes. Most go to one place, or to few in runs.
fn distinct(batch: &Batch) -> Vec<String> {
    let (mut last, mut seen) = ("", FxHashSet::default());
    for destination in batch.destinations() {
        if destination != last {
            last = destination;
            seen.insert(destination);
        }
        if seen.len() > DESTINATIONS_MAX {
            return Vec::new();
        }
    }
    seen.into_iter().map(str::to_owned).collect()
}
