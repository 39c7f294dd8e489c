//! The database of a service, as the suite wants it.

use async_trait::async_trait;
use posthaste::admin::{Actor, AdminError, DeadAct, DeadFilter, History};
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::consumer::store::{ConsumerControls, InboxStore, Work};
use posthaste::consumer::{Filter, HandlerError, Message};
use posthaste::inbox::kept::KeptHeaders;
use posthaste::source::Partition;
use posthaste::store::StoreError;
use posthaste_postgres::consumer::{Handler, InboxOptions, InboxTables, PostgresInbox};
use posthaste_postgres::{PostgresAdmin, PostgresConfig, migrate};
use posthaste_testkit::conformance::consumer::{
    ConsumerFixture, DeferredView, LetterView, PartitionRecord, Script,
};
use posthaste_testkit::services::{self, PgBouncer, Postgres, TestDatabase};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Transaction};
use uuid::Uuid;

pub(crate) struct InboxFixture {
    database: Option<TestDatabase>,
    url: String,
    pooler: Option<PgBouncer>,
    pub(crate) tables: InboxTables,
}

pub(crate) fn actor() -> Actor {
    Actor::new("test", "a case of the suite")
}

impl InboxFixture {
    /// Where [`effect`] writes.
    pub(crate) const EFFECTS: &str =
        "create table effects (n bigint generated always as identity, consumer text, id text)";

    pub(crate) async fn make() -> Option<Self> {
        let database = services::require(TestDatabase::create().await)?;
        let url = database.url().to_owned();
        let tables = InboxTables::default();
        Some(Self { database: Some(database), url, pooler: None, tables }.set_up().await)
    }

    pub(crate) async fn pooled() -> Option<Self> {
        let mut fixture = Self::make().await?;
        let url: tokio_postgres::Config = fixture.url.parse().expect("a URL");
        let server = std::net::SocketAddr::from(([127, 0, 0, 1], url.get_ports()[0]));
        fixture.pooler = Some(services::require(PgBouncer::start_before(server).await)?);
        Some(fixture)
    }

    /// With these tables, as their own text makes them.
    pub(crate) async fn mapped(tables: InboxTables) -> Option<Self> {
        let mut fixture = Self::make().await?;
        let sql = posthaste_postgres::consumer::mapped::sql(&tables, &migrate::Roles::default());
        fixture.run(&sql.expect("the tables' text")).await;
        fixture.tables = tables;
        Some(fixture)
    }

    /// On a server of the test's own.
    pub(crate) async fn on(server: &Postgres) -> Self {
        let tables = InboxTables::default();
        Self { database: None, url: server.url(), pooler: None, tables }.set_up().await
    }

    async fn set_up(self) -> Self {
        migrate::up(&self.direct(), &migrate::Roles::default()).await.expect("the migration applies");
        self.client().await.batch_execute(Self::EFFECTS).await.expect("a table of the test");
        self
    }

    fn direct(&self) -> PostgresConfig {
        PostgresConfig::new(self.url.clone())
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        match (&self.pooler, &self.database) {
            (Some(pooler), Some(database)) => {
                PostgresConfig { pooled: true, ..PostgresConfig::new(pooler.url_for(database.name())) }
            }
            _ => self.direct(),
        }
    }

    pub(crate) async fn client(&self) -> Client {
        posthaste_postgres::connect(&self.direct()).await.expect("a connection")
    }

    pub(crate) async fn admin(&self) -> PostgresAdmin {
        let mut admin = PostgresAdmin::connect(self.direct()).await.expect("the admin connects");
        admin.map_tables("billing", "billing", &self.tables);
        admin
    }

    /// One more member of the consumer `billing`, with this handler.
    pub(crate) async fn with(&self, handler: impl Handler) -> PostgresInbox {
        self.connect(handler).await.expect("the inbox connects")
    }

    /// Why a consumer with this handler does not start.
    pub(crate) async fn refusal(&self, handler: impl Handler) -> String {
        self.connect(handler).await.map(drop).expect_err("it is refused").to_string()
    }

    async fn connect(&self, handler: impl Handler) -> Result<PostgresInbox, StoreError> {
        let handlers: posthaste_postgres::consumer::Handlers = vec![(Filter::default(), Arc::new(handler))];
        let options = InboxOptions { tables: self.tables.clone(), ..InboxOptions::new("billing") };
        PostgresInbox::connect(self.config(), options, handlers).await
    }

    pub(crate) async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        self.client().await.query(sql, params).await.expect("a query of the test")
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.expect("a statement of the test");
    }
}

struct Scripted(Arc<Script>);

/// What a handler of a test does first.
pub(crate) async fn effect(tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
    let insert = "insert into effects (consumer, id) values ($1, $2)";
    tx.execute(insert, &[&message.consumer(), &message.id()]).await?;
    Ok(())
}

#[async_trait]
impl Handler for Scripted {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        effect(tx, message).await?;
        self.0.run(message)
    }
}

fn codes(row: &Row) -> Vec<String> {
    let history = row.get::<_, Option<String>>("history").map(|text| History::from_json(&text));
    history.unwrap_or_default().attempts().iter().map(|attempt| attempt.code.clone()).collect()
}

#[async_trait]
impl ConsumerFixture for InboxFixture {
    async fn inbox(&self, consumer: &str, filter: Filter, script: &Arc<Script>) -> Arc<dyn InboxStore> {
        let handler: Arc<dyn Handler> = Arc::new(Scripted(Arc::clone(script)));
        let options = InboxOptions { tables: self.tables.clone(), ..InboxOptions::new(consumer) };
        let inbox = PostgresInbox::connect(self.config(), options, vec![(filter, handler)]).await;
        Arc::new(inbox.expect("the inbox connects"))
    }

    async fn effects(&self, consumer: &str) -> Vec<String> {
        let rows = self.rows("select id from effects where consumer = $1 order by n", &[&consumer]).await;
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn marks(&self, consumer: &str) -> BTreeMap<String, char> {
        let native = "select message_id, outcome::text from posthaste.inbox where consumer = $1";
        // A foreign mark has no outcome: it is where the message is.
        let mapped = "select k.id, case when d.seq is not null then 'w' when t.status = 'DLQ' then 'x' else 'd' end
                        from (select substr(request_key, length($1::text) + 2) as id from sys.request_keys
                               where starts_with(request_key, $1 || ':')) k
                        left join posthaste.inbox_deferred d on d.consumer = $1 and d.message_id = k.id and not d.repeat
                        left join sys.message_traceability t on t.kafka_message_id = k.id || '#' || $1";
        let sql = if self.tables.mapping().is_some() { mapped } else { native };
        let mark = |row: &Row| (row.get(0), row.get::<_, String>(1).chars().next().expect("a letter"));
        self.rows(sql, &[&consumer]).await.iter().map(mark).collect()
    }

    async fn deferred(&self, consumer: &str) -> Vec<DeferredView> {
        let sql = "select message_id, holds, repeat, attempts, replays, not isfinite(due_at) as is_behind, error_code,
                          history::text as history from posthaste.inbox_deferred where consumer = $1 order by seq";
        let view = |row: &Row| DeferredView {
            id: row.get("message_id"),
            holds: row.get("holds"),
            repeat: row.get("repeat"),
            attempts: row.get::<_, i32>("attempts").unsigned_abs(),
            replays: row.get::<_, i32>("replays").unsigned_abs(),
            is_behind: row.get("is_behind"),
            code: row.get("error_code"),
            history: codes(row),
        };
        self.rows(sql, &[&consumer]).await.iter().map(view).collect()
    }

    async fn letters(&self, consumer: &str) -> Vec<LetterView> {
        let sql = "select letter, message_id, holds_key, repeat, attempts, disposition, error_code,
                          history::text as history from posthaste.inbox_dead_letters where consumer = $1 order by seq";
        let view = |row: &Row| LetterView {
            letter: row.get("letter"),
            id: row.get("message_id"),
            holds_key: row.get("holds_key"),
            repeat: row.get("repeat"),
            attempts: row.get::<_, i32>("attempts").unsigned_abs(),
            disposition: row.get("disposition"),
            code: row.get("error_code"),
            history: codes(row),
        };
        self.rows(sql, &[&consumer]).await.iter().map(view).collect()
    }

    async fn partition(&self, consumer: &str, partition: &Partition) -> Option<PartitionRecord> {
        let sql = "select position, clean, in_hand, seeks from posthaste.inbox_partitions
                    where consumer = $1 and topic = $2 and partition = $3";
        let rows = self.rows(sql, &[&consumer, &&*partition.topic, &partition.number]).await;
        rows.first().map(|row| PartitionRecord {
            position: row.get(0),
            clean: row.get(1),
            in_hand: row.get(2),
            seeks: row.get(3),
        })
    }

    async fn make_due(&self, consumer: &str) {
        let sql = "update posthaste.inbox_deferred set due_at = least(due_at, now() - interval '1 second')
                    where consumer = $1 and isfinite(due_at)";
        self.rows(sql, &[&consumer]).await;
    }

    async fn age(&self, consumer: &str, by: Duration) {
        let ages =
            [("inbox", "processed_at"), ("inbox_dead_letters", "dead_at"), ("inbox_partitions", "taken_at")];
        for (table, column) in ages {
            let sql = format!(
                "update posthaste.{table} set {column} = {column} - make_interval(secs => $2) where consumer = $1"
            );
            self.rows(&sql, &[&consumer, &by.as_secs_f64()]).await;
        }
    }

    async fn replay(&self, consumer: &str, letter: Uuid) -> bool {
        let filter = DeadFilter { ids: vec![letter], ..DeadFilter::default() };
        let acted = self.admin().await.letter_act(consumer, &filter, DeadAct::Replay, &actor(), 10).await;
        match acted {
            Ok(count) => count == 1,
            Err(AdminError::Conflict { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    async fn discard(&self, consumer: &str, letter: Uuid) {
        let filter = DeadFilter { ids: vec![letter], ..DeadFilter::default() };
        let acted = self.admin().await.letter_act(consumer, &filter, DeadAct::Discard, &actor(), 10).await;
        assert_eq!(acted.expect("the act succeeds"), 1);
    }

    async fn seek(&self, consumer: &str, partition: &Partition, to: i64) {
        self.admin()
            .await
            .seek(consumer, partition, to, None, &actor())
            .await
            .expect("the partition is moved");
    }

    async fn copy_range(&self, consumer: &str, range: &[Work], repeat: bool) {
        self.admin()
            .await
            .copy_range(consumer, range, repeat, &KeptHeaders::default(), &actor())
            .await
            .expect("copied");
    }

    async fn control(&self, consumer: &str, controls: &ConsumerControls) {
        let sql = "insert into posthaste.controls (kind, name, paused, rate_limit) values ('consumer', $1, $2, $3)
                       on conflict (kind, name) do update set paused = excluded.paused, rate_limit = excluded.rate_limit";
        self.rows(sql, &[&consumer, &controls.paused, &controls.rate_limit]).await;
    }
}
