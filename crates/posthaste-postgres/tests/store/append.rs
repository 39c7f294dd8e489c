//! Append: in the caller's transaction or not at all, from Rust and from any language.

use crate::fixture::PostgresFixture;
use posthaste::{Event, EventError, Timestamp};
use posthaste_postgres::{AppendError, Outbox, PostgresConfig, PostgresStore, append, append_all};
use posthaste_testkit::conformance::eventually;
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

const WAIT: Duration = Duration::from_secs(90);

async fn count(client: &Client) -> i64 {
    client.query_one("select count(*) from posthaste.outbox", &[]).await.expect("count").get(0)
}

/// G1, F8: the event exists if and only if the transaction committed.
#[tokio::test(flavor = "multi_thread")]
async fn g1_a_rollback_leaves_no_event_and_a_commit_leaves_one() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let mut client = fixture.connect().await;
    let mut tx = client.transaction().await.expect("begin");
    append(&mut tx, &Event::new("t", "x")).await.expect("append");
    tx.rollback().await.expect("rollback");
    assert_eq!(count(&client).await, 0);
    let mut tx = client.transaction().await.expect("begin");
    let id = append(&mut tx, &Event::new("t", "x").with_key("k")).await.expect("append");
    tx.commit().await.expect("commit");
    let row = client
        .query_one("select id, slot between 0 and 1023, xid is not null from posthaste.outbox", &[])
        .await
        .expect("one");
    assert_eq!((row.get::<_, Uuid>(0), row.get(1), row.get(2)), (id, true, true));
}

/// F86: what goes in is what is stored, byte for byte, and a tombstone is not an empty payload.
#[tokio::test(flavor = "multi_thread")]
async fn f86_payloads_are_stored_untouched_one_by_one_and_in_batches() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let mut client = fixture.connect().await;
    let payloads: [&[u8]; 4] = [b"", b"\0\xff\xfe", br#"{"b": [ ], "a":null}"#, "grün".as_bytes()];
    let mut events: Vec<Event> =
        payloads.iter().map(|bytes| Event::new("t", bytes.to_vec()).with_key("k")).collect();
    events.push(
        Event::tombstone("t")
            .with_header("traceparent", "00-1-2-01")
            .deliver_at(Timestamp(1_700_000_000_123_456)),
    );
    let mut tx = client.transaction().await.expect("begin");
    append_all(&mut tx, &events).await.expect("batch");
    for event in &events {
        append(&mut tx, &event.clone().with_id(Uuid::now_v7())).await.expect("single");
    }
    tx.commit().await.expect("commit");
    let sql = "select payload, headers->>'traceparent', (extract(epoch from deliver_at) * 1e6)::bigint from posthaste.outbox order by seq";
    let rows = client.query(sql, &[]).await.expect("rows");
    for (row, event) in rows.iter().zip(events.iter().chain(&events)) {
        assert_eq!(row.get::<_, Option<Vec<u8>>>(0).as_deref(), event.payload.as_deref());
        assert_eq!(row.get::<_, Option<&str>>(1), event.headers.get("traceparent"));
        assert_eq!(row.get::<_, Option<i64>>(2), event.deliver_at.map(|at| at.0));
    }
}

/// A refused event costs nothing: the caller's transaction goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_event_leaves_the_transaction_usable() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let mut client = fixture.connect().await;
    let mut tx = client.transaction().await.expect("begin");
    let refused = append(&mut tx, &Event::new("", "x")).await;
    assert!(matches!(refused, Err(AppendError::Event(EventError::TopicEmpty))));
    let large = append(&mut tx, &Event::new("t", vec![0; (1 << 20) + 1])).await;
    assert!(matches!(large, Err(AppendError::Event(EventError::PayloadTooLarge { .. }))));
    append(&mut tx, &Event::new("t", "x")).await.expect("the transaction is still usable");
    tx.commit().await.expect("commit");
    assert_eq!(count(&client).await, 1);
}

/// The second append of a (topic, idempotency key) waits for the first, and answers with its id.
#[tokio::test(flavor = "multi_thread")]
async fn idempotency_keys_hold_when_two_transactions_race() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let (mut one, mut two) = (fixture.connect().await, fixture.connect().await);
    let event = || Event::new("t", "x").with_idempotency_key("order-42");
    let mut first = one.transaction().await.expect("begin");
    let id = append(&mut first, &event()).await.expect("append");
    let waiting = tokio::spawn(async move {
        let mut second = two.transaction().await.expect("begin");
        let id = append(&mut second, &event()).await.expect("append");
        second.commit().await.expect("commit");
        id
    });
    let watcher = fixture.connect().await;
    let blocked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    eventually("the second one waits", WAIT, || async {
        (watcher.query_one(blocked, &[]).await.expect("activity").get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    first.commit().await.expect("commit");
    assert_eq!(waiting.await.expect("the second one ends"), id);
    assert_eq!(count(&watcher).await, 1);
    // Another topic is another event, and a rollback forgets the key.
    let mut tx = one.transaction().await.expect("begin");
    append(&mut tx, &Event::new("u", "x").with_idempotency_key("order-42")).await.expect("append");
    append(&mut tx, &Event::new("t", "x").with_idempotency_key("order-43")).await.expect("append");
    tx.rollback().await.expect("rollback");
    let mut tx = one.transaction().await.expect("begin");
    let events = [event(), Event::new("t", "y").with_idempotency_key("order-43"), Event::new("t", "z")];
    let ids = append_all(&mut tx, &events).await.expect("batch");
    tx.commit().await.expect("commit");
    assert_eq!(ids, [id, events[1].id, events[2].id]);
    assert_eq!(count(&watcher).await, 3);
}

/// One SQL function for every language, plain INSERT and COPY too.
#[tokio::test(flavor = "multi_thread")]
async fn sql_appends_by_function_insert_and_copy() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    client
        .batch_execute(
            "select posthaste.append('t', 'plain text');
             select posthaste.append('t', '{\"b\": 1}'::jsonb, key => 'k', headers => '{\"a\": \"b\"}');
             select posthaste.append('t', '\\x00ff'::bytea, content_type => 'application/octet-stream');
             select posthaste.append('t', null::bytea, 'k');
             insert into posthaste.outbox (topic, payload) values ('t', 'x'), ('t', 'y');
             insert into posthaste.outbox (topic, payload) select 't', 'x' from generate_series(1, 3);",
        )
        .await
        .expect("appends");
    let copy = client.copy_in("copy posthaste.outbox (topic, key, payload) from stdin").await.expect("copy");
    let mut copy = std::pin::pin!(copy);
    futures_util::SinkExt::send(&mut copy, bytes::Bytes::from_static(b"t\tk\t\\\\x01\nt\tk\t\\N\n"))
        .await
        .expect("rows");
    copy.finish().await.expect("copy ends");
    let sql = "select count(*), count(distinct id), count(distinct seq), bool_and(substring(id::text, 15, 1) = '7'),
                      count(*) filter (where payload is null), count(distinct content_type) from posthaste.outbox";
    let row = client.query_one(sql, &[]).await.expect("rows");
    let got: (i64, i64, i64, bool, i64, i64) =
        (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5));
    assert_eq!(got, (11, 11, 11, true, 2, 3));
    for (bad, words) in [
        ("select posthaste.append('', 'x')", "topic is empty"),
        ("select posthaste.append('a b', 'x')", "white space"),
        ("select posthaste.append('t', 'x', key => '')", "key is empty"),
        ("select posthaste.append('t', repeat('x', 1048577))", "at most 1048576"),
        ("select posthaste.append('t', 'x', headers => '[1]')", "JSON object"),
        ("select posthaste.append('t', 'x', headers => '{\"a\": 1}')", "must be a string"),
        ("select posthaste.append('t', 'x', idempotency_key => '')", "idempotency key"),
    ] {
        let error = client.batch_execute(bad).await.expect_err(bad);
        let message = error.as_db_error().map(|db| db.message().to_owned()).unwrap_or_default();
        assert!(message.starts_with("posthaste: ") && message.contains(words), "{bad}: {message}");
    }
}

/// A key is a text, a number or a UUID, whatever the payload is. A call without a type has one meaning: text.
#[tokio::test(flavor = "multi_thread")]
async fn sql_takes_keys_that_are_texts_numbers_and_uuids() {
    const UUID: &str = "01a1e29d-02bc-78ce-b67d-564d40496382";
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let last = "select key, convert_from(payload, 'UTF8'), content_type from posthaste.outbox order by seq desc limit 1";
    let uuid = format!("'{}'::uuid", UUID.to_uppercase());
    let keys: [(&str, Option<&str>); 13] = [
        ("", None),
        (", key => null", None),
        (", key => null::bigint", None),
        (", key => null::uuid", None),
        (", key => '42'", Some("42")),
        (", '42'", Some("42")),
        (", key => '42'::varchar", Some("42")),
        (", key => 'order-42'::text", Some("order-42")),
        (", 42", Some("42")),
        (", key => -42", Some("-42")),
        (", key => 42::smallint", Some("42")),
        (", key => 9223372036854775807", Some("9223372036854775807")),
        (&format!(", key => {uuid}"), Some(UUID)),
    ];
    let payloads = [
        ("'7'", Some("7"), Some("text/plain; charset=utf-8")),
        ("'7'::text", Some("7"), Some("text/plain; charset=utf-8")),
        ("'7'::jsonb", Some("7"), Some("application/json")),
        ("'\\x37'::bytea", Some("7"), None),
        ("null::bytea", None, None),
    ];
    for (key, stored) in keys {
        for (payload, bytes, content_type) in payloads {
            let sql = format!("select posthaste.append('t', {payload}{key})");
            client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            let row = client.query_one(last, &[]).await.expect("one");
            assert_eq!((row.get(0), row.get(1), row.get(2)), (stored, bytes, content_type), "{sql}");
        }
    }
    // What drivers declare: nothing (pg, pgx, psycopg for str), varchar (JDBC), or the type of the value.
    let id: Uuid = UUID.parse().expect("a UUID");
    let parameters: [(Type, Type, &(dyn ToSql + Sync), &str); 7] = [
        (Type::UNKNOWN, Type::TEXT, &"42", "42"),
        (Type::TEXT, Type::TEXT, &"42", "42"),
        (Type::VARCHAR, Type::VARCHAR, &"42", "42"),
        (Type::INT2, Type::INT2, &42_i16, "42"),
        (Type::INT4, Type::INT4, &42_i32, "42"),
        (Type::INT8, Type::INT8, &42_i64, "42"),
        (Type::UUID, Type::UUID, &id, UUID),
    ];
    for (declared, resolved, key, stored) in parameters {
        let sql = "select posthaste.append('t', '{}'::jsonb, key => $1)";
        let prepared = client.prepare_typed(sql, std::slice::from_ref(&declared)).await;
        let statement = prepared.unwrap_or_else(|error| panic!("{declared}: {error:?}"));
        assert_eq!(statement.params(), [resolved], "{declared}");
        client.query_one(&statement, &[key]).await.expect("appended");
        assert_eq!(client.query_one(last, &[]).await.expect("one").get::<_, &str>(0), stored, "{declared}");
    }
}

/// F19: appends notify while somebody sleeps, and only then.
#[tokio::test(flavor = "multi_thread")]
async fn f19_appends_notify_only_for_a_sleeping_relay() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let fires = "select pg_sequence_last_value('posthaste.outbox_wakeup'::regclass) > extract(epoch from clock_timestamp()) * 1000";
    assert!(!client.query_one(fires, &[]).await.expect("flag").get::<_, bool>(0), "nobody sleeps yet");
    // A notification makes PREPARE TRANSACTION fail, so it tells whether one was queued.
    let prepare = "begin; select posthaste.append('t', 'x'::text); prepare transaction 'awake'";
    client.batch_execute(prepare).await.expect("no NOTIFY while the relay is awake");
    client.batch_execute("rollback prepared 'awake'").await.expect("rollback");
    let flag = "select setval('posthaste.outbox_wakeup', (extract(epoch from clock_timestamp()) * 1000)::bigint + 60000)";
    client.batch_execute(flag).await.expect("the flag is raised");
    let error = client.batch_execute(prepare).await.expect_err("NOTIFY while the relay sleeps");
    assert!(error.as_db_error().is_some_and(|db| db.message().contains("NOTIFY")), "{error:?}");
}

/// Another schema, with a name that wants quoting.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_with_an_odd_name_works() {
    let Some(fixture) = PostgresFixture::with_schema("My Outbox").await else { return };
    let mut client = fixture.connect().await;
    let mut tx = client.transaction().await.expect("begin");
    let outbox = Outbox::new("My Outbox");
    outbox.append(&mut tx, &Event::new("t", "x").with_idempotency_key("k")).await.expect("append");
    tx.commit().await.expect("commit");
    let row = client.query_one("select count(*) from \"My Outbox\".outbox", &[]).await.expect("count");
    assert_eq!(row.get::<_, i64>(0), 1);
}

/// The same headers pass, and the same are refused with a reason, from Rust and from any language.
#[tokio::test(flavor = "multi_thread")]
async fn headers_are_judged_alike_by_rust_and_by_sql() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let (long_name, long_value) = ("n".repeat(129), "v".repeat(16 << 10));
    let table: [(&str, &str, Option<&str>); 12] = [
        ("traceparent", "00-1-2-01", None),
        ("X_y.z~1-2", "grün, and \"quoted\"", None),
        ("type", "order.placed", None),
        ("empty", "", None),
        ("", "x", Some("header name")),
        ("white space", "x", Some("header name")),
        ("ümlaut", "x", Some("header name")),
        (&long_name, "x", Some("header name")),
        ("Message-ID", "x", Some("written by Posthaste")),
        ("line", "a\nb", Some("line break")),
        ("return", "a\rb", Some("line break")),
        ("large", &long_value, Some("bytes in all")),
    ];
    for (name, value, reason) in table {
        let checked = posthaste::Limits::default().check(&Event::new("t", "x").with_header(name, value));
        assert_eq!(checked.is_err(), reason.is_some(), "Rust: {name}: {checked:?}");
        let headers = serde_json::json!({ name: value }).to_string();
        let sql = "select posthaste.append('t', 'x'::text, headers => $1::text::jsonb)";
        let appended = client.query_one(sql, &[&headers]).await;
        let said = appended.err().and_then(|error| Some(error.as_db_error()?.message().to_owned()));
        match reason {
            None => assert_eq!(said, None, "{name}"),
            Some(reason) => {
                assert!(said.as_ref().is_some_and(|said| said.contains(reason)), "{name}: {said:?}")
            }
        }
    }
    for (headers, reason) in
        [("[1]", "not array"), ("\"x\"", "not string"), ("{\"a\": 1}", "\"a\" must be a string")]
    {
        let sql = "select posthaste.append('t', 'x'::text, headers => $1::text::jsonb)";
        let error = client.query_one(sql, &[&headers]).await.expect_err(headers);
        assert!(error.as_db_error().expect("the database's").message().contains(reason), "{error:?}");
    }
}

/// Limits of the configuration hold in SQL, too; and those that no index could keep are refused.
#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_configuration_hold_in_sql() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let append = |topic: &'static str, key: &'static str, headers: &'static str| {
        let client = &client;
        async move {
            let sql = "select posthaste.append($1, 'x'::text, $2, $3::text::jsonb)";
            let error = client.query_one(sql, &[&topic, &key, &headers]).await.err()?;
            Some(error.as_db_error()?.message().to_owned())
        }
    };
    assert_eq!(append("topic", "key", "{\"a\":\"bcd\"}").await, None);
    let mut config = fixture.config();
    config.limits.topic_bytes_max = 4;
    migrate(&config).await.expect("the limit is set");
    assert!(append("topic", "key", "{}").await.expect("refused").contains("topic has 5 bytes, at most 4"));
    config.limits = posthaste::Limits { key_bytes_max: 2, ..posthaste::Limits::default() };
    migrate(&config).await.expect("the limit is set");
    assert!(append("topic", "key", "{}").await.expect("refused").contains("key has 3 bytes, at most 2"));
    config.limits = posthaste::Limits { header_bytes_max: 3, ..posthaste::Limits::default() };
    migrate(&config).await.expect("the limit is set");
    let said = append("topic", "key", "{\"a\":\"bcd\"}").await.expect("refused");
    assert!(said.contains("headers have 4 bytes in all, at most 3"), "{said}");
    config.limits = posthaste::Limits { key_bytes_max: 1_025, ..posthaste::Limits::default() };
    let refused = migrate(&config).await.expect_err("no index holds it").to_string();
    assert!(refused.contains("key_bytes_max is 1025"), "{refused}");
    assert!(PostgresStore::connect(config).await.is_err(), "nor does a relay start with it");
}

async fn migrate(config: &PostgresConfig) -> Result<(), posthaste::store::StoreError> {
    posthaste_postgres::migrate::up(config, &posthaste_postgres::migrate::Roles::default()).await.map(drop)
}

/// A key whose time runs out between the two looks of an append is taken anew. The trigger is the purge that
/// comes in between.
#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_that_is_purged_in_between_is_taken_anew() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let append = "select posthaste.append('t', 'x'::text, idempotency_key => 'once')";
    client.batch_execute(append).await.expect("the first");
    let purge = "create function once() returns trigger language plpgsql as $$ begin \
                   if not exists (select from purged) then insert into purged values (1); delete from posthaste.idempotency_keys; end if; \
                   return null; end $$; \
                 create table purged (n int); \
                 create trigger purge after insert on posthaste.idempotency_keys for each statement execute function once()";
    client.batch_execute(purge).await.expect("a trigger");
    let id: Option<Uuid> = client.query_one(append, &[]).await.expect("the second").get(0);
    assert!(id.is_some(), "an append always answers with an id");
    assert_eq!(count(&client).await, 2, "its time had run out: it is an event of its own");
    let again: Option<Uuid> = client.query_one(append, &[]).await.expect("the third").get(0);
    assert_eq!((again, count(&client).await), (id, 2), "and counts from now on");
}
