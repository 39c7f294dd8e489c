//! Tuning from outside.

use crate::binary::run;
use crate::rig::Rig;
use rustix::process::Signal;
use serde_json::{Value, json};

const TUNING: &str = "/outboxes/a/tuning";

fn setting(page: &Value, name: &str) -> Value {
    let all = page["settings"].as_array().expect("a list");
    all.iter().find(|one| one["setting"] == name).expect("it can be tuned").clone()
}

#[test]
fn a_setting_is_tuned_shown_as_the_command_line_shows_it_and_cleared() {
    let rig = Rig::start("");
    let put = |body: Value| rig.ask("PUT", TUNING, &rig.operate, &body.to_string());
    let before = rig.get(TUNING, &rig.read).ok();
    let one = setting(&before, "poll_max_ms");
    assert_eq!(
        (&one["file"], &one["in_force"], &one["tuned"]),
        (&5_000.into(), &5_000.into(), &false.into())
    );
    let done = put(json!({ "values": { "poll_max_ms": 700 }, "reason": "wakeups do not come" })).ok();
    assert_eq!((&done["outbox"], &done["done"]), (&"a".into(), &true.into()));
    assert!(done["until"].is_string() && done["trace_id"].is_string(), "it ends by itself: {done}");
    put(json!({ "values": { "page_events_max": 300 }, "for_s": 60, "reason": "busy" })).ok();
    let page = rig.get(TUNING, &rig.read).ok();
    let one = setting(&page, "poll_max_ms");
    assert_eq!((&one["file"], &one["in_force"], &one["tuned"]), (&5_000.into(), &700.into(), &true.into()));
    assert_eq!((&one["set_by"]["actor"], &one["set_by"]["until"]), (&"ann".into(), &done["until"]));
    let file = rig.dir.join("posthaste.toml");
    let shown = run(&["tune", "show", "--json", "--outbox", "a", "--config", file.to_str().expect("UTF-8")]);
    assert_eq!(shown.ok().json(), page, "one answer for both");
    let codes = [
        (json!({ "values": { "poll_max_ms": 70_000 }, "reason": "x" }), "admin.bad_tuning"),
        (json!({ "values": { "warp_factor": 9 }, "reason": "x" }), "admin.bad_tuning"),
        (json!({ "values": {}, "reason": "x" }), "admin.bad_tuning"),
        (json!({ "values": { "poll_max_ms": 700 }, "reason": " " }), "admin.actor_missing"),
        (json!({ "values": { "poll_max_ms": 700 }, "for_s": 4_000_000, "reason": "x" }), "admin.bad_end"),
        (
            json!({ "values": { "poll_max_ms": 700 }, "for_s": 1, "until": "2030-01-01T00:00:00Z", "reason": "x" }),
            "api.bad_body",
        ),
        (json!({ "values": { "poll_max_ms": -1 }, "reason": "x" }), "api.bad_body"),
        (json!({ "value": { "poll_max_ms": 700 }, "reason": "x" }), "api.bad_body"),
    ];
    for (body, code) in codes {
        assert_eq!(put(body.clone()).code(), code, "{body}");
    }
    let clear = |body: Value| rig.ask("DELETE", TUNING, &rig.operate, &body.to_string());
    assert_eq!(clear(json!({ "reason": "x" })).code(), "api.bad_body");
    assert_eq!(
        clear(json!({ "settings": ["poll_max_ms"], "all": true, "reason": "x" })).code(),
        "api.bad_body"
    );
    clear(json!({ "settings": ["poll_max_ms"], "reason": "they come" })).ok();
    let page = rig.get(TUNING, &rig.read).ok();
    assert_eq!(setting(&page, "poll_max_ms")["tuned"], false);
    assert_eq!(setting(&page, "page_events_max")["tuned"], true, "it stays as it is");
    clear(json!({ "all": true, "reason": "quiet" })).ok();
    let page = rig.get(TUNING, &rig.read).ok();
    assert!(page["settings"].as_array().expect("a list").iter().all(|one| one["tuned"] == false), "{page}");
    let trail = rig.get("/audit?outbox=a&actor=ann", &rig.operate).ok();
    let actions: Vec<&str> = trail["audit"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|line| line["action"].as_str())
        .collect();
    assert_eq!(actions, ["untune", "untune", "tune", "tune"]);
}

#[test]
fn a_tuning_is_judged_by_the_file_of_now() {
    let rig = Rig::start("");
    let file = rig.dir.join("posthaste.toml");
    let text = std::fs::read_to_string(&file).expect("it is there");
    crate::rig::write(&file, &format!("[relay]\npoll_max_ms = 300\n{text}"));
    rig.daemon.signal(Signal::HUP);
    rig.eventually(TUNING, |page| setting(page, "poll_max_ms")["file"] == 300);
    let body = json!({ "values": { "poll_max_ms": 5_000 }, "reason": "x" });
    assert_eq!(rig.ask("PUT", TUNING, &rig.operate, &body.to_string()).code(), "admin.bad_tuning");
}
