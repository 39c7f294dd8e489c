//! Preset `prisma-outbox`: a Prisma model `Outbox`. CamelCase columns, an enum, `timestamp(3)` in UTC.

use crate::ground::{Ground, WAIT};
use posthaste::relay::DrainOutcome;
use posthaste_testkit::conformance::eventually;
use std::time::Duration;

/// What Prisma makes of the model, in a database that lives in another time zone (F24). Open in the document:
/// `topic`, `key`, `payload`, and that a row may lack its topic.
const DDL: &str = r#"
  do $$ begin execute format('alter database %I set timezone = ''Asia/Tokyo''', current_database()); end $$;
  create type "OutboxStatus" as enum ('PENDING', 'PROCESSED', 'FAILED');
  create table "Outbox" (
    "id" text primary key, "topic" text, "key" text, "payload" jsonb not null, "status" "OutboxStatus" not null default 'PENDING',
    "retries" integer not null default 0, "createdAt" timestamp(3) not null default (now() at time zone 'utc'), "processedAt" timestamp(3));
  create index "Outbox_status_createdAt_idx" on "Outbox" ("status", "createdAt")"#;

async fn ground() -> Option<Ground> {
    Ground::make("prisma-outbox", DDL).await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_processed_in_the_order_of_their_creation() {
    let Some(ground) = ground().await else { return };
    ground
        .execute(
            r#"insert into "Outbox" ("id", "topic", "key", "payload", "createdAt")
               select 'cl' || g, 'matches', 'm' || g % 3, jsonb_build_object('n', g), (now() at time zone 'utc') - g * interval '1 s' from generate_series(1, 60) g"#,
        )
        .await;
    let relay = ground.relay("one").await;
    ground.until(r#"(select count(*) = 60 from "Outbox" where "status" = 'PROCESSED')"#).await;
    let exact = r#"select bool_and("retries" = 0 and "processedAt" between (now() at time zone 'utc') - interval '1 min' and (now() at time zone 'utc') + interval '1 s') from "Outbox""#;
    assert!(ground.ask::<bool>(exact).await, "in UTC");
    let deliveries = ground.broker.deliveries();
    let numbers: Vec<i64> = deliveries
        .iter()
        .map(|one| {
            serde_json::from_slice::<serde_json::Value>(one.payload.as_deref().expect("a payload"))
                .expect("JSON")["n"]
                .as_i64()
                .expect("n")
        })
        .collect();
    assert_eq!(numbers, (1..=60).rev().collect::<Vec<i64>>(), "oldest first");
    // An id that is no UUID makes a stable one.
    assert_eq!(deliveries.iter().map(|one| one.id).collect::<std::collections::HashSet<_>>().len(), 60);
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// §2: every failure counts, whatever it is; FAILED when five is reached, one attempt for each turn of 500
/// ms; and the poison at the head of the table holds nobody up.
#[tokio::test(flavor = "multi_thread")]
async fn poison_counts_to_five_and_ends_failed_while_the_rest_flows() {
    let Some(ground) = ground().await else { return };
    ground.judge_by_topic();
    ground.audit(r#""Outbox""#).await;
    ground
        .execute(
            r#"insert into "Outbox" ("id", "topic", "payload", "createdAt")
               select kind || g, case kind when 'null' then null else kind end, '{}', (now() at time zone 'utc') - interval '1 h'
                 from unnest(array['refused', 'failing', 'null']) kind, generate_series(1, 10) g"#,
        )
        .await;
    ground.execute(r#"insert into "Outbox" ("id", "topic", "payload") select 'good' || g, 'good', '{}' from generate_series(1, 5) g"#).await;
    let relay = ground.relay("one").await;
    ground.until(r#"(select count(*) = 5 from "Outbox" where "status" = 'PROCESSED')"#).await;
    assert_eq!(
        ground.ask::<i64>(r#"select count(*) from "Outbox" where "status" = 'FAILED'"#).await,
        0,
        "the good did not wait"
    );
    ground.until(r#"(select count(*) = 30 from "Outbox" where "status" = 'FAILED' and "retries" = 5)"#).await;
    let counts = r#"select bool_and(counts = array[1, 2, 3, 4, 5]) from (select array_agg((row ->> 'retries')::int order by at) counts from audit where id not like 'good%' group by id) each"#;
    assert!(ground.ask::<bool>(counts).await, "one by one");
    let pace = "select min(gap) from (select extract(epoch from at - lag(at) over (partition by id order by at))::float8 gap from audit) gaps";
    let gap: f64 = ground.ask(pace).await;
    assert!(gap >= 0.45, "a turn lasts 500 ms: {gap}");
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// The statement of §3.1 sees what the document says while all this goes on; FAILED rows are not asked for
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn failed_rows_are_left_for_people() {
    let Some(ground) = ground().await else { return };
    ground.judge_by_topic();
    ground
        .execute(
            r#"insert into "Outbox" ("id", "topic", "payload", "status", "retries") values ('a', 'good', '{}', 'FAILED', 5), ('b', 'good', '{}', 'PENDING', 5), ('c', 'good', '{}', 'PENDING', 4)"#,
        )
        .await;
    let relay = ground.relay("one").await;
    ground.until(r#"(select "status" = 'PROCESSED' from "Outbox" where "id" = 'c')"#).await;
    eventually("two more turns", WAIT, async || {
        tokio::time::sleep(Duration::from_millis(50)).await; // pace
        ground.ask::<bool>(r#"select (now() at time zone 'utc') - "processedAt" > interval '1100 ms' from "Outbox" where "id" = 'c'"#).await.then_some(())
    })
    .await;
    assert_eq!(ground.broker.deliveries().len(), 1, "FAILED, and PENDING at the maximum, are nobody's work");
    drop(relay);
}
