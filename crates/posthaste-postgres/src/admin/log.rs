//! The log as people look at it: lists by number, and new events as they come.
//!
//! The log has one index that serves a search, on the number. Times grow with numbers, so a time becomes a
//! number by halving; topic and key are looked for row by row. A look is therefore bounded in rows: it
//! answers with what it found and how far it came, and whoever asked goes on from there.
//!
//! Following the log needs no lease and leaves no trace. It shows what commits late as far as the last
//! [`LATE_NUMBERS`] numbers: a relay's cursor keeps marks and finds all of it, a looker-on does not need to.

use super::dead::Clause;
use super::{PostgresAdmin, failed};
use crate::row::{self, Micros, event_sql};
use crate::session::{Param, Session};
use posthaste::Timestamp;
use posthaste::admin::{AdminError, DISORDER_MICROS, EventFilter, EventPage, LogEvent, ROWS_MAX, TailPlace};
use posthaste::route::Pattern;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Rows that one look goes through, at most: some tens of milliseconds.
const WINDOW_ROWS: i64 = 50_000;

/// The same when new events are followed: a look is shown at once.
const TAIL_ROWS: i64 = 2_000;

/// How far back a late commit is looked for.
const LATE_NUMBERS: i64 = 10_000;

/// A part of the log: numbers above the first, up to the second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span(pub(super) i64, pub(super) i64);

/// How far a bounded number of rows reaches.
pub(super) struct ScanWindow {
    pub(super) span: Span,
    /// Whether nothing of the span lies behind it.
    pub(super) last: bool,
}

/// Conditions on topic, key and time.
pub(super) fn clause(filter: &EventFilter, first: usize) -> Clause {
    let mut clause = Clause::new(first);
    if let Some(topic) = &filter.topic {
        clause.and("topic like ", Pattern::new(topic).to_like(), Type::TEXT, "");
    }
    if let Some(key) = &filter.key {
        clause.and("key = ", key.clone(), Type::TEXT, "");
    }
    for (condition, instant) in [("appended_at >= ", filter.since), ("appended_at < ", filter.until)] {
        if let Some(instant) = instant {
            clause.and_time(condition, instant);
        }
    }
    clause
}

impl PostgresAdmin {
    pub(super) async fn list_events(
        &self,
        filter: &EventFilter,
        after: i64,
        limit: i64,
    ) -> Result<EventPage, AdminError> {
        let limit = limit.clamp(1, ROWS_MAX);
        let mut session = self.sessions.session().await?;
        let span = self.span(&mut session, filter, after).await?;
        let window = self.window(&mut session, span, WINDOW_ROWS).await?;
        let clause = clause(filter, 4);
        let sql = clause.put_into(event_sql!("../../sql/admin/log_list.sql"));
        let Span(from, to) = window.span;
        let params = clause.params(&[(&from, Type::INT8), (&to, Type::INT8), (&limit, Type::INT8)]);
        let rows = self.query(&mut session, &sql, &params).await?;
        let events = events(&rows)?;
        let next = match events.last() {
            Some(last) if events.len() as i64 == limit && !(window.last && last.seq == to) => Some(last.seq),
            _ if window.last => None,
            _ => Some(to),
        };
        Ok(EventPage { events, next })
    }

    /// The part of the log that a filter is about, behind a number.
    pub(super) async fn span(
        &self,
        session: &mut Session,
        filter: &EventFilter,
        after: i64,
    ) -> Result<Span, AdminError> {
        let mut from = filter.from_seq.map_or(0, |seq| seq.saturating_sub(1)).max(after);
        let mut to = filter.to_seq.unwrap_or(i64::MAX);
        if let Some(since) = filter.since {
            from = from.max(self.shortly_before(session, since).await? - 1);
        }
        if let Some(until) = filter.until {
            // What lies behind was appended later, also if a clock was set.
            to = to.min(self.shortly_before(session, until.plus_micros(2 * DISORDER_MICROS)).await?);
        }
        Ok(Span(from, to))
    }

    /// The first rows of a part of the log.
    pub(super) async fn window(
        &self,
        session: &mut Session,
        Span(from, to): Span,
        rows_max: i64,
    ) -> Result<ScanWindow, AdminError> {
        let sql = include_str!("../../sql/admin/log_window.sql");
        let params: [Param<'_>; 3] = [(&from, Type::INT8), (&to, Type::INT8), (&rows_max, Type::INT8)];
        let found = self.query(session, sql, &params).await?;
        let (rows, reached) =
            found.first().map_or((0, None), |row| (row.get::<_, i64>(0), row.get::<_, Option<i64>>(1)));
        Ok(ScanWindow { span: Span(from, reached.unwrap_or(from)), last: rows < rows_max })
    }

    pub(super) async fn tail_events(
        &self,
        filter: &EventFilter,
        place: Option<&TailPlace>,
    ) -> Result<(Vec<LogEvent>, TailPlace), AdminError> {
        let mut session = self.begin().await?;
        let seen = self.tail_in(&mut session, filter, place).await;
        session.rollback().await;
        seen
    }

    /// Late rows first, then new ones, in one snapshot: what it does not show is looked for by the next look.
    async fn tail_in(
        &self,
        session: &mut Session,
        filter: &EventFilter,
        place: Option<&TailPlace>,
    ) -> Result<(Vec<LogEvent>, TailPlace), AdminError> {
        let one_view = "set transaction isolation level repeatable read, read only";
        session.batch(one_view).await.map_err(failed)?;
        let sql = "select pg_current_snapshot()::text, coalesce((select max(seq) from posthaste.outbox), 0)";
        let rows = self.query(session, sql, &[]).await?;
        let (snapshot, last): (Option<String>, i64) =
            rows.first().map_or((None, 0), |row| (row.get(0), row.get(1)));
        let Some(TailPlace { seq, snapshot: Some(before) }) = place else {
            return Ok((Vec::new(), TailPlace { seq: place.map_or(last, |place| place.seq), snapshot }));
        };
        let late = clause(filter, 4);
        let from = seq - LATE_NUMBERS;
        let params = late.params(&[(&from, Type::INT8), (seq, Type::INT8), (before, Type::TEXT)]);
        let sql = late.put_into(event_sql!("../../sql/admin/log_late.sql"));
        let mut rows = self.query(session, &sql, &params).await?;
        let Span(from, to) = self.window(session, Span(*seq, i64::MAX), TAIL_ROWS).await?.span;
        let new = clause(filter, 4);
        let params = new.params(&[(&from, Type::INT8), (&to, Type::INT8), (&TAIL_ROWS, Type::INT8)]);
        let sql = new.put_into(event_sql!("../../sql/admin/log_list.sql"));
        rows.extend(self.query(session, &sql, &params).await?);
        Ok((events(&rows)?, TailPlace { seq: to, snapshot }))
    }
}

pub(super) fn events<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Result<Vec<LogEvent>, AdminError> {
    rows.into_iter().map(row::shown).collect::<Result<_, _>>().map_err(failed)
}

pub(super) fn time(row: &Row, column: &str) -> Option<Timestamp> {
    row.get::<_, Option<Micros>>(column).map(|micros| Timestamp(micros.0))
}
