//! Looking and acting: a table with a status, and one whose dead have a table of their own.

use crate::ground::Ground;
use posthaste::admin::{Actor, Admin, AdminError, DeadAct, DeadFilter};
use posthaste::sink::Level;
use posthaste_postgres::claim::{ClaimAdmin, dead_letter_table, examine, table};

const ADR: &str = "create table outbox_events (id uuid primary key default gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text, payload jsonb,
    retry_count int not null default 0, next_retry_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now(),
    updated_at timestamptz not null default now())";
const TALKIE: &str = "create table outbox (id bigint primary key generated always as identity, topic text, key text, payload_json jsonb not null default '{}',
    idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
    next_attempt_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now())";

fn actor() -> Actor {
    Actor { name: "test".to_owned(), reason: "a test".to_owned() }
}

async fn admin(ground: &Ground) -> ClaimAdmin {
    ClaimAdmin::connect(ground.config(), ground.layout.clone(), "s".into()).await.expect("the admin connects")
}

fn of(topic: &str) -> DeadFilter {
    DeadFilter { topic: Some(topic.to_owned()), ..DeadFilter::default() }
}

/// A replay moves rows back the way they came, with no attempt spent; a relay delivers them.
#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_of_a_table_of_their_own() {
    let Some(ground) = Ground::make("outbox-events-adr", ADR).await else { return };
    let found = table(&ground.app, &ground.layout.table).await.expect("looks").expect("is there");
    ground.execute(&dead_letter_table(&ground.layout, &found).expect("it has one")).await;
    ground.execute("insert into outbox_events_dlq (id, aggregate_type, aggregate_id, event_type, payload, retry_count, next_retry_at, created_at, updated_at, last_error, error_class)
        select gen_random_uuid(), 'tenant', 'k' || g, case when g < 4 then 'a.x' else 'b.x' end, jsonb_build_object('n', g), 9, now(), now() - interval '1 h', now(), 'nats.denied: no', 'permanent' from generate_series(1, 5) g").await;
    ground.execute("insert into outbox_events (aggregate_type, aggregate_id, event_type, payload, next_retry_at) values ('t', 'k', 'later', '{}', now() + interval '1 h'), ('t', 'k', 'due', '{}', now() - interval '1 min')").await;
    let admin = admin(&ground).await;
    let status = admin.status().await.expect("status");
    let sink = &status.sinks[0];
    assert_eq!((sink.backlog.count, sink.deferred.count, sink.dead.count), (1, 1, 5));
    let page = admin.dead_list(&of("*"), 0, 3).await.expect("lists");
    let rest = admin.dead_list(&of("*"), page[2].cursor, 3).await.expect("lists");
    assert_eq!((page.len(), rest.len()), (3, 2));
    assert_eq!(
        (page[0].error_code.as_str(), page[0].error.as_str(), page[0].attempts),
        ("nats.denied", "no", 9)
    );
    let shown = admin.dead_show(page[0].id).await.expect("shows");
    assert!(shown[0].payload.as_deref().is_some_and(|payload| payload.starts_with(b"{\"n\"")));
    let denied = DeadFilter { code: Some("nats.denied".to_owned()), ..of("a.*") };
    assert_eq!(admin.dead_count(&denied).await.expect("counts"), 3);
    assert!(matches!(
        admin.dead_act(&DeadFilter::default(), DeadAct::Discard, &actor(), 10).await,
        Err(AdminError::Invalid(_))
    ));
    assert_eq!(admin.dead_act(&denied, DeadAct::Replay, &actor(), 2).await.expect("replays"), 2, "by chunks");
    assert_eq!(admin.dead_act(&denied, DeadAct::Replay, &actor(), 2).await.expect("replays"), 1);
    assert_eq!(admin.dead_act(&denied, DeadAct::Replay, &actor(), 2).await.expect("replays"), 0);
    let back = "select count(*) = 3 and bool_and(retry_count = 0 and next_retry_at <= now() and published_at is null and created_at < now() - interval '50 min') from outbox_events where event_type = 'a.x'";
    assert!(ground.ask::<bool>(back).await);
    assert_eq!(admin.dead_act(&of("b.*"), DeadAct::Discard, &actor(), 10).await.expect("discards"), 2);
    assert_eq!(ground.ask::<i64>("select count(*) from outbox_events_dlq").await, 0);
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 4 from outbox_events where published_at is not null)").await;
    drop(relay);
}

/// By a status: back to `pending`, and only the dead. An id that is no UUID is found by the event's id.
#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_by_their_status() {
    let Some(ground) = Ground::make("talkie", TALKIE).await else { return };
    ground.execute("insert into outbox (topic, status, retry_count, last_error) values ('a', 'dead_lettered', 6, 'x.no: never'), ('a', 'failed', 3, 'x.no: never'), ('a', 'odd', 0, null), (null, 'dead_lettered', 6, 'event.limits: topic is empty')").await;
    let admin = admin(&ground).await;
    let listed = admin.dead_list(&of("a"), 0, 10).await.expect("lists");
    assert_eq!(listed.len(), 1);
    let one = DeadFilter { ids: vec![listed[0].id], ..DeadFilter::default() };
    assert_eq!(admin.dead_act(&one, DeadAct::Replay, &actor(), 10).await.expect("replays"), 1);
    let states: String =
        ground.ask("select string_agg(status || ' ' || retry_count, ', ' order by id) from outbox").await;
    assert_eq!(states, "pending 0, failed 3, odd 0, dead_lettered 6");
    let elsewhere = DeadFilter { sink: Some("other".to_owned()), ..of("*") };
    assert_eq!(admin.dead_act(&elsewhere, DeadAct::Discard, &actor(), 10).await.expect("nothing"), 0);
    let findings = examine(&ground.config(), &ground.layout).await;
    let level =
        |check: &str| findings.iter().find(|finding| finding.check == check).map(|finding| finding.level);
    assert_eq!(level("adopted_table"), Some(Level::Ok));
    assert_eq!(level("adopted_rehearsal"), Some(Level::Ok));
    assert_eq!(level("adopted_index"), Some(Level::Warn), "there is none");
    assert_eq!(level("adopted_status"), Some(Level::Warn), "somebody wrote `odd`");
}
