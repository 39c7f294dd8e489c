//! The database dies in the middle of a commit, or comes back as its standby knew it.

use crate::member::{Member, WAIT};
use crate::restore::run;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, Version};
use std::process::Command;
use std::time::Duration;

const SETTINGS: &str = "batch_max = 8";

pub(crate) async fn blame(rig: &Rig, member: &Member) -> (i64, i64, f64) {
    let dead = rig.count("select count(*) from posthaste.inbox_dead_letters").await;
    let deferred = rig.count("select count(*) from posthaste.inbox_deferred").await;
    (dead, deferred, member.metric("posthaste_consumer_retries_total").await)
}

/// The answer of a commit is lost with the server: what was done is a duplicate, what was not is first.
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_commit_whose_answer_is_lost_happens_once() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let mut rig = Rig::set_on(server, SETTINGS).await;
    rig.publish(200, "order").await;
    let pid = rig.server().pid().expect("the server runs");
    let member = rig.start_to_die(&format!("consume.before_commit@3:{pid}"));
    let client = &rig.client;
    eventually("the server dies", WAIT, || async { client.is_closed().then_some(()) }).await;
    rig.server().kill9().await.expect("its children are gone too");
    // Those that are left behind for a moment keep a new one from starting beside them.
    let end = tokio::time::Instant::now() + WAIT;
    while let Err(error) = rig.server().start_again().await {
        assert!(tokio::time::Instant::now() < end, "the server recovers: {error}");
        tokio::time::sleep(Duration::from_millis(100)).await; // pace
    }
    rig.reconnect().await;
    rig.check("right after the server's death").await;
    rig.publish(40, "order").await;
    rig.until_settled().await;
    assert_eq!(blame(&rig, &member).await, (0, 0, 0.0), "F50: dead, deferred, retries");
    rig.finish(member, "after the server's death in a commit").await;
}

/// A consumer with nothing to do leaves the database alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_consumer_asks_at_most_four_statements_a_second() {
    let options = PostgresOptions::default()
        .setting("shared_preload_libraries", "pg_stat_statements")
        .setting("pg_stat_statements.track_utility", "off");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let rig = Rig::set_on(server, SETTINGS).await;
    rig.reconfigure("name = \"shop\"\n", "name = \"shop\"\nrelay = false\n");
    rig.run("create extension pg_stat_statements").await;
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    member.page("/readyz", "it is idle", |status, body| status == 200 && body.contains("idle")).await;
    rig.run("select pg_stat_statements_reset()").await;
    let began = tokio::time::Instant::now();
    let asked = "select coalesce(sum(calls), 0)::bigint from pg_stat_statements where query not like '%pg_stat_statements%'";
    rig.until(asked, 12).await;
    let a_second = rig.count(asked).await as f64 / began.elapsed().as_secs_f64();
    let which =
        rig.client.query("select calls, left(query, 60) from pg_stat_statements order by 1 desc", &[]).await;
    let which: Vec<(i64, String)> =
        which.expect("statements").iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(a_second <= 4.0, "{a_second:.1} statements a second: {which:?}");
    rig.finish(member, "after an idle time").await;
}

/// F6: the database fails over to an asynchronous standby that never saw the last transactions. The consumer
/// is taken back with it, and everything that was lost happens again.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_failover_to_an_asynchronous_standby_loses_nothing() {
    let options = PostgresOptions::default().hba("host replication all 127.0.0.1/32 trust");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let mut rig = Rig::set_on(server, SETTINGS).await;
    rig.publish(100, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let data = rig.server().data_dir();
    let standby = data.with_extension("standby");
    let port = rig.server().port().to_string();
    let user =
        rig.client.query_one("select current_user::text", &[]).await.expect("a name").get::<_, String>(0);
    run(Command::new("/usr/lib/postgresql/15/bin/pg_basebackup")
        .args(["-h", "127.0.0.1", "-p", &port, "-U", &user, "-X", "stream", "-c", "fast", "-D"])
        .arg(&standby));
    run(Command::new("chown").arg("-R").arg("--reference").arg(&data).arg(&standby));
    // What happens from here on has not reached the standby.
    rig.publish(60, "order").await;
    rig.until_settled().await;
    rig.server().kill9().await.expect("gone");
    run(Command::new("rm").arg("-r").arg(&data));
    run(Command::new("mv").arg(&standby).arg(&data));
    std::fs::write(data.join("standby.signal"), "").expect("a file for the server");
    run(Command::new("chown").arg("--reference").arg(&data).arg(data.join("standby.signal")));
    rig.server().start_again().await.expect("the standby takes its place");
    rig.reconnect().await;
    rig.run("select pg_promote()").await;
    rig.publish(20, "order").await;
    rig.until_settled().await;
    assert_eq!(rig.count("select count(*) from trial.effects").await, 180, "everything since happens again");
    member.stop().await;
    rig.check("after a failover").await;
}
