//! How much a lane delivered in about the last minute, or a consumer handled, and how long that took.
//!
//! The histograms of the metrics are kept for a scraper; a report needs a few numbers of its own.
//! Latencies are counted in buckets that grow by a quarter or less, so a percentile is right within that.
//! Two halves of a minute: what is asked for is the last full one and the one that runs.

use crate::admin::Pulse;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

const HALF: Duration = Duration::from_secs(30);
/// Four for each doubling, of microseconds: up to some 70 minutes.
const BUCKETS: usize = 4 * 32;

#[derive(Debug)]
struct Half {
    since: Instant,
    counts: Box<[u64; BUCKETS]>,
}

/// Both halves. A lane writes into it once for a call that came back, and the supervisor reads it. A consumer
/// writes into its own once for a message that is done, and reads it for its report.
#[derive(Debug)]
pub(crate) struct PulseMeter {
    halves: Mutex<(Half, Half)>,
}

/// Latencies of several lanes together.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    counts: Vec<u64>,
    /// Of the longest of the lanes.
    seconds: f64,
}

impl Half {
    fn new(since: Instant) -> Self {
        Self { since, counts: Box::new([0; BUCKETS]) }
    }
}

impl PulseMeter {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { halves: Mutex::new((Half::new(now), Half::new(now))) }
    }

    /// These were delivered now, each after so many microseconds.
    pub(crate) fn delivered(&self, latencies: impl Iterator<Item = i64>, now: Instant) {
        let mut halves = self.halves.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        turn(&mut halves, now);
        latencies.for_each(|micros| halves.1.counts[bucket(micros)] += 1);
    }

    /// The numbers of this one alone; none if nothing was delivered in the last minute.
    pub(crate) fn alone(&self, now: Instant) -> Option<Pulse> {
        let mut all = Latencies::default();
        self.add_to(&mut all, now);
        all.pulse()
    }

    pub(crate) fn add_to(&self, all: &mut Latencies, now: Instant) {
        let mut halves = self.halves.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        turn(&mut halves, now);
        all.counts.resize(BUCKETS, 0);
        for half in [&halves.0, &halves.1] {
            all.counts.iter_mut().zip(half.counts.iter()).for_each(|(sum, count)| *sum += count);
        }
        all.seconds = all.seconds.max(now.duration_since(halves.0.since).as_secs_f64());
    }
}

fn turn(halves: &mut (Half, Half), now: Instant) {
    if now.duration_since(halves.1.since) < HALF {
        return;
    }
    let long_ago = now.duration_since(halves.1.since) >= HALF * 2;
    let last = std::mem::replace(&mut halves.1, Half::new(now));
    halves.0 = if long_ago { Half::new(now - HALF) } else { last };
}

impl Latencies {
    /// The numbers; none if nothing was delivered.
    pub(crate) fn pulse(&self) -> Option<Pulse> {
        let all: u64 = self.counts.iter().sum();
        if all == 0 {
            return None;
        }
        let percentile = |hundredths: u64| {
            let wanted = (all * hundredths).div_ceil(100).max(1);
            let mut seen = 0;
            let place = self.counts.iter().position(|count| {
                seen += count;
                seen >= wanted
            });
            upper_ms(place.unwrap_or(0))
        };
        let rate = all as f64 / self.seconds.max(1.0);
        Some(Pulse {
            delivered_per_s: (rate * 10.0).round() / 10.0,
            p50_ms: percentile(50),
            p95_ms: percentile(95),
            p99_ms: percentile(99),
        })
    }
}

/// The bucket of a latency: the place of its highest bit, and the two bits behind it.
fn bucket(micros: i64) -> usize {
    let micros = u64::try_from(micros).unwrap_or(0).max(4);
    let doubling = micros.ilog2();
    let quarter = (micros >> (doubling - 2)) & 3;
    (4 * (doubling as usize - 2) + quarter as usize).min(BUCKETS - 1)
}

/// The end of a bucket, in milliseconds.
fn upper_ms(bucket: usize) -> f64 {
    let (doubling, quarter) = (bucket / 4 + 2, bucket % 4);
    let micros = ((5 + quarter) as f64) * 2f64.powi(doubling as i32 - 2);
    (micros / 10.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_latency_is_in_a_bucket_that_ends_a_quarter_above_it_at_most(micros in 100_i64..4_000_000_000) {
            let (exact, shown) = (micros as f64 / 1_000.0, upper_ms(bucket(micros)));
            prop_assert!(shown >= exact - 0.006 && shown <= exact * 1.25 + 0.006, "{exact} {shown}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_tells_the_last_minute_and_forgets_what_was_before() {
        let (meter, start) = (PulseMeter::new(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let ask = |now| meter.alone(now);
        assert_eq!(ask(at(1)), None, "nothing was delivered");
        meter.delivered((0..98).map(|_| 3_000).chain([50_000, 400_000]), at(10));
        let pulse = ask(at(20)).expect("a hundred were delivered");
        assert_eq!(pulse.delivered_per_s, 5.0);
        assert!((3.0..=3.75).contains(&pulse.p50_ms) && (3.0..=3.75).contains(&pulse.p95_ms), "{pulse:?}");
        assert!((50.0..=62.5).contains(&pulse.p99_ms), "{pulse:?}");
        meter.delivered([3_000].into_iter(), at(35));
        assert_eq!(ask(at(50)).map(|pulse| pulse.delivered_per_s), Some(2.0), "101 in 50 s");
        assert!(ask(at(70)).is_some_and(|pulse| pulse.p99_ms < 4.0), "the hundred are forgotten");
        assert_eq!(ask(at(200)), None);
    }
}
