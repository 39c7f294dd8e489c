//! What is counted, and that it is the same whichever way a message took.

use crate::ground::{Act, Ground, TOPIC, received};
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use posthaste::clock::{Clock, SystemClock};
use posthaste::event::TIME_HEADER;
use posthaste::source::Received;
use posthaste::telemetry::consumer::{
    DELIVERY_SECONDS, END_TO_END_SECONDS, FAILURES, HANDLE_SECONDS, HANDLED, RETRIES,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Counters, and how many samples histograms have.
#[derive(Default)]
struct Tally(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

struct Samples(Arc<AtomicU64>);

impl HistogramFn for Samples {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Tally {
    /// By the name and the value of the last label.
    fn number(&self, key: &Key) -> Arc<AtomicU64> {
        let label = key.labels().last().map_or("", |label| label.value());
        let name = format!("{}={label}", key.name());
        Arc::clone(self.0.lock().expect("no panic").entry(name).or_default())
    }

    fn of(&self, name: &str, label: &str) -> u64 {
        let all = self.0.lock().expect("no panic");
        all.get(&format!("{name}={label}")).map_or(0, |number| number.load(SeqCst))
    }
}

impl Recorder for Tally {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.number(key))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Samples(self.number(key))))
    }
}

fn made_at(id: &str) -> Received {
    made(id, "2026-01-01T00:00:00Z".to_owned())
}

fn made(id: &str, time: String) -> Received {
    Received { headers: vec![(TIME_HEADER.to_owned(), time.into())], ..received(Some(id), Some(id)) }
}

/// What the consumer's process says of the time from an event to its effects.
fn latency(ground: &Ground) -> Option<(f64, f64)> {
    let text = ground.database.tables().processes.values().next()?.report.clone();
    let report: Value = serde_json::from_str(&text).expect("JSON");
    Some((report["latency"]["p50_ms"].as_f64()?, report["latency"]["p99_ms"].as_f64()?))
}

#[tokio::test(start_paused = true)]
async fn a_report_tells_how_late_effects_are_and_is_not_written_for_that_alone() {
    let ground = Ground::new(1);
    let _consumer = ground.start();
    let ago = |seconds: i64| SystemClock.now().plus_micros(-seconds * 1_000_000).rfc3339();
    // One without a time is done, and nobody knows how late.
    ground.publish("untimed", Some("untimed"));
    ground.until_done(&["untimed"]).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(latency(&ground), None);
    ground.broker.publish(TOPIC, made("late", ago(7)));
    ground.until("its latency", |ground| latency(ground).is_some()).await;
    let (p50, p99) = latency(&ground).expect("it is there");
    assert!((7_000.0..8_750.0 * 4.0).contains(&p50) && p50 == p99, "{p50} {p99}");
    // A report was just written, and the next one waits for its time: saves go on meanwhile.
    ground.broker.publish(TOPIC, made("later", ago(70)));
    ground.until_done(&["later"]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(latency(&ground), Some((p50, p99)), "it alone is no news");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(latency(&ground).is_some_and(|(p50, p99)| p50 < 60_000.0 && p99 >= 70_000.0));
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(latency(&ground), None, "nothing was handled in the last minute");
}

/// With delays that wait in memory, and with such that wait in the database.
#[tokio::test(start_paused = true)]
async fn a_deferred_message_counts_as_one_that_was_not() {
    for (delays_ms, deferred) in [(vec![1_000; 2], 0), (vec![60_000; 2], 2)] {
        let tally = Tally::default();
        let _guard = metrics::set_default_local_recorder(&tally);
        let mut ground = Ground::new(1);
        ground.settings.retry.delays_ms = delays_ms;
        let _consumer = ground.start();
        ground.script.set("late", Act::Fail(2));
        ground.broker.publish(TOPIC, made_at("late"));
        ground.until_done(&["late"]).await;
        ground.script.set("bad", Act::Fail(u32::MAX));
        ground.broker.publish(TOPIC, made_at("bad"));
        ground.until("its end", |ground| ground.dead().len() == 1).await;
        ground.until("the count", |_| tally.of(HANDLED, "dead") > 0).await;
        let handled = ["done", "dead", "deferred", "skipped"].map(|outcome| tally.of(HANDLED, outcome));
        assert_eq!(handled, [1, 1, deferred, 0]);
        assert_eq!((tally.of(FAILURES, "transient"), tally.of(RETRIES, TOPIC)), (5, 4));
        let samples =
            [DELIVERY_SECONDS, END_TO_END_SECONDS, HANDLE_SECONDS].map(|name| tally.of(name, TOPIC));
        assert_eq!(samples, [1, 1, 1]);
    }
}
