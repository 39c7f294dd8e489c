//! How fast is the Kafka sink, compared with the client it is built on?
//!
//! ```sh
//! cargo run --release -p posthaste-brokers --features kafka --example kafka_throughput [events] [rounds] [ways] [URL]
//! ```
//!
//! Without a URL a private broker is started; `ways` are the digits of those to run. Each round publishes the same
//! events, on a new topic each: with the client alone (no headers, then all that the sink writes), and with the sink
//! (1,000 keys of a Zipf distribution in order, the same without order). The sink is called as the relay does it:
//! overlapping calls of a page each. The CPU time is this process's; on a small machine it is the steadier figure,
//! because the broker wants the same cores.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste::envelope::KAFKA_BINDING;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Message, Sink, Verdict};
use posthaste_brokers::kafka::{KafkaConfig, KafkaSink};
use posthaste_testkit::services::{Kafka, KafkaOptions};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use std::time::{Duration, Instant};

const KEYS: usize = 1_000;
const BATCH: usize = 2_048;
const CALLS: usize = 4;
const PAYLOAD_BYTES: usize = 500;
const WAYS: [&str; 4] = ["client, bare", "client, all headers", "sink, 1000 Zipf keys", "sink, no order"];

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let events: usize = args.next().map_or(200_000, |text| text.parse().expect("a number of events"));
    let rounds: usize = args.next().map_or(3, |text| text.parse().expect("a number of rounds"));
    let ways = args.next().unwrap_or_else(|| "0123".to_owned());
    let mut broker = None;
    let url = match args.next() {
        Some(url) => url,
        None => {
            let started = Kafka::start(&KafkaOptions::default()).await.expect("a broker");
            broker.insert(started).bootstrap()
        }
    };
    let keys = zipf(events);
    let mut best = [0.0_f64; 4];
    for round in 1..=rounds {
        let mut line = format!("round {round}:");
        for (way, name) in WAYS.iter().enumerate().filter(|(way, _)| ways.contains(&way.to_string())) {
            let topic = fresh_topic(&url, round, way).await;
            let (started, cpu) = (Instant::now(), cpu_seconds());
            match way {
                0 | 1 => bare(&url, &topic, &keys, way == 1),
                _ => sink(&url, &topic, &keys, way == 2).await,
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

/// The number of a key for each event: the hottest of 1,000 has 13 % of them.
fn zipf(events: usize) -> Vec<usize> {
    let weights: Vec<f64> = (1..=KEYS).map(|rank| 1.0 / rank as f64).collect();
    let total: f64 = weights.iter().sum();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64 * total
    };
    let pick = |mut at: f64| {
        let found = weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        found.unwrap_or(KEYS - 1)
    };
    (0..events).map(|_| pick(next())).collect()
}

async fn fresh_topic(url: &str, round: usize, way: usize) -> String {
    let admin: AdminClient<DefaultClientContext> = client(url).create().expect("an admin client");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let name = format!("bench-{}-{round}-{way}", now.as_millis());
    let topic = NewTopic::new(&name, 4, TopicReplication::Fixed(1));
    let made = admin.create_topics([&topic], &AdminOptions::new()).await.expect("an answer");
    made.into_iter().next().expect("one topic").expect("a topic");
    name
}

fn client(url: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", url.trim_start_matches("kafka://"));
    client
}

/// User and system time of this process, in hundredths (proc_pid_stat(5)).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields[n].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

fn message(topic: &str, key: usize, ordered: bool) -> Message {
    let event =
        Event::new("bench.events", Bytes::from_static(&[b'x'; PAYLOAD_BYTES])).with_key(format!("key-{key}"));
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message {
        stored,
        destination: topic.to_owned(),
        payload,
        ordered,
        source: "bench".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

fn bare(url: &str, topic: &str, keys: &[usize], all_headers: bool) {
    let producer: ThreadedProducer<_> = client(url)
        .set("enable.idempotence", "true")
        .set("compression.type", "lz4")
        .set("linger.ms", "1")
        .set("partitioner", "murmur2_random")
        .set("queue.buffering.max.messages", "16384")
        .create()
        .expect("a producer");
    for key in keys {
        let message = message(topic, *key, true);
        let mut headers = OwnedHeaders::new();
        if all_headers {
            let mut all = Some(headers);
            message.each_header_for(KAFKA_BINDING, |key, value| {
                all = all.take().map(|all| all.insert(Header { key, value: Some(value) }));
            });
            headers = all.expect("headers");
        }
        let payload = message.payload.as_deref().expect("a payload");
        let key = message.partition_key().expect("a key");
        let mut record = BaseRecord::to(topic).key(key).payload(payload).headers(headers);
        while let Err((_, again)) = producer.send(record) {
            record = again;
            std::thread::sleep(Duration::from_micros(200)); // pace
        }
    }
    producer.flush(Duration::from_secs(60)).expect("flushed");
}

async fn sink(url: &str, topic: &str, keys: &[usize], ordered: bool) {
    let sink = KafkaSink::start(&KafkaConfig::new(url), "bench").expect("valid");
    let mut calls = FuturesUnordered::new();
    let mut rest = keys;
    while !rest.is_empty() || !calls.is_empty() {
        while !rest.is_empty() && calls.len() < CALLS {
            let (page, after) = rest.split_at(BATCH.min(rest.len()));
            rest = after;
            let batch: Vec<_> = page.iter().map(|key| message(topic, *key, ordered)).collect();
            let sink = &sink;
            calls.push(async move { sink.publish(&batch).await });
        }
        let verdicts = calls.next().await.expect("a call");
        let other = verdicts.iter().find(|verdict| **verdict != Verdict::Delivered);
        assert_eq!(other, None);
    }
    sink.close().await;
}
