//! Looking and acting: a table with a status, and one whose dead have a table of their own.

use crate::ground::Ground;
use posthaste::admin::{Actor, Admin, AdminError, DeadAct, DeadFilter};
use posthaste::sink::Level;
use posthaste_postgres::claim::{ClaimAdmin, audit_table, dead_letter_table, examine, table};

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
        Err(AdminError::Invalid { .. })
    ));
    ground.execute(&audit_table(&ground.layout)).await;
    assert_eq!(admin.dead_act(&denied, DeadAct::Replay, &actor(), 2).await.expect("replays"), 2, "by chunks");
    assert_eq!(admin.dead_act(&denied, DeadAct::Replay, &actor(), 2).await.expect("replays"), 1);
    assert_eq!(admin.dead_act(&denied, DeadAct::Replay, &actor(), 2).await.expect("replays"), 0);
    let back = "select count(*) = 3 and bool_and(retry_count = 0 and next_retry_at <= now() and published_at is null and created_at < now() - interval '50 min') from outbox_events where event_type = 'a.x'";
    assert!(ground.ask::<bool>(back).await);
    assert_eq!(admin.dead_act(&of("b.*"), DeadAct::Discard, &actor(), 10).await.expect("discards"), 2);
    assert_eq!(ground.ask::<i64>("select count(*) from outbox_events_dlq").await, 0);
    let acts: String = ground
        .ask("select string_agg(actor || ' ' || action || ' ' || reason || ' ' || (detail ->> 'count'), ', ' order by id) from posthaste_audit")
        .await;
    assert_eq!(
        acts, "test replay a test 2, test replay a test 1, test discard a test 2",
        "G6: a line for each chunk"
    );
    let named = "select bool_and(detail ->> 'table' = 'outbox_events' and jsonb_array_length(detail -> 'rows') = (detail ->> 'count')::int and detail -> 'filter' ->> 'topic' is not null) from posthaste_audit";
    assert!(ground.ask::<bool>(named).await);
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
    ground.execute(&audit_table(&ground.layout)).await;
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

/// G6: what cannot be written down is not done. The audit is a table beside the adopted one, or that of our
/// own log in the same database; an act and its line are there together, or neither is.
#[tokio::test(flavor = "multi_thread")]
async fn g6_an_act_without_an_audit_is_refused() {
    let Some(ground) = Ground::make("talkie", TALKIE).await else { return };
    ground.execute("insert into outbox (topic, status, retry_count) select 'a', 'dead_lettered', 6 from generate_series(1, 3)").await;
    let admin = admin(&ground).await;
    let dead = "select count(*) from outbox where status = 'dead_lettered'";
    let act = async |actor: Actor| admin.dead_act(&of("a"), DeadAct::Replay, &actor, 1).await;
    let told = act(actor()).await.expect_err("there is no audit").to_string();
    assert!(told.contains("CREATE TABLE \"posthaste_audit\"") && told.contains("Nothing was done"), "{told}");
    let nameless = Actor { reason: " ".to_owned(), ..actor() };
    assert!(
        matches!(act(nameless).await, Err(AdminError::Invalid { .. })),
        "an audit without a reason is none"
    );
    // One that takes no line: the act is rolled back with it.
    ground.execute(&audit_table(&ground.layout)).await;
    ground.execute("alter table posthaste_audit add check (actor <> 'test')").await;
    act(actor()).await.expect_err("the audit refuses it");
    assert_eq!(ground.ask::<i64>(dead).await, 3, "nothing was done");
    ground.execute("drop table posthaste_audit").await;
    posthaste_postgres::migrate::up(&ground.config(), &Default::default()).await.expect("our own log");
    assert_eq!(act(actor()).await.expect("replays"), 1);
    assert_eq!(ground.ask::<i64>(dead).await, 2);
    assert_eq!(ground.ask::<i64>("select count(*) from posthaste.audit where action = 'replay' and detail ->> 'table' = 'outbox'").await, 1);
}

/// What a column would have to tell, and nobody tells: refused before anything is claimed.
#[tokio::test(flavor = "multi_thread")]
async fn a_retention_that_could_delete_nothing_is_refused() {
    let ddl = r#"create table "Outbox" ("id" text primary key, "topic" text, "key" text, "payload" jsonb not null, "status" text not null default 'PENDING',
        "retries" integer not null default 0, "createdAt" timestamp(3) not null default current_timestamp, "processedAt" timestamp(3))"#;
    let Some(mut ground) = Ground::make("prisma-outbox", ddl).await else { return };
    ground.layout.keep_published = Some(std::time::Duration::from_secs(86_400));
    ground.store().await.expect("`processedAt` says when");
    ground.layout.keep_dead = ground.layout.keep_published;
    let told = ground.store().await.err().expect("nothing says when a row died").to_string();
    assert!(told.contains("`keep_dead_days` cannot be kept"), "{told}");
}

/// F27: rows that nobody marked are counted before a relay publishes them again.
#[tokio::test(flavor = "multi_thread")]
async fn f27_rows_that_wait_for_long_are_counted() {
    let Some(ground) = Ground::make("talkie", TALKIE).await else { return };
    ground.execute("insert into outbox (topic) values ('young')").await;
    let backlog = async || {
        let found = examine(&ground.config(), &ground.layout).await;
        found.into_iter().find(|finding| finding.check == "adopted_backlog").expect("it is checked")
    };
    assert_eq!(backlog().await.level, Level::Ok);
    ground.execute("insert into outbox (topic, created_at) select 'old', now() - interval '2 days' from generate_series(1, 1200)").await;
    ground.execute("insert into outbox (topic, created_at, status) select 'done', now() - interval '2 days', 'published' from generate_series(1, 50)").await;
    let told = backlog().await;
    assert!(told.level == Level::Warn && told.text.starts_with("1200 rows have waited"), "{}", told.text);
}
