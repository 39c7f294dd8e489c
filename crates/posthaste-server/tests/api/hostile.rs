//! Whoever can append an event writes what they like into it: a page, a terminal, a spreadsheet and a log
//! must show it and not obey it.
//!
//! The same texts go everywhere where the database takes them: into payload, key, topic and headers by
//! `append` and by INSERT, into the answer of a receiver, into the names of tokens and into reasons.

use crate::binary::run;
use crate::rig::{Rig, token};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Answer, Receiver, ReceiverOptions, TestDatabase};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;

/// What has made pages, terminals, spreadsheets and templates do something.
const TEXTS: [&str; 26] = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)//",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)><animate onbegin=alert(1) attributeName=x>",
    "\" onmouseover=\"alert(1)\" x=\"",
    "' autofocus onfocus='alert(1)",
    "javascript:alert(1)//\u{0}",
    "data:text/html;base64,PHNjcmlwdD4=",
    "]]><!--<!DOCTYPE x [<!ENTITY y SYSTEM \"file:///etc/passwd\">]>&y;",
    "{{constructor.constructor('alert(1)')()}}${7*7}<%= 7*7 %>#{7*7}",
    "%s%n%x{}{0}$(id)`id`;id|id&&id",
    "../../../../etc/passwd",
    "'; drop table posthaste.outbox; --",
    "\u{202e}gnp.exe\u{2066}\u{2069}\u{200f}\u{200e}\u{61c}",
    "\u{2028}line\u{2029}paragraph",
    "\u{feff}\u{200b}zero\u{ad}width",
    "\u{1b}[2J\u{1b}[1;1H\u{1b}]0;title\u{7}\u{1b}]8;;http://evil\u{1b}\\link",
    "\u{9b}31m\u{90}q\u{9c}\u{7f}\u{8}\u{8}\u{c}\u{b}",
    "a\r\nset-cookie: x=y\r\n\r\n<html>",
    "=cmd|'/c calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(1)",
    "\t=1+1",
    "\u{ff1d}1+1",
    "\",\"\r\n=1+1,\"",
];

/// An event as it was written.
struct Written {
    topic: String,
    key: String,
    headers: BTreeMap<String, String>,
    payload: Vec<u8>,
}

/// Cut at so many bytes.
fn cut(text: &str, max: usize) -> String {
    let mut at = text.len().min(max);
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    text[..at].to_owned()
}

/// What an outbox takes: `append` is strict, an INSERT by hand is not.
fn events(is_strict: bool) -> Vec<Written> {
    let mut all = Vec::new();
    for text in TEXTS {
        let column = text.replace('\0', "");
        let (topic, key, value) = match is_strict {
            true => (
                column.replace(|c: char| c.is_control() || c.is_whitespace(), ""),
                column.replace(['\r', '\n'], ""),
                column.replace(['\r', '\n'], ""),
            ),
            false => (column.clone(), column.clone(), column.clone()),
        };
        // A name of a header in `append` is made of letters and the like.
        let name = if is_strict { "subject".to_owned() } else { column.clone() };
        all.push(Written {
            topic: cut(&topic, 255),
            key: cut(&key, 1_024),
            headers: BTreeMap::from([(name, value)]),
            payload: text.as_bytes().to_vec(),
        });
    }
    all
}

/// Texts that are only payloads: without a space, no UTF-8, zero bytes.
fn payloads() -> Vec<Vec<u8>> {
    let mut all = vec![vec![b'x'; 1 << 20], vec![0; 16], (0..=255).collect(), b"\xff\xfe<script>".to_vec()];
    // Overlong, a half of a pair, cut off.
    all.extend([b"\xc0\xbcscript".to_vec(), b"\xed\xa0\x80".to_vec(), b"\xf0\x9f\x99".to_vec(), Vec::new()]);
    all
}

async fn append(client: &tokio_postgres::Client, event: &Written, is_strict: bool) -> String {
    let headers = serde_json::to_string(&event.headers).expect("JSON");
    let sql = match is_strict {
        true => "select posthaste.append($1, $2::bytea, $3, $4::text::jsonb)::text",
        false => {
            "insert into posthaste.outbox (topic, payload, key, headers) values ($1, $2, $3, $4::text::jsonb) \
             returning id::text"
        }
    };
    let row = client.query_one(sql, &[&event.topic, &event.payload, &event.key, &headers]).await;
    row.unwrap_or_else(|error| panic!("{:?}: {error:?}", event.topic)).get(0)
}

/// What a terminal would obey.
#[track_caller]
fn is_harmless(what: &str, text: &str) {
    let obeyed = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
    };
    let at = text.find(obeyed);
    assert!(at.is_none(), "{what}: {:?}", at.map(|at| text[at..].chars().take(80).collect::<String>()));
}

/// A database with all of it, and a relay whose receiver refuses everything in words of the same kind.
async fn ground(
    database: &TestDatabase,
    receiver: &Receiver,
    tokens: &[String],
) -> (Rig, Vec<(String, Written)>) {
    let url = database.url();
    run(&["migrate", "up", "--url", &url]).ok();
    let client = database.connect().await.expect("a connection");
    let mut written = Vec::new();
    for is_strict in [true, false] {
        for event in events(is_strict) {
            written.push((append(&client, &event, is_strict).await, event));
        }
    }
    for payload in payloads() {
        let event = Written { topic: "t".to_owned(), key: "k".to_owned(), headers: BTreeMap::new(), payload };
        written.push((append(&client, &event, true).await, event));
    }
    receiver.always("/hook", Answer::status(422).body(TEXTS[0]));
    receiver.next("/hook", TEXTS.iter().cycle().take(100).map(|text| Answer::status(422).body(*text)));
    let rig = Rig::with("", |dir| {
        let file = std::fs::OpenOptions::new().append(true).open(dir.join("tokens.toml"));
        file.expect("it is there").write_all(tokens.join("\n").as_bytes()).expect("it can be written");
        format!(
            "[[outbox]]\nname = \"a\"\nurl = {url:?}\nadmin_url = {url:?}\n\
             [sinks.hook]\ntype = \"http\"\nurl = \"{}\"\nallow_private = true\nstart_at = \"earliest\"\n\
             [[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"hook\"\ndestination = \"hook\"\n",
            receiver.url()
        )
    });
    let count = written.len();
    rig.eventually("/outboxes/a/dead?limit=1000", |page| {
        page["dead"].as_array().is_some_and(|all| all.len() == count)
    });
    (rig, written)
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "http"), ignore = "its receiver is a webhook: --features http")]
async fn what_an_event_holds_is_shown_exactly_and_obeyed_by_nothing() {
    let database = require_service!(TestDatabase::create().await);
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    let (rig, written) = ground(&database, &receiver, &[]).await;
    let page = rig.get("/outboxes/a/events?limit=1000", &rig.admin);
    assert!(
        page.head.contains("content-type: application/json") && page.head.contains("nosniff"),
        "{}",
        page.head
    );
    let listed = page.ok();
    let dead = rig.get("/outboxes/a/dead?limit=1000", &rig.admin).ok();
    let find = |list: &Value, id: &str| -> Value {
        let found = list.as_array().and_then(|all| all.iter().find(|one| one["id"] == id));
        found.cloned().unwrap_or_else(|| panic!("{id} is missing"))
    };
    for (id, event) in &written {
        let life = rig.get(&format!("/outboxes/a/events/{id}"), &rig.admin).ok();
        for one in [&find(&listed["events"], id), &find(&dead["dead"], id), &life["event"]] {
            assert_eq!(
                (one["topic"].as_str(), one["key"].as_str()),
                (Some(&*event.topic), Some(&*event.key))
            );
        }
        let headers: BTreeMap<String, String> =
            serde_json::from_value(life["event"]["headers"].clone()).expect("a table");
        for (name, value) in &event.headers {
            assert_eq!(headers.get(name), Some(value), "{headers:?}");
        }
        let text = String::from_utf8(event.payload.clone()).ok();
        assert_eq!(life["payload"].as_str(), text.as_deref());
        let path = format!("/outboxes/a/events/{id}/payload");
        let bytes = rig.bytes(&path, &rig.admin);
        let (head, body) =
            bytes.split_at(bytes.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4);
        assert!(body == event.payload, "{path}: {}", String::from_utf8_lossy(body));
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        for header in [
            "content-type: application/octet-stream\r\n",
            "content-disposition: attachment; filename=\"payload\"\r\n",
            "content-security-policy: sandbox; default-src 'none'\r\n",
            "x-content-type-options: nosniff\r\n",
        ] {
            assert!(head.contains(header), "{header}: {head}");
        }
    }
    // What the receiver said is told, in one line of JSON like everything else.
    let errors: Vec<&str> =
        dead["dead"].as_array().into_iter().flatten().filter_map(|letter| letter["error"].as_str()).collect();
    assert!(errors.iter().any(|error| error.contains("<script>alert(1)</script>")), "{errors:?}");
    for path in ["", "/dead/causes", "/deferred", "/deferred/causes", "/jobs"] {
        rig.get(&format!("/outboxes/a{path}"), &rig.admin).ok();
    }
    // A filter finds exactly what it names, and what no column can hold matches nothing or is refused.
    for (_, event) in written.iter().take(2 * TEXTS.len()) {
        let path = format!("/outboxes/a/dead?limit=1000&key={}", percent(&event.key));
        let found = rig.get(&path, &rig.admin).ok();
        assert!(
            found["dead"]
                .as_array()
                .is_some_and(|all| !all.is_empty() && all.iter().all(|one| one["key"] == event.key)),
            "{path}: {found}"
        );
    }
    is_harmless("the log", &rig.daemon.said());
    let mut commands =
        vec![vec!["events", "list"], vec!["dead", "list"], vec!["dead", "causes"], vec!["status"]];
    for (id, _) in written.iter().step_by(3) {
        commands.extend([vec!["events", "show", id], vec!["dead", "show", id]]);
    }
    for command in commands {
        let ended = rig.cli(&command).ok();
        is_harmless(&command.join(" "), &ended.out);
        is_harmless(&command.join(" "), &ended.err);
    }
}

/// Names and reasons are an operator's, and are read by another one.
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "http"), ignore = "its receiver is a webhook: --features http")]
async fn who_acts_and_why_is_shown_exactly_and_obeyed_by_nothing() {
    let database = require_service!(TestDatabase::create().await);
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    let names: Vec<String> = TEXTS.iter().map(|text| text.replace('\0', "")).collect();
    let tokens: Vec<_> =
        names.iter().map(|name| token(&[&format!("--name={name}"), "--role", "operate"])).collect();
    let entries: Vec<String> = tokens.iter().map(|(_, entry)| entry.clone()).collect();
    let (rig, _) = ground(&database, &receiver, &entries).await;
    for ((token, _), text) in tokens.iter().zip(TEXTS) {
        let body = json!({ "paused": false, "reason": text }).to_string();
        let answer = rig.ask("PUT", "/outboxes/a/sinks/hook/control", token, &body);
        if text.contains('\0') {
            // No database of ours keeps a zero byte in a text, so it is refused before it is asked.
            assert_eq!((answer.status, answer.code().as_str()), (400, "api.bad_body"), "{}", answer.text);
            continue;
        }
        answer.ok();
    }
    let trail = rig.get("/audit?limit=1000", &rig.operate).ok();
    let lines: Vec<(&str, &str)> = trail["audit"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|line| Some((line["actor"].as_str()?, line["reason"].as_str()?)))
        .collect();
    let kept: Vec<&str> = TEXTS.into_iter().filter(|text| !text.contains('\0')).collect();
    for text in &kept {
        assert!(lines.contains(&(text, text)), "{text:?}: {lines:?}");
    }
    let csv = rig.get("/audit.csv?limit=1000", &rig.operate);
    for header in ["text/csv", "attachment", "nosniff"] {
        assert!(csv.head.contains(header), "{}", csv.head);
    }
    let rows = rows_of(&csv.text);
    assert!(rows.len() > kept.len() && rows.iter().all(|row| row.len() == rows[0].len()), "{rows:?}");
    for cell in rows.iter().flatten() {
        assert!(!cell.contains(['\r', '\n']), "{cell:?}");
        let first = cell.trim_start_matches([' ', '\u{feff}']).chars().next();
        assert!(!first.is_some_and(|c| "=+-@\t\u{ff1d}\u{ff0b}\u{ff0d}\u{ff20}".contains(c)), "{cell:?}");
    }
    let ended = rig.cli(&["audit", "--limit", "1000"]).ok();
    is_harmless("audit", &ended.out);
    assert!(ended.out.contains("=cmd|'/c calc'!A0") && ended.out.contains("\\x1b[2J"), "{}", ended.out);
    is_harmless("the log", &rig.daemon.said());
}

/// What no column can hold is the asker's mistake, wherever it is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_zero_byte_is_refused_wherever_it_is_said() {
    let database = require_service!(TestDatabase::create().await);
    let url = database.url();
    run(&["migrate", "up", "--url", &url]).ok();
    let rig = Rig::with("", |_| {
        format!(
            "[[outbox]]\nname = \"a\"\nurl = {url:?}\nadmin_url = {url:?}\n[sinks.out]\ntype = \"null\"\n\
             [[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\n"
        )
    });
    for path in [
        "/outboxes/a/events?topic=%00",
        "/outboxes/a/events?key=x%00y",
        "/outboxes/a/dead?sink=%00",
        "/outboxes/a/dead/causes?code=%00",
        "/outboxes/a/deferred?destination=%00",
        "/audit?actor=%00",
        "/audit.csv?trace_id=%00",
        "/outboxes/a/events/%00",
        "/outboxes/%00",
        "/consumers/%00",
        "/consumers/%00/dead",
        "/outboxes/a/jobs/%00",
    ] {
        let answer = rig.get(path, &rig.admin);
        assert!(matches!(answer.status, 400 | 404), "{path}: {} {}", answer.status, answer.text);
        answer.code();
    }
    rig.eventually("/outboxes/a", |one| one["sinks"][0]["sink"] == "out");
    // An escaped backslash before the same letters is no zero byte.
    let body = "{\"paused\": false, \"reason\": \"x\\\\u0000y\"}";
    rig.ask("PUT", "/outboxes/a/sinks/out/control", &rig.admin, body).ok();
    let trail = rig.get("/audit", &rig.admin).ok();
    assert_eq!(trail["audit"][0]["reason"], "x\\u0000y", "{trail}");
    let reason = "x\u{0}y";
    for (method, path, body) in [
        ("PUT", "/outboxes/a/sinks/out/control", json!({ "paused": true, "reason": reason })),
        ("PUT", "/outboxes/a/sinks/%00/control", json!({ "paused": true, "reason": "x" })),
        ("PUT", "/outboxes/a/routes/%00/control", json!({ "paused": true, "reason": "x" })),
        (
            "POST",
            "/outboxes/a/jobs",
            json!({ "kind": "dead.replay", "filter": { "topic": reason }, "dry_run": true }),
        ),
        ("POST", "/outboxes/a/dead/reprocess", json!({ "filter": { "key": reason }, "reason": "x" })),
        ("POST", "/outboxes/a/jobs/1/pause", json!({ "reason": reason })),
        ("POST", "/outboxes/a/sinks/out/rewind", json!({ "earliest": true, "reason": reason })),
        ("PUT", "/outboxes/a/lanes", json!({ "lanes": 2, "reason": reason })),
        ("PUT", "/consumers/%00/control", json!({ "paused": true, "reason": "x" })),
    ] {
        let answer = rig.ask(method, path, &rig.admin, &body.to_string());
        assert!(matches!(answer.status, 400 | 404 | 409), "{path}: {} {}", answer.status, answer.text);
        answer.code();
    }
}

/// Every byte in a query.
fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Rows of a file for a spreadsheet: all cells are quoted.
fn rows_of(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell, mut is_quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' if is_quoted && rest.peek() == Some(&'"') => cell.extend(rest.next()),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => row.push(std::mem::take(&mut cell)),
            '\n' if !is_quoted => {
                row.push(std::mem::take(&mut cell).trim_end_matches('\r').to_owned());
                rows.push(std::mem::take(&mut row));
            }
            c => cell.push(c),
        }
    }
    assert!(!is_quoted && row.is_empty() && cell.is_empty(), "{text:?}");
    rows
}
