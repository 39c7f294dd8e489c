//! Brokers that die, networks that lie: nothing is lost, and delivery goes on by itself (F31).

use super::*;
use crate::ground::outage::{self, Behind, outage_suite};
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_server_that_is_killed_under_load_loses_nothing_and_keeps_order() {
    let mut bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    let load = Load::start(&sink, "s");
    load.more(3_000).await;
    bed.server.kill9().await.expect("killed");
    bed.server.start_again().await.expect("started again");
    until_delivered(&sink, "s", BACK_WITHIN).await;
    load.more(3_000).await;
    load.end().await.assert_all_there_in_order(&bed.copies("S").await);
}

#[tokio::test]
async fn a_broker_that_is_down_at_the_start_is_an_outage_and_no_error() {
    let mut bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    bed.server.stop().await.expect("stopped");
    let sink = bed.sink().await;
    assert_eq!(sink.capabilities().payload_bytes_max, None);
    let id = outage::down_at_the_start(&sink, "s", "nats.unreachable").await;
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

#[tokio::test]
async fn a_server_that_stops_and_goes_on_is_used_again() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.server.pause();
    assert_outage(&sink, "s", Duration::from_millis(8_500)).await;
    bed.server.resume();
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

#[tokio::test]
async fn f40_a_stream_that_is_deleted_under_load_is_never_delivered_to() {
    let bed = require_service!(Bed::open().await);
    bed.stream("GONE", &["gone"]).await;
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    assert_delivered(&sink.publish(&many("gone", 200)).await);
    bed.jetstream.delete_stream("GONE").await.expect("deleted");
    for verdict in sink.publish(&many("gone", 200)).await {
        assert_seen(&verdict, "retry", "nats.no_stream", Scope::Destination);
    }
    // The others go on (F30).
    assert_delivered(&sink.publish(&many("s", 200)).await);
    bed.stream("GONE", &["gone"]).await;
    until_delivered(&sink, "gone", BACK_WITHIN).await;
}

/// A sink behind a proxy, connected.
async fn behind() -> Result<Behind<Bed>, ServiceError> {
    let bed = Bed::open().await?;
    let tasks = tasks();
    let destination = "s".to_owned();
    bed.stream("S", &["s"]).await;
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await?;
    let sink = build(NatsConfig::new(&url)).await;
    until_delivered(&sink, &destination, DEADLINE).await;
    Ok(Behind { server: bed, proxy, sink, destination, tasks })
}

outage_suite!(behind, "nats.unreachable");
