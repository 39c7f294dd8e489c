//! "Outbox Architecture" of Talkie: `outbox`, claimed by `publishing`, to Kafka.

use crate::daemon::Daemon;
use crate::ground::{Service, WAIT, assert_delays, kafka};
use posthaste_testkit::conformance::eventually;

/// "Table Schema Summary". Open in the document: types, and the names of indexes.
const DDL: &str = "
  create type outbox_status as enum ('pending', 'publishing', 'published', 'failed', 'dead_lettered');
  create table outbox (
    id uuid primary key default gen_random_uuid(),
    topic text not null, key text, payload_json jsonb not null, idempotency_key text not null,
    status outbox_status not null default 'pending',
    retry_count int not null default 0, last_error text,
    last_attempt_at timestamptz, next_attempt_at timestamptz not null default now(),
    published_at timestamptz, created_at timestamptz not null default now(),
    unique (topic, idempotency_key));
  create index outbox_batch on outbox (next_attempt_at) where status in ('pending', 'failed');
  create index outbox_dlq on outbox (status) where status = 'dead_lettered';";

/// "Operational Examples".
const FAILED_OR_DEAD: &str = "
-- Find events that failed or entered the dead-letter state
SELECT *
FROM outbox
WHERE status IN ('failed', 'dead_lettered')
ORDER BY next_attempt_at;";
const SCHEDULED: &str = "
-- Inspect pending items scheduled for retry
SELECT *
FROM outbox
WHERE status = 'failed'
  AND next_attempt_at <= now();";

/// The events that a statement finds, by their idempotency keys.
fn found(service: &Service, statement: &str) -> Vec<String> {
    let rows = service.psql(statement);
    rows.iter().filter_map(|row| row.split('|').nth(4)).map(str::to_owned).collect()
}

/// The document's workflow from end to end; its operational examples find what it says they find.
#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_service_to_kafka() {
    let Some(service) = Service::new(DDL).await else { return };
    let Some(kafka) = kafka::shared().await else { return };
    kafka.create_topic("chat.sent", 3, 1, &[]).await.expect("a topic");
    kafka.create_topic("chat.small", 1, 1, &["max.message.bytes=1000"]).await.expect("a topic");
    service.watch("outbox").await;
    service
        .execute(
            "insert into outbox (topic, key, payload_json, idempotency_key) select 'chat.sent', 'room-' || g % 7, jsonb_build_object('n', g), 'k' || g from generate_series(1, 120) g;
             insert into outbox (topic, payload_json, idempotency_key) values ('chat.nobody', '{}', 'unknown'), ('', '{}', 'none'),
               ('chat.small', jsonb_build_object('x', (select string_agg(md5(random()::text), '') from generate_series(1, 200))), 'large');
             insert into outbox (topic, payload_json, idempotency_key, status, retry_count, last_error, next_attempt_at) values
               ('chat.sent', '{}', 'due', 'failed', 2, 'no broker', now() - interval '1 min'), ('chat.sent', '{}', 'later', 'failed', 2, 'no broker', now() + interval '1 h');
             insert into outbox (topic, payload_json, idempotency_key, status, last_attempt_at) values ('chat.sent', '{}', 'stuck', 'publishing', now() - interval '10 min')",
        )
        .await;
    assert_eq!(found(&service, FAILED_OR_DEAD), ["due", "later"]);
    assert_eq!(found(&service, SCHEDULED), ["due"]);
    let file = service.config("preset = \"talkie\"", &kafka::sink(kafka, kafka::PATIENT_MS), "");
    let relay = Daemon::start(&["--config", file.path()]);

    service.until("(select count(*) = 122 from outbox where status = 'published')").await;
    let marked = "select bool_and(published_at >= last_attempt_at and last_attempt_at >= created_at and retry_count = case idempotency_key when 'due' then 2 else 0 end)
        from outbox where status = 'published'";
    assert!(
        service.ask::<bool>(marked).await,
        "also what waited for a retry, and what a crash had left in `publishing`"
    );
    eventually("three dead-lettered", WAIT, async || {
        // Nobody waits for half a minute in a test.
        service.execute("update outbox set next_attempt_at = now() where status = 'failed' and idempotency_key <> 'later'").await;
        service.ask::<bool>("select count(*) = 3 from outbox where status = 'dead_lettered' and retry_count = 6").await.then_some(())
    })
    .await;
    for (key, code) in
        [("unknown", "kafka.no_topic: "), ("large", "kafka.too_large: "), ("none", "event.limits: ")]
    {
        let row = format!("idempotency_key = '{key}'");
        let id: String = service.ask(&format!("select id::text from outbox where {row}")).await;
        assert_delays(
            &service.delays(&id, "retry_count", "next_attempt_at").await,
            &[1.0, 2.0, 4.0, 8.0, 16.0],
            0.0,
        );
        let written = format!(
            "select starts_with(last_error, '{code}') and last_attempt_at is not null and published_at is null from outbox where {row}"
        );
        assert!(service.ask::<bool>(&written).await, "{key}");
    }
    let mut dead = found(&service, FAILED_OR_DEAD);
    assert_eq!(dead.pop().as_deref(), Some("later"), "its time is last");
    dead.sort();
    assert_eq!(dead, ["large", "none", "unknown"]);
    assert_eq!(found(&service, SCHEDULED), [""; 0]);
    let steps: String = service.ask("select string_agg(distinct (was ->> 'status') || ' ' || (now ->> 'status'), ', ') from watched where was ->> 'status' <> now ->> 'status'").await;
    assert_eq!(
        steps,
        "failed publishing, pending publishing, publishing dead_lettered, publishing failed, publishing published",
        "the document's state machine"
    );
    let records = kafka.dump("chat.sent").await.expect("the Java client reads");
    assert_eq!(records.len(), 122, "each once");
    let seventh = records.iter().find(|record| record.header("idempotency-key").as_deref() == Some("k7"));
    let seventh = seventh.expect("the logical event, by its key");
    assert_eq!(
        (seventh.key.as_deref(), seventh.value.as_deref()),
        (Some(&b"room-0"[..]), Some(&b"{\"n\": 7}"[..]))
    );
    relay.stop();
}
