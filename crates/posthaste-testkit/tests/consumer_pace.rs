//! How fast the consumer's engine may go, on the model and a virtual clock: no pause of its own is the limit.

use bytes::Bytes;
use posthaste::clock::SystemClock;
use posthaste::consumer::{ConsumerPlan, ConsumerSettings, Filter, HandlerError, Message, start};
use posthaste::source::{Received, StartFrom};
use posthaste_testkit::broker::{BrokerKind, MemoryBroker};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::inbox::{InboxDatabase, MemoryHandler, MemoryTransaction};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

const NAME: &str = "billing";
const TOPIC: &str = "orders";
const IN_HAND_MAX: usize = 64;
const MESSAGES: usize = 40 * IN_HAND_MAX;

struct Quick;

#[async_trait::async_trait]
impl MemoryHandler for Quick {
    async fn handle(&self, tx: &mut MemoryTransaction, message: &Message<'_>) -> Result<(), HandlerError> {
        tx.effect(message);
        Ok(())
    }
}

/// The source reads no further than its hands go. Were positions saved five times a second alone, forty
/// handfuls would take eight seconds, whatever a handler costs (ADR 16).
#[tokio::test(start_paused = true)]
async fn full_hands_are_emptied_before_the_usual_time() {
    let broker = MemoryBroker::new(BrokerKind::Log, IN_HAND_MAX);
    broker.declare(TOPIC, 3);
    for n in 0..MESSAGES {
        let key = Some(Bytes::from(format!("k{}", n % 17)));
        let payload = Some(Bytes::from_static(b"{}"));
        broker.publish(TOPIC, Received { id: Some(format!("m{n}")), key, payload, ..Received::default() });
    }
    let database = InboxDatabase::default();
    let source = broker.join(NAME, TOPIC, "member-1", StartFrom::Earliest, Duration::from_secs(300));
    let store = Arc::new(database.inbox(NAME, Filter::default(), Arc::new(Quick)));
    let settings = ConsumerSettings { in_hand_max: IN_HAND_MAX, ..ConsumerSettings::default() };
    let (_settings, receiver) = watch::channel(settings);
    let began = Instant::now();
    let consumer = start(ConsumerPlan::new(NAME, Arc::new(source), store), receiver, Arc::new(SystemClock));
    eventually("the effects", Duration::from_secs(600), || async {
        (database.tables().effects.len() == MESSAGES).then_some(())
    })
    .await;
    let took = began.elapsed();
    consumer.drain().await;
    assert!(took < Duration::from_secs(3), "{took:?}");
}
