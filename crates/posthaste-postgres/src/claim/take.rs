//! Taking rows: the next batch, the one after it, and what dead relays left behind.
//!
//! **Ahead.** While a batch is settled, the next one is claimed over a second connection, so that the server
//! works on both at once. This is done only where rows are marked: another batch of locks would make the
//! application wait for rows that nobody publishes yet. It is done only while a full batch was delivered and
//! no breaker is open. What was claimed ahead goes back as soon as something else is asked for.
//!
//! **Bounds.** A claim is bounded in rows and bytes (G7). The statement counts bytes as the server keeps
//! them. A row that unpacks to more is seen as it arrives, and goes back. The next claim is for as many rows
//! as would have fitted.
//!
//! **Behind the dead.** An event may kill its relay (F21). Rows that a dead relay left marked are taken over
//! in small parts, and in the end one by one; see
//! [`Statements::taken_over`](super::statements::Statements::taken_over). A row that was alone in hand at a
//! death has one attempt more than before, and is given up when its attempts are spent. Only every other look
//! is for such rows, so that the rest flows.

use super::layout::Style;
use super::lease::{ClaimLease, locked};
use super::row::{self, Claimed};
use super::session::ClaimSession;
use super::settle::RowOutcomes;
use crate::error::{describe, store_error};
use crate::session::{Param, SqlResult};
use posthaste::event::StoredEvent;
use posthaste::store::{DueEvent, DueQuery, Reason, StoreError};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::types::Type;

/// Rows of the first claim, when nobody knows how large they are.
const FIRST_ROWS: usize = 64;

/// Rows that were claimed before anybody asked for them.
#[derive(Default)]
pub(super) struct Ahead {
    events: VecDeque<DueEvent>,
    /// The question that they answer, if the last answer to it was a full one.
    query: Option<DueQuery>,
}

impl Ahead {
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.query = None;
    }
}

/// Looking after the dead.
#[derive(Default)]
pub(super) struct TakingOver {
    /// When the last look found nothing.
    nothing_at: Option<Instant>,
    /// Whether the last look found something.
    found: bool,
    /// Whether they came before others at the last look.
    came_first: bool,
}

impl TakingOver {
    /// Whether it is time for a look. Without an index a look reads the whole table, so it is rare while
    /// nothing is found.
    fn is_time(&self, lease: Duration) -> bool {
        self.found || self.nothing_at.is_none_or(|at| at.elapsed() >= lease / 4)
    }
}

/// What a claim brought.
#[derive(Default)]
struct ClaimedRows {
    rows: Vec<(Claimed, StoredEvent)>,
    /// Rows that did not fit.
    excess: Vec<(i64, Claimed)>,
    bytes: usize,
}

impl ClaimedRows {
    fn all(&self) -> usize {
        self.rows.len() + self.excess.len()
    }
}

/// Whether nothing is out of reach, as far as the relay knows.
fn is_ordinary(query: &DueQuery) -> bool {
    query.events > 1 && query.only_destination.is_none() && query.closed_destinations.is_empty()
}

impl ClaimLease {
    /// The next events.
    pub(super) async fn next(&self, query: &DueQuery) -> Result<Vec<DueEvent>, StoreError> {
        let mut slot = self.session.lock().await;
        self.write_aside(&mut slot).await?;
        if !locked(&self.ahead).events.is_empty() {
            if is_ordinary(query) {
                return Ok(self.take_ahead(query.events));
            }
            self.give_ahead_back(&mut slot).await?;
        }
        if self.inner.is_resting() {
            return Ok(Vec::new());
        }
        let Some(left_out) = self.left_out(query) else { return Ok(Vec::new()) };
        let session = self.ready(&mut slot).await?;
        match self.take_on(session, query, &left_out).await {
            Ok(events) => Ok(events),
            Err(error) => Err(self.failed(&mut slot, store_error(error))),
        }
    }

    fn take_ahead(&self, most: usize) -> Vec<DueEvent> {
        let mut ahead = locked(&self.ahead);
        let most = most.min(ahead.events.len());
        ahead.events.drain(..most).collect()
    }

    /// Keys to leave out; `None`: there are too many of them.
    fn left_out(&self, query: &DueQuery) -> Option<Vec<String>> {
        match query.only_destination {
            Some(_) => Some(Vec::new()),
            None => locked(&self.hand).left_out().ok(),
        }
    }

    async fn take_on(
        &self,
        session: &mut ClaimSession,
        query: &DueQuery,
        left_out: &[String],
    ) -> SqlResult<Vec<DueEvent>> {
        let after_the_dead = self.looks_after_the_dead(query);
        if after_the_dead == Some(true) {
            let events = self.take_over(session, query, left_out).await?;
            if !events.is_empty() {
                return Ok(events);
            }
        }
        let events = self.claim_on(session, query, left_out).await?;
        if events.is_empty() && after_the_dead == Some(false) {
            return self.take_over(session, query, left_out).await;
        }
        Ok(events)
    }

    /// Whether it is time to look for rows of dead relays, and whether before others.
    fn looks_after_the_dead(&self, query: &DueQuery) -> Option<bool> {
        if self.inner.style() != Style::Marked || query.only_destination.is_some() || query.events < 2 {
            return None;
        }
        let mut state = locked(&self.taking_over);
        let is_time = state.is_time(self.inner.row_lease());
        state.came_first ^= is_time;
        is_time.then_some(state.came_first)
    }

    async fn claim_on(
        &self,
        session: &mut ClaimSession,
        query: &DueQuery,
        left_out: &[String],
    ) -> SqlResult<Vec<DueEvent>> {
        let limit = self.limit(query);
        let sql = self.inner.statements.claim(limit, &self.filter);
        let first = if self.inner.style() == Style::Locked { session.opening() } else { None };
        let bytes = i64::try_from(query.bytes.max(1)).unwrap_or(i64::MAX);
        let found = self.found(session, first, &sql, query, left_out, &[(&bytes, Type::INT8)]).await?;
        // CRASH(claim.after): rows are marked, or locked, and nobody publishes them. Locks are gone with the
        // connection; marks are taken over after the lease (G2).
        posthaste::crash_point!("claim.after");
        if found.all() == 0 && self.inner.style() == Style::Locked && locked(&self.hand).is_empty() {
            session.commit().await?;
        }
        let full = found.all() >= limit || found.bytes >= query.bytes;
        locked(&self.ahead).query = (full && is_ordinary(query)).then(|| query.clone());
        if found.all() > 0 {
            self.event_bytes.store((found.bytes / found.all()).max(1), Ordering::Relaxed);
        }
        self.give_excess_back(session, &found).await?;
        Ok(self.take_in_hand(found.rows))
    }

    async fn give_excess_back(&self, session: &mut ClaimSession, found: &ClaimedRows) -> SqlResult<()> {
        if self.inner.style() == Style::Marked && !found.excess.is_empty() {
            let back = RowOutcomes::back(found.excess.iter().map(|(seq, row)| (*seq, row)));
            back.write(session, &self.inner.statements, None).await?;
        }
        Ok(())
    }

    /// How many rows the next claim asks for: as many as fit, by what the last one found. There are few
    /// different numbers, because each of them is a statement of its own.
    fn limit(&self, query: &DueQuery) -> usize {
        let batch = query.events.clamp(1, self.inner.pace().batch.max(1));
        let fits = match self.event_bytes.load(Ordering::Relaxed) {
            0 => FIRST_ROWS,
            bytes => (query.bytes / bytes).max(1),
        };
        if fits >= batch { batch } else { 1 << fits.ilog2() }
    }

    /// Runs a claim. Rows beyond twice the bytes that were asked for are not kept.
    async fn found(
        &self,
        session: &mut ClaimSession,
        first: Option<&str>,
        sql: &str,
        query: &DueQuery,
        left_out: &[String],
        more: &[Param<'_>],
    ) -> SqlResult<ClaimedRows> {
        let payload_max = i32::try_from(self.shape.limits.payload_bytes_max).unwrap_or(i32::MAX);
        let relay: &str = &self.relay;
        let mut params: Vec<Param<'_>> = vec![
            (&payload_max, Type::INT4),
            (&left_out, Type::TEXT_ARRAY),
            (&query.closed_destinations, Type::TEXT_ARRAY),
            (&query.only_destination, Type::TEXT),
            (&relay, Type::TEXT),
        ];
        params.extend(more.iter().cloned());
        let mut found = ClaimedRows::default();
        session
            .each(first, sql, &params, |row| {
                let (stored, claimed) = row::read(&row, &self.shape, 0)?;
                found.bytes += stored.bytes();
                if found.rows.is_empty() || found.bytes <= query.bytes.saturating_mul(2) {
                    found.rows.push((claimed, stored));
                } else {
                    found.excess.push((0, claimed));
                }
                Ok(())
            })
            .await?;
        Ok(found)
    }

    fn take_in_hand(&self, mut rows: Vec<(Claimed, StoredEvent)>) -> Vec<DueEvent> {
        // An UPDATE returns rows in any order.
        rows.sort_by_key(|(claimed, _)| claimed.n);
        let mut hand = locked(&self.hand);
        let was_empty = hand.is_empty();
        let mut events = Vec::with_capacity(rows.len());
        for (claimed, mut stored) in rows {
            stored.seq = hand.next();
            let attempts = claimed.attempts.unwrap_or_else(|| hand.attempts(&claimed.id));
            hand.take(stored.seq, claimed);
            events.push(DueEvent { stored, attempts, reason: Reason::Retry });
        }
        if was_empty {
            // Rows that were in hand before have waited longer for their renewal.
            *locked(&self.renewed_at) = Instant::now();
        }
        events
    }

    /// Takes over what dead relays left marked. A scan that is too long for the server is no reason not to
    /// claim.
    async fn take_over(
        &self,
        session: &mut ClaimSession,
        query: &DueQuery,
        left_out: &[String],
    ) -> SqlResult<Vec<DueEvent>> {
        let statements = &self.inner.statements;
        let Some(sql) = statements.taken_over(&self.filter) else { return Ok(Vec::new()) };
        let age = self.inner.row_lease().as_secs_f64();
        let most = i64::try_from(query.events.min(self.inner.pace().batch)).unwrap_or(i64::MAX);
        let more: [Param<'_>; 2] = [(&age, Type::FLOAT8), (&most, Type::INT8)];
        let mut found = match self.found(session, None, &sql, query, left_out, &more).await {
            Err(error) if error.as_db_error().is_some() && !session.is_closed() => {
                tracing::warn!(table = %statements.layout().table, error = %describe(&error),
                    "cannot look for rows that dead relays left claimed; it is tried again");
                ClaimedRows::default()
            }
            found => found?,
        };
        self.note_dead_relays(found.all());
        self.give_excess_back(session, &found).await?;
        if let [(row, _)] = found.rows.as_mut_slice() {
            row.charged = row.attempts.is_some();
            if row.attempts.is_some_and(|spent| statements.layout().retry.is_exhausted(spent)) {
                let row = row.clone();
                return self.give_up(session, &row).await.map(|()| Vec::new());
            }
        }
        Ok(self.take_in_hand(found.rows))
    }

    fn note_dead_relays(&self, rows: usize) {
        let mut state = locked(&self.taking_over);
        if rows > 0 && !state.found {
            tracing::warn!(table = %self.inner.statements.layout().table,
                "rows were left claimed by a relay that is gone; they are published again, a few at a time");
        }
        state.found = rows > 0;
        if rows == 0 {
            state.nothing_at = Some(Instant::now());
        }
    }

    /// Gives a row up whose attempts are spent. The last of them ended with its relay (F21).
    async fn give_up(&self, session: &mut ClaimSession, row: &Claimed) -> SqlResult<()> {
        let outcome = RowOutcomes::crashed(0, row);
        let missed = outcome.write(session, &self.inner.statements, None).await?;
        if missed == 0 {
            tracing::warn!(lane = %self.id, row = %row.id, code = "relay.crashed", "event is dead");
            self.count_given_up();
        }
        Ok(())
    }

    /// What to claim while this outcome is settled, if anything.
    pub(super) fn next_to_claim_ahead(&self, outcome: &RowOutcomes) -> Option<DueQuery> {
        if self.inner.style() != Style::Marked || !outcome.is_all_delivered() {
            return None;
        }
        let ahead = locked(&self.ahead);
        // However long the backlog is, rows of dead relays have their turn.
        if !ahead.events.is_empty() || locked(&self.taking_over).is_time(self.inner.row_lease()) {
            return None;
        }
        ahead.query.clone()
    }

    /// Claims the batch after this one. A failure is nobody's loss: the next look claims for itself.
    pub(super) async fn claim_ahead(&self, query: DueQuery) {
        let Some(left_out) = self.left_out(&query) else { return };
        let mut second = self.second.lock().await;
        let events = match self.ready(&mut second).await {
            Ok(session) => self.claim_on(session, &query, &left_out).await.map_err(store_error),
            Err(error) => Err(error),
        };
        match events {
            Ok(events) if !self.is_lost() => locked(&self.ahead).events.extend(events),
            Ok(_) => {}
            Err(error) => {
                // CRASH: rows that it marked and nobody knows of are taken over after the lease.
                tracing::debug!(lane = %self.id, %error, "claiming ahead failed");
                *second = None;
            }
        }
    }

    /// Adds what was claimed ahead to this outcome, so that it goes back. If the write fails, it has to be
    /// put there again; otherwise it would be in hand and belong to nobody.
    pub(super) fn add_ahead_to(&self, outcome: &mut RowOutcomes) -> Vec<DueEvent> {
        let events: Vec<DueEvent> = locked(&self.ahead).events.drain(..).collect();
        let hand = locked(&self.hand);
        let seqs = events.iter().map(|event| event.stored.seq);
        outcome.add_back(seqs.filter_map(|seq| Some((seq, hand.row(seq)?))));
        events
    }

    pub(super) fn put_ahead_again(&self, events: Vec<DueEvent>) {
        if !self.is_lost() {
            locked(&self.ahead).events.extend(events);
        }
    }

    /// Gives back what was claimed ahead. Something else was asked for, or nobody asked and it would be
    /// renewed for ever.
    pub(super) async fn give_ahead_back(&self, slot: &mut Option<ClaimSession>) -> Result<(), StoreError> {
        let mut outcome = RowOutcomes::default();
        let events = self.add_ahead_to(&mut outcome);
        if outcome.is_empty() {
            return Ok(());
        }
        match self.write(slot, &outcome).await {
            Ok(written) => {
                self.leave_hand(&outcome, &written);
                Ok(())
            }
            Err(error) => {
                self.put_ahead_again(events);
                Err(error)
            }
        }
    }
}
