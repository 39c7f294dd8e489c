//! `examples/consume.rs`, as it stands there.

use posthaste_postgres::{PostgresConfig, connect, migrate};
use posthaste_sqlite::broker::{Broker, BrokerConfig, Outgoing};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use std::time::Duration;

#[allow(dead_code)] // its main
#[path = "../../examples/consume.rs"]
mod consume;

/// Ends a hang; it times nothing.
const WAIT: Duration = Duration::from_secs(60);

fn order(id: &str, saga: &str, payload: &str) -> Outgoing {
    Outgoing {
        topic: "orders.placed".to_owned(),
        id: Some(id.to_owned()),
        key: Some("k".to_owned().into()),
        headers: vec![("saga-id".to_owned(), saga.to_owned())],
        payload: Some(payload.to_owned().into()),
    }
}

/// Orders become invoices, each once, also after a restart. What is rejected is a dead letter, and what the
/// handler appends says what it follows from.
#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_in_rust_books_each_order_once() {
    let database = require_service!(TestDatabase::create().await);
    let config = PostgresConfig::new(database.url());
    migrate::up(&config, &migrate::Roles::default()).await.expect("the migration applies");
    let client = connect(&config).await.expect("a connection");
    let file = std::env::temp_dir().join(format!("posthaste-example-{}.db", uuid::Uuid::now_v7().simple()));
    let broker = Broker::open(BrokerConfig::new(&file)).expect("the broker's file opens");
    let sent = [
        [order("m1", "s1", r#"{"id": 1, "total": 5}"#), order("m2", "s2", r#"{"id": 2, "total": -1}"#)],
        [order("m3", "s3", "no order"), order("m4", "s4", r#"{"id": 4, "total": 7}"#)],
    ];
    let count = async |sql: &str| -> i64 { client.query_one(sql, &[]).await.expect("a count").get(0) };
    for (round, messages) in (1..).zip(sent) {
        broker.publish(messages.into()).await.expect("published");
        let handled = eventually("everything is handled", WAIT, || async {
            (count("select count(*) from posthaste.inbox").await == 2 * round).then_some(())
        });
        consume::run(&database.url(), &file, handled).await.expect("it drains");
    }
    let rows = client.query("select order_id, total from invoices order by 1", &[]).await.expect("invoices");
    let invoices: Vec<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(invoices, [(1, 5), (4, 7)]);
    let dead = "select string_agg(message_id || ' ' || error_code, ', ' order by message_id) \
                from posthaste.inbox_dead_letters";
    let dead: String = client.query_one(dead, &[]).await.expect("letters").get(0);
    assert_eq!(dead, "m2 order.total, m3 message.json");
    let follow = "select count(*) from posthaste.outbox where topic = 'invoices.made'
                  and (headers ->> 'causation-id', headers ->> 'correlation-id', headers ->> 'saga-id',
                       convert_from(payload, 'UTF8')) in (('m1', 'm1', 's1', '1'), ('m4', 'm4', 's4', '4'))";
    assert_eq!(count(follow).await, 2);
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
}
