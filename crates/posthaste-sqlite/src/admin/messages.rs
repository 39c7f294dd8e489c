//! What waits of a consumer, and for what.

use super::consumers::{parsed, time};
use super::dead::Clause;
use crate::clock::NEVER;
use crate::log::filter::glob;
use posthaste::admin::{DeferredFilter, History, ROWS_MAX};
use posthaste::consumer::admin::{DeferredMessage, MessageCause};
use rusqlite::{Connection, Row, params_from_iter};
use serde_json::json;
use uuid::Uuid;

/// Deferred messages of a consumer. `ids` are message ids; a consumer has no sinks and no destinations.
pub(crate) fn clause(consumer: &str, filter: &DeferredFilter) -> Clause {
    let mut clause = Clause::new("true".to_owned());
    clause.and("consumer = ", consumer.to_owned(), "");
    if !filter.ids.is_empty() {
        let ids: Vec<String> = filter.ids.iter().map(Uuid::to_string).collect();
        clause.and("message_id in (select value from json_each(", json!(ids).to_string(), "))");
    }
    if let Some(key) = &filter.key {
        clause.and("key = ", key.clone().into_bytes(), "");
    }
    clause.and_texts(&[("reason = ", &filter.reason), ("error_code = ", &filter.code)]);
    if let Some(topic) = &filter.topic {
        clause.and("topic glob ", glob(topic), "");
    }
    clause
}

/// A page of messages.
pub(crate) fn list(
    tx: &Connection,
    consumer: &str,
    filter: &DeferredFilter,
    after: Option<i64>,
    limit: i64,
) -> rusqlite::Result<Vec<DeferredMessage>> {
    let mut clause = clause(consumer, filter);
    clause.and("seq > ", after.unwrap_or(i64::MIN), "");
    list_of(tx, &clause, limit)
}

/// The first messages of a clause.
pub(crate) fn list_of(
    tx: &Connection,
    clause: &Clause,
    limit: i64,
) -> rusqlite::Result<Vec<DeferredMessage>> {
    let sql = put(include_str!("../../sql/consumer/messages.sql"), clause, limit);
    tx.prepare(&sql)?.query_map(params_from_iter(clause.values()), message)?.collect()
}

pub(super) fn causes(
    tx: &Connection,
    consumer: &str,
    filter: &DeferredFilter,
    limit: i64,
) -> rusqlite::Result<Vec<MessageCause>> {
    let clause = clause(consumer, filter);
    let sql = put(include_str!("../../sql/consumer/message_causes.sql"), &clause, limit);
    tx.prepare(&sql)?.query_map(params_from_iter(clause.values()), cause)?.collect()
}

fn put(sql: &str, clause: &Clause, limit: i64) -> String {
    format!("{} limit {}", sql.replace("/*condition*/", &clause.sql), limit.clamp(1, ROWS_MAX))
}

fn message(row: &Row<'_>) -> rusqlite::Result<DeferredMessage> {
    let key: Option<Vec<u8>> = row.get("key")?;
    Ok(DeferredMessage {
        consumer: row.get("consumer")?,
        seq: row.get("seq")?,
        id: row.get("message_id")?,
        topic: row.get("topic")?,
        partition: row.get("partition")?,
        position: row.get("position")?,
        key: key.map(|key| String::from_utf8_lossy(&key).into_owned()),
        reason: row.get("reason")?,
        due_at: time(row, "due_at")?.filter(|at| at.0 != NEVER),
        attempts: row.get("attempts")?,
        replays: row.get("replays")?,
        error_code: row.get("error_code")?,
        last_error: row.get("last_error")?,
        last_error_at: time(row, "last_error_at")?,
        history: parsed(row, "history", |text: String| Some(History::from_json(&text)))?,
        repeat: row.get("repeat")?,
        published_at: time(row, "published_at")?,
        deferred_at: time(row, "deferred_at")?.unwrap_or_default(),
    })
}

fn cause(row: &Row<'_>) -> rusqlite::Result<MessageCause> {
    Ok(MessageCause {
        consumer: row.get("consumer")?,
        reason: row.get("reason")?,
        error_code: row.get("error_code")?,
        error: row.get("error")?,
        count: row.get("count")?,
        oldest_at: time(row, "oldest_at")?.unwrap_or_default(),
        due_at: time(row, "due_at")?.filter(|at| at.0 != NEVER),
    })
}
