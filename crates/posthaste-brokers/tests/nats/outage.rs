//! Brokers that die, networks that lie: nothing is lost, and delivery goes on by itself (F31).

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Delivery goes on within this time of the broker's return.
const BACK_WITHIN: Duration = Duration::from_secs(5);

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_server_that_is_killed_under_load_loses_nothing_and_keeps_order() {
    let mut bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    let key = |n: u32| format!("key-{}", n % 50);
    let number = move |n: u32| message("s", Event::new("orders.placed", n.to_string()).with_key(key(n)));
    let load = {
        let sink = Arc::clone(&sink);
        tokio::spawn(async move {
            let mut delivered = Vec::new();
            for batch in 0..60_u32 {
                let messages = (0..500).map(|n| number(batch * 500 + n)).collect();
                delivered.extend(publish_until_delivered(&sink, messages).await);
            }
            delivered
        })
    };
    let mut stream = bed.jetstream.get_stream("S").await.expect("the stream");
    while stream.info().await.expect("info").state.messages < 3_000 {
        tokio::task::yield_now().await;
    }
    bed.server.kill9().await.expect("killed");
    bed.server.start_again().await.expect("started again");
    until_delivered(&sink, "s", BACK_WITHIN).await;
    let delivered = load.await.expect("the load ends");
    assert_eq!(delivered.len(), 30_000);

    let stored = bed.stored("S").await;
    let ids: BTreeSet<String> = stored.iter().filter_map(|message| header(message, "Nats-Msg-Id")).collect();
    assert!(delivered.iter().all(|id| ids.contains(id)), "a delivered event is not in the stream");
    let mut last: BTreeMap<String, u32> = BTreeMap::new();
    let mut first_seen = BTreeSet::new();
    for message in &stored {
        let Some(key) = header(message, "key") else { continue };
        // A second copy may come anywhere; first deliveries keep their order (G3).
        if first_seen.insert(header(message, "Nats-Msg-Id")) {
            let number = String::from_utf8_lossy(&message.payload).parse().expect("a number");
            let before = last.insert(key, number);
            assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
        }
    }
}

#[tokio::test]
async fn a_broker_that_is_down_at_the_start_is_an_outage_and_no_error() {
    let mut bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    bed.server.stop().await.expect("stopped");
    let sink = bed.sink().await;
    assert_eq!(sink.capabilities().payload_bytes_max, None);
    let lost = loose("s");
    let id = lost.id();
    let started = Instant::now();
    let verdict = publish_one(&sink, lost).await;
    assert_seen(&verdict, "retry", "nats.unreachable", Scope::Sink);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    bed.server.start_again().await.expect("started");
    until_delivered(&sink, "s", BACK_WITHIN).await;
    // What was given back is the relay's: it is not sent behind its back after the reconnect.
    assert!(!bed.stored_ids("S").await.contains(&id));
}

#[tokio::test]
async fn the_second_server_of_the_list_is_used_when_the_first_is_down() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = build(NatsConfig::new(&format!("nats://127.0.0.1:1, {}", bed.server.url()))).await;
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

/// A sink behind a proxy, connected.
async fn behind_proxy(bed: &Bed) -> (Proxy, Arc<dyn Sink>) {
    bed.stream("S", &["s"]).await;
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(NatsConfig::new(&url)).await;
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
    let (proxy, sink) = behind_proxy(&bed).await;
    proxy.half_open().await;
    assert_outage(&sink, Duration::from_millis(8_500)).await;
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
    assert_seen(&verdict, "retry", "nats.unreachable", Scope::Sink);
    assert!(seen(&verdict).3.contains(&proxy.addr().to_string()), "{verdict:?}");
    proxy.pass().await;
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

#[tokio::test]
async fn a_server_that_stops_and_goes_on_is_used_again() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.server.pause();
    assert_outage(&sink, Duration::from_millis(8_500)).await;
    bed.server.resume();
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

#[tokio::test]
async fn f40_a_stream_that_is_deleted_under_load_is_never_delivered_to() {
    let bed = require_service!(Bed::open().await);
    bed.stream("GONE", &["gone"]).await;
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    let messages = |subject: &str| (0..200).map(|_| loose(subject)).collect::<Vec<_>>();
    let verdicts = sink.publish(&messages("gone")).await;
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered));
    bed.jetstream.delete_stream("GONE").await.expect("deleted");
    for verdict in sink.publish(&messages("gone")).await {
        assert_seen(&verdict, "retry", "nats.no_stream", Scope::Destination);
    }
    let verdicts = sink.publish(&messages("s")).await;
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered), "the others go on (F30)");
    bed.stream("GONE", &["gone"]).await;
    until_delivered(&sink, "gone", BACK_WITHIN).await;
}

/// Each lost connection leaves no task of the client behind, and neither does the sink itself.
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
    until(|| tasks() <= connected).await;
    proxy.refuse().await;
    proxy.cut().await;
    assert_outage(&sink, Duration::from_secs(2)).await;
    sink.close().await;
    let verdict = publish_one(&sink, loose("s")).await;
    assert_seen(&verdict, "retry", "nats.closed", Scope::Sink);
    until(|| tasks() <= before).await;
}

async fn until(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < DEADLINE, "not within {DEADLINE:?}");
        tokio::task::yield_now().await;
    }
}
