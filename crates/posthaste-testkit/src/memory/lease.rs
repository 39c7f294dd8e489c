//! The right to a lane, with the cursor that reads ahead of settlement.
//!
//! The reading cursor lives here, in memory; the settled one in the receipts. A lease that is lost takes
//! its memory with it, and the next owner reads the last receipt.

use super::MemoryDatabase;
use super::read::read;
use super::settle::Claim;
use async_trait::async_trait;
use posthaste::cursor::{Marks, Position};
use posthaste::event::StoredEvent;
use posthaste::route::Filter;
use posthaste::store::{
    Care, Detained, DueBatch, DueQuery, LaneId, Lease, Page, PageLimit, Settlement, StoreError,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A page that was read and is not settled.
struct Unsettled {
    number: u64,
    after: Position,
    events: u64,
    seq_sum: i64,
}

/// What dies with the lease.
struct Memory {
    cursor: Position,
    marks: Marks,
    pages: VecDeque<Unsettled>,
    read: u64,
    settled: u64,
    next_n: i64,
}

/// A lease of the model.
pub(super) struct MemoryLease {
    database: MemoryDatabase,
    id: LaneId,
    filter: Filter,
    epoch: i64,
    care: Care,
    share: f64,
    memory: Mutex<Memory>,
}

impl MemoryLease {
    /// A lease on a lane that was just taken: its memory begins at the last receipt.
    pub(super) fn new(database: MemoryDatabase, id: LaneId, filter: Filter, epoch: i64) -> Self {
        let tables = database.tables();
        let lane = &tables.lanes[&id];
        let last = lane.last().clone();
        let mut marks = Marks::default();
        lane.receipts.iter().for_each(|receipt| marks.add(receipt.mark()));
        marks.thin(last.position.snapshot.xmin);
        let memory = Memory {
            cursor: last.position,
            marks,
            pages: VecDeque::new(),
            read: 0,
            settled: 0,
            next_n: last.n + 1,
        };
        let care = lane.care.clone();
        let share = 1.0 / f64::from(tables.lane_count.unwrap_or(1));
        drop(tables);
        Self { database, id, filter, epoch, care, share, memory: Mutex::new(memory) }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> StoreError {
        StoreError::LeaseLost(self.id.clone())
    }
}

/// The pages that a settlement ends with, taken together.
fn settled_pages(memory: &Memory, through: u64) -> (Option<Position>, u64, i64) {
    let pages = || memory.pages.iter().take_while(|page| page.number <= through);
    let position = pages().last().map(|page| page.after.clone());
    (position, pages().map(|page| page.events).sum(), pages().map(|page| page.seq_sum).sum())
}

#[async_trait]
impl Lease for MemoryLease {
    fn id(&self) -> &LaneId {
        &self.id
    }

    fn epoch(&self) -> i64 {
        self.epoch
    }

    fn care(&self) -> Care {
        self.care.clone()
    }

    fn share(&self) -> f64 {
        self.share
    }

    async fn read(&self, limit: PageLimit) -> Result<Page, StoreError> {
        let mut memory = self.memory();
        let tables = self.database.tables();
        // A cursor in memory does not survive a crash of the server. A lease that was merely taken over
        // goes on reading: that harms nobody, for it cannot settle.
        if tables.lanes.get(&self.id).is_none_or(|lane| lane.token.is_none()) {
            return Err(self.lost());
        }
        let mine = |stored: &StoredEvent| {
            tables.lane_of(stored.slot) == self.id.lane && self.filter.admits(&stored.event.topic)
        };
        let found = read(&tables.log, &memory.cursor, &memory.marks, limit, mine);
        let now = tables.now();
        let detained = found.events.iter().enumerate().filter_map(|(index, stored)| {
            if stored.event.deliver_at.is_some_and(|at| at > now) {
                return Some((index, Detained::Scheduled));
            }
            tables.is_held(&self.id.sink, stored).then_some((index, Detained::Behind))
        });
        let detained = detained.collect();
        memory.read += 1;
        let moved = found.events.is_empty()
            && (found.position.position, found.position.catching_up.is_some())
                != (memory.cursor.position, memory.cursor.catching_up.is_some());
        let page = Unsettled {
            number: memory.read,
            after: found.position.clone(),
            events: found.events.len() as u64,
            seq_sum: found.events.iter().map(|stored| stored.seq).sum(),
        };
        memory.pages.push_back(page);
        memory.cursor = found.position;
        Ok(Page { number: memory.read, events: found.events, detained, more: found.more, moved })
    }

    async fn due(&self, query: DueQuery) -> Result<DueBatch, StoreError> {
        Ok(self.database.tables().due(&self.id, &query))
    }

    async fn settle(&self, settlement: &Settlement) -> Result<(), StoreError> {
        let mut memory = self.memory();
        let mut tables = self.database.tables();
        tables.check_lease(&self.id, self.epoch, memory.next_n)?;
        let through = settlement.through.unwrap_or(0);
        assert!(through <= memory.read, "page {through} of {} is settled before it was read", self.id);
        if settlement.through.is_some_and(|through| through <= memory.settled) {
            return Ok(());
        }
        let (position, events, seq_sum) = settled_pages(&memory, through);
        let claim = Claim { id: &self.id, epoch: self.epoch, n: memory.next_n, position, events, seq_sum };
        let receipt = tables.settle(claim, settlement)?;
        memory.pages.retain(|page| page.number > through);
        memory.settled = memory.settled.max(through);
        memory.next_n = receipt.n + 1;
        memory.marks.add(receipt.mark());
        memory.marks.thin(receipt.position.snapshot.xmin);
        Ok(())
    }

    async fn take_in_hand(&self, seq: Option<i64>) -> Result<(), StoreError> {
        let next_n = self.memory().next_n;
        let mut tables = self.database.tables();
        tables.check_lease(&self.id, self.epoch, next_n)?;
        let lane = tables.lanes.get_mut(&self.id).ok_or_else(|| self.lost())?;
        lane.in_hand = seq;
        Ok(())
    }

    async fn release(&self) -> Result<(), StoreError> {
        self.database.tables().release(&self.id, self.epoch);
        Ok(())
    }
}

/// Takes a lane for a relay, with the cursor that goes with it.
pub(super) fn lease(
    database: &MemoryDatabase,
    id: &LaneId,
    filter: &Filter,
    relay: &Arc<str>,
    session: u64,
) -> Option<Arc<dyn Lease>> {
    let epoch = database.tables().take(id, relay, session)?;
    Some(Arc::new(MemoryLease::new(database.clone(), id.clone(), filter.clone(), epoch)))
}
