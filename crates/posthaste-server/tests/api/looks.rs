//! What is looked at, by whom, and how much of it.

use crate::jobs::Ui;
use crate::rig::{Rig, answered_by, write};
use std::net::TcpListener;

#[test]
fn one_database_that_is_away_is_named_and_hides_no_other() {
    let rig = Rig::start("");
    let one = rig.get("/outboxes/a", &rig.read).ok();
    assert_eq!((&one["outbox"], &one["sinks"][0]["sink"]), (&"a".into(), &"out".into()));
    let all = rig.get("/outboxes", &rig.admin).ok();
    let names: Vec<&str> =
        all["outboxes"].as_array().expect("a list").iter().filter_map(|o| o["outbox"].as_str()).collect();
    assert_eq!(names, ["a", "b", "away"]);
    assert!(
        all["outboxes"][2]["unreachable"].is_string() && all["outboxes"][0]["unreachable"].is_null(),
        "{all}"
    );
    assert!(!all.to_string().contains("hunter2"), "{all}");
    let away = rig.get("/outboxes/away", &rig.read);
    assert_eq!(away.status, 503);
    assert!(
        away.json()["events"].as_str().is_some_and(|text| text.contains("stay in the database")),
        "{}",
        away.text
    );
    let mine = rig.get("/outboxes", &rig.other).ok();
    assert_eq!(
        (mine["outboxes"].as_array().map(Vec::len), &mine["outboxes"][0]["outbox"]),
        (Some(1), &"b".into())
    );
}

#[test]
fn a_look_does_not_wait_for_another_one_s_database() {
    let rig = Rig::start("");
    // A database that takes connections and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let file = rig.dir.join("posthaste.toml");
    let text = std::fs::read_to_string(&file).expect("it is there");
    write(&file, &text.replace("127.0.0.1:1/", &format!("{}/", silent.local_addr().expect("bound"))));
    let ui = Ui::start(&rig);
    let look = |outbox: &str| answered_by(&ui.address, "GET", &format!("/outboxes/{outbox}"), &rig.read, "");
    std::thread::scope(|scope| {
        let away = scope.spawn(|| look("away"));
        // A look that is given up is given up after eight seconds.
        let mut answered = 0;
        while !away.is_finished() {
            look("a").ok();
            answered += usize::from(!away.is_finished());
        }
        assert_eq!(away.join().expect("an answer").status, 503);
        assert!(answered > 0, "it waited for the other one");
    });
}

#[test]
fn pages_go_on_by_cursors_that_are_checked() {
    let rig = Rig::start("");
    let first = rig.get("/outboxes/a/dead?limit=3", &rig.admin).ok();
    let cursor = first["next"].as_str().expect("there is more");
    let second = rig.get(&format!("/outboxes/a/dead?limit=3&cursor={cursor}"), &rig.admin).ok();
    let seqs = |page: &serde_json::Value| -> Vec<i64> {
        page["dead"].as_array().expect("a list").iter().filter_map(|letter| letter["seq"].as_i64()).collect()
    };
    assert_eq!([seqs(&first), seqs(&second)].concat(), [5, 4, 3, 2, 1], "newest first");
    assert!(second["next"].is_null());
    let forged = format!("A{}", &cursor[1..]);
    for path in [
        format!("/outboxes/b/dead?cursor={cursor}"),
        format!("/outboxes/a/events?cursor={cursor}"),
        format!("/outboxes/a/dead?cursor={forged}"),
        "/outboxes/a/dead?cursor=x".to_owned(),
        "/outboxes/a/dead?cursor=".to_owned(),
    ] {
        let answer = rig.get(&path, &rig.admin);
        assert_eq!((answer.status, answer.code().as_str()), (400, "api.bad_cursor"), "{path}");
    }
    for path in [
        "/outboxes/a/dead?limit=0",
        "/outboxes/a/dead?limit=1001",
        "/outboxes/a/dead?toppic=x",
        "/outboxes/a/events?since=yesterday",
        "/outboxes/a/dead?fingerprint=zz",
    ] {
        let answer = rig.get(path, &rig.admin);
        assert_eq!((answer.status, answer.code().as_str()), (400, "api.bad_query"), "{path}");
    }
    let events = rig.get("/outboxes/a/events", &rig.admin).ok();
    assert_eq!(
        (events["events"].as_array().map(Vec::len), &events["looked"]["complete"]),
        (Some(6), &true.into())
    );
}

#[test]
fn a_token_sees_as_much_of_an_event_as_it_may() {
    let rig = Rig::start("");
    let page = |token: &str| rig.get("/outboxes/a/dead", token).ok()["dead"][0].clone();
    let (hidden, masked, shown) = (page(&rig.read), page(&rig.operate), page(&rig.admin));
    assert_eq!((&hidden["key"], &hidden["error"]), (&"(hidden)".into(), &"(hidden)".into()));
    assert_eq!((&masked["key"], &masked["error"]), (&"order-4".into(), &shown["error"]));
    assert_eq!(hidden["error_code"], "payload.not_json");
    let id = shown["id"].as_str().expect("an id");
    let one =
        |token: &str| rig.get(&format!("/outboxes/a/dead/{id}"), token).ok()["dead"][0]["payload"].clone();
    assert_eq!((one(&rig.read), one(&rig.admin)), ("(hidden)".into(), "no <b>JSON</b>".into()));
    assert_eq!(one(&rig.operate), "(hidden)");
    // Looking for a key is looking at it.
    assert_eq!(rig.get("/outboxes/a/dead?key=order-4", &rig.read).status, 403);
    assert_eq!(
        rig.get("/outboxes/a/dead?key=order-4", &rig.operate).ok()["dead"].as_array().map(Vec::len),
        Some(1)
    );
    let path = format!("/outboxes/a/events/{id}/payload");
    assert_eq!(rig.get(&path, &rig.operate).status, 403);
    let bytes = rig.get(&path, &rig.admin);
    assert_eq!((bytes.status, bytes.text.as_str()), (200, "no <b>JSON</b>"));
    for header in ["application/octet-stream", "attachment", "sandbox", "nosniff"] {
        assert!(bytes.head.contains(header), "{}", bytes.head);
    }
    let causes = rig.get("/outboxes/a/dead/causes", &rig.read).ok();
    assert_eq!(
        (&causes["causes"][0]["count"], &causes["causes"][0]["error_code"]),
        (&5.into(), &"payload.not_json".into())
    );
    assert_eq!(causes["looked"], serde_json::Value::Null, "all of them");
    assert_eq!(rig.get("/outboxes/a/events/999999", &rig.read).status, 404);
    assert_eq!(rig.get("/outboxes/a/events/x", &rig.read).code(), "api.bad_path");
    let config = rig.get("/config", &rig.admin).ok();
    assert!(!config.to_string().contains("hunter2"), "{config}");
}

/// Whoever may not see a text would find it out by asking for its parts; in a look, a count and a job alike.
#[test]
fn what_is_not_shown_cannot_be_looked_for() {
    let rig = Rig::start("");
    let many = |query: &str, token: &str| {
        let page = rig.get(&format!("/outboxes/a/dead?{query}"), token).ok();
        page["dead"].as_array().map_or(0, Vec::len)
    };
    assert_eq!((many("error=JSON", &rig.operate), many("error=%25", &rig.operate)), (5, 0));
    assert_eq!((many("class=permanent", &rig.read), many("holds_key=true&replayed=true", &rig.read)), (5, 0));
    assert_eq!((many("header=tenant", &rig.read), many("header_value=7", &rig.admin)), (0, 0));
    for page in ["dead", "dead/causes"] {
        for (query, token) in
            [("error=J", &rig.read), ("header_value=7", &rig.read), ("header_value=7", &rig.operate)]
        {
            let refused = rig.get(&format!("/outboxes/a/{page}?{query}"), token);
            assert_eq!(refused.status, 403, "{page}?{query}: {}", refused.text);
        }
    }
    let act = r#"{"kind": "dead.replay", "filter": {"header_value": "7"}, "dry_run": true}"#;
    assert_eq!(rig.ask("POST", "/outboxes/a/jobs", &rig.operate, act).status, 403);
    let act = r#"{"kind": "dead.replay", "filter": {"error": "JSON"}, "dry_run": true}"#;
    let seen = rig.ask("POST", "/outboxes/a/jobs", &rig.operate, act).ok();
    assert_eq!((&seen["goes"], &seen["exact"]), (&5.into(), &true.into()));
    let nothing = r#"{"kind": "dead.replay", "filter": {"error": ""}, "dry_run": true}"#;
    assert_eq!(rig.ask("POST", "/outboxes/a/jobs", &rig.operate, nothing).code(), "admin.empty_filter");
}

#[test]
fn all_looks_answer_on_an_outbox_without_trouble() {
    let rig = Rig::start("");
    for path in ["events", "deferred", "deferred/causes", "dead", "dead/causes", "jobs"] {
        rig.get(&format!("/outboxes/b/{path}"), &rig.read).ok();
    }
    for path in ["/me", "/consumers", "/audit?outbox=b", "/audit"] {
        rig.get(path, &rig.operate).ok();
    }
    let trail = rig.get("/audit", &rig.admin).ok();
    assert!(trail["unreachable"]["away"].is_string() && trail["audit"].is_array(), "{trail}");
    assert_eq!(rig.get("/outboxes/nothing", &rig.read).code(), "api.unknown_outbox");
    let nobody = rig.get("/consumers/nothing", &rig.read);
    assert_eq!(nobody.code(), "api.unknown_consumer");
    assert!(nobody.text.contains("outbox `away` could not be asked"), "{}", nobody.text);
}

#[test]
fn a_database_is_examined_and_the_same_answer_is_given_for_a_while() {
    let rig = Rig::start("");
    let ask = || rig.ask("POST", "/outboxes/a/doctor", &rig.operate, "").ok();
    let first = ask();
    let findings = first["findings"].as_array().expect("a list");
    assert!(findings.iter().any(|one| one["check"] == "schema_version" && one["level"] == "ok"), "{first}");
    assert_eq!(ask(), first, "cached, with the time of the first");
    assert_eq!(rig.ask("POST", "/outboxes/a/doctor", &rig.read, "").status, 403);
    let away = rig.ask("POST", "/outboxes/away/doctor", &rig.operate, "");
    assert_eq!((away.status, away.text.contains("hunter2")), (503, false), "{}", away.text);
    let outbox = rig.get("/outboxes/a", &rig.read).ok();
    assert_eq!((&outbox["lacks"], &outbox["acting"]), (&serde_json::json!([]), &true.into()), "{outbox}");
}
