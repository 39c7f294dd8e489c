//! One host that is down, beside others that are not (F30).

use super::*;
use posthaste_testkit::services::{Answer, Manner, Port, Proxy};
use std::time::Instant;

fn everywhere() -> HttpConfig {
    HttpConfig { allow_private: true, ..HttpConfig::for_whole_urls() }
}

/// Fifty for each: all of the living are delivered, all of the dead are its own affair.
async fn mixed(sink: &Arc<dyn Sink>, dead: &str, living: &str) -> Vec<Verdict> {
    let to = |n: usize| if n.is_multiple_of(2) { dead } else { living };
    let messages: Vec<_> = (0..100).map(|n| keyed(&format!("{}/x", to(n)), &n.to_string())).collect();
    let verdicts = sink.publish(&messages).await;
    for (n, verdict) in verdicts.iter().enumerate() {
        if n.is_multiple_of(2) {
            assert_eq!(seen(verdict).2, Scope::Destination, "{verdict:?}");
        } else {
            assert_eq!(*verdict, Verdict::Delivered);
        }
    }
    verdicts.into_iter().step_by(2).collect()
}

#[tokio::test]
async fn f30_a_refusing_host_costs_the_others_nothing() {
    let (living, port) = (receiver().await, Port::claim().expect("a port"));
    let sink = build(everywhere()).await;
    let started = Instant::now();
    let dead = mixed(&sink, &format!("http://{}", port.addr()), &living.url()).await;
    assert!(started.elapsed() < Duration::from_secs(7), "no timeout: {:?}", started.elapsed());
    for verdict in dead {
        assert_seen(&verdict, "retry", "http.unreachable", Scope::Destination);
    }
}

/// It accepts and says nothing: as many as it has slots find out, the others give up with them.
#[tokio::test]
async fn f30_a_mute_host_costs_the_others_one_timeout() {
    let (living, mute) = (receiver().await, receiver().await);
    mute.always("/x", Answer::in_manner(Manner::Silent));
    let config = HttpConfig {
        max_in_flight_per_host: 4,
        ..everywhere().with(|options| options.delivery_timeout_ms = 3_000)
    };
    let sink = build(config).await;
    let started = Instant::now();
    let dead = mixed(&sink, &mute.url(), &living.url()).await;
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let unknown = dead.iter().filter(|verdict| seen(verdict).0 == "unknown").count();
    assert_eq!(unknown, 4, "what was sent, and no more: {dead:?}");
    assert_eq!(mute.requests().len(), 4);
}

/// Once it has failed, one request at a time finds out whether it is back.
#[tokio::test]
async fn f30_a_host_that_has_failed_is_on_trial() {
    let mute = receiver().await;
    let sink = build(near(&mute).with(|options| options.delivery_timeout_ms = 3_000)).await;
    mute.always("/x", Answer::in_manner(Manner::Silent));
    let messages = || many("x", 50);
    sink.publish(&[loose("x")]).await;
    let (one, two) = (messages(), messages());
    let (one, two) = tokio::join!(sink.publish(&one), sink.publish(&two));
    let verdicts = [one, two].concat();
    assert!(verdicts.iter().all(|verdict| seen(verdict).2 == Scope::Destination), "{verdicts:?}");
    assert_eq!(verdicts.iter().filter(|verdict| seen(verdict).0 == "unknown").count(), 1, "{verdicts:?}");
    assert_eq!(mute.requests().len(), 2);
    mute.always("/x", Answer::status(200).after(Duration::from_millis(5)));
    assert_delivered(&sink.publish(&messages()).await);
    assert!(mute.most_at_once() > 1, "and then it has all its slots again");
}

/// It accepts and closes: that is no answer, and lets nobody off.
#[tokio::test]
async fn f30_a_connection_that_is_lost_ends_no_trial() {
    let receiver = receiver().await;
    let sink = build(near(&receiver).with(|options| options.delivery_timeout_ms = 3_000)).await;
    receiver.next("/x", [Answer::in_manner(Manner::Silent)]);
    assert_seen(&publish_one(&sink, loose("x")).await, "unknown", "http.timeout", Scope::Destination);
    receiver.always("/x", Answer::in_manner(Manner::CloseUnanswered).after(Duration::from_millis(10)));
    for verdict in sink.publish(&many("x", 8)).await {
        assert_seen(&verdict, "unknown", "http.connection_lost", Scope::Destination);
    }
    assert_eq!((receiver.most_at_once(), receiver.requests().len()), (1, 9), "one at a time");
}

/// A connection that is never made, in calls that overlap: the first failure ends the wait of all of them.
#[tokio::test]
async fn f30_calls_learn_from_each_other() {
    let (living, behind) = (receiver().await, receiver().await);
    let (proxy, url) = Proxy::start_before(&behind.url()).await.expect("a proxy");
    proxy.black_hole().await;
    let dead = format!("{}/x", url.replace("http://", "https://"));
    let config = HttpConfig {
        max_in_flight_per_host: 2,
        ..everywhere().with(|options| options.delivery_timeout_ms = 6_000)
    };
    let sink = build(config).await;
    let call = || -> Vec<Message> {
        let place = |n: usize| if n < 10 { dead.clone() } else { format!("{}/x", living.url()) };
        (0..20).map(|n| loose(&place(n))).collect()
    };
    let (one, two) = (call(), call());
    let started = Instant::now();
    let (one, two) = tokio::join!(sink.publish(&one), sink.publish(&two));
    // One connect timeout, half of the delivery timeout, and not the end of the call.
    assert!(started.elapsed() < Duration::from_millis(5_400), "{:?}", started.elapsed());
    for verdicts in [one, two] {
        for verdict in &verdicts[..10] {
            assert_seen(verdict, "retry", "http.unreachable", Scope::Destination);
        }
        assert_delivered(&verdicts[10..]);
    }
    proxy.pass().await;
}

/// Nothing is remembered against a host that is back.
#[tokio::test]
async fn a_host_that_is_back_is_delivered_to_at_once() {
    let receiver = receiver().await;
    let (proxy, url) = Proxy::start_before(&receiver.url()).await.expect("a proxy");
    let sink = build(HttpConfig { allow_private: true, ..HttpConfig::new(&url) }).await;
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
    proxy.refuse().await;
    proxy.cut().await;
    let verdicts = sink.publish(&many("x", 50)).await;
    assert!(verdicts.iter().all(|verdict| seen(verdict).2 == Scope::Destination), "{verdicts:?}");
    proxy.pass().await;
    let verdicts = sink.publish(&many("x", 50)).await;
    assert_delivered(&verdicts);
}

/// Told "not now", nobody sends the rest of the call. Other destinations of the same host are not meant.
#[tokio::test]
async fn f46_a_destination_that_asks_for_time_is_left_alone() {
    let receiver = receiver().await;
    let sink = build(HttpConfig { max_in_flight_per_host: 2, ..near(&receiver) }).await;
    receiver.always("/busy", Answer::status(429).header("Retry-After", "60"));
    let to = |n: usize| if n.is_multiple_of(2) { "busy" } else { "x" };
    let messages: Vec<_> = (0..100).map(|n| loose(to(n))).collect();
    let verdicts = sink.publish(&messages).await;
    for (n, verdict) in verdicts.iter().enumerate() {
        if n.is_multiple_of(2) {
            assert_seen(verdict, "retry", "http.429", Scope::Destination);
            assert_eq!(failure(verdict).1.retry_after, Some(Duration::from_secs(60)));
        } else {
            assert_eq!(*verdict, Verdict::Delivered);
        }
    }
    let asked = receiver.requests_for("/busy").len();
    assert!((1..=2).contains(&asked), "as many as there are slots, not {asked}");
    assert_eq!(receiver.requests_for("/x").len(), 50);
    // The next call is the relay's decision.
    sink.publish(&[loose("busy")]).await;
    assert_eq!(receiver.requests_for("/busy").len(), asked + 1);
}

/// A connection that breaks says nothing about the others.
#[tokio::test]
async fn one_lost_connection_does_not_stop_the_call() {
    let receiver = receiver().await;
    let sink = build(HttpConfig { max_in_flight_per_host: 1, ..near(&receiver) }).await;
    receiver.next("/x", [Answer::status(200), Answer::in_manner(Manner::CloseUnanswered)]);
    let verdicts = sink.publish(&many("x", 20)).await;
    assert_seen(&verdicts[1], "unknown", "http.connection_lost", Scope::Destination);
    let delivered = verdicts.iter().filter(|verdict| **verdict == Verdict::Delivered).count();
    assert_eq!(delivered, 19, "{verdicts:?}");
}
