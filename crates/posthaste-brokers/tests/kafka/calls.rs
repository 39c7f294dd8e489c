//! The window, the queue, calls that are dropped, and what a message may hold.

use super::*;
use crate::ground::outage;
use posthaste_testkit::require_service;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use std::future::Future;
use std::task::{Context, Waker};

#[tokio::test]
async fn a_small_window_is_a_bound_and_not_an_obstacle() {
    let kafka = require_service!(shared().await);
    let here = topic(kafka).await;
    let sink = build(KafkaConfig {
        linger_ms: 0,
        ..config(kafka).with(|options| {
            options.max_in_flight = 3;
            // Four hundred messages go three at a time, on a machine that may be busy.
            options.delivery_timeout_ms = 60_000;
        })
    })
    .await;
    let calls: Vec<Vec<Message>> =
        (0..8).map(|call| (0..50).map(|n| keyed(&here, &format!("{call}-{}", n % 7))).collect()).collect();
    let verdicts = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call))).await;
    verdicts.iter().for_each(|verdicts| assert_delivered(verdicts));
    assert_eq!(kafka.dump(&here).await.expect("read").len(), 400);
}

/// With the line cut off, a window of five lets five messages out and no more.
#[tokio::test]
async fn g7_no_more_than_the_window_is_ever_unanswered() {
    let (kafka, proxied) = require_service!(proxied().await);
    let here = topic(&kafka).await;
    let sink = build(proxied.with(|options| {
        options.max_in_flight = 5;
        options.delivery_timeout_ms = 4_000;
    }))
    .await;
    let proxy = kafka.node(1).proxy("PROXIED");
    outage::window_of_five(proxy, &sink, &here).await;
    outage::window_is_free_again(proxy, &sink, &here).await;
}

/// The producer's queue holds 32 MB; 48 are published at once.
#[tokio::test]
async fn a_full_queue_is_back_pressure_and_not_a_loss() {
    let kafka = require_service!(shared().await);
    let here = topic(kafka).await;
    let sink = build(config(kafka)).await;
    until_delivered(&sink, &here, DEADLINE).await;
    let body = |n: usize| vec![n as u8; 1_000_000];
    let event = |n: usize| {
        Event::new("orders.placed", body(n)).with_key(if n.is_multiple_of(2) { "even" } else { "odd" })
    };
    let messages: Vec<_> = (0..48).map(|n| message(&here, event(n))).collect();
    assert_delivered(&sink.publish(&messages).await);
    let there = first_bytes(kafka, &here, 1 + 48);
    for residue in 0..2 {
        let of_key: Vec<u8> = there[1..].iter().copied().filter(|n| n % 2 == residue).collect();
        assert_eq!(of_key, (0..48).filter(|n| n % 2 == residue).collect::<Vec<u8>>());
    }
}

/// The first byte of each record: too much for the console, so it is another client of the same library.
fn first_bytes(kafka: &Kafka, topic: &str, count: usize) -> Vec<u8> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka.bootstrap())
        .set("group.id", "g")
        .create()
        .expect("a consumer");
    let mut places = TopicPartitionList::new();
    places.add_partition_offset(topic, 0, Offset::Beginning).expect("a place");
    consumer.assign(&places).expect("assigned");
    let record = || consumer.poll(DEADLINE).expect("in time").expect("a record");
    (0..count)
        .map(|_| record().payload().and_then(|payload| payload.first().copied()).expect("a payload"))
        .collect()
}

/// A dropped call gives its places back, and nothing of it overtakes a later call's message of its key.
#[tokio::test]
async fn dropped_calls_leave_no_trace() {
    let (kafka, proxied) = require_service!(proxied().await);
    let here = topic(&kafka).await;
    let sink = build(proxied.with(|options| options.max_in_flight = 4)).await;
    until_delivered(&sink, &here, DEADLINE).await;
    kafka.node(1).proxy("PROXIED").delay(Duration::from_millis(30)).await;
    for round in 0..20 {
        let messages: Vec<_> = (0..6).map(|n| numbered(&here, "k", round * 10 + n)).collect();
        let mut call = Box::pin(sink.publish(&messages));
        for _ in 0..5 {
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            tokio::task::yield_now().await;
        }
    }
    let messages: Vec<_> =
        (0..8).map(|n| numbered(&here, if n % 2 == 0 { "k" } else { "l" }, 1_000 + n)).collect();
    assert_delivered(&sink.publish(&messages).await);
    let there: Vec<usize> = kafka
        .dump(&here)
        .await
        .expect("read")
        .iter()
        .filter(|record| record.key.as_deref() == Some(b"k"))
        .filter_map(|record| String::from_utf8(record.value.clone()?).ok()?.parse().ok())
        .collect();
    assert!(there.is_sorted(), "{there:?}");
    assert_eq!(there[there.len() - 4..], [1_000, 1_002, 1_004, 1_006]);
}

#[tokio::test]
async fn f86_odd_messages_arrive_as_they_were() {
    let kafka = require_service!(shared().await);
    let here = topic_with(kafka, 1, &["max.message.bytes=7000000"]).await;
    let sink = build(KafkaConfig { message_bytes_max: 6_000_000, ..config(kafka) }).await;
    let large: Vec<u8> = (0..5_000_000_usize).map(|n| (n * 31 % 251) as u8).collect();
    let events = [
        Event::new("orders.placed", ""),
        Event::new("orders.placed", vec![0, 0xff, b'\r', b'\n', 0])
            .with_key("ключ \"1\": x\r\n")
            .with_header("traceparent", "00-ab")
            .with_header("x-empty", "")
            .with_header("x-odd", "a: b\r\nc\t\u{1f600}"),
        Event::new("orders.placed", "{}").with_key("k".repeat(10_000)),
        Event::tombstone("orders.placed").with_key("gone"),
        Event::new("orders.placed", large),
    ];
    for event in events {
        let sent = message(&here, event);
        let mut expected = Vec::new();
        sent.each_header(|name, value| expected.push((name.to_owned(), Some(value.as_bytes().to_vec()))));
        let (key, payload) = (sent.stored.event.key.clone(), sent.payload.clone());
        assert_delivered(&sink.publish(&[sent]).await);
        let records = kafka.dump(&here).await.expect("read");
        let record = records.last().expect("there");
        assert_eq!(record.key.clone(), key.map(String::into_bytes));
        assert!(record.value.as_deref() == payload.as_deref(), "another payload");
        assert_eq!(record.headers, expected);
    }
}
