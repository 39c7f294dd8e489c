//! A service with its table, psql beside it, and one Kafka for all tests of this binary.

use crate::binary::Scratch;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::services::{self, TestDatabase};
use std::process::Command;
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::types::FromSql;

/// Ends a hang; it times nothing.
pub(crate) const WAIT: Duration = Duration::from_secs(90);

/// Tests count what arrived: a broker that takes its time on a loaded machine must not get an event a second
/// time.
pub(crate) const PATIENT: &str = "lease_ttl_ms = 60000\npublish_timeout_ms = 40000\n";

/// The service's database.
pub(crate) struct Service {
    pub(crate) database: TestDatabase,
    pub(crate) client: Client,
}

impl Service {
    pub(crate) async fn new(ddl: &str) -> Option<Self> {
        let database = services::require(TestDatabase::create().await)?;
        let client = database.connect().await.expect("a connection");
        let service = Self { database, client };
        service.execute(ddl).await;
        Some(service)
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect("a statement of the service");
    }

    /// One value of one row.
    pub(crate) async fn ask<T: for<'a> FromSql<'a>>(&self, sql: &str) -> T {
        self.client.query_one(sql, &[]).await.expect("a question of the test").get(0)
    }

    pub(crate) async fn until(&self, condition: &str) {
        eventually(condition, WAIT, async || {
            self.ask::<bool>(&format!("select coalesce({condition}, false)")).await.then_some(())
        })
        .await;
    }

    /// The rows of a statement as psql prints them: a line each, `|` between columns.
    pub(crate) fn psql(&self, statement: &str) -> Vec<String> {
        let psql = Command::new("psql")
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement, &self.database.url()])
            .output()
            .expect("psql is there where the server is");
        assert!(psql.status.success(), "{statement}: {}", String::from_utf8_lossy(&psql.stderr));
        String::from_utf8_lossy(&psql.stdout).lines().map(str::to_owned).collect()
    }

    /// From now on every change of a row is written down, with the time when its statement began and the time
    /// when it was made.
    pub(crate) async fn watch(&self, table: &str) {
        self.execute(&format!(
            "create table watched (begun timestamptz not null default statement_timestamp(), at timestamptz not null default clock_timestamp(),
               id text, was jsonb, now jsonb);
             create function watch() returns trigger language plpgsql as
               $$ begin insert into watched (id, was, now) values (to_jsonb(new) ->> 'id', to_jsonb(old), to_jsonb(new)); return null; end $$;
             create trigger watch after update on {table} for each row execute function watch()"
        ))
        .await;
    }

    /// How long each failure of a row put it off, in seconds, in the order of its count. At least, and at
    /// most: from after the change, and from before it, however long the machine stood still in between.
    pub(crate) async fn delays(&self, id: &str, count: &str, next: &str) -> Vec<(f64, f64)> {
        let since =
            |from: &str| format!("extract(epoch from (now ->> '{next}')::timestamptz - {from})::float8");
        let sql = format!(
            "select {}, {} from watched where id = $1 and now ->> '{count}' <> was ->> '{count}' order by (now ->> '{count}')::int",
            since("at"),
            since("begun")
        );
        let rows = self.client.query(&sql, &[&id]).await.expect("what was watched");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// A configuration: `[outbox.adopt]`, the sink, and keys of the one route.
    pub(crate) fn config(&self, adopt: &str, sink: &str, route: &str) -> Scratch {
        Scratch::new(&format!(
            "[relay]\nheartbeat_ms = 500\nsweep_interval_ms = 500\n{PATIENT}[outbox]\nurl = \"{}\"\n[outbox.adopt]\n{adopt}\n[sinks.broker]\n{sink}\n\
             [[route]]\ntopic = \"*\"\nsink = \"broker\"\n{route}\n",
            self.database.url()
        ))
    }
}

/// Whether each delay is what was asked for: never shorter, nor longer than its jitter allows.
pub(crate) fn assert_delays(found: &[(f64, f64)], wanted: &[f64], jitter: f64) {
    assert!(found.len() >= wanted.len(), "{found:?}");
    for ((at_least, at_most), wanted) in found.iter().zip(wanted) {
        let right = *at_least < wanted * (1.0 + jitter) + 0.001 && *at_most > wanted - 0.001;
        assert!(right, "between {at_least} and {at_most} for {wanted}");
    }
}

#[cfg(feature = "kafka")]
pub(crate) mod kafka {
    //! A Kafka that makes no topic by itself, started with the first test that asks.

    use posthaste_testkit::services::{Kafka, KafkaOptions, ServiceError, require};
    use tokio::sync::OnceCell;

    pub(crate) async fn shared() -> Option<&'static Kafka> {
        static SHARED: OnceCell<Result<Kafka, ServiceError>> = OnceCell::const_new();
        let started = SHARED.get_or_init(async || Kafka::start(&KafkaOptions::default()).await).await;
        require(started.as_ref().map_err(Clone::clone))
    }

    /// The keys of a sink that leads there, and waits for an answer for this long.
    pub(crate) fn sink(kafka: &Kafka, delivery_timeout_ms: u32) -> String {
        let url = format!("kafka://{}", kafka.bootstrap());
        format!("type = \"kafka\"\nurl = \"{url}\"\ndelivery_timeout_ms = {delivery_timeout_ms}")
    }

    /// Long enough for a loaded machine: what is not answered is sent again.
    pub(crate) const PATIENT_MS: u32 = 30_000;
}
