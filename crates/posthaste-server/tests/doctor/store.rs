//! The checks of an outbox and its server.

use crate::binary::{Scratch, run};
use crate::ground::{Said, connect, doctor, execute, file, only, set_up, url_of};
use crate::proxy;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{PgBouncer, Port, Postgres, PostgresOptions, Version};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine.
const DEADLINE: Duration = Duration::from_secs(90);

/// What breaks a check, in a database of its own.
const BY_SQL: &[(&str, &str, &str)] = &[
    ("schema_checksum", "fail", "update posthaste.migrations set checksum = 'x' where version = 1"),
    (
        "schema_version",
        "fail",
        "insert into posthaste.migrations (version, name, checksum) values (1000, 'future', 'x')",
    ),
    (
        "payload_limit",
        "warn",
        "create or replace function posthaste.payload_bytes_max() returns integer language sql as 'select 5'",
    ),
    (
        "audit_topic",
        "warn",
        "create or replace function posthaste.audit_topic() returns text language sql stable as 'select ''elsewhere''::text'",
    ),
    (
        "column_defaults",
        "fail",
        "alter table posthaste.outbox alter seq set default nextval('posthaste.outbox_seq')",
    ),
    ("segment_indexes", "fail", "drop index posthaste.outbox_3_seq"),
    ("lease_tokens", "fail", "alter table posthaste.lease_tokens set logged"),
    ("wakeup_trigger", "warn", "alter table posthaste.outbox disable trigger outbox_wakeup"),
    ("sequence_cache", "fail", "alter sequence posthaste.outbox_seq cache 20"),
    ("sequence_cycle", "fail", "alter sequence posthaste.outbox_seq cycle"),
    ("sequence_owner", "warn", "alter sequence posthaste.outbox_seq owner to posthaste_admin"),
    ("synchronous_commit", "warn", "alter database DATABASE set synchronous_commit = off"),
    (
        "synchronous_commit",
        "warn",
        "alter role posthaste_app in database DATABASE set synchronous_commit = off",
    ),
    ("read_only", "fail", "alter database DATABASE set default_transaction_read_only = on"),
    ("autovacuum", "warn", "alter table posthaste.deferred set (autovacuum_enabled = off)"),
    ("app_table_rights", "fail", "grant delete on posthaste.outbox to posthaste_app"),
    ("app_table_rights", "fail", "grant truncate on posthaste.outbox_4 to posthaste_app"),
    ("app_column_rights", "fail", "grant insert (xid) on posthaste.outbox to posthaste_app"),
    ("app_column_rights", "fail", "grant insert on posthaste.outbox to public"),
    ("app_sequence_rights", "fail", "grant update on posthaste.outbox_seq to posthaste_app"),
    ("app_sequence_rights", "fail", "grant usage on posthaste.outbox_segment to posthaste_app"),
    ("sequence_went_back", "fail", "select setval('posthaste.outbox_seq', 1)"),
    ("xids_from_elsewhere", "fail", "update posthaste.outbox set xid = '99999999999' where seq = 2"),
    ("xids_from_elsewhere", "fail", "update posthaste.receipts set snapshot = '99999999999:99999999999:'"),
    ("xids_from_elsewhere", "fail", "update posthaste.receipts set xid = '99999999999'"),
    ("ring_state", "warn", "select setval('posthaste.outbox_segment', 3)"),
    ("ring_state", "fail", "alter sequence posthaste.outbox_segment restart"),
    ("ring_full", "warn", "update posthaste.segments set turn = 0 where segment = 2"),
    ("audit", "fail", "update posthaste.segments set audit_note = 'off by one' where segment = 1"),
    (
        "lanes_owned",
        "warn",
        "insert into posthaste.relays (relay, routes, expires_at) values ('r', '', clock_timestamp() + interval '1 h')",
    ),
    ("lanes_owned", "warn", "insert into posthaste.outbox (topic) values ('t')"),
    (
        "retired_sinks",
        "warn",
        "update posthaste.lanes set retired_at = clock_timestamp(); insert into posthaste.outbox (topic) values ('t')",
    ),
    // No such server can be had here; this one says that it is one.
    (
        "server_version",
        "fail",
        "create schema old;
         create function old.current_setting(text) returns text stable language sql as $$
           select case $1 when 'server_version_num' then '130014' else pg_catalog.current_setting($1) end $$;
         alter database DATABASE set search_path = old, pg_catalog",
    ),
    (
        "server_kind",
        "fail",
        "create schema other;
         create function other.version() returns text stable language sql as $$
           select 'PostgreSQL 15.2-YB-2.25.0.0-b489 (YugabyteDB)' $$;
         alter database DATABASE set search_path = other, pg_catalog",
    ),
];

/// A server on which all is well: two-phase commit is off, so that wakeups disturb nobody.
async fn sound_server() -> Result<Postgres, posthaste_testkit::services::ServiceError> {
    let options = PostgresOptions::default().setting("max_prepared_transactions", "0");
    Postgres::start(Version::V15, &options).await
}

/// A sound server whose own database has an outbox, its configuration, and what the doctor says of it.
async fn sound() -> Option<(Postgres, Scratch, Said)> {
    let server = require_service!(sound_server().await, None);
    set_up(&server.url()).await;
    let file = file(&server.url(), "", "");
    let before = doctor(&["--config", file.path()]);
    Some((server, file, before))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_broken_by_hand_is_named() {
    let Some((server, config, before)) = sound().await else { return };
    let names: Vec<&str> = before.found.keys().map(String::as_str).collect();
    assert!(names.len() > 35 && before.ended.code == 0, "{names:?}");
    drop(config);
    let admin = connect(&url_of(&server, "template1")).await;
    for (number, (check, level, sql)) in BY_SQL.iter().enumerate() {
        let name = format!("broken_{number}");
        execute(&admin, &format!("create database {name} template postgres")).await;
        let url = url_of(&server, &name);
        execute(&connect(&url).await, &sql.replace("DATABASE", &name)).await;
        let args = ["--url", url.as_str()];
        only(check, level, &before, &doctor(&args), &args);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_whole_server_are_named() {
    let Some((server, config, before)) = sound().await else { return };
    let args = ["--config", config.path()];
    for (check, setting) in [
        ("fsync", "fsync"),
        ("full_page_writes", "full_page_writes"),
        ("autovacuum", "autovacuum"),
        ("synchronous_commit", "synchronous_commit"),
    ] {
        server.set(setting, "off").await.expect("set");
        only(check, "warn", &before, &doctor(&args), &args);
        server.set(setting, "on").await.expect("set");
    }
    let flushing = file(&server.url(), "flush_before_publish = true", "");
    server.set("synchronous_commit", "off").await.expect("set");
    assert_eq!(doctor(&["--config", flushing.path()]).found["synchronous_commit"].0, "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_configuration_says_is_compared_with_what_is_there() {
    let Some((server, config, before)) = sound().await else { return };
    let strict = ["--clock-skew", "0s", "--config", config.path()];
    only("clock_skew", "warn", &before, &doctor(&strict), &strict);
    let more = file(&server.url(), "lanes = 3", "");
    let args = ["--config", more.path()];
    only("lanes", "warn", &before, &doctor(&args), &args);
    let same = file(&server.url(), "lanes = 2", "");
    assert_eq!(doctor(&["--config", same.path()]).found["lanes"].0, "ok");
    let unused = file(&server.url(), "", "[sinks.out]\ntype = \"stdout\"");
    let args = ["--config", unused.path()];
    only("config", "warn", &before, &doctor(&args), &args);
    let nobody = Port::claim().expect("a free port");
    let gone = file(&format!("postgres://postgres@127.0.0.1:{}/postgres", nobody.number()), "", "");
    let args = ["--config", gone.path()];
    only("connect", "fail", &before, &doctor(&args), &args);
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_a_relay_lacks_are_named() {
    let Some((server, _config, _)) = sound().await else { return };
    let admin = connect(&server.url()).await;
    execute(&admin, "create role r login in role posthaste_relay").await;
    let config = file(&server.url_for("postgres", "r"), "", "");
    let args = ["--config", config.path()];
    let before = doctor(&args);
    execute(&admin, "revoke delete on posthaste.deferred from posthaste_relay").await;
    let after = doctor(&args);
    only("relay_rights", "fail", &before, &after, &args);
    assert!(after.found["relay_rights"].1.contains("DELETE on table deferred"));
    execute(&admin, "grant delete on posthaste.deferred to posthaste_relay").await;
    let function = "function pg_catalog.pg_visible_in_snapshot(xid8, pg_snapshot)";
    execute(&admin, &format!("revoke execute on {function} from public")).await;
    only("functions", "fail", &before, &doctor(&args), &args);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_encoding_is_named() {
    let Some((server, _config, before)) = sound().await else { return };
    let admin = connect(&server.url()).await;
    execute(
        &admin,
        "create database ascii encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0",
    )
    .await;
    let url = url_of(&server, "ascii");
    run(&["migrate", "up", "--url", &url]).ok();
    let args = ["--url", url.as_str()];
    only("encoding", "warn", &before, &doctor(&args), &args);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_nobody_ends_and_two_phase_commit_are_named() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    set_up(&server.url()).await;
    let quiet = file(&server.url(), "wakeups = false", "");
    let args = ["--long-transaction", "200ms", "--config", quiet.path()];
    let before = doctor(&args);
    // This server allows prepared transactions; with wakeups that is a warning.
    let woken = ["--url", &server.url()];
    only("two_phase", "warn", &before, &doctor(&woken), &woken);

    let client = connect(&server.url()).await;
    let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.expect("answers").get(0);
    execute(&client, "begin; select pg_current_xact_id()").await;
    let after = found(&args, "long_transactions");
    only("long_transactions", "warn", &before, &after, &args);
    let text = &after.found["long_transactions"].1;
    assert!(text.contains(&format!("pid {pid}")), "{text}");

    execute(&client, "prepare transaction 'forgotten'").await;
    let after = found(&args, "prepared_transactions");
    only("prepared_transactions", "warn", &before, &after, &args);
    assert!(after.found["prepared_transactions"].1.contains("forgotten"));
}

/// Asks until the check finds something: time has to pass for it.
fn found(args: &[&str], check: &str) -> Said {
    let end = Instant::now() + DEADLINE;
    loop {
        let said = doctor(args);
        if said.found[check].0 != "ok" {
            return said;
        }
        assert!(Instant::now() < end, "{check} finds nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_and_notifications_that_do_not_come_are_named() {
    let Some((server, _config, before)) = sound().await else { return };
    let deaf = proxy::between(server.addr(), proxy::nothing, proxy::without_notifications);
    let url = format!("postgres://postgres@{deaf}/postgres");
    let args = ["--url", url.as_str()];
    only("notify", "warn", &before, &doctor(&args), &args);

    let pool = require_service!(PgBouncer::start(&server).await);
    let expected = file(&pool.url(), "pooled = true", "");
    let args = ["--config", expected.path()];
    only("pooler", "warn", &before, &doctor(&args), &args);
    let unexpected = doctor(&["--url", &pool.url()]);
    let (level, text) = &unexpected.found["pooler"];
    assert!(level == "fail" && text.contains("pooled = true"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_named() {
    let Some((mut server, config, before)) = sound().await else { return };
    server.stop_fast().await.expect("stopped");
    std::fs::write(server.data_dir().join("standby.signal"), "").expect("written");
    server.start_again().await.expect("started");
    let args = ["--config", config.path()];
    only("standby", "fail", &before, &doctor(&args), &args);
    let refused = run(&["status", "--config", config.path()]);
    assert!(refused.code == 1 && refused.err.contains("standby"), "{}", refused.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_outbox_is_named() {
    let server = require_service!(sound_server().await);
    let said = doctor(&["--url", &server.url()]);
    let (level, text) = &said.found["schema_version"];
    assert!(said.ended.code == 1 && level == "fail" && text.contains("migrate up"), "{text}");
    assert!(!said.found.contains_key("relay_rights"), "there is nothing to have rights on");
    let functions = &said.found["functions"].1;
    assert!(functions.contains("the server's own"), "nothing of ours is there: {functions}");
}

/// Before a relay has run there is no sink, and so no backlog; what waits is the whole log.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_no_relay_ever_saw_are_named() {
    let server = require_service!(sound_server().await);
    let url = server.url();
    run(&["migrate", "up", "--url", &url]).ok();
    let args = ["--url", url.as_str()];
    let before = doctor(&args);
    execute(&connect(&url).await, "insert into posthaste.outbox (topic) values ('t')").await;
    let after = doctor(&args);
    only("lanes_owned", "warn", &before, &after, &args);
    let text = &after.found["lanes_owned"].1;
    assert!(text.contains("no relay has run") && text.contains("posthaste run"), "{text}");
    // Only that is shown, and it is counted with the others.
    let problems = run(&["doctor", "--problems", "--url", &url]);
    let lines: Vec<&str> = problems.out.lines().filter(|line| !line.starts_with(' ')).collect();
    let [found, "", counts] = lines[..] else { panic!("{lines:?}") };
    assert!(found.starts_with("warn") && found.contains("lanes_owned"), "{found}");
    assert!(counts.starts_with("0 fail, 1 warn, ") && problems.code == 1, "{counts}");
    execute(&connect(&url).await, "truncate posthaste.outbox").await;
    let sound = run(&["doctor", "--problems", "--url", &url]);
    assert!(sound.code == 0 && sound.out.starts_with("nothing is wrong"), "{}", sound.out);
}
