//! Append: in the caller's transaction, with limits and idempotency keys; and plain SQL.

use crate::fixture::SqliteFixture;
use posthaste::{Event, EventError, Limits};
use posthaste_sqlite::{AppendError, Outbox, append, append_all};
use posthaste_testkit::conformance::store::StoreFixture;
use rusqlite::{Connection, TransactionBehavior};
use uuid::Uuid;

fn count(connection: &Connection) -> i64 {
    connection.query_row("select count(*) from posthaste_outbox", [], |row| row.get(0)).expect("a count")
}

/// G1: the order and its event, or neither.
#[tokio::test]
async fn g1_an_event_exists_if_its_transaction_commits() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let mut connection = fixture.connect();
    connection.execute_batch("create table orders (id integer primary key)").expect("a table");
    for commit in [false, true] {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begin");
        tx.execute("insert into orders values (42)", []).expect("an order");
        let event = Event::new("orders.placed", "{}").with_key("42");
        assert_eq!(append(&tx, &event).expect("appended"), event.id);
        if commit { tx.commit() } else { tx.rollback() }.expect("ended");
        let orders: i64 =
            connection.query_row("select count(*) from orders", [], |row| row.get(0)).expect("a count");
        assert_eq!((orders, count(&connection)), (i64::from(commit), i64::from(commit)));
    }
}

#[tokio::test]
async fn an_idempotency_key_is_used_once() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let mut connection = fixture.connect();
    let event = |topic: &str| Event::new(topic, "x").with_idempotency_key("once");
    let tx = connection.transaction().expect("begin");
    let first = append(&tx, &event("a")).expect("appended");
    let other_topic = append(&tx, &event("b")).expect("appended");
    tx.commit().expect("committed");
    assert_ne!(first, other_topic);
    let tx = connection.transaction().expect("begin");
    assert_eq!(append(&tx, &event("a")).expect("answered"), first, "the first one's id");
    let ids = append_all(&tx, &[event("a"), Event::new("c", "x"), event("b")]).expect("answered");
    assert_eq!([ids[0], ids[2]], [first, other_topic]);
    tx.commit().expect("committed");
    assert_eq!(count(&connection), 3);
    // Rolled back, it was never used.
    let tx = connection.transaction().expect("begin");
    append(&tx, &event("d")).expect("appended");
    tx.rollback().expect("rolled back");
    let tx = connection.transaction().expect("begin");
    append(&tx, &event("d")).expect("appended");
    tx.commit().expect("committed");
    assert_eq!(count(&connection), 4);
}

/// Bad events are refused before the database hears of them, and the transaction goes on.
#[tokio::test]
async fn limits_are_checked_and_the_transaction_stays_usable() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let mut connection = fixture.connect();
    let tx = connection.transaction().expect("begin");
    let outbox = Outbox::with_limits(Limits { payload_bytes_max: 10, ..Limits::default() });
    let refused = outbox.append(&tx, &Event::new("t", "eleven byte")).expect_err("too large");
    assert!(matches!(refused, AppendError::Event(EventError::PayloadTooLarge { bytes: 11, max: 10 })));
    for (event, words) in [
        (Event::new("", "x"), "topic is empty"),
        (Event::new("a b", "x"), "white space"),
        (Event::new("t", "x").with_key(""), "key is empty"),
        (Event::new("t", "x").with_header("time", "now"), "written by Posthaste itself"),
        (Event::new("t", "x").with_idempotency_key("x".repeat(256)), "idempotency key"),
    ] {
        let refused = append(&tx, &event).expect_err(words).to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let mixed = [Event::new("t", "x"), Event::new("", "x")];
    append_all(&tx, &mixed).expect_err("all are checked before the first is written");
    append(&tx, &Event::new("t", "fine")).expect("the transaction is usable");
    tx.commit().expect("committed");
    assert_eq!(count(&connection), 1);
}

/// Any language: one INSERT, with an id, a number and a time made by the table.
#[tokio::test]
async fn plain_sql_appends_an_event() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let connection = fixture.connect();
    let sql =
        "insert into posthaste_outbox (topic, key, payload) values ('orders.placed', '42', '{\"order\":42}')";
    for _ in 0..200 {
        connection.execute(sql, []).expect("appended");
    }
    let before = fixture.now().await.0;
    connection.execute(sql, []).expect("appended");
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
    let mut statement =
        connection.prepare("select id, appended_at from posthaste_outbox").expect("a statement");
    let rows = statement.query_map([], read).expect("a query").collect::<Result<Vec<_>, _>>().expect("rows");
    let mut ids = std::collections::BTreeSet::new();
    for (id, appended_at) in &rows {
        let id = Uuid::parse_str(id).expect("a UUID");
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
        let (seconds, _) = id.get_timestamp().expect("a time").to_unix();
        assert!(appended_at / 1_000_000 - seconds as i64 <= 1, "{id}: {appended_at}");
        ids.insert(id);
    }
    assert_eq!(ids.len(), 201);
    let last = rows.last().expect("rows").1;
    assert!((last - before).abs() < 2_000_000, "{last} against {before}");
    let refused = connection.execute("update posthaste_outbox set topic = 'x'", []).expect_err("append-only");
    assert!(refused.to_string().contains("never updated"), "{refused}");
}
