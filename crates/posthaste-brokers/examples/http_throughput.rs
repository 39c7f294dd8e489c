//! How fast is the HTTP sink, compared with the client it is built on?
//!
//! ```sh
//! cargo run --release -p posthaste-brokers --features http --example http_throughput [events] [rounds]
//! ```
//!
//! Receiver, client and sink are one process: the figures are for comparing, not for showing. The sink is
//! called as the relay does it: overlapping calls of a batch each.

use bytes::Bytes;
use futures_util::StreamExt;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Message, Sink, Verdict};
use posthaste_brokers::bench::{Yard, yard};
use posthaste_brokers::http::{HttpConfig, HttpSink};
use std::time::{Duration, Instant};

const KEYS: usize = 1_000;
const BATCH: usize = 2_048;
const CALLS: usize = 4;
const PAYLOAD_BYTES: usize = 500;

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let events: usize = args.next().map_or(100_000, |text| text.parse().expect("a number of events"));
    let rounds: usize = args.next().map_or(3, |text| text.parse().expect("a number of rounds"));
    let mut yard = yard("http", "bench").await.expect("a receiver").expect("a yard");
    let mut best = [0.0_f64; 3];
    for _ in 0..rounds {
        let messages: Vec<Message> = (0..events).map(|n| message(n, true)).collect();
        let took = [
            yard.client_alone(&messages).await.expect("answered"),
            sink(yard.as_ref(), events, true).await,
            sink(yard.as_ref(), events, false).await,
        ];
        let rates = took.map(|took: Duration| events as f64 / took.as_secs_f64());
        println!(
            "client {:.0}/s, sink, 1000 keys {:.0}/s, sink, no order {:.0}/s",
            rates[0], rates[1], rates[2]
        );
        best.iter_mut().zip(rates).for_each(|(best, rate)| *best = best.max(rate));
    }
    println!("best to best: {:.2} with keys, {:.2} without order", best[1] / best[0], best[2] / best[0]);
}

async fn sink(yard: &dyn Yard, events: usize, ordered: bool) -> Duration {
    let options =
        serde_json::Value::Object(yard.sink().into_iter().filter(|(name, _)| name != "type").collect());
    let config: HttpConfig = serde_json::from_value(options).expect("options");
    let sink = HttpSink::start(&config, "bench").expect("a sink");
    let batches: Vec<Vec<Message>> = (0..events)
        .step_by(BATCH)
        .map(|at| (at..events.min(at + BATCH)).map(|n| message(n, ordered)).collect())
        .collect();
    let started = Instant::now();
    let mut calls = futures_util::stream::iter(&batches).map(|batch| sink.publish(batch)).buffered(CALLS);
    while let Some(verdicts) = calls.next().await {
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered), "{verdicts:?}");
    }
    started.elapsed()
}

fn message(number: usize, ordered: bool) -> Message {
    let event = Event::new("bench", Bytes::from_static(&[b'x'; PAYLOAD_BYTES]))
        .with_key(format!("key-{}", number % KEYS));
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message {
        stored,
        destination: "bench".into(),
        payload,
        ordered,
        source: "bench".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}
