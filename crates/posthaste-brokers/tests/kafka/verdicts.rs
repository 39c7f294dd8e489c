//! Every row of the verdict table that one node can be brought to; the others need three of them, or rights.

use super::*;
use posthaste_testkit::require_service;

fn body(topic: &str, key: &str, bytes: usize) -> Message {
    message(topic, Event::new("orders.placed", noise(bytes)).with_key(key))
}

/// What the relay does with `Held`, in small.
async fn until_decided(sink: &Arc<dyn Sink>, messages: Vec<Message>) -> Vec<Verdict> {
    let started = Instant::now();
    let mut verdicts = sink.publish(&messages).await;
    while verdicts.contains(&Verdict::Held) {
        assert!(started.elapsed() < DEADLINE, "{verdicts:?}");
        let (places, again): (Vec<_>, Vec<_>) = (0..messages.len())
            .filter(|index| verdicts[*index] == Verdict::Held)
            .map(|index| (index, copy(&messages[index])))
            .unzip();
        for (place, verdict) in places.into_iter().zip(sink.publish(&again).await) {
            verdicts[place] = verdict;
        }
    }
    verdicts
}

fn copy(other: &Message) -> Message {
    message(&other.destination, other.stored.event.clone())
}

#[tokio::test]
async fn f36_a_missing_topic_is_an_outage_of_its_destination() {
    let kafka = require_service!(shared().await);
    let (here, missing) = (topic(kafka).await, "missing-topic");
    let sink = build(config(kafka)).await;
    let verdicts =
        sink.publish(&[keyed(missing, "a"), loose(missing), loose(&here), keyed(&here, "a")]).await;
    assert_seen(&verdicts[0], "retry", "kafka.no_topic", Scope::Destination);
    assert_seen(&verdicts[1], "retry", "kafka.no_topic", Scope::Destination);
    assert!(seen(&verdicts[0]).3.contains("\"missing-topic\""), "{verdicts:?}");
    assert_eq!(verdicts[2..], [Verdict::Delivered, Verdict::Held]);
    kafka.create_topic(missing, 1, 1, &[]).await.expect("created");
    until_delivered(&sink, missing, DEADLINE).await;
}

#[tokio::test]
async fn what_is_larger_than_our_own_limit_is_rejected_before_it_is_sent() {
    let kafka = require_service!(shared().await);
    let here = topic(kafka).await;
    let sink = build(KafkaConfig { message_bytes_max: 5_000, ..config(kafka) }).await;
    until_delivered(&sink, &here, DEADLINE).await;
    let verdicts =
        sink.publish(&[keyed(&here, "a"), body(&here, "a", 5_001), keyed(&here, "a"), loose(&here)]).await;
    assert_eq!([&verdicts[0], &verdicts[3]], [&Verdict::Delivered, &Verdict::Delivered]);
    assert_seen(&verdicts[1], "rejected", "kafka.too_large", Scope::Event);
    assert!(seen(&verdicts[1]).3.contains("message_bytes_max"), "{verdicts:?}");
    assert_eq!(verdicts[2], Verdict::Held);
    assert_eq!(sink.capabilities().payload_bytes_max, Some(5_000));
}

#[tokio::test]
async fn f36_what_is_larger_than_the_topics_limit_is_rejected_and_its_neighbours_are_not() {
    let kafka = require_service!(shared().await);
    let narrow = topic_with(kafka, 1, &["max.message.bytes=20000"]).await;
    let sink = build(config(kafka)).await;
    assert_seen(
        &publish_one(&sink, body(&narrow, "a", 30_000)).await,
        "rejected",
        "kafka.too_large",
        Scope::Event,
    );
    until_delivered(&sink, &narrow, DEADLINE).await;
    // Now the topic is proven: a batch fails as a whole, and nobody is rejected for a neighbour.
    let bytes = |index: usize| if index == 20 { 30_000 } else { 500 };
    let key = |index: usize| format!("key-{}", index % 40);
    let messages = (0..100).map(|index| body(&narrow, &key(index), bytes(index))).collect();
    let verdicts = until_decided(&sink, messages).await;
    for (index, verdict) in verdicts.iter().enumerate() {
        match index {
            20 => assert_seen(verdict, "rejected", "kafka.too_large", Scope::Event),
            _ => assert_eq!(*verdict, Verdict::Delivered, "{index}"),
        }
    }
}

/// Batches of ours are larger than the topic allows, though no message is.
#[tokio::test]
async fn batches_that_are_too_large_are_not_held_against_their_messages() {
    let kafka = require_service!(shared().await);
    let narrow = topic_with(kafka, 1, &["max.message.bytes=4000"]).await;
    let sink = build(KafkaConfig { linger_ms: 20, ..config(kafka) }).await;
    until_delivered(&sink, &narrow, DEADLINE).await;
    let messages = (0..200).map(|index| body(&narrow, &index.to_string(), 1_000)).collect();
    assert_delivered(&until_decided(&sink, messages).await);
}

#[tokio::test]
async fn a_record_that_the_topic_does_not_take_is_rejected() {
    let kafka = require_service!(shared().await);
    let compacted = topic_with(kafka, 1, &["cleanup.policy=compact"]).await;
    let sink = build(config(kafka)).await;
    let verdicts = sink.publish(&[loose(&compacted), keyed(&compacted, "a")]).await;
    assert_seen(&verdicts[0], "rejected", "kafka.bad_record", Scope::Event);
    assert_eq!(verdicts[1], Verdict::Delivered);
    // The same when the topic was proven before.
    until_decided(&sink, vec![keyed(&compacted, "a")]).await;
    let verdicts =
        until_decided(&sink, vec![keyed(&compacted, "b"), loose(&compacted), keyed(&compacted, "c")]).await;
    assert_eq!([&verdicts[0], &verdicts[2]], [&Verdict::Delivered, &Verdict::Delivered]);
    assert_seen(&verdicts[1], "rejected", "kafka.bad_record", Scope::Event);
}

#[tokio::test]
async fn names_that_are_none_are_rejected() {
    let kafka = require_service!(shared().await);
    let sink = build(config(kafka)).await;
    for bad in ["", "a b", "grün", "a/b", "..", "__consumer_offsets"] {
        assert_seen(&publish_one(&sink, loose(bad)).await, "rejected", "kafka.bad_topic", Scope::Event);
    }
}

#[tokio::test]
async fn nobody_there_is_an_outage_of_the_sink() {
    let sink =
        build(KafkaConfig::new("kafka://127.0.0.1:1").with(|options| options.delivery_timeout_ms = 1_500))
            .await;
    for verdict in sink.publish(&[keyed("t", "a"), keyed("t", "a"), loose("u")]).await {
        match verdict {
            Verdict::Held => {}
            other => {
                let (_, code, scope, words) = seen(&other);
                assert_eq!((code, scope), ("kafka.unreachable", Scope::Sink));
                assert!(words.contains("127.0.0.1:1"), "{words}");
            }
        }
    }
}

#[tokio::test]
async fn a_closed_sink_sends_nothing() {
    let kafka = require_service!(shared().await);
    let here = topic(kafka).await;
    let sink = build(config(kafka)).await;
    until_delivered(&sink, &here, DEADLINE).await;
    sink.close().await;
    assert_seen(&publish_one(&sink, loose(&here)).await, "retry", "kafka.closed", Scope::Sink);
    assert_eq!(kafka.dump(&here).await.expect("read").len(), 1);
}
