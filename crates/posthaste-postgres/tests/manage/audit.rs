//! The audit as a topic: each line is an event, in the transaction of its act, whoever acts.

use crate::admin::somebody;
use crate::dead::bury;
use crate::setting::{Setting, connect};
use async_trait::async_trait;
use posthaste::admin::{Admin, DeadAct, DeadFilter};
use posthaste::consumer::store::{ConsumerRetention, InboxStore};
use posthaste::consumer::{Filter, HandlerError, Message};
use posthaste::sink::Level;
use posthaste::store::Store;
use posthaste_postgres::consumer::{Handler, Handlers, InboxOptions, PostgresInbox};
use posthaste_postgres::migrate::{self, TopicChange};
use posthaste_postgres::{PostgresConfig, PostgresStore};
use posthaste_testkit::require_service;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Transaction;

struct Nothing;

#[async_trait]
impl Handler for Nothing {
    async fn handle(&self, _: &mut Transaction<'_>, _: &Message<'_>) -> Result<(), HandlerError> {
        Ok(())
    }
}

const TOPIC: &str = "sys.audit.v1";
const LINE: &str = "insert into posthaste.audit (actor, action, reason, detail, trace_id) values ";

/// An outbox whose audit goes to a topic.
async fn set_up(setting: &Setting, topic: Option<&str>) -> migrate::Outcome {
    let config = PostgresConfig { audit_topic: topic.map(str::to_owned), ..setting.config.clone() };
    migrate::up(&config, &setting.roles).await.expect("a superuser may")
}

/// Keys of the events of a topic, in their order.
async fn keys(setting: &Setting, topic: &str) -> Vec<String> {
    let sql = "select key from posthaste.outbox where topic = $1 order by seq";
    setting.client.query(sql, &[&topic]).await.expect("read").iter().map(|row| row.get(0)).collect()
}

fn some(topic: &str) -> DeadFilter {
    DeadFilter { topic: Some(topic.to_owned()), ..DeadFilter::default() }
}

#[tokio::test]
async fn each_act_is_one_event_with_its_trace_as_the_key() {
    let setting = require_service!(Setting::new().await);
    set_up(&setting, Some(TOPIC)).await;
    bury(&setting, "s", 3).await;
    let act = somebody();
    setting.admin().await.dead_act(&some("t.1"), DeadAct::Discard, &act, 10).await.expect("done");
    let admin = connect(&setting.config_as(&setting.roles.admin).await.url).await;
    admin.batch_execute(&format!("{LINE} ('dba', 'fix', 'by hand', '{{}}', 'psql')")).await.expect("may");
    assert_eq!(keys(&setting, TOPIC).await, [act.trace_id.as_str(), "psql"]);
    let said = setting
        .text("select convert_from(payload, 'UTF8') from posthaste.outbox where key <> 'psql' limit 1")
        .await;
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&said["action"], &said["verified"]), (&"discard".into(), &false.into()), "{said}");
    assert_eq!((&said["trace_id"], &said["detail"]["count"]), (&act.trace_id.as_str().into(), &1.into()));
    // Without the act there is no event.
    admin
        .batch_execute(&format!("begin; {LINE} ('dba', 'fix', 'x', '{{}}', 'undone'); rollback"))
        .await
        .expect("may");
    // A line as a binary of version 3 writes it.
    admin
        .batch_execute(
            "insert into posthaste.audit (actor, action, reason, detail) values ('old', 'x', 'y', '{}')",
        )
        .await
        .expect("may");
    let keys = keys(&setting, TOPIC).await;
    assert_eq!(keys.len(), 3, "{keys:?}");
    assert_eq!(keys[2].len(), 32, "a trace of its own");
}

#[tokio::test]
async fn retention_is_heard_of_although_its_role_may_not_append() {
    let setting = require_service!(Setting::new().await);
    set_up(&setting, Some(TOPIC)).await;
    bury(&setting, "s", 2).await;
    setting.run("update posthaste.dead_letters set dead_at = now() - interval '2 days'").await;
    let mut config = setting.config_as(&setting.roles.relay).await;
    config.retention.dead_letters = Some(Duration::from_secs(86_400));
    let relay = connect(&config.url).await;
    relay.execute("select posthaste.append('x', 'y')", &[]).await.expect_err("a relay may not append");
    relay
        .execute("insert into posthaste.audit (actor, action, reason, detail, verified) values ('a', 'b', 'c', '{}', true)", &[])
        .await
        .expect_err("a relay verifies nobody");
    // Nor by a table of its own, with the trigger on it.
    relay.batch_execute("create temp table t (like posthaste.audit)").await.expect("its own");
    relay
        .batch_execute(
            "create trigger t after insert on t for each row execute function posthaste.publish_audit()",
        )
        .await
        .expect_err("it may not use the function");
    let store = PostgresStore::connect(config).await.expect("opens");
    assert_eq!(store.sweep().await.expect("swept").dead_purged, 2);
    assert_eq!(keys(&setting, TOPIC).await.len(), 1);
    assert_eq!(setting.number("select count(*) from posthaste.audit where action = 'purge'").await, 1);
}

#[tokio::test]
async fn nothing_that_a_line_holds_undoes_its_act_and_nothing_goes_round() {
    let setting = require_service!(Setting::new().await);
    set_up(&setting, Some(TOPIC)).await;
    let huge = "jsonb_build_object('x', repeat('y', 70000))";
    setting
        .run(&format!(
            "{LINE} (repeat('a', 3000000), 'x', repeat(e'\\x01', 3000000), {huge}, repeat('t', 9000))"
        ))
        .await;
    let sent = "select count(*) from posthaste.outbox where topic = 'sys.audit.v1'
                   and convert_from(payload, 'UTF8')::jsonb -> 'detail' = '{\"cut\": true}'";
    assert_eq!(setting.number(sent).await, 1);
    // Its own letters alone: nothing. With others: nobody hides an act behind them. Denied: nothing.
    bury(&setting, "s", 2).await;
    setting.run("update posthaste.dead_letters set topic = 'sys.audit.v1' where seq = 1").await;
    let admin = setting.admin().await;
    admin.dead_act(&some(TOPIC), DeadAct::Discard, &somebody(), 10).await.expect("done");
    assert_eq!(keys(&setting, TOPIC).await.len(), 1);
    setting
        .run(&format!("{LINE} ('a', 'x', 'y', '{{\"topics\": [\"sys.audit.v1\", \"t\"]}}', 'mixed')"))
        .await;
    setting
        .run("insert into posthaste.audit (actor, action, reason, detail, outcome) values ('a', 'x', 'y', '{}', 'denied')")
        .await;
    assert_eq!(keys(&setting, TOPIC).await[1..], ["mixed"]);
    // What cannot be appended at all is a warning: the act stands.
    setting.run("create or replace function posthaste.payload_bytes_max() returns integer language sql as 'select 5'").await;
    let other = connect(&setting.config.url).await;
    other.batch_execute(&format!("{LINE} ('a', 'x', 'y', '{{}}', 'unsent')")).await.expect("the act stands");
    assert_eq!(keys(&setting, TOPIC).await.len(), 2);
    assert_eq!(setting.number("select count(*) from posthaste.audit where trace_id = 'unsent'").await, 1);
}

/// A trace is whatever somebody wrote: what is no key of an event is none, and the line is sent all the same.
#[tokio::test]
async fn a_trace_that_is_no_key_is_sent_under_the_lines_number() {
    let setting = require_service!(Setting::new().await);
    set_up(&setting, Some(TOPIC)).await;
    for trace in [
        "''",
        "e'a\\nb'",
        "e'a\\rb'",
        "repeat('t', 201)",
        "repeat('\u{fc}', 101)",
        "null",
        "'gr\u{fc}n'",
        "repeat('t', 200)",
    ] {
        setting.run(&format!("{LINE} ('a', 'x', 'y', '{{}}', {trace})")).await;
    }
    let long = "t".repeat(200);
    assert_eq!(keys(&setting, TOPIC).await, ["1", "2", "3", "4", "5", "6", "gr\u{fc}n", &long]);
    // An outbox that takes shorter keys than that.
    setting
        .run(
            "create or replace function posthaste.key_bytes_max() returns integer language sql as 'select 8'",
        )
        .await;
    let other = connect(&setting.config.url).await;
    other.batch_execute(&format!("{LINE} ('a', 'x', 'y', '{{}}', 'too long')")).await.expect("fits");
    other
        .batch_execute(&format!("{LINE} ('a', 'x', 'y', '{{}}', 'too long!')"))
        .await
        .expect("the act stands");
    assert_eq!(keys(&setting, TOPIC).await[8..], ["too long", "10"]);
}

/// A consumer's letters do not leave in silence either (G6), and the audit's own go round for nobody.
#[tokio::test]
async fn the_retention_of_a_consumers_letters_is_heard_of() {
    let setting = require_service!(Setting::new().await);
    set_up(&setting, Some(TOPIC)).await;
    let letters = |topic: &str, ids: &str, holds: bool| {
        format!(
            "insert into posthaste.inbox_dead_letters (letter, consumer, message_id, topic, partition, order_id, headers,
               holds_key, attempts, disposition, error_class, error_code, error, fingerprint, dead_at)
             select posthaste.uuid_v7(), 'billing', id, '{topic}', 0, md5(id)::uuid, '[]', {holds}, 1, 'exhausted', 'permanent',
                    'e', 'e', 1, now() - interval '2 days' from unnest(array[{ids}]) id"
        )
    };
    setting.run(&letters("orders", "'a', 'b'", false)).await;
    setting.run(&letters("mails", "'c'", false)).await;
    setting.run(&letters("orders", "'d'", true)).await;
    let config = setting.config_as(&setting.roles.consumer).await;
    let handlers: Handlers = vec![(Filter::default(), Arc::new(Nothing))];
    let inbox =
        PostgresInbox::connect(config, InboxOptions::new("billing"), handlers).await.expect("connects");
    let retention = ConsumerRetention { dead_letter_days: 1, ..ConsumerRetention::default() };
    assert_eq!(inbox.sweep(retention, 100).await.expect("swept").letters, 4);
    let said = "select string_agg(concat_ws(' ', actor, action, detail ->> 'consumer', detail ->> 'count', detail ->> 'topics'),
                                  ', ' order by id) from posthaste.audit";
    let each =
        ["retention purge billing 3 [\"mails\", \"orders\"]", "retention purge billing 1 [\"orders\"]"];
    assert_eq!(setting.text(said).await, each.join(", "));
    assert_eq!(keys(&setting, TOPIC).await.len(), 2, "an event each");
    setting.run(&letters(TOPIC, "'e'", false)).await;
    setting.run(&letters(TOPIC, "'f'", true)).await;
    assert_eq!(inbox.sweep(retention, 100).await.expect("swept").letters, 2);
    assert_eq!(keys(&setting, TOPIC).await.len(), 2, "its own letters alone");
    assert_eq!(inbox.sweep(retention, 100).await.expect("swept").letters, 0);
    assert_eq!(setting.number("select count(*) from posthaste.audit").await, 4, "nothing is no act");
}

#[tokio::test]
async fn migrate_up_sets_the_topic_and_doctor_compares_it() {
    let setting = require_service!(Setting::new().await);
    let odd = "it's-posthaste.x\\$$";
    let change = |before: Option<&str>, now: Option<&str>| {
        Some(TopicChange { before: before.map(str::to_owned), now: now.map(str::to_owned) })
    };
    // One session for all: its cached plans must not keep a former topic.
    for (before, now) in [(None, Some(TOPIC)), (Some(TOPIC), Some(odd)), (Some(odd), None)] {
        assert_eq!(set_up(&setting, now).await.audit_topic, change(before, now));
        assert_eq!(set_up(&setting, now).await, migrate::Outcome::default(), "nothing left to do");
        assert_eq!(migrate::status(&setting.config).await.expect("readable").audit_topic.as_deref(), now);
        setting.run(&format!("{LINE} ('a', 'x', 'y', '{{}}', 'trace')")).await;
    }
    assert_eq!((keys(&setting, TOPIC).await.len(), keys(&setting, odd).await.len()), (1, 1));
    assert_eq!(setting.number("select count(*) from posthaste.outbox").await, 2);
    // Whoever does not own the function gets the statement.
    let mut stranger = setting.config_as(&setting.roles.admin).await;
    stranger.audit_topic = Some(TOPIC.to_owned());
    let outcome = migrate::up(&stranger, &setting.roles).await.expect("no failure");
    assert!(
        outcome.audit_topic.is_none() && outcome.to_run_by_hand[0].contains("audit_topic()"),
        "{outcome:?}"
    );
    let admin = posthaste_postgres::PostgresAdmin::connect(stranger).await.expect("opens");
    let found = admin.doctor().await.expect("examined");
    let found = found.iter().find(|one| one.check == "audit_topic").expect("it is checked");
    assert_eq!(found.level, Level::Warn);
    assert!(found.text.contains("go to no topic") && found.text.contains("migrate up"), "{}", found.text);
}
