//! Schemas of routes, on the real process.

use crate::binary::{Scratch, run};
use crate::daemon::Daemon;
use crate::relay::Outbox;
use serde_json::Value;

const SCHEMA: &str = r#"{"type":"object","required":["id"],"properties":{"id":{"type":"integer"},"items":{"type":"array",
    "items":{"properties":{"price":{"type":"number","minimum":0}}}}}}"#;

fn route(schema: &Scratch) -> String {
    format!(
        "[sinks.out]\ntype = \"stdout\"\nstart_at = \"earliest\"\n[[route]]\nname = \"orders\"\ntopic = \"orders.*\"\nsink = \"out\"\n\
         validate = {{ json_schema = {:?} }}\n[[route]]\nname = \"rest\"\ntopic = \"*\"\nsink = \"out\"\n",
        schema.0
    )
}

/// The invalid event is a dead letter at once, with its bytes; the rest flows, also of its own key. With
/// another schema it is replayed.
#[tokio::test(flavor = "multi_thread")]
async fn f49_an_event_that_breaks_its_schema_is_a_dead_letter_and_the_rest_flows() {
    let Some(outbox) = Outbox::new().await else { return };
    let schema = Scratch::new(SCHEMA);
    let file = outbox.config(&route(&schema));
    let append = |topic: &str, payload: &str| outbox.append(&[topic, "--key", "k", "--payload", payload]);
    let first = append("orders.placed", r#"{"id": 1}"#);
    let payload = r#"{"id": 2,  "items": [{"price": -5}]}"#;
    let bad = append("orders.placed", payload);
    let empty = append("orders.placed", "");
    let last = append("orders.placed", r#"{"id": 3, "items": [{"price": 5}]}"#);
    let other = append("carts", "anything");
    let gone = outbox.append(&["orders.placed", "--key", "k", "--tombstone"]);
    let daemon = Daemon::start(&["--config", file.path()]);
    let ids: Vec<Value> = daemon.events(4).into_iter().map(|mut event| event["id"].take()).collect();
    assert_eq!(ids, [&*first, &*last, &*other, &*gone], "in order, and a tombstone passes");
    daemon.page("/metrics", |_, body| {
        body.lines().any(|line| line.starts_with("outbox_failed_permanent_total{") && line.ends_with(" 2"))
    });
    let said = daemon.stop();
    let line =
        said.lines().find(|line| line.contains("event is dead") && line.contains(&bad)).unwrap_or_default();
    assert!(line.contains("code=schema.invalid"), "{said}");
    let dead = |id: &str| {
        let life = outbox.cli(&["events", "show", id, "--json"]).json();
        let sinks = life["sinks"].as_array().expect("sinks").clone();
        sinks.into_iter().find(|sink| sink["sink"] == "out").expect("out")["dead"].clone()
    };
    let letter = dead(&bad);
    assert_eq!(
        (&letter["error_code"], &letter["attempts"]),
        (&"schema.invalid".into(), &0.into()),
        "{letter}"
    );
    // Where and why, and no value of the payload.
    let error = letter["error"].as_str().expect("words");
    assert!(error.starts_with("/items/0/price: ") && !error.contains("-5"), "{error}");
    assert_eq!(dead(&empty)["error_code"], "payload.not_json");
    // Another schema, and the letter goes out as it was written.
    std::fs::write(&schema.0, r#"{"type": "object"}"#).expect("another schema");
    let args = [
        "dead",
        "replay",
        "--id",
        &bad,
        "--sink",
        "out",
        "--reason",
        "mended",
        "--yes",
        "--config",
        file.path(),
    ];
    run(&args).ok();
    let daemon = Daemon::start(&["--config", file.path()]);
    let event = daemon.events(1).remove(0);
    assert_eq!((&event["id"], &event["payload"]), (&bad.as_str().into(), &payload.into()));
    daemon.stop();
}

/// A schema that cannot be used is told before anything starts, with its file, its reason, and the line.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_cannot_be_used_stops_the_start() {
    let (bad, gone) = (Scratch::new(r#"{"type": "objcet"}"#), Scratch::new("{}"));
    std::fs::remove_file(&gone.0).expect("there is none");
    for (schema, why) in [(&bad, "it is no JSON Schema that can be used here"), (&gone, "No such file")] {
        let text = format!("outbox.url = \"postgres://127.0.0.1:1/none\"\n{}", route(schema));
        let file = Scratch::new(&text);
        for command in [&["config", "check"][..], &["run"]] {
            let ended = run(&[command, &["--config", file.path()]].concat());
            assert_eq!(ended.code, 2, "{}", ended.err);
            assert!(
                ended.err.contains("line 9: json_schema ") && ended.err.contains(schema.path()),
                "{}",
                ended.err
            );
            assert!(ended.err.contains(why), "{}", ended.err);
        }
    }
}
