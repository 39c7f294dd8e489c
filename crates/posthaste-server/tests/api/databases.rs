//! Databases that are away, slow, too old or not ours, beside one that is well.

use crate::binary::run;
use crate::rig::{Answered, Rig};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Port, Proxy, TestDatabase};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A look at a database that never answers is given up after so long.
const LOOK_TIME: Duration = Duration::from_secs(8);
const OUT: &str = "[sinks.out]\ntype = \"null\"\n[[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\n";

fn outbox(name: &str, url: &str, is_relayed: bool) -> String {
    format!("[[outbox]]\nname = {name:?}\nrelay = {is_relayed}\nurl = {url:?}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_that_is_well_answers_at_once_and_each_of_the_others_is_named() {
    let well = require_service!(TestDatabase::create().await);
    let (empty, old) = (
        TestDatabase::create().await.expect("a database"),
        TestDatabase::create().await.expect("a database"),
    );
    for database in [&well, &old] {
        run(&["migrate", "up", "--url", &database.url()]).ok();
    }
    let client = old.connect().await.expect("a connection");
    let forget =
        "delete from posthaste.migrations where version = (select max(version) from posthaste.migrations)";
    client.batch_execute(forget).await.expect("it is ours");
    // It takes connections and never answers.
    let (hole, slow) = Proxy::start_before(&well.url()).await.expect("a proxy");
    hole.black_hole().await;
    let port = Port::claim().expect("a free port");
    let away = format!("postgres://u:hunter2@127.0.0.1:{}/d", port.number());
    let rig = Rig::with("", |_| {
        let all = [
            outbox("slow", &slow, false),
            outbox("away", &away, false),
            outbox("empty", &empty.url(), false),
            outbox("old", &old.url(), false),
            outbox("well", &well.url(), true),
        ];
        format!("{}{}{OUT}", all.concat(), "")
    });
    let (is_over, patience) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(300));
    let (all, trail) = std::thread::scope(|scope| {
        // More of them than a database is asked at once, for as long as the one that is well is asked.
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && Instant::now() < patience {
                    let answer = rig.get("/outboxes/slow", &rig.read);
                    assert_eq!(answer.status, 503, "{}", answer.text);
                    answer.code();
                }
            });
            scope.spawn(|| assert_eq!(rig.get("/outboxes/away", &rig.read).status, 503));
        }
        let all = scope.spawn(|| {
            let begun = Instant::now();
            let all = rig.get("/outboxes", &rig.admin).ok();
            assert!(begun.elapsed() < 5 * LOOK_TIME, "{:?}", begun.elapsed());
            all
        });
        let trail_of = scope.spawn(|| rig.get("/audit", &rig.admin).ok());
        let (begun, mut looks) = (Instant::now(), 0);
        for _ in 0..10 {
            for path in ["", "/events", "/dead", "/dead/causes", "/jobs"] {
                rig.get(&format!("/outboxes/well{path}"), &rig.read).ok();
                looks += 1;
            }
            let trail = rig.get("/audit?outbox=well", &rig.operate).ok();
            assert_eq!(trail["unreachable"], json!({}), "{trail}");
            looks += 1;
        }
        let took = begun.elapsed();
        is_over.store(true, Ordering::Relaxed);
        assert!(took < looks * LOOK_TIME / 4, "{looks} looks took {took:?}: they wait for another database");
        (all.join().expect("a picture"), trail_of.join().expect("a trail"))
    });
    assert!(!all.to_string().contains("hunter2"), "{all}");
    let why = |name: &str| -> Option<String> {
        let one = all["outboxes"].as_array()?.iter().find(|one| one["outbox"] == name)?;
        Some(one["unreachable"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(why("well").as_deref(), Some(""), "{all}");
    for (name, words) in
        [("slow", "no answer"), ("away", "refused"), ("empty", "migrate up"), ("old", "migrate up")]
    {
        let said = why(name).unwrap_or_else(|| panic!("{name} is missing: {all}"));
        assert!(said.contains(&format!("outbox `{name}`")) && said.contains(words), "{name}: {said}");
        // What it takes for this one to be refused has been seen above.
        if name == "slow" {
            continue;
        }
        let one = rig.get(&format!("/outboxes/{name}"), &rig.read);
        assert!(one.status == 503 && !one.code().is_empty(), "{name}: {}", one.text);
    }
    for name in ["slow", "away", "empty"] {
        assert!(trail["unreachable"][name].is_string(), "{name}: {trail}");
    }
    // It comes back by itself.
    hole.pass().await;
    rig.eventually("/outboxes/slow", |one| one["outbox"] == "slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_act_with_the_relay_s_login_is_refused_with_what_to_configure() {
    let database = require_service!(TestDatabase::create().await);
    run(&["migrate", "up", "--url", &database.url()]).ok();
    let login = format!("mover_{}", uuid::Uuid::now_v7().simple());
    let client = database.connect().await.expect("a connection");
    let make = format!("create role {login} login in role posthaste_relay");
    client.batch_execute(&make).await.expect("a role");
    let url = database.url_as(&login);
    run(&["append", "bad", "--payload", "no JSON", "--url", &database.url()]).ok();
    let validated = OUT.replace("sink = \"out\"\n", "sink = \"out\"\nvalidate = \"json\"\n");
    let validated = validated.replace("\"null\"\n", "\"null\"\nstart_at = \"earliest\"\n");
    // Without `admin_url`, and with one that is not an operator's.
    for (admin_url, status, code) in
        [(String::new(), 409, "api.no_admin_url"), (format!("admin_url = {url:?}\n"), 503, "store.rights")]
    {
        let rig = Rig::with("", |_| format!("{}{admin_url}{validated}", outbox("a", &url, true)));
        rig.eventually("/outboxes/a/dead", |page| page["dead"].as_array().is_some_and(|all| all.len() == 1));
        for (method, path, body) in acts() {
            let answer = rig.ask(method, path, &rig.admin, &body.to_string());
            let problem = answer.json();
            assert_eq!((answer.status, answer.code().as_str()), (status, code), "{path}: {problem}");
            assert!(
                problem["detail"].as_str().is_some_and(|text| text.contains("outbox `a`")),
                "{path}: {problem}"
            );
            let all = problem.to_string();
            let words: &[&str] = match status {
                409 => &["posthaste_admin", "admin_url", "posthaste ui"],
                _ => &["the role lacks a right", "migrate sql"],
            };
            assert!(words.iter().all(|word| all.contains(word)), "{path}: {problem}");
        }
        assert_eq!(
            rig.get("/me", &rig.admin).ok()["acting"].as_array().map(Vec::len),
            Some(usize::from(status != 409))
        );
        // A look needs no more than the relay has.
        for look in [
            "",
            "/events",
            "/events/1",
            "/dead/causes",
            "/deferred",
            "/deferred/causes",
            "/jobs",
            "/tuning",
            "/series",
        ] {
            rig.get(&format!("/outboxes/a{look}"), &rig.admin).ok();
        }
        let found = [rig.get("/audit", &rig.admin).ok(), rig.get("/consumers", &rig.admin).ok()];
        assert!(found.iter().all(|page| page["unreachable"] == json!({})), "{found:?}");
        let one = rig.get("/outboxes/a", &rig.admin).ok();
        assert_eq!(one["sinks"][0]["paused"], false, "{one}");
        assert_eq!(rig.get("/outboxes/a/dead", &rig.admin).ok()["dead"].as_array().map(Vec::len), Some(1));
    }
    client.batch_execute(&format!("drop role {login}")).await.expect("nothing is its own");
}

/// One of each kind.
fn acts() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("PUT", "/outboxes/a/sinks/out/control", json!({ "paused": true, "reason": "x" })),
        ("PUT", "/outboxes/a/routes/all/control", json!({ "paused": true, "reason": "x" })),
        ("POST", "/outboxes/a/sinks/out/rewind", json!({ "earliest": true, "reason": "x" })),
        ("PUT", "/outboxes/a/lanes", json!({ "lanes": 3, "reason": "x" })),
        ("POST", "/outboxes/a/dead/reprocess", json!({ "filter": { "all": true }, "reason": "x" })),
        (
            "POST",
            "/outboxes/a/jobs",
            json!({ "kind": "dead.discard", "filter": { "all": true }, "reason": "x" }),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_read_only_is_looked_at_and_an_act_is_told_so() {
    let database = require_service!(TestDatabase::create().await);
    let url = database.url();
    run(&["migrate", "up", "--url", &url]).ok();
    run(&["append", "bad", "--payload", "no JSON", "--url", &url]).ok();
    let dead = OUT.replace("\"null\"\n", "\"null\"\nstart_at = \"earliest\"\n");
    let dead = dead.replace("sink = \"out\"\n", "sink = \"out\"\nvalidate = \"json\"\n");
    // Where nothing may be written no relay runs: the process serves another outbox.
    let rig = |is_relayed| {
        Rig::with("", |dir| {
            let other = format!("sqlite:{}", dir.join("other.db").display());
            run(&["migrate", "up", "--url", &other]).ok();
            let (a, other) = (outbox("a", &url, is_relayed), outbox("other", &other, true));
            format!("{a}admin_url = {url:?}\n{other}{dead}")
        })
    };
    let relayed = rig(true);
    relayed.eventually("/outboxes/a/dead", |page| page["dead"].as_array().is_some_and(|all| all.len() == 1));
    drop(relayed);
    let client = database.connect().await.expect("a connection");
    let name = client.query_one("select quote_ident(current_database())", &[]).await.expect("a name");
    let name: String = name.get(0);
    let set = |what: &str| format!("alter database {name} {what}");
    client.batch_execute(&set("set default_transaction_read_only = on")).await.expect("ours");
    let rig = rig(false);
    for path in [
        "",
        "/events",
        "/events/1",
        "/dead",
        "/dead/causes",
        "/deferred",
        "/deferred/causes",
        "/jobs",
        "/tuning",
    ] {
        rig.get(&format!("/outboxes/a{path}"), &rig.admin).ok();
    }
    rig.get("/audit?outbox=a", &rig.admin).ok();
    for (method, path, mut body) in acts() {
        let answer = rig.ask(method, path, &rig.admin, &body.to_string());
        let problem = answer.json();
        assert_eq!((answer.status, answer.code().as_str()), (503, "store.unavailable"), "{path}: {problem}");
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(
            detail.contains("outbox `a`") && detail.contains("the database is read-only"),
            "{path}: {problem}"
        );
        assert!(
            problem["events"].as_str().is_some_and(|text| text.contains("Nothing was changed")),
            "{problem}"
        );
        // What would happen can be said.
        if body.get("filter").is_none() || body.get("kind").is_some() {
            body["dry_run"] = true.into();
            let seen = rig.ask(method, path, &rig.admin, &body.to_string());
            assert!(path.ends_with("control") || seen.status == 200, "{path}: {}", seen.text);
        }
    }
    let one = rig.get("/outboxes/a", &rig.admin).ok();
    assert_eq!(
        (&one["sinks"][0]["paused"], &one["sinks"][0]["dead"]["count"]),
        (&false.into(), &1.into()),
        "{one}"
    );
    // It takes writes again: so do acts, without a restart.
    let reset =
        format!("set default_transaction_read_only = off; {}", set("reset default_transaction_read_only"));
    client.batch_execute(&reset).await.expect("ours");
    let (method, path, body) = acts().swap_remove(0);
    let begun = Instant::now();
    while rig.ask(method, path, &rig.admin, &body.to_string()).status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it stays read-only");
        tokio::time::sleep(Duration::from_millis(50)).await; // pace: an answer cannot call when it changes
    }
    rig.eventually("/outboxes/a", |one| one["sinks"][0]["paused"] == true);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_looks_than_may_wait_are_told_to_come_again() {
    let well = require_service!(TestDatabase::create().await);
    run(&["migrate", "up", "--url", &well.url()]).ok();
    let (hole, slow) = Proxy::start_before(&well.url()).await.expect("a proxy");
    hole.black_hole().await;
    let rig = Rig::with("", |_| {
        [outbox("slow", &slow, false), outbox("well", &well.url(), true), OUT.to_owned()].concat()
    });
    rig.eventually("/outboxes/well", |one| one["outbox"] == "well");
    // Four look and 32 wait; each of these asks for something else.
    let asked = 48;
    let answers: Vec<_> = std::thread::scope(|scope| {
        let rig = &rig;
        let ask =
            |n| scope.spawn(move || rig.get(&format!("/outboxes/slow/dead?limit={}", n + 1), &rig.read));
        let all: Vec<_> = (0..asked).map(ask).collect();
        rig.get("/outboxes/well", &rig.read).ok();
        all.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    let busy: Vec<_> = answers.iter().filter(|answer| answer.code() == "api.busy").collect();
    assert!((1..=asked - 36).contains(&busy.len()), "{} of {asked} were sent away", busy.len());
    for answer in &answers {
        assert_eq!(answer.status, 503, "{}", answer.text);
    }
    for answer in busy {
        assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
        assert!(answer.text.contains("32 looks at outbox `slow` wait already"), "{}", answer.text);
    }
    hole.pass().await;
    rig.eventually("/outboxes/slow", |one| one["outbox"] == "slow");
}

const TABLE: &str = "create table outbox_events (id uuid primary key default gen_random_uuid(), \
      aggregate_type varchar(50) not null, aggregate_id uuid not null, event_type varchar(100) not null, \
      payload jsonb not null, occurred_at timestamptz default now(), status varchar(20) default 'PENDING', \
      retry_count int default 0, next_attempt_at timestamptz default now(), last_error text, processed_at timestamptz); \
    create index idx_outbox_poll on outbox_events (status, next_attempt_at)";

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_table_answers_an_act_as_the_command_line_does() {
    let database = require_service!(TestDatabase::create().await);
    let client = database.connect().await.expect("a connection");
    client.batch_execute(TABLE).await.expect("the owners' DDL");
    let url = database.url();
    let rig = Rig::with("", |_| {
        format!(
            "{}admin_url = {url:?}\n[outbox.adopt]\npreset = \"outbox-events\"\n{OUT}",
            outbox("a", &url, true)
        )
    });
    for path in ["", "/events", "/dead", "/dead/causes", "/deferred", "/deferred/causes", "/jobs"] {
        let answer = rig.get(&format!("/outboxes/a{path}"), &rig.admin);
        assert!(answer.status < 500, "{path}: {} {}", answer.status, answer.text);
    }
    let same = [
        (0, vec!["pause", "--sink", "out"]),
        (2, vec!["lanes", "rewind", "--sink", "out", "--to", "earliest"]),
        (3, vec!["lanes", "set", "3"]),
    ];
    for (at, command) in same {
        let (method, path, body) = acts().swap_remove(at);
        let answer = rig.ask(method, path, &rig.admin, &body.to_string());
        assert!(matches!(answer.status, 400 | 409), "{path}: {} {}", answer.status, answer.text);
        let code = answer.code();
        assert!(code == "admin.adopted" || code == "admin.audit_missing", "{path}: {code}");
        let said = rig.cli(&[&command[..], &["--reason", "x"]].concat());
        let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        let sentence =
            detail.split_once("outbox `a`: ").map_or(&*detail, |(_, sentence)| sentence).to_owned();
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.code != 0 && flat(&said.err).contains(&flat(&sentence)), "{sentence}\n{}", said.err);
    }
    for (method, path, body) in acts() {
        let answer = rig.ask(method, path, &rig.admin, &body.to_string());
        assert!(matches!(answer.status, 400 | 409), "{path}: {} {}", answer.status, answer.text);
        answer.code();
    }
}

/// The sentence of an answer, without the outbox in front of it, in one line.
fn sentence(answer: &Answered) -> String {
    let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    let sentence = detail.split_once("outbox `a`: ").map_or(&*detail, |(_, sentence)| sentence);
    sentence.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_few_letters_of_an_adopted_table_are_acted_on_in_the_request() {
    let database = require_service!(TestDatabase::create().await);
    let client = database.connect().await.expect("a connection");
    client.batch_execute(TABLE).await.expect("the owners' DDL");
    let dead = "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload, status, last_error) \
                select 'order', gen_random_uuid(), 'bad', '{}', 'FAILED', 'e.bad: no' from generate_series(1, 3) \
                returning id::text";
    let ids: Vec<String> =
        client.query(dead, &[]).await.expect("rows").iter().map(|row| row.get(0)).collect();
    let url = database.url();
    let rig = Rig::with("", |_| {
        let adopt = "[outbox.adopt]\npreset = \"outbox-events\"\n";
        format!("{}admin_url = {url:?}\n{adopt}{OUT}", outbox("a", &url, true))
    });
    let ask = |token: &str, kind: &str, filter: Value, more: Value| {
        let mut body = json!({ "kind": kind, "filter": filter, "reason": "mended" });
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        rig.ask("POST", "/outboxes/a/jobs", token, &body.to_string())
    };
    let one = json!({ "ids": [ids[0]] });
    // Without an audit nothing is done, and both say what to make.
    let refused = ask(&rig.operate, "dead.replay", one.clone(), json!({}));
    assert_eq!((refused.status, refused.code().as_str()), (400, "admin.audit_missing"), "{}", refused.text);
    let said = rig.cli(&["dead", "replay", "--id", &ids[0], "--yes", "--reason", "mended"]);
    let flat = said.err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.code != 0 && flat.contains(&sentence(&refused)), "{}\n{flat}", refused.text);
    let printed = rig.cli(&["adopt", "sql", "--json"]).ok().json();
    client.batch_execute(printed["missing"][0].as_str().expect("DDL")).await.expect("it runs");
    // A filter, a rate or an end would need a job: what to do instead is said.
    for (filter, more) in [
        (json!({ "code": "e.bad" }), json!({})),
        (json!({ "all": true }), json!({ "dry_run": true })),
        (json!({ "ids": vec![&ids[0]; 101] }), json!({})),
        (one.clone(), json!({ "rate_per_s": 5 })),
    ] {
        let refused = ask(&rig.admin, "dead.discard", filter.clone(), more);
        assert_eq!((refused.status, refused.code().as_str()), (409, "admin.adopted"), "{filter}");
        assert!(refused.text.contains("`posthaste dead discard --outbox a --reason"), "{}", refused.text);
    }
    assert_eq!(ask(&rig.operate, "dead.discard", one.clone(), json!({})).status, 403);
    assert_eq!(rig.get("/outboxes/a/dead", &rig.admin).ok()["dead"].as_array().map(Vec::len), Some(3));
    let seen = ask(&rig.operate, "dead.replay", one.clone(), json!({ "dry_run": true })).ok();
    assert_eq!((&seen["goes"], &seen["samples"][0]["id"]), (&1.into(), &ids[0].as_str().into()), "{seen}");
    let done = ask(&rig.operate, "dead.replay", one.clone(), json!({})).ok();
    assert_eq!((&done["done"], done["trace_id"].as_str().map(str::len)), (&1.into(), Some(32)), "{done}");
    assert_eq!(ask(&rig.operate, "dead.replay", one, json!({})).code(), "admin.empty_filter", "once");
    let gone = ask(&rig.admin, "dead.discard", json!({ "ids": [ids[1], ids[0]] }), json!({})).ok();
    assert_eq!(gone["done"], 1, "{gone}");
    let left = rig.get("/outboxes/a/dead", &rig.admin).ok();
    assert_eq!(
        (left["dead"].as_array().map(Vec::len), &left["dead"][0]["id"]),
        (Some(1), &ids[2].as_str().into())
    );
    let lines = "select string_agg(actor || ' ' || action, ', ' order by id) from posthaste_audit";
    let lines: String = client.query_one(lines, &[]).await.expect("lines").get(0);
    assert_eq!(lines, "ann replay, root discard");
    // What such a table cannot do at all is said in its own words.
    let waits = ask(&rig.operate, "deferred.retry", json!({ "all": true }), json!({}));
    assert!(waits.code() == "admin.adopted" && waits.text.contains("in SQL"), "{}", waits.text);
}
