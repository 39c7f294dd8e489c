//! Order by key over overlapping calls, slots, connections, and calls that are dropped.

use super::*;
use posthaste_testkit::services::{Answer, Manner};
use std::future::Future;
use std::task::{Context, Waker};

#[tokio::test]
async fn g3_a_key_is_held_behind_its_failed_message_and_other_keys_go_on() {
    let receiver = receiver().await;
    let sink = build(near(&receiver)).await;
    receiver.always("/full", Answer::status(503).after(Duration::from_millis(20)));
    let first = [keyed("x", "a"), keyed("full", "a"), keyed("x", "a"), keyed("x", "b"), loose("x")];
    let second = [keyed("x", "a"), keyed("x", "b")];
    let (first, second) = tokio::join!(sink.publish(&first), sink.publish(&second));
    assert_seen(&first[1], "retry", "http.503", Scope::Destination);
    assert_key_a_is_held(&first, &second);
    assert_eq!(receiver.requests_for("/x").len(), 4);
    assert_eq!(publish_one(&sink, keyed("x", "a")).await, Verdict::Delivered, "the next call starts anew");
}

#[tokio::test]
async fn g7_slots_are_a_bound_and_not_an_obstacle() {
    let (receiver, other) = (receiver().await, receiver().await);
    let slow = Answer::status(200).after(Duration::from_millis(2));
    receiver.always("/x", slow.clone());
    other.always("/x", slow);
    let config = HttpConfig { allow_private: true, ..HttpConfig::for_whole_urls() };
    let sink =
        build(HttpConfig { max_in_flight_per_host: 3, ..config.with(|options| options.max_in_flight = 5) })
            .await;
    let to = |n: usize| format!("{}/x", if n.is_multiple_of(3) { other.url() } else { receiver.url() });
    let calls: Vec<Vec<Message>> =
        (0..6).map(|call| (0..30).map(|n| keyed(&to(n), &format!("{call}-{}", n % 7))).collect()).collect();
    let verdicts = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call))).await;
    assert_delivered(&verdicts.concat());
    assert_eq!((receiver.requests().len(), other.requests().len()), (120, 60));
    assert!(receiver.most_at_once() <= 3 && other.most_at_once() <= 3);
}

#[tokio::test]
async fn connections_are_used_again() {
    let receiver = receiver().await;
    let sink = build(HttpConfig { max_in_flight_per_host: 4, ..near(&receiver) }).await;
    receiver.always("/x", Answer::status(200).body("thank you"));
    receiver.always("/bad", Answer::status(422).body("never"));
    for _ in 0..5 {
        let messages: Vec<_> = (0..40).map(|n| loose(if n % 4 == 0 { "bad" } else { "x" })).collect();
        sink.publish(&messages).await;
    }
    assert_eq!(receiver.requests().len(), 200);
    assert!(receiver.connections() <= 4, "{} connections", receiver.connections());
}

/// A dropped call gives its slots and its places in the chain back.
#[tokio::test]
async fn dropped_calls_leave_no_trace() {
    let receiver = receiver().await;
    let sink = build(HttpConfig {
        max_in_flight_per_host: 2,
        ..near(&receiver).with(|options| options.max_in_flight = 4)
    })
    .await;
    receiver.always("/mute", Answer::in_manner(Manner::Silent));
    for round in 0..10 {
        let messages: Vec<_> = (0..6).map(|n| keyed("mute", &(n % 3).to_string())).collect();
        let mut call = Box::pin(sink.publish(&messages));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tokio::select! {
            _ = &mut call => panic!("nobody answers"),
            () = receiver.until(round + 1) => {}
        }
    }
    let messages: Vec<_> = (0..12).map(|n| keyed("x", &(n % 3).to_string())).collect();
    assert_delivered(&sink.publish(&messages).await);
}

/// A message that could not leave because others had the slots is not to blame, nor is its host: nothing is
/// begun that has no time to end, in one call or in two that share the slots.
#[tokio::test]
async fn f30_what_found_no_slot_is_held() {
    let receiver = receiver().await;
    let config = HttpConfig {
        max_in_flight_per_host: 1,
        ..near(&receiver).with(|options| options.delivery_timeout_ms = 4_000)
    };
    let sink = build(config).await;
    receiver.always("/slow", Answer::status(200).after(Duration::from_millis(450)));
    let (one, two) = (many("slow", 20), many("slow", 20));
    let (one, two) = tokio::join!(sink.publish(&one), sink.publish(&two));
    for verdicts in [&one, &two] {
        let known = |verdict: &&Verdict| matches!(verdict, Verdict::Delivered | Verdict::Held);
        assert!(verdicts.iter().all(|verdict| known(&verdict)), "{verdicts:?}");
        assert!(verdicts.contains(&Verdict::Held), "{verdicts:?}");
    }
    let delivered = [one, two].concat().into_iter().filter(|verdict| *verdict == Verdict::Delivered).count();
    assert!((1..10).contains(&delivered) && delivered == receiver.requests().len(), "{delivered}");
}

/// One key that is slower than its turns: what is left of it waits for the next call, and its host is not to
/// blame.
#[tokio::test]
async fn f30_a_hot_key_is_given_back_in_good_health() {
    let receiver = receiver().await;
    let sink = build(near(&receiver).with(|options| options.delivery_timeout_ms = 4_000)).await;
    receiver.always("/slow", Answer::status(200).after(Duration::from_millis(550)));
    let messages: Vec<_> = (0..20).map(|_| keyed("slow", "hot")).collect();
    let verdicts = sink.publish(&messages).await;
    let delivered = verdicts.iter().take_while(|verdict| **verdict == Verdict::Delivered).count();
    assert!((1..20).contains(&delivered), "{verdicts:?}");
    assert!(verdicts[delivered..].iter().all(|verdict| *verdict == Verdict::Held), "{verdicts:?}");
}

#[tokio::test]
async fn f86_headers_and_payloads_arrive_as_they_were() {
    let receiver = receiver().await;
    let sink = build(near(&receiver)).await;
    let event = Event::new("orders.placed", vec![0, 0xff, b'\r', b'\n', 0])
        .with_key("ключ \"1\": x")
        .with_content_type("application/octet-stream")
        .with_header("traceparent", "00-ab")
        .with_header("x-empty", "")
        .with_header("x-colons", "a: b: c")
        .with_header("Connection", "close")
        .with_header("Transfer-Encoding", "chunked")
        .with_header("Host", "evil.example");
    let sent = message("x", event);
    let id = sent.id();
    assert_eq!(publish_one(&sink, sent).await, Verdict::Delivered);
    assert_eq!(publish_one(&sink, message("x", Event::tombstone("t"))).await, Verdict::Delivered);
    let [first, second] = &receiver.requests()[..] else { panic!("two requests") };
    assert_eq!((first.method.as_str(), &first.body[..]), ("POST", &[0, 0xff, b'\r', b'\n', 0][..]));
    let expected = [
        ("webhook-id", &*id),
        ("message-id", &*id),
        ("type", "orders.placed"),
        ("source", "shop"),
        ("key", "%D0%BA%D0%BB%D1%8E%D1%87 \"1\": x"),
        ("posthaste-encoded", "key"),
        ("content-type", "application/octet-stream"),
        ("content-length", "5"),
        ("traceparent", "00-ab"),
        ("x-empty", ""),
        ("x-colons", "a: b: c"),
        ("x-event-connection", "close"),
        ("x-event-transfer-encoding", "chunked"),
        ("x-event-host", "evil.example"),
        ("host", &*receiver.addr().to_string()),
    ];
    for (name, value) in expected {
        assert_eq!(first.header(name), Some(value), "{name}");
    }
    assert_eq!(first.header("posthaste-tombstone"), None);
    assert_eq!((second.header("posthaste-tombstone"), second.body.len()), (Some("true"), 0));
}

#[tokio::test]
async fn large_payloads_and_long_keys() {
    let receiver = receiver().await;
    let sink = build(near(&receiver)).await;
    let (body, key) = (vec![b'x'; 5 << 20], "k".repeat(10_000));
    let messages = [
        message("x", Event::new("orders.placed", body.clone()).with_key("a")),
        message("x", Event::new("orders.placed", "").with_key("b").with_header("x-odd", "a\r\nb: \u{1f600}")),
        message("x", Event::new("orders.placed", "{}").with_key(&key)),
    ];
    assert_delivered(&sink.publish(&messages).await);
    let requests = receiver.requests();
    assert!(requests.iter().any(|request| request.body == body));
    let empty = requests.iter().find(|request| request.body.is_empty()).expect("the empty one");
    assert_eq!(empty.header("x-odd"), Some("a%0D%0Ab: %F0%9F%98%80"));
    assert_eq!(empty.header("posthaste-tombstone"), None, "nothing is not a tombstone");
    assert!(requests.iter().any(|request| request.header("key") == Some(&*key)));
}
