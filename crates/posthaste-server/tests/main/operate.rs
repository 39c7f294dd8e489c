//! An operator's looks: what is wrong, what waits and why, who did it.

use crate::binary::{finish, posthaste, run};
use crate::daemon::Daemon;
use crate::relay::Outbox;
use posthaste_testkit::services::Port;
use rustix::process::Signal;
use serde_json::Value;

const OUT: &str = "[sinks.out]\ntype = \"stdout\"\nstart_at = \"earliest\"\n[[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\n";

#[track_caller]
fn fits(text: &str) {
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

/// A text without its line breaks: what is said, wherever it was broken.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_database_that_is_away_does_not_hide_the_others() {
    let Some(good) = Outbox::new().await else { return };
    let port = Port::claim().expect("a free port");
    let file = crate::binary::Scratch::new(&format!(
        "[[outbox]]\nname = \"away\"\nurl = \"postgres://u:hunter2@127.0.0.1:{}/d\"\n\
         [[outbox]]\nname = \"good\"\nurl = \"{}\"\n{OUT}",
        port.number(),
        good.url()
    ));
    good.append(&["t", "--payload", "x"]);
    let args = ["status", "--config", file.path()];
    let text = run(&args);
    assert_eq!(text.code, 1, "{}", text.out);
    fits(&text.out);
    let said = flat(&text.out);
    assert!(
        said.contains("outbox away cannot be looked at") && said.contains("Appended events stay"),
        "{said}"
    );
    assert!(said.contains("outbox good schema version") && !said.contains("hunter2"), "{said}");
    let json = run(&[&args[..], &["--json"]].concat());
    let all = json.json();
    assert_eq!((json.code, &all["outboxes"][0]["outbox"]), (1, &"away".into()));
    assert!(
        all["outboxes"][0]["unreachable"].is_string() && all["outboxes"][1]["unreachable"].is_null(),
        "{all}"
    );
    assert!(all["outboxes"][0].get("sinks").is_none() && all["outboxes"][1]["problems"].is_array(), "{all}");
    // It goes on looking.
    let watch = Daemon::spawn(posthaste(&[&args[..], &["--watch", "--json"]].concat()));
    for picture in watch.events(2) {
        assert!(
            picture["outboxes"][0]["unreachable"].is_string() && picture["outboxes"][1]["sinks"].is_array()
        );
    }
    // Alone it is an error like any other.
    let alone = run(&["status", "--config", file.path(), "--outbox", "away"]);
    assert!(
        alone.code == 1 && alone.out.is_empty() && alone.err.contains("Appended events stay"),
        "{}",
        alone.err
    );
}

/// A consumer that is paused, with a partition, two deferred messages and two dead letters.
const BILLING: &str = "
insert into posthaste.inbox_partitions (consumer, topic, partition, position, position_time)
  values ('billing', 'orders', 0, 7, now() - interval '2 hours');
insert into posthaste.processes (process, role, name, version, host, started_at, seen_at, report)
  values ('p', 'consumer', 'billing', '1', 'h', now(), now(), '{\"ready\": false, \"why\": \"waiting for crm\",
          \"partitions\": 1, \"unavailable\": [\"crm\"], \"stopped\": [], \"lag\": {\"orders/0\": 3}}');
insert into posthaste.inbox_deferred (consumer, message_id, topic, partition, headers, reason, holds, due_at, deferred_at)
  select 'billing', 'w' || n, 'orders', 0, '[]', 'retry', true, now() + interval '1 hour', now() - interval '10 minutes'
    from generate_series(1, 2) n;
insert into posthaste.inbox_dead_letters (letter, consumer, message_id, topic, partition, headers, holds_key, attempts,
    disposition, error_class, error_code, error, fingerprint)
  select posthaste.uuid_v7(), 'billing', 'x' || n, 'orders', 0, '[]', false, 1, 'rejected', 'permanent', 'PH001',
         'no order ' || n, 5701323182663626353 from generate_series(1, 2) n;";

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_hides_no_consumer_of_another() {
    let Some(good) = Outbox::new().await else { return };
    good.execute(BILLING).await;
    let port = Port::claim().expect("a free port");
    let file = crate::binary::Scratch::new(&format!(
        "[[outbox]]\nname = \"away\"\nurl = \"postgres://u:hunter2@127.0.0.1:{}/d\"\n\
         [[outbox]]\nname = \"good\"\nurl = \"{}\"\n{OUT}",
        port.number(),
        good.url()
    ));
    let ask = |args: &[&str]| run(&[args, &["--config", file.path()]].concat());
    let text = ask(&["consumers"]);
    assert_eq!(text.code, 1, "{}", text.err);
    fits(&text.out);
    let said = flat(&text.out);
    assert!(said.contains("consumer billing outbox good") && !said.contains("hunter2"), "{said}");
    assert!(said.contains("outbox away cannot be looked at outbox `away`:"), "{said}");
    let json = ask(&["consumers", "--json"]);
    let all = json.json();
    assert_eq!((json.code, &all["consumers"][0]["consumer"]), (1, &"billing".into()), "{all}");
    assert!(all["unreachable"]["away"].is_string() && all["unreachable"]["good"].is_null(), "{all}");
    // Alone it is an error like any other, and a script reads the reason.
    let alone = ask(&["consumers", "--outbox", "away"]);
    assert!(
        alone.code == 1 && alone.out.is_empty() && alone.err.contains("Appended events"),
        "{}",
        alone.err
    );
    let alone = ask(&["consumers", "--outbox", "away", "--json"]);
    assert!(alone.code == 1 && alone.json()["unreachable"]["away"].is_string(), "{}", alone.out);
    assert_eq!(ask(&["consumers", "status", "nobody", "--outbox", "good"]).code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_consumer_is_said_by_consumers_and_by_status() {
    let Some(outbox) = Outbox::new().await else { return };
    assert_eq!(outbox.cli(&["status", "--json"]).json()["outboxes"][0]["problems"], serde_json::json!([]));
    outbox.execute(BILLING).await;
    outbox.cli(&["pause", "--consumer", "billing", "--reason", "ledger is closed", "--actor", "bo"]);
    let seen = outbox.cli(&["consumers"]).out;
    fits(&seen);
    let said = flat(&seen);
    for part in [
        "deferred 2 (oldest 10m",
        "consumer billing is paused by bo for ",
        ": \"ledger is closed\"; 5 messages wait, the oldest of 2 deferred for 10 min",
        "consumer billing waits for crm; 5 messages wait, ",
        "consumer billing gave up 2 messages; `posthaste dead causes --consumer billing` says why",
        "partition position lag behind saved state orders/0 7 3 2h00m never free",
    ] {
        assert!(said.contains(part), "{part}:\n{seen}");
    }
    let one = outbox.cli(&["consumers", "--json"]).json()["consumers"][0].clone();
    let kinds = |problems: &Value| {
        let problems = problems.as_array().into_iter().flatten();
        problems.filter_map(|one| one["kind"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let wanted = ["paused", "dependency_out_of_reach", "dead_letters"];
    assert_eq!(kinds(&one["problems"]), wanted, "{one}");
    let set = &one["set_by"];
    assert_eq!((&set["actor"], &set["reason"]), (&"bo".into(), &"ledger is closed".into()), "{one}");
    assert_eq!(one["problems"][0]["since"], set["at"], "{one}");
    let behind = one["partitions"][0]["behind_seconds"].as_f64().expect("seconds");
    assert!((7_200.0..7_500.0).contains(&behind), "{behind}");
    // The same sentences where the outbox is looked at, and a look that fails takes nothing away.
    let status = outbox.cli(&["status", "--json"]).json()["outboxes"][0].clone();
    assert_eq!(kinds(&status["problems"]), wanted, "{status}");
    assert_eq!(status["problems"][0]["consumer"], "billing", "{status}");
    let text = outbox.cli(&["status"]).out;
    fits(&text);
    assert!(flat(&text).contains("consumer billing is paused by bo for "), "{text}");
    outbox.execute("alter table posthaste.inbox_partitions rename to elsewhere").await;
    let status = outbox.cli(&["status", "--json"]).json()["outboxes"][0].clone();
    assert_eq!(status["problems"], serde_json::json!([]), "{status}");
    outbox.execute("alter table posthaste.elsewhere rename to inbox_partitions").await;
    outbox.cli(&["resume", "--consumer", "billing"]);
    let one = outbox.cli(&["consumers", "--json"]).json()["consumers"][0].clone();
    assert!(one["set_by"].is_null() && kinds(&one["problems"]) == wanted[1..], "{one}");
    // A cause has the number by which its letters are found.
    let of = |args: &[&str]| outbox.cli(&[&["dead"], args, &["--consumer", "billing"]].concat());
    let causes = of(&["causes"]).out;
    fits(&causes);
    assert!(causes.starts_with("2 dead letters  4f1f2b3a4c5d6e71  rejected\n"), "{causes}");
    let found = of(&["list", "--fingerprint", "4f1f2b3a4c5d6e71", "--json"]).json();
    assert_eq!(found["dead"].as_array().map(Vec::len), Some(2), "{found}");
    let shown = of(&["show", "x1"]).out;
    assert!(shown.contains("\ncause         4f1f2b3a4c5d6e71\n"), "{shown}");
}

/// Before a relay has run there is no sink whose backlog could be told.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_no_relay_ever_read_is_told() {
    let Some(outbox) = Outbox::new().await else { return };
    let problems = || outbox.cli(&["status", "--json"]).json()["outboxes"][0]["problems"].clone();
    assert_eq!(problems(), serde_json::json!([]));
    outbox.append(&["t", "--payload", "x"]);
    outbox.append(&["t", "--payload", "y"]);
    let found = problems();
    assert_eq!((&found[0]["kind"], &found[0]["waiting"]), (&"no_relay".into(), &2.into()), "{found}");
    assert!(found[0]["since"].is_string() && found.as_array().map(Vec::len) == Some(1), "{found}");
    let text = flat(&outbox.cli(&["status"]).out);
    assert!(text.contains("no relay has run on this outbox yet; 2 events wait, the oldest for "), "{text}");
    let file = outbox.config(OUT);
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.events(2);
    daemon.stop();
    assert_eq!(problems(), serde_json::json!([]), "they were read");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_told_by_log_health_page_and_status() {
    let Some(outbox) = Outbox::new().await else { return };
    let file = outbox.config(OUT);
    let daemon = Daemon::start(&["--config", file.path()]);
    outbox.append(&["t", "--payload", "x"]);
    daemon.events(1);
    let pause = ["pause", "--sink", "out", "--reason", "broker upgrade", "--actor", "bo"];
    outbox.cli(&pause);
    daemon.says("sink out is paused: its events wait");
    outbox.append(&["t", "--payload", "y"]);
    let told = |body: &str| {
        let ready: Value = serde_json::from_str(body).expect("JSON");
        let why = ready["outboxes"][0]["why"].as_str().unwrap_or_default().to_owned();
        why.starts_with("sink out is paused by bo for ")
            && why.ends_with("s: \"broker upgrade\"; 1 event waits")
    };
    daemon.page("/readyz", |status, body| status == 200 && told(body));
    let seen = outbox.cli(&["status"]).out;
    fits(&seen);
    assert!(flat(&seen).contains("is paused by bo for ") && seen.contains("\"broker upgrade\""), "{seen}");
    assert_eq!(outbox.cli(&["status", "--json"]).json()["outboxes"][0]["problems"][0]["kind"], "paused");
    outbox.cli(&["resume", "--sink", "out"]);
    daemon.says("sink out is not paused any more");
    daemon.events(2);
    daemon.page("/readyz", |status, body| status == 200 && !body.contains("paused"));
    daemon.stop();
    let seen = outbox.cli(&["status"]).out;
    assert!(!seen.contains("last minute"), "no relay runs, so there is no rate: {seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_listed_counted_and_tried_now() {
    let Some(outbox) = Outbox::new().await else { return };
    let file = outbox.config(OUT);
    let daemon = Daemon::start(&["--config", file.path()]);
    let ids = ["a", "b", "c"]
        .map(|topic| outbox.append(&[topic, "--key", topic, "--payload", "x", "--deliver-at", "+1h"]));
    let listed = |args: &[&str]| {
        outbox.cli(&[&["deferred", "list", "--json"], args].concat()).json()["deferred"].clone()
    };
    let count = |list: &Value| list.as_array().map_or(0, Vec::len);
    daemon
        .page("/metrics", |_, body| body.contains("posthaste_deferred_events{") && count(&listed(&[])) == 3);
    daemon.stop();
    assert!(outbox.cli(&["events", "show", &ids[0]]).out.contains("deliver at    20"));
    // Two of them as a failed attempt leaves them.
    let (client, connection) =
        tokio_postgres::connect(&outbox.url(), tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    let failed = "update posthaste.deferred set reason = 'retry', attempts = 2, destination = 'mail.sent',
        error_class = 'transient', error_code = 'smtp.full', last_error = repeat('the mailbox is full ', 20),
        last_error_at = now(), history = '[{\"at\": \"2023-11-14T22:13:20.123456Z\", \"class\": \"transient\",
        \"code\": \"smtp.full\", \"error\": \"full\"}]' where topic in ('a', 'b')";
    client.batch_execute(failed).await.expect("updates");
    let page = outbox.cli(&["deferred", "list", "--limit", "2", "--json"]).json();
    assert_eq!((count(&page["deferred"]), &page["next"]), (2, &"out/2".into()), "{page}");
    assert_eq!(listed(&["--after", "out/2"])[0]["id"], ids[2]);
    assert_eq!(listed(&["--code", "smtp.full", "--topic", "b*"])[0]["id"], ids[1]);
    assert_eq!(count(&listed(&["--why", "scheduled"])), 1);
    let text = outbox.cli(&["deferred", "list"]).out;
    fits(&text);
    assert!(
        flat(&text).contains("waits (retry), for mail.sent, due 20") && text.contains("2 attempts"),
        "{text}"
    );
    let text = outbox.cli(&["deferred", "causes"]).out;
    fits(&text);
    assert!(
        text.starts_with("2 events  retry  out  mail.sent\n") && text.contains("smtp.full: the"),
        "{text}"
    );
    let text = outbox.cli(&["events", "show", &ids[0]]).out;
    fits(&text);
    let shown = flat(&text);
    assert!(shown.contains("tried 2023-11-14 22:13:20.123Z smtp.full (transient): full"), "{text}");
    assert!(shown.contains("out: waits (retry), due 20") && shown.contains("put aside 20"), "{text}");
    assert!(shown.contains("unrouted") == shown.contains("a route takes its topic"), "{text}");
    let slip = run(&["deferred", "list", "--sink", "nobody", "--url", &outbox.url()]);
    assert!(slip.code == 1 && slip.err.contains("there is no sink `nobody`"), "{}", slip.err);

    let retry = |args: &[&str]| run(&[&["deferred", "retry", "--url", &outbox.url()], args].concat());
    assert_eq!(retry(&["--reason", "x"]).code, 2, "a filter is needed");
    let dry = retry(&["--all", "--dry-run", "--json"]).ok().json();
    assert_eq!((&dry["goes"], &dry["left_alone"]["deferred.scheduled"]), (&2.into(), &1.into()), "{dry}");
    assert_eq!(retry(&["--all", "--reason", "mended"]).code, 2, "silence is no consent");
    let done = retry(&["--all", "--reason", "mended", "--yes", "--chunk", "1", "--json"]).ok().json();
    assert_eq!((&done["done"], &done["stopped"]), (&2.into(), &false.into()), "{done}");
    let trace = done["trace_id"].as_str().expect("a trace");
    let lines = outbox.cli(&["audit", "--trace", trace, "--json"]).json();
    assert_eq!(
        (lines["audit"].as_array().map(Vec::len), &lines["audit"][0]["action"]),
        (Some(3), &"retry".into()),
        "a line for each chunk, and one for the job"
    );
    let daemon = Daemon::start(&["--config", file.path()]);
    let mut sent: Vec<Value> = daemon.events(2).iter().map(|event| event["id"].clone()).collect();
    sent.sort_by_key(ToString::to_string);
    assert_eq!(sent, ids[..2]);
    daemon.stop();
    assert_eq!(outbox.cli(&["deferred", "list", "--code", "smtp.full"]).out, "nothing waits\n");
}

/// The same of a consumer's messages, which its members try.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_of_a_consumer_is_listed_counted_and_tried_now() {
    let Some(outbox) = Outbox::new().await else { return };
    let rows = "insert into posthaste.inbox_deferred (consumer, message_id, topic, partition, position, key, headers, reason, holds,
                  attempts, due_at, error_code, last_error, last_error_at)
                select 'billing', 'm-' || n, 'orders', 0, n, convert_to('k' || n, 'UTF8'), '[]', why, true, 2, due::timestamptz, code,
                       'the ledger said no', now()
                  from (values (1, 'retry', '2100-01-01', 'ledger.no'), (2, 'retry', '2100-01-01', 'ledger.no'),
                               (3, 'held', 'infinity', null), (4, 'outage', '2100-01-01', 'ledger.away')) as t (n, why, due, code);
                insert into posthaste.inbox_deferred (consumer, message_id, topic, partition, headers, reason, holds, due_at)
                values ('other', 'm-9', 'orders', 0, '[]', 'retry', true, '2100-01-01')";
    let (client, connection) =
        tokio_postgres::connect(&outbox.url(), tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    client.batch_execute(rows).await.expect("rows");
    let of = |args: &[&str]| {
        run(&[&["deferred"], args, &["--consumer", "billing", "--url", &outbox.url()]].concat())
    };
    let page = of(&["list", "--limit", "3", "--json"]).ok().json();
    let ids: Vec<&str> =
        page["deferred"].as_array().expect("a list").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids, ["m-1", "m-2", "m-3"], "{page}");
    let next = page["next"].as_str().expect("there is more");
    let rest = of(&["list", "--after", next, "--json"]).ok().json();
    assert_eq!((&rest["deferred"][0]["id"], &rest["next"]), (&"m-4".into(), &Value::Null), "{rest}");
    assert_eq!(
        (&rest["deferred"][0]["key"], &rest["deferred"][0]["attempts"]),
        (&"k4".into(), &2.into()),
        "{rest}"
    );
    let text = of(&["list", "--why", "held"]).ok().out;
    fits(&text);
    assert!(
        flat(&text).contains("m-3 billing/3 orders/0@3 key k3 waits (held), behind an earlier message"),
        "{text}"
    );
    let causes = of(&["causes", "--json"]).ok().json();
    let first = &causes["causes"][0];
    assert_eq!((&first["count"], &first["error_code"]), (&2.into(), &"ledger.no".into()), "{causes}");
    let text = of(&["causes"]).ok().out;
    fits(&text);
    assert!(
        flat(&text).contains("2 messages retry billing") && text.contains("the ledger said no"),
        "{text}"
    );
    assert_eq!(of(&["retry", "--reason", "x"]).code, 2, "a filter is needed");
    assert_eq!(of(&["list", "--sink", "out"]).code, 2, "a consumer has no sinks");
    let dry = of(&["retry", "--all", "--dry-run", "--json"]).ok().json();
    assert_eq!((&dry["goes"], &dry["left_alone"]["deferred.behind"]), (&3.into(), &1.into()), "{dry}");
    assert_eq!(dry["samples"][0]["id"], "m-1", "{dry}");
    let done = of(&["retry", "--code", "ledger.no", "--reason", "mended", "--yes", "--json"]).ok().json();
    assert_eq!((&done["done"], &done["stopped"]), (&2.into(), &false.into()), "{done}");
    let due = "select count(*) from posthaste.inbox_deferred where due_at <= now() and consumer = 'billing'";
    assert_eq!(client.query_one(due, &[]).await.expect("counted").get::<_, i64>(0), 2);
    let again = of(&["retry", "--code", "ledger.no", "--reason", "twice", "--yes"]).ok().out;
    assert!(again.contains("nothing would be tried now; left alone: 2 deferred.due"), "{again}");
    assert_eq!(of(&["list", "--code", "nothing"]).ok().out, "nothing waits\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_read_newest_first_by_actor_action_and_trace() {
    let Some(outbox) = Outbox::new().await else { return };
    let daemon = Daemon::start(&["--url", &outbox.url(), "--sink", "stdout"]);
    outbox.append(&["t", "--payload", "x"]);
    daemon.events(1);
    daemon.stop();
    assert_eq!(outbox.cli(&["audit", "--action", "pause"]).out, "no line of the audit matches\n");
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let act = |args: &[&str], traceparent: &str| {
        let mut command = posthaste(&[args, &["--sink", "stdout", "--url", &outbox.url()]].concat());
        finish(command.env("TRACEPARENT", traceparent).env("POSTHASTE_ACTOR", "eve")).ok()
    };
    let paused = act(&["pause", "--reason", "upgrade", "--json"], &format!("00-{trace}-00f067aa0ba902b7-01"));
    assert_eq!(paused.json()["trace_id"], trace);
    let resumed = act(&["resume", "--actor", "bo"], "00-not-a-trace");
    let printed = resumed.out.lines().last().and_then(|line| line.strip_prefix("trace ")).unwrap_or_default();
    assert!(printed.len() == 32 && printed != trace, "a random one: {}", resumed.out);
    let audit = |args: &[&str]| {
        let mut command = posthaste(&[&["audit", "--json", "--url", &outbox.url()], args].concat());
        // Who looks is not whom they ask for.
        let lines = finish(command.env("POSTHASTE_ACTOR", "somebody")).ok().json()["audit"].clone();
        let word = |line: &Value| line["action"].as_str().unwrap_or_default().to_owned();
        lines.as_array().expect("lines").iter().map(word).collect::<Vec<_>>()
    };
    assert_eq!(audit(&["--limit", "2"]), ["resume", "pause"]);
    assert_eq!(audit(&["--actor", "eve"]), ["pause"]);
    assert_eq!(audit(&["--trace", printed]), ["resume"]);
    assert_eq!(audit(&["--action", "pause", "--since", "1h"]), ["pause"]);
    assert_eq!(audit(&["--until", "1h"]), [""; 0]);
    let first = outbox.cli(&["audit", "--limit", "1", "--json"]).json();
    assert_eq!(audit(&["--before", &first["next"].to_string(), "--limit", "1"]), ["pause"]);
    let text = outbox.cli(&["audit", "--actor", "eve"]).out;
    fits(&text);
    assert!(text.contains("says eve  pause\n  \"upgrade\"\n") && text.contains(trace), "{text}");
}

/// On a running relay, over a reload and a restart, until it is cleared; and who rewound a sink.
#[tokio::test(flavor = "multi_thread")]
async fn a_tuning_is_applied_survives_and_is_cleared_and_a_rewind_has_a_name() {
    let Some(outbox) = Outbox::new().await else { return };
    let file = outbox.config(OUT);
    let daemon = Daemon::start(&["--config", file.path()]);
    outbox.append(&["t", "--payload", "x"]);
    daemon.events(1);
    let tune = |args: &[&str]| run(&[&["tune"], args, &["--config", file.path(), "--actor", "bo"]].concat());
    let refused = tune(&["set", "--poll-max-ms", "60000", "--reason", "slow"]);
    assert!(refused.code == 2 && flat(&refused.err).contains("between 500 and 50000"), "{}", refused.err);
    tune(&["set", "--poll-max-ms", "700", "--for", "2h", "--reason", "busy"]).ok();
    let said = daemon.says("relay.poll_max_ms is 700 instead of the file's 5000");
    assert!(said.contains("by bo, until ") && said.contains("busy"), "{said}");
    let shown = tune(&["show", "--json"]).ok().json();
    let one = &shown["settings"][1];
    assert_eq!((&one["file"], &one["in_force"], &one["tuned"]), (&5000.into(), &700.into(), &true.into()));
    assert_eq!((&one["set_by"]["actor"], &one["set_by"]["reason"]), (&"bo".into(), &"busy".into()));
    let text = tune(&[]).ok().out;
    fits(&text);
    assert!(flat(&text).contains("poll_max_ms 5000 700 bo"), "{text}");
    outbox.cli(&["pause", "--route", "all", "--for", "1h", "--reason", "mending", "--actor", "ann"]);
    assert!(daemon.says("route all is paused: its events wait").contains("by ann, until "));
    let seen = outbox.cli(&["status"]).out;
    assert!(flat(&seen).contains("route all is paused by ann for "), "{seen}");
    outbox.cli(&["resume", "--route", "all"]);
    daemon.says("route all is not paused any more");
    let rewind =
        ["lanes", "rewind", "--sink", "out", "--to", "earliest", "--reason", "again", "--actor", "ann"];
    outbox.cli(&rewind);
    daemon.says("rewound by ann: \"again\"");
    daemon.events(2);
    // A reload: what is tuned is judged by the new file, and holds again as soon as it fits.
    let base = std::fs::read_to_string(&file.0).expect("it is there");
    let reload = |poll_max_ms: u64| {
        let text = format!("{base}[relay]\npoll_max_ms = {poll_max_ms}\n");
        std::fs::write(&file.0, text).expect("it is ours");
        daemon.signal(Signal::HUP);
    };
    reload(8_000);
    daemon.says("tuning is passed over: poll_max_ms 700 is not between 800 and 80000");
    daemon.says("relay.poll_max_ms is 8000 again");
    reload(6_000);
    daemon.says("relay.poll_max_ms is 700 instead of the file's 6000");
    daemon.stop();
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.says("relay.poll_max_ms is 700 instead of the file's 6000");
    tune(&["clear", "--reason", "quiet"]).ok();
    daemon.says("relay.poll_max_ms is 6000 again, as the file says");
    daemon.stop();
    let audit = outbox.cli(&["audit", "--action", "tune", "--json"]).json();
    assert_eq!(audit["audit"][0]["detail"]["settings"]["poll_max_ms"], 700, "{audit}");
}

/// For a container's health check: 0 if it is well, 1 if not, or if nobody answers.
#[tokio::test(flavor = "multi_thread")]
async fn health_asks_the_process_on_this_host() {
    let Some(outbox) = Outbox::new().await else { return };
    let file = outbox.config(OUT);
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.page("/readyz", |status, _| status == 200);
    let address = daemon.address();
    let health = |args: &[&str]| run(&[&["health", "--address", &address], args].concat());
    assert!(health(&[]).ok().out.starts_with("outbox default: "), "{}", health(&[]).out);
    assert_eq!(health(&["--json"]).ok().json()["ready"], true);
    assert_eq!(health(&["--live"]).ok().out, "alive\n");
    daemon.stop();
    let gone = health(&[]);
    assert!(gone.code == 1 && flat(&gone.err).contains("either it does not run"), "{}", gone.err);
}
