//! How fast is the NATS sink, compared with the client it is built on?
//!
//! ```sh
//! cargo run --release -p posthaste-brokers --example nats_throughput [events] [rounds] [nats://host:port]
//! ```
//!
//! Without a URL a private server is started. Each round publishes the same number of events four ways,
//! on a new stream each: with the client's own `publish` and a window of 4,096 acknowledgements (with the
//! id alone, and with all the headers that the sink writes), and with the sink (1,000 keys in order, and
//! no order). The sink is called as the relay does it: several overlapping calls of a batch each.

use async_nats::HeaderMap;
use async_nats::jetstream::{self, context::ContextBuilder, stream};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Message, Sink, Verdict};
use posthaste_brokers::nats::{NatsConfig, NatsSink};
use posthaste_testkit::services::{Nats, NatsOptions};
use std::time::{Duration, Instant};

const WINDOW: usize = 4_096;
const KEYS: usize = 1_000;
const BATCH: usize = 1_000;
const CALLS: usize = 8;
const PAYLOAD_BYTES: usize = 500;

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let events: usize = args.next().map_or(200_000, |text| text.parse().expect("a number of events"));
    let rounds: usize = args.next().map_or(3, |text| text.parse().expect("a number of rounds"));
    let mut server = None;
    let url = match args.next() {
        Some(url) => url,
        None => {
            let started = Nats::start(&NatsOptions::default()).await.expect("a server");
            server.insert(started).url()
        }
    };
    let client = async_nats::connect(&url).await.expect("connected");
    let mut best = [0.0_f64; 4];
    for round in 1..=rounds {
        let plain = run(&client, bare(&client, events, false)).await;
        let dressed = run(&client, bare(&client, events, true)).await;
        let keyed = run(&client, sink(&url, events, true)).await;
        let free = run(&client, sink(&url, events, false)).await;
        let rates = [plain, dressed, keyed, free].map(|seconds| events as f64 / seconds);
        println!(
            "round {round}: client, id only {:.0}/s; client, all headers {:.0}/s; sink, {KEYS} keys {:.0}/s ({:.2}); sink, no order {:.0}/s ({:.2})",
            rates[0],
            rates[1],
            rates[2],
            rates[2] / rates[0],
            rates[3],
            rates[3] / rates[0],
        );
        best.iter_mut().zip(rates).for_each(|(best, rate)| *best = best.max(rate));
    }
    println!(
        "best: client {:.0}/s, all headers {:.0}/s, sink {:.0}/s = {:.2} of the client's, without order {:.0}/s = {:.2}",
        best[0],
        best[1],
        best[2],
        best[2] / best[0],
        best[3],
        best[3] / best[0],
    );
}

/// A fresh stream on files, the work, and the seconds it took.
async fn run(client: &async_nats::Client, work: impl Future<Output = ()>) -> f64 {
    let context = jetstream::new(client.clone());
    let _ = context.delete_stream("BENCH").await;
    let config =
        stream::Config { name: "BENCH".into(), subjects: vec!["bench.>".into()], ..Default::default() };
    context.create_stream(config).await.expect("a stream");
    let started = Instant::now();
    work.await;
    started.elapsed().as_secs_f64()
}

fn message(number: usize, ordered: bool) -> Message {
    let event = Event::new("bench.events", Bytes::from_static(&[b'x'; PAYLOAD_BYTES]))
        .with_key(format!("key-{}", number % KEYS));
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message { stored, destination: "bench.events".into(), payload, ordered, source: "bench".into() }
}

async fn bare(client: &async_nats::Client, events: usize, all_headers: bool) {
    let context =
        ContextBuilder::new().timeout(Duration::from_secs(8)).max_ack_inflight(WINDOW).build(client.clone());
    let mut acks = FuturesUnordered::new();
    for number in 0..events {
        let message = message(number, true);
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", message.id());
        if all_headers {
            message.each_header(|name, value| headers.insert(name, value));
        }
        if acks.len() == WINDOW {
            let ack: Option<Result<_, _>> = acks.next().await;
            ack.expect("a window").expect("acknowledged");
        }
        let payload = message.payload.clone().unwrap_or_default();
        let ack = context.publish_with_headers(message.destination, headers, payload).await.expect("sent");
        acks.push(ack.into_future());
    }
    while let Some(ack) = acks.next().await {
        ack.expect("acknowledged");
    }
}

async fn sink(url: &str, events: usize, ordered: bool) {
    let sink = NatsSink::start(&NatsConfig::new(url), "bench").expect("valid");
    let mut calls = FuturesUnordered::new();
    let mut number = 0;
    while number < events || !calls.is_empty() {
        while number < events && calls.len() < CALLS {
            let batch: Vec<_> = (number..events.min(number + BATCH)).map(|n| message(n, ordered)).collect();
            number += batch.len();
            let sink = &sink;
            calls.push(async move { sink.publish(&batch).await });
        }
        let verdicts = calls.next().await.expect("a call");
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered), "{:?}", verdicts.first());
    }
    sink.close().await;
}
