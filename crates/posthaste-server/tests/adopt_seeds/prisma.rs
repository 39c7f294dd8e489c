//! "Outbox Relay Job Design (V2)": a Prisma model `Outbox`, to Kafka.

use crate::daemon::Daemon;
use crate::ground::{Service, kafka};
use std::collections::HashSet;

/// What Prisma makes of the model. Open in the document: `topic`, `key`, `payload`, and that a row may lack
/// its topic.
const DDL: &str = r#"
  create type "OutboxStatus" as enum ('PENDING', 'PROCESSED', 'FAILED');
  create table "Outbox" (
    "id" text primary key, "topic" text, "key" text, "payload" jsonb not null, "status" "OutboxStatus" not null default 'PENDING',
    "retries" integer not null default 0, "createdAt" timestamp(3) not null default (now() at time zone 'utc'), "processedAt" timestamp(3));
  create index "Outbox_status_createdAt_idx" on "Outbox" ("status", "createdAt")"#;

/// §3.1, the fetch.
const FETCH: &str =
    r#"SELECT "id" FROM "Outbox" WHERE "status" = 'PENDING' AND "retries" < 5 ORDER BY "createdAt" LIMIT 20"#;

/// Poison at the head of the table: a topic that does not exist, a record that its topic does not take, no
/// topic at all.
const POISON: &str = r#"insert into "Outbox" ("id", "topic", "payload", "createdAt") values
  ('unknown', 'matches.nobody', '{}', '2026-01-29 10:00:00'),
  ('large', 'matches.small', jsonb_build_object('x', (select string_agg(md5(random()::text), '') from generate_series(1, 200))), '2026-01-29 10:00:01'),
  ('none', null, '{}', '2026-01-29 10:00:02')"#;

const GOOD: &str = r#"insert into "Outbox" ("id", "topic", "key", "payload") select 'cl' || lpad(g::text, 3, '0'), 'matches.updated', 'match-' || g % 5,
  jsonb_build_object('n', g) from generate_series(1, 60) g"#;

/// §2: each message by itself. What Kafka acknowledges is PROCESSED at once, what fails counts and stays
/// PENDING, and is FAILED when five is reached; the rest never waits for it. People mend what is FAILED in
/// SQL.
#[tokio::test(flavor = "multi_thread")]
async fn the_relay_job_to_kafka() {
    let Some(service) = Service::new(DDL).await else { return };
    let Some(kafka) = kafka::shared().await else { return };
    kafka.create_topic("matches.updated", 3, 1, &[]).await.expect("a topic");
    kafka.create_topic("matches.small", 1, 1, &["max.message.bytes=1000"]).await.expect("a topic");
    service.watch(r#""Outbox""#).await;
    service.execute(POISON).await;
    service.execute(GOOD).await;
    let fetched = service.psql(FETCH);
    assert_eq!((fetched.len(), &fetched[..3]), (20, &["unknown", "large", "none"].map(str::to_owned)[..]));
    let file = service.config("preset = \"prisma-outbox\"", &kafka::sink(kafka, kafka::PATIENT_MS), "");
    let relay = Daemon::start(&["--config", file.path()]);

    service.until(r#"(select count(*) = 60 from "Outbox" where "status" = 'PROCESSED')"#).await;
    let marked = r#"select bool_and("retries" = 0 and "processedAt" >= "createdAt" and "processedAt" <= (now() at time zone 'utc') + interval '1 s')
        from "Outbox" where "status" = 'PROCESSED'"#;
    assert!(service.ask::<bool>(marked).await);
    service.until(r#"(select count(*) = 3 from "Outbox" where "status" = 'FAILED' and "retries" = 5 and "processedAt" is null)"#).await;
    let counted = "select bool_and(counts = array[1, 2, 3, 4, 5]) and count(*) = 3 from
        (select array_agg((now ->> 'retries')::int order by at) counts from watched where id in ('unknown', 'large', 'none') group by id) each";
    assert!(service.ask::<bool>(counted).await, "one by one");
    let turn = "select min(gap) from (select extract(epoch from at - lag(at) over (partition by id order by at))::float8 gap
        from watched where now ->> 'status' <> 'PROCESSED') gaps";
    assert!(service.ask::<f64>(turn).await >= 0.45, "one attempt for each turn of 500 ms");
    assert_eq!(service.psql(FETCH), [""; 0], "FAILED rows are not asked for any more");

    let records = kafka.dump("matches.updated").await.expect("the Java client reads");
    let ids: HashSet<_> = records.iter().filter_map(|record| record.header("Message-ID")).collect();
    assert_eq!((records.len(), ids.len()), (60, 60), "each once");
    let first =
        records.iter().find(|record| record.value.as_deref() == Some(b"{\"n\": 7}")).expect("it is there");
    assert_eq!(first.key.as_deref(), Some(&b"match-2"[..]));
    assert_eq!(first.header("content-type").as_deref(), Some("application/json"));

    // §2.2: corrected by hand.
    kafka.create_topic("matches.nobody", 1, 1, &[]).await.expect("a topic");
    service
        .execute(r#"update "Outbox" set "status" = 'PENDING', "retries" = 0 where "id" = 'unknown'"#)
        .await;
    // The client may need another turn before it believes in the topic.
    service.until(r#"(select "status" = 'PROCESSED' from "Outbox" where "id" = 'unknown')"#).await;
    assert_eq!(kafka.dump("matches.nobody").await.expect("the Java client reads").len(), 1);
    relay.stop();
}
