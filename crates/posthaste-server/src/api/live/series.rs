//! The last hour of each sink, a point for each five seconds, in the memory of this process.
//!
//! No look is made for it (F83): points come from looks that are made anyway, for the gauges of a relay in
//! this process, and for whoever watches. An hour in which neither was there has holes, and a chart shows
//! them. What comes in is not measured by anybody: it is what went out and what the heaps grew by.

use posthaste::Timestamp;
use posthaste::admin::{Count, OutboxStatus, SinkStatus};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

const STEP_MS: i64 = 5_000;
/// An hour.
const POINTS_MAX: usize = 720;
/// Sinks that are remembered: some 4 MiB.
const SINKS_MAX: usize = 80;
/// A look of an idle relay comes every 20 s. What lies between two such looks was as before.
const CARRIED: i64 = 5;
/// The rates of a relay are those of its last minute.
const RATE_MS: i64 = 60_000;
/// A growth over less than this says nothing.
const RATE_MS_MIN: i64 = 9_000;

/// What is known of one sink at one instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct SeriesPoint {
    /// Events appended for it a second, over about a minute.
    in_per_s: Option<f32>,
    /// Events delivered a second, over the last minute.
    out_per_s: Option<f32>,
    /// Events that it has not handled.
    backlog: Option<f32>,
    /// Age of the oldest of them, in seconds.
    oldest_s: Option<f32>,
    /// Half of the events took at most this long.
    p50_ms: Option<f32>,
    /// 99 of 100.
    p99_ms: Option<f32>,
    /// Events that wait.
    deferred: Option<f32>,
    /// Dead letters.
    dead: Option<f32>,
}

/// The same over time, a column for each of its members.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct SinkSeries {
    in_per_s: Vec<Option<f32>>,
    out_per_s: Vec<Option<f32>>,
    backlog: Vec<Option<f32>>,
    oldest_s: Vec<Option<f32>>,
    p50_ms: Vec<Option<f32>>,
    p99_ms: Vec<Option<f32>>,
    deferred: Vec<Option<f32>>,
    dead: Vec<Option<f32>>,
}

/// The last hour of an outbox, as far as somebody looked.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OutboxSeries {
    /// Between two points.
    step_ms: i64,
    /// Instant of the first point.
    from: Timestamp,
    /// Sinks by name, each with as many points.
    sinks: BTreeMap<String, SinkSeries>,
}

/// One instant of an outbox.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct OutboxPoint {
    /// When.
    pub(crate) at: Timestamp,
    /// Sinks by name.
    sinks: BTreeMap<String, SeriesPoint>,
}

/// Everything that this process remembers.
#[derive(Default)]
pub(crate) struct SeriesBook(Mutex<HashMap<(String, String), RememberedSink>>);

#[derive(Default)]
struct RememberedSink {
    /// By the number of their step, oldest first.
    points: VecDeque<(i64, SeriesPoint)>,
    /// What lay there in all, and when: for the rate of what comes in.
    heaps: VecDeque<(i64, f64)>,
}

impl SeriesBook {
    fn inner(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), RememberedSink>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes down what a look found, and answers with the point.
    pub(crate) fn note(&self, outbox: &str, status: &OutboxStatus) -> OutboxPoint {
        let now_ms = status.now.0 / 1_000;
        let step = now_ms / STEP_MS;
        let mut all = self.inner();
        let mut sinks = BTreeMap::new();
        for sink in &status.sinks {
            let name = (outbox.to_owned(), sink.sink.clone());
            if !all.contains_key(&name) && all.len() >= SINKS_MAX {
                continue;
            }
            let remembered = all.entry(name).or_default();
            let point = remembered.point(now_ms, sink, status);
            remembered.push(step, point);
            sinks.insert(sink.sink.clone(), point);
        }
        OutboxPoint { at: instant(step), sinks }
    }

    /// What is remembered of an outbox behind an instant.
    pub(crate) fn of(&self, outbox: &str, since: Option<Timestamp>) -> OutboxSeries {
        let all = self.inner();
        let these = || all.iter().filter(|((of, _), _)| of == outbox);
        let ends = these().filter_map(|(_, sink)| sink.points.back().map(|(step, _)| *step)).max();
        let last = ends.unwrap_or(0);
        let begins = these().filter_map(|(_, sink)| sink.points.front().map(|(step, _)| *step)).min();
        let behind = since.map_or(i64::MIN, |since| since.0 / 1_000 / STEP_MS + 1);
        let first = begins.unwrap_or(last + 1).max(last + 1 - POINTS_MAX as i64).max(behind).min(last + 1);
        let columns = |sink: &RememberedSink| {
            let mut series = SinkSeries::default();
            let mut points = sink.points.iter().skip_while(|(step, _)| *step < first).peekable();
            for step in first..=last {
                let point = points.next_if(|(at, _)| *at == step).map(|(_, point)| *point);
                series.push(point.unwrap_or_default());
            }
            series
        };
        let sinks = these().map(|((_, name), sink)| (name.clone(), columns(sink))).collect();
        OutboxSeries { step_ms: STEP_MS, from: instant(first), sinks }
    }
}

impl RememberedSink {
    fn point(&mut self, now_ms: i64, sink: &SinkStatus, status: &OutboxStatus) -> SeriesPoint {
        let exact = |count: Count| count.exact.then_some(count.count as f64);
        let heap = [sink.backlog, sink.deferred, sink.dead].into_iter().map(exact).sum::<Option<f64>>();
        let out = sink.delivered_per_second;
        let in_per_s =
            heap.and_then(|heap| self.growth_per_s(now_ms, heap)).map(|grown| (out + grown).max(0.0));
        let reports = status.reports.iter().filter_map(|relay| relay.said.known()?.sink(&sink.sink)?.pulse);
        let slowest = reports.reduce(|one, other| if other.p99_ms > one.p99_ms { other } else { one });
        SeriesPoint {
            in_per_s: in_per_s.map(|rate| rate as f32),
            out_per_s: Some(out as f32),
            backlog: Some(sink.backlog.count as f32),
            oldest_s: Some(sink.oldest_age_seconds as f32),
            p50_ms: slowest.map(|pulse| pulse.p50_ms as f32),
            p99_ms: slowest.map(|pulse| pulse.p99_ms as f32),
            deferred: Some(sink.deferred.count as f32),
            dead: Some(sink.dead.count as f32),
        }
    }

    /// How much more lies there than about a minute ago, a second.
    fn growth_per_s(&mut self, now_ms: i64, heap: f64) -> Option<f64> {
        // A clock that went back: what was taken down is of another time.
        if self.heaps.back().is_some_and(|(at, _)| *at > now_ms) {
            self.heaps.clear();
        }
        self.heaps.push_back((now_ms, heap));
        while self.heaps.len() > 2 && self.heaps[1].0 <= now_ms - RATE_MS {
            self.heaps.pop_front();
        }
        let (at, before) = *self.heaps.front()?;
        let ms = now_ms - at;
        (RATE_MS_MIN..2 * RATE_MS).contains(&ms).then(|| (heap - before) * 1_000.0 / ms as f64)
    }

    fn push(&mut self, step: i64, point: SeriesPoint) {
        match self.points.back().copied() {
            Some((last, _)) if last > step => self.points.clear(),
            Some((last, _)) if last == step => {
                self.points.pop_back();
            }
            Some((last, before)) if step - last <= CARRIED => {
                self.points.extend((last + 1..step).map(|missed| (missed, before)));
            }
            _ => {}
        }
        self.points.push_back((step, point));
        while self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
    }
}

impl SinkSeries {
    fn push(&mut self, point: SeriesPoint) {
        self.in_per_s.push(point.in_per_s);
        self.out_per_s.push(point.out_per_s);
        self.backlog.push(point.backlog);
        self.oldest_s.push(point.oldest_s);
        self.p50_ms.push(point.p50_ms);
        self.p99_ms.push(point.p99_ms);
        self.deferred.push(point.deferred);
        self.dead.push(point.dead);
    }
}

fn instant(step: i64) -> Timestamp {
    Timestamp(step * STEP_MS * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(seconds: i64, sinks: &[(&str, u64, f64)]) -> OutboxStatus {
        let exact = |count| Count { count, exact: true };
        let sink = |(name, backlog, rate): &(&str, u64, f64)| SinkStatus {
            sink: (*name).to_owned(),
            backlog: exact(*backlog),
            oldest_age_seconds: 1.0,
            average_age_seconds: 1.0,
            deferred: exact(0),
            dead: exact(0),
            delivered_per_second: *rate,
            paused: false,
            rate_limit: None,
            set_by: None,
            waiting: Vec::new(),
            retired: false,
            lanes: Vec::new(),
        };
        OutboxStatus {
            now: Timestamp(seconds * 1_000_000),
            relays: Vec::new(),
            reports: Vec::new(),
            schema_version: 4,
            sinks: sinks.iter().map(sink).collect(),
            segments: Vec::new(),
            paused_routes: Vec::new(),
            jobs_wait: false,
            unread: None,
        }
    }

    #[test]
    fn what_nobody_saw_is_a_hole_and_a_short_pause_is_none() {
        let book = SeriesBook::default();
        for (seconds, backlog) in [(1_000, 1), (1_002, 2), (1_020, 3), (1_100, 4)] {
            book.note("shop", &status(seconds, &[("a", backlog, 0.0)]));
        }
        let series = book.of("shop", None);
        assert_eq!(series.from, Timestamp(1_000 * 1_000_000));
        let backlog = &series.sinks["a"].backlog;
        assert_eq!(backlog[..5], [Some(2.0), Some(2.0), Some(2.0), Some(2.0), Some(3.0)]);
        assert!(backlog[5..20].iter().all(Option::is_none) && backlog[20..] == [Some(4.0)]);
        let rest = book.of("shop", Some(Timestamp(1_020 * 1_000_000)));
        assert_eq!((rest.from, rest.sinks["a"].backlog.len()), (Timestamp(1_025 * 1_000_000), 16));
        assert_eq!(book.of("shop", Some(Timestamp(i64::MAX / 2))).sinks["a"].backlog.len(), 0);
        assert!(book.of("another", None).sinks.is_empty());
    }

    #[test]
    fn what_comes_in_is_what_went_out_and_what_the_heap_grew_by() {
        let book = SeriesBook::default();
        let rate = |point: OutboxPoint| point.sinks["a"].in_per_s;
        assert_eq!(rate(book.note("shop", &status(0, &[("a", 0, 5.0)]))), None);
        assert_eq!(rate(book.note("shop", &status(5, &[("a", 50, 5.0)]))), None, "too short");
        assert_eq!(rate(book.note("shop", &status(10, &[("a", 100, 5.0)]))), Some(15.0));
        assert_eq!(rate(book.note("shop", &status(60, &[("a", 600, 5.0)]))), Some(15.0));
        assert_eq!(rate(book.note("shop", &status(120, &[("a", 0, 10.0)]))), Some(0.0), "it only drained");
        assert_eq!(rate(book.note("shop", &status(100, &[("a", 0, 1.0)]))), None, "the clock went back");
    }

    #[test]
    fn an_hour_and_so_many_sinks_are_remembered() {
        let book = SeriesBook::default();
        for step in 0..2 * POINTS_MAX as i64 {
            book.note("shop", &status(5 * step, &[("a", 1, 0.0)]));
        }
        assert_eq!(book.of("shop", None).sinks["a"].backlog.len(), POINTS_MAX);
        for n in 0..2 * SINKS_MAX {
            book.note("shop", &status(10_000, &[(&format!("sink-{n}"), 1, 0.0)]));
        }
        assert_eq!(book.inner().len(), SINKS_MAX);
    }
}
