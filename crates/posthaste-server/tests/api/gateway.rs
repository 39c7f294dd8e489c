//! The gateway, as the API shows it: how it is, who may hand in events by it, and to whom that is shown.

use crate::rig::{Rig, answered};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// A relay with a gateway in front of its outbox `a`.
fn start() -> Rig {
    Rig::start(
        "[gateway]\nlisten = \"127.0.0.1:0\"\noutbox = \"a\"\n[gateway.tenants]\nrefresh_ms = 50\n\
         [gateway.limit]\nrate_per_s = 7.0\nburst = 9\n[[gateway.topic]]\ntopic = \"orders.placed\"\n",
    )
}

/// What a gateway says to an event without a key.
fn handed_in_by_nobody(address: &str) -> u16 {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = format!("POST /v1/topics/orders.placed HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    stream.write_all(format!("{head}content-length: 2\r\n\r\n{{}}").as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    answered(&answer).status
}

#[test]
fn a_gateway_is_shown_with_its_tenants_and_without_their_keys() {
    let rig = start();
    let begun = rig.eventually("/gateway", |found| found["standing"]["ready"] == true);
    assert_eq!(
        (&begun["outbox"], &begun["tenants"], &begun["tenants_count"]),
        (&json!("a"), &json!([]), &json!(0))
    );
    assert_eq!((&begun["rate_per_s"], &begun["burst"]), (&json!(7.0), &json!(9)));
    let made = |tenant: &str| rig.cli(&["gateway", "keys", "new", tenant, "--json"]).ok().json();
    let [one, two, _] = ["acme", "acme", "zeta"].map(made);
    let id = two["id"].as_str().expect("an id");
    rig.cli(&["gateway", "keys", "revoke", id, "--reason", "a test"]).ok();
    rig.cli(&["gateway", "tenants", "set", "acme", "--rate", "50/s", "--note", "a <b>partner</b>"]).ok();
    rig.cli(&["gateway", "tenants", "pause", "zeta", "--reason", "a test"]).ok();
    let found = rig.eventually("/gateway", |found| found["tenants"][1]["paused"] == true);
    let told = |tenant: &Value| {
        let members =
            ["tenant", "rate_per_s", "has_own_rate", "burst", "has_own_burst", "paused", "good_keys", "note"];
        Value::from(members.map(|member| tenant[member].clone()).to_vec())
    };
    let acme = json!(["acme", 50.0, true, 9, false, false, 1, "a <b>partner</b>"]);
    assert_eq!(told(&found["tenants"][0]), acme, "{found}");
    let zeta = json!(["zeta", 7.0, false, 9, false, true, 1, null]);
    assert_eq!(told(&found["tenants"][1]), zeta, "{found}");
    let text = found.to_string();
    for secret in
        [id, one["id"].as_str().expect("an id"), one["key"].as_str().expect("a key"), "hash", "phk_"]
    {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    // It counts by itself, and that is as it should be. Where it listens is where it answers.
    let standing = &found["standing"];
    assert_eq!((&standing["limiter"], &standing["limiter_lost"]), (&json!("local"), &Value::Null));
    let url = standing["url"].as_str().and_then(|url| url.strip_prefix("http://")).expect("an address");
    assert_eq!(handed_in_by_nobody(url), 401);
    let found = rig.eventually("/gateway", |found| found["standing"]["refused"] == 1);
    assert_eq!((&found["standing"]["requests"], &found["standing"]["queued_events"]), (&json!(1), &json!(0)));
}

#[test]
fn a_gateway_is_shown_to_nobody_who_has_no_right_to_its_outbox_and_is_none_where_there_is_none() {
    let rig = start();
    for token in [&rig.read, &rig.operate, &rig.admin] {
        assert_eq!(rig.get("/gateway", token).ok()["outbox"], "a");
    }
    assert_eq!(rig.get("/gateway", &rig.other).ok(), Value::Null, "it is for outbox b");
    assert_eq!(rig.get("/gateway", "").status, 401);
    let without = Rig::start("");
    assert_eq!(without.get("/gateway", &without.admin).ok(), Value::Null);
}

#[test]
fn tenants_that_cannot_be_looked_at_say_why() {
    let rig = start();
    let file = rusqlite::Connection::open(rig.dir.join("a.db")).expect("the file");
    file.busy_timeout(std::time::Duration::from_secs(30)).expect("it waits");
    let away = "alter table posthaste_gateway_tenants rename to was_tenants; \
                update posthaste_state set value = cast(value as integer) + 1 where name = 'gateway_version'";
    file.execute_batch(away).expect("it is ours");
    let found = rig.eventually("/gateway", |found| found["unreachable"].is_string());
    assert_eq!((&found["tenants"], &found["tenants_count"]), (&json!([]), &Value::Null), "{found}");
}
