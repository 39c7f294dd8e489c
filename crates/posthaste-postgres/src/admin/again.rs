//! Sending events of the log to a sink again.
//!
//! A replay writes copies among the deferred, with the events' own numbers; relays deliver them in the
//! ordinary way, with retries and dead letters, and later events of a key wait for its replayed ones.
//! Rewinding the sink's cursor would send everything behind a number again; this sends what a filter matches,
//! and the cursor goes on.
//!
//! Only what the sink's cursors have passed: the rest is still to come by itself. What waits or is dead
//! already is left alone. A chunk is a transaction with its line in the audit.
//!
//! CRASH: a death between two chunks leaves the first one done and audited; the next number to go on from is
//! in the audit. G2 is not at stake: these are second deliveries.

use super::log::{ScanWindow, Span, clause, events};
use super::{PostgresAdmin, finish};
use crate::log::filter;
use crate::row::event_sql;
use crate::session::{Param, Session};
use posthaste::admin::{Actor, AdminError, EventFilter, ROWS_MAX, ReplayChunk, SAMPLES};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Rows that one chunk goes through, at most.
const WINDOW_ROWS: i64 = 50_000;

/// What a chunk is about.
struct ReplayRange<'a> {
    sink: &'a str,
    filter: &'a EventFilter,
    after: i64,
    chunk: i64,
    /// The job that it is part of.
    job: Option<i64>,
}

impl PostgresAdmin {
    pub(crate) async fn replay_events(
        &self,
        sink: &str,
        filter: &EventFilter,
        after: i64,
        chunk: i64,
        actor: Option<&Actor>,
    ) -> Result<ReplayChunk, AdminError> {
        filter.check()?;
        actor.map_or(Ok(()), Actor::check)?;
        let range = ReplayRange { sink, filter, after, chunk: chunk.clamp(1, ROWS_MAX), job: None };
        let mut session = self.begin().await?;
        let done = self.replay_chunk(&mut session, &range, actor).await;
        finish(&mut session, done).await
    }

    /// The same within the transaction of a job.
    pub(crate) async fn replay_some(
        &self,
        session: &mut Session,
        (sink, filter): (&str, &EventFilter),
        after: i64,
        chunk: i64,
        by: Option<(&Actor, i64)>,
    ) -> Result<ReplayChunk, AdminError> {
        let (actor, job) = by.unzip();
        self.replay_chunk(session, &ReplayRange { sink, filter, after, chunk, job }, actor).await
    }

    async fn replay_chunk(
        &self,
        session: &mut Session,
        range: &ReplayRange<'_>,
        actor: Option<&Actor>,
    ) -> Result<ReplayChunk, AdminError> {
        let (position, condition) = self.replay_bounds(session, range.sink).await?;
        let Span(from, to) = self.span(session, range.filter, range.after).await?;
        // Also when numbers were asked for that are not there yet: the replay ends where the cursor stood.
        let to = to.min(position);
        if actor.is_some() {
            self.lock_deferred(session).await?;
        }
        let window = self.window(session, Span(from, to), WINDOW_ROWS).await?;
        let picked = self.pick(session, range, &window, &condition).await?;
        let seqs: Vec<i64> = picked.iter().filter(|row| row.get("goes")).map(|row| row.get("seq")).collect();
        let full = picked.len() as i64 == range.chunk;
        let mut done = ReplayChunk {
            events: seqs.len() as u64,
            left_alone: (picked.len() - seqs.len()) as u64,
            reached: picked.last().filter(|_| full).map_or(window.span.1, |row| row.get("seq")),
            to_seq: to,
            done: window.last && !full,
            samples: events(picked.iter().filter(|row| row.get("goes")).take(SAMPLES))?,
        };
        if let Some(actor) = actor.filter(|_| !seqs.is_empty()) {
            done.events = self.send_again(session, range, &seqs, actor).await?;
        }
        Ok(done)
    }

    /// How far the sink has come, and what it reads.
    async fn replay_bounds(&self, session: &mut Session, sink: &str) -> Result<(i64, String), AdminError> {
        self.check_sink(session, sink).await?;
        let sql = include_str!("../../sql/admin/replay_bounds.sql");
        let rows = self.query(session, sql, &[(&sink, Type::TEXT)]).await?;
        let served = rows.first().and_then(|row| row.get::<_, Option<bool>>("served")).unwrap_or(false);
        AdminError::check_served(sink, served)?;
        let row = rows.first().filter(|_| served);
        Ok(row.map_or((0, String::new()), |row| (row.get("position"), filter::condition(row.get("filter")))))
    }

    async fn pick(
        &self,
        session: &mut Session,
        range: &ReplayRange<'_>,
        window: &ScanWindow,
        condition: &str,
    ) -> Result<Vec<Row>, AdminError> {
        let clause = clause(range.filter, 5);
        let sql = clause.put_into(event_sql!("../../sql/admin/again_pick.sql"));
        let Span(from, to) = window.span;
        let params = clause.params(&[
            (&from, Type::INT8),
            (&to, Type::INT8),
            (&range.chunk, Type::INT8),
            (&range.sink, Type::TEXT),
        ]);
        self.query_where(session, &sql, condition, &params).await
    }

    async fn send_again(
        &self,
        session: &mut Session,
        range: &ReplayRange<'_>,
        seqs: &[i64],
        actor: &Actor,
    ) -> Result<u64, AdminError> {
        let params: [Param<'_>; 2] = [(&range.sink, Type::TEXT), (&seqs, Type::INT8_ARRAY)];
        let sent = self.query(session, event_sql!("../../sql/admin/again.sql"), &params).await?;
        self.order_keys(session, &sent).await?;
        let ids: Vec<Uuid> = sent.iter().map(|row| row.get("id")).collect();
        let (action, mut detail) = range.filter.replayed(range.sink, seqs, &ids);
        if let Some(job) = range.job {
            detail["job"] = job.into();
        }
        self.audit(session, actor, action, &detail).await?;
        self.wake(session, "").await?;
        Ok(sent.len() as u64)
    }
}
