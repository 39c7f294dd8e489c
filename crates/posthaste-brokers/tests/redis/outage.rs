//! Servers that die, networks that lie: nothing is lost, and delivery goes on by itself (F31).

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;
use std::collections::BTreeSet;
use std::time::Instant;

/// Delivery goes on within this time of the server's return.
pub(super) const BACK_WITHIN: Duration = Duration::from_secs(5);

/// What the relay does with undelivered messages, in small: again, in the same order, until delivered.
pub(super) async fn publish_until_delivered(sink: &Arc<dyn Sink>, mut messages: Vec<Message>) -> Vec<String> {
    let (started, mut delivered) = (Instant::now(), Vec::new());
    while !messages.is_empty() {
        assert!(started.elapsed() < 2 * DEADLINE, "{} messages are still undelivered", messages.len());
        let verdicts = sink.publish(&messages).await;
        let mut left = Vec::new();
        for (message, verdict) in messages.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Delivered => delivered.push(message.id()),
                Verdict::Rejected(failure) => panic!("an outage rejects nothing: {failure:?}"),
                _ => left.push(message),
            }
        }
        messages = left;
    }
    delivered
}

/// Batches of numbered messages with 50 keys, until all are delivered.
pub(super) fn load(sink: &Arc<dyn Sink>, batches: u32) -> tokio::task::JoinHandle<Vec<String>> {
    let sink = Arc::clone(sink);
    let number = |n: u32| {
        let event = Event::new("orders.placed", n.to_string()).with_key(format!("key-{}", n * n % 53));
        message("s", event)
    };
    tokio::spawn(async move {
        let mut delivered = Vec::new();
        for batch in 0..batches {
            let messages = (0..500).map(|n| number(batch * 500 + n)).collect();
            delivered.extend(publish_until_delivered(&sink, messages).await);
        }
        delivered
    })
}

/// Everything delivered is there, and first deliveries of a key are in order (G3). A second copy may come anywhere.
pub(super) fn assert_complete_and_in_order(entries: &[Entry], delivered: &[String]) {
    let (mut last, mut seen) = (BTreeMap::new(), BTreeSet::new());
    for entry in entries.iter().filter(|entry| entry.0.contains_key("key")) {
        if seen.insert(entry.text("id").expect("an id")) {
            let number: u32 = entry.text("payload").expect("a payload").parse().expect("a number");
            let before = last.insert(entry.text("key").expect("a key"), number);
            assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
        }
    }
    assert!(delivered.iter().all(|id| seen.contains(id)), "a delivered event is not in the stream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_server_that_is_killed_under_load_loses_nothing_and_keeps_order() {
    let mut bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    let load = load(&sink, 60);
    until(async || bed.length("s").await >= 3_000).await;
    bed.server.kill9().await.expect("killed");
    bed.server.start_again().await.expect("started again");
    until_delivered(&sink, "s", BACK_WITHIN).await;
    let delivered = load.await.expect("the load ends");
    assert_eq!(delivered.len(), 30_000);
    let client = client(&bed.server.url()).await;
    assert_complete_and_in_order(&stored(&client, "s").await, &delivered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_restart_under_load_loses_nothing_and_keeps_order() {
    let mut bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    let load = load(&sink, 40);
    until(async || bed.length("s").await >= 3_000).await;
    bed.server.stop().await.expect("stopped");
    bed.server.start_again().await.expect("started again");
    let delivered = load.await.expect("the load ends");
    let client = client(&bed.server.url()).await;
    assert_complete_and_in_order(&stored(&client, "s").await, &delivered);
}

#[tokio::test]
async fn a_server_that_is_down_at_the_start_is_an_outage_and_no_error() {
    let mut bed = require_service!(Bed::open().await);
    bed.server.stop().await.expect("stopped");
    let sink = bed.sink().await;
    assert_eq!(sink.capabilities().payload_bytes_max, None);
    let lost = loose("s");
    let id = lost.id();
    let started = Instant::now();
    let verdict = publish_one(&sink, lost).await;
    assert_seen(&verdict, "retry", "redis.unreachable", Scope::Sink);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    bed.server.start_again().await.expect("started");
    until_delivered(&sink, "s", BACK_WITHIN).await;
    // What was given back is the relay's: it is not sent behind its back after the reconnect.
    let client = client(&bed.server.url()).await;
    assert!(stored(&client, "s").await.iter().all(|entry| entry.text("id") != Some(id.clone())));
}

/// A sink behind a proxy, connected.
async fn behind_proxy(bed: &Bed) -> (Proxy, Arc<dyn Sink>) {
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(RedisConfig::new(&url)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    (proxy, sink)
}

/// All of a call at once, in the sink's own time, with nothing that is not the sink's fault.
async fn assert_outage(sink: &Arc<dyn Sink>, within: Duration) {
    let started = Instant::now();
    let messages: Vec<_> = (0..100).map(|n| keyed("s", &(n % 10).to_string())).collect();
    for verdict in sink.publish(&messages).await {
        match verdict {
            Verdict::Held => {}
            Verdict::Retry(failure) | Verdict::Unknown(failure) => assert_eq!(failure.scope, Scope::Sink),
            other => panic!("{other:?} in an outage"),
        }
    }
    assert!(started.elapsed() < within, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_black_hole_is_noticed_within_the_delivery_timeout() {
    let bed = require_service!(Bed::open().await);
    let (proxy, sink) = behind_proxy(&bed).await;
    proxy.black_hole().await;
    assert_outage(&sink, Duration::from_millis(8_500)).await;
    // From now on it is known: the next calls do not wait for the delivery timeout.
    assert_outage(&sink, Duration::from_secs(8)).await;
    assert_outage(&sink, Duration::from_secs(3)).await;
    proxy.pass().await;
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

#[tokio::test]
async fn a_half_open_connection_is_noticed_within_the_delivery_timeout() {
    let bed = require_service!(Bed::open().await);
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(RedisConfig { delivery_timeout_ms: 2_000, ..RedisConfig::new(&url) }).await;
    until_delivered(&sink, "s", DEADLINE).await;
    proxy.half_open().await;
    assert_outage(&sink, Duration::from_millis(2_500)).await;
    proxy.pass().await;
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

#[tokio::test]
async fn a_refused_connection_is_noticed_at_once() {
    let bed = require_service!(Bed::open().await);
    let (proxy, sink) = behind_proxy(&bed).await;
    proxy.refuse().await;
    proxy.cut().await;
    for _ in 0..3 {
        assert_outage(&sink, Duration::from_secs(2)).await;
    }
    let verdict = publish_one(&sink, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.unreachable", Scope::Sink);
    assert!(seen(&verdict).3.contains(&proxy.addr().to_string()), "{verdict:?}");
    proxy.pass().await;
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

#[tokio::test]
async fn a_server_that_stops_and_goes_on_is_used_again() {
    let bed = require_service!(Bed::open().await);
    let sink = build(RedisConfig { delivery_timeout_ms: 2_000, ..bed.config() }).await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.server.pause();
    assert_outage(&sink, Duration::from_millis(2_500)).await;
    bed.server.resume();
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

/// Each lost connection leaves no task behind, and neither does the sink itself.
#[tokio::test]
async fn reconnects_and_closing_leave_nothing_behind() {
    let bed = require_service!(Bed::open().await);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let (proxy, sink) = behind_proxy(&bed).await;
    let connected = tasks();
    for _ in 0..5 {
        proxy.cut().await;
        until_delivered(&sink, "s", BACK_WITHIN).await;
    }
    until(async || tasks() <= connected).await;
    proxy.refuse().await;
    proxy.cut().await;
    assert_outage(&sink, Duration::from_secs(2)).await;
    sink.close().await;
    let verdict = publish_one(&sink, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.closed", Scope::Sink);
    until(async || tasks() <= before).await;
}
