//! What is denied: a line of the audit, bounded, and nobody waits for it.

use crate::binary::run;
use crate::jobs::Ui;
use crate::rig::{Rig, answered_by};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A line that cannot be written is given up after so long.
const WRITE_TIME: Duration = Duration::from_secs(5);

#[test]
fn what_is_denied_is_in_the_audit_once_a_minute_and_goes_to_no_topic() {
    let rig = Rig::start("[audit]\ntopic = \"sys.audit.v1\"\n");
    let file = rig.dir.join("posthaste.toml");
    for outbox in ["a", "b"] {
        run(&["migrate", "up", "--outbox", outbox, "--config", file.to_str().expect("UTF-8")]).ok();
    }
    let control = json!({ "paused": true, "reason": "x" }).to_string();
    for _ in 0..5 {
        assert_eq!(rig.ask("PUT", "/outboxes/a/sinks/out/control", &rig.read, &control).status, 403);
    }
    // What only the route itself can know is denied, too.
    let discard = json!({ "kind": "dead.discard", "filter": { "all": true }, "reason": "x" }).to_string();
    assert_eq!(rig.ask("POST", "/outboxes/a/jobs", &rig.operate, &discard).status, 403);
    assert_eq!(rig.ask("PUT", "/outboxes/a/sinks/out/control", &rig.other, &control).status, 403);
    assert_eq!(rig.get("/outboxes/zzz", &rig.other).status, 403);
    let page = rig.eventually("/audit?outbox=a&action=request", |page| {
        page["audit"].as_array().is_some_and(|all| all.len() >= 3)
    });
    let mut lines: Vec<Value> = page["audit"].as_array().expect("a list").clone();
    lines.sort_by_key(|line| line["actor"].to_string());
    let told: Vec<_> = lines
        .iter()
        .map(|line| {
            assert_eq!(
                (&line["outcome"], &line["verified"], &line["detail"]["count"]),
                (&"denied".into(), &true.into(), &1.into())
            );
            (line["actor"].as_str().unwrap_or_default(), line["detail"]["route"].as_str().unwrap_or_default())
        })
        .collect();
    let route = "PUT /outboxes/{o}/sinks/{s}/control";
    assert_eq!(told, [("ann", "POST /outboxes/{o}/jobs"), ("bea", route), ("rita", route)]);
    assert!(lines[2]["reason"].as_str().is_some_and(|why| why.contains("needs the role operate")), "{page}");
    // An act goes to the topic, a denial does not.
    rig.ask("PUT", "/outboxes/a/sinks/out/control", &rig.operate, &control).ok();
    let events =
        rig.eventually("/outboxes/a/events?topic=sys.audit.v1", |page| page["events"][0].is_object());
    assert_eq!(events["events"].as_array().map(Vec::len), Some(1), "{events}");
    assert_eq!(rig.get("/outboxes/b/events?topic=sys.audit.v1", &rig.admin).ok()["events"], json!([]));
    // Nothing can be written where nobody can act, and nobody waits for it.
    assert_eq!(rig.ask("POST", "/outboxes/away/doctor", &rig.read, "").status, 403);
    rig.daemon.says("outbox=\"away\"");
}

#[test]
fn nobody_waits_for_the_line_about_a_denial() {
    let rig = Rig::start("");
    // A database that takes connections and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("admin_url = \"postgres://u@{}/d\"", silent.local_addr().expect("bound"));
    let file = rig.dir.join("posthaste.toml");
    let text = std::fs::read_to_string(&file).expect("it is there");
    crate::rig::write(&file, &text.replace("relay = false\n", &format!("relay = false\n{url}\n")));
    let ui = Ui::start(&rig);
    let (begun, mut denied) = (Instant::now(), 0);
    let ask = |method: &str, path: &str| answered_by(&ui.address, method, path, &rig.read, "{}").status;
    for path in ["tuning", "lanes", "sinks/out/control", "routes/all/control"] {
        assert_eq!(ask("PUT", &format!("/outboxes/away/{path}")), 403);
        denied += 1;
    }
    for path in ["doctor", "jobs", "jobs/1/pause", "sinks/out/rewind"] {
        assert_eq!(ask("POST", &format!("/outboxes/away/{path}")), 403);
        denied += 1;
    }
    assert!(begun.elapsed() < denied * WRITE_TIME / 2, "{denied} denials took {:?}", begun.elapsed());
    // And another outbox has its line.
    assert_eq!(ask("PUT", "/outboxes/a/tuning"), 403);
    let page = ui.eventually("/audit?outbox=a&action=request", |page| page["audit"][0].is_object());
    assert_eq!(page["audit"][0]["detail"]["route"], "PUT /outboxes/{o}/tuning");
}

/// A consumer that is code in a service is in no configuration: whose outbox it has, nobody knows here.
#[test]
fn what_is_denied_about_a_consumer_that_nobody_knows_is_told_too() {
    let rig = Rig::start("");
    let control = json!({ "paused": true, "reason": "x" }).to_string();
    for token in [&rig.read, &rig.other] {
        assert_eq!(rig.ask("PUT", "/consumers/nobody/control", token, &control).status, 403);
    }
    for (outbox, actor) in [("a", "rita"), ("b", "bea")] {
        let path = format!("/audit?outbox={outbox}&action=request");
        let page = rig.eventually(&path, |page| page["audit"][0].is_object());
        let line = &page["audit"][0];
        assert_eq!((&line["actor"], &line["outcome"]), (&actor.into(), &"denied".into()), "{page}");
        assert_eq!(
            (&line["detail"]["route"], &line["detail"]["consumer"]),
            (&"PUT /consumers/{c}/control".into(), &"nobody".into()),
            "{page}"
        );
    }
}
