//! A database with an outbox, as the suite wants it.

use async_trait::async_trait;
use posthaste::admin::Admin;
use posthaste::intake::{Intake, IntakeBounds, TenantStore};
use posthaste::{Event, Headers, Timestamp};
use posthaste_postgres::{PostgresAdmin, PostgresConfig, PostgresIntake, PostgresTenants, migrate};
use posthaste_testkit::conformance::{DEADLINE, eventually};
use posthaste_testkit::intake::{Blocking, IntakeFixture};
use posthaste_testkit::services::{self, PgBouncer, Postgres, TestDatabase};
use std::sync::Arc;
use tokio_postgres::{Client, Row};

pub(crate) struct IntakeGround {
    database: TestDatabase,
    pooler: Option<PgBouncer>,
    schema: &'static str,
    pub(crate) client: Client,
}

struct Lock {
    _client: Client,
}

impl Blocking for Lock {}

impl IntakeGround {
    pub(crate) async fn make() -> Option<Self> {
        let database = services::require(TestDatabase::create().await)?;
        Some(Self::on(database, "posthaste").await)
    }

    pub(crate) async fn elsewhere() -> Option<Self> {
        let database = services::require(TestDatabase::create().await)?;
        Some(Self::on(database, "event log").await)
    }

    pub(crate) async fn pooled() -> Option<Self> {
        let mut ground = Self::make().await?;
        let url: tokio_postgres::Config = ground.database.url().parse().expect("a URL");
        let server = std::net::SocketAddr::from(([127, 0, 0, 1], url.get_ports()[0]));
        ground.pooler = Some(services::require(PgBouncer::start_before(server).await)?);
        Some(ground)
    }

    /// On a server of the test's own.
    pub(crate) async fn private(server: &Postgres) -> Self {
        Self::on(TestDatabase::create_on(server).await.expect("a database"), "posthaste").await
    }

    async fn on(database: TestDatabase, schema: &'static str) -> Self {
        let client = database.connect().await.expect("the test's own database answers");
        let ground = Self { database, pooler: None, schema, client };
        migrate::up(&ground.direct(), &migrate::Roles::default()).await.expect("the migration applies");
        ground
    }

    /// The same after the server was gone.
    pub(crate) async fn again(mut self) -> Self {
        self.client = self.connect().await;
        self
    }

    pub(crate) fn url_as(&self, user: &str) -> String {
        self.database.url_as(user)
    }

    fn direct(&self) -> PostgresConfig {
        PostgresConfig { schema: self.schema.to_owned(), ..PostgresConfig::new(self.database.url()) }
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        match &self.pooler {
            Some(pooler) => {
                PostgresConfig { pooled: true, ..PostgresConfig::new(pooler.url_for(self.database.name())) }
            }
            None => self.direct(),
        }
    }

    pub(crate) fn start(&self, bounds: IntakeBounds) -> Arc<dyn Intake> {
        Arc::new(PostgresIntake::start(self.config(), bounds))
    }

    pub(crate) async fn connect(&self) -> Client {
        self.database.connect().await.expect("a connection")
    }

    fn sql(&self, sql: &str) -> String {
        sql.replace("posthaste.", &format!("\"{}\".", self.schema))
    }

    pub(crate) async fn run(&self, sql: &str) {
        let sql = self.sql(sql);
        self.client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let sql = self.sql(sql);
        self.client.query_one(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Waits until this question is answered with more than none.
    pub(crate) async fn until(&self, sql: &str) {
        let some = || async { (self.number(sql).await > 0).then_some(()) };
        eventually(sql, DEADLINE, some).await;
    }
}

fn event(row: &Row) -> Event {
    let headers: Option<String> = row.get("headers");
    Event {
        headers: headers
            .map(|text| Headers::from_json(text.as_bytes()).expect("headers"))
            .unwrap_or_default(),
        key: row.get("key"),
        content_type: row.get("content_type"),
        payload: row.get::<_, Option<Vec<u8>>>("payload").map(Into::into),
        deliver_at: row.get::<_, Option<i64>>("deliver_at").map(Timestamp),
        ..Event::bare(row.get("id"), row.get::<_, String>("topic"))
    }
}

#[async_trait]
impl IntakeFixture for IntakeGround {
    async fn intake(&self, bounds: IntakeBounds) -> Arc<dyn Intake> {
        self.start(bounds)
    }

    async fn tenants(&self) -> Arc<dyn TenantStore> {
        Arc::new(PostgresTenants::new(self.config()))
    }

    async fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(PostgresAdmin::connect(self.direct()).await.expect("the admin connects"))
    }

    async fn events(&self) -> Vec<Event> {
        let sql = self.sql(
            "select id, topic, key, headers::text, content_type, payload,
                    (extract(epoch from deliver_at) * 1000000)::bigint as deliver_at from posthaste.outbox order by seq",
        );
        self.client.query(&sql, &[]).await.expect("a query of the test").iter().map(event).collect()
    }

    async fn refuse(&self, topic: &str) {
        self.run(&format!(
            "create function posthaste.refuse() returns trigger language plpgsql as $$
               begin raise exception 'not this one'; end $$;
             create trigger refuse before insert on posthaste.outbox for each row when (new.topic = '{topic}')
               execute function posthaste.refuse()"
        ))
        .await;
    }

    async fn block(&self) -> Box<dyn Blocking> {
        let client = self.connect().await;
        let lock = self.sql("begin; lock table posthaste.outbox in exclusive mode");
        client.batch_execute(&lock).await.expect("the lock is free");
        Box::new(Lock { _client: client })
    }

    async fn until_blocked(&self) {
        self.until(
            "select count(*) from pg_locks where not granted and database = (select oid from pg_database
                     where datname = current_database())",
        )
        .await;
    }
}
