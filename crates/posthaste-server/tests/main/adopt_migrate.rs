//! `posthaste adopt migrate` by command: both outboxes in one file, a step at a time.

use crate::adopt::{PLAN, Service, TALKIE};
use crate::binary::{Ended, Scratch, run};
use crate::daemon::Daemon;
use std::collections::BTreeSet;

const ENDS: &str = "[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n";

impl Service {
    /// Both outboxes; the table is reached by this address.
    fn both(&self, url: &str, preset: &str) -> Scratch {
        Scratch::new(&format!(
            "[[outbox]]\nname = \"legacy\"\nurl = \"{url}\"\n[outbox.adopt]\npreset = \"{preset}\"\n[[outbox]]\nname = \"log\"\nurl = \"{}\"\n{ENDS}",
            self.database.url()
        ))
    }

    async fn write(&self, rows: i64) {
        let sql = format!(
            "insert into outbox (topic, key, payload_json) select 't', 'k', to_jsonb(g) from generate_series(1, {rows}) g"
        );
        self.client.batch_execute(&sql).await.expect("rows");
    }
}

/// Runs `adopt migrate` with these words, and looks that what it says fits a terminal.
fn step(file: &Scratch, words: &[&str]) -> Ended {
    let ended = run(&[&["adopt", "migrate"], words, &["--config", file.path()]].concat());
    if !words.contains(&"--json") && !words.contains(&"sql") {
        for line in ended.out.lines() {
            assert!(line.chars().count() <= 80, "{words:?}: {line}");
        }
    }
    ended
}

#[track_caller]
fn refused(ended: &Ended, code: i32, text: &str) {
    assert_eq!(ended.code, code, "{}{}", ended.out, ended.err);
    assert!(ended.err.contains(text), "{}", ended.err);
    assert!(ended.out.is_empty(), "{}", ended.out);
}

/// From the first look to the last row, as an operator does it.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_moves_to_the_log() {
    let Some(service) = Service::new(TALKIE).await else { return };
    let name = service.database.name().to_owned();
    let alone = Scratch::new(&format!(
        "[outbox]\nurl = \"{}\"\n[outbox.adopt]\npreset = \"talkie\"\n{ENDS}",
        service.database.url()
    ));
    refused(&step(&alone, &[]), 2, "no log is configured beside outbox `default`");
    // A relay that may read and mark, and nothing else.
    let role = format!("relay_{name}");
    service
        .client
        .batch_execute(&format!("create role {role} login; grant select, update on outbox to {role}"))
        .await
        .expect("a role");
    let file = service.both(&service.database.url_as(&role), "talkie");
    refused(&step(&file, &[]), 1, "there is no log in schema posthaste");
    run(&["migrate", "up", "--outbox", "log", "--config", file.path()]).ok();
    service
        .client
        .batch_execute(&format!(
            "grant usage on schema posthaste to {role}; grant select on posthaste.state to {role}"
        ))
        .await
        .expect("a right to look");
    let first = step(&file, &[]).ok().out;
    assert!(
        first.contains("trigger  none") && first.contains("next: posthaste adopt migrate start"),
        "{first}"
    );

    let start = ["start", "--reason", "to the log", "--yes"];
    refused(&step(&file, &start), 1, "sink `out` has never read this log");
    service.write(30).await;
    let daemon = Daemon::start(&["--config", file.path()]);
    service
        .until("(select count(*) > 0 from posthaste.lanes where sink = 'out' and owner is not null)")
        .await;
    refused(&step(&file, &start[..3]), 2, "say --yes");
    refused(&step(&file, &start), 1, "lacks: TRIGGER on");
    let owner = service.database.url();
    let owner = ["--owner-url", owner.as_str()];
    let started = step(&file, &[&start[..], &owner].concat()).ok();
    assert!(started.out.contains("as they are committed"), "{}", started.out);
    assert!(started.out.contains("cannot TRUNCATE or ALTER"), "{}", started.out);
    assert!(!started.err.contains("could not be tried"), "{}", started.err);
    assert!(started.err.contains("--hold keeps the log's sinks back"), "{}", started.err);
    let again = step(&file, &[&start[..], &owner, &["--json"]].concat()).ok().json();
    assert_eq!((&again["step"], &again["done"]), (&"start".into(), &"before".into()));

    service.write(30).await;
    service.until("(select count(*) = 60 from outbox where status = 'published')").await;
    let standing = step(&file, &["--json"]).ok().json();
    assert_eq!(
        (&standing["standing"]["trigger"], &standing["drained"]),
        (&"on".into(), &true.into()),
        "{standing}"
    );
    assert_eq!(standing["next"], "posthaste adopt migrate finish");
    let finished = step(&file, &[&["finish"][..], &owner].concat()).ok().out;
    assert!(finished.contains("is drained") && finished.contains("name = \"legacy\""), "{finished}");
    assert!(finished.contains("session_replication_role = replica"), "{finished}");
    let question =
        finished.split_once("This tells how much:").map(|(_, question)| question).expect("a question");
    let (question, _trace) = question.split_once("\ntrace ").expect("the act has a trace");
    let left: i64 = service.client.query_one(question, &[]).await.expect("it runs as it is printed").get(0);
    assert_eq!(left, 0);
    let stopped = step(&file, &[&["stop", "--reason", "enough", "--yes"][..], &owner].concat()).ok().out;
    assert!(stopped.contains("stay in the table again"), "{stopped}");
    service.write(30).await;

    let events = daemon.events(90);
    let ids: BTreeSet<&str> = events.iter().filter_map(|event| event["id"].as_str()).collect();
    assert_eq!((events.len(), ids.len()), (90, 90), "each once");
    daemon.stop();
    let in_log: i64 =
        service.client.query_one("select count(*) from posthaste.outbox", &[]).await.expect("the log").get(0);
    assert_eq!(in_log, 30);
    service
        .client
        .batch_execute(&format!("drop owned by {role}; drop role {role}"))
        .await
        .expect("the role goes");
}

/// A preset's envelope is a default of the adopted outbox alone: the log's route has to say it. And the
/// script for a DBA.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_would_send_something_else_is_refused() {
    let Some(service) = Service::new(PLAN).await else { return };
    let file = service.both(&service.database.url(), "outbox-events");
    run(&["migrate", "up", "--outbox", "log", "--config", file.path()]).ok();
    let start = ["start", "--reason", "x", "--yes"];
    refused(&step(&file, &start), 2, "write envelope = \"message-id\" into it");
    let sql = step(&file, &["sql"]).ok().out;
    service.client.batch_execute(&sql).await.expect("it runs as it is printed");
    let standing = step(&file, &["--json"]).ok().json();
    assert_eq!(standing["standing"]["trigger"], "on", "{standing}");
    let finish = step(&file, &["finish", "--json"]).ok().json();
    assert_eq!((&finish["step"], &finish["done"]), (&"finish".into(), &"now".into()));
    service.client.batch_execute("insert into outbox_events (aggregate_type, aggregate_id, event_type, payload, status) values ('o', gen_random_uuid(), 't', '{}', 'PENDING')").await.expect("a row");
    service
        .client
        .batch_execute("update outbox_events set status = 'PENDING'")
        .await
        .expect("set back by hand");
    let late = step(&file, &["finish"]);
    refused(&late, 1, "is not drained: 1 wait now");
    // A row whose time has not come, and one that has none.
    service.client.batch_execute("update outbox_events set next_attempt_at = now() + interval '1 day'; set session_replication_role = replica; insert into outbox_events (aggregate_type, aggregate_id, event_type, payload, next_attempt_at) values ('o', gen_random_uuid(), 't', '{}', 'infinity')").await.expect("rows");
    refused(&step(&file, &["finish"]), 1, "--anyway");
    let anyway = step(&file, &["finish", "--anyway"]).ok().out;
    assert!(anyway.contains("next attempt: 1\n") && anyway.contains("null or infinity: 1\n"), "{anyway}");
}
