//! Connections for reading: a few, each on a blocking thread while it works.
//!
//! In WAL mode readers wait for nobody and nobody waits for them. A connection that met an error is closed,
//! not kept: the next one starts clean.

use crate::connect::open_reader;
use crate::error::store_error;
use posthaste::store::StoreError;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// A small pool of reading connections to one file.
#[derive(Clone)]
pub(crate) struct Readers {
    path: Arc<Path>,
    idle: Arc<Mutex<Vec<Connection>>>,
    room: Arc<Semaphore>,
}

impl Readers {
    pub(crate) fn new(path: PathBuf, connections_max: usize) -> Self {
        Self {
            path: path.into(),
            idle: Arc::default(),
            room: Arc::new(Semaphore::new(connections_max.clamp(1, 64))),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a look in one read transaction: all of it sees one state of the database.
    pub(crate) async fn read<T, E, F>(&self, look: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    {
        let gone = |what: &str| StoreError::Transient {
            message: format!("a read could not be made: {what}"),
            outcome_known: true,
        };
        let permit = Arc::clone(&self.room).acquire_owned().await;
        let permit = permit.map_err(|_| E::from(gone("the pool is closed")))?;
        let readers = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            readers.read_now(look)
        });
        work.await.unwrap_or_else(|error| Err(gone(&error.to_string()).into()))
    }

    fn read_now<T, E, F>(&self, look: F) -> Result<T, E>
    where
        E: From<StoreError>,
        F: FnOnce(&Transaction<'_>) -> Result<T, E>,
    {
        let kept = self.idle().pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => open_reader(&self.path)?,
        };
        let tx = connection.transaction_with_behavior(TransactionBehavior::Deferred).map_err(store_error)?;
        let answer = look(&tx)?;
        tx.finish().map_err(store_error)?;
        self.idle().push(connection);
        Ok(answer)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
