//! The intake and the tenants: the suite, and what only SQLite has.

use crate::fixture::SqliteFixture;
use async_trait::async_trait;
use posthaste::admin::Admin;
use posthaste::intake::{Intake, IntakeBounds, TenantStore};
use posthaste::{Event, Headers, Timestamp};
use posthaste_sqlite::{SqliteConfig, SqliteIntake, SqliteTenants, Synchronous};
use posthaste_testkit::intake::{Blocking, IntakeFixture};
use posthaste_testkit::intake_suite;
use rusqlite::Row;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

struct Ground(SqliteFixture);

impl Ground {
    async fn make() -> Option<Self> {
        SqliteFixture::make().await.map(Self)
    }
}

/// A transaction on a thread of its own: it ends when this is dropped.
struct WriteLock {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Blocking for WriteLock {}

impl Drop for WriteLock {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it did not panic");
        }
    }
}

fn event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let (id, topic): (String, String) = (row.get("id")?, row.get("topic")?);
    let headers: Option<String> = row.get("headers")?;
    Ok(Event {
        headers: headers
            .map(|text| Headers::from_json(text.as_bytes()).expect("headers"))
            .unwrap_or_default(),
        key: row.get("key")?,
        content_type: row.get("content_type")?,
        payload: row.get::<_, Option<Vec<u8>>>("payload")?.map(Into::into),
        deliver_at: row.get::<_, Option<i64>>("deliver_at")?.map(Timestamp),
        ..Event::bare(uuid::Uuid::parse_str(&id).expect("an id"), topic)
    })
}

#[async_trait]
impl IntakeFixture for Ground {
    async fn intake(&self, bounds: IntakeBounds) -> Arc<dyn Intake> {
        Arc::new(SqliteIntake::start(self.0.config(), bounds).expect("the intake starts"))
    }

    async fn tenants(&self) -> Arc<dyn TenantStore> {
        Arc::new(SqliteTenants::new(self.0.config()))
    }

    async fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(self.0.admin().await)
    }

    async fn events(&self) -> Vec<Event> {
        let connection = self.0.connect();
        let sql = "select id, topic, key, headers, content_type, payload, deliver_at from posthaste_outbox order by seq";
        let mut statement = connection.prepare(sql).expect("a statement");
        let rows = statement.query_map([], event).expect("a query");
        rows.collect::<Result<_, _>>().expect("rows")
    }

    async fn refuse(&self, topic: &str) {
        let sql = format!(
            "create trigger refuse before insert on posthaste_outbox when new.topic = '{topic}'
             begin select raise(abort, 'not this one'); end"
        );
        self.0.connect().execute_batch(&sql).expect("a trigger");
    }

    async fn block(&self) -> Box<dyn Blocking> {
        let connection = self.0.connect();
        let (end, ended) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            connection.execute_batch("begin immediate").expect("the lock is free");
            begun.send(()).expect("the case waits");
            let _ = ended.recv();
            connection.execute_batch("rollback").expect("the lock is let go");
        });
        begins.recv().expect("the lock is taken");
        Box::new(WriteLock { end: Some(end), thread: Some(thread) })
    }

    /// The writer asks for the lock again and again, and takes no ticket before it has it.
    async fn until_blocked(&self) {}
}

intake_suite!(suite, Ground::make);

/// A commit that a power cut may take back is no 202.
#[tokio::test]
async fn w1_a_database_that_is_not_durable_is_refused() {
    let Some(Ground(fixture)) = Ground::make().await else { return };
    let config = SqliteConfig { synchronous: Synchronous::Normal, ..fixture.config() };
    let error = SqliteIntake::start(config, IntakeBounds::default()).err().expect("refused");
    assert!(error.to_string().contains("synchronous=full"), "{error}");
    let missing = SqliteConfig::new(fixture.path().with_extension("none"));
    assert!(SqliteIntake::start(missing, IntakeBounds::default()).is_err());
}
