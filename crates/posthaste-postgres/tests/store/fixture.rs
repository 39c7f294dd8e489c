//! A fresh database for each case, with the outbox in it.

use async_trait::async_trait;
use posthaste::admin::{Actor, Admin, Control, ControlTarget, DeadAct, DeadFilter};
use posthaste::event::{Event, Timestamp};
use posthaste::store::Store;
use posthaste_postgres::{PostgresAdmin, PostgresConfig, PostgresStore, migrate};
use posthaste_testkit::conformance::store::{OpenTransaction, StoreFixture};
use posthaste_testkit::services::{self, TestDatabase};
use std::sync::Arc;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

pub(crate) struct PostgresFixture {
    database: TestDatabase,
    client: Client,
}

impl PostgresFixture {
    pub(crate) async fn make() -> Option<Self> {
        let database = services::require(TestDatabase::create().await)?;
        Some(Self::on(database).await)
    }

    pub(crate) async fn with_schema(schema: &str) -> Option<Self> {
        let database = services::require(TestDatabase::create().await)?;
        let client = database.connect().await.expect("the test's own database answers");
        let config = PostgresConfig { schema: schema.to_owned(), ..PostgresConfig::new(database.url()) };
        migrate::up(&config, &migrate::Roles::default()).await.expect("the migration applies");
        Some(Self { database, client })
    }

    pub(crate) async fn on(database: TestDatabase) -> Self {
        let client = database.connect().await.expect("the test's own database answers");
        let config = PostgresConfig::new(database.url());
        migrate::up(&config, &migrate::Roles::default()).await.expect("the migration applies");
        Self { database, client }
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        PostgresConfig::new(self.database.url())
    }

    pub(crate) async fn connect(&self) -> Client {
        self.database.connect().await.expect("a connection")
    }

    /// For applications with prepared transactions.
    pub(crate) async fn store_without_wakeups(&self) -> Arc<dyn Store> {
        let config = PostgresConfig { wakeups: false, ..self.config() };
        Arc::new(PostgresStore::connect(config).await.expect("the store connects"))
    }

    pub(crate) async fn admin(&self) -> PostgresAdmin {
        PostgresAdmin::connect(self.config()).await.expect("the admin connects")
    }

    async fn seqs(&self, table: &str, sink: &str) -> Vec<i64> {
        let sql = format!("select seq from posthaste.{table} where sink = $1 order by seq");
        let rows = self.client.query(&sql, &[&sink]).await.expect("a query of the test");
        rows.iter().map(|row| row.get(0)).collect()
    }
}

fn actor() -> Actor {
    Actor::new("test", "a case of the suite")
}

/// A transaction of the application, on a connection of its own.
struct OwnTransaction {
    client: Client,
}

#[async_trait]
impl OpenTransaction for OwnTransaction {
    async fn append(&mut self, event: Event) -> i64 {
        let (headers, payload) = (event.headers.to_json(), event.payload.as_deref());
        let deliver_at = event.deliver_at.map(|at| at.0 as f64 / 1e6);
        let sql = "select posthaste.append($1, $2::bytea, $3, $4::text::jsonb, $5, $6, to_timestamp($7), $8)";
        let values: [&(dyn ToSql + Sync); 8] = [
            &event.topic,
            &payload,
            &event.key,
            &headers,
            &event.id,
            &event.idempotency_key,
            &deliver_at,
            &event.content_type,
        ];
        self.client.query_one(sql, &values).await.expect("append");
        let row =
            self.client.query_one("select currval('posthaste.outbox_seq')", &[]).await.expect("currval");
        row.get(0)
    }

    async fn commit(self: Box<Self>) {
        self.client.batch_execute("commit").await.expect("commit");
    }

    async fn rollback(self: Box<Self>) {
        self.client.batch_execute("rollback").await.expect("rollback");
    }
}

#[async_trait]
impl StoreFixture for PostgresFixture {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::connect(self.config()).await.expect("the store connects"))
    }

    async fn begin(&self) -> Box<dyn OpenTransaction> {
        let client = self.database.connect().await.expect("a connection");
        client.batch_execute("begin").await.expect("begin");
        Box::new(OwnTransaction { client })
    }

    async fn now(&self) -> Timestamp {
        let sql = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
        Timestamp(self.client.query_one(sql, &[]).await.expect("the clock").get(0))
    }

    async fn deferred(&self, sink: &str) -> Vec<i64> {
        self.seqs("deferred", sink).await
    }

    async fn dead(&self, sink: &str) -> Vec<i64> {
        self.seqs("dead_letters", sink).await
    }

    async fn act_on_dead(&self, sink: &str, act: DeadAct) {
        let filter = DeadFilter { sink: Some(sink.to_owned()), ..DeadFilter::default() };
        while self.admin().await.dead_act(&filter, act, &actor(), 100).await.expect("the act succeeds") > 0 {}
    }

    async fn control(&self, target: &ControlTarget, control: &Control) {
        self.admin().await.control(target, control, &actor()).await.expect("the control is set");
    }

    async fn kill(&self, relay: &str) {
        let sql = "select pg_terminate_backend(l.pid, 5000) from pg_locks l join posthaste.relays r on l.objid::bigint = r.heart
                    where l.locktype = 'advisory' and r.relay = $1";
        self.client.query(sql, &[&relay]).await.expect("terminate");
    }

    /// What a crash leaves of what a relay has: no connection, and nothing in unlogged tables. The server is
    /// that of other tests, too.
    async fn crash_server(&self) -> bool {
        let sql = "truncate posthaste.lease_tokens;
                   select pg_terminate_backend(pid, 5000) from pg_stat_activity
                    where datname = current_database() and pid <> pg_backend_pid()";
        self.client.batch_execute(sql).await.expect("a crash");
        true
    }
}
