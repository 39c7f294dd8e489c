//! What waits and what is dead, by cause; and lines of the audit.

use super::dead::{Clause, letter};
use super::{PostgresAdmin, failed, finish};
use crate::row::{Micros, event_sql};
use crate::session::Session;
use posthaste::Timestamp;
use posthaste::admin::{
    Actor, AdminError, AuditFilter, AuditLine, DeadCause, DeadFilter, DeadLetter, DeferredCause,
    DeferredEvent, DeferredFilter, History, IDS_AUDITED, ROWS_MAX, TOPICS_AUDITED, audited_filter,
};
use posthaste::route::Pattern;
use serde_json::json;
use std::collections::BTreeSet;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

impl PostgresAdmin {
    pub(crate) async fn newest_dead(
        &self,
        filter: &DeadFilter,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        let (clause, limit) = (Clause::of(filter, 3), limit.clamp(1, ROWS_MAX));
        let sql = clause.put_into(event_sql!("../../sql/admin/dead_newest.sql"));
        let params = clause.params(&[(&before, Type::INT8), (&limit, Type::INT8)]);
        let rows = self.look_freely(&sql, &params).await?;
        rows.iter().map(letter).collect::<Result<_, _>>().map_err(failed)
    }

    pub(crate) async fn causes_of_death(
        &self,
        filter: &DeadFilter,
        limit: i64,
    ) -> Result<Vec<DeadCause>, AdminError> {
        let (clause, limit) = (Clause::of(filter, 2), limit.clamp(1, ROWS_MAX));
        let sql = clause.put_into(include_str!("../../sql/admin/dead_causes.sql"));
        let rows = self.look_freely(&sql, &clause.params(&[(&limit, Type::INT8)])).await?;
        let read = |row: &Row| DeadCause {
            fingerprint: row.get("fingerprint"),
            sink: row.get("sink"),
            count: row.get("count"),
            error_class: row.get("error_class"),
            error_code: row.get("error_code"),
            error: row.get("error"),
            first_at: time(row, "first_at"),
            last_at: time(row, "last_at"),
            holding: row.get("holding"),
            topics: row.get("topics"),
            id: row.get("id"),
        };
        Ok(rows.iter().map(read).collect())
    }

    pub(crate) async fn list_deferred(
        &self,
        filter: &DeferredFilter,
        after: Option<(&str, i64)>,
        limit: i64,
    ) -> Result<Vec<DeferredEvent>, AdminError> {
        self.list_deferred_of(&of_deferred(filter, 4), after, limit).await
    }

    /// A page of what a clause means; its parameters begin with the fourth.
    pub(crate) async fn list_deferred_of(
        &self,
        clause: &Clause,
        after: Option<(&str, i64)>,
        limit: i64,
    ) -> Result<Vec<DeferredEvent>, AdminError> {
        let limit = limit.clamp(1, ROWS_MAX);
        let sql = clause.put_into(include_str!("../../sql/admin/deferred_list.sql"));
        let (sink, seq) = after.unzip();
        let params = clause.params(&[(&sink, Type::TEXT), (&seq, Type::INT8), (&limit, Type::INT8)]);
        let rows = self.look_freely(&sql, &params).await?;
        Ok(rows.iter().map(deferred).collect())
    }

    pub(crate) async fn causes_of_waiting(
        &self,
        filter: &DeferredFilter,
        limit: i64,
    ) -> Result<Vec<DeferredCause>, AdminError> {
        let (clause, limit) = (of_deferred(filter, 2), limit.clamp(1, ROWS_MAX));
        let sql = clause.put_into(include_str!("../../sql/admin/deferred_causes.sql"));
        let rows = self.look_freely(&sql, &clause.params(&[(&limit, Type::INT8)])).await?;
        Ok(rows.iter().map(|row| cause(row.get("sink"), row)).collect())
    }

    pub(crate) async fn retry_deferred(
        &self,
        filter: &DeferredFilter,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        filter.check()?;
        let mut session = self.begin_freely().await?;
        let done = self.retry_chunk(&mut session, filter, actor, chunk).await;
        finish(&mut session, done).await
    }

    async fn retry_chunk(
        &self,
        session: &mut Session,
        filter: &DeferredFilter,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        let (clause, chunk) = (of_deferred(filter, 2), chunk.clamp(1, ROWS_MAX));
        let sql = clause.put_into(include_str!("../../sql/admin/deferred_retry.sql"));
        let rows = self.query(session, &sql, &clause.params(&[(&chunk, Type::INT8)])).await?;
        if !rows.is_empty() {
            let ids: Vec<Uuid> = rows.iter().take(IDS_AUDITED).map(|row| row.get("id")).collect();
            let filter = audited_filter(filter, rows.len(), None);
            let detail =
                json!({ "filter": filter, "count": rows.len(), "ids": ids, "topics": topics(&rows) });
            self.audit(session, actor, "retry", &detail).await?;
            self.wake(session, "").await?;
        }
        Ok(rows.len() as u64)
    }

    pub(crate) async fn list_audit(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<AuditLine>, AdminError> {
        let (mut clause, limit) = (Clause::new(3), limit.clamp(1, ROWS_MAX));
        let texts =
            [("actor = ", &filter.actor), ("action = ", &filter.action), ("trace_id = ", &filter.trace_id)];
        clause.and_texts(&texts);
        for (condition, instant) in [("at >= ", filter.since), ("at < ", filter.until)] {
            if let Some(instant) = instant {
                clause.and_time(condition, instant);
            }
        }
        let sql = clause.put_into(include_str!("../../sql/admin/audit_list.sql"));
        let params = clause.params(&[(&before, Type::INT8), (&limit, Type::INT8)]);
        let rows = self.look_freely(&sql, &params).await?;
        let read = |row: &Row| AuditLine {
            id: row.get("id"),
            at: time(row, "at"),
            actor: row.get("actor"),
            verified: row.get("verified"),
            action: row.get("action"),
            reason: row.get("reason"),
            outcome: row.get("outcome"),
            trace_id: row.get("trace_id"),
            detail: row.get("detail"),
        };
        Ok(rows.iter().map(read).collect())
    }
}

/// Topics of the rows of an act, for its line in the audit: one about the audit's own topic is not sent on.
pub(crate) fn topics(rows: &[Row]) -> BTreeSet<String> {
    let mut topics = BTreeSet::new();
    for row in rows {
        if topics.len() == TOPICS_AUDITED {
            break;
        }
        topics.insert(row.get("topic"));
    }
    topics
}

/// What events wait for, of a row that has no sink of its own.
pub(crate) fn cause(sink: String, row: &Row) -> DeferredCause {
    DeferredCause {
        sink,
        reason: row.get("reason"),
        destination: row.get("destination"),
        error_code: row.get("error_code"),
        error: row.get("error"),
        count: row.get("count"),
        oldest_at: time(row, "oldest_at"),
        due_at: maybe(row, "due_at"),
    }
}

pub(crate) fn of_deferred(filter: &DeferredFilter, first: usize) -> Clause {
    let mut clause = Clause::new(first);
    if !filter.ids.is_empty() {
        clause.and("id = any (", filter.ids.clone(), Type::UUID_ARRAY, ")");
    }
    clause.and_texts(&[
        ("sink = ", &filter.sink),
        ("key = ", &filter.key),
        ("destination = ", &filter.destination),
        ("reason = ", &filter.reason),
        ("error_code = ", &filter.code),
    ]);
    if let Some(topic) = &filter.topic {
        clause.and("topic like ", Pattern::new(topic).to_like(), Type::TEXT, "");
    }
    clause
}

fn deferred(row: &Row) -> DeferredEvent {
    DeferredEvent {
        sink: row.get("sink"),
        seq: row.get("seq"),
        id: row.get("id"),
        topic: row.get("topic"),
        key: row.get("key"),
        route: row.get("route"),
        destination: row.get("destination"),
        reason: row.get("reason"),
        due_at: maybe(row, "due_at"),
        attempts: row.get("attempts"),
        replays: row.get("replays"),
        error_code: row.get("error_code"),
        last_error: row.get("last_error"),
        last_error_at: maybe(row, "last_error_at"),
        history: history(row),
        appended_at: time(row, "appended_at"),
        deferred_at: time(row, "deferred_at"),
    }
}

/// The attempts of a row, as far as they can be read.
pub(crate) fn history(row: &Row) -> History {
    let stored: Option<serde_json::Value> = row.get("history");
    stored.and_then(|stored| serde_json::from_value(stored).ok()).unwrap_or_default()
}

pub(crate) fn time(row: &Row, column: &str) -> Timestamp {
    Timestamp(row.get::<_, Micros>(column).0)
}

pub(crate) fn maybe(row: &Row, column: &str) -> Option<Timestamp> {
    row.get::<_, Option<Micros>>(column).map(|at| Timestamp(at.0))
}
