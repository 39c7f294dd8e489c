//! Each check of the doctor: something breaks just that, and the doctor says its name and nothing else.

use crate::setting::{Setting, connect};
use posthaste::admin::Admin;
use posthaste::sink::{Finding, Level};
use posthaste_postgres::doctor::{Bounds, CHECKS};
use posthaste_postgres::migrate::{self, Roles};
use posthaste_postgres::{PostgresAdmin, PostgresConfig};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{PgBouncer, Postgres, PostgresOptions, TestDatabase, Version};
use std::collections::BTreeMap;
use std::time::Duration;

/// What breaks a check, in a database of the shared server. `APP` and `ADMIN` stand for those roles.
const BY_SQL: &[(&str, Level, &str)] = &[
    ("schema_checksum", Level::Fail, "update posthaste.migrations set checksum = 'x' where version = 1"),
    (
        "schema_version",
        Level::Fail,
        "insert into posthaste.migrations (version, name, checksum) values (1000, 'future', 'x')",
    ),
    (
        "payload_limit",
        Level::Warn,
        "create or replace function posthaste.payload_bytes_max() returns integer language sql as 'select 5'",
    ),
    (
        "column_defaults",
        Level::Fail,
        "alter table posthaste.outbox alter seq set default nextval('posthaste.outbox_seq')",
    ),
    ("segment_indexes", Level::Fail, "drop index posthaste.outbox_3_seq"),
    ("lease_tokens", Level::Fail, "alter table posthaste.lease_tokens set logged"),
    ("wakeup_trigger", Level::Warn, "alter table posthaste.outbox disable trigger outbox_wakeup"),
    ("sequence_cache", Level::Fail, "alter sequence posthaste.outbox_seq cache 20"),
    ("sequence_cycle", Level::Fail, "alter sequence posthaste.outbox_seq cycle"),
    ("sequence_owner", Level::Warn, "alter sequence posthaste.outbox_seq owner to ADMIN"),
    ("synchronous_commit", Level::Warn, "alter database DATABASE set synchronous_commit = off"),
    ("synchronous_commit", Level::Warn, "alter role APP in database DATABASE set synchronous_commit = off"),
    ("read_only", Level::Fail, "alter database DATABASE set default_transaction_read_only = on"),
    ("autovacuum", Level::Warn, "alter table posthaste.deferred set (autovacuum_enabled = off)"),
    ("app_table_rights", Level::Fail, "grant delete on posthaste.outbox to APP"),
    ("app_table_rights", Level::Fail, "grant truncate on posthaste.outbox_4 to APP"),
    ("app_column_rights", Level::Fail, "grant insert (xid) on posthaste.outbox to APP"),
    ("app_column_rights", Level::Fail, "grant insert on posthaste.outbox to public"),
    ("app_sequence_rights", Level::Fail, "grant update on posthaste.outbox_seq to APP"),
    ("app_sequence_rights", Level::Fail, "grant usage on posthaste.outbox_segment to APP"),
    ("sequence_went_back", Level::Fail, "select setval('posthaste.outbox_seq', 1)"),
    ("xids_from_elsewhere", Level::Fail, "update posthaste.outbox set xid = '99999999999' where seq = 2"),
    (
        "xids_from_elsewhere",
        Level::Fail,
        "update posthaste.receipts set snapshot = '99999999999:99999999999:'",
    ),
    ("xids_from_elsewhere", Level::Fail, "update posthaste.receipts set xid = '99999999999'"),
    ("ring_state", Level::Warn, "select setval('posthaste.outbox_segment', 3)"),
    ("ring_state", Level::Fail, "alter sequence posthaste.outbox_segment restart"),
    ("ring_full", Level::Warn, "update posthaste.segments set turn = 0 where segment = 2"),
    ("audit", Level::Fail, "update posthaste.segments set audit_note = 'off by one' where segment = 1"),
    (
        "lanes_owned",
        Level::Warn,
        "insert into posthaste.relays (relay, routes, expires_at) values ('r', '', clock_timestamp() + interval '1 h')",
    ),
    (
        "retired_sinks",
        Level::Warn,
        "update posthaste.lanes set retired_at = clock_timestamp(); insert into posthaste.outbox (topic) values ('t')",
    ),
];

/// Checks that are broken by a test of their own below; the first two by tests beside the code, because no
/// such server can be had.
const BY_OTHER_MEANS: &[&str] = &[
    "server_version",
    "server_kind",
    "standby",
    "functions",
    "encoding",
    "fsync",
    "full_page_writes",
    "clock_skew",
    "two_phase",
    "relay_rights",
    "long_transactions",
    "prepared_transactions",
    "pooler",
    "notify",
];

async fn levels(config: &PostgresConfig, bounds: &Bounds) -> BTreeMap<String, Finding> {
    let findings = PostgresAdmin::new(config.clone()).doctor_with(bounds).await.expect("answers");
    findings.into_iter().map(|finding| (finding.check.clone(), finding)).collect()
}

/// Nothing but this check got worse, and it says what to do.
fn only(check: &str, level: Level, before: &BTreeMap<String, Finding>, after: &BTreeMap<String, Finding>) {
    let found = after.get(check).unwrap_or_else(|| panic!("{check} was not made"));
    assert_eq!(before[check].level, Level::Ok, "{check}: {}", before[check].text);
    assert_eq!(found.level, level, "{check}: {}", found.text);
    assert!(found.text.len() > 60, "{check}: {}", found.text);
    for (name, finding) in after {
        let same = name == check || finding.level <= before[name].level;
        assert!(same, "{check} was broken, and {name} says: {}", finding.text);
    }
}

#[tokio::test]
async fn every_check_can_be_broken() {
    let mut broken: Vec<&str> =
        BY_SQL.iter().map(|(check, ..)| *check).chain(BY_OTHER_MEANS.iter().copied()).collect();
    broken.sort_unstable();
    broken.dedup();
    let mut all = CHECKS.to_vec();
    all.sort_unstable();
    assert_eq!(broken, all);
}

#[tokio::test]
async fn what_is_broken_by_hand_is_named() {
    let mut sound = None;
    for (check, level, sql) in BY_SQL {
        let setting = require_service!(Setting::new().await);
        setting.append("t", 10).await;
        setting.sink("s", 2, "").await;
        // Every database here is the same before it is broken.
        let before = match &sound {
            Some(before) => before,
            None => sound.insert(levels(&setting.config, &Bounds::default()).await),
        };
        let sql = sql
            .replace("APP", &setting.roles.app)
            .replace("ADMIN", &setting.roles.admin)
            .replace("DATABASE", setting.database.name());
        setting.run(&sql).await;
        let after = levels(&setting.config, &Bounds::default()).await;
        only(check, *level, before, &after);
    }
}

#[tokio::test]
async fn a_sound_outbox_is_ok_in_every_check() {
    let options = PostgresOptions::default().setting("max_prepared_transactions", "0");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let setting =
        require_service!(Setting::on(require_service!(TestDatabase::create_on(&server).await)).await);
    setting.append("t", 10).await;
    setting.sink("s", 2, "").await;
    let config = setting.config_as(&setting.roles.relay).await;
    let findings = PostgresAdmin::new(config).doctor().await.expect("answers");
    for finding in &findings {
        assert_eq!(finding.level, Level::Ok, "{}: {}", finding.check, finding.text);
    }
    let names: Vec<&str> = findings.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!(names, CHECKS);
}

#[tokio::test]
async fn a_missing_outbox_is_named() {
    let database = require_service!(TestDatabase::create().await);
    let found = levels(&PostgresConfig::new(database.url()), &Bounds::default()).await;
    assert_eq!(found["schema_version"].level, Level::Fail);
    assert!(found["schema_version"].text.contains("migrate up"));
    assert!(!found.contains_key("relay_rights"), "there is nothing to have rights on");
}

#[tokio::test]
async fn a_right_that_the_relay_lacks_is_named() {
    let setting = require_service!(Setting::new().await);
    let config = setting.config_as(&setting.roles.relay).await;
    let before = levels(&config, &Bounds::default()).await;
    setting.run(&format!("revoke delete on posthaste.deferred from {}", setting.roles.relay)).await;
    let after = levels(&config, &Bounds::default()).await;
    only("relay_rights", Level::Fail, &before, &after);
    assert!(
        after["relay_rights"].text.contains("DELETE on table deferred"),
        "{}",
        after["relay_rights"].text
    );
}

#[tokio::test]
async fn a_function_that_cannot_be_called_is_named() {
    let setting = require_service!(Setting::new().await);
    let config = setting.config_as(&setting.roles.relay).await;
    let before = levels(&config, &Bounds::default()).await;
    setting
        .run("revoke execute on function pg_catalog.pg_visible_in_snapshot(xid8, pg_snapshot) from public")
        .await;
    let after = levels(&config, &Bounds::default()).await;
    only("functions", Level::Fail, &before, &after);
}

#[tokio::test]
async fn another_encoding_is_named() {
    let setting = require_service!(Setting::new().await);
    let before = levels(&setting.config, &Bounds::default()).await;
    let name = format!("{}_ascii", setting.database.name());
    setting
        .run(&format!(
            "create database {name} encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0"
        ))
        .await;
    let url = posthaste_testkit::services::with_database(&setting.database.url(), &name);
    let config = PostgresConfig::new(url);
    migrate::up(&config, &setting.roles).await.expect("permitted");
    let after = levels(&config, &Bounds::default()).await;
    setting.run(&format!("drop database {name} with (force)")).await;
    only("encoding", Level::Warn, &before, &after);
}

#[tokio::test]
async fn clocks_and_two_phase_commit_are_named() {
    let setting = require_service!(Setting::new().await);
    let quiet = PostgresConfig { wakeups: false, ..setting.config.clone() };
    let before = levels(&quiet, &Bounds::default()).await;
    // The shared server allows prepared transactions; with wakeups that is a warning.
    only("two_phase", Level::Warn, &before, &levels(&setting.config, &Bounds::default()).await);
    let strict = Bounds { clock_skew: Duration::ZERO, ..Bounds::default() };
    only("clock_skew", Level::Warn, &before, &levels(&quiet, &strict).await);
}

#[tokio::test]
async fn settings_of_the_whole_server_are_named() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let config = PostgresConfig::new(server.url());
    migrate::up(&config, &Roles::default()).await.expect("permitted");
    let before = levels(&config, &Bounds::default()).await;
    for (setting, check) in [
        ("fsync", "fsync"),
        ("full_page_writes", "full_page_writes"),
        ("autovacuum", "autovacuum"),
        ("synchronous_commit", "synchronous_commit"),
    ] {
        server.set(setting, "off").await.expect("set");
        let after = levels(&config, &Bounds::default()).await;
        server.set(setting, "on").await.expect("set");
        only(check, Level::Warn, &before, &after);
    }
    let flushing = PostgresConfig { flush_before_publish: true, ..config };
    server.set("synchronous_commit", "off").await.expect("set");
    assert_eq!(levels(&flushing, &Bounds::default()).await["synchronous_commit"].level, Level::Ok);
}

#[tokio::test]
async fn transactions_that_nobody_ends_are_named() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let config = PostgresConfig::new(server.url());
    migrate::up(&config, &Roles::default()).await.expect("permitted");
    let bounds = Bounds { long_transaction: Duration::from_millis(200), ..Bounds::default() };
    let before = levels(&config, &bounds).await;
    let client = connect(&server.url()).await;
    let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.expect("answers").get(0);
    client.batch_execute("begin; select pg_current_xact_id(), pg_sleep(0.3)").await.expect("open");
    let after = levels(&config, &bounds).await;
    only("long_transactions", Level::Warn, &before, &after);
    assert!(
        after["long_transactions"].text.contains(&format!("pid {pid}")),
        "{}",
        after["long_transactions"].text
    );

    client.batch_execute("prepare transaction 'forgotten'; select pg_sleep(0.3)").await.expect("prepared");
    let after = levels(&config, &bounds).await;
    only("prepared_transactions", Level::Warn, &before, &after);
    assert!(after["prepared_transactions"].text.contains("forgotten"));
    client.batch_execute("rollback prepared 'forgotten'").await.expect("ended");
}

#[tokio::test]
async fn a_pooler_that_nobody_mentioned_is_named() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let pool = require_service!(PgBouncer::start(&server).await);
    migrate::up(&PostgresConfig::new(server.url()), &Roles::default()).await.expect("permitted");
    let before = levels(&PostgresConfig::new(server.url()), &Bounds::default()).await;
    let after = levels(&PostgresConfig::new(pool.url()), &Bounds::default()).await;
    assert_eq!(
        (before["pooler"].level, after["pooler"].level),
        (Level::Ok, Level::Fail),
        "{}",
        after["pooler"].text
    );
    assert!(after["pooler"].text.contains("pooled = true"));
    assert_eq!(
        (before["notify"].level, after["notify"].level),
        (Level::Ok, Level::Warn),
        "{}",
        after["notify"].text
    );
    let expected = PostgresConfig { pooled: true, ..PostgresConfig::new(pool.url()) };
    let after = levels(&expected, &Bounds::default()).await;
    only("pooler", Level::Warn, &before, &after);
}

#[tokio::test]
async fn a_standby_is_named() {
    let mut server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let config = PostgresConfig::new(server.url());
    migrate::up(&config, &Roles::default()).await.expect("permitted");
    let before = levels(&config, &Bounds::default()).await;
    server.stop_fast().await.expect("stopped");
    std::fs::write(server.data_dir().join("standby.signal"), "").expect("written");
    server.start_again().await.expect("started");
    let after = levels(&config, &Bounds::default()).await;
    only("standby", Level::Fail, &before, &after);
    let refused = PostgresAdmin::connect(config).await.map(drop).expect_err("a standby");
    assert!(refused.to_string().contains("standby"), "{refused}");
}
