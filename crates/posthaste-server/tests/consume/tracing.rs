//! One event from its append over the broker to its effect, to what the effect appended, and so on.

#[cfg(feature = "kafka")]
use crate::kafka::shared;
use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use serde_json::{Value, json};

const EFFECTS: &str = "select count(*) from trial.effects";

async fn a_chain_is_followed(rig: Rig) {
    let member = rig.start();
    let appended =
        ["append", &rig.topic, "--key", "k0", "--type", "chain", "--payload", "{\"n\": 1}", "--json"];
    let said: Value = serde_json::from_str(&rig.cli(&appended).ok()).expect("JSON");
    let id = said["id"].as_str().expect("an id").to_owned();
    rig.until(EFFECTS, 3).await;
    let trace: Value = serde_json::from_str(&rig.cli(&["trace", &id, "--json"]).ok()).expect("JSON");
    let first = &trace["outboxes"][0];
    assert_eq!(first["event"]["event"]["topic"], rig.topic.as_str(), "{trace}");
    let handled = &first["consumers"][0];
    assert_eq!((&handled["consumer"], &handled["outcome"]), (&"billing".into(), &"d".into()), "{trace}");
    let place = handled["place"].as_str().expect("its broker's address");
    assert!(place.starts_with(&rig.topic) && place.contains('@') && handled["xid"].is_string(), "{trace}");

    // The second names its cause, the third names none and was alone in its transaction.
    let followed = trace["followed"].as_array().expect("what followed");
    assert_eq!(followed.len(), 2, "{trace}");
    assert_eq!(
        (&followed[0]["id"], &followed[0]["cause"]),
        (&handled["appended"][0]["id"], &id.as_str().into())
    );
    let second = &followed[0]["outboxes"][0];
    assert_eq!(second["consumers"][0]["appended"][0]["id"], followed[1]["id"], "{trace}");
    assert_eq!(followed[1]["cause"], followed[0]["id"], "{trace}");
    let third = &followed[1]["outboxes"][0];
    assert_eq!(
        (&third["consumers"][0]["outcome"], third["event"].is_object()),
        (&"d".into(), true),
        "{trace}"
    );

    let text = rig.cli(&["trace", &id]).ok();
    for part in ["appended", "sink      broker", "consumer  billing  done", "transaction", "caused by"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let none = rig.cli(&["trace", "nobody-knows-it"]);
    assert!(none.code == 1 && none.out.contains("no trace of nobody-knows-it"), "{}", none.out);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_events_is_followed_over_the_local_broker() {
    a_chain_is_followed(require_service!(Rig::set("").await)).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_events_is_followed_over_kafka() {
    let kafka = require_service!(shared().await);
    a_chain_is_followed(require_service!(Rig::set_on_kafka(kafka, 2, "").await)).await;
}

/// An event of one service, and its effect in the database of another: both are found by its id, and one that
/// cannot be looked into keeps nobody from the other.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_looked_up_in_every_configured_outbox() {
    let rig = require_service!(Rig::set("").await);
    let elsewhere = require_service!(TestDatabase::create().await);
    rig.reconfigure("[consumers.billing]\n", "[consumers.billing]\noutbox = \"shop\"\n");
    let other = format!("[[outbox]]\nname = \"warehouse\"\nurl = \"{}\"\n", elsewhere.url());
    rig.reconfigure("[[route]]\n", &format!("{other}[[route]]\n"));
    rig.cli(&["migrate", "up"]).ok();
    let member = rig.start();
    let appended = ["append", &rig.topic, "--outbox", "warehouse", "--key", "k0", "--type", "chain"];
    let said = rig.cli(&[&appended[..], &["--payload", "{\"n\": 1}", "--json"]].concat()).ok();
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let id = said["id"].as_str().expect("an id");
    rig.until(EFFECTS, 3).await;
    let trace: Value = serde_json::from_str(&rig.cli(&["trace", id, "--json"]).ok()).expect("JSON");
    let found = trace["outboxes"].as_array().expect("outboxes");
    let of = |name: &str| found.iter().find(|found| found["outbox"] == name).expect("both know of it");
    assert_eq!(of("warehouse")["event"]["event"]["topic"], rig.topic.as_str(), "{trace}");
    assert!(of("shop")["event"].is_null() && of("warehouse")["consumers"] == json!([]), "{trace}");
    assert_eq!(of("shop")["consumers"][0]["outcome"], "d", "{trace}");
    let followed = trace["followed"].as_array().expect("what followed");
    assert!(followed.len() == 2 && followed[0]["cause"] == id, "{trace}");

    let (away, nowhere) = (elsewhere.url(), "postgres://postgres@127.0.0.1:1/away");
    let half = rig.cli_but(&away, nowhere, &["trace", id]);
    assert!(half.err.contains("not looked at") && half.err.contains("warehouse"), "{}", half.err);
    assert!(half.ok().contains("consumer  billing  done"), "what can be said is said");
    member.stop().await;
}
