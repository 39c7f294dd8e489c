//! A leased lane of the log: the cursor in memory, and what it has read but not settled.
//!
//! The reading cursor runs ahead of the settled one. Each page remembers the position after it; when
//! the page is settled, that position becomes the receipt. The memory dies with the lease.

use crate::error::store_error;
use crate::log::fetch::Ahead;
use crate::log::store::Inner;
use crate::session::Session;
use async_trait::async_trait;
use posthaste::cursor::{Mark, Marks, Position};
use posthaste::store::{Care, DueBatch, DueQuery, LaneId, Lease, Page, PageLimit, Settlement, StoreError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Mutex as AsyncMutex;
use tokio_postgres::types::{ToSql, Type};

/// What taking a lane yields.
pub(crate) struct TakenLane {
    pub(crate) id: LaneId,
    pub(crate) epoch: i64,
    pub(crate) n: i64,
    pub(crate) slots: (i16, i16),
    pub(crate) filter: String,
    /// What the sink read before its routes changed, and up to which number that still counts.
    pub(crate) filter_before: Option<String>,
    pub(crate) filter_until: i64,
    pub(crate) share: f64,
    pub(crate) care: Care,
    pub(crate) position: Position,
    pub(crate) marks: Marks,
    pub(crate) known_seq: i64,
    pub(crate) holding: bool,
}

pub(crate) struct LogLease {
    pub(crate) inner: Arc<Inner>,
    pub(crate) id: LaneId,
    pub(crate) epoch: i64,
    pub(crate) slots: (i16, i16),
    /// The lane's condition on rows beyond their number, as SQL; empty when it reads everything.
    pub(crate) condition: String,
    share: f64,
    care: Care,
    pub(crate) reading: AsyncMutex<ReadCursor>,
    pub(crate) settled: AsyncMutex<Settled>,
    pub(crate) unsettled: Mutex<VecDeque<PageRead>>,
    /// Marks made by settlements, for the reader to pick up.
    new_marks: Mutex<Vec<Mark>>,
    /// The highest number known to be drawn: what the next mark says.
    pub(crate) known_seq: AtomicI64,
    /// Whether any key of the sink may be held.
    holding: AtomicBool,
    /// Grows with every settlement that may hold a key, so that an older look cannot say "none".
    held_generation: AtomicU64,
    /// Events that settlements had to give up for their data.
    pub(crate) given_up: AtomicU64,
}

/// The reading cursor.
pub(crate) struct ReadCursor {
    pub(crate) position: Position,
    pub(crate) marks: Marks,
    pub(crate) number: u64,
    /// Running average of an event's size: how many fit into a page's bytes.
    pub(crate) average_bytes: f64,
    /// Positions that moved without an event are worth a receipt now and then.
    pub(crate) moved_at: tokio::time::Instant,
    /// The next page, when it was sent for before it was asked for.
    pub(crate) ahead: Option<Ahead>,
}

/// The settled cursor.
pub(crate) struct Settled {
    pub(crate) n: i64,
    pub(crate) position: Position,
}

/// A page that was read: its number, the position after it, and its double entry.
pub(crate) struct PageRead {
    pub(crate) number: u64,
    pub(crate) after: Position,
    pub(crate) tally: Vec<Tally>,
}

/// Rows of one segment: how many, and the sum of a hash of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) segment: i16,
    pub(crate) count: i64,
    pub(crate) sum: i64,
}

/// The hash of a number in the double entry: the same arithmetic stands in `sweep.rs` as SQL. Each is
/// below 2^31, so that sums stay exact for any segment.
pub(crate) fn seq_hash(seq: i64) -> i64 {
    (seq % 2_147_483_647) * 48_271 % 2_147_483_647
}

/// Adds a row to the tallies.
pub(crate) fn tally(tallies: &mut Vec<Tally>, segment: i16, count: i64, sum: i64) {
    match tallies.iter_mut().find(|tally| tally.segment == segment) {
        Some(tally) => {
            tally.count += count;
            tally.sum += sum;
        }
        None => tallies.push(Tally { segment, count, sum }),
    }
}

impl LogLease {
    pub(crate) fn new(inner: Arc<Inner>, taken: TakenLane) -> Self {
        let former = taken.filter_before.as_deref();
        let filter = crate::log::filter::condition_since(&taken.filter, former, taken.filter_until);
        let condition = format!("{}{filter}", crate::log::filter::slots(taken.slots));
        Self {
            inner,
            id: taken.id,
            epoch: taken.epoch,
            slots: taken.slots,
            condition,
            share: taken.share,
            care: taken.care,
            settled: AsyncMutex::new(Settled { n: taken.n, position: taken.position.clone() }),
            reading: AsyncMutex::new(ReadCursor {
                position: taken.position,
                marks: taken.marks,
                number: 0,
                average_bytes: 512.0,
                moved_at: tokio::time::Instant::now(),
                ahead: None,
            }),
            unsettled: Mutex::default(),
            new_marks: Mutex::default(),
            known_seq: AtomicI64::new(taken.known_seq),
            holding: AtomicBool::new(taken.holding),
            held_generation: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        }
    }

    pub(crate) fn steps(&self) -> MutexGuard<'_, VecDeque<PageRead>> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_mark(&self, mark: Mark) {
        self.new_marks.lock().unwrap_or_else(PoisonError::into_inner).push(mark);
    }

    pub(crate) fn take_marks(&self) -> Vec<Mark> {
        std::mem::take(&mut *self.new_marks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.holding.load(Ordering::SeqCst)
    }

    pub(crate) fn set_holding(&self) {
        self.held_generation.fetch_add(1, Ordering::SeqCst);
        self.holding.store(true, Ordering::SeqCst);
    }

    pub(crate) fn held_generation(&self) -> u64 {
        self.held_generation.load(Ordering::SeqCst)
    }

    /// Nothing is held, as of this generation.
    pub(crate) fn clear_holding(&self, generation: u64) {
        if self.held_generation() == generation {
            self.holding.store(false, Ordering::SeqCst);
        }
    }

    pub(crate) async fn session(&self) -> Result<Session, StoreError> {
        self.inner.sessions.session().await
    }

    pub(crate) fn sql(&self, text: &str) -> String {
        self.inner.sessions.sql(text)
    }

    /// An update of this lane under its epoch; no row means that the lease is lost.
    async fn under_epoch(&self, sql: &str, extra: &[(&(dyn ToSql + Sync), Type)]) -> Result<(), StoreError> {
        let sink: &str = &self.id.sink;
        let mut params: Vec<(&(dyn ToSql + Sync), Type)> =
            vec![(&sink, Type::TEXT), (&self.id.lane, Type::INT2), (&self.epoch, Type::INT8)];
        params.extend_from_slice(extra);
        let mut session = self.session().await?;
        let rows = session.query_alone(&self.sql(sql), &params).await.map_err(store_error)?;
        if rows.is_empty() { Err(StoreError::LeaseLost(self.id.clone())) } else { Ok(()) }
    }
}

#[async_trait]
impl Lease for LogLease {
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
        self.read_page(limit).await
    }

    async fn due(&self, query: DueQuery) -> Result<DueBatch, StoreError> {
        self.read_due(query).await
    }

    async fn settle(&self, settlement: &Settlement) -> Result<(), StoreError> {
        self.write_settlement(settlement).await
    }

    fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    async fn take_in_hand(&self, seq: Option<i64>) -> Result<(), StoreError> {
        self.under_epoch(include_str!("../../sql/log/in_hand.sql"), &[(&seq, Type::INT8)]).await
    }

    async fn release(&self) -> Result<(), StoreError> {
        let channel = self.inner.channel();
        self.under_epoch(include_str!("../../sql/log/release.sql"), &[(&channel, Type::TEXT)]).await
    }
}
