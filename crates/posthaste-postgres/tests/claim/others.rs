//! Tables of other people's libraries.

use crate::ground::Ground;
use posthaste::relay::DrainOutcome;
use posthaste::retry::RetryPolicy;
use posthaste_postgres::claim::{dead_letter_table, table};

/// The Event Router's table: its topics, its key, its header `id`; published rows are gone. Attempts are only
/// kept in mind.
#[tokio::test(flavor = "multi_thread")]
async fn debezium_outbox() {
    let ddl = "create table outbox (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
                 type varchar(255) not null, payload jsonb)";
    let Some(mut ground) = Ground::make("debezium-outbox", ddl).await else { return };
    ground.route.retry = RetryPolicy { max_attempts: 3, initial_ms: 10, ..RetryPolicy::default() };
    let found = table(&ground.app, &ground.layout.table).await.expect("looks").expect("is there");
    ground.execute(&dead_letter_table(&ground.layout, &found).expect("it has one")).await;
    ground.judge_by_topic();
    ground.execute("insert into outbox select gen_random_uuid(), 'order', g::text, 'OrderCreated', '{}' from generate_series(1, 20) g").await;
    ground
        .execute("insert into outbox values (gen_random_uuid(), 'failing', '1', 'OrderCreated', '{}')")
        .await;
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 0 from outbox)").await;
    let deliveries = ground.broker.deliveries();
    assert_eq!((deliveries.len(), deliveries[0].destination.as_str()), (20, "outbox.event.order"));
    assert!(deliveries.iter().all(|one| one.headers.contains(&("id".to_owned(), one.id.to_string()))));
    assert!(deliveries.iter().any(|one| one.key.as_deref() == Some("7")));
    let dead: String = ground
        .ask("select attempts || ' ' || last_error || ' ' || aggregatetype from outbox_dead_letters")
        .await;
    assert_eq!(dead, "3 test.failing: not now failing");
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// Claimed by `DELIVERING`, with who and since when; both are empty again once a row is settled.
#[tokio::test(flavor = "multi_thread")]
async fn open_outbox() {
    let ddl = "create table openoutbox_events (event_id uuid primary key default gen_random_uuid(), event_type text not null,
                 partition_key text, payload bytea not null, headers jsonb, created_at timestamptz not null default now(),
                 status text not null default 'PENDING', delivered_at timestamptz, attempts int not null default 0,
                 available_at timestamptz not null default now(), locked_by text, locked_at timestamptz, last_error text)";
    let Some(mut ground) = Ground::make("open-outbox", ddl).await else { return };
    ground.route.retry = RetryPolicy { max_attempts: 2, initial_ms: 10, ..RetryPolicy::default() };
    ground.judge_by_topic();
    ground
        .execute(
            r#"insert into openoutbox_events (event_type, partition_key, payload, headers) select 'user.created', 'u', '\x00ff', '{"trace": "t"}' from generate_series(1, 20);
               insert into openoutbox_events (event_type, payload) values ('failing', 'x'), ('refused', 'x');
               insert into openoutbox_events (event_type, payload, headers) values ('bad.headers', 'x', '{"n": 1}')"#,
        )
        .await;
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 20 from openoutbox_events where status = 'DELIVERED' and delivered_at is not null and locked_by is null and locked_at is null)").await;
    ground.until("(select count(*) = 3 from openoutbox_events where status = 'DEAD' and locked_by is null and locked_at is null)").await;
    let dead: String = ground.ask("select string_agg(event_type || ' ' || attempts, ', ' order by event_type) from openoutbox_events where status = 'DEAD'").await;
    assert_eq!(dead, "bad.headers 0, failing 2, refused 1");
    let one = ground.broker.deliveries().remove(0);
    assert_eq!(one.payload.as_deref(), Some(&b"\x00\xff"[..]), "F86: bytes pass untouched");
    assert!(one.headers.contains(&("trace".to_owned(), "t".to_owned())));
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}
