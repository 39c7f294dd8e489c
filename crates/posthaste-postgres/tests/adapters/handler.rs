//! A consumer whose handler has a transaction of sqlx.

use super::Outbox;
use async_trait::async_trait;
use bytes::Bytes;
use posthaste::clock::SystemClock;
use posthaste::consumer::{ConsumerPlan, ConsumerSettings, HandlerError, Message, start};
use posthaste::relay::DrainOutcome;
use posthaste::source::{Received, StartFrom};
use posthaste_postgres::sqlx::{SqlxHandler, append, handler};
use posthaste_postgres::{PostgresConfig, consumer};
use posthaste_testkit::broker::{BrokerKind, MemoryBroker};
use posthaste_testkit::conformance::eventually;
use sqlx::{PgPool, Postgres, Transaction};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(60);

/// Notes each message, and tells of it. It has nothing that would keep a second call from being noted.
struct Note;

#[async_trait]
impl SqlxHandler for Note {
    async fn handle(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        message: &Message<'_>,
    ) -> Result<(), HandlerError> {
        sqlx::query("insert into effects (id) values ($1)").bind(message.id()).execute(&mut **tx).await?;
        append(tx, &message.event("noted", message.id().to_owned())).await?;
        match message.id() {
            "m5" => Err(HandlerError::reject("test.no", "never")),
            _ => Ok(()),
        }
    }
}

/// G5: one message fails the batch of all, and the consumer rolls back what had its effects already. They are
/// there once, with their events, and in the order of their keys.
#[tokio::test(flavor = "multi_thread")]
async fn g5_effects_of_a_sqlx_handler_happen_once_although_its_batch_failed() {
    let Some(outbox) = Outbox::make().await else { return };
    let create = "create table effects (n bigserial, id text not null)";
    outbox.client.batch_execute(create).await.expect("a table");
    let broker = MemoryBroker::new(BrokerKind::Log, 1_000);
    broker.declare("orders", 1);
    for n in 0..12 {
        let (id, key) = (Some(format!("m{n}")), Some(Bytes::from(format!("k{}", n % 2))));
        let payload = Some(Bytes::from_static(b"{}"));
        broker.publish("orders", Received { id, key, payload, ..Received::default() });
    }
    let pool = PgPool::connect(&outbox.url()).await.expect("a pool");
    let note = handler(pool, "billing.effects", Note);
    let store = consumer::inbox(PostgresConfig::new(outbox.url()), "billing", note).await.expect("an inbox");
    let source = Arc::new(broker.join("billing", "orders", "one", StartFrom::Earliest, PATIENCE));
    let (_settings, settings) = watch::channel(ConsumerSettings::default());
    let running =
        start(ConsumerPlan::new("billing", source, Arc::new(store)), settings, Arc::new(SystemClock));
    let marks = "select count(*) from posthaste.inbox where consumer = 'billing'";
    eventually("everything is decided", PATIENCE, || async {
        let row = outbox.client.query_one(marks, &[]).await.expect("marks");
        (row.get::<_, i64>(0) == 12).then_some(())
    })
    .await;
    assert_eq!(running.drain().await, DrainOutcome::Clean);

    let rows = outbox.client.query("select id from effects order by n", &[]).await.expect("effects");
    let effects: Vec<i32> = rows.iter().map(|row| row.get::<_, &str>(0)[1..].parse().expect("n")).collect();
    let of_key = |rest: i32| effects.iter().copied().filter(|n| n % 2 == rest).collect::<Vec<_>>();
    assert_eq!(of_key(0), [0, 2, 4, 6, 8, 10]);
    assert_eq!(of_key(1), [1, 3, 7, 9, 11], "all but the one that is rejected, once, in order");
    assert_eq!(outbox.count().await, 11, "an event for each of them");
    let letters = "select message_id from posthaste.inbox_dead_letters";
    let letters = outbox.client.query(letters, &[]).await.expect("letters");
    assert_eq!(letters.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["m5"]);
}
