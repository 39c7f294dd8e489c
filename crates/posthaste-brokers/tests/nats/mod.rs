//! NATS JetStream.

mod calls;
mod conformance;
mod examine;
mod login;
mod outage;
mod tls;
mod verdicts;

use async_nats::jetstream::{self, consumer, stream};
use futures_util::StreamExt;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_brokers::nats::NatsConfig;
use posthaste_testkit::services::{Nats, NatsOptions, ServiceError};
use std::sync::Arc;
use std::time::Duration;

/// Ends a hang; nothing is timed by it.
const DEADLINE: Duration = Duration::from_secs(30);

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

    async fn stored_ids(&self, name: &str) -> Vec<String> {
        self.stored(name).await.iter().map(|message| header(message, "Nats-Msg-Id").expect("an id")).collect()
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

fn message(subject: &str, event: Event) -> Message {
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message {
        stored,
        destination: subject.to_owned(),
        payload,
        ordered: true,
        source: "shop".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

/// Without a key.
fn loose(subject: &str) -> Message {
    message(subject, Event::new("orders.placed", "{}"))
}

fn keyed(subject: &str, key: &str) -> Message {
    message(subject, Event::new("orders.placed", "{}").with_key(key))
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
async fn until_delivered(sink: &Arc<dyn Sink>, subject: &str, within: Duration) {
    let started = std::time::Instant::now();
    loop {
        let verdict = publish_one(sink, loose(subject)).await;
        if verdict == Verdict::Delivered {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "still {verdict:?}");
    }
    assert!(started.elapsed() < within, "delivered only after {:?}", started.elapsed());
}
