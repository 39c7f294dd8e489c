//! Several sinks in one relay: what one of them does is none of the others' business (F30).

use crate::broker::{make_stream, watch_subject};
use crate::ledger::{Deliveries, Delivery};
use crate::load::{Load, connect};
use crate::relay::WAIT;
use crate::rig::{Site, assert_blameless, blame, config, count};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{
    Answer, Manner, Nats, NatsOptions, Receiver, ReceiverOptions, TestDatabase,
};
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

/// A silent party answers nothing for this long: beyond the delivery timeout of a webhook (8 s), so that the
/// first events of it run into that, and it is probed.
const SILENCE: Duration = Duration::from_secs(12);

/// Far above what an event needs, on a machine that does other things too, and below a delivery timeout.
const SOON: Duration = Duration::from_secs(6);

/// What a receiver got on a path.
fn received(receiver: &Receiver, path: &str) -> Deliveries {
    let deliveries = Deliveries::default();
    for request in receiver.requests_for(path) {
        let text = |name: &str| request.header(name).map(str::to_owned);
        deliveries.push(Delivery {
            id: text("webhook-id").unwrap_or_default(),
            key: text("key"),
            payload: request.body.to_vec(),
            at: SystemTime::now(),
        });
    }
    deliveries
}

/// An event for two sinks is settled for each by itself: the one that has it does not get it again when the
/// other one was away, and does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn f30_a_silent_sink_costs_another_nothing() {
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    let database = require_service!(TestDatabase::create().await);
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    receiver.always("/hook", Answer::in_manner(Manner::Silent));
    make_stream(nats.addr(), None, "ALL", &["orders"]);
    let at_nats = watch_subject(nats.addr(), None, "orders");
    let site = Site::new();
    let sinks = format!(
        "[sinks.nats]\ntype = \"nats\"\nurl = \"nats://{}\"\n[sinks.hook]\ntype = \"http\"\nurl = \"{}\"\nallow_private = true\n\
         [[route]]\nname = \"a\"\ntopic = \"*\"\nsink = \"nats\"\n\
         [[route]]\nname = \"b\"\ntopic = \"*\"\nsink = \"hook\"\ndestination = \"hook\"\n",
        nats.addr(),
        receiver.url()
    );
    site.write("posthaste.toml", &config(&database.url(), "", "", &sinks));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let relay = site.start("posthaste.toml");
    let load = Load::start(&database.url(), &["orders"], 100).await;
    tokio::time::sleep(SILENCE).await; // pace: an outage lasts
    receiver.always("/hook", Answer::status(204));
    let appended = load.stop().await as usize;
    eventually("NATS has all", WAIT, || async { (at_nats.distinct() == appended).then_some(()) }).await;
    let p99 = at_nats.latency_since(100, 99);
    eprintln!("silent sink beside NATS: {appended} events, p99 {p99:?}");
    assert!(p99 < SOON, "{p99:?}");
    let all = || async { (received(&receiver, "/hook").distinct() == appended).then_some(()) };
    eventually("the webhook has all", WAIT, all).await;
    let client = connect(&database.url()).await;
    eventually("nothing waits", WAIT, || async {
        (count(&client, "select count(*) from posthaste.deferred").await == 0).then_some(())
    })
    .await;
    assert_eq!(at_nats.duplicates(), 0, "sent again to the one that has it");
    let (dead, tried) = blame(&client).await;
    assert_blameless(dead, tried, "a silent webhook");
    relay.stop().await;
}

/// Within one sink: one silent destination, one that is refused, and one that works.
#[tokio::test(flavor = "multi_thread")]
async fn f30_a_dead_destination_costs_another_nothing() {
    let database = require_service!(TestDatabase::create().await);
    let (live, silent) = (
        Receiver::start(&ReceiverOptions::default()).await.expect("a receiver"),
        Receiver::start(&ReceiverOptions::default()).await.expect("a receiver"),
    );
    silent.always("/hook", Answer::in_manner(Manner::Silent));
    live.always("/denied", Answer::status(403));
    let site = Site::new();
    let route = |topic: &str, to: &str| {
        format!(
            "[[route]]\nname = \"{topic}\"\ntopic = \"{topic}\"\nsink = \"hook\"\ndestination = \"{to}\"\n"
        )
    };
    let sinks = format!(
        "[sinks.hook]\ntype = \"http\"\nallow_private = true\n{}{}{}",
        route("live", &format!("{}/hook", live.url())),
        route("silent", &format!("{}/hook", silent.url())),
        route("denied", &format!("{}/denied", live.url())),
    );
    site.write("posthaste.toml", &config(&database.url(), "", "", &sinks));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let relay = site.start("posthaste.toml");
    let load = Load::start(&database.url(), &["live", "silent", "denied"], 300).await;
    let mut worst = Duration::ZERO;
    let (end, mut seen) = (tokio::time::Instant::now() + SILENCE, HashMap::new());
    let client = connect(&database.url()).await;
    while tokio::time::Instant::now() < end {
        // How far the live destination is behind what was appended for it.
        let appended = count(&client, "select count(*) from posthaste.outbox where topic = 'live'").await;
        let got = received(&live, "/hook").distinct() as i64;
        seen.entry(appended).or_insert_with(tokio::time::Instant::now);
        if let Some(since) = seen.iter().filter(|(n, _)| **n > got).map(|(_, at)| *at).min() {
            worst = worst.max(since.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(50)).await; // pace
    }
    eprintln!("dead destinations beside a live one: behind by {worst:?} at most");
    assert!(worst < SOON, "{worst:?}");
    silent.always("/hook", Answer::status(204));
    live.always("/denied", Answer::status(204));
    let each = load.stop().await as usize / 3;
    for (receiver, path) in [(&live, "/hook"), (&silent, "/hook"), (&live, "/denied")] {
        let all = || async { (received(receiver, path).distinct() == each).then_some(()) };
        eventually("each has its own", WAIT, all).await;
    }
    let (dead, tried) = blame(&client).await;
    assert_blameless(dead, tried, "dead destinations");
    relay.stop().await;
}
