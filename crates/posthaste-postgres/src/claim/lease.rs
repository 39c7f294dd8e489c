//! A lease on an adopted table: claiming, settling, giving back.
//!
//! The lane is a formality: every relay has its own, and rows are what is really leased. A lane whose rows were taken
//! by somebody else is lost as a whole: it forgets what it had in hand, and the relay takes a new one.

use super::hand::Hand;
use super::layout::Style;
use super::line::Line;
use super::row::{self, Shape};
use super::settle::Outcome;
use super::store::Inner;
use crate::error::{commit_error, describe, store_error};
use async_trait::async_trait;
use posthaste::route::Filter;
use posthaste::store::{
    Care, DueBatch, DueEvent, DueQuery, LaneId, Lease, Page, PageLimit, Reason, Settlement, StoreError,
};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;
use tokio_postgres::types::Type;

/// What is claimed for one sink by one relay.
pub(super) struct ClaimLease {
    inner: Arc<Inner>,
    id: LaneId,
    epoch: i64,
    relay: Arc<str>,
    filter: Filter,
    shape: Shape,
    line: AsyncMutex<Option<Line>>,
    hand: Mutex<Hand>,
    /// The pause after the next look that finds nothing.
    quiet: Mutex<Duration>,
    pages: AtomicU64,
    lost: AtomicBool,
    taken_back_at: Mutex<Option<Instant>>,
    renewed_at: Mutex<Instant>,
}

/// What became of a settlement.
#[derive(Debug, Default)]
struct Written {
    /// Rows that were not hit: somebody else has them.
    missed: usize,
    /// Keys of rows about which the table takes nothing.
    refused: Vec<String>,
}

/// Whether the table said no to what was written: a trigger, a constraint, a type. Locks, deadlocks, a full disk and the
/// end of a connection are none.
fn is_refusal(error: &tokio_postgres::Error) -> bool {
    let class = error.code().and_then(|code| code.code().get(..2));
    matches!(class, Some("09" | "21" | "22" | "23" | "27" | "38" | "39" | "42" | "44" | "P0"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClaimLease {
    pub(super) fn new(inner: Arc<Inner>, id: LaneId, epoch: i64, relay: Arc<str>, filter: Filter) -> Self {
        let layout = inner.statements.layout();
        let shape = Shape {
            content_type: inner.statements.content_type(),
            header_names: layout.header_columns.iter().map(|(header, _)| header.clone()).collect(),
            limits: inner.config.limits,
        };
        Self {
            quiet: Mutex::new(layout.poll_min),
            inner,
            id,
            epoch,
            relay,
            filter,
            shape,
            line: AsyncMutex::new(None),
            hand: Mutex::default(),
            pages: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            taken_back_at: Mutex::new(None),
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

    fn lose(&self) -> StoreError {
        self.lost.store(true, Ordering::Relaxed);
        locked(&self.hand).clear();
        StoreError::LeaseLost(self.id.clone())
    }

    /// An error of a claim or settlement. Row locks die with their connection, and a transaction with its first
    /// error: whatever was locked is somebody else's now.
    fn failed(&self, line: &mut Option<Line>, error: StoreError) -> StoreError {
        let held = line.as_ref().is_some_and(|line| line.in_transaction()) && !locked(&self.hand).is_empty();
        // CRASH: a connection that is dropped with its transaction open leaves rows unlocked and unchanged.
        *line = None;
        if held && self.inner.style() == Style::Locked { self.lose() } else { error }
    }

    async fn claim(&self, query: &DueQuery) -> Result<Vec<DueEvent>, StoreError> {
        let left_out = match (&query.only_destination, locked(&self.hand).left_out()) {
            (Some(_), _) => Vec::new(),
            (None, Ok(ids)) => ids,
            (None, Err(_)) => return Ok(Vec::new()),
        };
        let mut slot = self.line.lock().await;
        let line = self.ready(&mut slot).await?;
        let result = self.claim_on(line, query, &left_out).await;
        match result {
            Ok(events) => Ok(events),
            Err(error) => Err(self.failed(&mut slot, store_error(error))),
        }
    }

    /// The connection, a new one if it has to be.
    async fn ready<'a>(&self, slot: &'a mut Option<Line>) -> Result<&'a mut Line, StoreError> {
        if slot.as_ref().is_some_and(Line::is_closed) {
            *slot = None;
            if self.inner.style() == Style::Locked && !locked(&self.hand).is_empty() {
                return Err(self.lose());
            }
        }
        match slot {
            Some(line) => Ok(line),
            None => {
                let (config, layout) = (&self.inner.config, self.inner.statements.layout());
                Ok(slot.insert(Line::open_patient(config, layout, self.inner.patience()).await?))
            }
        }
    }

    async fn claim_on(
        &self,
        line: &mut Line,
        query: &DueQuery,
        left_out: &[String],
    ) -> Result<Vec<DueEvent>, tokio_postgres::Error> {
        let (statements, style) = (&self.inner.statements, self.inner.style());
        let limit = query.events.clamp(1, statements.layout().batch);
        if style == Style::Locked {
            line.begin().await?;
        } else {
            self.take_back(line).await?;
        }
        let payload_max = i32::try_from(self.shape.limits.payload_bytes_max).unwrap_or(i32::MAX);
        let relay: &str = &self.relay;
        let rows = line
            .query(
                &statements.claim(limit, &self.filter),
                &[
                    (&payload_max, Type::INT4),
                    (&left_out, Type::TEXT_ARRAY),
                    (&query.closed_destinations, Type::TEXT_ARRAY),
                    (&query.only_destination, Type::TEXT),
                    (&relay, Type::TEXT),
                ],
            )
            .await?;
        // CRASH(claim.after): rows are marked, or locked, and nobody publishes them. Locks are gone with the connection;
        // marks are taken back after the lease (G2).
        posthaste::crash_point!("claim.after");
        if rows.is_empty() && style == Style::Locked && locked(&self.hand).is_empty() {
            line.commit().await?;
        }
        self.take_rows(&rows)
    }

    fn take_rows(&self, rows: &[tokio_postgres::Row]) -> Result<Vec<DueEvent>, tokio_postgres::Error> {
        let mut hand = locked(&self.hand);
        let mut events = Vec::with_capacity(rows.len());
        for row in rows {
            let seq = hand.next();
            let (stored, claimed) = row::read(row, &self.shape, seq)?;
            let attempts = claimed.attempts.unwrap_or_else(|| hand.attempts(&claimed.id));
            events.push((claimed.n, DueEvent { stored, attempts, reason: Reason::Retry }));
            hand.take(seq, claimed);
        }
        // An UPDATE returns rows in any order.
        events.sort_by_key(|(n, _)| *n);
        if !events.is_empty() {
            *locked(&self.renewed_at) = Instant::now();
        }
        Ok(events.into_iter().map(|(_, event)| event).collect())
    }

    /// Takes back what dead relays left marked, now and then.
    async fn take_back(&self, line: &mut Line) -> Result<(), tokio_postgres::Error> {
        let Some(sql) = self.inner.statements.taken_back() else { return Ok(()) };
        let lease = self.inner.row_lease();
        let is_time = |at: &Option<Instant>| at.is_none_or(|at| at.elapsed() >= lease / 4);
        if !is_time(&locked(&self.taken_back_at)) {
            return Ok(());
        }
        let rows = line.query(&sql, &[(&lease.as_secs_f64(), Type::FLOAT8)]).await?;
        if rows.is_empty() {
            *locked(&self.taken_back_at) = Some(Instant::now());
        } else {
            tracing::warn!(table = %self.inner.statements.layout().table, rows = rows.len(),
                "rows were left claimed by a relay that is gone; they are published again");
        }
        Ok(())
    }

    /// Renews the marks of what is in hand, before a third of the lease is over.
    pub(super) async fn renew(&self, heart: &mut Line) -> Result<(), StoreError> {
        let Some(sql) = self.inner.statements.renewed() else { return Ok(()) };
        if locked(&self.renewed_at).elapsed() < self.inner.row_lease() / 3 {
            return Ok(());
        }
        let (ids, marks): (Vec<String>, Vec<Option<String>>) =
            locked(&self.hand).rows().map(|row| (row.id.clone(), row.mark.clone())).unzip();
        if ids.is_empty() {
            return Ok(());
        }
        // No settlement of these rows may be on its way while their marks change; and the heartbeat waits for nobody. A
        // claim or settlement takes seconds at most, a third of the lease is longer.
        let Ok(_line) = self.line.try_lock() else { return Ok(()) };
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&ids, Type::TEXT_ARRAY), (&marks, Type::TEXT_ARRAY)];
        let rows = heart.query(&sql, &params).await.map_err(commit_error)?;
        let renewed: FxHashMap<String, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let lost = locked(&self.hand).renewed(&renewed, &ids);
        *locked(&self.renewed_at) = Instant::now();
        if lost > 0 {
            tracing::warn!(lane = %self.id, rows = lost, "rows in hand were taken by another relay");
            drop(self.lose());
        }
        Ok(())
    }

    /// Writes an outcome. Answers how many rows were not hit, and which could not be written.
    async fn write(&self, slot: &mut Option<Line>, outcome: &Outcome) -> Result<Written, StoreError> {
        let line = self.ready(slot).await?;
        let rest = locked(&self.hand).rows().count() > outcome.seqs.len();
        let commits = self.inner.style() == Style::Marked || !rest;
        let written = async {
            line.begin().await?;
            let written = self.write_all_or_each(line, outcome).await?;
            if commits {
                // CRASH(claim.settle): before this commit the batch is at the broker and nothing is written down: it is
                // published again (G2). After it, nothing of it is.
                posthaste::crash_point!("claim.settle");
                line.commit().await?;
            }
            Ok(written)
        };
        match written.await {
            Ok(written) => Ok(written),
            Err(error) => Err(self.failed(slot, commit_error(error))),
        }
    }

    /// All at once; and if the table refuses that, each row for itself, so that one that it does not take holds up
    /// no other.
    async fn write_all_or_each(
        &self,
        line: &mut Line,
        outcome: &Outcome,
    ) -> Result<Written, tokio_postgres::Error> {
        let statements = &self.inner.statements;
        line.batch("savepoint posthaste").await?;
        match outcome.write(line, statements).await {
            Ok(missed) => return Ok(Written { missed, refused: Vec::new() }),
            Err(error) if is_refusal(&error) => {}
            Err(error) => return Err(error),
        }
        let mut written = Written::default();
        for single in outcome.singles() {
            line.batch("rollback to savepoint posthaste; savepoint posthaste").await?;
            match single.write(line, statements).await {
                Ok(missed) => {
                    written.missed += missed;
                    line.batch("release savepoint posthaste; savepoint posthaste").await?;
                }
                Err(error) if is_refusal(&error) => {
                    tracing::error!(lane = %self.id, row = single.first(), error = %describe(&error),
                        "the table refuses what became of a row; it is published again after the lease");
                    written.refused.extend(single.first().map(str::to_owned));
                }
                Err(error) => return Err(error),
            }
        }
        if !written.refused.is_empty() {
            line.batch("rollback to savepoint posthaste").await?;
        }
        Ok(written)
    }

    fn pause_after(&self, found: bool) -> Duration {
        let layout = self.inner.statements.layout();
        let mut quiet = locked(&self.quiet);
        let pause = *quiet;
        *quiet = if found { layout.poll_min } else { (pause * 2).min(layout.poll_max) };
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
        let events = self.claim(&query).await?;
        let next_in = Some(self.pause_after(!events.is_empty()));
        Ok(DueBatch { events, next_in })
    }

    async fn settle(&self, settlement: &Settlement) -> Result<(), StoreError> {
        if self.is_lost() {
            return Err(StoreError::LeaseLost(self.id.clone()));
        }
        let mut slot = self.line.lock().await;
        let layout = self.inner.statements.layout();
        let (keeps_time, pause) = (layout.next_attempt_at.is_some(), layout.poll_min);
        let outcome = Outcome::new(settlement, &locked(&self.hand), keeps_time, pause);
        if outcome.seqs.is_empty() {
            return Ok(());
        }
        let Written { missed, refused } = self.write(&mut slot, &outcome).await?;
        if missed > 0 {
            self.inner.count_missed(missed as u64);
            tracing::warn!(lane = %self.id, rows = missed,
                "settled rows were taken or changed by somebody else meanwhile; theirs stands, ours is dropped");
        }
        let mut hand = locked(&self.hand);
        for seq in &outcome.seqs {
            if let Some(row) = hand.drop_row(*seq) {
                hand.forget(&row.id);
            }
        }
        for (id, pause, attempts) in outcome.keep {
            hand.keep(id, pause, attempts);
        }
        for id in refused {
            hand.keep(id, self.inner.row_lease(), None);
        }
        Ok(())
    }

    fn keeps_in_outages(&self) -> bool {
        false
    }

    async fn take_in_hand(&self, _: Option<i64>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Gives back what is in hand, and commits what was settled.
    async fn release(&self) -> Result<(), StoreError> {
        let mut slot = self.line.lock().await;
        let outcome = Outcome::all_back(&locked(&self.hand));
        if !self.is_lost() {
            let marked = self.inner.style() == Style::Marked && !outcome.is_empty();
            if marked {
                self.write(&mut slot, &outcome).await?;
            } else if let Some(line) = slot.as_mut() {
                let committed = line.commit().await;
                committed.map_err(|error| self.failed(&mut slot, commit_error(error)))?;
            }
            locked(&self.hand).clear();
        }
        *slot = None;
        self.inner.forget(&self.id, self.epoch);
        Ok(())
    }
}
