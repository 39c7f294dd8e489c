//! What is done: jobs with a dry run, controls, and who it was.

use crate::desk::Desk;
use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use serde_json::{Value, json};

pub(crate) fn over(job: &Value) -> bool {
    ["done", "failed", "cancelled"].iter().any(|state| job["state"] == *state)
}

#[test]
fn letters_are_replayed_by_cause_after_a_dry_run_and_the_audit_says_by_whom() {
    let rig = Rig::start("");
    let causes = rig.get("/outboxes/a/dead/causes", &rig.operate).ok();
    let fingerprint = &causes["causes"][0]["fingerprint"];
    let mut body =
        json!({ "kind": "dead.replay", "filter": { "fingerprint": fingerprint }, "dry_run": true });
    let seen = rig.ask("POST", "/outboxes/a/jobs", &rig.operate, &body.to_string()).ok();
    assert_eq!((&seen["goes"], seen["samples"].as_array().map(Vec::len)), (&5.into(), Some(5)), "{seen}");
    body["dry_run"] = false.into();
    body["upto"] = seen["upto"].clone();
    let silent = rig.ask("POST", "/outboxes/a/jobs", &rig.operate, &body.to_string());
    assert_eq!((silent.status, silent.code().as_str()), (400, "admin.actor_missing"));
    body["reason"] = "mended <script>alert(1)</script>".into();
    assert_eq!(rig.ask("POST", "/outboxes/a/jobs", &rig.read, &body.to_string()).status, 403);
    let order = |key: &str| {
        let head = format!(
            "POST /api/v1/outboxes/a/jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\nidempotency-key: {key}\r\n\
             traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n",
            rig.operate
        );
        rig.send(&head, &body.to_string()).ok()
    };
    let job = order("k1");
    assert_eq!((&job["actor"], &job["verified"]), (&"ann".into(), &true.into()));
    assert_eq!(order("k1")["job"], job["job"], "the same key is the same job");
    let path = format!("/outboxes/a/jobs/{}", job["job"]);
    let ended = rig.eventually(&path, over);
    assert_eq!((&ended["state"], &ended["done"]), (&"done".into(), &5.into()), "{ended}");
    // They die again, as new ones: the job did not go beyond what was seen.
    rig.eventually("/outboxes/a/dead", |page| page["dead"].as_array().is_some_and(|all| all.len() == 5));
    let trail = rig.get("/audit?action=replay", &rig.operate).ok();
    let line = &trail["audit"][0];
    assert_eq!(
        (&line["actor"], &line["verified"], &line["outbox"]),
        (&"ann".into(), &true.into(), &"a".into())
    );
    assert_eq!(line["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    let cancelled = rig.ask("POST", &format!("{path}/cancel"), &rig.operate, "{\"reason\": \"x\"}");
    assert_eq!((cancelled.status, cancelled.code().as_str()), (409, "admin.job_over"));
    let csv = rig.get("/audit.csv", &rig.operate);
    assert!(csv.head.contains("text/csv") && csv.text.starts_with("at,outbox,actor"), "{}", csv.text);
}

#[test]
fn an_act_that_is_too_wide_or_not_allowed_does_nothing() {
    let rig = Rig::start("");
    let ask = |token: &str, body: Value| rig.ask("POST", "/outboxes/a/jobs", token, &body.to_string());
    let discard = json!({ "kind": "dead.discard", "filter": { "all": true }, "reason": "x" });
    assert_eq!(ask(&rig.operate, discard.clone()).code(), "api.forbidden");
    let empty = json!({ "kind": "dead.replay", "filter": {}, "reason": "x" });
    assert_eq!(ask(&rig.admin, empty).code(), "admin.empty_filter");
    let misspelt =
        json!({ "kind": "dead.discard", "filter": { "sink": "out", "toppic": "x" }, "reason": "x" });
    assert_eq!(ask(&rig.admin, misspelt).code(), "api.bad_body");
    let unknown = json!({ "kind": "dead.paint", "filter": { "all": true }, "reason": "x" });
    assert_eq!(ask(&rig.admin, unknown).code(), "api.bad_body");
    // What is ignored is believed.
    let keeps = json!({ "kind": "dead.replay", "filter": { "all": true }, "reason": "x", "headers": { "list": "all", "identity": [] } });
    let said = ask(&rig.admin, keeps);
    assert!(said.code() == "api.bad_body" && said.text.contains("`headers`"), "{}", said.text);
    let misspelt = json!({ "kind": "consumer.replay", "consumer": "c", "filter": { "all": true }, "reason": "x",
                           "headers": { "list": "all", "identity": [], "drop": ["x-old"] } });
    let said = ask(&rig.admin, misspelt);
    assert!(said.code() == "api.bad_body" && said.text.contains("`drop`"), "{}", said.text);
    let ids = |count| (0..count).map(|_| uuid::Uuid::now_v7().to_string()).collect::<Vec<_>>();
    for (kind, count, code) in [
        ("dead.discard", 1_001, "admin.bad_filter"),
        ("deferred.retry", 1_001, "admin.bad_filter"),
        ("dead.discard", 1_000, "admin.empty_filter"),
    ] {
        let many = json!({ "kind": kind, "filter": { "ids": ids(count) }, "reason": "x" });
        assert_eq!(ask(&rig.admin, many).code(), code, "{kind} {count}");
    }
    let nothing = json!({ "kind": "dead.replay", "filter": { "topic": "nothing" }, "reason": "x" });
    assert_eq!(ask(&rig.admin, nothing).status, 409);
    let none = rig.ask("POST", "/outboxes/away/jobs", &rig.admin, &discard.to_string());
    assert_eq!((none.status, none.code().as_str()), (409, "api.no_admin_url"));
    assert_eq!(rig.get("/outboxes/a/dead", &rig.admin).ok()["dead"].as_array().map(Vec::len), Some(5));
    let job = ask(&rig.admin, discard).ok();
    rig.eventually(&format!("/outboxes/a/jobs/{}", job["job"]), over);
    assert_eq!(rig.get("/outboxes/a/dead", &rig.admin).ok()["dead"], json!([]));
}

#[test]
fn a_sink_is_paused_and_resumed_and_reprocess_is_one_call() {
    let rig = Rig::start("");
    let control =
        |body: Value| rig.ask("PUT", "/outboxes/a/sinks/out/control", &rig.operate, &body.to_string());
    // One act is one transaction: two of them could be done by half.
    assert_eq!(
        control(json!({ "paused": true, "rate_per_s": 5.0, "reason": "upgrade" })).code(),
        "api.bad_body"
    );
    assert_eq!(control(json!({ "paused": true, "rate_per_s": -1.0, "reason": "x" })).code(), "api.bad_body");
    assert_eq!(control(json!({ "paused": true, "for_s": 9_999_999, "reason": "x" })).code(), "admin.bad_end");
    control(json!({ "paused": true, "reason": "upgrade" })).ok();
    control(json!({ "rate_per_s": 5.0, "reason": "upgrade" })).ok();
    let sink = rig.get("/outboxes/a", &rig.read).ok()["sinks"][0].clone();
    assert_eq!(
        (&sink["paused"], &sink["rate_limit_per_s"], &sink["set_by"]["actor"]),
        (&true.into(), &5.0.into(), &"ann".into())
    );
    assert_eq!(control(json!({ "reason": "nothing" })).code(), "api.bad_body");
    assert_eq!(control(json!({ "paused": false, "reason": " " })).code(), "admin.actor_missing");
    control(json!({ "paused": false, "reason": "done" })).ok();
    control(json!({ "rate_per_s": null, "reason": "done" })).ok();
    let sink = rig.get("/outboxes/a", &rig.read).ok()["sinks"][0].clone();
    assert_eq!((&sink["paused"], &sink["rate_limit_per_s"]), (&false.into(), &Value::Null));
    let unknown = rig.ask(
        "PUT",
        "/outboxes/a/sinks/nothing/control",
        &rig.operate,
        "{\"paused\": true, \"reason\": \"x\"}",
    );
    assert_eq!(unknown.code(), "admin.unknown_sink");
    let body = json!({ "filter": { "all": true }, "reason": "mended" });
    let job = rig.ask("POST", "/outboxes/a/dead/reprocess", &rig.operate, &body.to_string()).ok();
    assert_eq!(job["kind"], "dead.replay");
    rig.eventually(&format!("/outboxes/a/jobs/{}", job["job"]), over);
}

#[test]
fn what_waits_is_retried_up_to_what_was_seen() {
    let rig = Rig::start("");
    let url = format!("sqlite:{}", rig.dir.join("a.db").display());
    let later = ["append", "later", "--payload", "{}", "--deliver-at", "+1h", "--url", &url];
    crate::binary::run(&later).ok();
    rig.eventually("/outboxes/a/deferred", |page| {
        page["deferred"].as_array().is_some_and(|all| all.len() == 1)
    });
    let mut body =
        json!({ "kind": "deferred.retry", "filter": { "topic": "later" }, "reason": "x", "dry_run": true });
    let ask = |body: &Value| rig.ask("POST", "/outboxes/a/jobs", &rig.operate, &body.to_string()).ok();
    let seen = ask(&body);
    assert_eq!(seen["left_alone"]["deferred.scheduled"], 1, "{seen}");
    (body["dry_run"], body["upto"]) = (false.into(), seen["upto"].clone());
    let ended = rig.eventually(&format!("/outboxes/a/jobs/{}", ask(&body)["job"]), over);
    assert_eq!((&ended["state"], &ended["done"]), (&"done".into(), &0.into()), "{ended}");
}

#[test]
fn a_rewind_says_how_many_events_go_again_and_a_dry_run_does_nothing() {
    let rig = Rig::start("");
    let path = "/outboxes/a/sinks/out/rewind";
    let ask = |body: Value| rig.ask("POST", path, &rig.admin, &body.to_string());
    rig.eventually("/outboxes/a", |one| one["sinks"][0]["backlog"]["count"] == 0);
    let moved = |rig: &Rig| {
        let audit = rig.get("/audit?outbox=a&action=rewind", &rig.admin).ok();
        audit["audit"].as_array().map(Vec::len)
    };
    // Five of the six are dead: they are sent again as well.
    for (to, events) in [
        (json!({ "earliest": true }), 6),
        (json!({ "to_seq": 4 }), 2),
        (json!({ "to_time": "2020-01-01T00:00:00Z" }), 6),
    ] {
        let mut body = to;
        body["dry_run"] = true.into();
        let seen = ask(body).ok();
        assert_eq!((&seen["events"], &seen["exact"]), (&events.into(), &true.into()), "{seen}");
        let done = seen["done"].as_str().expect("a sentence");
        assert!(done.contains(&format!("{events} events would be sent again")), "{done}");
        assert!(done.contains("duplicate_window") && !done.contains('\n'), "{done}");
        assert!(seen["trace_id"].is_null(), "{seen}");
    }
    // What would be refused is refused already.
    for (to, status, code) in [
        (json!({ "to_seq": 900 }), 409, "admin.rewind_forward"),
        (json!({ "to_seq": -1 }), 400, "admin.bad_seq"),
        (json!({ "to_time": "2999-01-01T00:00:00Z" }), 409, "admin.nothing_since"),
        (json!({}), 400, "api.bad_body"),
        (json!({ "earliest": true, "to_seq": 4 }), 400, "api.bad_body"),
    ] {
        for is_dry in [true, false] {
            let mut body = to.clone();
            body["dry_run"] = is_dry.into();
            body["reason"] = "x".into();
            let answer = ask(body.clone());
            assert_eq!((answer.status, answer.code().as_str()), (status, code), "{body}");
        }
    }
    let unknown =
        rig.ask("POST", "/outboxes/a/sinks/no/rewind", &rig.admin, r#"{"earliest":true,"dry_run":true}"#);
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "admin.unknown_sink"));
    assert_eq!(ask(json!({ "earliest": true })).code(), "admin.actor_missing");
    assert_eq!(moved(&rig), Some(0), "nothing was done");
    let done = ask(json!({ "to_seq": 5, "reason": "a new index" })).ok();
    assert_eq!(done["events"], 1, "{done}");
    let text = done["done"].as_str().expect("a sentence");
    assert!(text.contains("1 event is sent again") && text.contains("duplicate_window"), "{text}");
    assert!(done["trace_id"].as_str().is_some_and(|trace| trace.len() == 32), "{done}");
    assert_eq!(moved(&rig), Some(1));
}

#[test]
fn lanes_are_said_before_they_are_changed() {
    let rig = Rig::start("");
    let ask = |body: Value| rig.ask("PUT", "/outboxes/a/lanes", &rig.admin, &body.to_string());
    let lanes =
        |rig: &Rig| rig.get("/outboxes/a", &rig.admin).ok()["sinks"][0]["lanes"].as_array().map(Vec::len);
    let seen = ask(json!({ "lanes": 3, "dry_run": true })).ok();
    let said = seen["done"].as_str().expect("a sentence");
    assert!(
        said.contains("each sink would have 3 lanes; now: out (1)") && said.contains("let go of 1 lane"),
        "{said}"
    );
    assert_eq!(ask(json!({ "lanes": 300, "dry_run": true })).code(), "admin.bad_lanes");
    assert_eq!(ask(json!({ "lanes": 3 })).code(), "admin.actor_missing");
    assert_eq!(lanes(&rig), Some(1), "nothing was done");
    ask(json!({ "lanes": 3, "reason": "two more relays" })).ok();
    assert_eq!(lanes(&rig), Some(3));
    let seen = ask(json!({ "lanes": 3, "dry_run": true })).ok();
    assert_eq!(seen["done"], "each sink has 3 lanes already");
}

/// Each chunk has its line: a thousand ids stand in the one with which the job began.
#[test]
fn the_audit_names_the_ids_of_an_act_once() {
    let rig = Rig::start("");
    let dead = rig.get("/outboxes/a/dead", &rig.admin).ok();
    let ids: Vec<Value> = (0..3).map(|n| dead["dead"][n]["id"].clone()).collect();
    let body = json!({ "kind": "dead.discard", "filter": { "ids": ids }, "reason": "test data" });
    let job = rig.ask("POST", "/outboxes/a/jobs", &rig.admin, &body.to_string()).ok();
    rig.eventually(&format!("/outboxes/a/jobs/{}", job["job"]), over);
    let line = |action: &str| {
        let trail = rig.get(&format!("/audit?outbox=a&action={action}"), &rig.admin).ok();
        trail["audit"][0]["detail"].clone()
    };
    let (began, did) = (line("start%20job"), line("discard"));
    let count = |ids: &Value| ids.as_array().map(Vec::len);
    assert_eq!(
        (count(&began["plan"]["filter"]["ids"]), count(&did["ids"])),
        (Some(3), Some(3)),
        "{began} {did}"
    );
    assert!(did["filter"].is_object() && did["filter"].get("ids").is_none(), "{did}");
}

/// A request is answered after half a minute at most. By then the server has ended what it was asked, too.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_ends_what_nobody_waits_for_any_more() {
    let database = require_service!(TestDatabase::create().await);
    let desk = Desk::set(&database, &database.url(), 3).await;
    let note = "create table public.bounds (act text, bound text);
         create function public.note() returns trigger language plpgsql as $$ begin
           insert into public.bounds values (tg_op, current_setting('statement_timeout'));
           return null;
         end $$;
         create trigger note after insert or update on posthaste.jobs for each row execute function public.note()";
    desk.client.batch_execute(note).await.expect("a trigger");
    let ui = desk.serve();
    let job = ui.replay(None);
    ui.eventually(&job, over);
    let sql = "select string_agg(distinct act || ' ' || bound, ', ' order by act || ' ' || bound) from public.bounds";
    let bounds: String = desk.client.query_one(sql, &[]).await.expect("what it noted").get(0);
    assert_eq!(bounds, "INSERT 30s, UPDATE 1min", "acts, and chunks of jobs");
    ui.daemon.stop();
}
