//! What an operator gets to read when something is wrong.

use crate::binary::run;
use crate::daemon::Daemon;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Port, Postgres, PostgresOptions, TestDatabase, Version};
use rustix::process::Signal;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_schema_is_named_with_what_to_do() {
    let database = require_service!(TestDatabase::create().await);
    for args in [
        &["run", "--sink", "stdout", "--listen", "off"] as &[&str],
        &["status"],
        &["append", "t", "--payload", "x"],
    ] {
        let ended = run(&[args, &["--url", &database.url()]].concat());
        assert_eq!(ended.code, 1, "{args:?}: {}", ended.err);
        assert!(ended.err.contains("posthaste migrate up"), "{args:?}: {}", ended.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_named_and_not_printed() {
    let options = PostgresOptions::default().scram_user("relay", "right");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let url = server.url_for("postgres", "relay:wr0ng");
    for args in [&["run", "--sink", "stdout", "--listen", "off"] as &[&str], &["status"], &["migrate", "up"]]
    {
        let ended = run(&[args, &["--url", &url]].concat());
        assert_eq!(ended.code, 1, "{args:?}: {}", ended.err);
        assert!(ended.err.contains("password") && !ended.err.contains("wr0ng"), "{args:?}: {}", ended.err);
    }
}

/// Waiting mends a server that is down, not a password that nobody has written down.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_password_is_named() {
    let options = PostgresOptions::default().scram_user("relay", "right");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let url = server.url_for("postgres", "relay");
    for args in [&["run", "--sink", "stdout", "--listen", "off"] as &[&str], &["status"], &["migrate", "up"]]
    {
        let ended = run(&[args, &["--url", &url]].concat());
        assert_eq!(ended.code, 1, "{args:?}: {}", ended.err);
        assert!(ended.err.contains("asks for a password and none is configured"), "{args:?}: {}", ended.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_down_is_waited_for() {
    let port = Port::claim().expect("a free port");
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", port.number());
    let ended = run(&["status", "--url", &url]);
    assert!(ended.code == 1 && ended.err.contains("Appended events stay in the database"), "{}", ended.err);
    let daemon = Daemon::start(&["--url", &url, "--sink", "stdout"]);
    let body =
        daemon.page("/readyz", |status, body| status == 503 && body.contains("waiting for the database"));
    assert!(body.contains("\"ready\":false"), "{body}");
    assert_eq!(daemon.get("/livez").0, 200);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_outbox_does_not_stop_the_others() {
    let good = require_service!(TestDatabase::create().await);
    let bad = require_service!(TestDatabase::create().await);
    run(&["migrate", "up", "--url", &good.url()]).ok();
    let file = crate::binary::Scratch::new(&format!(
        "[[outbox]]\nname = \"good\"\nurl = \"{}\"\n[[outbox]]\nname = \"bad\"\nurl = \"{}\"\n\
         [sinks.out]\ntype = \"stdout\"\nstart_at = \"earliest\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n",
        good.url(),
        bad.url()
    ));
    let several = run(&["append", "t", "--payload", "x", "--config", file.path()]);
    assert!(several.code == 2 && several.err.contains("--outbox: good, bad"), "{}", several.err);
    run(&["append", "t", "--payload", "x", "--config", file.path(), "--outbox", "good"]).ok();
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.events(1);
    let body = daemon.page("/readyz", |_, body| body.contains("failed: outbox `bad`"));
    assert!(body.contains("migrate up"), "{body}");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once() {
    let database = require_service!(TestDatabase::create().await);
    run(&["migrate", "up", "--url", &database.url()]).ok();
    let daemon = Daemon::start(&["--url", &database.url(), "--sink", "null"]);
    daemon.page("/readyz", |status, _| status == 200);
    // No lease can be given back: no drain is quicker than the second signal.
    let client = database.connect().await.expect("a connection");
    client.batch_execute("begin; lock posthaste.lanes").await.expect("held");
    daemon.signal(Signal::TERM);
    daemon.says("SIGTERM");
    daemon.signal(Signal::INT);
    let (code, said) = daemon.ends();
    assert!(code == 1 && said.contains("again: ending at once"), "{code} {said}");
}

/// `timeout` sends its signal twice: to the process, and to its group.
#[tokio::test(flavor = "multi_thread")]
async fn a_sigterm_that_comes_twice_at_once_drains() {
    let database = require_service!(TestDatabase::create().await);
    run(&["migrate", "up", "--url", &database.url()]).ok();
    loop {
        let daemon = Daemon::start(&["--url", &database.url(), "--sink", "null"]);
        daemon.page("/readyz", |status, _| status == 200);
        let client = database.connect().await.expect("a connection");
        client.batch_execute("begin; lock posthaste.lanes").await.expect("held");
        let first = Instant::now();
        daemon.signal(Signal::TERM);
        daemon.says("SIGTERM");
        daemon.signal(Signal::TERM);
        // A machine that stood still for so long has sent two signals.
        let is_one = first.elapsed() < Duration::from_millis(900);
        client.batch_execute("rollback").await.expect("given back");
        let (code, said) = daemon.ends();
        if is_one {
            assert!(code == 0 && !said.contains("again"), "{code} {said}");
            return;
        }
    }
}
