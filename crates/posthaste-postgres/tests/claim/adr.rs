//! Preset `outbox-events-adr`: `outbox_events` of an architecture decision record. No status; dead letters
//! have a table.

use crate::ground::{Ground, assert_delays};
use posthaste::relay::DrainOutcome;
use posthaste::retry::{Curve, RetryPolicy};
use posthaste::store::Store;
use posthaste_postgres::claim::{audit_table, dead_letter_table, table};
use std::time::Duration;

/// "Tabla actual (resumen esperado)" and "Indices necesarios".
const DDL: &str = "
  create table outbox_events (
    id uuid primary key default gen_random_uuid(), aggregate_type text not null, aggregate_id text not null, event_type text,
    payload jsonb not null, retry_count int not null default 0, next_retry_at timestamptz not null default now(),
    published_at timestamptz, created_at timestamptz not null default now(), updated_at timestamptz not null default now());
  create index idx_outbox_ready on outbox_events (next_retry_at) where published_at is null;
  create index idx_outbox_published_at on outbox_events (published_at);";

/// "Migraciones futuras".
const LATER: &str =
    "alter table outbox_events add last_error text, add last_error_at timestamptz, add error_class text";

fn insert(rows: usize, kind: &str) -> String {
    format!(
        "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload)
         select 'tenant', 't-' || g, '{kind}', jsonb_build_object('n', g) from generate_series(1, {rows}) g"
    )
}

/// The table, with the dead-letter table that `posthaste adopt sql` prints.
async fn ground(more: &str) -> Option<Ground> {
    let ground = Ground::make("outbox-events-adr", &format!("{DDL}{more}")).await?;
    let missing = ground.store().await.err().expect("there is no dead-letter table yet").to_string();
    assert!(missing.contains("outbox_events_dlq"), "{missing}");
    let found = table(&ground.app, &ground.layout.table).await.expect("looks").expect("is there");
    ground.execute(&dead_letter_table(&ground.layout, &found).expect("it has one")).await;
    Some(ground)
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_marked_by_published_at() {
    let Some(ground) = ground("").await else { return };
    ground.execute(&insert(120, "governance.changed")).await;
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 120 from outbox_events where published_at is not null)").await;
    let exact = "select bool_and(retry_count = 0 and published_at >= created_at and updated_at >= published_at - interval '1 s') from outbox_events";
    assert!(ground.ask::<bool>(exact).await);
    let deliveries = ground.broker.deliveries();
    assert_eq!((deliveries.len(), deliveries[0].destination.as_str()), (120, "governance.changed"));
    assert!(deliveries[0].headers.iter().any(|(name, value)| name == "aggregate_type" && value == "tenant"));
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

async fn backoff(curve: Curve, wanted: &[f64], jitter: f64) {
    let Some(mut ground) = ground(LATER).await else { return };
    ground.route.retry = RetryPolicy { curve, ..ground.layout.retry };
    ground.judge_by_topic();
    ground.audit("outbox_events").await;
    ground.execute(&insert(1, "x.failing")).await;
    let relay = ground.relay("one").await;
    ground.until(&format!("(select retry_count >= {} from outbox_events)", wanted.len())).await;
    drop(relay);
    let id: String = ground.ask("select id::text from outbox_events").await;
    let delays = ground.delays(&id, "retry_count", "next_retry_at").await;
    assert_delays(&delays[..wanted.len()], wanted, jitter);
    let written = "select last_error = 'test.failing: not now' and error_class = 'transient' and last_error_at is not null and published_at is null from outbox_events";
    assert!(ground.ask::<bool>(written).await);
}

/// `min(50 ms · 2^(n-1), 5 min)` and 0–20 % on top.
#[tokio::test(flavor = "multi_thread")]
async fn the_exponential_backoff() {
    backoff(Curve::Exponential, &[0.05, 0.1, 0.2, 0.4, 0.8], 0.2).await;
}

/// `50 ms · n`, as it was at first.
#[tokio::test(flavor = "multi_thread")]
async fn the_linear_backoff() {
    backoff(Curve::Linear, &[0.05, 0.1, 0.15, 0.2, 0.25], 0.2).await;
}

/// Permanent errors go to the dead-letter table at once, transient ones after the maximum; a table without
/// error columns loses nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_dead_are_moved_to_their_table() {
    let Some(mut ground) = ground("").await else { return };
    ground.route.retry = RetryPolicy { max_attempts: 3, ..ground.layout.retry };
    ground.judge_by_topic();
    ground.execute(&insert(2, "x.refused")).await;
    ground.execute(&insert(2, "x.failing")).await;
    ground.execute("insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) values ('tenant', 't', null, '{}')").await;
    ground.execute(&insert(5, "good")).await;
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 5 from outbox_events_dlq)").await;
    ground.until("(select count(*) = 5 from outbox_events where published_at is not null)").await;
    assert_eq!(ground.ask::<i64>("select count(*) from outbox_events").await, 5, "moved, not copied");
    let of = |kind: &str| {
        format!(
            "select string_agg(retry_count || ' ' || error_class || ' ' || last_error, ', ' order by payload ->> 'n') from outbox_events_dlq where {kind}"
        )
    };
    let refused: String = ground.ask(&of("event_type = 'x.refused'")).await;
    assert_eq!(refused, "1 permanent test.refused: never, 1 permanent test.refused: never");
    let failing: String = ground.ask(&of("event_type = 'x.failing'")).await;
    assert_eq!(failing, "3 transient test.failing: not now, 3 transient test.failing: not now");
    let null: String = ground.ask(&of("event_type is null")).await;
    assert_eq!(null, "0 permanent event.limits: topic is empty");
    assert!(ground.ask::<bool>("select bool_and(dead_at is not null and created_at is not null and published_at is null) from outbox_events_dlq").await);
    drop(relay);
}

/// Published rows go after N days, dead letters after their own; nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn retention_deletes_what_is_old_and_done() {
    let Some(mut ground) = ground("").await else { return };
    ground.layout.keep_published = Some(Duration::from_secs(7 * 86_400));
    ground.layout.keep_dead = Some(Duration::from_secs(30 * 86_400));
    ground.execute(&insert(3, "kept")).await;
    ground.execute("update outbox_events set published_at = now() - interval '6 days' where payload ->> 'n' = '1'; update outbox_events set created_at = now() - interval '1 year' where payload ->> 'n' = '2'").await;
    ground.execute("insert into outbox_events (aggregate_type, aggregate_id, event_type, payload, published_at) select 'a', 'b', 'old', '{}', now() - interval '8 days' from generate_series(1, 1200)").await;
    ground.execute("insert into outbox_events_dlq (id, aggregate_type, dead_at) values (gen_random_uuid(), 'old', now() - interval '31 days'), (gen_random_uuid(), 'young', now())").await;
    ground.execute(&audit_table(&ground.layout)).await;
    let store = ground.store().await.expect("connects");
    let swept = store.sweep().await.expect("sweeps");
    assert_eq!((swept.purged, swept.dead_purged), (1_201, 1));
    assert_eq!(ground.ask::<i64>("select count(*) from outbox_events").await, 3);
    assert_eq!(
        ground.ask::<String>("select string_agg(aggregate_type, ',') from outbox_events_dlq").await,
        "young"
    );
    let noted: String = ground
        .ask("select string_agg(actor || ' ' || action || ' ' || (detail ->> 'table') || ' ' || (detail ->> 'count'), ', ') from posthaste_audit")
        .await;
    assert_eq!(noted, "retention purge outbox_events 1", "what nobody acted on leaves a line, too");
}
