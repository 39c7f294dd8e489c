//! A request that is repeated is one request.

use crate::clients::Balancer;
use crate::rig::{Rig, TOPICS, ask};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use std::time::Duration;

/// W4: the same ids, whoever asks again, at whichever gateway.
#[test]
fn w4_a_repeated_request_is_one_request() {
    repeated(&Rig::start(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn w4_a_repeated_request_is_one_request_on_postgres() {
    let database = require_service!(TestDatabase::create().await);
    repeated(&Rig::on_postgres(database, ""));
}

fn repeated(rig: &Rig) {
    let (key, other) = (rig.key("acme", &[]), rig.key("other", &[]));
    let send = |key: &str, id: &str, body: &[u8]| {
        rig.post_with("raw", key, &[("idempotency-key", id), ("traceparent", &trace())], body)
    };
    let first = send(&key, "one", b"payload");
    let again = send(&key, "\"one\"", b"payload");
    assert_eq!(first.ids(), again.ids());
    assert_eq!(
        (first.field("idempotency-replayed"), again.field("idempotency-replayed")),
        (None, Some("true"))
    );
    let another = send(&key, "one", b"other");
    assert_eq!((another.status, another.code().as_str()), (422, "gateway.key_reused"));
    assert_ne!(send(&other, "one", b"payload").ids(), first.ids(), "another tenant's key is another key");
    assert_eq!(rig.events().len(), 2);
    let (_second, address) = rig.another();
    let authorization = format!("Bearer {key}");
    let head = [("authorization", authorization.as_str()), ("idempotency-key", "one")];
    rig.until("the second gateway knows the key", || {
        ask(&address, "POST", "/v1/topics/raw", &head, b"payload").status == 202
    });
    assert_eq!(ask(&address, "POST", "/v1/topics/raw", &head, b"payload").ids(), first.ids());
    assert_eq!(rig.events().len(), 2);
}

fn trace() -> String {
    format!("00-{}-00f067aa0ba902b7-01", uuid::Uuid::new_v4().simple())
}

#[test]
fn a_gateway_may_want_a_key_with_every_request() {
    let rig = Rig::start("tenants = { refresh_ms = 100, require_idempotency_key = true }\n");
    let key = rig.key("acme", &[]);
    let answer = rig.post("raw", &key, "1");
    assert_eq!((answer.status, answer.code().as_str()), (400, "gateway.no_idempotency_key"));
    assert_eq!(rig.post_with("raw", &key, &[("idempotency-key", "k")], b"1").ids().len(), 1);
}

/// W4: whoever asks at once, at two gateways, is answered with the ids of one of them.
#[test]
fn w4_requests_at_once_with_one_key_are_one_request() {
    at_once(&Rig::start(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn w4_requests_at_once_with_one_key_are_one_request_on_postgres() {
    let database = require_service!(TestDatabase::create().await);
    at_once(&Rig::on_postgres(database, ""));
}

fn at_once(rig: &Rig) {
    const ROUNDS: usize = 8;
    let key = rig.key("acme", &[]);
    let (_second, address) = rig.another();
    rig.until("the second gateway knows the key", || {
        let head = [("authorization", &*format!("Bearer {key}"))];
        ask(&address, "GET", "/v1/openapi.json", &head, b"").status == 200
    });
    let gateways = Balancer::of(&[&rig.address, &address]);
    // The longest key that there is, and a short one.
    for (round, length) in (0..ROUNDS).zip([255, 8].into_iter().cycle()) {
        let name = format!("{round:0>length$}");
        let send = || gateways.ask(&key, &[("idempotency-key", &name)], b"payload").expect("an answer");
        let answers: Vec<_> = std::thread::scope(|scope| {
            let sent: Vec<_> = (0..6).map(|_| scope.spawn(send)).collect();
            sent.into_iter().map(|sent| sent.join().expect("no panic")).collect()
        });
        assert!(answers.iter().all(|answer| answer.ids() == answers[0].ids()), "{answers:?}");
        let fresh = answers.iter().filter(|answer| answer.field("idempotency-replayed").is_none()).count();
        assert_eq!(fresh, 1, "one of them was the first: {answers:?}");
    }
    assert_eq!(rig.events().len(), ROUNDS);
    let long = gateways.ask(&key, &[("idempotency-key", &"x".repeat(256))], b"").expect("an answer");
    assert_eq!((long.status, long.code().as_str()), (400, "gateway.header"));
}

/// W4: a key is remembered as long as the file says, and is a new one after that.
#[test]
fn w4_a_key_is_forgotten_after_its_time() {
    forgotten(&Rig::start(&short()));
}

#[tokio::test(flavor = "multi_thread")]
async fn w4_a_key_is_forgotten_after_its_time_on_postgres() {
    let database = require_service!(TestDatabase::create().await);
    forgotten(&Rig::on_postgres(database, &short()));
}

/// A key is remembered for a third of a second.
fn short() -> String {
    format!("{TOPICS}[outbox.retention]\nidempotency_hours = 0.0001\n")
}

fn forgotten(rig: &Rig) {
    let key = rig.key("acme", &[]);
    let send = || rig.post_with("raw", &key, &[("idempotency-key", "one")], b"payload").ids();
    let first = send();
    std::thread::sleep(Duration::from_secs(1)); // pace: longer than a key is remembered
    // A gateway purges when it starts, and then once in a while.
    let (_another, _) = rig.another();
    rig.until("the key is forgotten", || send() != first);
    assert_eq!(rig.events().len(), 2, "a new key, a new event");
}
