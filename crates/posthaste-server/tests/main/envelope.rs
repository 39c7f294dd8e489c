//! CloudEvents from an append to a subscriber of a real NATS server that knows nothing of Posthaste.

use crate::daemon::Daemon;
use crate::relay::Outbox;
use crate::subscriber::Subscriber;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn cloudevents_arrive_in_both_modes() {
    let Some(outbox) = Outbox::new().await else { return };
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    let mut subscriber = Subscriber::connect(nats.addr());
    subscriber.stream("EVENTS", "ev.>");
    let file = outbox.config(&format!(
        "[sinks.nats]\ntype = \"nats\"\nurl = \"{}\"\nstart_at = \"earliest\"\n\
         [[route]]\ntopic = \"binary.*\"\nsink = \"nats\"\ndestination = \"ev.{{topic}}\"\nenvelope = \"cloudevents\"\n\
         [[route]]\ntopic = \"json.*\"\nsink = \"nats\"\ndestination = \"ev.{{topic}}\"\nenvelope = \"cloudevents-json\"\n",
        nats.url()
    ));
    let json = ["--content-type", "application/json", "--header", "tenant=t-1", "--header", "X-Own=1"];
    let common = [&["--key", "order 7", "--payload", "{\"total\": 12}"] as &[&str], &json].concat();
    let first =
        outbox.append(&[&["binary.placed", "--type", "com.example.placed"], common.as_slice()].concat());
    let daemon = Daemon::start(&["--config", file.path()]);
    let arrived = subscriber.next();
    assert_eq!(
        (arrived.subject.as_str(), arrived.body.as_slice()),
        ("ev.binary.placed", b"{\"total\": 12}".as_slice())
    );
    let headers = &arrived.headers;
    let (time, expected) = (
        headers["ce-time"].as_str(),
        [
            ("ce-specversion", "1.0"),
            ("ce-id", first.as_str()),
            ("ce-source", "shop"),
            ("ce-type", "com.example.placed"),
            ("ce-subject", "order%207"),
            ("ce-partitionkey", "order%207"),
            ("ce-datacontenttype", "application/json"),
            ("ce-tenant", "t-1"),
            ("content-type", "application/json"),
            ("X-Own", "1"),
            ("Message-ID", first.as_str()),
        ],
    );
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    for (name, value) in expected {
        assert_eq!(headers.get(name).map(String::as_str), Some(value), "{name}: {arrived:?}");
    }
    let second = outbox.append(&[&["json.placed"], common.as_slice()].concat());
    let arrived = subscriber.next();
    assert_eq!(arrived.headers["content-type"], "application/cloudevents+json");
    let body: Value = serde_json::from_slice(&arrived.body).expect("JSON");
    let whole = json!({
        "specversion": "1.0", "id": second, "source": "shop", "type": "json.placed", "time": body["time"],
        "datacontenttype": "application/json", "subject": "order 7", "partitionkey": "order 7", "tenant": "t-1",
        "data": { "total": 12 },
    });
    assert_eq!(body, whole);
    outbox.append(&["json.gone", "--key", "k", "--tombstone"]);
    let arrived = subscriber.next();
    assert_eq!((arrived.body.len(), arrived.headers["ce-subject"].as_str()), (0, "k"), "{arrived:?}");
    assert_eq!(arrived.headers["Posthaste-Tombstone"], "true");
    daemon.stop();
}
