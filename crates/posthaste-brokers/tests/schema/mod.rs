//! Schemas of a registry, by answers that were recorded, over a real connection.

mod apicurio;

use posthaste::schema::{Checked, Validator};
use posthaste_brokers::Secret;
use posthaste_brokers::schema::{JsonSchema, REGISTRY, RegistryConfig, SchemaRegistry};
use posthaste_testkit::services::Certs;
use posthaste_testkit::services::{Answer, Manner, Receiver, ReceiverOptions};
use std::path::Path;
use std::time::{Duration, Instant};

/// Confluent 7.6's answer to `GET /schemas/ids/1`.
const JSON: &str = r#"{"schemaType":"JSON","schema":"{\"type\":\"object\",\"properties\":{\"price\":{\"type\":\"integer\"}},\"required\":[\"price\"]}"}"#;
/// The same for Avro, whose type is left out.
const AVRO: &str = r#"{"schema":"{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"price\",\"type\":\"int\"}]}"}"#;
const UNKNOWN: &str = r#"{"error_code":40403,"message":"Schema 9 not found"}"#;
const PATH: &str = "/schemas/ids/1";

async fn receiver() -> Receiver {
    Receiver::start(&ReceiverOptions::default()).await.expect("a receiver")
}

fn json(body: &str) -> Answer {
    Answer::status(200).header("content-type", "application/vnd.schemaregistry.v1+json").body(body.to_owned())
}

fn registry(url: &str) -> SchemaRegistry {
    // A test waits for answers; only those of silence wait for this.
    let config = RegistryConfig { timeout_ms: 30_000, ..RegistryConfig::new(url) };
    SchemaRegistry::new(&config).expect("a configuration")
}

fn hasty(url: &str) -> SchemaRegistry {
    SchemaRegistry::new(&RegistryConfig { timeout_ms: 300, ..RegistryConfig::new(url) })
        .expect("a configuration")
}

fn framed(id: u32, body: &[u8]) -> Vec<u8> {
    [&[0][..], &id.to_be_bytes(), body].concat()
}

/// As a consumer asks.
async fn asked(registry: &SchemaRegistry, payload: &[u8]) -> Checked {
    match registry.prepare(payload).await {
        Ok(()) => registry.check(payload),
        Err(away) => Checked::Unavailable(away),
    }
}

async fn code(registry: &SchemaRegistry, payload: &[u8]) -> String {
    match asked(registry, payload).await {
        Checked::Fine => "fine".to_owned(),
        Checked::Poison(violation) => violation.code.into_owned(),
        Checked::Unavailable(away) => away.dependency.to_string(),
    }
}

#[tokio::test]
async fn a_schema_is_fetched_once_and_kept() {
    let receiver = receiver().await;
    receiver.always(PATH, json(JSON));
    receiver.always("/schemas/ids/2", json(AVRO));
    let registry = registry(&receiver.url());
    for _ in 0..3 {
        assert_eq!(code(&registry, &framed(1, br#"{"price":3}"#)).await, "fine");
        assert_eq!(code(&registry, &framed(1, br#"{"price":"3"}"#)).await, "schema.invalid");
        assert_eq!(code(&registry, &framed(2, &[6])).await, "fine");
        assert_eq!(code(&registry, &framed(2, &[6, 6])).await, "schema.invalid");
        assert_eq!(code(&registry, &framed(1, b"")).await, "payload.not_json");
    }
    assert_eq!(receiver.requests().len(), 2);
    let request = &receiver.requests()[0];
    assert_eq!((request.method.as_str(), request.header("authorization")), ("GET", None));
    assert!(request.header("accept").is_some_and(|types| types.contains("vnd.schemaregistry.v1+json")));
}

#[tokio::test]
async fn what_names_no_schema_is_poison_and_nobody_is_asked() {
    let receiver = receiver().await;
    let registry = registry(&receiver.url());
    for bad in [&b""[..], b"\0", b"\0\0\0\0", br#"{"price":3}"#, b"\x01\0\0\0\x01{}", &[0xff; 9]] {
        assert_eq!(code(&registry, bad).await, "schema.wire", "{bad:?}");
    }
    assert!(receiver.requests().is_empty());
}

/// A letter whose schema was registered meanwhile is fine at its replay.
#[tokio::test]
async fn an_id_that_the_registry_does_not_know_is_poison_and_asked_for_again_later() {
    let receiver = receiver().await;
    let not_found = Answer::status(404).body(UNKNOWN);
    receiver.next(PATH, [not_found]);
    receiver.always(PATH, json(JSON));
    let (registry, payload) = (registry(&receiver.url()), framed(1, br#"{"price":3}"#));
    assert_eq!(code(&registry, &payload).await, "schema.unknown_id");
    assert_eq!(code(&registry, &payload).await, "schema.unknown_id", "a flood of them asks once");
    assert_eq!(receiver.requests().len(), 1);
    let end = Instant::now() + Duration::from_secs(60);
    while code(&registry, &payload).await != "fine" {
        assert!(Instant::now() < end, "it is unknown for ever");
        tokio::time::sleep(Duration::from_millis(50)).await; // pace: nobody can signal us
    }
}

#[tokio::test]
async fn f71_a_registry_that_is_away_slow_or_wrong_is_a_dependency_and_no_poison() {
    let receiver = receiver().await;
    let payload = framed(1, br#"{"price":3}"#);
    let wrong = [
        ("down for a moment", Answer::status(500)),
        ("refuses us", Answer::status(401).body(r#"{"error_code":401}"#)),
        ("somebody else's 404", Answer::status(404).body("<html>not here</html>")),
        ("a 404 with another code", Answer::status(404).body(r#"{"error_code":40401}"#)),
        ("a redirect", Answer::status(302).header("location", "http://127.0.0.1:1/")),
        ("no JSON", Answer::status(200).body("<html>welcome</html>")),
        ("no schema", json("{}")),
        ("a schema that is no text", json(r#"{"schemaType":"JSON","schema":{"type":"object"}}"#)),
        ("a schema that is no JSON", json(r#"{"schemaType":"JSON","schema":"<html>"}"#)),
        ("breaks off", Answer::in_manner(Manner::HalfBody)),
        ("ends without an answer", Answer::in_manner(Manner::CloseUnanswered)),
        ("no HTTP", Answer::in_manner(Manner::Garbage)),
        ("an answer of 4 MiB", Answer::status(200).body(vec![b' '; 4 << 20])),
        ("packed", json("\u{1f}\u{8b}").header("content-encoding", "gzip")),
    ];
    let registry = registry(&receiver.url());
    for (what, answer) in wrong {
        receiver.next(PATH, [answer]);
        assert_eq!(code(&registry, &payload).await, REGISTRY, "{what}");
    }
    receiver.next(PATH, [Answer::in_manner(Manner::Silent)]);
    let Checked::Unavailable(away) = asked(&hasty(&receiver.url()), &payload).await else { panic!("silent") };
    assert!(away.why.contains("no answer within 300 ms"), "{}", away.why);
    // Nothing of all this is remembered.
    receiver.always(PATH, json(JSON));
    assert_eq!(code(&registry, &payload).await, "fine");
    let url = receiver.url();
    drop(receiver);
    let Checked::Unavailable(away) = asked(&self::registry(&url), &payload).await else { panic!("down") };
    assert!(away.why.starts_with(&url), "{}", away.why);
}

#[tokio::test]
async fn a_schema_that_nobody_here_can_check_with_is_poison_with_its_reason() {
    let receiver = receiver().await;
    let large = format!(r#"{{"schemaType":"JSON","schema":"{}true"}}"#, " ".repeat(1 << 20));
    let answers = [
        (r#"{"schemaType":"PROTOBUF","schema":"syntax = \"proto3\";"}"#, "Protobuf"),
        (
            r#"{"schemaType":"JSON","schema":"{}","references":[{"name":"a","subject":"b","version":1}]}"#,
            "refers to other",
        ),
        (
            r#"{"schemaType":"JSON","schema":"{\"$ref\":\"https://example.com/x\"}"}"#,
            "no JSON Schema that can be used",
        ),
        (
            r#"{"schema":"{\"type\":\"record\",\"name\":\"A\",\"fields\":[{\"name\":\"b\",\"type\":\"B\"}]}"}"#,
            "schema",
        ),
        (r#"{"schemaType":"XML","schema":"{}"}"#, "of the type \"XML\""),
        (&large, "larger than 1 MiB"),
    ];
    for (id, (answer, expected)) in (1..).zip(answers) {
        receiver.always(&format!("/schemas/ids/{id}"), json(answer));
        let Checked::Poison(found) = asked(&registry(&receiver.url()), &framed(id, b"{}")).await else {
            panic!("{answer} can be checked with")
        };
        assert_eq!(found.code, "schema.unsupported");
        assert!(found.message.contains(expected), "{}", found.message);
    }
}

#[tokio::test]
async fn login_tls_and_a_path_are_those_of_every_broker() {
    let certs = Certs::make().expect("certificates");
    let receiver =
        Receiver::start(&ReceiverOptions::default().tls(certs.server())).await.expect("a receiver");
    receiver.always("/apis/ccompat/v7/schemas/ids/1", json(JSON));
    let config = RegistryConfig {
        user: Some("shop".to_owned()),
        password: Some(Secret::new("pw")),
        ca_file: Some(certs.ca().to_owned()),
        timeout_ms: 30_000,
        ..RegistryConfig::new(format!("{}/apis/ccompat/v7/", receiver.url()))
    };
    let payload = framed(1, br#"{"price":3}"#);
    assert_eq!(code(&SchemaRegistry::new(&config).expect("a configuration"), &payload).await, "fine");
    assert_eq!(receiver.requests()[0].header("authorization"), Some("Basic c2hvcDpwdw=="));
    let stranger = RegistryConfig { ca_file: None, require_tls: true, ..config.clone() };
    let Checked::Unavailable(away) = asked(&SchemaRegistry::new(&stranger).expect("words"), &payload).await
    else {
        panic!("a certificate that nobody signed")
    };
    assert!(away.why.contains("no TLS connection") && !away.why.contains("pw"), "{}", away.why);
    for (bad, option) in [
        (RegistryConfig::new("registry:8081"), "url"),
        (RegistryConfig::new("http://u:secret@h"), "url"),
        (RegistryConfig { require_tls: true, ..RegistryConfig::new("http://h") }, "url"),
        (RegistryConfig { user: Some("u".to_owned()), ..RegistryConfig::new("http://h") }, "user"),
        (RegistryConfig { timeout_ms: 0, ..RegistryConfig::new("http://h") }, "timeout_ms"),
    ] {
        let error = SchemaRegistry::new(&bad).expect_err(option);
        assert_eq!(error.option_name(), option, "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

/// A producer that makes ids up must not fill the memory.
#[tokio::test]
async fn g7_ids_that_are_made_up_are_not_kept_for_ever() {
    let receiver = receiver().await;
    let registry = registry(&receiver.url());
    receiver.always(PATH, json(JSON));
    assert_eq!(code(&registry, &framed(1, br#"{"price":3}"#)).await, "fine");
    for id in 2..1_500 {
        receiver.always(&format!("/schemas/ids/{id}"), Answer::status(404).body(UNKNOWN));
        assert_eq!(code(&registry, &framed(id, b"{}")).await, "schema.unknown_id");
    }
    assert!(registry.kept() <= 1_000, "{} ids are kept", registry.kept());
    assert_eq!(receiver.requests_for(PATH).len(), 1);
    assert_eq!(code(&registry, &framed(1, br#"{"price":3}"#)).await, "fine");
    assert_eq!(receiver.requests_for(PATH).len(), 1, "what is known goes last");
}

#[test]
fn a_file_is_read_once_and_told_by_name_if_it_cannot_be() {
    let error = JsonSchema::read(Path::new("/nowhere/order.json")).expect_err("no file").to_string();
    assert!(error.starts_with("json_schema /nowhere/order.json: "), "{error}");
}

/// What a check costs: printed, and bounded so loosely that only a mistake breaks it.
#[tokio::test]
async fn the_cost_of_a_check() {
    let receiver = receiver().await;
    receiver.always(PATH, json(JSON));
    receiver.always("/schemas/ids/2", json(AVRO));
    let registry = registry(&receiver.url());
    let line = r#"{"sku":"A-1","price":12,"count":3}"#;
    let body = format!(r#"{{"price":3,"items":[{}]}}"#, [line; 30].join(","));
    let (large, avro) = (framed(1, body.as_bytes()), framed(2, &[6]));
    for (what, payload) in [("JSON, 1 KiB", &large), ("Avro, 6 bytes", &avro)] {
        assert_eq!(code(&registry, payload).await, "fine");
        let began = Instant::now();
        for _ in 0..2_000 {
            assert_eq!(registry.check(payload), Checked::Fine);
        }
        let each = began.elapsed() / 2_000;
        println!("a check of {what} ({} bytes): {each:?}", payload.len());
        assert!(each < Duration::from_millis(20), "{what}: {each:?}");
    }
}
