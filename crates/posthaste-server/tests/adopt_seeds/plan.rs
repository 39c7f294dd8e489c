//! "Implementation Plan - Transactional Outbox Pattern": `outbox_events` with PENDING, PUBLISHED and FAILED,
//! to Kafka.

use crate::daemon::Daemon;
use crate::ground::{Service, WAIT, assert_delays, kafka};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::services::Kafka;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// §2.1 and §2.2 to the letter.
const DDL: &str = "
  create table outbox_events (
    id uuid primary key, aggregate_type varchar(50) not null, aggregate_id uuid not null, event_type varchar(100) not null,
    payload jsonb not null, occurred_at timestamptz default now(), status varchar(20) default 'PENDING',
    retry_count int default 0, next_attempt_at timestamptz default now(), last_error text null, processed_at timestamptz null);
  create index idx_outbox_poll on outbox_events (status, next_attempt_at asc);
  create index idx_outbox_aggregate on outbox_events (aggregate_type, aggregate_id)";

/// §3.1, the poll.
const POLL: &str = "
    SELECT id, payload FROM outbox_events
    WHERE status = 'PENDING' AND next_attempt_at <= NOW()
    ORDER BY next_attempt_at ASC
    LIMIT 50
    FOR UPDATE SKIP LOCKED;";

/// §3.3, what alerting monitors.
const FAILED: &str = "SELECT count(*) FROM outbox_events WHERE status = 'FAILED'";

fn insert(rows: usize, kind: &str, payload: &str) -> String {
    format!(
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         select gen_random_uuid(), 'Order', gen_random_uuid(), '{kind}', {payload} from generate_series(1, {rows}) g"
    )
}

/// §3: published with the id as `messageId` in the body; a failure backs off by powers of two and is FAILED
/// when five is exceeded; the poll sees what the plan says it sees.
#[tokio::test(flavor = "multi_thread")]
async fn the_worker_to_kafka() {
    let Some(service) = Service::new(DDL).await else { return };
    let Some(kafka) = kafka::shared().await else { return };
    kafka.create_topic("Order.Placed", 3, 1, &[]).await.expect("a topic");
    kafka.create_topic("Order.Small", 1, 1, &["max.message.bytes=1000"]).await.expect("a topic");
    service.watch("outbox_events").await;
    service.execute(&insert(120, "Placed", "jsonb_build_object('n', g)")).await;
    service.execute(&insert(1, "Nobody", "'{}'")).await;
    service.execute(&insert(1, "Small", "jsonb_build_object('x', (select string_agg(md5(random()::text), '') from generate_series(1, 200)))")).await;
    service.execute(&insert(1, "Placed", "'[\"no object\"]'")).await;
    service.execute("update outbox_events set next_attempt_at = now() - interval '1 min' where event_type <> 'Placed'").await;
    service.execute(&insert(1, "Placed", "'{\"n\": \"later\"}'")).await;
    service.execute("update outbox_events set next_attempt_at = now() + interval '1 h' where payload ->> 'n' = 'later'").await;
    let polled = service.psql(POLL);
    assert_eq!(polled.len(), 50);
    assert!(
        polled[0].contains("|{") && !polled.iter().any(|row| row.contains("later")),
        "due, and in order: {polled:?}"
    );
    let file = service.config("preset = \"outbox-events\"", &kafka::sink(kafka, kafka::PATIENT_MS), "");
    let relay = Daemon::start(&["--config", file.path()]);

    service.until("(select count(*) = 120 from outbox_events where status = 'PUBLISHED')").await;
    let marked = "select bool_and(retry_count = 0 and last_error is null and processed_at >= occurred_at) from outbox_events where status = 'PUBLISHED'";
    assert!(service.ask::<bool>(marked).await);
    eventually("three FAILED", WAIT, async || {
        // Nobody waits for half a minute in a test.
        service.execute("update outbox_events set next_attempt_at = now() where status = 'PENDING' and retry_count > 0").await;
        (service.psql(FAILED) == ["3"]).then_some(())
    })
    .await;
    for (kind, code) in
        [("Nobody", "kafka.no_topic: "), ("Small", "kafka.too_large: "), ("Placed", "payload.not_object: ")]
    {
        let row = format!("event_type = '{kind}' and status = 'FAILED'");
        let id: String = service.ask(&format!("select id::text from outbox_events where {row}")).await;
        assert_delays(
            &service.delays(&id, "retry_count", "next_attempt_at").await,
            &[1.0, 2.0, 4.0, 8.0, 16.0],
            0.0,
        );
        let written = format!(
            "select retry_count = 6 and processed_at is null and starts_with(last_error, '{code}') from outbox_events where {row}"
        );
        assert!(service.ask::<bool>(&written).await, "{kind}");
    }
    assert_eq!(service.psql(POLL), [""; 0], "nothing is due: the last PENDING row has its time");
    assert_eq!(service.psql("SELECT payload ->> 'n' FROM outbox_events WHERE status = 'PENDING'"), ["later"]);

    let records = kafka.dump("Order.Placed").await.expect("the Java client reads");
    assert_eq!(records.len(), 120, "each once");
    for record in &records {
        let body: serde_json::Value =
            serde_json::from_slice(record.value.as_deref().expect("a value")).expect("JSON");
        assert!(body["n"].is_number());
        assert_eq!(body["messageId"].as_str(), record.header("Message-ID").as_deref(), "§3.1");
    }
    relay.stop();
}

/// The worker of §3.1, in twenty lines: one transaction a batch, published by somebody else's client.
async fn worker(service: &Service, kafka: &Kafka, stop: &AtomicBool) -> Vec<String> {
    let mut client = service.database.connect().await.expect("a connection");
    let mut published = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let tx = client.transaction().await.expect("BEGIN");
        for row in tx.query(POLL.trim_end_matches(';'), &[]).await.expect("poll") {
            let id: uuid::Uuid = row.get(0);
            let body = serde_json::json!({ "messageId": id }).to_string();
            kafka.produce(&[], "Beside.Placed", "", &body).await.expect("published");
            let done = "UPDATE outbox_events SET status = 'PUBLISHED', processed_at = NOW() WHERE id = $1";
            tx.execute(done, &[&id]).await.expect("update");
            published.push(id.to_string());
        }
        tx.commit().await.expect("COMMIT");
        tokio::task::yield_now().await;
    }
    published
}

/// The plan's own worker and two relays of ours on one table, into one topic: no row is published by two of
/// them.
#[tokio::test(flavor = "multi_thread")]
async fn the_owners_worker_runs_beside_ours() {
    let Some(service) = Service::new(DDL).await else { return };
    let Some(kafka) = kafka::shared().await else { return };
    kafka.create_topic("Beside.Placed", 1, 1, &[]).await.expect("a topic");
    let service = Arc::new(service);
    let file = service.config("preset = \"outbox-events\"", &kafka::sink(kafka, kafka::PATIENT_MS), "");
    let relays = [(); 2].map(|()| Daemon::start(&["--config", file.path()]));
    for relay in &relays {
        relay.says("lane taken");
    }
    let (stop, theirs) = (Arc::new(AtomicBool::new(false)), Arc::clone(&service));
    let flag = Arc::clone(&stop);
    let worker = tokio::spawn(async move { worker(&theirs, kafka, &flag).await });
    for _ in 0..20 {
        let rows = insert(100, "Placed", "'{}'").replace("'Order'", "'Beside'");
        service.execute(&rows).await;
        // Each batch while the one before is worked on.
        service.until("(select count(*) < 80 from outbox_events where status = 'PENDING')").await;
    }
    service.until("(select count(*) = 2000 from outbox_events where status = 'PUBLISHED')").await;
    stop.store(true, Ordering::Relaxed);
    let theirs: HashSet<String> = worker.await.expect("the worker").into_iter().collect();
    for relay in relays {
        relay.stop();
    }
    let records = kafka.dump("Beside.Placed").await.expect("the Java client reads");
    let ours: Vec<String> = records.iter().filter_map(|record| record.header("Message-ID")).collect();
    assert_eq!(records.len(), 2_000, "each once, whoever it was");
    assert!(!ours.is_empty() && !theirs.is_empty(), "both worked: {} and {}", ours.len(), theirs.len());
    assert!(ours.iter().all(|id| !theirs.contains(id)), "none by both");
}
