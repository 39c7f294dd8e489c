//! PgBouncer in transaction mode, and roles without any privilege beyond what they need.

use crate::ledger::assert_key_order;
use crate::load::{Load, append, connect};
use crate::relay::WAIT;
use crate::rig::{Site, TO_FILE, assert_blameless, await_all, await_settled, blame, config, count};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{PgBouncer, Postgres, PostgresOptions, TestDatabase, Version};

/// What a session that is none complains about.
const COMPLAINTS: [&str; 3] = ["prepared statement", "failed", "lease lost"];

#[tokio::test(flavor = "multi_thread")]
async fn pooled_relays_deliver_behind_a_pooler_in_transaction_mode() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let bouncer = require_service!(PgBouncer::start(&server).await);
    let site = Site::new();
    site.write(
        "posthaste.toml",
        &config(&bouncer.url(), "heartbeat_ms = 300", "pooled = true\nlanes = 2", TO_FILE),
    );
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&server.url()).await;
    let (first, second) = (site.start("posthaste.toml"), site.start("posthaste.toml"));
    let load = Load::start(&server.url(), &["orders"], 400).await;
    eventually("each has a lane", WAIT, || async {
        let rows = client
            .query("select owner from posthaste.lanes where owner is not null", &[])
            .await
            .expect("lanes");
        let owner = |relay: &crate::relay::Relay| rows.iter().any(|row| relay.owns(row.get(0)));
        (owner(&first) && owner(&second)).then_some(())
    })
    .await;
    let seen = site.file.len();
    eventually("both deliver", WAIT, || async { (site.file.len() > seen + 500).then_some(()) }).await;
    load.stop().await;
    let log = await_all(&client, &site.file, "behind a pooler").await;
    await_settled(&client).await;
    assert_key_order(&log, &site.file, "behind a pooler");
    let (dead, tried) = blame(&client).await;
    assert_blameless(dead, tried, "behind a pooler");
    for said in [first.said(), second.said()] {
        assert!(!COMPLAINTS.iter().any(|text| said.contains(text)), "{said}");
    }
    site.run("posthaste.toml", &["doctor", "--allow-warnings"]).ok();
    first.stop().await;
    second.stop().await;
}

/// Without `pooled = true` the operator is told to set it, by the error and by `doctor`.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_nobody_declared_is_named() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let bouncer = require_service!(PgBouncer::start(&server).await);
    let site = Site::new();
    site.write("direct.toml", &config(&server.url(), "", "", TO_FILE));
    site.write("posthaste.toml", &config(&bouncer.url(), "", "", TO_FILE));
    site.run("direct.toml", &["migrate", "up"]).ok();
    let doctor = site.run("posthaste.toml", &["doctor"]);
    assert!(doctor.code == 1 && doctor.out.contains("pooled"), "{}{}", doctor.out, doctor.err);
    let client = connect(&server.url()).await;
    append(&client, "orders", 200).await;
    let mut relay = site.start("posthaste.toml");
    let status = relay.ends().await;
    assert_eq!(status.code(), Some(1), "{}", relay.said());
    assert!(relay.said().contains("pooled = true"), "{}", relay.said());
}

/// The relay as the relay's role, the application as the application's, an operator as the admin's.
#[tokio::test(flavor = "multi_thread")]
async fn least_privilege_is_enough() {
    let options = PostgresOptions::default()
        .scram_user("shop", "s1")
        .scram_user("mover", "m1")
        .scram_user("boss", "b1");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let database = require_service!(TestDatabase::create_on(&server).await);
    let site = Site::new();
    let retention = "lanes = 2\nretention = { events_hours = 0.0005, turn_after_hours = 0.0002 }";
    site.write("owner.toml", &config(&database.url(), "", retention, TO_FILE));
    site.write(
        "relay.toml",
        &config(&database.url_as("mover:m1"), "sweep_interval_ms = 200", retention, TO_FILE),
    );
    site.write("admin.toml", &config(&database.url_as("boss:b1"), "", retention, TO_FILE));
    site.run("owner.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    let members =
        "grant posthaste_app to shop; grant posthaste_relay to mover; grant posthaste_admin to boss";
    client.batch_execute(members).await.expect("memberships");
    let shop = connect(&database.url_as("shop:s1")).await;
    append(&shop, "orders", 500).await;
    let refused = shop.query("select * from posthaste.outbox limit 1", &[]).await;
    assert!(refused.is_err(), "an application appends and reads nothing");

    site.run("relay.toml", &["doctor", "--allow-warnings"]).ok();
    let relay = site.start("relay.toml");
    await_all(&client, &site.file, "as roles").await;
    append(&shop, "orders", 500).await;
    let log = await_all(&client, &site.file, "as roles").await;
    assert_key_order(&log, &site.file, "as roles");
    let turned =
        "select count(*) from posthaste.segments where turn is null and closed_at is not null or turn > 2";
    eventually("the ring turns", WAIT, || async {
        append(&shop, "orders", 1).await;
        (count(&client, turned).await > 0).then_some(())
    })
    .await;
    site.run("admin.toml", &["status"]).ok();
    site.run("admin.toml", &["pause", "--sink", "file", "--reason", "test"]).ok();
    assert!(!relay.said().contains("ERROR"), "{}", relay.said());
    relay.stop().await;
}
