//! The examples of the specification: JSON format 3.2, NATS binding 3.1.

use super::*;
use crate::event::{Limits, Timestamp};
use crate::route::Route;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use uuid::Uuid;

/// `2018-04-05T17:31:00Z`, the time of the examples.
const TIME: Timestamp = Timestamp(1_522_949_460_000_000);
const ID: Uuid = Uuid::from_u128(0x0192_f7a0_5c1e_7a3e_b1f2_0000_0000_0001);

/// The event of the examples. An id of ours is a UUID, and a value of an extension is a text.
fn example(payload: &[u8], content_type: Option<&str>) -> Event {
    let mut event = Event::new("orders", payload.to_vec())
        .with_id(ID)
        .with_header("type", "com.example.someevent")
        .with_header("comexampleextension1", "value");
    event.content_type = content_type.map(str::to_owned);
    event
}

fn message(envelope: Envelope, event: Event, source: &str) -> Result<Message, Failure> {
    let stored = StoredEvent { seq: 1, slot: 0, appended_at: TIME, event, defect: None };
    let route = Route { envelope, ..Route::everything_to("s") };
    route.encode(stored, &source.into(), &Limits::default()).map_err(|refused| refused.failure)
}

fn headers(message: &Message) -> BTreeMap<String, String> {
    let mut headers = BTreeMap::new();
    message.each_header(|name, value| {
        assert!(headers.insert(name.to_owned(), value.to_owned()).is_none(), "{name} twice");
    });
    headers
}

fn body(event: Event) -> Value {
    let message = message(Envelope::CloudEventsJson, event, "/mycontext").expect("encodes");
    assert_eq!(headers(&message)["content-type"], "application/cloudevents+json");
    serde_json::from_slice(message.payload.as_deref().expect("a body")).expect("JSON")
}

fn expected(more: Value) -> Value {
    let mut value = json!({
        "specversion": "1.0",
        "type": "com.example.someevent",
        "source": "/mycontext",
        "id": ID.to_string(),
        "time": "2018-04-05T17:31:00.000000Z",
        "comexampleextension1": "value",
    });
    for (name, member) in more.as_object().expect("an object") {
        value[name] = member.clone();
    }
    value
}

#[test]
fn structured_mode_is_that_of_the_examples() {
    let thrift = Some("application/vnd.apache.thrift.binary");
    assert_eq!(
        body(example(b"\x00\xffab", thrift)),
        expected(json!({ "datacontenttype": thrift, "data_base64": "AP9hYg==" }))
    );
    assert_eq!(
        body(example(b"<much wow=\"xml\"/>", Some("application/xml"))),
        expected(json!({ "datacontenttype": "application/xml", "data": "<much wow=\"xml\"/>" }))
    );
    let object = json!({ "appinfoA": "abc", "appinfoB": 123, "appinfoC": true });
    assert_eq!(
        body(example(object.to_string().as_bytes(), Some("application/json"))),
        expected(json!({ "datacontenttype": "application/json", "data": object }))
    );
    assert_eq!(
        body(example(b"\"I'm just a string\"", None)),
        expected(json!({ "data": "I'm just a string" }))
    );
    // A `null` that is there is not the same as none.
    assert_eq!(body(example(b"null", None)).get("data"), Some(&Value::Null));
}

#[test]
fn binary_mode_is_that_of_the_examples() {
    let thrift = "application/vnd.apache.thrift.binary";
    let event = example(b"\x00\xff", Some(thrift)).with_key("k");
    let message = message(Envelope::CloudEvents, event, "/mycontext/subcontext").expect("encodes");
    assert_eq!(message.payload.as_deref(), Some(b"\x00\xff".as_slice()), "not a byte changes");
    let headers = headers(&message);
    let id = ID.to_string();
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-type", "com.example.someevent"),
        ("ce-time", "2018-04-05T17:31:00.000000Z"),
        ("ce-id", &id),
        ("ce-source", "/mycontext/subcontext"),
        ("ce-datacontenttype", thrift),
        ("ce-subject", "k"),
        ("ce-partitionkey", "k"),
        ("ce-comexampleextension1", "value"),
        ("content-type", thrift),
        ("Message-ID", &id),
    ] {
        assert_eq!(headers.get(name).map(String::as_str), Some(value), "{name}");
    }
}

#[test]
fn values_are_percent_encoded_as_the_binding_says() {
    let event = example(b"", None).with_key("Euro € 😀").with_header("quote", "50% \"off\"");
    let message = message(Envelope::CloudEvents, event, "my shop").expect("encodes");
    let headers = headers(&message);
    assert_eq!(headers["ce-subject"], "Euro%20%E2%82%AC%20%F0%9F%98%80");
    assert_eq!(headers["ce-quote"], "50%25%20%22off%22");
    assert_eq!(headers["key"], "Euro € 😀", "ordinary headers stay as they are");
    // A source is a URI reference, and that text is encoded like any other.
    assert_eq!(headers["ce-source"], "my%2520shop");
}

#[test]
fn a_source_is_a_uri_reference_that_is_not_empty() {
    let table = [
        ("", "posthaste"),
        ("shop", "shop"),
        ("urn:example:shop", "urn:example:shop"),
        ("https://shop.example/eu", "https://shop.example/eu"),
        ("my shop", "my%20shop"),
        ("7:30", "./7:30"),
        ("café", "caf%C3%A9"),
    ];
    for (source, expected) in table {
        assert_eq!(uri_reference(source), expected);
    }
}

#[test]
fn only_legal_names_become_attributes() {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let event = Event::new("t", "1")
        .with_key("k")
        .with_header("traceparent", trace)
        .with_header("Region", "eu")
        .with_header("x-tenant", "7")
        .with_header("averyveryverylongname", "x")
        .with_header("empty", "")
        .with_header("specversion", "9")
        .with_header("datacontenttype", "a/b")
        .with_header("subject", "s")
        .with_header("CE-Id", "forged")
        .with_header("ce-mine", "kept");
    let structured = body(event.clone());
    let names: Vec<&String> = structured.as_object().expect("an object").keys().collect();
    let legal =
        ["data", "id", "partitionkey", "source", "specversion", "subject", "time", "traceparent", "type"];
    assert_eq!(names, legal);
    assert_eq!((&structured["subject"], &structured["specversion"]), (&"s".into(), &"1.0".into()));
    let headers = headers(&message(Envelope::CloudEvents, event, "s").expect("encodes"));
    assert_eq!(headers["ce-traceparent"], trace);
    assert!(headers.contains_key("Region") && headers.contains_key("x-tenant"), "still headers: {headers:?}");
    assert!(!headers.contains_key("CE-Id") && headers["ce-mine"] == "kept", "{headers:?}");
}

#[test]
fn a_tombstone_stays_one_and_has_its_attributes_in_headers() {
    for envelope in [Envelope::CloudEvents, Envelope::CloudEventsJson] {
        let message = message(envelope, Event::tombstone("t").with_key("k"), "s").expect("encodes");
        assert_eq!(message.payload, None);
        let headers = headers(&message);
        assert_eq!((headers["ce-subject"].as_str(), headers.get("content-type")), ("k", None));
    }
}

#[test]
fn the_content_type_says_what_a_payload_is() {
    let table: [(&[u8], Option<&str>, Form<'_>); 11] = [
        (b"{}", Some("application/json; charset=utf-8"), Form::Json),
        (b"{}", Some("Application/JSON"), Form::Json),
        (b"{}", Some("application/vnd.shop+json"), Form::Json),
        (b"{", Some("text/json"), Form::Json),
        (b"{}", Some("text/plain"), Form::Text("{}")),
        (b"<a/>", Some("image/svg+xml"), Form::Text("<a/>")),
        (b"a", Some("text/plain; charset=\"UTF-8\""), Form::Text("a")),
        (b"a", Some("text/plain; charset=latin1"), Form::Binary),
        (b"\xff", Some("text/plain"), Form::Binary),
        (b"{}", Some("application/octet-stream"), Form::Binary),
        (b"hello", None, Form::Binary),
    ];
    for (bytes, content_type, expected) in table {
        assert_eq!(form(bytes, content_type), expected, "{content_type:?}");
    }
    // Whoever says JSON and sends something else is told so, also where only the encoding is wrong.
    for bad in [b"{".as_slice(), b"\"\xff\"", b""] {
        let refused = message(Envelope::CloudEventsJson, example(bad, Some("application/json")), "s");
        assert_eq!(refused.map(|_| ()).map_err(|f| f.code.into_owned()), Err("payload.not_json".to_owned()));
    }
}

#[test]
fn json_is_embedded_byte_for_byte() {
    let text = "{ \"b\":1.0, \"a\":\"\\u00e9\" }";
    let event = example(text.as_bytes(), Some("application/json"));
    let message = message(Envelope::CloudEventsJson, event, "s").expect("encodes");
    let body = String::from_utf8(message.payload.expect("a body").to_vec()).expect("UTF-8");
    assert!(body.ends_with(&format!(",\"data\":{text}}}")), "{body}");
}

#[test]
fn base64_is_that_of_the_rfc() {
    let table = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
    for (plain, coded) in table {
        assert_eq!(base64(plain.as_bytes()), coded);
    }
}

#[test]
fn names_in_a_configuration() {
    for (name, envelope) in [
        ("none", Envelope::None),
        ("message-id", Envelope::MessageId),
        ("cloudevents", Envelope::CloudEvents),
        ("cloudevents-json", Envelope::CloudEventsJson),
    ] {
        assert_eq!(serde_json::from_value::<Envelope>(name.into()).expect("known"), envelope);
    }
}
