//! Members that come and go each second, and one that dies under load.

use crate::grounds::kafka_sink;
use crate::kafka::{EFFECTS, shared};
use crate::kafka_members::{FIX, LETTERS};
use crate::rig::Rig;
use crate::scale::sized;
use posthaste_testkit::require_service;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// What one member may have taken and not settled.
const IN_HAND_MAX: u32 = 200;

/// How long members come and go: a moment, or with `POSTHASTE_SOAK=1` two minutes, with deaths.
fn storm() -> (Duration, bool) {
    sized((Duration::from_secs(5), false), (Duration::from_secs(120), true))
}

/// F65: a member comes and one goes each second, while messages wait for their next try and a breaker is
/// open.
#[tokio::test(flavor = "multi_thread")]
async fn f65_members_come_and_go_each_second_with_retries_and_a_breaker_open() {
    come_and_go("classic").await;
}

/// The same where the broker divides the partitions.
#[tokio::test(flavor = "multi_thread")]
async fn f65_members_come_and_go_each_second_by_the_newer_protocol() {
    come_and_go("consumer").await;
}

async fn come_and_go(protocol: &str) {
    let kafka = require_service!(shared().await);
    // What fails twice has room for two deaths besides: each of them is an attempt (F21).
    let settings = "batch_max = 8\nretry = { delays_ms = [300, 500, 500, 500] }";
    let rig = require_service!(Rig::set_on_kafka(kafka, 6, settings).await);
    let own = format!("[sources.own]\n{}\nprotocol = \"{protocol}\"\n", kafka_sink(kafka));
    let named = "[consumers.billing]\nsource = \"broker\"";
    rig.reconfigure(named, &format!("{own}{}", named.replace("broker", "own")));
    // What needs the bank is all of one key, and so of one partition.
    let kind = |n| match n % 40 {
        3 => "away",
        7 | 17 | 28 | 38 => "late",
        _ => "slow",
    };
    rig.publish_mixed(120, kind).await;
    let first = rig.start();
    first.page("/readyz", "the breaker is open", |_, body| body.contains("waiting for bank")).await;
    let mut members = VecDeque::from([first]);
    let (time, has_deaths) = storm();
    let (end, mut round) = (Instant::now() + time, 0);
    while Instant::now() < end {
        members.push_back(rig.start());
        rig.publish_mixed(40, kind).await;
        tokio::time::sleep(Duration::from_millis(700)).await; // pace
        if members.len() > 2 {
            let mut gone = members.pop_front().expect("three of them");
            round += 1;
            if has_deaths && round % 4 == 0 { gone.kill9() } else { gone.stop().await }
        }
    }
    rig.check("in the storm").await;
    rig.client.batch_execute(FIX).await.expect("the bank is back");
    rig.until_settled().await;
    rig.check("after the storm").await;
    let why = "select coalesce(string_agg(message_id || ' ' || error_code || ' ' || attempts || ' ' || coalesce(history::text, ''), '; '), '')
                 from posthaste.inbox_dead_letters";
    let why: String = rig.client.query_one(why, &[]).await.expect("letters").get(0);
    assert_eq!(
        (rig.count(EFFECTS).await, rig.count(LETTERS).await),
        (i64::from(rig.last()), 0),
        "all, dead: {why}"
    );
    for member in members {
        member.stop().await;
    }
}

/// G5: one of two members dies under load. The other one handles the next message of a partition that was
/// the dead one's within seconds. Nothing is lost, twice or out of order, and no more comes again than a
/// member may have in hand.
#[tokio::test(flavor = "multi_thread")]
async fn g5_one_of_two_members_dies_under_load_and_the_other_takes_over() {
    let (deaths, within) = sized((1, Duration::from_secs(20)), (3, Duration::from_secs(10)));
    let kafka = require_service!(shared().await);
    let settings = format!("batch_max = 8\nin_hand_max = {IN_HAND_MAX}");
    let rig = require_service!(Rig::set_on_kafka(kafka, 6, &settings).await);
    rig.publish(80, "order").await;
    let mut survivor = rig.start();
    let is_over = AtomicBool::new(false);
    let load = async {
        while !is_over.load(Ordering::Relaxed) {
            rig.publish(24, "slow").await;
            tokio::time::sleep(Duration::from_millis(100)).await; // pace: what two members just about manage
        }
    };
    let dying = async {
        for _ in 0..deaths {
            let mut dead = std::mem::replace(&mut survivor, rig.start());
            rig.until_shared_by(&[&dead, &survivor]).await;
            let orphans = rig.partitions_of(&dead).await;
            let settled = format!("select count(*) from posthaste.inbox where partition = any ('{orphans}')");
            let handled = rig.count(&settled).await;
            rig.until(&settled, handled + 20).await;
            let (before, again) = (Instant::now(), survivor.handled("duplicate").await);
            dead.kill9();
            // What the dead one committed last began before.
            let now: String =
                rig.client.query_one("select clock_timestamp()::text", &[]).await.expect("the time").get(0);
            rig.until(&format!("{settled} and processed_at > '{now}'"), 1).await;
            let took = before.elapsed();
            eprintln!("a death under load: the other took over after {took:?}");
            assert!(took < within, "it handles the next message after {took:?}");
            rig.check("after a death under load").await;
            rig.until_shared_by(&[&survivor]).await;
            let again = survivor.handled("duplicate").await - again;
            assert!(again <= f64::from(IN_HAND_MAX), "{again} came again");
        }
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(load, dying);
    rig.finish(survivor, "after deaths under load").await;
    let letters = rig.count(LETTERS).await;
    assert_eq!((rig.count(EFFECTS).await, letters), (i64::from(rig.last()), 0), "all, dead");
}
