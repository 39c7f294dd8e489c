//! Who comes in, with what.

use crate::rig::{Rig, exchange};
use serde_json::json;

/// W1: what was answered with 202 is in the log, byte for byte, with the tenant as header and key.
#[test]
fn g1_what_was_taken_is_in_the_log_byte_for_byte() {
    let rig = Rig::start("");
    let key = rig.key("acme", &[]);
    let body = "{\"b\" : 1,  \"a\":1.50e0}\n";
    let head =
        [("content-type", "application/json"), ("event-type", "OrderPlaced"), ("event-header-Shop", "7")];
    let answer = rig.post_with("orders.placed", &key, &head, body.as_bytes());
    let [id] = answer.ids().try_into().expect("one");
    assert!(answer.field("ratelimit").is_some_and(|field| field.contains("r=199")), "{}", answer.head);
    let event = rig.event(&id);
    let shown = &event["event"];
    assert_eq!((&shown["topic"], &shown["key"]), (&json!("orders.placed"), &json!("acme")), "{event}");
    assert_eq!(
        shown["headers"],
        json!({ "shop": "7", "tenant_id": "acme", "type": "OrderPlaced" }),
        "{event}"
    );
    assert_eq!(shown["payload"]["text"].as_str().or(shown["payload"].as_str()), Some(body), "{event}");

    let bytes = [0u8, 255, 10, 13, 0, 128];
    let head = [("content-type", "application/octet-stream"), ("event-key", "order-7")];
    let [id] = rig.post_with("raw", &key, &head, &bytes).ids().try_into().expect("one");
    let event = rig.event(&id);
    assert_eq!(event["event"]["key"], json!("acme:order-7"), "{event}");
    assert!(event["event"]["payload_base16"] == "00ff0a0d0080", "{event}");
}

/// A batch is kept as it was written, in order, as a whole.
#[test]
fn a_batch_is_stored_in_order_or_not_at_all() {
    let rig = Rig::start("");
    let key = rig.key("acme", &[]);
    let batch = [("content-type", "application/vnd.posthaste.batch+json")];
    let body = r#"{"events": [{"payload": {"n" :1}, "type": "A"}, {"payload": null}, {"payload":[ 2]}]}"#;
    let ids = rig.post_with("orders.placed", &key, &batch, body.as_bytes()).ids();
    let events = rig.events();
    let stored: Vec<&str> = events.iter().filter_map(|event| event["id"].as_str()).collect();
    assert_eq!(stored, ids, "{events:?}");
    let bad = r#"{"events": [{"payload": 1}, {"payload": 2, "headers": {"saga-id": "x"}}]}"#;
    assert_eq!(rig.post_with("orders.placed", &key, &batch, bad.as_bytes()).code(), "gateway.header");
    let wrong = r#"{"events": [{"payload": 1}, {"payload_base64": "AA=="}]}"#;
    let answer = rig.post_with("orders.placed", &key, &batch, wrong.as_bytes());
    assert_eq!((answer.status, answer.code().as_str()), (415, "gateway.content_type"));
    assert_eq!(rig.events().len(), 3);
}

/// Every refusal has its code, and nothing of it is stored.
#[test]
fn w2_what_is_refused_has_its_code_and_is_not_stored() {
    let rig = Rig::start("bounds = { body_bytes_max = 2000, batch_events_max = 3 }\n");
    let key = rig.key("acme", &[]);
    let narrow = rig.key("acme", &["--topic", "raw"]);
    let json = ("content-type", "application/json");
    let refused = |status: u16, code: &str, topic: &str, key: &str, head: &[(&str, &str)], body: &[u8]| {
        let answer = rig.post_with(topic, key, head, body);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (status, code),
            "{topic} {head:?} {}",
            answer.text
        );
    };
    for key in ["", "phk_", "phk_000000000000_0000000000000000000000000000000000000000000", "Bearer"] {
        refused(401, "gateway.key", "orders.placed", key, &[json], b"{}");
    }
    refused(403, "gateway.topic", "orders.placed", &narrow, &[json], b"{}");
    for topic in ["nowhere", "orders.place", "orders.placed.", "%2e%2e"] {
        refused(404, "gateway.no_topic", topic, &key, &[json], b"{}");
    }
    refused(415, "gateway.content_type", "orders.placed", &key, &[("content-type", "text/plain")], b"{}");
    refused(415, "gateway.content_type", "orders.placed", &key, &[], b"{}");
    for body in [&b"{"[..], b"", b"{} {}", b"\xff", &b"[".repeat(1_000)] {
        refused(422, "gateway.not_json", "orders.placed", &key, &[json], body);
    }
    refused(413, "gateway.too_large", "orders.placed", &key, &[json], &b" ".repeat(2_001));
    let chunked = [("transfer-encoding", "chunked"), json];
    let body = [b"fff\r\n".as_slice(), &b" ".repeat(0xfff), b"\r\n0\r\n\r\n"].concat();
    refused(413, "gateway.too_large", "orders.placed", &key, &chunked, &body);
    for header in [
        "event-header-tenant_id",
        "event-header-Tenant-Id",
        "event-header-saga-id",
        "event-header-SAGA_reply",
        "event-header-dead-letter",
        "event-header-posthaste-tombstone",
        "event-header-key",
        "event-header-ce-id",
    ] {
        refused(400, "gateway.header", "orders.placed", &key, &[json, (header, "x")], b"{}");
    }
    refused(400, "gateway.header", "orders.placed", &key, &[json, ("event-key", "x")], b"{}");
    refused(400, "gateway.header", "raw", &key, &[("event-key", "")], b"x");
    refused(400, "gateway.header", "raw", &key, &[("event-type", "a"), ("event-type", "b")], b"x");
    refused(400, "gateway.header", "raw", &key, &[("event-deliver-at", "tomorrow")], b"x");
    refused(400, "gateway.header", "raw", &key, &[("event-deliver-at", "2999-01-01T00:00:00Z")], b"x");
    refused(400, "gateway.header", "raw", &key, &[("idempotency-key", &"x".repeat(256))], b"x");
    let batch = ("content-type", "application/vnd.posthaste.batch+json");
    refused(400, "gateway.malformed", "raw", &key, &[batch], br#"{"events": []}"#);
    refused(400, "gateway.malformed", "raw", &key, &[batch], br#"{"events": "#);
    let four = br#"{"events": [{"payload": 1}, {"payload": 1}, {"payload": 1}, {"payload": 1}]}"#;
    refused(413, "gateway.batch", "raw", &key, &[batch], four);
    let answer = rig.ask("PUT", "/v1/topics/raw", &[("authorization", &format!("Bearer {key}"))], b"x");
    assert_eq!((answer.status, answer.code().as_str()), (405, "gateway.method"));
    assert_eq!(rig.get("/v1/topics", &key).code(), "gateway.no_page");
    assert_eq!(rig.events().len(), 0);
    // A whole connection is left as it should be: the next request works.
    assert_eq!(rig.post("raw", &narrow, "{}").ids().len(), 1);
}

/// A key ends when it is revoked or when its time is over, and a tenant when it is paused or removed.
#[test]
fn w5_keys_and_tenants_end_within_a_look() {
    let rig = Rig::start("");
    let (first, second) = (rig.key("acme", &[]), rig.key("acme", &[]));
    let other = rig.key("other", &[]);
    assert_eq!(rig.post("raw", &first, "1").status, 202);
    let id = first.split('_').nth(1).expect("an id");
    rig.cli(&["gateway", "keys", "revoke", id, "--reason", "it was in a log"]).ok();
    rig.until("the first key is none", || rig.post("raw", &first, "2").status == 401);
    assert_eq!(rig.post("raw", &second, "3").status, 202, "two keys live at once");
    rig.cli(&["gateway", "tenants", "pause", "acme", "--reason", "nonsense"]).ok();
    rig.until("it is paused", || rig.post("raw", &second, "4").status == 403);
    assert_eq!(rig.post("raw", &second, "4").code(), "gateway.paused");
    assert_eq!(rig.post("raw", &other, "5").status, 202);
    rig.cli(&["gateway", "tenants", "resume", "acme"]).ok();
    rig.until("it is not paused", || rig.post("raw", &second, "6").status == 202);
    let short = rig.new_key("acme", &["--expires", "1s"]);
    rig.until("its time is over", || rig.post("raw", &short, "7").status == 401);
    rig.cli(&["gateway", "tenants", "remove", "acme", "--reason", "over"]).ok();
    rig.until("it is gone", || rig.post("raw", &second, "8").status == 401);
    let audit = rig.cli(&["audit", "--json"]).ok().json().to_string();
    for act in ["gateway.key.new", "gateway.key.revoke", "gateway.tenant.pause", "gateway.tenant.remove"] {
        assert!(audit.contains(act), "{act}: {audit}");
    }
    for secret in [&first, &second, &other] {
        let secret = secret.rsplit('_').next().expect("it has one");
        assert!(!audit.contains(secret), "no key is in the audit");
        assert!(!rig.daemon.said().contains(secret), "nor in the log");
    }
}

/// What hyper or the gateway refuses of a head, and others are served.
#[test]
fn hostile_heads_are_refused_and_others_are_served() {
    let rig = Rig::start("");
    let key = rig.key("acme", &[]);
    let many: String = (0..10_000).map(|n| format!("x-{n}: y\r\n")).collect();
    let two = "content-length: 1\r\ncontent-length: 2\r\n";
    for (lines, statuses) in [
        (many.as_str(), &[431, 400][..]),
        (two, &[400]),
        ("event-header-x: a\0b\r\n", &[400]),
        ("event-header-x : b\r\n", &[400]),
        (&format!("x: {}\r\n", "y".repeat(200_000)), &[431, 400]),
    ] {
        let text =
            format!("POST /v1/topics/raw HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{lines}\r\n1");
        let answer = exchange(&rig.address, text.as_bytes());
        assert!(statuses.contains(&answer.status), "{lines:.60}: {} {}", answer.status, answer.text);
    }
    assert_eq!(rig.events().len(), 0);
    assert_eq!(rig.post("raw", &key, "1").status, 202);
}

/// F-early: a client that is still sending its body sees the answer.
#[test]
fn an_early_answer_arrives_while_the_body_is_on_its_way() {
    let rig = Rig::start("");
    // Before it knows who there is it cannot say that a key is none.
    rig.key("acme", &[]);
    let body = vec![b' '; 1 << 20];
    let answer = rig.post_with("raw", "phk_no", &[], &body);
    assert_eq!((answer.status, answer.code().as_str()), (401, "gateway.key"));
}

/// A gateway that has never reached its database knows no key: a right one is answered with 503, which is
/// repeated, and not with 401, which is given up.
#[test]
fn a_database_that_is_away_from_the_start_is_503_and_not_401() {
    let rig = Rig::away();
    let answer = rig.post("raw", "phk_000000000000_0000000000000000000000000000000000000000000", "1");
    assert_eq!((answer.status, answer.code().as_str()), (503, "gateway.store"));
    assert!(answer.field("retry-after").is_some(), "{}", answer.head);
}
