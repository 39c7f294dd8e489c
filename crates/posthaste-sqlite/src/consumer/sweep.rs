//! Housekeeping: marks that nobody needs any more, letters whose declared time is over, and how many wait.

use super::InboxSetup;
use super::apply::transact;
use super::defer::audit;
use super::row::promote;
use crate::clock::now;
use posthaste::admin::TOPICS_AUDITED;
use posthaste::consumer::store::{ConsumerRetention, InboxError, InboxSwept};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// Rows of one transaction, and transactions of one sweep.
pub(super) const CHUNK: u64 = 1_000;
pub(super) const CHUNKS: usize = 50;

/// Letters are counted up to here: a gauge must not cost more the worse things are (F82).
const LETTERS_COUNTED_MAX: i64 = 100_000;

const DAY: i64 = 86_400_000_000;

/// Removes a chunk of old marks and one of letters. Answers how many.
pub(super) fn purge(
    connection: &mut Connection,
    setup: &InboxSetup,
    retention: ConsumerRetention,
) -> Result<(u64, u64), InboxError> {
    let before = |days: u32| now() - i64::from(days) * DAY;
    transact(connection, |tx| {
        let mut purge = tx.prepare_cached(include_str!("../../sql/consumer/purge_marks.sql"))?;
        let marks = purge.execute(params![setup.consumer, before(retention.marks_days), CHUNK as i64])?;
        let letters = match retention.dead_letter_days {
            0 => 0,
            days => purge_letters(tx, setup, before(days))?,
        };
        Ok((marks as u64, letters))
    })
}

fn purge_letters(tx: &Transaction<'_>, setup: &InboxSetup, before: i64) -> rusqlite::Result<u64> {
    let key = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Option<Vec<u8>>>(1)?));
    let mut statement = tx.prepare_cached(include_str!("../../sql/consumer/purge_letters.sql"))?;
    let gone = statement.query_map(params![setup.consumer, before, CHUNK as i64], key)?;
    let gone: Vec<_> = gone.collect::<rusqlite::Result<_>>()?;
    for (topic, order_id) in &gone {
        promote(tx, setup, topic, order_id.as_deref(), true)?;
    }
    if !gone.is_empty() {
        let topics: BTreeSet<&String> = gone.iter().map(|(topic, _)| topic).collect();
        let topics: Vec<_> = topics.into_iter().take(TOPICS_AUDITED).collect();
        let detail = json!({ "consumer": setup.consumer, "count": gone.len(), "topics": topics });
        audit(tx, "retention", "purge", "declared dead letter retention", &detail)?;
    }
    Ok(gone.len() as u64)
}

/// What waits and what is dead, counted up to a bound.
pub(super) fn count(
    connection: &Connection,
    setup: &InboxSetup,
    deferred_max: u64,
    swept: &mut InboxSwept,
) -> rusqlite::Result<()> {
    let count = |table: &str, most: i64| {
        let sql = format!("select count(*) from (select 1 from {table} where consumer = ?1 limit ?2)");
        connection.prepare_cached(&sql)?.query_row(params![setup.consumer, most], |row| row.get::<_, i64>(0))
    };
    let most = i64::try_from(deferred_max).unwrap_or(i64::MAX);
    swept.deferred = count("posthaste_inbox_deferred", most)?.unsigned_abs();
    swept.dead_letters = count("posthaste_inbox_dead_letters", LETTERS_COUNTED_MAX)?.unsigned_abs();
    // Numbers are drawn in the order of time, so the lowest one is the oldest.
    let oldest = "select deferred_at from posthaste_inbox_deferred where consumer = ?1 order by seq limit 1";
    let oldest: Option<i64> =
        connection.prepare_cached(oldest)?.query_row([&setup.consumer], |row| row.get(0)).optional()?;
    let age = |at| Duration::from_micros(now().saturating_sub(at).max(0).unsigned_abs());
    swept.oldest_deferred = oldest.map(age);
    Ok(())
}
