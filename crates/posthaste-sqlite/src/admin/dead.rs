//! Dead letters: list, count, replay, discard.
//!
//! A bulk act means its filter, not a page of it (F58). It runs in chunks, each a transaction of its own with
//! its own line in the audit, so it can be stopped and resumed at any time.
//!
//! Two acts on one letter: one wins. Whoever names letters by id has read which of them are there, and learns
//! it as a conflict (F59) if one is gone when the write lock is its own: "done" would be a lie about who did
//! it. For a filter it is just one letter less.
//!
//! A replayed event goes back to its place among the deferred: same number, so that what waits of its key
//! goes after it (F57). Settlements write under the same lock, so who is first of a key is decided by one of
//! them at a time.

use super::{audit, failed};
use crate::clock::{NEVER, now};
use crate::log::filter::glob;
use crate::log::settle::promote;
use crate::row::{self, ANY_PAYLOAD, NO_PAYLOAD, event_sql};
use posthaste::Timestamp;
use posthaste::admin::{
    Actor, AdminCode, AdminError, DeadAct, DeadFilter, DeadLetter, IDS_AUDITED, ROWS_MAX, TOPICS_AUDITED,
    audited_filter,
};
use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params, params_from_iter};
use serde_json::json;
use std::collections::BTreeSet;
use uuid::Uuid;

/// What [`letter`] reads, up to the condition: with payloads or without.
fn select(payload: &str) -> String {
    let event = row::columns(payload);
    format!(
        "select {event}, letter, sink, dead_at, attempts, replays, error_class, error_code, error, holds_key, \
         fingerprint, history \
         from posthaste_dead_letters where"
    )
}

/// A filter as SQL: conditions with their values.
pub(crate) struct Clause {
    pub(crate) sql: String,
    values: Vec<Box<dyn ToSql + Send>>,
}

impl Clause {
    pub(crate) fn new(sql: String) -> Self {
        Self { sql, values: Vec::new() }
    }

    pub(crate) fn of(filter: &DeadFilter) -> Self {
        let mut clause = Self::new("true".to_owned());
        if !filter.ids.is_empty() {
            let ids: Vec<String> = filter.ids.iter().map(Uuid::to_string).collect();
            clause.and("id in (select value from json_each(", json!(ids).to_string(), "))");
        }
        clause.and_texts(&[("sink = ", &filter.sink), ("key = ", &filter.key), ("route = ", &filter.route)]);
        clause.and_common(filter, ["h.key = ", "h.value = "]);
        clause
    }

    /// What letters of sinks and of consumers have in common. `header`: name and value of a row of theirs.
    pub(crate) fn and_common(&mut self, filter: &DeadFilter, header: [&str; 2]) {
        self.and_texts(&[("error_code = ", &filter.code), ("error_class = ", &filter.class)]);
        // No pattern: what people look for has `*` and `_` in it.
        if let Some(text) = &filter.error {
            self.and("instr(error, ", text.clone(), ") > 0");
        }
        if let Some(fingerprint) = filter.fingerprint {
            self.and("fingerprint = ", fingerprint, "");
        }
        if let Some(topic) = &filter.topic {
            self.and("topic glob ", glob(topic), "");
        }
        if filter.header.is_some() || filter.header_value.is_some() {
            let rows = "json_each(case when json_valid(headers) then headers end) h";
            self.sql.push_str(&format!(" and exists (select 1 from {rows} where true"));
            self.and_texts(&[(header[0], &filter.header), (header[1], &filter.header_value)]);
            self.sql.push(')');
        }
        for (condition, wanted) in [("holds_key = ", filter.holds_key), ("(replays > 0) = ", filter.replayed)]
        {
            if let Some(wanted) = wanted {
                self.and(condition, wanted, "");
            }
        }
        for (condition, instant) in [("dead_at >= ", filter.since), ("dead_at < ", filter.until)] {
            if let Some(instant) = instant {
                self.and(condition, instant.0, "");
            }
        }
    }

    pub(crate) fn and(&mut self, before: &str, value: impl ToSql + Send + 'static, after: &str) {
        self.values.push(Box::new(value));
        self.sql.push_str(&format!(" and {before}?{}{after}", self.values.len()));
    }

    pub(crate) fn and_texts(&mut self, texts: &[(&str, &Option<String>)]) {
        for (condition, value) in texts {
            if let Some(value) = value {
                self.and(condition, value.clone(), "");
            }
        }
    }

    /// A statement of a file with this condition, and so many rows at most.
    pub(crate) fn put_into(&self, sql: &str, limit: i64) -> String {
        sql.replace("/*condition*/", &self.sql).replace("/*limit*/", &limit.to_string())
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &dyn ToSql> {
        self.values.iter().map(|value| &**value as &dyn ToSql)
    }
}

pub(crate) fn list(
    tx: &Connection,
    filter: &DeadFilter,
    after: i64,
    limit: i64,
) -> rusqlite::Result<Vec<DeadLetter>> {
    let mut clause = Clause::of(filter);
    clause.and("letter > ", after, "");
    list_of(tx, &clause, limit)
}

/// The first letters of a clause.
pub(crate) fn list_of(tx: &Connection, clause: &Clause, limit: i64) -> rusqlite::Result<Vec<DeadLetter>> {
    let limit = limit.clamp(1, ROWS_MAX);
    let sql = format!("{} {} order by letter limit {limit}", select(NO_PAYLOAD), clause.sql);
    let mut statement = tx.prepare(&sql)?;
    statement.query_map(params_from_iter(clause.values()), letter)?.collect()
}

pub(crate) fn newest(
    tx: &Connection,
    filter: &DeadFilter,
    before: Option<i64>,
    limit: i64,
) -> rusqlite::Result<Vec<DeadLetter>> {
    let (clause, limit) = (Clause::of(filter), limit.clamp(1, ROWS_MAX));
    let before = before.unwrap_or(i64::MAX);
    let sql = format!(
        "{} letter < {before} and {} order by letter desc limit {limit}",
        select(NO_PAYLOAD),
        clause.sql
    );
    let mut statement = tx.prepare(&sql)?;
    statement.query_map(params_from_iter(clause.values()), letter)?.collect()
}

pub(crate) fn show(tx: &Connection, id: Uuid) -> rusqlite::Result<Vec<DeadLetter>> {
    let sql = format!("{} id = ?1 order by letter", select(ANY_PAYLOAD));
    let mut statement = tx.prepare(&sql)?;
    statement.query_map([id.to_string()], letter)?.collect()
}

/// The letter of an event for one sink, without its payload.
pub(crate) fn of_sink(tx: &Connection, sink: &str, seq: i64) -> rusqlite::Result<Option<DeadLetter>> {
    let sql = format!("{} sink = ?1 and seq = ?2", select(NO_PAYLOAD));
    tx.prepare_cached(&sql)?.query_row(params![sink, seq], letter).optional()
}

pub(crate) fn count(tx: &Connection, filter: &DeadFilter) -> rusqlite::Result<u64> {
    let clause = Clause::of(filter);
    let sql = format!("select count(*) from posthaste_dead_letters where {}", clause.sql);
    let count: i64 = tx.query_row(&sql, params_from_iter(clause.values()), |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// The letters that a chunk means.
pub(crate) fn letters(tx: &Connection, filter: &DeadFilter, chunk: i64) -> rusqlite::Result<Vec<i64>> {
    picked(tx, &Clause::of(filter), chunk)
}

/// The next letters of a clause.
pub(crate) fn picked(tx: &Connection, clause: &Clause, chunk: i64) -> rusqlite::Result<Vec<i64>> {
    let chunk = chunk.clamp(1, ROWS_MAX);
    let sql = format!(
        "select letter from posthaste_dead_letters where {} order by letter limit {chunk}",
        clause.sql
    );
    let mut statement = tx.prepare(&sql)?;
    statement.query_map(params_from_iter(clause.values()), |row| row.get(0))?.collect()
}

pub(crate) fn act(
    tx: &Transaction<'_>,
    filter: &DeadFilter,
    act: DeadAct,
    actor: &Actor,
    chunk: i64,
    named: &[i64],
) -> Result<u64, AdminError> {
    let letters = letters(tx, filter, chunk).map_err(failed)?;
    AdminError::check_taken(named, &letters)?;
    if !letters.is_empty() {
        settle(tx, &DeadChunk { filter, act, actor, job: None }, &letters)?;
    }
    Ok(letters.len() as u64)
}

/// What is done to letters, and by whom: the audit has it.
pub(crate) struct DeadChunk<'a> {
    pub(crate) filter: &'a DeadFilter,
    pub(crate) act: DeadAct,
    pub(crate) actor: &'a Actor,
    /// The job that it is part of.
    pub(crate) job: Option<i64>,
}

/// Moves or removes letters, puts their keys in order, writes the audit.
pub(crate) fn settle(tx: &Transaction<'_>, chunk: &DeadChunk<'_>, letters: &[i64]) -> Result<(), AdminError> {
    let DeadChunk { filter, act, actor, job } = *chunk;
    let mut keys = BTreeSet::new();
    let (mut ids, mut topics) = (Vec::new(), BTreeSet::new());
    for letter in letters {
        let sinks = match act {
            DeadAct::Replay => replay(tx, *letter)?,
            DeadAct::Discard => Vec::new(),
        };
        let sql = "delete from posthaste_dead_letters where letter = ?1 returning sink, key, id, topic";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let (sink, key, id, topic): (String, Option<String>, String, String) =
            tx.query_row(sql, [letter], read).map_err(failed)?;
        ids.push(id);
        if topics.len() < TOPICS_AUDITED {
            topics.insert(topic);
        }
        let Some(key) = key else { continue };
        keys.extend(sinks.into_iter().chain([sink]).map(|sink| (sink, key.clone())));
    }
    for (sink, key) in keys {
        order_key(tx, &sink, &key).map_err(failed)?;
    }
    ids.truncate(IDS_AUDITED);
    let filter = audited_filter(filter, letters.len(), job);
    let mut detail = json!({ "filter": filter, "count": letters.len(), "ids": ids, "topics": topics });
    if let Some(job) = job {
        detail["job"] = job.into();
    }
    audit(tx, actor, act.action(), &detail)
}

/// The code with which a replay of a letter would be refused, if it would be.
pub(crate) fn refusal(tx: &Connection, letter: i64) -> rusqlite::Result<Option<&'static str>> {
    let sql = "select sink, topic, error_code from posthaste_dead_letters where letter = ?1";
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let (sink, topic, code): (String, String, String) = tx.prepare_cached(sql)?.query_row([letter], read)?;
    Ok(match code == "route.none" {
        true if takers(tx, &topic)?.is_empty() => Some(AdminCode::NoRoute.as_str()),
        false if !is_served(tx, &sink)? => Some(AdminCode::NotServed.as_str()),
        _ => None,
    })
}

/// Puts a letter back among the deferred. Answers with the sinks it goes to: one that no route took goes to
/// every sink whose routes take its topic now.
fn replay(tx: &Transaction<'_>, letter: i64) -> Result<Vec<String>, AdminError> {
    let sql = "select sink, topic, error_code from posthaste_dead_letters where letter = ?1";
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let (sink, topic, code): (String, String, String) = tx.query_row(sql, [letter], read).map_err(failed)?;
    let unrouted = code == "route.none";
    if !unrouted && !is_served(tx, &sink).map_err(failed)? {
        AdminError::check_letters_served(std::slice::from_ref(&sink))?;
    }
    let sinks = if unrouted { takers(tx, &topic).map_err(failed)? } else { vec![sink] };
    if sinks.is_empty() {
        return Err(AdminError::no_route(&topic));
    }
    for sink in &sinks {
        let sql = event_sql!("../../sql/admin/replay.sql");
        tx.execute(sql, params![letter, sink, now()]).map_err(failed)?;
    }
    Ok(sinks)
}

/// Whether a sink is in the configuration.
pub(crate) fn is_served(tx: &Connection, sink: &str) -> rusqlite::Result<bool> {
    tx.prepare_cached("select 1 from posthaste_lanes where sink = ?1 and retired_at is null")?.exists([sink])
}

/// Sinks in use whose routes take a topic.
fn takers(tx: &Connection, topic: &str) -> rusqlite::Result<Vec<String>> {
    let sql =
        "select distinct sink, filter from posthaste_lanes where retired_at is null and sink <> 'unrouted'";
    let rows = tx
        .prepare(sql)?
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let mut takers = Vec::new();
    for (sink, filter) in rows {
        let condition = crate::log::filter::condition(&filter);
        let sql = format!("select 1 from (select ?1 as topic, 0 as seq) where true{condition}");
        if tx.query_row(&sql, [topic], |_| Ok(())).optional()?.is_some() {
            takers.push(sink);
        }
    }
    Ok(takers)
}

/// Whoever is first of its key now comes due, everybody behind it waits.
pub(crate) fn order_key(tx: &Transaction<'_>, sink: &str, key: &str) -> rusqlite::Result<()> {
    tx.execute(include_str!("../../sql/admin/wait_behind.sql"), params![sink, key, NEVER])?;
    promote(tx, sink, key)
}

fn letter(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    let event = row::shown(row)?;
    Ok(DeadLetter {
        cursor: row.get::<_, i64>("letter")?.to_string(),
        sink: row.get("sink")?,
        seq: event.seq,
        id: event.id,
        topic: event.topic,
        key: event.key,
        headers: event.headers,
        content_type: event.content_type,
        payload_bytes: event.payload_bytes,
        payload: event.payload,
        appended_at: event.appended_at,
        dead_at: Timestamp(row.get("dead_at")?),
        attempts: row.get("attempts")?,
        replays: row.get("replays")?,
        error_class: row.get("error_class")?,
        error_code: row.get("error_code")?,
        error: row.get("error")?,
        holds_key: row.get("holds_key")?,
        fingerprint: row.get("fingerprint")?,
        history: super::aside::history(row)?,
    })
}
