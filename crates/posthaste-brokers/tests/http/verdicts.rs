//! Each row of the table, provoked at a receiver (F46).

use super::*;
use posthaste_brokers::Secret;
use posthaste_brokers::http::OnStatus;
use posthaste_testkit::services::{Answer, Manner, Port, Proxy};
use std::time::SystemTime;

#[tokio::test]
async fn f46_every_status_has_its_meaning() {
    let receiver = receiver().await;
    let sink = build(near(&receiver)).await;
    for status in [200, 201, 202, 204, 208, 299] {
        receiver.always("/x", Answer::status(status));
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered, "{status}");
    }
    let rows = [
        (301, "retry", Scope::Destination),
        (400, "rejected", Scope::Event),
        (401, "retry", Scope::Destination),
        (403, "retry", Scope::Destination),
        (404, "retry", Scope::Destination),
        (408, "retry", Scope::Destination),
        (409, "retry", Scope::Event),
        (410, "rejected", Scope::Event),
        (413, "rejected", Scope::Event),
        (422, "rejected", Scope::Event),
        (425, "retry", Scope::Event),
        (429, "retry", Scope::Destination),
        (500, "retry", Scope::Event),
        (502, "retry", Scope::Destination),
        (503, "retry", Scope::Destination),
        (504, "retry", Scope::Destination),
    ];
    for (status, kind, scope) in rows {
        receiver.always("/x", Answer::status(status));
        assert_seen(&publish_one(&sink, loose("x")).await, kind, &format!("http.{status}"), scope);
    }
    let all = receiver.requests_for("/x").len();
    assert_eq!(all, 6 + rows.len(), "nothing is repeated behind the relay's back");
}

#[tokio::test]
async fn f46_configuration_changes_the_meaning() {
    let receiver = receiver().await;
    let statuses = [("404", OnStatus::Reject), ("5xx", OnStatus::Wait)];
    let statuses = statuses.map(|(name, meaning)| (name.to_owned(), meaning)).into();
    let sink = build(HttpConfig { statuses, ..near(&receiver) }).await;
    receiver.next("/x", [Answer::status(404), Answer::status(500)]);
    assert_seen(&publish_one(&sink, loose("x")).await, "rejected", "http.404", Scope::Event);
    assert_seen(&publish_one(&sink, loose("x")).await, "retry", "http.500", Scope::Destination);
}

#[tokio::test]
async fn f46_retry_after_is_passed_on() {
    let receiver = receiver().await;
    let sink = build(near(&receiver)).await;
    let asked = async |status, value: &str| {
        receiver.next("/x", [Answer::status(status).header("Retry-After", value)]);
        let verdict = publish_one(&sink, loose("x")).await;
        failure(&verdict).1.retry_after
    };
    assert_eq!(asked(429, "30").await, Some(Duration::from_secs(30)));
    assert_eq!(asked(503, "999999").await, Some(Duration::from_secs(3_600)), "an hour at most");
    assert_eq!(asked(500, "5").await, Some(Duration::from_secs(5)));
    assert_eq!(asked(429, "tomorrow").await, None);
    assert_eq!(asked(429, "Sun, 06 Nov 1994 08:49:37 GMT").await, Some(Duration::ZERO));
    // RFC 9110 writes dates as this test's own arithmetic does not: days of the week are not looked at.
    let soon = SystemTime::now() + Duration::from_secs(120);
    let wait = asked(503, &http_date(soon)).await.expect("a date");
    assert!((100..=120).contains(&wait.as_secs()), "{wait:?}");
}

/// By the system's `date`: not by what is tested.
fn http_date(at: SystemTime) -> String {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let at = format!("@{seconds}");
    let out = std::process::Command::new("date")
        .env("LC_ALL", "C")
        .args(["-u", "-d", &at, "+%a, %d %b %Y %H:%M:%S GMT"])
        .output();
    String::from_utf8(out.expect("date").stdout).expect("text").trim().to_owned()
}

/// A promise is a promise, whatever comes after it.
#[tokio::test]
async fn a_2xx_counts_when_its_body_breaks_off_or_never_ends() {
    let receiver = receiver().await;
    let sink = build(near(&receiver)).await;
    receiver.next("/x", [Answer::in_manner(Manner::HalfBody)]);
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
    receiver.next("/x", [Answer::status(200).body(vec![b'x'; 1 << 20])]);
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
}

#[tokio::test]
async fn f28_no_answer_after_the_request_left_is_unknown() {
    let receiver = receiver().await;
    let sink = build(near(&receiver).with(|options| options.delivery_timeout_ms = 3_000)).await;
    let rows = [
        (Manner::Silent, "http.timeout"),
        (Manner::CloseUnanswered, "http.connection_lost"),
        (Manner::CloseUnread, "http.connection_lost"),
        (Manner::Garbage, "http.connection_lost"),
    ];
    for (manner, code) in rows {
        receiver.next("/x", [Answer::in_manner(manner)]);
        let large = message("x", Event::new("orders.placed", vec![b'x'; 100_000]));
        let verdict = publish_one(&sink, large).await;
        assert_seen(&verdict, "unknown", code, Scope::Destination);
        assert!(!seen(&verdict).3.contains("/x"), "paths may be secret: {verdict:?}");
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered, "after {manner:?}");
    }
}

#[tokio::test]
async fn a_slow_answer_within_the_timeout_counts() {
    let receiver = receiver().await;
    let sink = build(near(&receiver).with(|options| options.delivery_timeout_ms = 3_000)).await;
    receiver.next("/x", [Answer::status(200).after(Duration::from_millis(300))]);
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
}

#[tokio::test]
async fn nobody_there_is_a_retry() {
    let port = Port::claim().expect("a port");
    let sink =
        build(HttpConfig { allow_private: true, ..HttpConfig::new(&format!("http://{}", port.addr())) })
            .await;
    let verdict = publish_one(&sink, loose("x")).await;
    assert_seen(&verdict, "retry", "http.unreachable", Scope::Destination);
    assert!(seen(&verdict).3.contains("refused"), "{verdict:?}");
    let sink = build(HttpConfig::new("http://no-such-host.invalid")).await;
    let verdict = publish_one(&sink, loose("x")).await;
    assert_seen(&verdict, "retry", "http.unreachable", Scope::Destination);
}

/// Accepted, and then nothing: not even a byte of TLS.
#[tokio::test]
async fn a_black_hole_is_unreachable_over_tls_and_unknown_without() {
    let receiver = receiver().await;
    let (proxy, url) = Proxy::start_before(&receiver.url()).await.expect("a proxy");
    proxy.black_hole().await;
    let config = |url: &str, delivery_timeout_ms| {
        let config = HttpConfig { allow_private: true, ..HttpConfig::new(url) };
        config.with(|options| options.delivery_timeout_ms = delivery_timeout_ms)
    };
    let sink = build(config(&url.replace("http://", "https://"), 800)).await;
    assert_seen(&publish_one(&sink, loose("x")).await, "retry", "http.unreachable", Scope::Destination);
    let sink = build(config(&url, 3_000)).await;
    assert_seen(&publish_one(&sink, loose("x")).await, "unknown", "http.timeout", Scope::Destination);
}

#[tokio::test]
async fn destinations_that_make_no_url_are_rejected() {
    let receiver = receiver().await;
    let sink = build(near(&receiver)).await;
    for bad in ["..", "a/../b", "a\r\nHost: evil"] {
        assert_seen(&publish_one(&sink, loose(bad)).await, "rejected", "http.bad_url", Scope::Event);
    }
    let sink = build(HttpConfig::for_whole_urls().with(|options| options.require_tls = true)).await;
    for bad in ["orders.placed", "ftp://h/x", "http://h.example/", "https://u:p@h/"] {
        assert_seen(&publish_one(&sink, loose(bad)).await, "rejected", "http.bad_url", Scope::Event);
    }
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn what_the_receiver_says_is_kept_without_our_secrets() {
    let receiver = receiver().await;
    let config = HttpConfig {
        headers: [("x-api-key".to_owned(), Secret::new("hunter3"))].into(),
        secrets: vec![Secret::new("whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0")],
        ..near(&receiver).with(|options| {
            options.user = Some("shop".into());
            options.password = Some(Secret::new("hunter2"));
        })
    };
    let sink = build(config).await;
    let basic = "c2hvcDpodW50ZXIy";
    let echo = format!("bad\r\n\x1b[2Jthing {basic} hunter2 hunter3 {}", "x".repeat(5_000));
    receiver.always("/x", Answer::status(400).body(echo));
    let verdict = publish_one(&sink, loose("x")).await;
    let text = seen(&verdict).3;
    assert!(text.contains("bad") && text.contains("thing *** *** *** xxx"), "{text}");
    assert!(text.len() < 300 && !text.chars().any(char::is_control), "{text}");
    let request = &receiver.requests()[0];
    assert_eq!(request.header("authorization"), Some(&*format!("Basic {basic}")));
    assert_eq!(request.header("x-api-key"), Some("hunter3"));
}

#[tokio::test]
async fn a_closed_sink_says_so() {
    let receiver = receiver().await;
    let sink = build(near(&receiver)).await;
    sink.close().await;
    assert_seen(&publish_one(&sink, loose("x")).await, "retry", "http.closed", Scope::Sink);
    assert_eq!(receiver.connections(), 0);
}
