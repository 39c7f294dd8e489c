//! Order by key over overlapping calls, the window, calls that are dropped, and what a message looks like.

use super::*;
use crate::ground::outage;
use lapin::types::ShortString;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;

#[tokio::test]
async fn g3_a_key_is_held_behind_its_failed_message_and_other_keys_go_on() {
    let bed = require_service!(Bed::open().await);
    let (queue, narrow) = (bed.queue().await, unique("narrow"));
    bed.queue_with(&narrow, reject_above(1)).await;
    let sink = bed.sink().await;
    let first =
        [keyed(&narrow, "a"), keyed(&narrow, "a"), keyed(&queue, "a"), keyed(&queue, "b"), loose(&queue)];
    let second = [keyed(&queue, "a"), keyed(&queue, "b")];
    let (first, second) = tokio::join!(sink.publish(&first), sink.publish(&second));
    assert_seen(&first[1], "retry", "rabbitmq.nacked", Scope::Destination);
    assert_key_a_is_held(&first, &second);
    assert_eq!(bed.take(&queue).await.len(), 3);
    assert_eq!(publish_one(&sink, keyed(&queue, "a")).await, Verdict::Delivered, "the next call starts anew");
}

#[tokio::test]
async fn a_small_window_is_a_bound_and_not_an_obstacle() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = build(bed.config().with(|options| options.max_in_flight = 3)).await;
    let calls: Vec<Vec<Message>> =
        (0..8).map(|call| (0..50).map(|n| keyed(&queue, &format!("{call}-{}", n % 7))).collect()).collect();
    let verdicts = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call))).await;
    assert!(verdicts.iter().flatten().all(|verdict| *verdict == Verdict::Delivered));
    assert_eq!(bed.take(&queue).await.len(), 400);
}

/// With the line cut off, a window of five lets five messages out and no more.
#[tokio::test]
async fn g7_no_more_than_the_window_is_ever_unanswered() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let (proxy, url) = Proxy::start_before(&bed.url).await.expect("a proxy");
    let config = RabbitmqConfig::new(&url).with(|options| {
        options.max_in_flight = 5;
        options.delivery_timeout_ms = 4_000;
    });
    let sink = build(config).await;
    outage::window_of_five(&proxy, &sink, &queue).await;
    assert_eq!(bed.take(&queue).await.len(), 6);
    outage::window_is_free_again(&proxy, &sink, &queue).await;
}

/// A key with more messages than there is time for: what was sent is confirmed, and the rest is given back.
/// The last one must not leave a moment before the end, and then discredit its queue.
#[tokio::test]
async fn f30_a_hot_key_does_not_discredit_its_own_destination() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let (proxy, url) = Proxy::start_before(&bed.url).await.expect("a proxy");
    let sink = build(RabbitmqConfig::new(&url).with(|options| options.delivery_timeout_ms = 4_000)).await;
    until_delivered(&sink, &queue, DEADLINE).await;
    proxy.delay(Duration::from_millis(20)).await;
    let messages: Vec<_> = (0..2_000).map(|_| keyed(&queue, "hot")).collect();
    let verdicts = sink.publish(&messages).await;
    let delivered = verdicts.iter().take_while(|verdict| **verdict == Verdict::Delivered).count();
    assert!((1..2_000).contains(&delivered), "{delivered}");
    assert_eq!(verdicts[delivered..], vec![Verdict::Held; 2_000 - delivered]);
    assert_eq!(bed.take(&queue).await.len(), delivered + 1, "what is held was not sent");
}

/// A dropped call gives its places in the window and in the chain back, what it had not sent is never sent,
/// and a late answer to it is nobody's.
#[tokio::test]
async fn dropped_calls_leave_no_trace() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let (proxy, url) = Proxy::start_before(&bed.url).await.expect("a proxy");
    let sink = build(RabbitmqConfig::new(&url).with(|options| options.max_in_flight = 4)).await;
    until_delivered(&sink, &queue, DEADLINE).await;
    proxy.delay(Duration::from_millis(50)).await;
    drop_calls(&sink, &queue).await;
    let messages: Vec<_> = (0..8).map(|n| keyed(&queue, &(n % 2).to_string())).collect();
    assert_delivered(&sink.publish(&messages).await);
    assert_eq!(publish_one(&sink, keyed(&queue, "k")).await, Verdict::Delivered);
    // One of each dropped call at most: the others of its key were not sent.
    let stored = bed.take(&queue).await.len();
    assert!((10..=30).contains(&stored), "{stored}");
}

#[tokio::test]
async fn f86_headers_payloads_and_properties_arrive_as_they_were() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = bed.sink().await;
    let key = "ключ \"1\"\r\n: x".repeat(700);
    let event = Event::new("orders.placed", vec![0, 0xff, 0xce, b'\n', 0])
        .with_key(&key)
        .with_content_type("application/octet-stream")
        .with_header("traceparent", "00-ab")
        .with_header("x-empty", "")
        .with_header("x-odd: 🦀", "a\0b\r\nc");
    let sent = message(&queue, event);
    let mut expected = Vec::new();
    sent.each_header(|name, value| expected.push((name.to_owned(), value.to_owned())));
    let (id_sent, payload) = (sent.id(), sent.payload.clone().expect("a payload"));
    let large = sized(&queue, 5 << 20);
    for (message, verdict) in [
        (sent, Verdict::Delivered),
        (message(&queue, Event::tombstone("t")), Verdict::Delivered),
        (large, Verdict::Delivered),
        (sized(&queue, 0), Verdict::Delivered),
    ] {
        assert_eq!(publish_one(&sink, message).await, verdict);
    }
    let stored = bed.take(&queue).await;
    assert_eq!(stored[0].delivery.data, payload);
    for (name, value) in expected {
        assert_eq!(header(&stored[0], &name), Some(value), "{name}");
    }
    let properties = &stored[0].delivery.properties;
    let text = |text: &str| Some(ShortString::from(text));
    assert_eq!(properties.message_id(), &text(&id_sent));
    assert_eq!(properties.content_type(), &text("application/octet-stream"));
    assert_eq!(properties.kind(), &text("orders.placed"));
    assert_eq!(properties.app_id(), &text("shop"));
    assert_eq!((properties.timestamp(), properties.delivery_mode()), (&Some(1_700_000_000), &Some(2)));
    assert_eq!(header(&stored[0], "Posthaste-Tombstone"), None);
    assert!(stored[1].delivery.data.is_empty());
    assert_eq!(header(&stored[1], "Posthaste-Tombstone").as_deref(), Some("true"));
    assert!(stored[3].delivery.data.is_empty());
    assert_eq!(header(&stored[3], "Posthaste-Tombstone"), None, "nothing is not a tombstone");
    assert!(stored[2].delivery.data.len() == 5 << 20 && stored[2].delivery.data.iter().all(|b| *b == b'x'));
}

/// Properties are short: what does not fit is in the headers only.
#[tokio::test]
async fn long_names_are_no_obstacle() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = bed.sink().await;
    let (kind, media) = ("T".repeat(300), "m".repeat(256));
    let event = Event::new("orders.placed", "{}").with_header("type", &kind).with_content_type(&media);
    assert_eq!(
        publish_one(&sink, Message { source: "s".repeat(256).into(), ..message(&queue, event) }).await,
        Verdict::Delivered
    );
    let stored = bed.take(&queue).await.remove(0);
    let properties = &stored.delivery.properties;
    assert_eq!((properties.kind(), properties.content_type(), properties.app_id()), (&None, &None, &None));
    assert_eq!(header(&stored, "type"), Some(kind));
    assert_eq!(header(&stored, "content-type"), Some(media));
}

#[tokio::test]
async fn cloud_events_travel_by_amqps_own_binding() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = bed.sink().await;
    let event = Event::new("orders.placed", "{}").with_key("ключ").with_content_type("application/json");
    let sent = Message { envelope: posthaste::envelope::Envelope::CloudEvents, ..message(&queue, event) };
    let id_sent = sent.id();
    assert_eq!(publish_one(&sink, sent).await, Verdict::Delivered);
    let stored = bed.take(&queue).await.remove(0);
    assert_eq!(header(&stored, "cloudEvents_id"), Some(id_sent));
    assert_eq!(header(&stored, "cloudEvents_subject").as_deref(), Some("ключ"), "not percent-encoded");
}

/// The exchange can be fixed, or be a part of the destination.
#[tokio::test]
async fn a_destination_is_a_routing_key_or_both() {
    let bed = require_service!(Bed::open().await);
    let (queue, exchange) = (bed.queue().await, unique("ex"));
    bed.exchange(&exchange).await;
    bed.bind(&queue, &exchange, "a/b").await;
    let fixed = build(RabbitmqConfig { exchange: Some(exchange.clone()), ..bed.config() }).await;
    assert_eq!(publish_one(&fixed, loose("a/b")).await, Verdict::Delivered);
    let free = bed.sink().await;
    assert_eq!(publish_one(&free, loose(&format!("{exchange}/a/b"))).await, Verdict::Delivered);
    let queues = build(RabbitmqConfig { exchange: Some(String::new()), ..bed.config() }).await;
    assert_eq!(publish_one(&queues, loose(&queue)).await, Verdict::Delivered);
    let stored = bed.take(&queue).await;
    let exchanges: Vec<_> = stored.iter().map(|message| message.delivery.exchange.to_string()).collect();
    assert_eq!(exchanges, [exchange.as_str(), exchange.as_str(), ""]);
}
