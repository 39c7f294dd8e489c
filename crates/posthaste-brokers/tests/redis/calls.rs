//! Order by key over overlapping calls, the window, calls that are dropped, and what arrives.

use super::*;
use crate::ground::outage;
use futures_util::future::{join_all, maybe_done};
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;
use std::pin::Pin;

#[tokio::test]
async fn g3_a_key_is_held_behind_its_failed_message_and_other_keys_go_on() {
    let bed = require_service!(Bed::open().await);
    bed.run(&["SET", "text", "x"]).await;
    let sink = bed.sink().await;
    let first = [keyed("s", "a"), keyed("text", "a"), keyed("s", "a"), keyed("s", "b"), loose("s")];
    let second = [keyed("s", "a"), keyed("s", "b")];
    let (first, second) = tokio::join!(sink.publish(&first), sink.publish(&second));
    assert_seen(&first[1], "retry", "redis.wrong_type", Scope::Destination);
    assert_key_a_is_held(&first, &second);
    assert_eq!(bed.stored("s").await.len(), 4);
    assert_eq!(publish_one(&sink, keyed("s", "a")).await, Verdict::Delivered, "the next call starts anew");
}

/// As the relay does: calls overlap, but one that has come back is handled before another starts.
async fn publish_overlapping<'a>(
    sink: &Arc<dyn Sink>,
    batches: impl Iterator<Item = &'a [Message]>,
) -> Vec<Vec<Verdict>> {
    let mut calls = Vec::new();
    for batch in batches {
        let mut call = Box::pin(maybe_done(sink.publish(batch)));
        let back = futures_util::poll!(call.as_mut()).is_ready();
        calls.push(call);
        if back {
            break;
        }
    }
    join_all(calls.iter_mut().map(Pin::as_mut)).await;
    calls.iter_mut().map(|call| call.as_mut().take_output().expect("it has come back")).collect()
}

/// Memory that comes and goes while many calls with the same keys are under way: whatever is refused, no
/// later message of its key gets in before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_first_deliveries_keep_their_order_while_the_server_refuses_now_and_then() {
    let bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    until_delivered(&sink, "warm", DEADLINE).await;
    let number = |n: usize| {
        let key = format!("key-{}", (n * n + n) % 23);
        message("s", Event::new("orders.placed", n.to_string()).with_key(key))
    };
    let flicker = async {
        for round in 0..60 {
            let limit = if round % 2 == 0 { "1" } else { "0" };
            bed.run(&["CONFIG", "SET", "maxmemory", limit]).await;
            tokio::time::sleep(Duration::from_millis(2)).await; // pace
        }
        bed.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    };
    let load = async {
        let mut left: Vec<Message> = (0..6_000).map(number).collect();
        let mut refused = 0;
        let started = std::time::Instant::now();
        while !left.is_empty() {
            assert!(started.elapsed() < DEADLINE, "{} are left", left.len());
            let verdicts = publish_overlapping(&sink, left.chunks(500).take(8)).await;
            let mut verdicts = verdicts.into_iter().flatten();
            left.retain(|_| verdicts.next() != Some(Verdict::Delivered));
            refused += usize::from(!left.is_empty());
        }
        refused
    };
    let (refused, ()) = tokio::join!(load, flicker);
    assert!(refused > 1, "nothing was ever refused");
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    let entries = bed.stored("s").await;
    assert_eq!(entries.len(), 6_000, "nothing was unknown, so nothing is there twice");
    for entry in entries {
        let number = entry.text("payload").expect("a payload").parse().expect("a number");
        let before = last.insert(entry.text("key").expect("a key"), number);
        assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
    }
}

/// A run that is longer than a request, and than the window, is sent in parts.
#[tokio::test]
async fn a_small_window_is_a_bound_and_not_an_obstacle() {
    let bed = require_service!(Bed::open().await);
    for max_in_flight in [1, 3, 1_000] {
        let sink = build(bed.config().with(|options| options.max_in_flight = max_in_flight)).await;
        let stream = format!("s{max_in_flight}");
        let calls: Vec<Vec<Message>> = (0..4)
            .map(|call| {
                let key = |n: usize| {
                    if n.is_multiple_of(3) { "own".to_owned() + &call.to_string() } else { "all".into() }
                };
                (0..300).map(|n| keyed(&stream, &key(n))).collect()
            })
            .collect();
        let verdicts = join_all(calls.iter().map(|call| sink.publish(call))).await;
        assert!(verdicts.iter().flatten().all(|verdict| *verdict == Verdict::Delivered));
        let all = calls.iter().flatten().filter(|message| message.order_key() == Some("all"));
        let stored: Vec<_> = bed.stored(&stream).await;
        assert_eq!(stored.len(), 1_200);
        let stored = stored.iter().filter(|entry| entry.text("key").as_deref() == Some("all"));
        let ids: Vec<_> = stored.map(|entry| entry.text("id").expect("an id")).collect();
        assert_eq!(ids, all.map(Message::id).collect::<Vec<_>>());
    }
}

/// With the line cut off, a window of five lets five messages out and no more.
#[tokio::test]
async fn g7_no_more_than_the_window_is_ever_unanswered() {
    let bed = require_service!(Bed::open().await);
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let config = RedisConfig::new(&url).with(|options| {
        options.max_in_flight = 5;
        options.delivery_timeout_ms = 4_000;
    });
    let sink = build(config).await;
    outage::window_of_five(&proxy, &sink, "s").await;
    assert_eq!(bed.stored("s").await.len(), 6);
    outage::window_is_free_again(&proxy, &sink, "s").await;
}

/// Transactions leave one after the other. What waited for another call's while the server was silent has not
/// left, and is not said to be in doubt.
#[tokio::test]
async fn g7_what_waits_for_a_transaction_of_another_call_has_not_left() {
    let bed = require_service!(Bed::open().await);
    let sink = build(bed.config().with(|options| options.delivery_timeout_ms = 2_000)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.server.pause();
    let run = |key: &str| [keyed("s", key), keyed("s", key)];
    let (first, second) = (run("a"), run("b"));
    let (sent, waited) = tokio::join!(sink.publish(&first), sink.publish(&second));
    bed.server.resume();
    for verdict in &sent {
        assert_seen(verdict, "unknown", "redis.timeout", Scope::Sink);
    }
    for verdict in &waited {
        assert_seen(verdict, "retry", "redis.timeout", Scope::Sink);
    }
    until_delivered(&sink, "s", BACK_WITHIN).await;
    let ids = bed.stored_ids("s").await;
    assert!(second.iter().all(|message| !ids.contains(&message.id())), "it was not sent");
}

/// A dropped call gives its places in the window and in the chain back, and the transaction that it left half
/// way is not another run's.
#[tokio::test]
async fn dropped_calls_leave_no_trace() {
    let bed = require_service!(Bed::open().await);
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(RedisConfig::new(&url).with(|options| options.max_in_flight = 4)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    proxy.delay(Duration::from_millis(50)).await;
    drop_calls(&sink, "s").await;
    let messages: Vec<_> = (0..8).map(|n| keyed("s", &(n % 2).to_string())).collect();
    assert_delivered(&sink.publish(&messages).await);
    assert_eq!(publish_one(&sink, keyed("s", "k")).await, Verdict::Delivered);
    let ids = bed.stored_ids("s").await;
    assert!(messages.iter().all(|message| ids.contains(&message.id())), "delivered is there");
}

#[tokio::test]
async fn f86_what_arrives_is_what_was_sent() {
    let bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    let long = "k".repeat(10_000);
    let events = [
        Event::new("orders.placed", vec![0, 0xff, b'\r', b'\n', 0])
            .with_key("ключ \"1\"\r\n*3")
            .with_content_type("application/octet-stream")
            .with_header("traceparent", "00-ab")
            .with_header("x-empty", "")
            .with_header("x odd\r\nname", "a: b\r\n+OK")
            .with_header("payload", "not this"),
        Event::new("orders.placed", "").with_key(long.as_str()),
        Event::new("orders.placed", vec![b'x'; 5 << 20]).with_key("large"),
        Event::tombstone("orders.placed").with_key(long.as_str()),
    ];
    let messages: Vec<_> = events.iter().map(|event| message("s", event.clone())).collect();
    assert_eq!(sink.publish(&messages).await, vec![Verdict::Delivered; 4]);
    for (event, message) in events.iter().zip(&messages) {
        let stored = bed.stored("s").await;
        let entry = stored.iter().find(|entry| entry.text("id") == Some(message.id())).expect("it is there");
        assert_eq!(entry.0.get("payload").map(Vec::as_slice), event.payload.as_deref());
        assert_eq!(entry.text("key"), event.key);
        message.each_header(|name, value| {
            let field = match name {
                "Message-ID" => "id".to_owned(),
                "key" => "key".to_owned(),
                name => format!("h:{name}"),
            };
            assert_eq!(entry.text(&field).as_deref(), Some(value), "{name:?}");
        });
    }
}
