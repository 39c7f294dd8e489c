//! Relays of several versions on one schema: an older one that writes no report, a newer one whose report has
//! another shape, and ours. All are listed, and ours works.

use crate::binary::run;
use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use rusqlite::Connection;
use serde_json::Value;

const REPORT: &str = r#"{"shape": 9, "moods": [{"sink": "out", "mood": "fine"}]}"#;
const OUT: &str = "[sinks.out]\ntype = \"null\"\nstart_at = \"earliest\"\n[[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\n";

/// What is said of each relay, by its name.
fn said(outbox: &Value) -> Vec<(&str, Option<&str>)> {
    let kind = |relay: &str| {
        let mut all = outbox["reports"].as_array()?.iter();
        all.find(|process| process["relay"] == relay)?["said"]["kind"].as_str()
    };
    let relays = outbox["relays"].as_array().into_iter().flatten().filter_map(Value::as_str);
    relays.map(|relay| (relay, kind(relay))).collect()
}

/// Beside the other two, the rig's relay is one of three and delivers.
fn is_one_of_three(rig: &Rig, url: &str) {
    let outbox = rig.eventually("/outboxes/a", |one| {
        said(one).iter().any(|(_, kind)| *kind == Some("known")) && said(one).len() == 3
    });
    let check = |said: &[(&str, Option<&str>)]| {
        let kind = |relay: &str| said.iter().find(|(name, _)| *name == relay).map(|(_, kind)| *kind);
        assert_eq!((kind("old:1"), kind("new:9")), (Some(None), Some(Some("newer"))), "{said:?}");
        assert_eq!(said.iter().filter(|(_, kind)| *kind == Some("known")).count(), 1, "{said:?}");
    };
    check(&said(&outbox));
    let newer = outbox["reports"].as_array().expect("a list").iter().find(|one| one["relay"] == "new:9");
    assert_eq!(newer.expect("it is listed")["version"], "9.0.0", "{outbox}");
    let shown = rig.cli(&["status", "--json"]).ok().json();
    check(&said(&shown["outboxes"][0]));
    let drawn = rig.cli(&["status"]).ok().out;
    let line = |relay: &str| drawn.lines().find(|line| line.contains(relay)).unwrap_or_default().to_owned();
    assert!(line("new:9").contains("newer than this command"), "{drawn}");
    assert!(line("old:1").contains("relay #") && !line("old:1").contains("newer"), "{drawn}");
    assert!(drawn.contains("relay #3"), "{drawn}");
    let id = run(&["append", "later", "--payload", "{}", "--url", url]).ok().out.trim().to_owned();
    let event = rig
        .eventually(&format!("/outboxes/a/events/{id}"), |event| event["sinks"][0]["progress"] == "passed");
    assert!(event["sinks"][0]["dead"].is_null(), "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_versions_of_relay_on_postgresql_are_listed_and_ours_delivers() {
    let database = require_service!(TestDatabase::create().await);
    let url = database.url();
    run(&["migrate", "up", "--url", &url]).ok();
    let rig = Rig::with("", |_| format!("[[outbox]]\nname = \"a\"\nurl = {url:?}\n{OUT}"));
    rig.eventually("/outboxes/a", |one| said(one).len() == 1);
    let client = database.connect().await.expect("a connection");
    let add = format!(
        "insert into posthaste.relays (relay, routes, expires_at)
         select name, routes, clock_timestamp() + interval '1 hour' from posthaste.relays, unnest(array['old:1', 'new:9']) name;
         insert into posthaste.processes (process, role, name, version, host, started_at, seen_at, report) values
           ('new:9', 'relay', 'new:9', '9.0.0', 'far', clock_timestamp(), clock_timestamp(), '{REPORT}')"
    );
    client.batch_execute(&add).await.expect("it is ours");
    is_one_of_three(&rig, &url);
}

#[test]
fn two_versions_of_relay_on_a_file_are_listed_and_ours_delivers() {
    let mut url = String::new();
    let rig = Rig::with("", |dir| {
        url = format!("sqlite:{}", dir.join("a.db").display());
        run(&["migrate", "up", "--url", &url]).ok();
        format!("[[outbox]]\nname = \"a\"\nurl = {url:?}\n{OUT}")
    });
    rig.eventually("/outboxes/a", |one| said(one).len() == 1);
    let file = Connection::open(rig.dir.join("a.db")).expect("the file");
    file.busy_timeout(std::time::Duration::from_secs(30)).expect("it waits");
    for relay in ["old:1", "new:9"] {
        let add = "insert into posthaste_relays (relay, routes, joined_at, expires_at)
                   select ?1, routes, joined_at, expires_at + 3600000000 from posthaste_relays limit 1";
        file.execute(add, [relay]).expect("it is ours");
    }
    let add =
        "insert into posthaste_processes (process, role, name, version, host, started_at, seen_at, report)
               select relay, 'relay', relay, '9.0.0', 'far', joined_at, joined_at, ?1
               from posthaste_relays where relay = 'new:9'";
    file.execute(add, [REPORT]).expect("it is ours");
    is_one_of_three(&rig, &url);
}
