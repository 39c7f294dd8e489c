//! NATS JetStream.

mod calls;
mod conformance;
mod examine;
mod login;
mod outage;
mod queue;
mod queue_own;
mod servers;
mod source;
mod source_own;
mod tls;
mod topology;
mod verdicts;
mod wire;

use crate::ground::load::{Copy, Load};
use crate::ground::login::*;
use crate::ground::*;
use async_nats::jetstream::{self, consumer, stream};
use futures_util::StreamExt;
use posthaste::event::Event;
use posthaste::sink::{Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_brokers::nats::NatsConfig;
use posthaste_testkit::services::{Nats, NatsOptions, ServiceError};
use std::sync::Arc;
use std::time::Duration;

/// A server, and a client that looks at it from outside.
struct Bed {
    server: Nats,
    jetstream: jetstream::Context,
}

impl Bed {
    async fn start(options: &NatsOptions) -> Result<Self, ServiceError> {
        let server = Nats::start(options).await?;
        let client = async_nats::connect(server.url()).await.expect("the test's own client connects");
        Ok(Self { server, jetstream: jetstream::new(client) })
    }

    async fn open() -> Result<Self, ServiceError> {
        Self::start(&NatsOptions::default()).await
    }

    fn config(&self) -> NatsConfig {
        NatsConfig::new(&self.server.url())
    }

    async fn sink(&self) -> Arc<dyn Sink> {
        build(self.config()).await
    }

    /// A stream on files that takes `subjects`.
    async fn stream(&self, name: &str, subjects: &[&str]) {
        self.stream_with(stream::Config { ..plain(name, subjects) }).await;
    }

    async fn stream_with(&self, config: stream::Config) {
        self.jetstream.create_stream(config).await.expect("a stream");
    }

    /// What is in a stream, in order.
    async fn stored(&self, name: &str) -> Vec<jetstream::Message> {
        let mut stream = self.jetstream.get_stream(name).await.expect("the stream is there");
        let count = stream.info().await.expect("stream info").state.messages as usize;
        let config = consumer::pull::Config { ack_policy: consumer::AckPolicy::None, ..Default::default() };
        let consumer = stream.create_consumer(config).await.expect("a consumer");
        let mut stored = Vec::with_capacity(count);
        while stored.len() < count {
            let mut batch = consumer.fetch().max_messages(1_000).messages().await.expect("a batch");
            while let Some(message) = batch.next().await {
                stored.push(message.expect("a message"));
            }
        }
        stored
    }

    async fn copies(&self, name: &str) -> Vec<Copy> {
        let copy = |message: jetstream::Message| Copy {
            id: header(&message, "Message-ID").expect("an id"),
            key: header(&message, "key"),
            payload: message.payload.to_vec(),
        };
        self.stored(name).await.into_iter().map(copy).collect()
    }

    async fn stored_ids(&self, name: &str) -> Vec<String> {
        self.stored(name).await.iter().map(|message| header(message, "Message-ID").expect("an id")).collect()
    }
}

fn plain(name: &str, subjects: &[&str]) -> stream::Config {
    let subjects = subjects.iter().map(|subject| (*subject).to_owned()).collect();
    stream::Config { name: name.to_owned(), subjects, ..Default::default() }
}

async fn build(config: NatsConfig) -> Arc<dyn Sink> {
    SinkConfig::Nats(Box::new(config)).build("test").await.expect("a valid configuration")
}

fn header(message: &jetstream::Message, name: &str) -> Option<String> {
    message.headers.as_ref()?.get(name).map(|value| value.as_str().to_owned())
}

/// Connected means that the server answers: there is no stream, and that is what it says.
async fn assert_gets_in(config: NatsConfig) {
    let verdict = publish_one(&build(config).await, loose("nowhere")).await;
    assert_seen(&verdict, "retry", "nats.no_stream", Scope::Destination);
}
