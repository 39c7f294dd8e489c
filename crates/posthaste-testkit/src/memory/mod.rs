//! The executable model of the log store.
//!
//! A [`MemoryDatabase`] stands for one PostgreSQL database; each [`MemoryStore`] is one relay's
//! connection to it; each [`Tx`] one transaction of the application. The model passes the same
//! conformance suite as the PostgreSQL store and runs on the same cursor, so what the simulation finds
//! on it in a second is worth looking for there.
//!
//! It is a model of the *contract*, not a store for anybody's use: everything lies in one process's
//! memory behind one lock, and clarity wins over speed everywhere. Where PostgreSQL may do one of two
//! things, the model does the worse one: a due event is handed out again until it is settled, a wakeup
//! flag raised too late is not seen, a taken-over lease goes on reading as if nothing had happened.
//!
//! ```text
//! writer.rs  begin, append, commit        store.rs   join, roll, take, doze
//! mvcc.rs    xids, snapshots, the log     lease.rs   read, due, settle
//! lanes.rs   hearts, leases, care         read.rs    one read of a cursor
//! tables.rs  the tables and their lock    settle.rs  receipts, deferred, dead letters
//! ```

mod fixture;
mod lanes;
mod lease;
mod mvcc;
mod read;
mod settle;
mod store;
mod tables;
mod writer;

pub use fixture::MemoryFixture;
pub use store::MemoryStore;
pub use tables::{DeferredRow, Letter, ReceiptRow};
pub use writer::Tx;

use posthaste::admin::DeadAct;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::store::{Controls, LaneId, LaneView};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tables::Tables;

/// A database in memory: shared by clones.
#[derive(Debug, Clone)]
pub struct MemoryDatabase {
    tables: Arc<Mutex<Tables>>,
}

impl Default for MemoryDatabase {
    fn default() -> Self {
        Self { tables: Arc::new(Mutex::new(Tables::new())) }
    }
}

impl MemoryDatabase {
    /// An empty database. Its clock is tokio's, so it must be made inside a runtime.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for one more relay.
    #[must_use]
    pub fn store(&self) -> Arc<MemoryStore> {
        Arc::new(MemoryStore::new(self))
    }

    /// Begins a transaction of the application.
    #[must_use]
    pub fn begin(&self) -> Tx {
        Tx::new(self.clone())
    }

    /// Appends one event in a transaction of its own, and returns its number.
    pub fn append_now(&self, event: Event) -> i64 {
        let mut tx = self.begin();
        let seq = tx.append(event);
        tx.commit();
        seq
    }

    /// The process of a relay dies: its session is gone, its lanes are free at once.
    pub fn kill(&self, relay: &str) {
        let mut tables = self.tables();
        if let Some(session) = tables.relays.get(relay).map(|member| member.session) {
            tables.sessions.remove(&session);
        }
    }

    /// The server dies and comes back: open transactions and asynchronous commits since the last flush
    /// are gone, and so are all sessions and lease tokens. `logged_ahead` numbers (up to 32) are skipped.
    pub fn crash(&self, logged_ahead: i64) {
        let mut tables = self.tables();
        tables.log.crash(logged_ahead);
        tables.sessions.clear();
        tables.lanes.values_mut().for_each(|lane| lane.token = None);
    }

    /// Sets what operators set.
    pub fn set_controls(&self, controls: Controls) {
        self.tables().controls = controls;
    }

    /// How many events that wait behind a due one are handed out with it: a store's choice, 0 included.
    pub fn set_run_max(&self, run_max: usize) {
        self.tables().run_max = run_max;
    }

    /// Acts on every dead letter of a sink, and says on how many.
    pub fn act_on_dead(&self, sink: &str, act: DeadAct) -> u64 {
        self.tables().act_on_dead(&sink.into(), act)
    }

    /// The store's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.tables().now()
    }

    /// Committed events, by number.
    #[must_use]
    pub fn committed(&self) -> Vec<StoredEvent> {
        self.tables().log.committed().map(|row| row.stored.clone()).collect()
    }

    /// Deferred events of a sink, by number.
    #[must_use]
    pub fn deferred(&self, sink: &str) -> Vec<DeferredRow> {
        let tables = self.tables();
        tables.deferred.iter().filter(|((s, _), _)| **s == *sink).map(|(_, w)| w.clone()).collect()
    }

    /// Dead letters of a sink, by number.
    #[must_use]
    pub fn dead(&self, sink: &str) -> Vec<Letter> {
        let tables = self.tables();
        tables.dead.iter().filter(|((s, _), _)| **s == *sink).map(|(_, l)| l.clone()).collect()
    }

    /// Every burial there ever was in a sink, oldest first: letters that were replayed or discarded too.
    #[must_use]
    pub fn burials(&self, sink: &str) -> Vec<Letter> {
        let tables = self.tables();
        tables.burials.iter().filter(|(s, _)| **s == *sink).map(|(_, letter)| letter.clone()).collect()
    }

    /// Every receipt of a lane, oldest first.
    #[must_use]
    pub fn receipts(&self, lane: &LaneId) -> Vec<ReceiptRow> {
        self.tables().lanes.get(lane).map(|lane| lane.receipts.clone()).unwrap_or_default()
    }

    /// Every lane, with its owner if it has a live one.
    #[must_use]
    pub fn lanes(&self) -> Vec<LaneView> {
        self.tables().views()
    }

    /// How many owners of a lane died in it, ever.
    #[must_use]
    pub fn deaths(&self, lane: &LaneId) -> u32 {
        self.tables().lanes.get(lane).map_or(0, |lane| lane.deaths)
    }

    /// Numbers of committed events that are not settled for a sink: their lane's cursor has not handled
    /// them, or they are deferred.
    #[must_use]
    pub fn unsettled(&self, sink: &str) -> BTreeSet<i64> {
        let tables = self.tables();
        let sink: Arc<str> = sink.into();
        let lanes = 0..i16::try_from(tables.lane_count.unwrap_or(1)).expect("few lanes");
        let cursors: Vec<_> = lanes
            .map(|lane| {
                tables.lanes.get(&LaneId { sink: Arc::clone(&sink), lane }).map(|lane| &lane.last().position)
            })
            .collect();
        let is_handled = |row: &mvcc::LogRow| {
            let lane = usize::try_from(tables.lane_of(row.stored.slot)).expect("not negative");
            cursors[lane].is_some_and(|cursor| cursor.has_handled(row.stored.seq, row.xid))
        };
        let unread = tables.log.committed().filter(|row| !is_handled(row)).map(|row| row.stored.seq);
        let waiting = tables.deferred.keys().filter(|(s, _)| *s == sink).map(|(_, seq)| *seq);
        unread.chain(waiting).collect()
    }

    /// The lane an event belongs to.
    #[must_use]
    pub fn lane_of(&self, stored: &StoredEvent) -> i16 {
        self.tables().lane_of(stored.slot)
    }
}
