//! Order by key over overlapping calls, the window, and calls that are dropped.

use super::*;
use crate::ground::outage;
use async_nats::jetstream::stream::DiscardPolicy;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;

/// A destination that takes one message and refuses the next.
async fn narrow(bed: &Bed) {
    let config =
        stream::Config { max_messages: 1, discard: DiscardPolicy::New, ..plain("NARROW", &["narrow"]) };
    bed.stream_with(config).await;
}

#[tokio::test]
async fn g3_a_key_is_held_behind_its_failed_message_and_other_keys_go_on() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    narrow(&bed).await;
    let sink = bed.sink().await;
    let first = [keyed("narrow", "a"), keyed("narrow", "a"), keyed("s", "a"), keyed("s", "b"), loose("s")];
    let second = [keyed("s", "a"), keyed("s", "b")];
    let (first, second) = tokio::join!(sink.publish(&first), sink.publish(&second));
    assert_seen(&first[1], "retry", "nats.stream_full", Scope::Destination);
    assert_key_a_is_held(&first, &second);
    assert_eq!(bed.stored("S").await.len(), 3);
    assert_eq!(publish_one(&sink, keyed("s", "a")).await, Verdict::Delivered, "the next call starts anew");
}

#[tokio::test]
async fn a_small_window_is_a_bound_and_not_an_obstacle() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = build(bed.config().with(|options| options.max_in_flight = 3)).await;
    let calls: Vec<Vec<Message>> =
        (0..8).map(|call| (0..50).map(|n| keyed("s", &format!("{call}-{}", n % 7))).collect()).collect();
    let verdicts = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call))).await;
    assert!(verdicts.iter().flatten().all(|verdict| *verdict == Verdict::Delivered));
    assert_eq!(bed.stored("S").await.len(), 400);
}

/// With the line cut off, a window of five lets five messages out and no more.
#[tokio::test]
async fn g7_no_more_than_the_window_is_ever_unanswered() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let config = NatsConfig::new(&url).with(|options| {
        options.max_in_flight = 5;
        options.delivery_timeout_ms = 1_500;
    });
    let sink = build(config).await;
    outage::window_of_five(&proxy, &sink, "s").await;
    assert_eq!(bed.stored("S").await.len(), 6);
    outage::window_is_free_again(&proxy, &sink, "s").await;
}

/// A destination that never answers fills the window; what could not leave because of it is not blamed.
#[tokio::test]
async fn f30_a_mute_destination_does_not_discredit_the_others() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    bed.stream_with(stream::Config { no_ack: true, ..plain("MUTE", &["mute"]) }).await;
    let sink = build(bed.config().with(|options| {
        options.max_in_flight = 3;
        options.delivery_timeout_ms = 1_000;
    }))
    .await;
    let messages = [keyed("mute", "a"), loose("mute"), loose("mute"), keyed("s", "a"), loose("s")];
    let verdicts = sink.publish(&messages).await;
    for verdict in &verdicts[..3] {
        assert_seen(verdict, "unknown", "nats.ack_timeout", Scope::Destination);
    }
    assert_eq!(verdicts[3..], [Verdict::Held, Verdict::Held]);
    assert_eq!(sink.publish(&messages[3..]).await, [Verdict::Delivered, Verdict::Delivered]);
}

/// A key with more messages than there is time for: what was sent is acknowledged, and the rest is given
/// back. The last one must not leave a moment before the end, and then discredit its subject.
#[tokio::test]
async fn f30_a_hot_key_does_not_discredit_its_own_subject() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(NatsConfig::new(&url).with(|options| options.delivery_timeout_ms = 4_000)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    proxy.delay(Duration::from_millis(20)).await;
    let messages: Vec<_> = (0..2_000).map(|_| keyed("s", "hot")).collect();
    let verdicts = sink.publish(&messages).await;
    let delivered = verdicts.iter().take_while(|verdict| **verdict == Verdict::Delivered).count();
    assert!((1..2_000).contains(&delivered), "{delivered}");
    assert_eq!(verdicts[delivered..], vec![Verdict::Held; 2_000 - delivered]);
    assert_eq!(bed.stored("S").await.len(), delivered + 1, "what is held was not sent");
}

/// A dropped call gives its places in the window and in the chain back, and a late answer to it is
/// nobody's.
#[tokio::test]
async fn dropped_calls_leave_no_trace() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(NatsConfig::new(&url).with(|options| options.max_in_flight = 4)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    proxy.delay(Duration::from_millis(50)).await;
    drop_calls(&sink, "s").await;
    let messages: Vec<_> = (0..8).map(|n| keyed("s", &(n % 2).to_string())).collect();
    assert_delivered(&sink.publish(&messages).await);
    assert_eq!(publish_one(&sink, keyed("s", "k")).await, Verdict::Delivered);
}

#[tokio::test]
async fn f86_nothing_five_megabytes_and_a_long_key_arrive_as_they_were() {
    let bed = require_service!(Bed::start(&NatsOptions::default().setting("max_payload: 8MB")).await);
    bed.stream("S", &["s"]).await;
    let large: Vec<u8> = (0..5_000_000_usize).map(|n| (n * 31 % 251) as u8).collect();
    let key = "k".repeat(10_000);
    let events = [
        Event::new("orders.placed", "").with_header("x-odd", "a\tb; \"c\" \u{1f600}"),
        Event::new("orders.placed", large.clone()),
        Event::new("orders.placed", "{}").with_key(&key),
    ];
    let sink = bed.sink().await;
    for event in events {
        assert_eq!(publish_one(&sink, message("s", event)).await, Verdict::Delivered);
    }
    let stored = bed.stored("S").await;
    assert!(stored[0].payload.is_empty() && stored[1].payload == large);
    assert_eq!(header(&stored[0], "x-odd").as_deref(), Some("a\tb; \"c\" \u{1f600}"));
    assert_eq!(header(&stored[0], "Posthaste-Tombstone"), None, "nothing is not a tombstone");
    assert_eq!(header(&stored[2], "key"), Some(key));
}

#[tokio::test]
async fn f86_headers_and_payloads_arrive_as_they_were() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    let event = Event::new("orders.placed", vec![0, 0xff, b'\r', b'\n', 0])
        .with_key("ключ \"1\": x")
        .with_content_type("application/octet-stream")
        .with_header("traceparent", "00-ab")
        .with_header("x-empty", "")
        .with_header("x-colons", "a: b: c");
    let sent = message("s", event);
    let mut expected = Vec::new();
    sent.each_header(|name, value| expected.push((name.to_owned(), value.to_owned())));
    let (id, payload) = (sent.id(), sent.payload.clone());
    let tombstone = message("s", Event::tombstone("orders.placed"));
    assert_eq!(sink.publish(&[sent]).await, [Verdict::Delivered]);
    assert_eq!(sink.publish(&[tombstone]).await, [Verdict::Delivered]);
    let stored = bed.stored("S").await;
    assert_eq!(Some(&stored[0].payload), payload.as_ref());
    assert_eq!(header(&stored[0], "Nats-Msg-Id"), Some(format!("{id}:s")));
    for (name, value) in expected {
        assert_eq!(header(&stored[0], &name), Some(value), "{name}");
    }
    assert_eq!(header(&stored[0], "Posthaste-Tombstone"), None);
    assert!(stored[1].payload.is_empty());
    assert_eq!(header(&stored[1], "Posthaste-Tombstone").as_deref(), Some("true"));
}
