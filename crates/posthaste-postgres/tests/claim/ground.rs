//! A database with somebody else's table in it, and relays on it.

use posthaste::Limits;
use posthaste::clock::SystemClock;
use posthaste::relay::{RelayHandle, RelayPlan, RelaySettings, SinkEntry, start};
use posthaste::route::{Order, Route, RouteTable};
use posthaste::sink::{Failure, Ordering, Sink, Verdict};
use posthaste::store::{StartAt, StoreError};
use posthaste_postgres::PostgresConfig;
use posthaste_postgres::claim::{ClaimStore, Layout, preset};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::faults::{Broker, RecordingSink, Reply};
use posthaste_testkit::services::{self, TestDatabase};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_postgres::Client;

/// Ends a hang; it times nothing.
pub(crate) const WAIT: Duration = Duration::from_secs(90);

/// The application's database, a broker, and what a relay is started with.
pub(crate) struct Ground {
    pub(crate) database: TestDatabase,
    /// The application's own connection.
    pub(crate) app: Client,
    pub(crate) broker: Broker,
    pub(crate) layout: Layout,
    pub(crate) route: Route,
    pub(crate) settings: RelaySettings,
}

impl Ground {
    /// A database with this DDL, for a preset.
    pub(crate) async fn make(name: &str, ddl: &str) -> Option<Self> {
        let database = services::require(TestDatabase::create().await)?;
        let app = database.connect().await.expect("the test's own database answers");
        app.batch_execute(ddl).await.expect("the owners' DDL");
        let preset = preset(name).expect("a preset");
        let route = Route {
            order: Order::None,
            retry: preset.layout.retry,
            envelope: preset.envelope,
            ..Route::everything_to("s")
        };
        let settings = RelaySettings { heartbeat_ms: 100, ..RelaySettings::default() };
        Some(Self { database, app, broker: Broker::new(), layout: preset.layout, route, settings })
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        PostgresConfig::new(self.database.url())
    }

    pub(crate) async fn store(&self) -> Result<ClaimStore, StoreError> {
        ClaimStore::connect(self.config(), self.layout.clone()).await
    }

    /// A relay of this name.
    pub(crate) async fn relay(&self, name: &str) -> RelayHandle {
        let sink = RecordingSink::new(&self.broker, name, Ordering::Overlap);
        self.relay_to(name, Arc::new(sink)).await
    }

    pub(crate) async fn relay_to(&self, name: &str, sink: Arc<dyn Sink>) -> RelayHandle {
        let store = self.store().await.expect("the store connects");
        let routes = RouteTable::new(vec![self.route.clone()]);
        let plan = RelayPlan {
            host: "host".into(),
            outbox: "adopted".into(),
            service: "test".into(),
            relay: name.into(),
            store: Arc::new(store),
            sinks: vec![SinkEntry {
                name: "s".into(),
                sink,
                start_at: StartAt::Auto,
                classes: Default::default(),
            }],
            routes: routes.clone(),
            limits: Limits::default(),
            lanes: None,
        };
        let settings = watch::channel(self.settings.clone()).1;
        start(plan, settings, watch::channel(routes).1, Arc::new(SystemClock))
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.app.batch_execute(sql).await.expect("a statement of the test");
    }

    /// One value of one row.
    pub(crate) async fn ask<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, sql: &str) -> T {
        self.app.query_one(sql, &[]).await.expect("a question of the test").get(0)
    }

    /// Waits until a condition in SQL holds.
    pub(crate) async fn until(&self, condition: &str) {
        eventually(condition, WAIT, async || {
            self.ask::<bool>(&format!("select {condition}")).await.then_some(())
        })
        .await;
    }

    /// From now on events whose topic says so fail, in the way that the topic names.
    pub(crate) fn judge_by_topic(&self) {
        self.broker.judge(|offer| match offer.message.stored.event.topic.as_str() {
            topic if topic.ends_with("refused") => {
                Reply::Refuse(Verdict::Rejected(Failure::of_event("test.refused", "never")))
            }
            topic if topic.ends_with("failing") => {
                Reply::Refuse(Verdict::Retry(Failure::of_event("test.failing", "not now")))
            }
            _ => Reply::Deliver,
        });
    }

    /// From now on every change of a row is written down, with the time when its statement began and the time
    /// when it was made.
    pub(crate) async fn audit(&self, table: &str) {
        self.execute(&format!(
            "create table audit (begun timestamptz not null default statement_timestamp(), at timestamptz not null default clock_timestamp(),
               id text, was jsonb, row jsonb);
             create function audit() returns trigger language plpgsql as
               $$ begin insert into audit (id, was, row) values (to_jsonb(new) ->> 'id', to_jsonb(old), to_jsonb(new)); return null; end $$;
             create trigger audit after update on {table} for each row execute function audit()"
        ))
        .await;
    }

    /// How long each failed attempt of a row was put off, in seconds: by the audit, in the order of the
    /// count. At least, and at most: from after the change, and from before it, however long the machine
    /// stood still in between.
    pub(crate) async fn delays(&self, id: &str, count: &str, next: &str) -> Vec<(f64, f64)> {
        let since =
            |from: &str| format!("extract(epoch from (row ->> '{next}')::timestamptz - {from})::float8");
        let sql = format!(
            "select {}, {} from audit where id = $1 and row ->> '{count}' <> was ->> '{count}' order by (row ->> '{count}')::int",
            since("at"),
            since("begun")
        );
        let rows = self.app.query(&sql, &[&id]).await.expect("the audit");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Ends the relays' connections as a failover would.
    pub(crate) async fn cut(&self) {
        self.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity
              where datname = current_database() and application_name = 'posthaste'",
        )
        .await;
    }
}

/// Whether each delay is what was asked for: never shorter, nor longer than its jitter allows.
pub(crate) fn assert_delays(found: &[(f64, f64)], wanted: &[f64], jitter: f64) {
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    for ((at_least, at_most), wanted) in found.iter().zip(wanted) {
        let right = *at_least < wanted * (1.0 + jitter) + 0.001 && *at_most > wanted - 0.001;
        assert!(right, "between {at_least} and {at_most} for {wanted}");
    }
}
