//! Redis Streams.

mod calls;
mod cluster;
mod cluster_tls;
mod conformance;
mod examine;
mod limit;
mod login;
mod outage;
mod queue;
mod queue_own;
mod sentinel;
mod source;
mod source_own;
mod tls;
mod verdicts;

use crate::ground::load::{Copy, Load};
use crate::ground::login::*;
use crate::ground::*;
use ::redis::aio::MultiplexedConnection;
use posthaste::event::Event;
use posthaste::sink::{Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_brokers::redis::RedisConfig;
use posthaste_testkit::services::{Redis, RedisOptions, ServiceError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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

fn copies(entries: &[Entry]) -> Vec<Copy> {
    let copy = |entry: &Entry| Copy {
        id: entry.text("id").expect("an id"),
        key: entry.text("key"),
        payload: entry.0.get("payload").cloned().unwrap_or_default(),
    };
    entries.iter().map(copy).collect()
}

async fn build(config: RedisConfig) -> Arc<dyn Sink> {
    SinkConfig::Redis(Box::new(config)).build("test").await.expect("a valid configuration")
}

async fn assert_gets_in(config: RedisConfig) {
    assert_eq!(publish_one(&build(config).await, loose("s")).await, Verdict::Delivered);
}
