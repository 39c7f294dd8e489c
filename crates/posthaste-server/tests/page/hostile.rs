//! Whoever can append an event writes what they like into it, and so do receivers, handlers and whoever gives
//! a reason. Each page shows it and does not obey it.

use crate::binary::run;
use crate::browser::{Browser, looks_at_all_pages};
use crate::rig::{Rig, token, write};
use crate::shown;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Answer, Receiver, ReceiverOptions};
use rusqlite::{Connection, params};
use std::path::Path;

/// What has made pages and templates do something.
const TEXTS: [&str; 16] = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)//",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)><animate onbegin=alert(1) attributeName=x>",
    "\" onmouseover=\"alert(1)\" x=\"",
    "' autofocus onfocus='alert(1)",
    "javascript:alert(1)//",
    "data:text/html;base64,PHNjcmlwdD4=",
    "{{constructor.constructor('alert(1)')()}}${7*7}<%= 7*7 %>#{7*7}",
    "../../../../etc/passwd?x=1#y",
    "%00%2e%2e%2f%E0%A4%A",
    "\u{202e}gnp.exe\u{2066}\u{2069}\u{200f}\u{200e}\u{61c}",
    "\u{1b}[2J\u{1b}]8;;http://evil.example\u{1b}\\link",
    "\u{feff}\u{200b}zero\u{ad}width",
    "a\r\nset-cookie: x=y\r\n\r\n<html>",
    "__proto__",
];

/// And bytes that are no text, or too much of it.
const PAYLOADS: usize = 6;

/// A word that does not end, as long as a page may get it in a column.
const WORD: usize = 1_000;

/// Rows as no command of ours would write them.
fn rows(file: &Path) {
    let file = Connection::open(file).expect("the file");
    file.busy_timeout(std::time::Duration::from_secs(30)).expect("it waits");
    let event = "insert into posthaste_outbox (topic, key, headers, content_type, payload) values (?1, ?2, ?3, ?4, ?5)";
    let letter = "insert into posthaste_inbox_dead_letters (letter, seq, consumer, message_id, topic, partition, key, order_id,
             headers, payload, holds_key, attempts, disposition, error_class, error_code, error, stack, fingerprint, dead_at)
         values (printf('00000000-0000-7000-8000-%012d', ?1), ?1, 'billing', ?2, ?3, 0, cast(?3 as blob), randomblob(16),
             ?4, ?5, 0, 1, 'rejected', 'permanent', ?3, ?3, ?3, ?1, 1790000000000000)";
    let word = "k".repeat(WORD);
    for (n, text) in TEXTS.into_iter().chain([word.as_str()]).enumerate() {
        let headers = serde_json::json!({ text: text, "x": "w".repeat(5_000) }).to_string();
        file.execute(event, params![text, text, headers, text, text]).expect("an event");
        // A consumer's letters and what it set aside, of the same texts.
        let (id, pairs) = (format!("{text}{n}"), serde_json::json!([[text, text]]).to_string());
        file.execute(letter, params![n as i64 + 1, id, text, pairs, text.as_bytes()]).expect("a letter");
        file.execute(
            "insert into posthaste_inbox_deferred (seq, consumer, message_id, topic, partition, key, order_id, headers, payload,
                 reason, holds, due_at, error_code, last_error, deferred_at)
             values (1000 + ?1, 'billing', ?2 || 'w', ?3, 0, cast(?3 as blob), randomblob(16), ?4, cast(?3 as blob),
                 'retry', 1, 4000000000000000, ?3, ?3, 1790000000000000)",
            params![n as i64 + 1, id, text, pairs],
        )
        .expect("a deferred one");
        file.execute(
            "insert into posthaste_inbox_partitions (consumer, topic, partition, position, owner) values ('billing', ?2, ?1, 7, ?2)",
            params![n as i64, text],
        )
        .expect("a partition");
        let report = serde_json::json!({ "ready": false, "why": text, "error": text, "last_error": text, "unavailable": [text] });
        for (role, name) in [("consumer", "billing"), ("relay", text)] {
            file.execute(
                "insert into posthaste_processes (process, role, name, version, host, started_at, seen_at, report)
                 values (?1 || ?2, ?2, ?3, ?1, ?1, 1790000000000000, 4000000000000000, ?4)",
                params![text, role, name, report.to_string()],
            )
            .expect("a process");
        }
    }
    // No UTF-8, zero bytes, half of a character, a megabyte without a space, nothing at all.
    let long = vec![b'w'; 1 << 20];
    let payloads: [&[u8]; PAYLOADS] =
        [b"\xff\xfe<script>", &[0; 16], b"\xed\xa0\x80", b"\xf0\x9f\x99", &long, b""];
    for (n, payload) in payloads.into_iter().enumerate() {
        file.execute(event, params!["t", "k", "{}", "text/html", payload]).expect("an event");
        file.execute(letter, params![(TEXTS.len() + n) as i64 + 2, n.to_string(), "t", "[]", payload])
            .expect("a letter");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "http"), ignore = "the broker that says it is a webhook: --features http")]
async fn every_page_shows_hostile_texts_and_obeys_none() {
    let browser = require_service!(Browser::find());
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    receiver.always("/hook", Answer::status(422).body(TEXTS[0]));
    receiver.next("/hook", TEXTS.iter().cycle().take(100).map(|text| Answer::status(422).body(*text)));
    let tokens = TEXTS.map(|text| token(&[&format!("--name={text}"), "--role", "admin"]));
    let rig = Rig::with("", |dir| {
        let file = dir.join("tokens.toml");
        let before = std::fs::read_to_string(&file).expect("ours");
        write(&file, &(before + &tokens.each_ref().map(|(_, entry)| entry.as_str()).join("\n")));
        let url = format!("sqlite:{}", dir.join("a.db").display());
        run(&["migrate", "up", "--url", &url]).ok();
        rows(&dir.join("a.db"));
        format!(
            "[[outbox]]\nname = \"a\"\nurl = {url:?}\n\
             [sinks.hook]\ntype = \"http\"\nurl = \"{}\"\nallow_private = true\nstart_at = \"earliest\"\n\
             [[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"hook\"\ndestination = \"hook\"\n",
            receiver.url()
        )
    });
    let dead = TEXTS.len() + 1 + PAYLOADS;
    rig.eventually("/outboxes/a/dead?limit=100", |page| {
        page["dead"].as_array().is_some_and(|all| all.len() == dead)
    });
    for ((token, _), text) in tokens.iter().zip(TEXTS) {
        let body = serde_json::json!({ "rate_per_s": 5, "reason": text });
        rig.ask("PUT", "/outboxes/a/sinks/hook/control", token, &body.to_string()).ok();
        let filter = serde_json::json!({ "topic": "nothing-at-all", "key": text });
        let body = serde_json::json!({ "kind": "dead.replay", "filter": filter, "reason": text });
        rig.ask("POST", "/outboxes/a/jobs", token, &body.to_string());
    }
    // Whoever looks has such a name, too.
    let address = format!("http://{}/", rig.address);
    looks_at_all_pages(&browser, "hostile", &address, &tokens[2].0, "a");
    let said = browser.runs("contents.mjs", &[&address, &tokens[2].0, "a"]);
    let (events, letters) = (dead, TEXTS.len() + 1 + PAYLOADS);
    assert!(
        said.contains(&format!("{events} events, ")) && said.contains(&format!(", {letters} letters")),
        "{said}"
    );
    let commands = shown::commands(&said);
    assert_eq!(commands.len(), TEXTS.len() + 2, "one for each key: {commands:#?}");
    for command in commands {
        let would = shown::runs(&rig, &command, &["--dry-run", "--json"]).ok().json();
        assert_eq!(
            would["matched"],
            if command.contains("--key k ") { PAYLOADS } else { 1 },
            "{command}: {would}"
        );
    }
}
