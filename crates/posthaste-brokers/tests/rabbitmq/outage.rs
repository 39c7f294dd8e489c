//! Brokers that die, networks that lie: nothing is lost, and delivery goes on by itself (F31).

use super::*;
use crate::ground::outage::{self, Behind, outage_suite};
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;
use std::time::Instant;

/// Killed, then restarted in its own orderly way, under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_f44_a_broker_that_goes_and_comes_loses_nothing_and_keeps_order() {
    let mut server = require_service!(Rabbitmq::start(&[]).await);
    let bed = Bed::on(&server).await;
    let (queue, mute) = (bed.queue().await, bed.queue().await);
    // Longer than it takes to see that nobody answers.
    let sink = build(bed.config().with(|options| options.delivery_timeout_ms = 60_000)).await;
    let load = Load::start(&sink, &queue);
    load.more(2_000).await;
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

    load.more(2_000).await;
    server.stop().await.expect("stopped");
    server.start_again().await.expect("started again");
    until_delivered(&sink, &queue, BACK_WITHIN).await;
    load.more(500).await;
    let account = load.end().await;
    account.assert_all_there_in_order(&Bed::on(&server).await.take_copies(&queue).await);
}

/// An alarm of the broker's: nothing is sent, nothing is lost, and what waits goes on by itself.
#[tokio::test]
async fn a_blocked_connection_is_back_pressure() {
    let server = require_service!(Rabbitmq::start(&[]).await);
    let bed = Bed::on(&server).await;
    let queue = bed.queue().await;
    let sink = build(bed.config().with(|options| options.delivery_timeout_ms = 1_500)).await;
    until_delivered(&sink, &queue, DEADLINE).await;
    let watermark = |part: &str| format!("vm_memory_monitor:set_vm_memory_high_watermark({part})");
    server.eval(&watermark("0.0")).await.expect("an alarm");
    // The broker says so when it is sent something; that message may be the last that it takes.
    let started = Instant::now();
    let is_blocked =
        |verdict: &Verdict| matches!(verdict, Verdict::Retry(failure) if failure.code == "rabbitmq.blocked");
    loop {
        let verdicts = sink.publish(&many(&queue, 50)).await;
        if verdicts.iter().all(is_blocked) {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "never blocked: {verdicts:?}");
    }
    let kept: Vec<_> = (0..50).map(|n| keyed(&queue, &n.to_string())).collect();
    for verdict in sink.publish(&kept).await {
        assert_seen(&verdict, "retry", "rabbitmq.blocked", Scope::Sink);
        assert!(seen(&verdict).3.contains("low on memory"), "{verdict:?}");
    }
    let findings = sink.examine(&[]).await;
    assert!(findings.iter().any(|finding| finding.check == "alarm"), "{findings:?}");
    // A call that is under way when the alarm ends.
    let patient = build(bed.config().with(|options| options.delivery_timeout_ms = 60_000)).await;
    let waiting = many(&queue, 50);
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
    let id = outage::down_at_the_start(&sink, &queue, "rabbitmq.unreachable").await;
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

/// What has not left when the connection breaks is not in doubt.
#[tokio::test]
async fn f28_a_message_that_was_cut_off_in_the_middle_has_not_arrived() {
    let Behind { server: bed, proxy, sink, destination: queue, .. } = require_service!(behind().await);
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
    let make = async || {
        bed.exchange(&exchange).await;
        bed.bind(&queue, &exchange, "k").await;
    };
    make().await;
    assert_delivered(&sink.publish(&many(&place, 200)).await);
    bed.delete_exchange(&exchange).await;
    for verdict in sink.publish(&many(&place, 200)).await {
        // Those that were on their way when the channel was closed may have been first.
        let (kind, code, scope, _) = seen(&verdict);
        assert_eq!((code, scope), ("rabbitmq.no_exchange", Scope::Destination), "{kind}");
    }
    for verdict in sink.publish(&many(&place, 200)).await {
        assert_seen(&verdict, "retry", "rabbitmq.no_exchange", Scope::Destination);
    }
    // The others go on (F30).
    assert_delivered(&sink.publish(&many(&queue, 200)).await);
    make().await;
    until_delivered(&sink, &place, BACK_WITHIN).await;
    bed.delete_queue(&queue).await;
    let verdict = publish_one(&sink, loose(&place)).await;
    assert_seen(&verdict, "retry", "rabbitmq.unroutable", Scope::Destination);
}

/// A sink behind a proxy, connected.
async fn behind() -> Result<Behind<Bed>, ServiceError> {
    let bed = Bed::open().await?;
    let tasks = tasks();
    let destination = bed.queue().await;
    let (proxy, url) = Proxy::start_before(&bed.url).await?;
    let sink = build(RabbitmqConfig::new(&url)).await;
    until_delivered(&sink, &destination, DEADLINE).await;
    Ok(Behind { server: bed, proxy, sink, destination, tasks })
}

outage_suite!(behind, "rabbitmq.unreachable");
