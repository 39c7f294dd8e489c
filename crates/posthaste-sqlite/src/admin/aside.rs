//! What waits and what is dead, by cause; and lines of the audit.

use super::dead::Clause;
use super::{audit, failed};
use crate::clock::{NEVER, now};
use crate::log::filter::glob;
use posthaste::Timestamp;
use posthaste::admin::{
    Actor, AdminError, AuditFilter, AuditLine, DeadCause, DeadFilter, DeferredCause, DeferredEvent,
    DeferredFilter, History, IDS_AUDITED, ROWS_MAX, TOPICS_AUDITED, audited_filter,
};
use rusqlite::{Connection, Row, Transaction, params, params_from_iter};
use serde_json::json;
use std::collections::BTreeSet;
use uuid::Uuid;

pub(crate) fn causes_of_death(
    tx: &Connection,
    filter: &DeadFilter,
    limit: i64,
) -> rusqlite::Result<Vec<DeadCause>> {
    let (clause, limit) = (Clause::of(filter), limit.clamp(1, ROWS_MAX));
    let sql = clause.put_into(include_str!("../../sql/admin/dead_causes.sql"), limit);
    let read = |row: &Row<'_>| {
        let (fingerprint, sink): (Option<i64>, String) = (row.get("fingerprint")?, row.get("sink")?);
        Ok(DeadCause {
            topics: topics_of(tx, fingerprint, &sink)?,
            fingerprint,
            sink,
            count: row.get("count")?,
            error_class: row.get("error_class")?,
            error_code: row.get("error_code")?,
            error: row.get("error")?,
            first_at: Timestamp(row.get("first_at")?),
            last_at: Timestamp(row.get("last_at")?),
            holding: row.get("holding")?,
            id: id(row, "id")?,
        })
    };
    tx.prepare(&sql)?.query_map(params_from_iter(clause.values()), read)?.collect()
}

/// Topics of the last letters of a cause, a few.
fn topics_of(tx: &Connection, fingerprint: Option<i64>, sink: &str) -> rusqlite::Result<Vec<String>> {
    let sql = include_str!("../../sql/admin/cause_topics.sql");
    tx.prepare_cached(sql)?.query_map(params![fingerprint, sink], |row| row.get(0))?.collect()
}

pub(crate) fn list(
    tx: &Connection,
    filter: &DeferredFilter,
    after: Option<(String, i64)>,
    limit: i64,
) -> rusqlite::Result<Vec<DeferredEvent>> {
    let mut clause = of(filter);
    let (sink, seq) = after.unwrap_or_default();
    clause.and("(sink, seq) > (", sink, &format!(", {seq})"));
    list_of(tx, &clause, limit)
}

/// The first events of a clause.
pub(crate) fn list_of(tx: &Connection, clause: &Clause, limit: i64) -> rusqlite::Result<Vec<DeferredEvent>> {
    let limit = limit.clamp(1, ROWS_MAX);
    let sql = clause.put_into(include_str!("../../sql/admin/deferred_list.sql"), limit);
    tx.prepare(&sql)?.query_map(params_from_iter(clause.values()), deferred)?.collect()
}

pub(crate) fn causes(
    tx: &Connection,
    filter: &DeferredFilter,
    limit: i64,
) -> rusqlite::Result<Vec<DeferredCause>> {
    let (clause, limit) = (of(filter), limit.clamp(1, ROWS_MAX));
    let sql = clause.put_into(include_str!("../../sql/admin/deferred_causes.sql"), limit);
    tx.prepare(&sql)?.query_map(params_from_iter(clause.values()), cause)?.collect()
}

/// What the first of a sink's events wait for.
pub(crate) fn causes_of(tx: &Connection, sink: &str, rows_max: i64) -> rusqlite::Result<Vec<DeferredCause>> {
    let sql = include_str!("../../sql/admin/sink_waits.sql");
    tx.prepare_cached(sql)?.query_map(params![sink, rows_max], cause)?.collect()
}

/// The next events of a filter are due now. Not what waits behind another of its key, or for its own time,
/// and not what is due already: so a second chunk finds others, and the last one nothing.
pub(crate) fn retry(
    tx: &Transaction<'_>,
    filter: &DeferredFilter,
    actor: &Actor,
    chunk: i64,
) -> Result<u64, AdminError> {
    let (mut clause, chunk, now) = (of(filter), chunk.clamp(1, ROWS_MAX), now());
    clause.and("due_at > ", now, "");
    clause.and("due_at < ", NEVER, "");
    let sql = clause.put_into(include_str!("../../sql/admin/deferred_retry.sql"), chunk);
    let sql = sql.replace("/*now*/", &now.to_string());
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let mut statement = tx.prepare(&sql).map_err(failed)?;
    let rows = statement.query_map(params_from_iter(clause.values()), read).map_err(failed)?;
    let rows = rows.collect::<rusqlite::Result<Vec<(String, String)>>>().map_err(failed)?;
    if !rows.is_empty() {
        let ids: Vec<&String> = rows.iter().take(IDS_AUDITED).map(|(id, _)| id).collect();
        let topics: BTreeSet<&String> = rows.iter().map(|(_, topic)| topic).collect();
        let topics: Vec<_> = topics.into_iter().take(TOPICS_AUDITED).collect();
        let filter = audited_filter(filter, rows.len(), None);
        let detail = json!({ "filter": filter, "count": rows.len(), "ids": ids, "topics": topics });
        audit(tx, actor, "retry", &detail)?;
    }
    Ok(rows.len() as u64)
}

pub(crate) fn audit_lines(
    tx: &Connection,
    filter: &AuditFilter,
    before: Option<i64>,
    limit: i64,
) -> rusqlite::Result<Vec<AuditLine>> {
    let (mut clause, limit) = (Clause::new("true".to_owned()), limit.clamp(1, ROWS_MAX));
    clause.and_texts(&[
        ("actor = ", &filter.actor),
        ("action = ", &filter.action),
        ("trace_id = ", &filter.trace_id),
    ]);
    for (condition, instant) in [("at >= ", filter.since), ("at < ", filter.until)] {
        if let Some(instant) = instant {
            clause.and(condition, instant.0, "");
        }
    }
    clause.and("id < ", before.unwrap_or(i64::MAX), "");
    let sql = clause.put_into(include_str!("../../sql/admin/audit_list.sql"), limit);
    let read = |row: &Row<'_>| {
        let detail: String = row.get("detail")?;
        Ok(AuditLine {
            id: row.get("id")?,
            at: Timestamp(row.get("at")?),
            actor: row.get("actor")?,
            verified: row.get("verified")?,
            action: row.get("action")?,
            reason: row.get("reason")?,
            outcome: row.get("outcome")?,
            trace_id: row.get("trace_id")?,
            detail: serde_json::from_str(&detail).unwrap_or_default(),
        })
    };
    tx.prepare(&sql)?.query_map(params_from_iter(clause.values()), read)?.collect()
}

pub(crate) fn of(filter: &DeferredFilter) -> Clause {
    let mut clause = Clause::new("true".to_owned());
    if !filter.ids.is_empty() {
        let ids: Vec<String> = filter.ids.iter().map(Uuid::to_string).collect();
        clause.and("id in (select value from json_each(", json!(ids).to_string(), "))");
    }
    clause.and_texts(&[
        ("sink = ", &filter.sink),
        ("key = ", &filter.key),
        ("destination = ", &filter.destination),
        ("reason = ", &filter.reason),
        ("error_code = ", &filter.code),
    ]);
    if let Some(topic) = &filter.topic {
        clause.and("topic glob ", glob(topic), "");
    }
    clause
}

fn cause(row: &Row<'_>) -> rusqlite::Result<DeferredCause> {
    Ok(DeferredCause {
        sink: row.get("sink")?,
        reason: row.get("reason")?,
        destination: row.get("destination")?,
        error_code: row.get("error_code")?,
        error: row.get("error")?,
        count: row.get("count")?,
        oldest_at: Timestamp(row.get("oldest_at")?),
        due_at: due(row)?,
    })
}

fn deferred(row: &Row<'_>) -> rusqlite::Result<DeferredEvent> {
    Ok(DeferredEvent {
        sink: row.get("sink")?,
        seq: row.get("seq")?,
        id: id(row, "id")?,
        topic: row.get("topic")?,
        key: row.get("key")?,
        route: row.get("route")?,
        destination: row.get("destination")?,
        reason: row.get("reason")?,
        due_at: due(row)?,
        attempts: row.get("attempts")?,
        replays: row.get("replays")?,
        error_code: row.get("error_code")?,
        last_error: row.get("last_error")?,
        last_error_at: row.get::<_, Option<i64>>("last_error_at")?.map(Timestamp),
        history: history(row)?,
        appended_at: Timestamp(row.get("appended_at")?),
        deferred_at: Timestamp(row.get("deferred_at")?),
    })
}

fn due(row: &Row<'_>) -> rusqlite::Result<Option<Timestamp>> {
    let due_at: i64 = row.get("due_at")?;
    Ok((due_at < NEVER).then_some(Timestamp(due_at)))
}

/// The attempts of a row, as far as they can be read.
pub(crate) fn history(row: &Row<'_>) -> rusqlite::Result<History> {
    let stored: Option<String> = row.get("history")?;
    Ok(stored.map_or_else(History::default, |text| History::from_json(&text)))
}

fn id(row: &Row<'_>, column: &str) -> rusqlite::Result<Uuid> {
    let text: String = row.get(column)?;
    Ok(Uuid::parse_str(&text).unwrap_or_default())
}
