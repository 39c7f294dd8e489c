//! Which rows are handed over, and what becomes of them in the log.

use super::{TALKIE, actor, ground, handover, started};
use crate::ground::Ground;
use posthaste::route::Filter;
use posthaste::{Event, Headers};
use posthaste_postgres::claim::preview;
use posthaste_testkit::services::Version;

const PRISMA: &str = r#"
  do $$ begin execute format('alter database %I set timezone = ''Asia/Tokyo''', current_database()); end $$;
  create type "OutboxStatus" as enum ('PENDING', 'PROCESSED', 'FAILED');
  create table "Outbox" ("id" text primary key, "topic" text, "key" text, "payload" jsonb not null,
    "status" "OutboxStatus" not null default 'PENDING', "retries" integer not null default 0,
    "createdAt" timestamp(3) not null default (now() at time zone 'utc'), "processedAt" timestamp(3))"#;
const ADR: &str = "create table outbox_events (id uuid primary key default gen_random_uuid(), aggregate_type text, aggregate_id text,
    event_type text, payload jsonb not null, retry_count int not null default 0, next_retry_at timestamptz not null default now(),
    published_at timestamptz, created_at timestamptz not null default now(), updated_at timestamptz not null default now())";
pub(super) const PLAN: &str = "create table outbox_events (id uuid primary key, aggregate_type varchar(50) not null, aggregate_id uuid not null,
    event_type varchar(100) not null, payload jsonb not null, occurred_at timestamptz default now(), status varchar(20) default 'PENDING',
    retry_count int default 0, next_attempt_at timestamptz default now(), last_error text null, processed_at timestamptz null)";
const DEBEZIUM: &str = "create table outbox (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
    type varchar(255) not null, payload jsonb)";
pub(super) const OPEN: &str = "create table openoutbox_events (event_id uuid primary key default gen_random_uuid(), event_type text not null,
    partition_key text, payload bytea not null, headers jsonb, created_at timestamptz not null default now(),
    status text not null default 'PENDING', delivered_at timestamptz, attempts int not null default 0,
    available_at timestamptz not null default now(), locked_by text, locked_at timestamptz, last_error text)";

/// A preset, its owners' DDL, a row, and what its owners see of a published one.
const CASES: [(&str, &str, &str, &str); 6] = [
    (
        "prisma-outbox",
        PRISMA,
        r#"insert into "Outbox" ("id", "topic", "key", "payload") values ('cl-1', 'match.it''s', '', '{"b": 1, "a": "é\\\""}')"#,
        r#"(select "status" = 'PROCESSED' and "retries" = 0 and "processedAt" between (now() at time zone 'utc') - interval '1 min' and (now() at time zone 'utc') + interval '1 s' from "Outbox")"#,
    ),
    (
        "outbox-events-adr",
        ADR,
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload, updated_at) values ('0192f7a0-5c1e-7a3e-b1f2-000000000001', null, 't-1', 'governance.changed', '[1, null]', now() - interval '1 h')",
        "(select published_at is not null and retry_count = 0 and updated_at > now() - interval '1 min' from outbox_events)",
    ),
    (
        "outbox-events",
        PLAN,
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload) values ('0192f7a0-5c1e-7a3e-b1f2-000000000002', 'Order', '0192f7a0-5c1e-7a3e-b1f2-000000000003', 'OrderPlaced', '{}')",
        "(select status = 'PUBLISHED' and processed_at >= occurred_at and retry_count = 0 from outbox_events)",
    ),
    (
        "talkie",
        TALKIE,
        "insert into outbox (id, topic, key, payload_json, idempotency_key) values ('0192f7a0-5c1e-7a3e-b1f2-000000000004', 'chat.sent', 'room-1', '{}', 'k')",
        "(select status = 'published' and published_at >= created_at and last_attempt_at is not null and retry_count = 0 from outbox)",
    ),
    (
        "debezium-outbox",
        DEBEZIUM,
        "insert into outbox values ('0192f7a0-5c1e-7a3e-b1f2-000000000005', 'order', '7', 'OrderCreated', null)",
        "(select count(*) = 0 from outbox)",
    ),
    (
        "open-outbox",
        OPEN,
        r#"insert into openoutbox_events (event_id, event_type, partition_key, payload, headers) values ('0192f7a0-5c1e-7a3e-b1f2-000000000006', 'user.created', 'u', '\x00ff', '{"trace": "t"}')"#,
        "(select status = 'DELIVERED' and delivered_at is not null and locked_by is null and locked_at is null from openoutbox_events)",
    ),
];

/// The event that a claim makes of the only row.
async fn claimed(ground: &Ground) -> Event {
    let mut found = preview(&ground.config(), &ground.layout, &Filter::Everything).await.expect("a look");
    assert_eq!(found.len(), 1, "one row is due");
    let (stored, _) = found.remove(0);
    assert_eq!(stored.defect, None);
    sorted(stored.event)
}

/// Headers have an order, and jsonb has its own.
fn sorted(mut event: Event) -> Event {
    let mut headers: Vec<(String, String)> =
        event.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    headers.sort();
    event.headers = headers.into_iter().collect();
    event
}

/// What is in the log.
pub(super) async fn logged(ground: &Ground) -> Vec<Event> {
    let sql =
        "select id, topic, key, headers::text, content_type, payload from posthaste.outbox order by seq";
    let rows = ground.app.query(sql, &[]).await.expect("the log");
    let event = |row: &tokio_postgres::Row| Event {
        key: row.get(2),
        headers: row.get::<_, Option<&str>>(3).map_or_else(Headers::new, |text| {
            Headers::from_json(text.as_bytes()).expect("an object of strings")
        }),
        content_type: row.get(4),
        payload: row.get::<_, Option<Vec<u8>>>(5).map(Into::into),
        ..Event::bare(row.get(0), row.get::<_, String>(1))
    };
    rows.iter().map(event).map(sorted).collect()
}

/// Every preset: the very event that the claim makes of the same row, and a row that looks published.
#[tokio::test(flavor = "multi_thread")]
async fn the_event_is_the_one_that_the_claim_would_have_made() {
    for (preset, ddl, insert, done) in CASES {
        let Some(ground) = ground(preset, ddl).await else { return };
        ground.execute(insert).await;
        let expected = claimed(&ground).await;
        let table = ground.layout.table.name.clone();
        let _handover = started(&ground).await;
        assert_eq!(logged(&ground).await, [], "{preset}: older rows stay with the claim");
        ground.execute(&format!("delete from \"{table}\"")).await;
        ground.execute(insert).await;
        assert_eq!(logged(&ground).await, [expected], "{preset}");
        assert!(ground.ask::<bool>(&format!("select {done}")).await, "{preset}: as its owners expect");
        let left = preview(&ground.config(), &ground.layout, &Filter::Everything).await.expect("a look");
        assert_eq!(left.len(), 0, "{preset}: nothing is left for the claim");
    }
}

/// What a transaction does to a row before it commits is what counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_goes_as_it_is_committed() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let _handover = started(&ground).await;
    let row = "insert into outbox (topic, payload_json, idempotency_key) values";
    // As libraries that map objects write: a row, and then all of its columns again.
    ground.execute(&format!("begin; {row} ('t', '1', 'a'); update outbox set payload_json = '2', status = 'pending' where idempotency_key = 'a'; commit")).await;
    ground
        .execute(&format!(
            "begin; {row} ('t', '3', 'b'); delete from outbox where idempotency_key = 'b'; commit"
        ))
        .await;
    ground.execute(&format!("begin; {row} ('t', '4', 'c'); rollback")).await;
    ground
        .execute(&format!(
            "begin; savepoint s; {row} ('t', '5', 'd'); rollback to s; {row} ('t', '6', 'e'); commit"
        ))
        .await;
    let payloads: Vec<String> = logged(&ground)
        .await
        .iter()
        .map(|one| String::from_utf8_lossy(one.payload.as_deref().unwrap_or_default()).into_owned())
        .collect();
    assert_eq!(payloads, ["2", "6"]);
    assert_eq!(ground.ask::<i64>("select count(*) from outbox where status = 'published'").await, 2);
}

/// A row that is not there has no event, and a mark never moves to a row that nobody published.
#[tokio::test(flavor = "multi_thread")]
async fn upserts_hand_over_what_they_insert() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    ground
        .execute("insert into outbox (topic, payload_json, idempotency_key) values ('t', '1', 'old')")
        .await;
    let _handover = started(&ground).await;
    let upsert = "insert into outbox (topic, payload_json, idempotency_key) values ('t', '2', 'old'), ('t', '3', 'new') on conflict (topic, idempotency_key)";
    ground.execute(&format!("{upsert} do nothing")).await;
    ground
        .execute(&format!(
            "{upsert} do update set payload_json = excluded.payload_json, status = excluded.status"
        ))
        .await;
    assert_eq!(logged(&ground).await.len(), 1, "the one that was inserted");
    // The older row waits as before. The newer one was set back by the second upsert: it belongs to the claim
    // again.
    let waiting = "select string_agg(idempotency_key, ',' order by idempotency_key) from outbox where status = 'pending'";
    assert_eq!(ground.ask::<String>(waiting).await, "new,old");
}

/// What the claim would leave alone is not touched. What has no topic goes, and is buried there.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_claim_would_leave_alone_stay() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    ground.execute("alter table outbox alter next_attempt_at drop not null").await;
    let _handover = started(&ground).await;
    ground
        .execute(
            "insert into outbox (topic, payload_json, status, next_attempt_at) values
               ('done', '{}', 'published', now()), ('dead', '{}', 'dead_lettered', now()), (null, '{}', 'pending', now()),
               ('', '{}', 'pending', now()), ('no.time', '{}', 'pending', null), ('never', '{}', 'pending', 'infinity'),
               ('later', '{}', 'pending', now() + interval '1 h'), ('now', null, 'failed', now())",
        )
        .await;
    let topics: Vec<String> = logged(&ground).await.into_iter().map(|event| event.topic).collect();
    assert_eq!(topics, ["", "", "later", "now"]);
    let times = "select string_agg(coalesce(extract(epoch from deliver_at - appended_at)::int::text, 'now'), ',' order by seq) from posthaste.outbox";
    assert_eq!(ground.ask::<String>(times).await, "now,now,3600,now");
    assert_eq!(ground.ask::<i64>("select count(*) from outbox where status = 'pending'").await, 2);
}

/// Headers in a text column: what is JSON travels, what is not goes as it is, for the log to bury.
#[tokio::test(flavor = "multi_thread")]
async fn headers_that_are_text_are_parsed_or_buried() {
    let ddl = OPEN.replace("headers jsonb", "headers text");
    let Some(ground) = ground("open-outbox", &ddl).await else { return };
    let _handover = started(&ground).await;
    ground
        .execute(
            r#"insert into openoutbox_events (event_type, payload, headers) values
                 ('a', 'x', '{"trace": "t"}'), ('b', 'x', null), ('c', 'x', 'no json'), ('d', 'x', '[1]'), ('e', 'x', '')"#,
        )
        .await;
    let seen = "select string_agg(topic || '=' || coalesce(headers::text, ''), ' ' order by seq) from posthaste.outbox";
    assert_eq!(ground.ask::<String>(seen).await, r#"a={"trace": "t"} b= c="no json" d=[1] e="""#);
    assert_eq!(ground.ask::<i64>("select count(*) from openoutbox_events where status = 'PENDING'").await, 0);
}

/// A layout of one's own: a number as the key, a template with quotes, names in need of quotes, a condition,
/// many headers.
#[tokio::test(flavor = "multi_thread")]
async fn a_layout_of_ones_own() {
    let columns: Vec<String> = (0..60).map(|n| format!("\"H {n}\" int default {n}")).collect();
    let ddl = format!(
        "create schema \"My App\"; create table \"My App\".\"Out $hand_over$ Box\" (\"Id\" bigint primary key generated always as identity,
           \"Kind\" text, \"Body\" text, \"Sent\" timestamp, \"At\" timestamptz, held boolean not null default false, {})",
        columns.join(", ")
    );
    let Some(mut ground) = Ground::make("talkie", &ddl).await else { return };
    super::set_up_log(&ground).await;
    let name = posthaste_postgres::claim::TableName::parse("My App.Out $hand_over$ Box").expect("a name");
    let topic = posthaste_postgres::claim::TopicSource::parse("it's.{Kind}").expect("a template");
    let mut layout = posthaste_postgres::claim::Layout::new(name, "Id", topic, "Body");
    layout.column.published_at = Some("Sent".to_owned());
    layout.dead_letters = Some(posthaste_postgres::claim::TableName::named("dead"));
    layout.condition = Some("not held".to_owned());
    layout.header_columns = (0..60).map(|n| (format!("h{n}"), format!("H {n}"))).collect();
    layout.header_columns.push(("at".to_owned(), "At".to_owned()));
    ground.layout = layout;
    ground.execute("create table dead (\"Id\" bigint primary key)").await;
    // Another time zone and style than ours, as an application may have.
    ground.execute("set timezone = 'Asia/Tokyo'; set datestyle = 'German'").await;
    let insert = "insert into \"My App\".\"Out $hand_over$ Box\" (\"Id\", \"Kind\", \"Body\", \"At\") overriding system value values (7, 'x', 'é', '2026-01-02 03:04:05+00')";
    ground.execute(insert).await;
    let expected = claimed(&ground).await;
    let mut handover = started(&ground).await;
    ground.execute("delete from \"My App\".\"Out $hand_over$ Box\"").await;
    ground.execute(insert).await;
    ground.execute("insert into \"My App\".\"Out $hand_over$ Box\" (\"Kind\", \"Body\", held) values ('held', 'x', true)").await;
    assert_eq!(expected.headers.len(), 61);
    assert_eq!(logged(&ground).await, [expected]);
    let utc = "select \"Sent\" between (now() at time zone 'utc') - interval '1 min' and (now() at time zone 'utc') + interval '1 s' from \"My App\".\"Out $hand_over$ Box\" where \"Id\" = 7";
    assert!(ground.ask::<bool>(utc).await, "in the layout's zone");
    handover.stop(posthaste_postgres::claim::PATIENCE, &actor()).await.expect("it stops");
    assert_eq!(functions(&ground).await, 0, "nothing is left");
    let _ = handover;
}

async fn functions(ground: &Ground) -> i64 {
    ground.ask("select count(*) from pg_proc where proname like 'hand_over%'").await
}

/// An application that may insert and nothing else, and whose table has triggers that look things up by their
/// own path.
#[tokio::test(flavor = "multi_thread")]
async fn an_application_needs_no_new_right() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    ground.audit("outbox").await;
    let role = format!("app_{}", ground.database.name());
    ground.execute(&format!("create role {role} login; grant insert on outbox to {role}")).await;
    let _handover = started(&ground).await;
    let (app, connection) = tokio_postgres::connect(&ground.database.url_as(&role), tokio_postgres::NoTls)
        .await
        .expect("the application connects");
    let driver = tokio::spawn(connection);
    app.batch_execute(
        "set search_path = pg_catalog; insert into public.outbox (topic, payload_json) values ('t', '{}')",
    )
    .await
    .expect("it inserts, as before");
    let right = "select has_schema_privilege($1, 'posthaste', 'USAGE')";
    let has: bool = app.query_one(right, &[&role]).await.expect("a question").get(0);
    // Nobody puts the function on a table of theirs, not even who may use everything else in the log's
    // schema.
    let function: String =
        ground.ask("select oid::regproc::text from pg_proc where proname like 'hand_over%'").await;
    ground.execute(&format!("grant usage on schema posthaste to {role}")).await;
    app.batch_execute("create temp table mine (id uuid)").await.expect("a table of its own");
    let put = app
        .batch_execute(&format!(
            "create trigger x after insert on pg_temp.mine for each row execute function {function}()"
        ))
        .await;
    let code = put.err().and_then(|error| error.code().map(|code| code.code().to_owned()));
    drop(app);
    driver.abort();
    ground.execute(&format!("drop owned by {role}; drop role {role}")).await;
    assert!(!has, "it has no right on the log");
    assert_eq!(code.as_deref(), Some("42501"), "nor on the function");
    assert_eq!(logged(&ground).await.len(), 1);
    assert_eq!(ground.ask::<i64>("select count(*) from audit").await, 1, "the owners' own trigger has run");
}

/// Each partition has the trigger, also for rows that are written to it directly.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_hand_over_too() {
    let ddl = TALKIE
        .replace(", unique (topic, idempotency_key))", ") partition by hash (id)")
        .replace("create index outbox_batch", "create table outbox_0 partition of outbox for values with (modulus 2, remainder 0);
            create table outbox_1 partition of outbox for values with (modulus 2, remainder 1); create index outbox_batch");
    let Some(ground) = ground("talkie", &ddl).await else { return };
    let mut handover = handover(&ground).await;
    handover.start(&[], posthaste_postgres::claim::PATIENCE, &actor()).await.expect("it starts");
    ground
        .execute("insert into outbox (topic, payload_json) select 't', '{}' from generate_series(1, 20)")
        .await;
    ground
        .execute("insert into outbox_0 (id, topic, payload_json) select id, 't', '{}' from (select gen_random_uuid() as id from generate_series(1, 50)) as i where satisfies_hash_partition('outbox'::regclass, 2, 0, id)")
        .await;
    let there: i64 = ground.ask("select count(*) from outbox where status = 'published'").await;
    assert_eq!(logged(&ground).await.len() as i64, there);
    assert!(there > 20);
    handover.stop(posthaste_postgres::claim::PATIENCE, &actor()).await.expect("it stops");
    let left = "select count(*) from pg_trigger where tgname = 'posthaste_hand_over'";
    assert_eq!(ground.ask::<i64>(left).await, 0);
}

/// F84: a session that begins with an empty table finds a row by its key, however much waits in the table
/// later.
#[tokio::test(flavor = "multi_thread")]
async fn f84_a_row_is_found_by_its_key() {
    posthaste_testkit::require_service!(Version::V15.or_newer("an older one tells its statistics late"));
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    ground.execute("create index on outbox (status); analyze outbox").await;
    let _handover = started(&ground).await;
    let insert = "insert into outbox (topic, payload_json) values ('t', '{}')";
    // As often as the server plans anew before it keeps a plan.
    for _ in 0..10 {
        ground.execute(insert).await;
    }
    let other = ground.database.connect().await.expect("a connection");
    other
        .batch_execute("set session_replication_role = replica; insert into outbox (topic, payload_json) select 't', '{}' from generate_series(1, 2000)")
        .await
        .expect("a backlog");
    let touched = "select (seq_tup_read + idx_tup_fetch)::int8 from pg_stat_xact_user_tables where schemaname = 'public' and relname = 'outbox'";
    ground.execute("select pg_stat_force_next_flush()").await;
    ground.execute(&format!("begin; {insert}")).await;
    let before: i64 = ground.ask(touched).await;
    for _ in 0..10 {
        ground
            .execute(&format!("{insert}; set constraints all immediate; set constraints all deferred"))
            .await;
    }
    let rows = ground.ask::<i64>(touched).await - before;
    ground.execute("commit").await;
    assert!(rows < 100, "{rows} rows were looked at");
    assert_eq!(logged(&ground).await.len(), 21);
}
