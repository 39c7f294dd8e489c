//! A lease on an adopted table: claiming, settling, giving back.
//!
//! The lane is a formality. Every relay has its own, and what is really leased are rows. A lane whose rows
//! were taken by somebody else is lost as a whole: it forgets what it had in hand, and the relay takes a new
//! one.

use super::aside::Aside;
use super::hand::Hand;
use super::layout::Style;
use super::row::{Moment, Shape};
use super::session::ClaimSession;
use super::settle::RowOutcomes;
use super::store::ClaimState;
use super::take::{Ahead, TakingOver};
use crate::error::commit_error;
use crate::session::Param;
use async_trait::async_trait;
use futures_util::future::join;
use posthaste::route::Filter;
use posthaste::store::{Care, DueBatch, DueQuery, LaneId, Lease, Page, PageLimit, Settlement, StoreError};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;
use tokio_postgres::types::Type;

/// What is claimed for one sink by one relay.
pub(super) struct ClaimLease {
    pub(super) inner: Arc<ClaimState>,
    pub(super) id: LaneId,
    epoch: i64,
    pub(super) relay: Arc<str>,
    pub(super) filter: Filter,
    pub(super) shape: Shape,
    pub(super) session: AsyncMutex<Option<ClaimSession>>,
    /// A second connection, for what is claimed while something is settled.
    pub(super) second: AsyncMutex<Option<ClaimSession>>,
    pub(super) hand: Mutex<Hand>,
    pub(super) ahead: Mutex<Ahead>,
    pub(super) taking_over: Mutex<TakingOver>,
    pub(super) aside: Mutex<Aside>,
    /// Bytes of an event, as the last claim found them. 0 means that nobody knows yet.
    pub(super) event_bytes: AtomicUsize,
    /// The pause after the next look that finds nothing.
    quiet: Mutex<Duration>,
    pages: AtomicU64,
    lost: AtomicBool,
    given_up: AtomicU64,
    pub(super) renewed_at: Mutex<Instant>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClaimLease {
    pub(super) fn new(
        inner: Arc<ClaimState>,
        id: LaneId,
        epoch: i64,
        relay: Arc<str>,
        filter: Filter,
    ) -> Self {
        let layout = inner.statements.layout();
        let shape = Shape {
            content_type: inner.statements.content_type(),
            header_names: layout.header_columns.iter().map(|(header, _)| header.clone()).collect(),
            limits: inner.config.limits,
        };
        Self {
            quiet: Mutex::new(inner.pace().poll_min),
            inner,
            id,
            epoch,
            relay,
            filter,
            shape,
            session: AsyncMutex::new(None),
            second: AsyncMutex::new(None),
            hand: Mutex::default(),
            ahead: Mutex::default(),
            taking_over: Mutex::default(),
            aside: Mutex::default(),
            event_bytes: AtomicUsize::new(0),
            pages: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            given_up: AtomicU64::new(0),
            renewed_at: Mutex::new(Instant::now()),
        }
    }

    pub(super) fn number(&self) -> i64 {
        self.epoch
    }

    /// Whether everything in hand is still ours, as far as anybody has noticed.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn lose(&self) -> StoreError {
        self.lost.store(true, Ordering::Relaxed);
        locked(&self.hand).clear();
        locked(&self.ahead).clear();
        locked(&self.aside).clear();
        StoreError::LeaseLost(self.id.clone())
    }

    /// Handles an error of a claim or settlement. Row locks die with their connection, and a transaction dies
    /// with its first error, so whatever was locked is free for others now.
    pub(super) fn failed(&self, session: &mut Option<ClaimSession>, error: StoreError) -> StoreError {
        let held = session.as_ref().is_some_and(|session| session.in_transaction())
            && !locked(&self.hand).is_empty();
        // CRASH: a connection that is dropped with its transaction open leaves rows unlocked and unchanged.
        *session = None;
        if held && self.inner.style() == Style::Locked {
            // The next claim finds the same rows, and would publish them again at once, and again.
            self.inner.note_trouble();
            return self.lose();
        }
        error
    }

    /// The connection, or a new one if it is closed.
    pub(super) async fn ready<'a>(
        &self,
        slot: &'a mut Option<ClaimSession>,
    ) -> Result<&'a mut ClaimSession, StoreError> {
        if slot.as_ref().is_some_and(ClaimSession::is_closed) {
            *slot = None;
            if self.inner.style() == Style::Locked && !locked(&self.hand).is_empty() {
                return Err(self.lose());
            }
        }
        match slot {
            Some(session) => Ok(session),
            None => {
                let (config, layout) = (&self.inner.config, self.inner.statements.layout());
                Ok(slot.insert(ClaimSession::open_patient(config, layout, self.inner.patience()).await?))
            }
        }
    }

    /// Renews the marks of what is in hand, before a third of the lease is over.
    pub(super) async fn renew(&self, heart: &mut ClaimSession) -> Result<(), StoreError> {
        let Some(sql) = self.inner.statements.renewed() else { return Ok(()) };
        if locked(&self.renewed_at).elapsed() < self.inner.row_lease() / 3 {
            return Ok(());
        }
        // No settlement of these rows may be on its way while their marks change, and the heartbeat waits for
        // nobody. A claim or settlement takes seconds at most; a third of the lease is longer.
        let Ok(mut slot) = self.session.try_lock() else { return Ok(()) };
        self.give_ahead_back(&mut slot).await?;
        let (mut seqs, mut ids, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        for (seq, row) in locked(&self.hand).rows() {
            seqs.push(seq);
            ids.push(row.id.clone());
            marks.push(row.mark);
        }
        if ids.is_empty() {
            return Ok(());
        }
        let params: [Param<'_>; 2] = [(&ids, Type::TEXT_ARRAY), (&marks, Type::TIMESTAMPTZ_ARRAY)];
        let rows = heart.query(&sql, &params).await.map_err(commit_error)?;
        let mut renewed: FxHashMap<String, Moment> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        if renewed.len() < ids.len() {
            // The application holds some of them. Nobody can take those meanwhile.
            let ours = heart.query(&self.inner.statements.ours(), &params).await.map_err(commit_error)?;
            let ours: FxHashSet<String> = ours.iter().map(|row| row.get(0)).collect();
            let held = ids.iter().zip(&marks).filter(|(id, _)| ours.contains(*id));
            for (id, mark) in held {
                renewed.entry(id.clone()).or_insert_with(|| mark.unwrap_or_default());
            }
        }
        let lost = locked(&self.hand).renewed(&renewed, &seqs);
        *locked(&self.renewed_at) = Instant::now();
        if lost > 0 {
            tracing::warn!(lane = %self.id, rows = lost, "rows in hand were taken by another relay");
            drop(self.lose());
        }
        Ok(())
    }

    /// One more event was given up by us.
    pub(super) fn count_given_up(&self) {
        self.given_up.fetch_add(1, Ordering::Relaxed);
    }

    fn pause_after(&self, found: bool) -> Duration {
        let pace = self.inner.pace();
        let mut quiet = locked(&self.quiet);
        // What was kept may come from a pace that is over.
        let pause = (*quiet).min(pace.poll_max).max(pace.poll_min);
        *quiet = if found { pace.poll_min } else { (pause * 2).min(pace.poll_max) };
        locked(&self.hand).next_kept().map_or(pause, |kept| kept.min(pause))
    }
}

#[async_trait]
impl Lease for ClaimLease {
    fn id(&self) -> &LaneId {
        &self.id
    }

    fn epoch(&self) -> i64 {
        self.epoch
    }

    fn care(&self) -> Care {
        Care::None
    }

    fn share(&self) -> f64 {
        1.0 / self.inner.relays().max(1) as f64
    }

    /// There is no log: everything is claimed.
    async fn read(&self, _: PageLimit) -> Result<Page, StoreError> {
        let number = self.pages.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Page { number, events: Vec::new(), detained: Vec::new(), more: false, moved: false })
    }

    async fn due(&self, query: DueQuery) -> Result<DueBatch, StoreError> {
        if self.is_lost() {
            return Err(StoreError::LeaseLost(self.id.clone()));
        }
        let events = self.next(&query).await?;
        let next_in = Some(self.pause_after(!events.is_empty()));
        Ok(DueBatch { events, next_in })
    }

    async fn settle(&self, settlement: &Settlement) -> Result<(), StoreError> {
        if self.is_lost() {
            return Err(StoreError::LeaseLost(self.id.clone()));
        }
        let mut slot = self.session.lock().await;
        let layout = self.inner.statements.layout();
        let (keeps_time, pause) = (layout.column.next_attempt_at.is_some(), self.inner.pace().poll_min);
        let mut outcome = RowOutcomes::new(settlement, &locked(&self.hand), keeps_time, pause);
        if outcome.seqs.is_empty() {
            return Ok(());
        }
        let mut ahead = Vec::new();
        if outcome.has_untried() {
            // The sink is out of reach. What waits for it must not wait in hand.
            ahead = self.add_ahead_to(&mut outcome);
        }
        let written = match self.next_to_claim_ahead(&outcome) {
            Some(query) => join(self.write(&mut slot, &outcome), self.claim_ahead(query)).await.0,
            None => self.write(&mut slot, &outcome).await,
        };
        let written = written.inspect_err(|_| self.put_ahead_again(ahead))?;
        self.tell_missed(written.missed);
        let left = self.leave_hand(&outcome, &written);
        let mut hand = locked(&self.hand);
        for id in left.iter().filter(|id| !written.refused.contains(id)) {
            hand.forget(id);
        }
        for (id, pause, attempts) in outcome.keep {
            hand.keep(id, pause, attempts);
        }
        Ok(())
    }

    fn keeps_in_outages(&self) -> bool {
        false
    }

    fn look_max(&self) -> Duration {
        self.inner.pace().poll_max
    }

    fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    async fn take_in_hand(&self, _: Option<i64>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Gives back what is in hand, and commits what was settled.
    async fn release(&self) -> Result<(), StoreError> {
        let mut slot = self.session.lock().await;
        if !self.is_lost() {
            self.write_aside(&mut slot).await?;
            // What could not be written stays marked, and is taken over after the lease.
            let outcome = {
                let (hand, aside) = (locked(&self.hand), locked(&self.aside));
                RowOutcomes::back(hand.rows().filter(|(_, row)| !aside.has(&row.id)))
            };
            let marked = self.inner.style() == Style::Marked && !outcome.is_empty();
            if marked {
                self.write(&mut slot, &outcome).await?;
            } else if let Some(session) = slot.as_mut() {
                let committed = session.commit().await;
                committed.map_err(|error| self.failed(&mut slot, commit_error(error)))?;
            }
            locked(&self.hand).clear();
            locked(&self.ahead).clear();
            locked(&self.aside).clear();
        }
        *slot = None;
        *self.second.lock().await = None;
        self.inner.forget(&self.id, self.epoch);
        Ok(())
    }
}
