//! Redis Streams.

mod calls;
mod cluster;
mod conformance;
mod examine;
mod login;
mod outage;
mod sentinel;
mod tls;
mod verdicts;
mod yard;

use ::redis::aio::MultiplexedConnection;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_brokers::redis::RedisConfig;
use posthaste_testkit::services::{Redis, RedisOptions, ServiceError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Ends a hang; nothing is timed by it.
const DEADLINE: Duration = Duration::from_secs(30);

/// A server, and a client that looks at it from outside.
struct Bed {
    server: Redis,
    client: MultiplexedConnection,
}

impl Bed {
    async fn start(options: &RedisOptions) -> Result<Self, ServiceError> {
        let server = Redis::start(options).await?;
        let client = client(&server.url()).await;
        Ok(Self { server, client })
    }

    async fn open() -> Result<Self, ServiceError> {
        Self::start(&RedisOptions::default()).await
    }

    fn config(&self) -> RedisConfig {
        RedisConfig::new(&self.server.url())
    }

    async fn sink(&self) -> Arc<dyn Sink> {
        build(self.config()).await
    }

    /// Runs a command that must succeed.
    async fn run(&self, words: &[&str]) {
        run(&self.client, words).await;
    }

    async fn stored(&self, stream: &str) -> Vec<Entry> {
        stored(&self.client, stream).await
    }

    async fn length(&self, stream: &str) -> usize {
        ::redis::cmd("XLEN").arg(stream).query_async(&mut self.client.clone()).await.expect("a stream")
    }

    async fn stored_ids(&self, stream: &str) -> Vec<String> {
        self.stored(stream).await.iter().map(|entry| entry.text("id").expect("an id")).collect()
    }
}

async fn client(url: &str) -> MultiplexedConnection {
    let client = ::redis::Client::open(url).expect("a URL");
    // The default of half a second is too short for a loaded machine.
    let options = ::redis::AsyncConnectionConfig::new()
        .set_response_timeout(Some(DEADLINE))
        .set_connection_timeout(Some(DEADLINE));
    client
        .get_multiplexed_async_connection_with_config(&options)
        .await
        .expect("the test's own client connects")
}

async fn run(client: &MultiplexedConnection, words: &[&str]) {
    let mut command = ::redis::cmd(words[0]);
    command.arg(&words[1..]);
    let answer: ::redis::Value =
        command.query_async(&mut client.clone()).await.expect("the command succeeds");
    drop(answer);
}

/// An entry of a stream. Of two fields with one name the last counts, as in most clients.
#[derive(Debug)]
struct Entry(BTreeMap<String, Vec<u8>>);

impl Entry {
    fn text(&self, field: &str) -> Option<String> {
        self.0.get(field).map(|value| String::from_utf8(value.clone()).expect("text"))
    }
}

/// What is in a stream, in order.
async fn stored(client: &MultiplexedConnection, stream: &str) -> Vec<Entry> {
    type Row = (String, Vec<(String, Vec<u8>)>);
    let rows: Vec<Row> = ::redis::cmd("XRANGE")
        .arg(stream)
        .arg("-")
        .arg("+")
        .query_async(&mut client.clone())
        .await
        .expect("a stream");
    rows.into_iter().map(|(_, fields)| Entry(fields.into_iter().collect())).collect()
}

async fn build(config: RedisConfig) -> Arc<dyn Sink> {
    SinkConfig::Redis(Box::new(config)).build("test").await.expect("a valid configuration")
}

fn message(stream: &str, event: Event) -> Message {
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message {
        stored,
        destination: stream.to_owned(),
        payload,
        ordered: true,
        source: "shop".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

/// Without a key.
fn loose(stream: &str) -> Message {
    message(stream, Event::new("orders.placed", "{}"))
}

fn keyed(stream: &str, key: &str) -> Message {
    message(stream, Event::new("orders.placed", "{}").with_key(key))
}

/// The verdict of one message.
async fn publish_one(sink: &Arc<dyn Sink>, message: Message) -> Verdict {
    let mut verdicts = sink.publish(&[message]).await;
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

/// Kind, code, scope and words of a verdict that is not `Delivered`.
fn seen(verdict: &Verdict) -> (&'static str, &str, Scope, &str) {
    let (kind, failure) = match verdict {
        Verdict::Retry(failure) => ("retry", failure),
        Verdict::Rejected(failure) => ("rejected", failure),
        Verdict::Unknown(failure) => ("unknown", failure),
        other => panic!("{other:?} has no failure"),
    };
    (kind, &failure.code, failure.scope, &failure.message)
}

#[track_caller]
fn assert_seen(verdict: &Verdict, kind: &str, code: &str, scope: Scope) {
    let found = seen(verdict);
    assert_eq!((found.0, found.1, found.2), (kind, code, scope), "{verdict:?}");
}

/// Publishes a new message again and again until one is delivered, as the relay would after an outage.
async fn until_delivered(sink: &Arc<dyn Sink>, stream: &str, within: Duration) {
    let started = std::time::Instant::now();
    loop {
        let verdict = publish_one(sink, loose(stream)).await;
        if verdict == Verdict::Delivered {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "still {verdict:?}");
    }
    assert!(started.elapsed() < within, "delivered only after {:?}", started.elapsed());
}

/// Waits for something that gives no signal.
async fn until(mut done: impl AsyncFnMut() -> bool) {
    let started = std::time::Instant::now();
    while !done().await {
        assert!(started.elapsed() < DEADLINE, "not within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(2)).await; // pace
    }
}
