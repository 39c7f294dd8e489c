//! The inbox as an executable model: what [`posthaste::consumer::store`] means, in memory.
//!
//! All tables are one value under one lock. A transaction is a row of **statements**: each sees what is
//! committed when it begins, may wait for a lock, and may be slow, refused or frozen by [`Faults`]. What it
//! writes becomes visible at its commit, all at once. Unique marks, locks of keys and skipped rows are named
//! locks, so members get into each other's way as they do on a server: an insert waits for an open mark.
//!
//! Several stores share one [`InboxDatabase`]. It can be restarted, and put back to an earlier state: then
//! every open transaction is lost, and answers carry another witness. Time is tokio's.

mod due;
mod operator;
mod store;
pub mod suite;
mod tables;
mod transaction;

pub use tables::{BuriedMessage, Effect, Mark, MarkOutcome, PartitionRow, SetAsideRow, Tables};

use crate::faults::Faults;
use async_trait::async_trait;
use posthaste::consumer::store::Witness;
use posthaste::consumer::{Failure, Filter, HandlerError, Message};
use posthaste::event::Timestamp;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;
use transaction::Locks;

/// What a handler of the model does its work in.
#[derive(Debug, Default)]
pub struct MemoryTransaction {
    effects: Vec<Effect>,
    refused: Option<Failure>,
}

impl MemoryTransaction {
    /// The handler's work: one more effect of this message, if the transaction commits.
    pub fn effect(&mut self, message: &Message<'_>) {
        self.effects.push(Effect {
            consumer: message.consumer().to_owned(),
            id: message.id().to_owned(),
            partition: message.partition().clone(),
            position: message.position,
            key: message.message.key.clone(),
            attempt: message.attempt(),
        });
    }

    /// The commit will fail, as by a constraint that is checked at the end.
    pub fn refuse_commit(&mut self, failure: Failure) {
        self.refused = Some(failure);
    }
}

/// A handler of the model.
#[async_trait]
pub trait MemoryHandler: Send + Sync + 'static {
    /// Handles one message.
    async fn handle(&self, tx: &mut MemoryTransaction, message: &Message<'_>) -> Result<(), HandlerError>;
}

/// The database of a consuming service. Clones are the same one.
#[derive(Clone)]
pub struct InboxDatabase {
    life: Arc<Mutex<ServerLife>>,
    began: Instant,
}

/// One life of the server, and what it keeps.
struct ServerLife {
    number: i64,
    tables: Tables,
    locks: Arc<Locks>,
    is_away: bool,
}

/// When the model's time begins.
const BEGINNING: Timestamp = Timestamp(1_700_000_000_000_000);

impl Default for InboxDatabase {
    fn default() -> Self {
        let life = ServerLife { number: 1, tables: Tables::default(), locks: Arc::default(), is_away: false };
        Self { life: Arc::new(Mutex::new(life)), began: Instant::now() }
    }
}

impl InboxDatabase {
    fn life(&self) -> MutexGuard<'_, ServerLife> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        BEGINNING.plus_micros(i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    /// A store of one member: its handler, for what the filter takes.
    #[must_use]
    pub fn inbox(&self, consumer: &str, filter: Filter, handler: Arc<dyn MemoryHandler>) -> MemoryInbox {
        let (database, faults) = (self.clone(), Faults::none());
        MemoryInbox { database, consumer: consumer.into(), filter, handler, faults }
    }

    /// Everything that is committed now.
    #[must_use]
    pub fn tables(&self) -> Tables {
        self.life().tables.clone()
    }

    /// Changes what is committed, as somebody with rights to everything.
    pub fn alter<T>(&self, change: impl FnOnce(&mut Tables) -> T) -> T {
        change(&mut self.life().tables)
    }

    /// The server dies and comes back. What was committed is there.
    pub fn restart(&self) {
        let tables = self.tables();
        self.restore(tables);
    }

    /// The server comes back with an earlier state, as after a failover or a restore.
    pub fn restore(&self, tables: Tables) {
        let mut life = self.life();
        let number = life.number + 1;
        *life = ServerLife { number, tables, locks: Arc::default(), is_away: life.is_away };
    }

    /// From now on the server is out of reach, or is there again.
    pub fn set_away(&self, is_away: bool) {
        self.life().is_away = is_away;
    }
}

impl ServerLife {
    fn witness(&self) -> Witness {
        Witness(Some(Timestamp(self.number)))
    }
}

/// A store of the model.
pub struct MemoryInbox {
    database: InboxDatabase,
    consumer: Arc<str>,
    filter: Filter,
    handler: Arc<dyn MemoryHandler>,
    faults: Faults,
}

impl MemoryInbox {
    /// With faults: one is asked about before each call, and each statement takes its time.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }
}

/// By consumer and message id.
type ById<T> = BTreeMap<(String, String), T>;
