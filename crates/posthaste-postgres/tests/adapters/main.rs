//! The adapters of `append` and `admit` against a real PostgreSQL: the examples as they are, and one table of
//! cases for all of them. One target for all libraries, because each of them is slow to build and to link.

mod adapter;
mod cases;
mod handler;
mod refusals;

use posthaste_postgres::{PostgresConfig, migrate};
use posthaste_testkit::services::{self, TestDatabase};
use tokio_postgres::Client;

#[allow(dead_code)] // its main
#[path = "../../examples/append_diesel.rs"]
mod example_diesel;
#[allow(dead_code)]
#[path = "../../examples/append_diesel_async.rs"]
mod example_diesel_async;
#[allow(dead_code)]
#[path = "../../examples/append_sea_orm.rs"]
mod example_sea_orm;
#[allow(dead_code)]
#[path = "../../examples/append_sqlx.rs"]
mod example_sqlx;
#[allow(dead_code)]
#[path = "../../examples/append_tokio_postgres.rs"]
mod example_tokio_postgres;

/// A database with the outbox in it, and a look from outside.
struct Outbox {
    database: TestDatabase,
    client: Client,
}

impl Outbox {
    async fn make() -> Option<Self> {
        let database = services::require(TestDatabase::create().await)?;
        let config = PostgresConfig::new(database.url());
        migrate::up(&config, &migrate::Roles::default()).await.expect("the migration applies");
        let client = database.connect().await.expect("the test's own database answers");
        Some(Self { database, client })
    }

    fn url(&self) -> String {
        self.database.url()
    }

    async fn count(&self) -> i64 {
        self.client.query_one("select count(*) from posthaste.outbox", &[]).await.expect("count").get(0)
    }

    /// An example rolled back one order and committed another.
    async fn holds_one_order_and_its_event(&self) {
        let sql = "select id::text from orders";
        let orders: Vec<String> =
            self.client.query(sql, &[]).await.expect("orders").iter().map(|row| row.get(0)).collect();
        let sql = "select key, topic, content_type, convert_from(payload, 'UTF8')::jsonb ->> 'order' from posthaste.outbox";
        let events = self.client.query(sql, &[]).await.expect("events");
        assert_eq!((orders.len(), events.len()), (1, 1), "the rolled back order left nothing");
        let expected = (orders[0].as_str(), "orders.placed", "application/json", orders[0].as_str());
        let event = &events[0];
        assert_eq!((event.get(0), event.get(1), event.get(2), event.get(3)), expected);
    }
}

#[tokio::test]
async fn g1_the_example_for_tokio_postgres() {
    let Some(outbox) = Outbox::make().await else { return };
    example_tokio_postgres::run(&outbox.url()).await.expect("the example runs");
    outbox.holds_one_order_and_its_event().await;
}

#[tokio::test]
async fn g1_the_example_for_sqlx() {
    let Some(outbox) = Outbox::make().await else { return };
    example_sqlx::run(&outbox.url()).await.expect("the example runs");
    outbox.holds_one_order_and_its_event().await;
}

#[tokio::test]
async fn g1_the_example_for_sea_orm() {
    let Some(outbox) = Outbox::make().await else { return };
    example_sea_orm::run(&outbox.url()).await.expect("the example runs");
    outbox.holds_one_order_and_its_event().await;
}

#[tokio::test]
async fn g1_the_example_for_diesel_async() {
    let Some(outbox) = Outbox::make().await else { return };
    example_diesel_async::run(&outbox.url()).await.expect("the example runs");
    outbox.holds_one_order_and_its_event().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_the_example_for_diesel() {
    let Some(outbox) = Outbox::make().await else { return };
    let url = outbox.url();
    tokio::task::block_in_place(|| example_diesel::run(&url)).expect("the example runs");
    outbox.holds_one_order_and_its_event().await;
}
