//! What a request asks for is what it gets: a key that is kept, filters that go on, an id that says nothing.

use crate::binary::run;
use crate::rig::Rig;
use serde_json::{Value, json};

#[test]
fn a_key_that_cannot_be_kept_begins_no_job() {
    let rig = Rig::start("");
    let body = json!({ "kind": "dead.replay", "filter": { "all": true }, "reason": "mended" }).to_string();
    let ask = |key: &str| {
        let bearer = format!("authorization: Bearer {}\r\n", rig.operate);
        let kind = "content-type: application/json\r\n";
        let line = "POST /api/v1/outboxes/a/jobs HTTP/1.1\r\nhost: localhost\r\n";
        rig.send(&format!("{line}{bearer}{kind}{key}"), &body)
    };
    for key in [
        "idempotency-key: caf\u{e9}\r\n".to_owned(),
        "idempotency-key: a\r\nidempotency-key: a\r\n".to_owned(),
        "idempotency-key: \r\n".to_owned(),
        format!("idempotency-key: {}\r\n", "k".repeat(201)),
    ] {
        let refused = ask(&key);
        assert_eq!((refused.status, refused.code().as_str()), (400, "api.bad_key"), "{key:?}");
    }
    assert_eq!(rig.get("/outboxes/a/jobs", &rig.read).ok()["jobs"], json!([]), "nothing was begun");
    let key = format!("idempotency-key: {}\r\n", "k".repeat(200));
    let (first, second) = (ask(&key).ok(), ask(&key).ok());
    assert_eq!(first["job"], second["job"], "the same key is the same job");
}

#[test]
fn the_next_part_of_the_audit_for_a_spreadsheet_has_the_same_filters() {
    let rig = Rig::start("");
    for n in 0..3 {
        for token in [&rig.operate, &rig.admin] {
            let body = json!({ "rate_per_s": 100 + n, "reason": "slowly" }).to_string();
            rig.ask("PUT", "/outboxes/a/sinks/out/control", token, &body).ok();
        }
    }
    let mut query = "?outbox=a&actor=ann&limit=1&since=2020-01-01T00:00:00Z".to_owned();
    let mut lines = Vec::new();
    // Three lines, and the last of them may be followed by an empty page.
    for _ in 0..4 {
        let page = rig.get(&format!("/audit.csv{query}"), &rig.admin);
        assert_eq!(page.status, 200, "{query}: {}", page.text);
        lines.extend(page.text.lines().skip(1).map(str::to_owned));
        // The head is in lower case here; a cursor is not.
        let bytes = rig.bytes(&format!("/audit.csv{query}"), &rig.admin);
        let whole = String::from_utf8_lossy(&bytes).into_owned();
        let link = whole.lines().find_map(|line| line.split_once("<?")?.1.split_once(">;"));
        let Some((next, _)) = link else { break };
        query = format!("?{next}");
    }
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("\"ann\"")), "{lines:?}");
}

#[test]
fn a_query_lists_what_it_goes_by_and_nothing_else() {
    let rig = Rig::start("");
    let document = rig.get("/openapi.json", &rig.read).ok();
    let names = |path: &str| -> Vec<String> {
        let all = document["paths"][format!("/api/v1{path}")]["get"]["parameters"].as_array().cloned();
        let all = all.unwrap_or_default().into_iter();
        all.filter(|one| one["in"] == "query")
            .map(|one| one["name"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    for (path, has, has_not) in [
        ("/outboxes/{o}/dead", &["sink", "route", "error", "cursor"][..], &[][..]),
        ("/outboxes/{o}/dead/causes", &["sink"], &["cursor"]),
        ("/outboxes/{o}/deferred", &["sink", "destination", "cursor"], &[]),
        ("/outboxes/{o}/deferred/causes", &["sink", "destination"], &["cursor"]),
        ("/consumers/{c}/dead", &["error", "cursor"], &["sink", "route"]),
        ("/consumers/{c}/dead/causes", &["code"], &["sink", "cursor"]),
        ("/consumers/{c}/deferred", &["cursor"], &["sink", "destination"]),
        ("/consumers/{c}/deferred/causes", &["code"], &["sink", "destination", "cursor"]),
    ] {
        let names = names(path);
        let knows = |name: &&str| names.iter().any(|known| known == name);
        assert!(has.iter().all(knows), "{path}: {names:?}");
        assert!(!has_not.iter().any(knows), "{path}: {names:?}");
    }
    for path in ["/outboxes/a/dead/causes?cursor=x", "/outboxes/a/deferred/causes?cursor=x"] {
        assert_eq!(rig.get(path, &rig.read).code(), "api.bad_query", "{path}");
    }
}

/// Whether two looks with this between them were answered by one look at the database. Half a second is short
/// on a busy machine, so one time of many is enough.
fn are_shared(rig: &Rig, tries: u32, between: impl Fn()) -> bool {
    let now = || rig.get("/outboxes/a", &rig.admin).ok()["now"].clone();
    (0..tries).any(|_| {
        let first = now();
        assert!(first.is_string(), "a look says when it was");
        between();
        first == now()
    })
}

#[test]
fn only_an_act_that_was_done_makes_looks_anew() {
    let rig = Rig::start("");
    let ask = |method: &str, path: &str, token: &str, body: &str, status: u16| {
        let answer = rig.ask(method, path, token, body);
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
    };
    let (control, rewind) = ("/outboxes/a/sinks/out/control", "/outboxes/a/sinks/out/rewind");
    let limit = r#"{"rate_per_s": 1000, "reason": "x"}"#;
    assert!(are_shared(&rig, 50, || ask("PUT", control, &rig.read, limit, 403)), "what was denied");
    assert!(are_shared(&rig, 50, || ask("PUT", control, &rig.admin, "{", 400)), "a body that is none");
    let dry = r#"{"earliest": true, "dry_run": true}"#;
    assert!(are_shared(&rig, 50, || ask("POST", rewind, &rig.admin, dry, 200)), "a dry run");
    assert!(!are_shared(&rig, 10, || ask("PUT", control, &rig.admin, limit, 200)), "whoever acted sees it");
}

#[test]
fn the_scheme_of_a_token_has_no_case() {
    let rig = Rig::start("");
    let ask = |scheme: &str| {
        let head =
            format!("GET /api/v1/me HTTP/1.1\r\nhost: localhost\r\nauthorization: {scheme}{}\r\n", rig.read);
        rig.send(&head, "").status
    };
    for scheme in ["Bearer ", "bearer ", "BEARER ", "bEaReR   "] {
        assert_eq!(ask(scheme), 200, "{scheme:?}");
    }
    for scheme in ["", "Basic ", "Bearer", "Bearers "] {
        assert_eq!(ask(scheme), 401, "{scheme:?}");
    }
}

#[test]
fn an_event_whose_id_says_no_time_is_found_by_one_or_by_a_scan() {
    let rig = Rig::start("");
    let odd = "8a1b3c4d-0000-4000-8000-000000000001";
    let url = format!("sqlite:{}", rig.dir.join("a.db").display());
    run(&["append", "good", "--id", odd, "--payload", "{}", "--url", &url]).ok();
    let look = |id: &str, query: &str| rig.get(&format!("/outboxes/a/events/{id}{query}"), &rig.admin);
    let plain = look(odd, "");
    assert_eq!((plain.status, plain.code().as_str()), (404, "admin.search_wider"), "{}", plain.text);
    let advice = plain.json()["do"].as_str().unwrap_or_default().to_owned();
    assert!(advice.contains("?near=") && advice.contains("?scan=true"), "{}", plain.text);
    assert!(!plain.text.contains("--"), "the words are the command line's: {}", plain.text);
    assert_eq!(look(odd, "?scan=true").ok()["event"]["id"], odd);
    let appended = look(odd, "?scan=true").ok()["event"]["appended_at"].clone();
    let near = format!("?near={}", appended.as_str().expect("a time"));
    assert_eq!(look(odd, &near).ok()["event"]["id"], odd);
    assert_eq!(look(odd, "?near=2020-01-01T00:00:00Z").code(), "admin.search_wider");
    assert_eq!(look(odd, "/payload?scan=true").text, "{}");
    let none = look("8a1b3c4d-0000-4000-8000-000000000002", "?scan=true");
    assert_eq!((none.status, none.code().as_str()), (404, "admin.unknown_event"), "{}", none.text);
    for query in ["?near=yesterday", "?scan=2", "?far=1"] {
        assert_eq!(look(odd, query).code(), "api.bad_query", "{query}");
    }
}

#[test]
fn a_life_is_the_same_here_and_at_the_command_line() {
    let rig = Rig::with("", |dir| {
        let url = format!("sqlite:{}", dir.join("a.db").display());
        run(&["migrate", "up", "--url", &url]).ok();
        run(&["append", "bad", "--key", "k", "--payload", "no JSON", "--url", &url]).ok();
        run(&[
            "append",
            "good",
            "--key",
            "l",
            "--payload",
            "{}",
            "--deliver-at",
            "2099-01-01T00:00:00Z",
            "--url",
            &url,
        ])
        .ok();
        format!(
            "[[outbox]]\nname = \"a\"\nurl = {url:?}\n[sinks.out]\ntype = \"null\"\nstart_at = \"earliest\"\n\
             [[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\nvalidate = \"json\"\ndestination = \"d.{{key}}\"\n"
        )
    });
    rig.eventually("/outboxes/a/dead", |page| page["dead"][0].is_object());
    rig.eventually("/outboxes/a/deferred", |page| page["deferred"][0].is_object());
    for (seq, way) in [("1", "d.k"), ("2", "d.l")] {
        let path = format!("/outboxes/a/events/{seq}");
        let here = out_of(&rig.get(&path, &rig.admin).ok());
        assert_eq!(
            (&here["way"]["route"], &here["way"]["destination"]),
            (&"all".into(), &way.into()),
            "{here}"
        );
        assert_eq!(here, out_of(&rig.cli(&["events", "show", seq, "--json"]).ok().json()));
        assert_eq!(here["waiting"].is_object(), here["waiting"]["history"].is_array(), "{here}");
    }
    // A destination that is made of the key is no way around its being hidden.
    let hidden = out_of(&rig.get("/outboxes/a/events/1", &rig.read).ok());
    assert_eq!(hidden["way"]["destination"], "d.(hidden)", "{hidden}");
}

fn out_of(life: &Value) -> Value {
    life["sinks"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|sink| sink["sink"] == "out")
        .cloned()
        .unwrap_or_default()
}
