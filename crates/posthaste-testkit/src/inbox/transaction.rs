//! A transaction of the model: statements, named locks, one commit.

use super::tables::{OrderKey, Tables};
use super::{MemoryInbox, ServerLife};
use posthaste::consumer::store::{InboxError, Witness};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// How long a statement waits for another transaction.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// What can be locked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LockName {
    /// A mark that is not committed yet, by consumer and id.
    Mark(String, String),
    /// A key.
    Key(String, OrderKey),
    /// A deferred row.
    Row(i64),
    /// A deferred row whose attempt is written down before it is made.
    Attempt(i64),
}

/// The locks of one life of the server. A server that dies forgets them.
#[derive(Default)]
pub(super) struct Locks(Mutex<BTreeMap<LockName, Arc<tokio::sync::Mutex<()>>>>);

impl Locks {
    pub(super) fn of(&self, name: LockName) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(name).or_default())
    }
}

/// An open transaction. Dropped without a commit, it leaves nothing.
pub(super) struct OpenWork<'a> {
    inbox: &'a MemoryInbox,
    pub(super) witness: Witness,
    locks: Arc<Locks>,
    held: Vec<OwnedMutexGuard<()>>,
}

impl MemoryInbox {
    pub(super) fn begin(&self) -> OpenWork<'_> {
        let life = self.database.life();
        OpenWork { inbox: self, witness: life.witness(), locks: Arc::clone(&life.locks), held: Vec::new() }
    }
}

impl OpenWork<'_> {
    /// One statement: it takes its time, and finds its connection lost if the server died since the
    /// beginning.
    pub(super) async fn statement<T>(&self, run: impl FnOnce(&mut Tables) -> T) -> Result<T, InboxError> {
        self.inbox.faults.step().await;
        let mut life: std::sync::MutexGuard<'_, ServerLife> = self.inbox.database.life();
        if life.witness() != self.witness || life.is_away {
            return Err(InboxError::Unavailable("the connection was lost".to_owned()));
        }
        Ok(run(&mut life.tables))
    }

    /// Writes everything at once, and lets the locks go.
    pub(super) async fn commit<T>(self, write: impl FnOnce(&mut Tables) -> T) -> Result<T, InboxError> {
        self.statement(write).await
    }

    /// Waits for a lock that is held until the end.
    pub(super) async fn lock(&mut self, name: LockName) -> Result<(), InboxError> {
        let guard = self.wait_for(name).await?;
        self.held.push(guard);
        Ok(())
    }

    /// Takes a lock if it is free.
    pub(super) fn try_lock(&mut self, name: LockName) -> bool {
        let guard = self.locks.of(name).try_lock_owned();
        guard.map(|guard| self.held.push(guard)).is_ok()
    }

    /// Inserts a mark, unless it is there: waits for whoever is about to commit the same. The mark is
    /// written at the commit; until then the lock stands for it. Answers whether it is ours.
    pub(super) async fn insert_mark(&mut self, id: &str) -> Result<bool, InboxError> {
        let consumer = self.inbox.consumer.to_string();
        let guard = self.wait_for(LockName::Mark(consumer.clone(), id.to_owned())).await?;
        let first = self.statement(|tables| tables.mark(&consumer, id).is_none()).await?;
        if first {
            self.held.push(guard);
        }
        Ok(first)
    }

    async fn wait_for(&self, name: LockName) -> Result<OwnedMutexGuard<()>, InboxError> {
        let lock = self.locks.of(name).lock_owned();
        let waited = tokio::time::timeout(LOCK_TIMEOUT, lock).await;
        waited.map_err(|_| InboxError::Conflict("lock timeout".to_owned()))
    }
}
