//! How fast is the NATS sink, compared with the client it is built on?
//!
//! ```sh
//! cargo run --release -p posthaste-brokers --example nats_throughput [events] [rounds] [ways] [URL]
//! ```
//!
//! Without a URL a private server is started; `ways` are the digits of those to run. Each round publishes the same events four ways, on a new
//! stream each: with the client's own `publish` and a window of 4,096 acknowledgements (with the id alone,
//! and with all the headers that the sink writes), and with the sink (1,000 keys in order, and no order).
//! The sink is called as the relay does it: overlapping calls of a batch each. The CPU time is this
//! process's; on a small machine it is the steadier figure, because the server wants the same cores.

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
const WAYS: [&str; 4] = ["client, id only", "client, all headers", "sink, 1000 keys", "sink, no order"];

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let events: usize = args.next().map_or(200_000, |text| text.parse().expect("a number of events"));
    let rounds: usize = args.next().map_or(3, |text| text.parse().expect("a number of rounds"));
    let ways = args.next().unwrap_or_else(|| "0123".to_owned());
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
        let mut line = format!("round {round}:");
        for (way, name) in WAYS.iter().enumerate().filter(|(way, _)| ways.contains(&way.to_string())) {
            fresh_stream(&client).await;
            let (started, cpu) = (Instant::now(), cpu_seconds());
            match way {
                0 | 1 => bare(&client, events, way == 1).await,
                _ => sink(&url, events, way == 2).await,
            }
            let rate = events as f64 / started.elapsed().as_secs_f64();
            best[way] = best[way].max(rate);
            line += &format!(" {name} {rate:.0}/s {:.1} µs;", (cpu_seconds() - cpu) * 1e6 / events as f64);
        }
        println!("{line}");
    }
    for (name, rate) in WAYS.iter().zip(best) {
        println!("best: {name} {rate:.0}/s = {:.2}", rate / best[0]);
    }
}

async fn fresh_stream(client: &async_nats::Client) {
    let context = jetstream::new(client.clone());
    // The first time there is none.
    let _ = context.delete_stream("BENCH").await;
    let config =
        stream::Config { name: "BENCH".into(), subjects: vec!["bench.>".into()], ..Default::default() };
    context.create_stream(config).await.expect("a stream");
}

/// User and system time of this process, in hundredths (proc_pid_stat(5)).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields[n].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

fn message(number: usize, ordered: bool) -> Message {
    let event = Event::new("bench.events", Bytes::from_static(&[b'x'; PAYLOAD_BYTES]))
        .with_key(format!("key-{}", number % KEYS));
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message {
        stored,
        destination: "bench.events".into(),
        payload,
        ordered,
        source: "bench".into(),
        envelope: Default::default(),
        partition_key: None,
    }
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
