//! One relay's connection to the model.

use super::MemoryDatabase;
use super::lease::lease;
use super::tables::{Bells, Tables, plus};
use async_trait::async_trait;
use posthaste::store::{JoinPlan, LaneId, Lease, Roll, Store, StoreCode, StoreError, Swept};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The store of one relay: a session on a [`MemoryDatabase`] that others share.
///
/// Its heart is its session. A crash of the server, or [`MemoryDatabase::kill`], ends it: the next
/// heartbeat fails as a broken connection does, and the one after that has a new session.
#[derive(Debug)]
pub struct MemoryStore {
    database: MemoryDatabase,
    bell: Arc<Notify>,
    lane_bell: Arc<Notify>,
    connection: Mutex<StoreSession>,
}

#[derive(Debug, Default)]
struct StoreSession {
    plan: Option<JoinPlan>,
    session: Option<u64>,
}

impl MemoryStore {
    /// A connection to this database.
    #[must_use]
    pub fn new(database: &MemoryDatabase) -> Self {
        let (bell, lane_bell) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let bells = Bells { events: Arc::downgrade(&bell), lanes: Arc::downgrade(&lane_bell) };
        database.tables().bells.push(bells);
        Self { database: database.clone(), bell, lane_bell, connection: Mutex::default() }
    }

    /// The database behind it.
    #[must_use]
    pub fn database(&self) -> &MemoryDatabase {
        &self.database
    }

    fn connection(&self) -> MutexGuard<'_, StoreSession> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan and a live session, or the error of a connection that broke since the last call.
    fn connected(&self, tables: &mut Tables) -> Result<(JoinPlan, u64), StoreError> {
        let mut connection = self.connection();
        let plan = connection.plan.clone();
        let plan = plan
            .ok_or_else(|| StoreError::fatal(StoreCode::NotJoined, "a relay joins before anything else"))?;
        match connection.session {
            Some(session) if tables.sessions.contains(&session) => Ok((plan, session)),
            Some(_) => {
                connection.session = None;
                Err(broken())
            }
            None => {
                let session = tables.connect();
                connection.session = Some(session);
                Ok((plan, session))
            }
        }
    }
}

fn broken() -> StoreError {
    StoreError::Transient { message: "the connection to the model was lost".to_owned(), outcome_known: true }
}

#[async_trait]
impl Store for MemoryStore {
    async fn join(&self, plan: &JoinPlan) -> Result<(), StoreError> {
        let mut tables = self.database.tables();
        let mut connection = self.connection();
        let alive = connection.session.filter(|session| tables.sessions.contains(session));
        let session = alive.unwrap_or_else(|| tables.connect());
        connection.session = Some(session);
        tables.join(plan, session)?;
        connection.plan = Some(plan.clone());
        Ok(())
    }

    async fn roll(&self, held: &[(LaneId, i64)]) -> Result<Roll, StoreError> {
        let mut tables = self.database.tables();
        let (plan, session) = self.connected(&mut tables)?;
        Ok(tables.roll(&plan, session, held))
    }

    async fn take(&self, lane: &LaneId) -> Result<Option<Arc<dyn Lease>>, StoreError> {
        let (plan, session) = self.connected(&mut self.database.tables())?;
        let Some(sink) = plan.sinks.iter().find(|sink| sink.name == lane.sink) else {
            let why = format!("sink {} is not served by this relay", lane.sink);
            return Err(StoreError::fatal(StoreCode::NotJoined, why));
        };
        Ok(lease(&self.database, lane, &sink.filter, &plan.relay, session))
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        Ok(Swept::default())
    }

    async fn doze(&self, at_most: Duration) -> Result<bool, StoreError> {
        let mut tables = self.database.tables();
        // A deadline, and nobody lowers it for others.
        tables.doze_until = tables.doze_until.max(plus(tables.now(), at_most));
        Ok(true)
    }

    async fn wakeup(&self) {
        self.bell.notified().await;
    }

    async fn lanes_changed(&self) {
        self.lane_bell.notified().await;
    }

    async fn leave(&self) -> Result<(), StoreError> {
        let mut tables = self.database.tables();
        let mut connection = self.connection();
        if let Some(session) = connection.session.take() {
            tables.sessions.remove(&session);
        }
        if let Some(plan) = connection.plan.take() {
            tables.relays.remove(&plan.relay);
        }
        Ok(())
    }
}

impl Drop for MemoryStore {
    /// A process that ends takes its connections along.
    fn drop(&mut self) {
        if let Some(session) = self.connection().session {
            self.database.tables().sessions.remove(&session);
        }
    }
}
