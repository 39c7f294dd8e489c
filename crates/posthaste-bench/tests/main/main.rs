//! The yards against real brokers, and the whole program on the `posthaste` of this build.
//!
//! A server that is not installed is a counted skip.

mod api;
mod consume;
mod gateway;
mod kafka;
mod nats;
mod redis;
mod topology;
mod whole;

use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Message, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ends a hang; nothing is timed by it.
const DEADLINE: Duration = Duration::from_secs(60);

fn message(destination: &str, event: Event) -> Message {
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message {
        stored,
        destination: destination.to_owned(),
        payload,
        ordered: true,
        source: "shop".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

/// Without a key.
fn loose(destination: &str) -> Message {
    message(destination, Event::new("orders.placed", "{}"))
}

fn keyed(destination: &str, key: &str) -> Message {
    message(destination, Event::new("orders.placed", "{}").with_key(key))
}

/// The sink that a yard's options describe: the one whose messages a yard has to see.
async fn sink(options: serde_json::Map<String, serde_json::Value>) -> Arc<dyn Sink> {
    let config: SinkConfig = serde_json::from_value(options.into()).expect("a sink's options");
    config.build("test").await.expect("a valid configuration")
}

#[track_caller]
fn assert_delivered(verdicts: &[Verdict]) {
    let other = verdicts.iter().find(|verdict| **verdict != Verdict::Delivered);
    assert_eq!(other, None);
}

/// Waits for something that gives no signal.
async fn until(mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < DEADLINE, "not within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(2)).await; // pace
    }
}
