//! How fast is the Redis sink, compared with the client it is built on?
//!
//! ```sh
//! cargo run --release -p posthaste-brokers --features redis --example redis_throughput [events] [rounds] [ways] [URL]
//! ```
//!
//! Without a URL a private server is started; `ways` are the digits of those to run. Each round publishes the same
//! events four ways, to an empty stream each: with the client's own pipelines of 500 `XADD`, two at a time, with the
//! fields that the sink writes; and with the sink: 1,000 keys in order, each as frequent as the others; 1,000 keys in
//! order, with frequencies after Zipf; and no order. The sink is called as the relay does it: overlapping calls of a
//! batch each. The CPU time is this process's; on a small machine it is the steadier figure, because the server wants
//! the same cores.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Message, Sink, Verdict};
use posthaste_brokers::redis::{RedisConfig, RedisSink};
use posthaste_testkit::services::{Redis, RedisOptions};
use redis::aio::MultiplexedConnection;
use std::time::Instant;

const STREAM: &str = "bench.events";
const KEYS: usize = 1_000;
const BATCH: usize = 1_000;
const CALLS: usize = 8;
const PIPELINE: usize = 500;
const PAYLOAD_BYTES: usize = 500;
const WAYS: [&str; 4] = ["client", "sink, 1000 keys", "sink, 1000 Zipf keys", "sink, no order"];

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
            let started = Redis::start(&RedisOptions::default()).await.expect("a server");
            server.insert(started).url()
        }
    };
    let client = redis::Client::open(url.as_str()).expect("a URL");
    let options = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&options).await.expect("connected");
    let mut best = [0.0_f64; 4];
    for round in 1..=rounds {
        let mut line = format!("round {round}:");
        for (way, name) in WAYS.iter().enumerate().filter(|(way, _)| ways.contains(&way.to_string())) {
            let cleared: Result<i64, _> =
                redis::cmd("DEL").arg(STREAM).query_async(&mut connection.clone()).await;
            cleared.expect("deleted");
            let (started, cpu) = (Instant::now(), cpu_seconds());
            match way {
                0 => bare(&connection, events).await,
                _ => sink(&url, events, way).await,
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

/// User and system time of this process, in hundredths (proc_pid_stat(5)).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields[n].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

/// Keys by rank, the frequency of each in proportion to 1 / rank.
struct Zipf {
    bounds: Vec<f64>,
    state: u64,
}

impl Zipf {
    fn new() -> Self {
        let weights = (1..=KEYS).map(|rank| 1.0 / rank as f64);
        let mut sum = 0.0;
        let bounds = weights.map(|weight| {
            sum += weight;
            sum
        });
        Self { bounds: bounds.collect(), state: 0x9e37_79b9_7f4a_7c15 }
    }

    fn next(&mut self) -> usize {
        // xorshift64
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let most = self.bounds.last().copied().unwrap_or(1.0);
        let point = (self.state >> 11) as f64 / (1_u64 << 53) as f64 * most;
        self.bounds.partition_point(|bound| *bound < point)
    }
}

fn message(key: usize, ordered: bool) -> Message {
    let event = Event::new(STREAM, Bytes::from_static(&[b'x'; PAYLOAD_BYTES])).with_key(format!("key-{key}"));
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message {
        stored,
        destination: STREAM.into(),
        payload,
        ordered,
        source: "bench".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

async fn bare(connection: &MultiplexedConnection, events: usize) {
    let mut pipelines = FuturesUnordered::new();
    let mut number = 0;
    while number < events || !pipelines.is_empty() {
        while number < events && pipelines.len() < 2 {
            let mut pipeline = redis::Pipeline::new();
            for message in (number..events.min(number + PIPELINE)).map(|n| message(n % KEYS, true)) {
                let event = &message.stored.event;
                pipeline.cmd("XADD").arg(STREAM).arg("*").arg("id").arg(message.id());
                pipeline.arg("key").arg(event.key.as_deref()).arg("payload").arg(event.payload.as_deref());
                pipeline.arg("h:type").arg(STREAM).arg("h:time").arg(message.stored.appended_at.rfc3339());
                pipeline.arg("h:source").arg(&*message.source);
            }
            number += pipeline.len();
            let mut connection = connection.clone();
            pipelines.push(async move { pipeline.query_async::<Vec<String>>(&mut connection).await });
        }
        let ids = pipelines.next().await.expect("a pipeline").expect("all of them");
        assert!(ids.iter().all(|id| id.contains('-')));
    }
}

async fn sink(url: &str, events: usize, way: usize) {
    let sink = RedisSink::start(&RedisConfig::new(url), "bench").expect("valid");
    let (mut zipf, mut calls, mut number) = (Zipf::new(), FuturesUnordered::new(), 0);
    while number < events || !calls.is_empty() {
        while number < events && calls.len() < CALLS {
            let mut key = |n: usize| if way == 2 { zipf.next() } else { n % KEYS };
            let batch: Vec<_> =
                (number..events.min(number + BATCH)).map(|n| message(key(n), way < 3)).collect();
            number += batch.len();
            let sink = &sink;
            calls.push(async move { sink.publish(&batch).await });
        }
        let verdicts = calls.next().await.expect("a call");
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered), "{:?}", verdicts.first());
    }
    sink.close().await;
}
