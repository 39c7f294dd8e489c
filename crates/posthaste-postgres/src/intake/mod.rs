//! The intake on PostgreSQL: requests of many tenants, few commits.
//!
//! **Group commit without a timer.** A few tasks, each with a connection of its own. Each takes what has
//! gathered and stores it with one call of `gateway_append`, which commits by itself. While it does, requests
//! gather for the next; a lone request waits for nobody.
//!
//! ```text
//! room.rs     where requests wait: bounds, order, withdrawal
//! commit.rs   a group, until all of it is answered
//! call.rs     one call, and what its answer means
//! link.rs     the connection, and what became of a commit without an answer
//! tenants.rs  who may come
//! ```
//!
//! What is wrong with one request costs itself: a group that the database refuses is taken apart, and so is
//! one that meets an idempotency key that somebody else is about to commit. That request is tried apart from
//! the others, on a connection of its own, until its time is up.
//!
//! A lost connection leaves no doubt. Each call writes a row with a random id; a look at that row says
//! whether the call has committed, and if it has not, sees to it that it never will. So the group goes again,
//! or is answered. Only while the database stays away nobody knows.
//!
//! Refused: a transaction of several statements. A gateway that freezes in the middle would hold its keys
//! until the server loses patience, and whole groups of other gateways with them.

mod call;
mod commit;
mod link;
mod room;
mod tenants;

pub use tenants::PostgresTenants;

use crate::config::PostgresConfig;
use crate::error::store_error;
use crate::log::store::check_server;
use crate::migrate;
use crate::session::{Sessions, params};
use async_trait::async_trait;
use commit::Committer;
use link::{Dial, Link};
use posthaste::Limits;
use posthaste::intake::{Admitted, IngestRequest, Intake, IntakeBounds, IntakeError, IntakeFigures};
use posthaste::store::StoreError;
use posthaste::task::{Task, spawn};
use room::Room;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Rows of one purge, and how many purges one call makes: a cleanup must not be a load of its own.
const PURGE_ROWS: i64 = 1_000;
const PURGES_MAX: usize = 20;

/// A pause before a task that panicked goes on.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Stores what tenants hand in.
pub struct PostgresIntake {
    room: Arc<Room>,
    limits: Limits,
    dial: Arc<Dial>,
    /// For cleaning up, beside the commits.
    sessions: Arc<Sessions>,
    _tasks: Vec<Task<()>>,
}

impl PostgresIntake {
    /// Starts the tasks; each connects when there is something to store. Must be called inside a runtime.
    #[must_use]
    pub fn start(config: PostgresConfig, bounds: IntakeBounds) -> Self {
        let (limits, sessions) = (config.limits, Sessions::with_settings(config.clone(), "", false));
        sessions.answer_within(bounds.append_timeout.max(Duration::from_secs(1)));
        let (held, holding) = mpsc::unbounded_channel();
        let room = Arc::new(Room::new(bounds, held));
        let dial = Arc::new(Dial::new(config, bounds.append_timeout));
        let mut tasks: Vec<Task<()>> = (0..bounds.connections.max(1))
            .map(|_| {
                let (room, dial) = (Arc::clone(&room), Arc::clone(&dial));
                lasting(move || Committer::new(Arc::clone(&room), Arc::clone(&dial)).run())
            })
            .collect();
        let (of_held, holding) = (Arc::clone(&room), Arc::new(tokio::sync::Mutex::new(holding)));
        let probing = Arc::clone(&dial);
        tasks.push(lasting(move || {
            let (holding, committer) =
                (Arc::clone(&holding), Committer::new(Arc::clone(&of_held), Arc::clone(&dial)));
            async move { committer.run_held(&mut *holding.lock().await).await }
        }));
        Self { room, limits, dial: probing, sessions, _tasks: tasks }
    }

    /// Looks once whether the database is there, is a primary, and has an outbox we understand.
    pub async fn check(&self) -> Result<(), StoreError> {
        let mut session = self.sessions.session().await?;
        check_server(&mut session).await?;
        migrate::check_version(&mut session, &self.sessions).await.map(drop)
    }

    async fn purge_rows(&self, sql: &str, seconds: f64) -> Result<u64, StoreError> {
        let sql = self.sessions.sql(sql);
        let mut gone = 0;
        for _ in 0..PURGES_MAX {
            let mut session = self.sessions.session().await?;
            let rows = session.query_once(&sql, params![FLOAT8 seconds, INT8 PURGE_ROWS]).await;
            let rows = rows.map_err(store_error)?.len();
            gone += rows as u64;
            if (rows as i64) < PURGE_ROWS {
                break;
            }
        }
        Ok(gone)
    }
}

/// A task that goes on after a panic (F68). What it had in its hands is answered with "nobody knows".
fn lasting<F>(make: impl Fn() -> F + Send + 'static) -> Task<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    spawn("intake", async move {
        while let Err(died) = spawn("intake connection", make()).await {
            tracing::error!(%died, "a task of the intake ended; it begins anew");
            // pace: a defect that comes again at once must not fill the log.
            tokio::time::sleep(AFTER_PANIC).await;
        }
    })
}

#[async_trait]
impl Intake for PostgresIntake {
    async fn append(&self, request: IngestRequest) -> Result<Admitted, IntakeError> {
        if request.events.is_empty() {
            return Err(IntakeError::Refused("there are no events in it".to_owned()));
        }
        for event in &request.events {
            self.limits.check(event).map_err(|error| IntakeError::Refused(error.to_string()))?;
        }
        self.room.store(request).await
    }

    async fn purge(&self, older_than: Duration) -> Result<u64, StoreError> {
        let seconds = older_than.as_secs_f64();
        let requests = self.purge_rows(include_str!("../../sql/intake/purge_requests.sql"), seconds).await?;
        let commits = self.purge_rows(include_str!("../../sql/intake/purge_commits.sql"), seconds).await?;
        Ok(requests + commits)
    }

    fn figures(&self) -> IntakeFigures {
        self.room.figures()
    }

    fn trouble(&self) -> Option<String> {
        self.room.last_trouble()
    }

    async fn probe(&self) -> Result<(), String> {
        self.check().await.map_err(|error| error.to_string())?;
        Link::open(&self.dial).await.map_err(|error| error.to_string())?.probe().await?;
        self.room.no_trouble();
        Ok(())
    }
}
