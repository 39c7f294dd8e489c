//! F86: what a client sends is what a consumer reads, byte for byte, from the POST to the broker.

use crate::rig::{Rig, TOPICS, directory};
use posthaste_sqlite::broker::{Broker, BrokerConfig};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What is odd and nobody's to mend.
fn odd() -> Vec<(&'static str, Vec<u8>)> {
    let json = "application/json";
    vec![
        (json, b" {\"b\" : 1,\t\"a\":1.50e0 ,\r\n\"a\": -0.0}\n\n".to_vec()),
        (json, "{\"\\u00e9\":\"\u{e9}\\u0000\u{2028}\\/\"}".as_bytes().to_vec()),
        (json, b"123456789012345678901234567890.10".to_vec()),
        (json, b"null".to_vec()),
        ("application/octet-stream", (0..=255).collect()),
        ("application/octet-stream", vec![0]),
        ("application/octet-stream", Vec::new()),
        ("text/plain; charset=utf-8", "a\0b\r\n\u{feff}\u{1F4A9}".as_bytes().to_vec()),
        ("text/plain", vec![0xff, 0xfe, 0xc0, 0x80]),
    ]
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn f86_a_payload_is_the_same_bytes_from_the_request_to_the_broker() {
    let file = directory().join("broker.db");
    let rig = Rig::start(&format!(
        "{TOPICS}[sinks.local]\ntype = \"local\"\npath = {file:?}\nstart_at = \"earliest\"\n\
         [[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"local\"\n"
    ));
    let key = rig.key("acme", &[]);
    let mut sent = HashMap::new();
    for (kind, payload) in odd() {
        let [id] = rig
            .post_with("raw", &key, &[("content-type", kind)], &payload)
            .ids()
            .try_into()
            .expect("one event, one id");
        assert!(sent.insert(id, payload).is_none());
    }
    // The same in one batch: what is JSON as it stands there, without the space around it, the rest encoded.
    let (mut events, mut payloads) = (Vec::new(), Vec::new());
    for (kind, payload) in odd() {
        if kind == "application/json" {
            let text = String::from_utf8(payload).expect("JSON");
            events.push(format!("{{ \"payload\" : {text} }}"));
            payloads.push(text.trim().as_bytes().to_vec());
        } else {
            let text = base64(&payload);
            events.push(format!("{{\"payload_base64\":\"{text}\",\"content_type\":\"{kind}\"}}"));
            payloads.push(payload);
        }
    }
    let body = format!("{{\n \"events\" :[{}] }}", events.join(" , "));
    let batch = [("content-type", "application/vnd.posthaste.batch+json")];
    let ids = rig.post_with("raw", &key, &batch, body.as_bytes()).ids();
    assert_eq!(ids.len(), payloads.len());
    sent.extend(ids.into_iter().zip(payloads));

    let begun = Instant::now();
    let arrived = loop {
        let arrived = read(&file).await;
        if arrived.len() >= sent.len() {
            break arrived;
        }
        assert!(begun.elapsed() < crate::rig::DEADLINE, "{} of {}", arrived.len(), sent.len());
        tokio::time::sleep(Duration::from_millis(50)).await; // pace: nobody calls
    };
    assert_eq!(arrived, sent);
    let _ = std::fs::remove_dir_all(file.parent().expect("a directory"));
}

/// Payloads by id.
async fn read(file: &std::path::Path) -> HashMap<String, Vec<u8>> {
    let mut arrived = HashMap::new();
    let Ok(broker) = Broker::open(BrokerConfig { create: false, ..BrokerConfig::new(file) }) else {
        return arrived;
    };
    for topic in broker.topics().await.expect("topics") {
        for number in 0..topic.partitions.len() {
            let number = i32::try_from(number).expect("small");
            for stored in broker.read(&topic.name, number, 0, 1_000).await.expect("read") {
                let payload = stored.message.payload.unwrap_or_default().to_vec();
                arrived.insert(stored.message.id.expect("an id"), payload);
            }
        }
    }
    arrived
}
