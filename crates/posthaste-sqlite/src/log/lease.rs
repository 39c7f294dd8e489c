//! A leased lane of the log: the cursor in memory, and what it has read but not settled.
//!
//! The reading cursor runs ahead of the settled one. Each page remembers the position after it; when the page
//! is settled, that position becomes the receipt. The memory dies with the lease.

use crate::error::store_error;
use crate::log::store::{Inner, note_freed};
use crate::log::take::TakenLane;
use async_trait::async_trait;
use posthaste::store::{
    Care, DueBatch, DueQuery, JoinPlan, LaneId, Lease, Page, PageLimit, Settlement, StoreError,
};
use rusqlite::{Transaction, params};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Mutex as AsyncMutex;

pub(crate) struct LogLease {
    pub(crate) inner: Arc<Inner>,
    pub(crate) title: Arc<Title>,
    pub(crate) slots: (i16, i16),
    /// The statement that reads a page: the lane's filter is in it.
    pub(crate) page_sql: Arc<str>,
    /// Whether the lane reads less than everything.
    pub(crate) is_filtered: bool,
    share: f64,
    care: Care,
    pub(crate) reading: AsyncMutex<ReadCursor>,
    pub(crate) settled: Arc<AsyncMutex<Settled>>,
    pub(crate) steps: Arc<Steps>,
    pub(crate) holding: Arc<Holding>,
}

/// What proves that a lane is ours: checked under the write lock by everything that this lease writes.
#[derive(Debug, Clone)]
pub(crate) struct Title {
    pub(crate) id: LaneId,
    pub(crate) epoch: i64,
    pub(crate) relay: Arc<str>,
}

/// The reading cursor.
pub(crate) struct ReadCursor {
    pub(crate) position: i64,
    pub(crate) number: u64,
}

/// The settled cursor.
pub(crate) struct Settled {
    pub(crate) n: i64,
    pub(crate) position: i64,
}

/// A page that was read: its number, the position after it, and how many events it had.
pub(crate) struct PageRead {
    pub(crate) number: u64,
    pub(crate) after: i64,
    pub(crate) count: i64,
}

/// Pages that were read and not settled, oldest first.
#[derive(Default)]
pub(crate) struct Steps(Mutex<VecDeque<PageRead>>);

impl Steps {
    pub(crate) fn lock(&self) -> MutexGuard<'_, VecDeque<PageRead>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether any key of the sink may be held: while none is, pages are not checked.
pub(crate) struct Holding {
    any: AtomicBool,
    /// Grows with every settlement that may hold a key, so that an older look cannot say "none".
    generation: AtomicU64,
}

impl Holding {
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.any.store(true, Ordering::SeqCst);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Nothing is held, as of this generation.
    pub(crate) fn clear(&self, generation: u64) {
        if self.generation() == generation {
            self.any.store(false, Ordering::SeqCst);
        }
    }
}

impl Title {
    /// Refuses whoever does not own the lane any more.
    pub(crate) fn check(&self, tx: &Transaction<'_>) -> Result<(), StoreError> {
        let owned = tx.prepare_cached(include_str!("../../sql/log/owned.sql")).and_then(|mut statement| {
            statement.exists(params![&*self.id.sink, self.id.lane, self.epoch, &*self.relay])
        });
        if owned.map_err(store_error)? { Ok(()) } else { Err(StoreError::LeaseLost(self.id.clone())) }
    }
}

impl LogLease {
    pub(crate) fn new(inner: Arc<Inner>, plan: &JoinPlan, taken: TakenLane) -> Self {
        Self {
            inner,
            title: Arc::new(Title { id: taken.id, epoch: taken.epoch, relay: Arc::clone(&plan.relay) }),
            slots: taken.slots,
            page_sql: crate::log::tail::page_sql(&taken.condition).into(),
            is_filtered: !taken.condition.is_empty(),
            share: taken.share,
            care: taken.care,
            reading: AsyncMutex::new(ReadCursor { position: taken.position, number: 0 }),
            settled: Arc::new(AsyncMutex::new(Settled { n: taken.n, position: taken.position })),
            steps: Arc::default(),
            holding: Arc::new(Holding { any: AtomicBool::new(taken.holding), generation: AtomicU64::new(0) }),
        }
    }

    pub(crate) fn sink(&self) -> Arc<str> {
        Arc::clone(&self.title.id.sink)
    }
}

#[async_trait]
impl Lease for LogLease {
    fn id(&self) -> &LaneId {
        &self.title.id
    }

    fn epoch(&self) -> i64 {
        self.title.epoch
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

    async fn take_in_hand(&self, seq: Option<i64>) -> Result<(), StoreError> {
        let title = Arc::clone(&self.title);
        self.inner
            .write(move |tx| {
                title.check(tx)?;
                let sql = "update posthaste_lanes set in_hand = ?3 where sink = ?1 and lane = ?2";
                tx.execute(sql, params![&*title.id.sink, title.id.lane, seq]).map_err(store_error)?;
                Ok(())
            })
            .await
    }

    async fn release(&self) -> Result<(), StoreError> {
        let title = Arc::clone(&self.title);
        self.inner
            .write(move |tx| {
                title.check(tx)?;
                let release = include_str!("../../sql/log/release.sql");
                tx.execute(release, params![&*title.id.sink, title.id.lane]).map_err(store_error)?;
                note_freed(tx).map_err(store_error)
            })
            .await
    }
}
