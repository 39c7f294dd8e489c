//! The way to the database: encrypted and verified, with a password or a certificate that may change.
//!
//! There is no encryption without verification (F29): a wrong authority, a wrong name and an expired
//! certificate are refused, and the message says which of them it was.

use crate::load::append;
use crate::relay::WAIT;
use crate::rig::{Site, TO_FILE, await_all, await_settled, config};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair, Postgres, PostgresOptions, Version};
use std::path::Path;
use tokio_postgres::Client;

async fn server(certs: &Certs, pair: &Pair, options: PostgresOptions) -> Option<Postgres> {
    let options = options.tls(pair, certs.ca()).tls_only();
    Some(require_service!(Postgres::start(Version::V15, &options).await, None))
}

/// The lines of an outbox that verifies with this authority.
fn verify(ca: &Path) -> String {
    format!("tls = \"verify-full\"\nca_file = \"{}\"", ca.display())
}

/// The administrator over the Unix socket, in the database that the relay uses.
async fn migrated(server: &Postgres, site: &Site, outbox: &str) -> Client {
    site.write("owner.toml", &config(&server.url(), "", outbox, TO_FILE));
    site.run("owner.toml", &["migrate", "up"]).ok();
    server.admin().await.expect("the server answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn f29_verify_full_delivers_and_anything_less_is_refused() {
    let certs = Certs::make().expect("certificates");
    let Some(server) = server(&certs, certs.server(), PostgresOptions::default()).await else { return };
    let site = Site::new();
    let client = migrated(&server, &site, &verify(certs.ca())).await;
    append(&client, "orders", 100).await;
    let relay = site.start("owner.toml");
    await_all(&client, &site.file, "over TLS").await;
    relay.stop().await;

    let wrong_name =
        format!("postgres://postgres@elsewhere.example:{}/postgres?hostaddr=127.0.0.1", server.port());
    let cases = [
        ("wrong authority", server.url(), verify(certs.other_ca()), "UnknownIssuer"),
        ("wrong name", wrong_name, verify(certs.ca()), "elsewhere.example"),
        ("no TLS", server.url(), String::new(), "no encryption"),
    ];
    for (what, url, outbox, text) in cases {
        site.write("posthaste.toml", &config(&url, "", &outbox, TO_FILE));
        refused(&site, what, text).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f29_an_expired_certificate_is_refused() {
    let certs = Certs::make().expect("certificates");
    let Some(server) = server(&certs, certs.expired_server(), PostgresOptions::default()).await else {
        return;
    };
    let site = Site::new();
    site.write("posthaste.toml", &config(&server.url(), "", &verify(certs.ca()), TO_FILE));
    refused(&site, "expired", "expired").await;
}

/// A command says it and ends with 1; the daemon says it and waits, or ends with 1.
async fn refused(site: &Site, what: &str, text: &str) {
    let ended = site.run("posthaste.toml", &["status"]);
    eprintln!("{what}: {}", ended.err.trim());
    assert!(ended.code == 1 && ended.err.contains(text), "{what}: {} {}", ended.code, ended.err);
    let relay = site.start("posthaste.toml");
    relay.says(text).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_a_login() {
    let certs = Certs::make().expect("certificates");
    let options = PostgresOptions::default().certificate_user("mover");
    let Some(server) = server(&certs, certs.server(), options).await else { return };
    let site = Site::new();
    let client = migrated(&server, &site, &verify(certs.ca())).await;
    client.batch_execute("grant posthaste_relay to mover").await.expect("a membership");
    let with = |pair: &Pair| {
        let (certificate, key) = (pair.certificate.display(), pair.key.display());
        format!("{}\ncert_file = \"{certificate}\"\nkey_file = \"{key}\"", verify(certs.ca()))
    };
    let url = server.url_for("postgres", "mover");
    let mover = certs.client("mover").expect("a certificate");
    site.write("posthaste.toml", &config(&url, "", &with(&mover), TO_FILE));
    append(&client, "orders", 100).await;
    let relay = site.start("posthaste.toml");
    await_all(&client, &site.file, "with a certificate").await;
    relay.stop().await;

    let other = certs.client("somebody").expect("a certificate");
    site.write("posthaste.toml", &config(&url, "", &with(&other), TO_FILE));
    refused(&site, "another's certificate", "certificate authentication failed").await;
    site.write("posthaste.toml", &config(&url, "", &verify(certs.ca()), TO_FILE));
    refused(&site, "no certificate", "certificate").await;
}

/// The password changes in the database and in the file; connections end; the relay is back by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_file_may_change_while_the_relay_runs() {
    let options = PostgresOptions::default().scram_user("mover", "first");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let site = Site::new();
    let client = migrated(&server, &site, "").await;
    client.batch_execute("grant posthaste_relay to mover").await.expect("a membership");
    let file = format!("password_file = \"{}\"", site.write("password", "first\n"));
    site.write(
        "posthaste.toml",
        &config(&server.url_for("postgres", "mover"), "heartbeat_ms = 200", &file, TO_FILE),
    );
    let relay = site.start("posthaste.toml");
    append(&client, "orders", 100).await;
    await_all(&client, &site.file, "with the first password").await;

    client.batch_execute("alter role mover password 'second'").await.expect("a rotation");
    site.write("password", "second\n");
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'mover'";
    eventually("its connections are ended", WAIT, || async {
        (crate::rig::count(&client, end).await > 0).then_some(())
    })
    .await;
    append(&client, "orders", 100).await;
    await_all(&client, &site.file, "with the second password").await;
    await_settled(&client).await;
    relay.stop().await;
}

/// Wrong for a moment: the role was changed before the file. The relay must live through that.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_wrong_for_a_moment_does_not_end_the_relay() {
    let options = PostgresOptions::default().scram_user("mover", "first");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let site = Site::new();
    let client = migrated(&server, &site, "").await;
    client.batch_execute("grant posthaste_relay to mover").await.expect("a membership");
    let file = format!("password_file = \"{}\"", site.write("password", "first\n"));
    site.write(
        "posthaste.toml",
        &config(&server.url_for("postgres", "mover"), "heartbeat_ms = 200", &file, TO_FILE),
    );
    let relay = site.start("posthaste.toml");
    append(&client, "orders", 100).await;
    await_all(&client, &site.file, "with the first password").await;

    client.batch_execute("alter role mover password 'second'").await.expect("a rotation");
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'mover'";
    crate::rig::count(&client, end).await;
    relay.says("password authentication failed").await;
    site.write("password", "second\n");
    append(&client, "orders", 100).await;
    await_all(&client, &site.file, "with the second password").await;
    await_settled(&client).await;
    relay.stop().await;
}
