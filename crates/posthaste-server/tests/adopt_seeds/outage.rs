//! Kafka goes away and comes back under the tables of three documents: no attempt is spent, nothing stays
//! claimed (F50).

use crate::daemon::Daemon;
use crate::ground::{Service, kafka};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Kafka, KafkaOptions};

/// A table, its preset, how rows get in, and rows that are done, or wait without a trace of an attempt.
struct Case {
    ddl: &'static str,
    preset: &'static str,
    insert: &'static str,
    done: &'static str,
    untouched: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        ddl: r#"create table "Outbox" ("id" text primary key, "topic" text, "key" text, "payload" jsonb not null, "status" text not null default 'PENDING',
            "retries" integer not null default 0, "createdAt" timestamp(3) not null default (now() at time zone 'utc'), "processedAt" timestamp(3))"#,
        preset: "prisma-outbox",
        insert: r#""Outbox" ("id", "topic", "payload") select gen_random_uuid()::text, 't', '{}'"#,
        done: r#""Outbox" where "status" = 'PROCESSED' and "retries" = 0"#,
        untouched: r#""Outbox" where "status" = 'PENDING' and "retries" = 0"#,
    },
    Case {
        ddl: "create table outbox_events (id uuid primary key, aggregate_type varchar(50) not null, aggregate_id uuid not null, event_type varchar(100) not null,
            payload jsonb not null, occurred_at timestamptz default now(), status varchar(20) default 'PENDING',
            retry_count int default 0, next_attempt_at timestamptz default now(), last_error text null, processed_at timestamptz null)",
        preset: "outbox-events",
        insert: "outbox_events (id, aggregate_type, aggregate_id, event_type, payload) select gen_random_uuid(), 'o', gen_random_uuid(), 't', '{}'",
        done: "outbox_events where status = 'PUBLISHED' and retry_count = 0",
        untouched: "outbox_events where status = 'PENDING' and retry_count = 0 and last_error is null",
    },
    Case {
        ddl: "create table outbox (id uuid primary key default gen_random_uuid(), topic text not null, key text, payload_json jsonb not null, idempotency_key text,
            status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
            next_attempt_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now())",
        preset: "talkie",
        insert: "outbox (topic, payload_json) select 't', '{}'",
        done: "outbox where status = 'published' and retry_count = 0",
        untouched: "outbox where status = 'pending' and retry_count = 0 and last_error is null and last_attempt_at is null",
    },
];

async fn insert(service: &Service, case: &Case) {
    service.execute(&format!("insert into {} from generate_series(1, 80)", case.insert)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f50_kafka_goes_away_and_no_attempt_is_spent() {
    let mut kafka = require_service!(Kafka::start(&KafkaOptions::default()).await);
    for topic in ["t", "o.t"] {
        kafka.create_topic(topic, 1, 1, &[]).await.expect("a topic");
    }
    let mut running = Vec::new();
    for case in CASES {
        let Some(service) = Service::new(case.ddl).await else { return };
        insert(&service, &case).await;
        let file = service.config(&format!("preset = \"{}\"", case.preset), &kafka::sink(&kafka, 5_000), "");
        let relay = Daemon::start(&["--config", file.path()]);
        service.until(&format!("(select count(*) = 80 from {})", case.done)).await;
        running.push((case, service, file, relay));
    }
    kafka.kill9().await.expect("killed");
    for (case, service, _, relay) in &running {
        insert(service, case).await;
        relay.says("publish failed");
        // Unlocked as well: whoever asks with SKIP LOCKED gets all of them.
        let free = format!(
            "(select count(*) = 80 from (select from {} for update skip locked) free)",
            case.untouched
        );
        service.until(&free).await;
    }
    kafka.start_again().await.expect("starts");
    for (case, service, _file, relay) in running {
        service.until(&format!("(select count(*) = 160 from {})", case.done)).await;
        relay.stop();
    }
}
