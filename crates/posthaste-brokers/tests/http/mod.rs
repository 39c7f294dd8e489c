//! HTTP: webhooks.

mod calls;
mod conformance;
mod dead_host;
mod examine;
mod guard;
mod outage;
mod rotation;
mod signature;
mod tls;
mod verdicts;

use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Failure, Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_brokers::http::HttpConfig;
use posthaste_testkit::services::{Receiver, ReceiverOptions};
use std::sync::Arc;
use std::time::Duration;

/// Ends a hang; nothing is timed by it.
const DEADLINE: Duration = Duration::from_secs(30);

/// A receiver without TLS. It runs in this process: there is nothing to be missing.
async fn receiver() -> Receiver {
    Receiver::start(&ReceiverOptions::default()).await.expect("a receiver")
}

/// Options for a receiver on loopback.
fn near(receiver: &Receiver) -> HttpConfig {
    HttpConfig { allow_private: true, ..HttpConfig::new(&receiver.url()) }
}

async fn build(config: HttpConfig) -> Arc<dyn Sink> {
    SinkConfig::Http(Box::new(config)).build("test").await.expect("a valid configuration")
}

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

/// The verdict of one message.
async fn publish_one(sink: &Arc<dyn Sink>, message: Message) -> Verdict {
    let mut verdicts = sink.publish(&[message]).await;
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

/// The kind and the failure of a verdict that is not `Delivered`.
#[track_caller]
fn seen(verdict: &Verdict) -> (&'static str, &Failure) {
    match verdict {
        Verdict::Retry(failure) => ("retry", failure),
        Verdict::Rejected(failure) => ("rejected", failure),
        Verdict::Unknown(failure) => ("unknown", failure),
        other => panic!("{other:?} has no failure"),
    }
}

#[track_caller]
fn assert_seen(verdict: &Verdict, kind: &str, code: &str, scope: Scope) {
    let (found, failure) = seen(verdict);
    assert_eq!((found, &*failure.code, failure.scope), (kind, code, scope), "{verdict:?}");
}

#[track_caller]
fn assert_delivered(verdicts: &[Verdict]) {
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered), "{verdicts:?}");
}
