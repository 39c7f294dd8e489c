//! What is counted, and that it is the same whichever way a message took.

use crate::ground::{Act, Ground, TOPIC, received};
use bytes::Bytes;
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use posthaste::event::TIME_HEADER;
use posthaste::source::Received;
use posthaste::telemetry::consumer::{
    DELIVERY_SECONDS, END_TO_END_SECONDS, FAILURES, HANDLE_SECONDS, HANDLED, RETRIES,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

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
    let time = Bytes::from_static(b"2026-01-01T00:00:00Z");
    Received { headers: vec![(TIME_HEADER.to_owned(), time)], ..received(Some(id), Some(id)) }
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
