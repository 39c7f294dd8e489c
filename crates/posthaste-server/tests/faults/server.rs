//! A database that makes things hard: tiny timeouts, a standby, a missing right, a wrong name.
//!
//! What passes by itself is lived through; what somebody must mend is said in words, with exit code 1.

use crate::ledger::assert_key_order;
use crate::load::{Load, append, connect};
use crate::relay::WAIT;
use crate::rig::{Site, TO_FILE, assert_blameless, await_all, await_settled, blame, config};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, TestDatabase, Version};
use std::os::unix::fs::{MetadataExt, chown};

/// A limit that an administrator set for everybody, and that catches the relay's statements.
async fn lived_through(setting: &str) {
    let database = require_service!(TestDatabase::create().await);
    let site = Site::new();
    site.write("posthaste.toml", &config(&database.url(), "heartbeat_ms = 200", "lanes = 2", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    let limit = format!("alter database {} set {setting}", database.name());
    client.batch_execute(&limit).await.expect("a setting");
    append(&client, "orders", 3_000).await;
    let relay = site.start("posthaste.toml");
    let load = Load::start(&database.url(), &["orders"], 400).await;
    eventually("events flow", WAIT, || async { (site.file.len() > 3_500).then_some(()) }).await;
    // Somebody holds what a settlement needs, longer than the limit, until that has caught some.
    let caught = || relay.said().lines().filter(|line| line.contains("timeout")).count();
    eventually("a statement is caught", WAIT, || async {
        for table in ["receipts", "lanes"] {
            let held = format!("begin; lock posthaste.{table} in share mode; select pg_sleep(0.6); commit");
            client.batch_execute(&held).await.expect("a held table");
        }
        (caught() > 0).then_some(())
    })
    .await;
    load.stop().await;
    let log = await_all(&client, &site.file, setting).await;
    await_settled(&client).await;
    assert_key_order(&log, &site.file, setting);
    let (dead, tried) = blame(&client).await;
    assert_blameless(dead, tried, setting);
    eprintln!("{setting}: {} statements were caught", caught());
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tiny_statement_timeout_is_lived_through() {
    lived_through("statement_timeout = '200ms'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tiny_lock_timeout_is_lived_through() {
    lived_through("lock_timeout = '5ms'").await;
}

/// F6: a standby's snapshots list no running transactions; reading from one would skip events.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_standby_is_refused() {
    let mut server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let site = Site::new();
    site.write("posthaste.toml", &config(&server.url(), "", "", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    server.stop_fast().await.expect("a clean stop");
    let (signal, owner) = (server.data_dir().join("standby.signal"), server.data_dir());
    std::fs::write(&signal, "").expect("a file for the server");
    let owner = std::fs::metadata(owner).expect("the data directory");
    chown(&signal, Some(owner.uid()), Some(owner.gid())).expect("the server's own file");
    server.start_again().await.expect("a standby answers too");
    ends_with_1(&site, "standby", "standby").await;
    let doctor = site.run("posthaste.toml", &["doctor"]);
    assert!(doctor.code == 1 && doctor.out.contains("standby"), "{}{}", doctor.out, doctor.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_and_an_unknown_database_are_named() {
    let options = PostgresOptions::default().scram_user("nobody", "n1");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let site = Site::new();
    site.write("posthaste.toml", &config(&server.url(), "", "", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    site.write("posthaste.toml", &config(&server.url_for("postgres", "nobody:n1"), "", "", TO_FILE));
    ends_with_1(&site, "missing right", "permission denied").await;
    site.write("posthaste.toml", &config(&server.url_for("nowhere", "postgres"), "", "", TO_FILE));
    ends_with_1(&site, "unknown database", "\"nowhere\" does not exist").await;
}

/// An application's login that was given to the relay by mistake can append, and must not half work.
#[tokio::test(flavor = "multi_thread")]
async fn the_applications_role_cannot_relay_and_is_told_so() {
    let options = PostgresOptions::default().scram_user("shop", "s1");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let site = Site::new();
    site.write("posthaste.toml", &config(&server.url(), "", "", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = server.admin().await.expect("the server answers");
    client.batch_execute("grant posthaste_app to shop").await.expect("a membership");
    site.write("posthaste.toml", &config(&server.url_for("postgres", "shop:s1"), "", "", TO_FILE));
    let mut relay = site.start("posthaste.toml");
    assert_eq!(relay.ends().await.code(), Some(1), "{}", relay.said());
    assert!(relay.said().contains("permission denied"), "{}", relay.said());
}

/// Both the daemon and a command say what it is.
async fn ends_with_1(site: &Site, what: &str, text: &str) {
    let mut relay = site.start("posthaste.toml");
    let status = relay.ends().await;
    eprintln!("{what}: {}", relay.said().trim());
    assert!(status.code() == Some(1) && relay.said().contains(text), "{what}: {status:?} {}", relay.said());
    let status = site.run("posthaste.toml", &["run", "--sink", "null"]);
    assert_ne!(status.code, 0, "{what}: {}", status.err);
}
