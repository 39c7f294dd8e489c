//! The audit as a topic: each line is an event, in the transaction of its act.

use crate::fixture::{SqliteFixture, actor};
use posthaste::admin::{Admin, Control, ControlTarget};
use posthaste::sink::Level;
use posthaste::store::Store;
use posthaste_sqlite::{SqliteAdmin, SqliteConfig, SqliteStore, migrate};
use rusqlite::Connection;
use std::time::Duration;

const TOPIC: &str = "sys.audit.v1";

fn to(fixture: &SqliteFixture, topic: Option<&str>) -> SqliteConfig {
    SqliteConfig { audit_topic: topic.map(str::to_owned), ..fixture.config() }
}

fn keys(connection: &Connection, topic: &str) -> Vec<String> {
    let mut statement =
        connection.prepare("select key from posthaste_outbox where topic = ?1 order by seq").expect("valid");
    let keys = statement.query_map([topic], |row| row.get(0)).expect("read");
    keys.collect::<rusqlite::Result<_>>().expect("keys")
}

fn line(connection: &Connection, detail: &str, trace: Option<&str>) {
    let sql = "insert into posthaste_audit (at, actor, action, reason, detail, trace_id) values (1, 'a', 'x', 'y', ?1, ?2)";
    connection.execute(sql, (detail, trace)).expect("nothing that a line holds undoes its act");
}

#[tokio::test]
async fn acts_and_retention_are_events_with_their_trace_as_the_key() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    migrate::up(&to(&fixture, Some(TOPIC))).expect("up");
    let (who, file) = (actor(), fixture.connect());
    let target = ControlTarget::Route("r".to_owned());
    fixture.admin().await.control(&target, &Control::Pause, &who).await.expect("paused");
    assert_eq!(keys(&file, TOPIC), [who.trace_id.as_str()]);
    let payload: Vec<u8> =
        file.query_row("select payload from posthaste_outbox", [], |row| row.get(0)).expect("a payload");
    let said: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!((&said["action"], &said["verified"]), (&"pause".into(), &false.into()), "{said}");
    // Without the act there is no event.
    file.execute_batch("begin").expect("begin");
    line(&file, "{}", Some("undone"));
    file.execute_batch("rollback").expect("rolled back");
    // Letters of the audit itself go without an event, others with one.
    let mut config = fixture.config();
    config.retention.dead_letters = Some(Duration::from_secs(60));
    let store = SqliteStore::connect(config).await.expect("opens");
    for (topic, events) in [(TOPIC, 1), ("t", 2)] {
        file.execute(
            "insert into posthaste_dead_letters (sink, seq, slot, id, topic, appended_at, route, holds_key, attempts,
                                                 error_class, error_code, error, dead_at)
             values ('s', 1, 0, 'i', ?1, 0, 'r', 0, 1, 'permanent', 'x.no', 'no', 0)",
            [topic],
        )
        .expect("buried");
        assert_eq!(store.sweep().await.expect("swept").dead_purged, 1);
        assert_eq!(keys(&file, TOPIC).len(), events, "{topic}");
    }
}

#[tokio::test]
async fn nothing_that_a_line_holds_undoes_its_act_and_nothing_goes_round() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    migrate::up(&to(&fixture, Some(TOPIC))).expect("up");
    let file = fixture.connect();
    let huge = format!("{{\"x\":\"{}\"}}", "ü".repeat(40_000));
    for detail in ["no JSON \0 at all", "", "[1]", "{\"topics\": 7}", huge.as_str()] {
        line(&file, detail, Some("odd"));
    }
    line(&file, "{}", Some(&"t".repeat(9_000)));
    // As a binary of version 2 writes it.
    file.execute_batch(
        "insert into posthaste_audit (at, actor, action, reason, detail) values (1, 'a', 'x', 'y', '{}')",
    )
    .expect("written");
    assert_eq!(keys(&file, TOPIC), ["odd", "odd", "odd", "odd", "odd", "6", "7"]);
    line(&file, &format!("{{\"topics\": [\"{TOPIC}\"]}}"), Some("own"));
    line(&file, &format!("{{\"topics\": [\"{TOPIC}\", \"t\"]}}"), Some("mixed"));
    file.execute_batch(
        "insert into posthaste_audit (at, actor, action, reason, detail, outcome) values (1, 'a', 'x', 'y', '{}', 'denied')",
    )
    .expect("written");
    assert_eq!(keys(&file, TOPIC)[7..], ["mixed"]);
}

/// A trace is whatever somebody wrote: what is no key of an event is none, and the line is sent all the same.
#[tokio::test]
async fn a_trace_that_is_no_key_is_sent_under_the_lines_number() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    migrate::up(&to(&fixture, Some(TOPIC))).expect("up");
    let (file, long) = (fixture.connect(), "t".repeat(201));
    for trace in ["", "a\nb", "a\rb", "a\0b", &long] {
        line(&file, "{}", Some(trace));
    }
    line(&file, "{}", None);
    line(&file, "{}", Some("gr\u{fc}n"));
    line(&file, "{}", Some(&long[1..]));
    assert_eq!(keys(&file, TOPIC), ["1", "2", "3", "4", "5", "6", "gr\u{fc}n", &long[1..]]);
}

#[tokio::test]
async fn migrate_up_sets_the_topic_and_doctor_compares_it() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let file = fixture.connect();
    for (before, now) in [(None, Some(TOPIC)), (Some(TOPIC), Some("other")), (Some("other"), None)] {
        let change = (before.map(str::to_owned), now.map(str::to_owned));
        assert_eq!(migrate::up(&to(&fixture, now)).expect("up").audit_topic, Some(change));
        assert_eq!(migrate::up(&to(&fixture, now)).expect("up").audit_topic, None, "nothing left to do");
        assert_eq!(migrate::status(&fixture.config()).expect("a status").audit_topic.as_deref(), now);
        line(&file, "{}", Some("trace"));
    }
    assert_eq!((keys(&file, TOPIC).len(), keys(&file, "other").len()), (1, 1));
    let admin = SqliteAdmin::connect(to(&fixture, Some(TOPIC))).await.expect("opens");
    let found = admin.doctor().await.expect("examined");
    let found = found.iter().find(|one| one.check == "audit_topic").expect("it is checked");
    assert_eq!(found.level, Level::Warn);
    assert!(found.text.contains("go to no topic") && found.text.contains("migrate up"), "{}", found.text);
}
