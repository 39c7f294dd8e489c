//! Setting up: fresh, again, at once, with odd names, without rights; and what each role may do.

use crate::consumer::version_2;
use crate::setting::{Setting, connect, fails_with, number, roles_of};
use posthaste::store::StoreError;
use posthaste_postgres::migrate::{self, Roles, SCHEMA_VERSION};
use posthaste_postgres::{Inbox, PostgresAdmin, PostgresConfig};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{PgBouncer, Postgres, PostgresOptions, TestDatabase, Version};
use std::time::Duration;

/// "permission denied".
const DENIED: &str = "42501";

#[tokio::test]
async fn a_fresh_database_is_set_up_once() {
    let database = require_service!(TestDatabase::create().await);
    let (config, roles) = (PostgresConfig::new(database.url()), roles_of(&database));
    let before = migrate::status(&config).await.expect("reachable");
    assert_eq!(
        (before.current, before.latest, before.pending.len()),
        (None, SCHEMA_VERSION, SCHEMA_VERSION as usize)
    );

    let first = migrate::up(&config, &roles).await.expect("permitted");
    assert_eq!(first.applied.first(), Some(&(1, "outbox".to_owned())));
    assert!(first.to_run_by_hand.is_empty());
    let second = migrate::up(&config, &roles).await.expect("permitted");
    assert_eq!(second, migrate::Outcome::default(), "a repetition does nothing");

    let after = migrate::status(&config).await.expect("reachable");
    assert_eq!((after.current, after.pending), (Some(SCHEMA_VERSION), Vec::new()));
    assert_eq!(after.applied[0].applied_by, "postgres");
}

#[tokio::test]
async fn a_repetition_writes_nothing() {
    let setting = require_service!(Setting::new().await);
    // GRANT and CREATE OR REPLACE write a new version of a row even when nothing changes.
    let acl = "select string_agg(xmin::text, ',' order by oid) from
                 (select oid, xmin from pg_class where relnamespace = 'posthaste'::regnamespace
                  union all select oid, xmin from pg_proc where pronamespace = 'posthaste'::regnamespace) _";
    let before = setting.text(acl).await;
    migrate::up(&setting.config, &setting.roles).await.expect("permitted");
    assert_eq!(setting.text(acl).await, before);
}

#[tokio::test]
async fn several_at_once_apply_each_version_once() {
    let database = require_service!(TestDatabase::create().await);
    let (config, roles) = (PostgresConfig::new(database.url()), roles_of(&database));
    let runs: Vec<_> = (0..6)
        .map(|_| {
            let (config, roles) = (config.clone(), roles.clone());
            tokio::spawn(async move { migrate::up(&config, &roles).await })
        })
        .collect();
    let mut applied = Vec::new();
    for run in runs {
        applied.extend(run.await.expect("no panic").expect("permitted").applied);
    }
    assert_eq!(applied.len(), SCHEMA_VERSION as usize, "{applied:?}");
}

#[tokio::test]
async fn a_schema_of_any_name_works() {
    let database = require_service!(TestDatabase::create().await);
    let mut config = PostgresConfig::new(database.url());
    config.schema = "My Outbox".to_owned();
    config.limits.payload_bytes_max = 4;
    migrate::up(&config, &roles_of(&database)).await.expect("permitted");
    let client = database.connect().await.expect("reachable");
    client.execute(r#"select "My Outbox".append('a', 'text')"#, &[]).await.expect("appended");
    assert_eq!(fails_with(&client, r#"select "My Outbox".append('a', 'five5')"#).await, "22023");
    assert_eq!(number(&client, r#"select count(*) from "My Outbox".pending"#).await, 0);
    PostgresAdmin::connect(config.clone()).await.expect("the same version");
    config.schema = "it's".to_owned();
    let refused = migrate::up(&config, &Roles::default()).await.expect_err("a quote breaks out");
    assert!(refused.to_string().contains("'\\''"), "{refused}");
}

#[tokio::test]
async fn the_payload_limit_follows_the_configuration() {
    let setting = require_service!(Setting::new().await);
    let limit = "select posthaste.payload_bytes_max()::bigint";
    assert_eq!(setting.number(limit).await, 1 << 20);
    let mut config = setting.config.clone();
    config.limits.payload_bytes_max = 10;
    migrate::up(&config, &setting.roles).await.expect("permitted");
    assert_eq!(setting.number(limit).await, 10);
}

#[tokio::test]
async fn the_printed_script_is_the_same_outbox() {
    let database = require_service!(TestDatabase::create().await);
    let (config, roles) = (PostgresConfig::new(database.url()), roles_of(&database));
    let client = database.connect().await.expect("reachable");
    let script = migrate::sql("posthaste", &roles, &config.limits).expect("a good name");
    client.batch_execute(&script).await.expect("a DBA applies it");
    assert_eq!(migrate::up(&config, &roles).await.expect("nothing to do"), migrate::Outcome::default());
    assert_eq!(migrate::status(&config).await.expect("reachable").current, Some(SCHEMA_VERSION));
}

/// An outbox from before `append` took numbers and UUIDs as keys.
#[tokio::test]
async fn the_forms_of_append_that_are_missing_are_added_and_granted() {
    let setting = require_service!(Setting::new().await);
    let forms =
        "select count(*) from pg_proc where proname = 'append' and pronamespace = 'posthaste'::regnamespace";
    assert_eq!(setting.number(forms).await, 9);
    setting
        .run(
            "do $$ declare f regprocedure; begin
               for f in select oid from pg_proc where proname = 'append' and pronamespace = 'posthaste'::regnamespace
                                                  and proargtypes[2] in ('bigint'::regtype, 'uuid'::regtype)
               loop execute 'drop function ' || f; end loop; end $$;
             alter default privileges revoke execute on functions from public",
        )
        .await;
    assert_eq!(setting.number(forms).await, 3);
    let stranger = setting.config_as(&setting.roles.admin).await;
    let outcome = migrate::up(&stranger, &setting.roles).await.expect("no failure");
    let [by_hand] = outcome.to_run_by_hand.as_slice() else { panic!("{outcome:?}") };
    assert!(by_hand.contains("foreach key in array"), "{by_hand}");
    assert_eq!(
        migrate::up(&setting.config, &setting.roles).await.expect("permitted"),
        migrate::Outcome::default()
    );
    assert_eq!(setting.number(forms).await, 9);
    let app = connect(&setting.config_as(&setting.roles.app).await.url).await;
    for key in ["'42'", "42", "'01a1e29d-02bc-78ce-b67d-564d40496382'::uuid"] {
        app.batch_execute(&format!("select posthaste.append('t', 'x', key => {key})")).await.expect(key);
    }
}

#[tokio::test]
async fn an_owner_without_superuser_sets_up_and_gets_the_rest_to_run_by_hand() {
    let database = require_service!(TestDatabase::create().await);
    let super_client = database.connect().await.expect("reachable");
    let (owner, name) = (format!("{}_owner", database.name()), database.name());
    super_client
        .batch_execute(&format!("create role {owner} login; grant create on database {name} to {owner}"))
        .await
        .expect("permitted");
    let (config, roles) = (PostgresConfig::new(database.url_as(&owner)), roles_of(&database));
    let outcome = migrate::up(&config, &roles).await.expect("the owner may create a schema");
    assert_eq!(outcome.applied.len(), SCHEMA_VERSION as usize);
    assert!(outcome.to_run_by_hand[0].starts_with("create role"), "{:?}", outcome.to_run_by_hand);
    // What is printed is what is missing: after it nothing is.
    for statement in &outcome.to_run_by_hand {
        super_client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
    assert_eq!(migrate::up(&config, &roles).await.expect("nothing to do"), migrate::Outcome::default());
}

#[tokio::test]
async fn a_stranger_is_told_what_is_missing() {
    let database = require_service!(TestDatabase::create().await);
    let client = database.connect().await.expect("reachable");
    let stranger = format!("{}_stranger", database.name());
    client.batch_execute(&format!("create role {stranger} login")).await.expect("permitted");
    let config = PostgresConfig::new(database.url_as(&stranger));
    let refused = migrate::up(&config, &roles_of(&database)).await.expect_err("no right to create");
    assert!(
        matches!(&refused, StoreError::Fatal { message: text, .. } if text.contains("migrate sql")),
        "{refused}"
    );
    let absent = PostgresAdmin::connect(config).await.map(drop).expect_err("there is no outbox");
    assert!(absent.to_string().contains("migrate up"), "{absent}");
}

#[tokio::test]
async fn a_non_owner_gets_grants_and_limit_to_run_by_hand() {
    let setting = require_service!(Setting::new().await);
    let mut config = setting.config_as(&setting.roles.admin).await;
    assert_eq!(
        migrate::up(&config, &setting.roles).await.expect("all is granted"),
        migrate::Outcome::default()
    );
    setting.run(&format!("revoke insert on posthaste.controls from {}", setting.roles.admin)).await;
    config.limits.payload_bytes_max = 77;
    let outcome = migrate::up(&config, &setting.roles).await.expect("no failure");
    assert!(outcome.to_run_by_hand[0].contains("select 77"), "{outcome:?}");
    assert!(
        outcome
            .to_run_by_hand
            .iter()
            .any(|statement| statement.starts_with("grant insert, update, delete on"))
    );
}

#[tokio::test]
async fn another_text_under_the_same_version_is_refused() {
    let setting = require_service!(Setting::new().await);
    setting.run("update posthaste.migrations set checksum = '0123456789abcdef' where version = 1").await;
    let refused = migrate::up(&setting.config, &setting.roles).await.expect_err("another build was here");
    assert!(
        matches!(&refused, StoreError::Fatal { message: text, .. } if text.contains("0123456789abcdef")),
        "{refused}"
    );
}

/// F89: whoever settles takes `receipts` first and what is deferred afterwards. A migration beside it takes
/// that way, and gives way to a table that is used for long.
#[tokio::test]
async fn a_migration_beside_a_settlement_is_no_deadlock() {
    let database = require_service!(TestDatabase::create().await);
    let (config, settler) = version_2(&database, "posthaste").await;
    let roles = roles_of(&database);
    settler.batch_execute("begin; lock posthaste.receipts in row exclusive mode").await.expect("a lock");
    let migration = tokio::spawn(async move { migrate::up(&config, &roles).await });
    let watcher = database.connect().await.expect("reachable");
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let patience = Duration::from_secs(60);
    let waiting = async |wanted: i64| (number(&watcher, waits).await == wanted).then_some(());
    eventually("the migration waits", patience, || waiting(1)).await;
    settler.batch_execute("lock posthaste.deferred in row exclusive mode").await.expect("no deadlock");
    eventually("the migration lets others pass", patience, || waiting(0)).await;
    settler
        .batch_execute("lock posthaste.dead_letters in row exclusive mode; commit")
        .await
        .expect("settled");
    let outcome = migration.await.expect("it ends").expect("it is applied");
    assert_eq!(outcome.applied.last(), Some(&(5, "gateway".to_owned())));
}

#[tokio::test]
async fn one_version_ahead_works_and_two_are_refused() {
    let setting = require_service!(Setting::new().await);
    let ahead = |by: i32| {
        let version = SCHEMA_VERSION + by;
        format!(
            "insert into posthaste.migrations (version, name, checksum) values ({version}, 'future', 'x')"
        )
    };
    setting.run(&ahead(1)).await;
    PostgresAdmin::connect(setting.config.clone()).await.expect("one version ahead is fine");
    assert_eq!(
        migrate::up(&setting.config, &setting.roles).await.expect("nothing to do"),
        migrate::Outcome::default()
    );
    setting.run(&ahead(2)).await;
    let refused = PostgresAdmin::connect(setting.config.clone()).await.map(drop).expect_err("two ahead");
    assert!(refused.to_string().contains("newer posthaste"), "{refused}");
    setting.run("delete from posthaste.migrations").await;
    let refused = PostgresAdmin::connect(setting.config.clone()).await.map(drop).expect_err("behind");
    assert!(refused.to_string().contains("posthaste migrate up"), "{refused}");
}

#[tokio::test]
async fn an_application_appends_in_every_way_and_can_do_nothing_else() {
    let setting = require_service!(Setting::new().await);
    let config = setting.config_as(&setting.roles.app).await;
    let app = connect(&config.url).await;
    let appends = [
        "select posthaste.append('t', '{}'::jsonb, 'k', '{\"a\":\"b\"}')",
        "select posthaste.append('t', 'text', idempotency_key => 'once')",
        "select posthaste.append('t', '\\x00'::bytea)",
        "insert into posthaste.outbox (topic, payload) values ('t', '\\x01'), ('t', null)",
    ];
    for sql in appends {
        app.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    copy(&app, "copy posthaste.outbox (topic, key, payload) from stdin", "t\tk\t\\\\x02\nt\tk\t\\\\x03\n")
        .await;
    // What it consumed it marks, and it purges its own marks.
    app.batch_execute("insert into posthaste.inbox (consumer, message_id, processed_at) values ('billing', 'm', now() - interval '1 day')")
        .await
        .expect("a mark");
    let purged = Inbox::new("billing").purge(&app, Duration::from_secs(60), 10).await.expect("purges");
    assert_eq!(purged, 1);
    assert_eq!(setting.number("select count(*) from posthaste.outbox").await, 7);
    assert_eq!(setting.number("select count(*) from posthaste.outbox where id is null").await, 0);

    let forbidden = [
        "select count(*) from posthaste.outbox",
        "insert into posthaste.outbox (seq, topic) values (1, 't')",
        "insert into posthaste.outbox (xid, topic) values ('3', 't')",
        "insert into posthaste.outbox (segment, topic) values (2, 't')",
        "insert into posthaste.outbox (appended_at, topic) values (now(), 't')",
        "insert into posthaste.outbox_2 (topic) values ('t')",
        "update posthaste.outbox set topic = 'x'",
        "delete from posthaste.outbox",
        "truncate posthaste.outbox",
        "truncate posthaste.outbox_1",
        "select nextval('posthaste.outbox_segment')",
        "select setval('posthaste.outbox_segment', 2)",
        "select setval('posthaste.outbox_seq', 1)",
        "select setval('posthaste.outbox_wakeup', 1)",
        "delete from posthaste.idempotency_keys",
        "select * from posthaste.dead_letters",
        "create or replace function posthaste.payload_bytes_max() returns integer language sql as 'select 1'",
    ];
    for sql in forbidden {
        assert_eq!(fails_with(&app, sql).await, DENIED, "{sql}");
    }
}

async fn copy(client: &tokio_postgres::Client, sql: &str, rows: &'static str) {
    use futures_util::SinkExt;
    let sink = client.copy_in(sql).await.expect("permitted");
    futures_util::pin_mut!(sink);
    sink.send(bytes::Bytes::from_static(rows.as_bytes())).await.expect("sent");
    sink.finish().await.expect("copied");
}

#[tokio::test]
async fn a_relay_may_do_what_it_does_and_not_append() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 3).await;
    let relay = connect(&setting.config_as(&setting.roles.relay).await.url).await;
    let allowed = [
        "select * from posthaste.outbox",
        "select count(*) from posthaste.outbox_1",
        "select pg_sequence_last_value('posthaste.outbox_seq')",
        "select setval('posthaste.outbox_wakeup', 5)",
        "select turn from posthaste.ring for update",
        "update posthaste.segments set closing = false where segment = 2",
        "truncate only posthaste.outbox_2",
        "select setval('posthaste.outbox_segment', 2, true)",
        "insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n) values ('s', 0, 0, 1023, '', 0)",
        "insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot) values ('s', 0, 1, 0, 'born', 0, 0, pg_current_snapshot())",
        "insert into posthaste.lease_tokens values ('s', 0, 1)",
        "insert into posthaste.dead_letters (sink, seq, slot, id, topic, appended_at, route, holds_key, attempts, error_class, error_code, error) values ('s', 1, 1, gen_random_uuid(), 't', now(), 'r', false, 1, 'permanent', 'c', 'e')",
        "delete from posthaste.dead_letters",
        "delete from posthaste.idempotency_keys",
        "insert into posthaste.audit (actor, action, reason, detail) values ('retention', 'purge', 'r', '{}')",
        "select * from posthaste.controls",
        "select max(version) from posthaste.migrations",
    ];
    for sql in allowed {
        relay.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    let forbidden = [
        "insert into posthaste.outbox (topic) values ('t')",
        "update posthaste.outbox set xid = '3'",
        "select setval('posthaste.outbox_seq', 1)",
        "select nextval('posthaste.outbox_seq')",
        "insert into posthaste.controls (kind, name) values ('sink', 's')",
        "delete from posthaste.audit",
        "drop table posthaste.deferred",
    ];
    for sql in forbidden {
        assert_eq!(fails_with(&relay, sql).await, DENIED, "{sql}");
    }
}

#[tokio::test]
async fn setting_up_works_behind_a_pooler() {
    let server = require_service!(Postgres::start(Version::tested(), &PostgresOptions::default()).await);
    let pool = require_service!(PgBouncer::start(&server).await);
    let mut config = PostgresConfig::new(pool.url());
    config.pooled = true;
    let runs = [0, 1].map(|_| {
        let config = config.clone();
        tokio::spawn(async move { migrate::up(&config, &Roles::default()).await })
    });
    let mut applied = 0;
    for run in runs {
        applied += run.await.expect("no panic").expect("permitted").applied.len();
    }
    assert_eq!(applied, SCHEMA_VERSION as usize);
}
