//! Signatures, judged by the reference implementation of Standard Webhooks (F47).

use super::*;
use posthaste_brokers::Secret;
use posthaste_testkit::services::Recorded;
use standardwebhooks::Webhook;

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0";
const NOBODYS: &str = "whsec_bm9ib2R5LW5vYm9keS1ub2JvZHktbm9ib2R5";

fn accepts(secret: &str, request: &Recorded) -> bool {
    let mut headers = standardwebhooks_headers(request);
    let webhook = Webhook::new(secret).expect("a secret");
    let accepted = webhook.verify(&request.body, &headers).is_ok();
    // It does look at all of it.
    let mut other = request.body.to_vec();
    other.push(b' ');
    assert!(webhook.verify(&other, &headers).is_err());
    headers.insert("webhook-id", "another".parse().expect("a value"));
    assert!(webhook.verify(&request.body, &headers).is_err());
    accepted
}

fn standardwebhooks_headers(request: &Recorded) -> hyper::HeaderMap {
    let mut headers = hyper::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        if let Some(value) = request.header(name) {
            headers.insert(name, value.parse().expect("a value"));
        }
    }
    headers
}

#[tokio::test]
async fn f47_the_reference_accepts_ours_and_both_secrets_are_valid_at_once() {
    let receiver = receiver().await;
    let secrets = vec![Secret::new(OLD), Secret::new(NEW)];
    let sink = build(HttpConfig { secrets, ..near(&receiver) }).await;
    // The reference takes text alone.
    let bodies: [&[u8]; 4] = [b"", b"{\"a\": 1}", "grün\0\r\n".as_bytes(), &[b'x'; 100_000]];
    for body in bodies {
        let sent = message("x", Event::new("orders.placed", body.to_vec()));
        assert_eq!(publish_one(&sink, sent).await, Verdict::Delivered);
    }
    let tombstone = message("x", Event::tombstone("orders.placed"));
    assert_eq!(publish_one(&sink, tombstone).await, Verdict::Delivered);
    for request in receiver.requests() {
        assert!(accepts(OLD, &request) && accepts(NEW, &request), "{request:?}");
        assert!(!accepts(NOBODYS, &request));
        assert_eq!(request.header("idempotency-key"), request.header("webhook-id"));
    }
}

#[tokio::test]
async fn without_secrets_there_is_no_signature() {
    let receiver = receiver().await;
    assert_eq!(publish_one(&build(near(&receiver)).await, loose("x")).await, Verdict::Delivered);
    let request = &receiver.requests()[0];
    assert_eq!(request.header("webhook-signature"), None);
    assert!(request.header("webhook-id").is_some() && request.header("webhook-timestamp").is_some());
}
