//! What is changed under a running consumer, and whose login it has.

use crate::rig::Rig;
use posthaste_testkit::require_service;
use rustix::process::Signal;
use std::time::{Duration, Instant};

const EFFECTS: &str = "select count(*) from trial.effects";
const LETTERS: &str = "select count(*) from posthaste.inbox_dead_letters";
const TRANSACTIONS: &str = "select count(distinct xid::text) from posthaste.inbox";

/// SIGHUP: settings of the consumer apply at once, what it is stays until the next start, and a file that
/// cannot be used changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_consumer_takes_new_settings() {
    let rig = require_service!(Rig::set("batch_max = 1\nretry = { delays_ms = [] }").await);
    let member = rig.start();
    rig.publish(40, "order").await;
    rig.publish(1, "late").await;
    rig.until_settled().await;
    assert_eq!((rig.count(TRANSACTIONS).await, rig.count(LETTERS).await), (41, 1), "one by one, tried once");

    rig.reconfigure(
        "batch_max = 1\nretry = { delays_ms = [] }",
        "batch_max = 64\nretry = { delays_ms = [10, 10] }",
    );
    rig.reconfigure("[consumers.billing]\n", "[consumers.billing]\norder = \"partition\"\n");
    member.signal(Signal::HUP);
    member.says("SIGHUP: consumers.billing.batch_max: 1 → 64").await;
    member.says("SIGHUP: takes effect at the next start: consumers.billing.order").await;
    rig.publish(400, "order").await;
    rig.publish(1, "late").await;
    rig.until_settled().await;
    let transactions = rig.count(TRANSACTIONS).await - 41;
    assert!(transactions < 300, "{transactions} transactions for 401 messages");
    let late = format!("select count(*) from trial.effects where id = 'm{}'", rig.last());
    assert_eq!((rig.count(LETTERS).await, rig.count(&late).await), (1, 1), "it is tried again now");

    rig.reconfigure("batch_max = 64", "batch_max = 0");
    member.signal(Signal::HUP);
    let refused = member.says("the configuration cannot be used, nothing was changed").await;
    assert!(refused.contains("batch_max"), "{refused}");
    rig.publish(40, "order").await;
    rig.finish(member, "after two reloads").await;
}

/// `rate --consumer`: no faster than that from the first message on, until it is lifted under a running
/// consumer.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_by_hand_holds_until_it_is_lifted() {
    let rig = require_service!(Rig::set("").await);
    let said = rig.cli(&["rate", "10", "--consumer", "billing", "--reason", "the ledger is slow"]).ok();
    assert!(said.contains("consumer billing of outbox shop handles at most 10"), "{said}");
    rig.publish(200, "order").await;
    let began = Instant::now();
    let member = rig.start();
    rig.until(EFFECTS, 30).await;
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(2_800), "30 messages at 10 a second took {took:?}");
    let waiting = 200 - rig.count(EFFECTS).await;
    assert!(waiting > 0, "the others wait");
    let lifted = Instant::now();
    rig.cli(&["rate", "off", "--consumer", "billing"]).ok();
    rig.until_settled().await;
    let took = lifted.elapsed();
    assert!(took < Duration::from_secs_f64(waiting as f64 / 10.0), "the last {waiting} took {took:?}");
    rig.finish(member, "after a rate by hand").await;
    let audited = "select count(*) from posthaste.audit where reason = 'the ledger is slow'";
    assert_eq!(rig.count(audited).await, 1);
    let wrong = rig.cli(&["rate", "0", "--consumer", "billing"]);
    assert!(wrong.code == 2 && wrong.err.contains("above 0"), "{}", wrong.err);
    let misspelt = rig.cli(&["rate", "5", "--consumer", "biling"]);
    assert!(misspelt.code == 2 && misspelt.err.contains("configured are: billing"), "{}", misspelt.err);
}

/// The service's own login, in a file.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_reads_its_login_from_a_file() {
    let rig = require_service!(Rig::set("").await);
    let login = format!("teller_{}", uuid::Uuid::new_v4().simple());
    rig.run(&format!(
        "create role {login} login in role posthaste_consumer; grant usage on schema trial to {login};
         grant all on all tables in schema trial to {login}; grant all on all sequences in schema trial to {login}"
    ))
    .await;
    let file = rig.write("login", &format!("{}\n", rig.url_as(&login)));
    rig.reconfigure("[consumers.billing]\n", &format!("[consumers.billing]\nurl_file = {file:?}\n"));
    rig.publish(20, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let sessions = format!("select count(*) from pg_stat_activity where usename = '{login}'");
    assert!(rig.count(&sessions).await > 0, "it is the one that works");
    let said = member.said();
    rig.finish(member, "with a login from a file").await;
    assert!(!said.contains("ERROR"), "{said}");
    rig.run(&format!("drop owned by {login}; drop role {login}")).await;
}
