//! The tables of consumers: from the version before, what each role may do with them, what their functions
//! answer, and how fast.

use crate::setting::{Setting, connect, fails_with, number, roles_of};
use posthaste::sink::Level;
use posthaste_postgres::doctor::{Bounds, CONSUMER_CHECKS, examine_consumer};
use posthaste_postgres::migrate::{self, SCHEMA_VERSION};
use posthaste_postgres::{PostgresAdmin, PostgresConfig};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use serde_json::Value;
use std::time::Duration;
use tokio_postgres::Client;

/// "permission denied".
const DENIED: &str = "42501";
/// A deferred message: (id, key, holds, due_at).
const DEFERRED: &str = "insert into posthaste.inbox_deferred
  (consumer, message_id, topic, partition, order_id, headers, reason, holds, due_at)
  select 'c', id, 't', 0, md5(key)::uuid, '[]', 'retry', holds, due::timestamptz";
/// A dead letter: (id, key, holds_key), numbered by its default.
const LETTERS: &str = "insert into posthaste.inbox_dead_letters
  (letter, consumer, message_id, topic, partition, order_id, headers, holds_key, attempts, disposition, error_class,
   error_code, error, fingerprint)
  select posthaste.uuid_v7(), 'c', id, 't', 0, md5(key)::uuid, '[]', holds, 1, 'exhausted', 'permanent', 'e', 'e', 1";

async fn texts(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// A database of the version before: the script, up to the third version.
pub(crate) async fn version_2(database: &TestDatabase, schema: &str) -> (PostgresConfig, Client) {
    let config = PostgresConfig { schema: schema.to_owned(), ..PostgresConfig::new(database.url()) };
    let script = migrate::sql(schema, &roles_of(database), &config.limits).expect("a good name");
    let (before, _) = script.split_once("-- Version 3:").expect("a script in parts");
    let client = database.connect().await.expect("reachable");
    client.batch_execute(&format!("{before} commit;")).await.expect("version 2");
    assert_eq!(migrate::status(&config).await.expect("reachable").current, Some(2));
    (config, client)
}

#[tokio::test]
async fn marks_of_the_version_before_are_kept_and_not_rewritten() {
    let database = require_service!(TestDatabase::create().await);
    let (config, client) = version_2(&database, "posthaste").await;
    let marks = "insert into posthaste.inbox (consumer, message_id) select 'c', n::text from generate_series(1, 1000) n";
    client.batch_execute(marks).await.expect("marks");
    let file = "select pg_relation_filenode('posthaste.inbox')::bigint";
    let before = number(&client, file).await;
    let outcome = migrate::up(&config, &roles_of(&database)).await.expect("permitted");
    assert_eq!(
        outcome.applied,
        [(3, "consumer"), (4, "operations"), (5, "gateway")].map(|(n, name)| (n, name.to_owned()))
    );
    assert_eq!(number(&client, file).await, before, "the table was rewritten");
    let old = "select count(*) from posthaste.inbox where outcome = 'd' and xid is null";
    assert_eq!(number(&client, old).await, 1000);

    let first = "select posthaste.admit('c', '1000'), posthaste.admit('c', '1001', 'orders', 3, 7),
                        pg_current_xact_id()::text";
    let row = client.query_one(first, &[]).await.expect("admitted");
    assert_eq!((row.get::<_, bool>(0), row.get::<_, bool>(1)), (false, true));
    let mark = "select concat_ws(' ', outcome, topic, partition, position, xid)
                  from posthaste.inbox where message_id = '1001'";
    assert_eq!(texts(&client, mark).await, [format!("d orders 3 7 {}", row.get::<_, String>(2))]);
    let oldest = "select coalesce(oldest::text, '-') from posthaste.migrations order by version";
    assert_eq!(texts(&client, oldest).await, ["-", "-", "2", "3", "4"]);
    client
        .batch_execute("insert into posthaste.controls (kind, name, paused) values ('consumer', 'c', true)")
        .await
        .expect("a consumer can be paused");
    let unknown = "insert into posthaste.controls (kind, name) values ('moon', 'c')";
    assert_eq!(fails_with(&client, unknown).await, "23514");
}

#[tokio::test]
async fn another_schemas_functions_find_its_tables() {
    let database = require_service!(TestDatabase::create().await);
    let (config, client) = version_2(&database, "My Outbox").await;
    migrate::up(&config, &roles_of(&database)).await.expect("permitted");
    let here = |sql: &str| sql.replace("posthaste.", "\"My Outbox\".");
    let rows =
        here(&format!("{DEFERRED} from (values ('m', 'k', true, '-infinity')) v (id, key, holds, due)"));
    client.batch_execute(&rows).await.expect("a deferred message");
    client
        .batch_execute(&here(&format!("{LETTERS} from (values ('n', 'l', true)) v (id, key, holds)")))
        .await
        .expect("a letter");
    for (sql, answer) in [
        ("select posthaste.admit('c', 'm')::int::bigint", 1),
        ("select count(*) from posthaste.marks('c', '{m,n}')", 1),
        (
            "select count(*) from posthaste.held('c', '{t,t,t}', array[md5('k'), md5('l'), md5('m')]::uuid[])",
            2,
        ),
        ("select count(*) from posthaste.due_heads('c', 10)", 1),
        (
            "select posthaste.json(row('i', 'c', 't', 0, 1, null, null, null, '[]', null, '7', null, 1)::posthaste.message)::int::bigint",
            7,
        ),
        (
            "select count(*) from jsonb_object_keys(posthaste.caused(row('i', 'c', 't', 0, 1, null, null, null,
               '[[\"saga-id\", \"s\"]]', null, '7', null, 1)::posthaste.message))",
            3,
        ),
    ] {
        assert_eq!(number(&client, &here(sql)).await, answer, "{sql}");
    }
}

/// F89: each version says which is the oldest that can live with it.
#[tokio::test]
async fn a_newer_schema_is_lived_with_if_it_says_so() {
    let setting = require_service!(Setting::new().await);
    let ours = SCHEMA_VERSION;
    let cases = [
        (1, Some(ours), true),
        (1, Some(ours + 1), false),
        (9, Some(ours + 2), false),
        (9, Some(1), true),
        (1, None, true),
        (2, None, false),
    ];
    for (ahead, oldest, suits) in cases {
        let (version, oldest) = (ours + ahead, oldest.map_or("null".to_owned(), |oldest| oldest.to_string()));
        setting
            .run(&format!(
                "delete from posthaste.migrations where version > {ours};
                 insert into posthaste.migrations (version, name, checksum, oldest) values ({version}, 'future', 'x', {oldest})"
            ))
            .await;
        let connected = PostgresAdmin::connect(setting.config.clone()).await.map(drop);
        assert_eq!(connected.is_ok(), suits, "version {version}, oldest {oldest}: {connected:?}");
        if let Err(refused) = connected {
            assert!(refused.to_string().contains("install a newer posthaste"), "{refused}");
        }
    }
}

#[tokio::test]
async fn a_consumer_keeps_what_an_application_cannot_touch() {
    let setting = require_service!(Setting::new().await);
    let [app, consumer, admin] = [&setting.roles.app, &setting.roles.consumer, &setting.roles.admin]
        .map(|role| async { connect(&setting.config_as(role).await.url).await });
    let (app, consumer, admin) = (app.await, consumer.await, admin.await);
    let keeps = [
        format!("{DEFERRED} from (values ('m', 'k', true, '-infinity')) v (id, key, holds, due)"),
        format!("{LETTERS} from (values ('n', 'l', true)) v (id, key, holds)"),
        "update posthaste.inbox_deferred set due_at = now()".to_owned(),
        "update posthaste.inbox_dead_letters set holds_key = false".to_owned(),
        "insert into posthaste.inbox_partitions (consumer, topic, partition) values ('c', 't', 0)
           on conflict do nothing"
            .to_owned(),
        "update posthaste.inbox_partitions set position = 1".to_owned(),
        "select posthaste.held('c', '{t}', array[md5('k')]::uuid[])".to_owned(),
        "select posthaste.due_heads('c', 1)".to_owned(),
        "insert into posthaste.inbox (consumer, message_id, outcome) values ('c', 'x', 'x')".to_owned(),
        "update posthaste.inbox set outcome = 'w' where outcome = 'x'".to_owned(),
        "delete from posthaste.inbox_dead_letters".to_owned(),
        "delete from posthaste.inbox_deferred".to_owned(),
        "delete from posthaste.inbox".to_owned(),
        "insert into posthaste.audit (actor, action, reason, detail) values ('c', 'replay', 'r', '{}')"
            .to_owned(),
        "select * from posthaste.controls".to_owned(),
        "select max(version) from posthaste.migrations".to_owned(),
        "select * from posthaste.processes".to_owned(),
    ];
    for (who, client) in [("consumer", &consumer), ("admin", &admin)] {
        for sql in &keeps {
            client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{who}: {sql}: {error:?}"));
        }
    }
    let report = "insert into posthaste.processes values ('p', 'consumer', 'c', '1', 'h', now(), now(), '{}')
                    on conflict (process) do update set seen_at = now()";
    let works = [
        report,
        "delete from posthaste.processes",
        "select posthaste.append('dead', 'x', key => 'k', idempotency_key => 'once')",
        "select posthaste.admit('c', 'y')",
        "select posthaste.caused(row('i', 'c', 't', 0, 1, null, null, null, '[]', null, '7', null, 1)::posthaste.message)",
    ];
    for sql in works {
        consumer.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    let not_of_a_consumer = [
        "select count(*) from posthaste.outbox",
        "insert into posthaste.outbox (seq, topic) values (1, 't')",
        "select nextval('posthaste.outbox_segment')",
        "select * from posthaste.dead_letters",
        "insert into posthaste.controls (kind, name) values ('consumer', 'c')",
        "delete from posthaste.audit",
        "select * from posthaste.audit",
        "insert into posthaste.migrations (version, name, checksum) values (99, 'x', 'x')",
    ];
    for sql in not_of_a_consumer {
        assert_eq!(fails_with(&consumer, sql).await, DENIED, "{sql}");
    }
    // Whoever only appends marks, and looks at no letter, let alone takes one away.
    app.batch_execute("select posthaste.admit('c', 'z'); select * from posthaste.marks('c', '{z}')")
        .await
        .expect("a mark");
    let reads = [
        "inbox_deferred",
        "inbox_dead_letters",
        "inbox_partitions",
        "processes",
        "controls",
        "migrations",
        "audit",
    ];
    let reads = reads.iter().flat_map(|table| {
        [format!("select * from posthaste.{table}"), format!("delete from posthaste.{table}")]
    });
    let writes = [
        keeps[0].as_str(),
        keeps[1].as_str(),
        keeps[6].as_str(),
        keeps[7].as_str(),
        keeps[9].as_str(),
        report,
    ];
    for sql in reads.chain(writes.map(str::to_owned)) {
        assert_eq!(fails_with(&app, &sql).await, DENIED, "{sql}");
    }
    assert_eq!(
        fails_with(&admin, "select posthaste.append('t', 'x')").await,
        DENIED,
        "an admin cannot append"
    );
}

#[tokio::test]
async fn a_key_is_held_by_what_waits_and_by_letters_that_hold() {
    let setting = require_service!(Setting::new().await);
    setting
        .run(&format!(
            "{DEFERRED} from (values ('1', 'waits', true, 'infinity'), ('2', 'replayed', false, 'infinity')) v (id, key, holds, due);
             {LETTERS} from (values ('3', 'holds', true), ('4', 'lets go', false)) v (id, key, holds)"
        ))
        .await;
    let ask = "select string_agg(held::text, ' ' order by held) from posthaste.held($1, $2, array(
                 select md5(key)::uuid from unnest($3::text[]) with ordinality k (key, n) order by n)) held";
    let keys = ["free", "waits", "replayed", "holds", "lets go", "waits"];
    let held = async |consumer: &str, topic: &str| -> Option<String> {
        let topics = vec![topic; keys.len()];
        setting
            .client
            .query_one(ask, &[&consumer, &topics, &keys.as_slice()])
            .await
            .expect("an answer")
            .get(0)
    };
    assert_eq!(held("c", "t").await.as_deref(), Some("2 4 6"));
    assert_eq!((held("other", "t").await, held("c", "other").await), (None, None));
    let without = "select count(*) from posthaste.held('c', '{t}', array[null]::uuid[])";
    assert_eq!(setting.number(without).await, 0, "nothing waits for a message without a key");
}

#[tokio::test]
async fn due_heads_are_the_first_of_their_queues() {
    let setting = require_service!(Setting::new().await);
    let due = |rows: &str| format!("{DEFERRED} from (values {rows}) v (id, key, holds, due)");
    // In the order of their numbers. A letter's number is drawn from the same sequence.
    for sql in [
        due(
            "('a1', 'a', true, 'yesterday'), ('a2', 'a', true, 'yesterday'), ('a3', 'a', false, 'yesterday')",
        ),
        due("('a4', 'a', false, 'yesterday'), ('b1', 'b', true, 'infinity'), ('b2', 'b', true, 'yesterday')"),
        due("('c1', 'c', true, 'yesterday')"),
        format!(
            "{LETTERS} from (values ('c2', 'c', true), ('d1', 'd', true), ('e1', 'e', false)) v (id, key, holds)"
        ),
        due("('c3', 'c', true, 'yesterday'), ('d2', 'd', true, 'yesterday'), ('e2', 'e', true, 'yesterday')"),
        due(
            "('f1', null, true, 'yesterday'), ('f2', null, true, 'yesterday'), ('f3', null, true, 'infinity')",
        ),
        due("('g1', 'g', true, 'tomorrow'), ('h1', 'h', true, 'yesterday')"),
    ] {
        setting.run(&sql).await;
    }
    setting.run("update posthaste.inbox_deferred set consumer = 'other' where message_id = 'h1'").await;
    let heads = "select message_id from posthaste.due_heads('c', 100) order by message_id";
    assert_eq!(texts(&setting.client, heads).await, ["a1", "a3", "c1", "e2", "f1", "f2"]);
    let some = "select count(*) from posthaste.due_heads('c', 2)";
    assert_eq!(setting.number(some).await, 2);
    // Another member leaves out what is in somebody's hands.
    setting.run("begin").await;
    assert_eq!(texts(&setting.client, heads).await.len(), 6);
    let other = setting.database.connect().await.expect("reachable");
    assert_eq!(texts(&other, heads).await, Vec::<String>::new());
    setting.run("commit").await;
    assert_eq!(texts(&other, heads).await.len(), 6);
}

#[tokio::test]
async fn a_payload_that_is_no_json_is_rejected() {
    let setting = require_service!(Setting::new().await);
    let json = |payload: &str| {
        format!(
            "select posthaste.json(row('m-1', 'c', 't', 0, 1, null, null, null, '[]', null, {payload}, null, 1)::posthaste.message)::text"
        )
    };
    assert_eq!(texts(&setting.client, &json("'{\"secret\": [1]}'")).await, ["{\"secret\": [1]}"]);
    assert_eq!(texts(&setting.client, &json("'null'")).await, ["null"]);
    let broken = [
        "'{\"secret\": '",
        "'\\xff'",
        "'\"\\\\u0000\"'",
        "convert_to(repeat('[', 1000000), 'UTF8')",
        "''",
        "null",
    ];
    for payload in broken {
        let error = setting.client.query_one(&json(payload), &[]).await.expect_err(payload);
        let error = error.as_db_error().expect("the server's");
        assert_eq!(error.code().code(), "PH001", "{payload}: {error:?}");
        assert!(error.message().contains("m-1") && !format!("{error:?}").contains("secret"), "{error:?}");
    }
}

const BATCH: usize = 64;

/// The first statement of a consumer's transaction.
const T1A: &str = "with m as (
   select * from unnest($2::text[], $3::text[], $4::text[]) with ordinality as m (id, topic, key, n)),
 held as materialized (select h from posthaste.held($1, $3, array(select md5(key)::uuid from unnest($4) k (key))) as h),
 ins as (insert into posthaste.inbox (consumer, message_id, topic)
         select $1, id, topic from m where n not in (select h from held) order by id
         on conflict do nothing returning message_id)
 select n, n in (select h from held), id in (select message_id from ins) from m order by n";

/// How many pages a prepared statement touches, that of the functions it calls included. Unlike a time it is
/// the same on a busy machine. The least of some runs: the first ones look into the catalog, too.
async fn pages(client: &Client, call: &str) -> i64 {
    let mut least = i64::MAX;
    // A statement is planned for its parameters five times before one plan is kept for all.
    for _ in 0..8 {
        client.batch_execute("begin").await.expect("begun");
        let explain = format!("explain (analyze, buffers, timing off, format json) execute {call}");
        let said = client.query_one(&explain, &[]).await.expect("an answer").get::<_, Value>(0);
        client.batch_execute("rollback").await.expect("rolled back");
        let plan = &said[0]["Plan"];
        let count = |what: &str| plan[what].as_i64().unwrap_or_else(|| panic!("{what}: {said}"));
        least = least.min(count("Shared Hit Blocks") + count("Shared Read Blocks"));
    }
    least
}

/// F84: statements that were planned while the tables were empty, and analysed empty, touch as many pages
/// when there are 10^5 rows.
#[tokio::test]
async fn looks_touch_as_much_of_full_tables_as_of_empty_ones() {
    let setting = require_service!(Setting::new().await);
    // Nobody else analyses.
    for table in ["inbox", "inbox_deferred", "inbox_dead_letters"] {
        setting
            .run(&format!(
                "alter table posthaste.{table} set (autovacuum_enabled = false); analyze posthaste.{table}"
            ))
            .await;
    }
    let list = |what: &str| {
        format!("'{{{}}}'", (0..BATCH).map(|n| format!("{what}{n}")).collect::<Vec<_>>().join(","))
    };
    let (ids, keys, topics) = (list("id-"), list("free-"), format!("array_fill('t'::text, array[{BATCH}])"));
    setting
        .run(&format!(
            "prepare t1a (text, text[], text[], text[]) as {T1A};
             prepare marks (text, text[]) as select id from posthaste.marks($1, $2);
             prepare heads (text) as select seq from posthaste.due_heads($1, 10)"
        ))
        .await;
    let calls =
        [format!("t1a('c', {ids}, {topics}, {keys})"), format!("marks('c', {ids})"), "heads('c')".to_owned()];
    let mut empty = Vec::new();
    for call in &calls {
        empty.push(pages(&setting.client, call).await);
    }
    setting
        .run(&format!(
            "{DEFERRED} from (select 'm' || n as id, 'k' || n % 1000 as key, true as holds,
                                     case when n <= 1000 then 'tomorrow' else 'infinity' end as due from generate_series(1, 100000) n) v;
             {LETTERS} from (select 'm' || n as id, 'l' || n as key, true as holds from generate_series(1, 100000) n) v;
             insert into posthaste.inbox (consumer, message_id) select 'c', 'm' || n from generate_series(1, 100000) n"
        ))
        .await;
    let sizes = "select min(pg_relation_size('posthaste.' || t) / 8192) \
         from unnest(array['inbox', 'inbox_deferred', 'inbox_dead_letters']) t";
    let smallest: i64 = setting.client.query_one(sizes, &[]).await.expect("sizes").get(0);
    for (call, before) in calls.iter().zip(empty) {
        // A tree of 10^5 rows is a page or two deeper than an empty one, for each row of a batch. Whoever
        // reads one of the tables touches all its pages.
        let after = pages(&setting.client, call).await;
        let call = call.split('(').next().unwrap_or_default();
        let told = format!(
            "{call}: {before} pages with no rows, {after} with 10^5; the smallest table has {smallest}"
        );
        eprintln!("{told}");
        assert!(after < before + smallest.min(4 * BATCH as i64 + before), "{told}");
    }
}

/// What is not as it should be, as `check: text`.
async fn complaints(config: &PostgresConfig, bounds: &Bounds) -> Vec<String> {
    let findings = examine_consumer(config, bounds).await.expect("an examination");
    let known = findings.iter().all(|finding| CONSUMER_CHECKS.contains(&finding.check.as_str()));
    assert!(known, "{findings:?}");
    let bad = findings.into_iter().filter(|finding| finding.level != Level::Ok);
    bad.map(|finding| format!("{}: {}", finding.check, finding.text)).collect()
}

#[tokio::test]
async fn the_doctor_names_what_a_consumers_login_lacks() {
    let setting = require_service!(Setting::new().await);
    let (bounds, consumer) = (Bounds::default(), setting.roles.consumer.clone());
    let config = setting.config_as(&consumer).await;
    let findings = examine_consumer(&config, &bounds).await.expect("an examination");
    let made: Vec<&str> = findings.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!(made, CONSUMER_CHECKS);
    assert_eq!(complaints(&config, &bounds).await, Vec::<String>::new(), "all is well");

    let broken = [
        (
            "revoke delete on posthaste.inbox_dead_letters from ROLE",
            "consumer_rights: the connected role lacks DELETE on table inbox_dead_letters",
        ),
        ("revoke usage on sequence posthaste.inbox_deferred_seq_seq from ROLE", "consumer_rights: "),
        ("revoke select on posthaste.controls from ROLE", "consumer_rights: "),
        (
            "revoke insert (topic) on posthaste.outbox from ROLE",
            "consumer_rights: the connected role lacks INSERT (topic) on outbox",
        ),
        (
            "revoke execute on function posthaste.held(text, text[], uuid[]) from ROLE, public",
            "consumer_rights: ",
        ),
        ("update posthaste.migrations set checksum = 'x' where version = 3", "schema_checksum: "),
    ];
    for (sql, words) in broken {
        setting.run(&sql.replace("ROLE", &consumer)).await;
        let [found] = complaints(&config, &bounds).await.try_into().expect("one complaint");
        assert!(found.starts_with(words), "{sql}: {found}");
        if words.starts_with("consumer_rights") {
            migrate::up(&setting.config, &setting.roles).await.expect("permitted");
            assert_eq!(complaints(&config, &bounds).await, Vec::<String>::new(), "{sql}");
        }
    }
}

/// Commits that are asynchronous by default are none of a consumer's; a database that cannot be written is.
#[tokio::test]
async fn the_doctor_tells_a_consumer_from_a_relay() {
    let setting = require_service!(Setting::new().await);
    let (bounds, name) = (Bounds::default(), setting.database.name());
    let config = setting.config_as(&setting.roles.consumer).await;
    setting.run(&format!("alter database {name} set synchronous_commit = off")).await;
    assert_eq!(complaints(&config, &bounds).await, Vec::<String>::new());
    let relay = setting.admin().await.doctor_with(&bounds).await.expect("an examination");
    assert!(relay.iter().any(|found| found.check == "synchronous_commit" && found.level == Level::Warn));
    setting.run(&format!("alter database {name} set default_transaction_read_only = on")).await;
    let [found] = complaints(&config, &bounds).await.try_into().expect("one complaint");
    assert!(found.starts_with("read_only: ") && found.contains("no message be handled"), "{found}");
}

#[tokio::test]
async fn the_doctor_names_a_prepared_transaction_that_has_marks() {
    let setting = require_service!(Setting::new().await);
    let config = setting.config_as(&setting.roles.consumer).await;
    // Such a name belongs to the whole server.
    let [marks, reads] = ["marks", "reads"].map(|what| format!("{}_{what}", setting.database.name()));
    setting.run(&format!("begin; select posthaste.admit('c', 'm'); prepare transaction '{marks}'")).await;
    let read = "select count(*), pg_current_xact_id() from posthaste.inbox";
    setting.run(&format!("begin; {read}; prepare transaction '{reads}'")).await;
    let sooner = Bounds { prepared_inbox: Duration::ZERO, ..Bounds::default() };
    let [found] = complaints(&config, &sooner).await.try_into().expect("one complaint");
    assert!(found.starts_with("prepared_transactions: ") && found.contains(&marks), "{found}");
    assert!(!found.contains(&reads) && found.contains("cannot handle it"), "{found}");
    assert_eq!(complaints(&config, &Bounds::default()).await, Vec::<String>::new(), "a minute is allowed");
    setting.run(&format!("rollback prepared '{reads}'")).await;
    setting.run(&format!("rollback prepared '{marks}'")).await;
    assert_eq!(complaints(&config, &sooner).await, Vec::<String>::new());
}
