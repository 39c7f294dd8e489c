//! What most of these tests start from: a database of its own with an outbox in it.

use posthaste_postgres::migrate::{self, Roles};
use posthaste_postgres::{PostgresAdmin, PostgresConfig};
use posthaste_testkit::services::{ServiceError, TestDatabase};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

/// A database with an outbox, and a superuser's connection to it.
pub(crate) struct Setting {
    pub(crate) database: TestDatabase,
    pub(crate) config: PostgresConfig,
    pub(crate) client: Client,
    pub(crate) roles: Roles,
}

impl Setting {
    /// On the shared server.
    pub(crate) async fn new() -> Result<Self, ServiceError> {
        Self::on(TestDatabase::create().await?).await
    }

    /// In this database.
    pub(crate) async fn on(database: TestDatabase) -> Result<Self, ServiceError> {
        let config = PostgresConfig::new(database.url());
        let roles = roles_of(&database);
        let outcome = migrate::up(&config, &roles).await.expect("a superuser may set up the outbox");
        assert!(outcome.to_run_by_hand.is_empty(), "{outcome:?}");
        let client = database.connect().await?;
        Ok(Self { database, config, client, roles })
    }

    pub(crate) async fn admin(&self) -> PostgresAdmin {
        PostgresAdmin::connect(self.config.clone()).await.expect("the outbox is there")
    }

    /// The configuration of a login that is a member of one of the roles.
    pub(crate) async fn config_as(&self, role: &str) -> PostgresConfig {
        let login = format!("{role}_login");
        self.run(&format!("create role {login} login in role {role}")).await;
        PostgresConfig::new(self.database.url_as(&login))
    }

    pub(crate) async fn run(&self, sql: &str) {
        if let Err(error) = self.client.batch_execute(sql).await {
            panic!("{sql}: {error:?}");
        }
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        number(&self.client, sql).await
    }

    /// Waits until no connection of ours is left: a server's process counts what it read when it ends.
    pub(crate) async fn until_alone(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        let left = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'posthaste'";
        while self.number(left).await > 0 {
            assert!(Instant::now() < end, "connections stay");
        }
    }

    pub(crate) async fn text(&self, sql: &str) -> String {
        self.client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// A sink with lanes whose cursors have handled everything up to now.
    pub(crate) async fn sink(&self, name: &str, lanes: i32, filter: &str) {
        self.run(&format!(
            "insert into posthaste.state values ('lanes', '{lanes}') on conflict (name) do update set value = excluded.value;
             insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n)
             select '{name}', n, 1024 * n / {lanes}, 1024 * (n + 1) / {lanes} - 1, '{filter}', 0 from generate_series(0, {lanes} - 1) n;
             insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot)
             select '{name}', n, 1, 0, 'born', 0, coalesce(pg_sequence_last_value('posthaste.outbox_seq'), 0), pg_current_snapshot()
               from generate_series(0, {lanes} - 1) n"
        ))
        .await;
    }

    /// Appends `count` events to `topic`, each with a key of its own.
    pub(crate) async fn append(&self, topic: &str, count: i64) {
        self.run(&format!(
            "insert into posthaste.outbox (topic, key, payload)
             select '{topic}', 'k' || n, '\\x00' from generate_series(1, {count}) n"
        ))
        .await;
    }
}

/// Roles belong to the server, which other tests share.
pub(crate) fn roles_of(database: &TestDatabase) -> Roles {
    let name = |role| format!("{}_{role}", database.name());
    let (app, consumer) = (name("app"), name("consumer"));
    let gateway = name("gateway");
    Roles { app, consumer, relay: name("relay"), admin: name("admin"), gateway, create: true }
}

pub(crate) async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

/// The SQLSTATE that a statement fails with.
pub(crate) async fn fails_with(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => panic!("{sql}: was allowed"),
        Err(error) => error.code().map(|code| code.code().to_owned()).unwrap_or_default(),
    }
}
