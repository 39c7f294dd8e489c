//! Brokers that die, networks that lie: nothing is lost, and delivery goes on by itself (F31).

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Delivery goes on within this time of the broker's return.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// What the relay does with undelivered messages, in small: again, in the same order, until delivered.
async fn publish_until_delivered(sink: &Arc<dyn Sink>, mut messages: Vec<Message>) -> Vec<String> {
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

/// Messages with 50 keys, numbered in their payloads.
fn numbered(queue: &str, n: u32) -> Message {
    message(queue, Event::new("orders.placed", n.to_string()).with_key(format!("key-{}", n % 50)))
}

/// Publishes batches until told to stop; answers with the ids of all that were delivered.
fn load(
    sink: &Arc<dyn Sink>,
    queue: &str,
    stop: &Arc<tokio::sync::Notify>,
) -> tokio::task::JoinHandle<Vec<String>> {
    let (sink, queue, stop) = (Arc::clone(sink), queue.to_owned(), Arc::clone(stop));
    tokio::spawn(async move {
        let (mut delivered, mut next) = (Vec::new(), 0);
        let mut stopped = std::pin::pin!(stop.notified());
        loop {
            let batch = (next..next + 500).map(|n| numbered(&queue, n)).collect();
            delivered.extend(publish_until_delivered(&sink, batch).await);
            next += 500;
            if futures_util::FutureExt::now_or_never(stopped.as_mut()).is_some() {
                return delivered;
            }
        }
    })
}

#[track_caller]
fn assert_all_there_in_order(stored: &[BasicGetMessage], delivered: &[String]) {
    let ids: BTreeSet<String> = stored.iter().map(id).collect();
    assert!(delivered.iter().all(|id| ids.contains(id)), "a delivered event is not in the queue");
    let mut last: BTreeMap<String, u32> = BTreeMap::new();
    let mut first_seen = BTreeSet::new();
    for message in stored {
        let Some(key) = header(message, "key") else { continue };
        // A second copy may come anywhere; first deliveries keep their order (G3).
        if first_seen.insert(id(message)) {
            let number = String::from_utf8_lossy(&message.delivery.data).parse().expect("a number");
            let before = last.insert(key, number);
            assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
        }
    }
}

/// Killed, then restarted in its own orderly way, under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_f44_a_broker_that_goes_and_comes_loses_nothing_and_keeps_order() {
    let mut server = require_service!(Rabbitmq::start(&[]).await);
    let bed = Bed::on(&server).await;
    let (queue, mute) = (bed.queue().await, bed.queue().await);
    let sink = bed.sink().await;
    let stop = Arc::new(tokio::sync::Notify::new());
    let publishing = load(&sink, &queue, &stop);
    bed.until_holds(&queue, 2_000).await;
    // A message that is there and not confirmed when the broker dies.
    suspend(&server, &mute).await;
    let unconfirmed = tokio::spawn({
        let (sink, mute) = (Arc::clone(&sink), mute.clone());
        async move { publish_one(&sink, loose(&mute)).await }
    });
    until_unanswered(&server, &mute).await;
    server.kill9().await.expect("killed");
    let verdict = unconfirmed.await.expect("a verdict");
    assert_seen(&verdict, "unknown", "rabbitmq.connection_lost", Scope::Sink);
    server.start_again().await.expect("started again");
    until_delivered(&sink, &queue, BACK_WITHIN).await;

    let bed = Bed::on(&server).await;
    let before = bed.count(&queue).await;
    bed.until_holds(&queue, before + 2_000).await;
    drop(bed);
    server.stop().await.expect("stopped");
    server.start_again().await.expect("started again");
    until_delivered(&sink, &queue, BACK_WITHIN).await;
    stop.notify_one();
    let delivered = publishing.await.expect("the load ends");
    let bed = Bed::on(&server).await;
    assert_all_there_in_order(&bed.take(&queue).await, &delivered);
}

/// An alarm of the broker's: nothing is sent, nothing is lost, and what waits goes on by itself.
#[tokio::test]
async fn a_blocked_connection_is_back_pressure() {
    let server = require_service!(Rabbitmq::start(&[]).await);
    let bed = Bed::on(&server).await;
    let queue = bed.queue().await;
    let sink = build(RabbitmqConfig { delivery_timeout_ms: 1_500, ..bed.config() }).await;
    until_delivered(&sink, &queue, DEADLINE).await;
    let watermark = |part: &str| format!("vm_memory_monitor:set_vm_memory_high_watermark({part})");
    server.eval(&watermark("0.0")).await.expect("an alarm");
    // The broker says so when it is sent something; that message may be the last that it takes.
    let started = Instant::now();
    let verdicts = loop {
        let verdicts = sink.publish(&(0..50).map(|_| loose(&queue)).collect::<Vec<_>>()).await;
        if verdicts.iter().all(|verdict| *verdict != Verdict::Delivered) {
            break verdicts;
        }
        assert!(started.elapsed() < DEADLINE, "never blocked");
    };
    assert!(verdicts.iter().all(|verdict| seen(verdict).1 == "rabbitmq.blocked"), "{verdicts:?}");
    let kept: Vec<_> = (0..50).map(|n| keyed(&queue, &n.to_string())).collect();
    for verdict in sink.publish(&kept).await {
        assert_seen(&verdict, "retry", "rabbitmq.blocked", Scope::Sink);
        assert!(seen(&verdict).3.contains("low on memory"), "{verdict:?}");
    }
    let findings = sink.examine(&[]).await;
    assert!(findings.iter().any(|finding| finding.check == "alarm"), "{findings:?}");
    // A call that is under way when the alarm ends.
    let patient = build(bed.config()).await;
    let waiting: Vec<_> = (0..50).map(|_| loose(&queue)).collect();
    let (verdicts, ()) = tokio::join!(patient.publish(&waiting), async {
        until_blocked(&server).await;
        server.eval(&watermark("0.6")).await.expect("no alarm");
    });
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered), "{verdicts:?}");
    until_delivered(&sink, &queue, BACK_WITHIN).await;
    let ids = bed.take_ids(&queue).await;
    assert!(kept.iter().all(|message| !ids.contains(&message.id())), "it was sent behind the relay's back");
}

/// Waits until the broker has blocked two connections: that of the first sink, and that of the second.
async fn until_blocked(server: &Rabbitmq) {
    let count = "length([C || C <- rabbit_networking:connections(), [{state, S}] <- [rabbit_reader:info(C, [state])], S =:= blocked]) >= 2";
    let started = Instant::now();
    while server.eval(count).await.expect("an answer") != "{ok, true}" {
        assert!(started.elapsed() < DEADLINE, "not blocked");
    }
}

#[tokio::test]
async fn a_broker_that_is_down_at_the_start_is_an_outage_and_no_error() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let (proxy, url) = Proxy::start_before(&bed.url).await.expect("a proxy");
    proxy.refuse().await;
    let sink = build(RabbitmqConfig::new(&url)).await;
    let lost = loose(&queue);
    let id = lost.id();
    let started = Instant::now();
    let verdict = publish_one(&sink, lost).await;
    assert_seen(&verdict, "retry", "rabbitmq.unreachable", Scope::Sink);
    assert!(seen(&verdict).3.contains(&proxy.addr().to_string()), "{verdict:?}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    proxy.pass().await;
    until_delivered(&sink, &queue, BACK_WITHIN).await;
    // What was given back is the relay's: it is not sent behind its back after the reconnect.
    assert!(!bed.take_ids(&queue).await.contains(&id));
}

#[tokio::test]
async fn the_second_server_of_the_list_is_used_when_the_first_is_down() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = build(RabbitmqConfig::new(&format!("amqp://127.0.0.1:1, {}", bed.url))).await;
    until_delivered(&sink, &queue, BACK_WITHIN).await;
}

/// A sink behind a proxy, connected.
async fn behind_proxy(bed: &Bed) -> (Proxy, Arc<dyn Sink>, String) {
    let queue = bed.queue().await;
    let (proxy, url) = Proxy::start_before(&bed.url).await.expect("a proxy");
    let sink = build(RabbitmqConfig::new(&url)).await;
    until_delivered(&sink, &queue, DEADLINE).await;
    (proxy, sink, queue)
}

/// All of a call at once, in the sink's own time, with nothing that is not the sink's fault.
async fn assert_outage(sink: &Arc<dyn Sink>, queue: &str, within: Duration) {
    let started = Instant::now();
    let messages: Vec<_> = (0..100).map(|n| keyed(queue, &(n % 10).to_string())).collect();
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
    let (proxy, sink, queue) = behind_proxy(&bed).await;
    proxy.black_hole().await;
    assert_outage(&sink, &queue, Duration::from_millis(8_500)).await;
    // From now on it is known: the next calls do not wait for the delivery timeout.
    assert_outage(&sink, &queue, Duration::from_secs(3)).await;
    proxy.pass().await;
    until_delivered(&sink, &queue, BACK_WITHIN).await;
}

#[tokio::test]
async fn a_half_open_connection_is_noticed_within_the_delivery_timeout() {
    let bed = require_service!(Bed::open().await);
    let (proxy, sink, queue) = behind_proxy(&bed).await;
    proxy.half_open().await;
    assert_outage(&sink, &queue, Duration::from_millis(8_500)).await;
    proxy.pass().await;
    until_delivered(&sink, &queue, BACK_WITHIN).await;
}

#[tokio::test]
async fn a_refused_connection_is_noticed_at_once() {
    let bed = require_service!(Bed::open().await);
    let (proxy, sink, queue) = behind_proxy(&bed).await;
    proxy.refuse().await;
    proxy.cut().await;
    for _ in 0..3 {
        assert_outage(&sink, &queue, Duration::from_secs(2)).await;
    }
    proxy.pass().await;
    until_delivered(&sink, &queue, BACK_WITHIN).await;
}

/// What has not left when the connection breaks is not in doubt.
#[tokio::test]
async fn f28_a_message_that_was_cut_off_in_the_middle_has_not_arrived() {
    let bed = require_service!(Bed::open().await);
    let (proxy, sink, queue) = behind_proxy(&bed).await;
    bed.take(&queue).await;
    proxy.cut_after_bytes(200_000).await;
    let messages: Vec<_> = (0..4).map(|_| sized(&queue, 60_000)).chain([sized(&queue, 60_000_000)]).collect();
    let verdicts = sink.publish(&messages).await;
    assert_seen(&verdicts[4], "retry", "rabbitmq.connection_lost", Scope::Sink);
    until_delivered(&sink, &queue, BACK_WITHIN).await;
    let stored = bed.take_ids(&queue).await;
    for (message, verdict) in messages.iter().zip(&verdicts) {
        if stored.contains(&message.id()) {
            assert!(matches!(verdict, Verdict::Delivered | Verdict::Unknown(_)), "{verdict:?}");
        }
    }
}

#[tokio::test]
async fn f40_an_exchange_that_is_deleted_under_load_is_never_delivered_to() {
    let bed = require_service!(Bed::open().await);
    let (queue, exchange) = (bed.queue().await, unique("ex"));
    let place = format!("{exchange}/k");
    let sink = bed.sink().await;
    let many = |destination: &str| (0..200).map(|_| loose(destination)).collect::<Vec<_>>();
    let make = async || {
        bed.exchange(&exchange).await;
        bed.bind(&queue, &exchange, "k").await;
    };
    make().await;
    let verdicts = sink.publish(&many(&place)).await;
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered));
    bed.delete_exchange(&exchange).await;
    for verdict in sink.publish(&many(&place)).await {
        // Those that were on their way when the channel was closed may have been first.
        let (kind, code, scope, _) = seen(&verdict);
        assert_eq!((code, scope), ("rabbitmq.no_exchange", Scope::Destination), "{kind}");
    }
    for verdict in sink.publish(&many(&place)).await {
        assert_seen(&verdict, "retry", "rabbitmq.no_exchange", Scope::Destination);
    }
    let verdicts = sink.publish(&many(&queue)).await;
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered), "the others go on (F30)");
    make().await;
    until_delivered(&sink, &place, BACK_WITHIN).await;
    bed.delete_queue(&queue).await;
    let verdict = publish_one(&sink, loose(&place)).await;
    assert_seen(&verdict, "retry", "rabbitmq.unroutable", Scope::Destination);
}

/// Each lost connection leaves no task behind, and neither does the sink itself.
#[tokio::test]
async fn reconnects_and_closing_leave_nothing_behind() {
    let bed = require_service!(Bed::open().await);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let (proxy, sink, queue) = behind_proxy(&bed).await;
    let connected = tasks();
    for _ in 0..5 {
        proxy.cut().await;
        until_delivered(&sink, &queue, BACK_WITHIN).await;
    }
    until(|| tasks() <= connected).await;
    sink.close().await;
    let verdict = publish_one(&sink, loose(&queue)).await;
    assert_seen(&verdict, "retry", "rabbitmq.closed", Scope::Sink);
    until(|| tasks() <= before).await;
}

async fn until(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < DEADLINE, "not within {DEADLINE:?}");
        tokio::task::yield_now().await;
    }
}
