//! Events of the log as people look at them: lists, one event's life, new ones, and sending some again.
//!
//! Every look is bounded in rows (F82). Times are found by halving: rows are appended one transaction after
//! the other, so times grow with numbers as far as the clock does. An id is looked for around the time in it;
//! there is no index on ids, because every append would pay for it.

use super::dead::{Clause, is_served, order_key};
use super::lanes::first_since;
use super::{audit, check_sink, failed, sinks};
use crate::clock::{NEVER, now};
use crate::connect::slot;
use crate::log::filter::{condition_since, glob};
use crate::row::{self, ANY_PAYLOAD, NO_PAYLOAD, event_sql};
use crate::watch::last_seq;
use posthaste::Timestamp;
use posthaste::admin::{
    Acted, Actor, AdminError, EventFilter, EventLife, EventName, EventPage, LogEvent, PassedAt, Progress,
    ROWS_MAX, ReplayChunk, SAMPLES, SinkLife, TailPlace, Waiting, Where,
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params, params_from_iter};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Numbers looked through at once: some tens of milliseconds.
const SCAN: i64 = 50_000;

/// An id's time and its row's may differ by this much: a transaction that took its time, a clock that was
/// set.
const AROUND_MICROS: i64 = 300_000_000;

/// Lines of the audit that are looked through, and shown.
const AUDIT_LOOK: i64 = 10_000;
const AUDIT_SHOWN: i64 = 20;

/// Later events of a key that are counted.
const HELD_MAX: i64 = 1_000;

/// The events that a filter selects within a range of numbers: behind the first, up to the second.
fn select(
    tx: &Connection,
    filter: &EventFilter,
    (behind, to): (i64, i64),
    condition: &str,
    limit: i64,
) -> rusqlite::Result<Vec<LogEvent>> {
    let mut clause = Clause::new(format!("seq > {behind} and seq <= {to}"));
    if let Some(topic) = &filter.topic {
        clause.and("topic glob ", glob(topic), "");
    }
    if let Some(key) = &filter.key {
        clause.and("key = ", key.clone(), "");
    }
    for (condition, instant) in [("appended_at >= ", filter.since), ("appended_at < ", filter.until)] {
        if let Some(instant) = instant {
            clause.and(condition, instant.0, "");
        }
    }
    let sql = format!(
        "select {} from posthaste_outbox where {}{condition} order by seq limit {limit}",
        row::columns(NO_PAYLOAD),
        clause.sql
    );
    let mut statement = tx.prepare(&sql)?;
    statement.query_map(params_from_iter(clause.values()), row::shown)?.collect()
}

/// The numbers that a filter can mean, behind a place: (behind, up to).
fn range(tx: &Connection, filter: &EventFilter, after: i64) -> rusqlite::Result<(i64, i64)> {
    let sql = "select coalesce(min(seq), 1) - 1 from posthaste_outbox";
    let first: i64 = tx.query_row(sql, [], |row| row.get(0))?;
    let mut behind = after.max(first).max(filter.from_seq.map_or(0, |seq| seq.saturating_sub(1)));
    let mut to = last_seq(tx)?.min(filter.to_seq.unwrap_or(i64::MAX));
    if let Some(since) = filter.since {
        behind = behind.max(first_since(tx, since.0)?.map_or(to, |seq| seq - 1));
    }
    // Later than this, nothing was appended before `until`, unless the clock went back further than we look.
    let late = filter.until.map(|until| until.0.saturating_add(AROUND_MICROS));
    if let Some(late) = late
        && let Some(seq) = first_since(tx, late)?
    {
        to = to.min(seq);
    }
    Ok((behind, to))
}

pub(crate) fn list(
    tx: &Connection,
    filter: &EventFilter,
    after: i64,
    limit: i64,
) -> rusqlite::Result<EventPage> {
    let (behind, to) = range(tx, filter, after)?;
    let window = to.min(behind.saturating_add(SCAN));
    let limit = limit.clamp(1, ROWS_MAX);
    let events = select(tx, filter, (behind, window), "", limit)?;
    let full = events.len() as i64 == limit;
    let reached = events.last().filter(|_| full).map_or(window, |last| last.seq);
    Ok(EventPage { events, next: (reached < to).then_some(reached) })
}

pub(crate) fn since(
    tx: &Connection,
    filter: &EventFilter,
    place: Option<&TailPlace>,
) -> rusqlite::Result<(Vec<LogEvent>, TailPlace)> {
    let Some(place) = place else {
        return Ok((Vec::new(), TailPlace { seq: last_seq(tx)?, snapshot: None }));
    };
    // One snapshot shows a prefix of the log: what comes later has a higher number.
    let page = list(tx, filter, place.seq, 1_000)?;
    let seq = page.next.unwrap_or(last_seq(tx)?.max(place.seq));
    Ok((page.events, TailPlace { seq, snapshot: None }))
}

pub(crate) fn life(tx: &Connection, name: EventName, place: Where) -> Result<EventLife, AdminError> {
    let seq = match name {
        EventName::Seq(seq) => Some(seq),
        EventName::Id(id) => find(tx, id, place).map_err(failed)?,
    };
    let found = match seq {
        Some(seq) => whole(tx, seq).map_err(failed)?,
        None => None,
    };
    let Some((event, in_log)) = found else { return Err(unknown(name, place)) };
    let sinks = sinks(tx).map_err(failed)?;
    let sinks = sinks.iter().map(|sink| sink_life(tx, sink, &event)).collect::<rusqlite::Result<Vec<_>>>();
    let acts = acts(tx, event.id).map_err(failed)?;
    Ok(EventLife { sinks: sinks.map_err(failed)?, acts, event, in_log })
}

fn unknown(name: EventName, place: Where) -> AdminError {
    match name {
        EventName::Id(id) if !place.everywhere => place.search_wider(id),
        _ => AdminError::unknown_event(name),
    }
}

/// The number of an id: around its time, among the copies, or everywhere.
fn find(tx: &Connection, id: Uuid, place: Where) -> rusqlite::Result<Option<i64>> {
    let text = id.to_string();
    let dead = "select seq from posthaste_dead_letters where id = ?1 limit 1";
    if let Some(seq) = tx.query_row(dead, [&text], |row| row.get(0)).optional()? {
        return Ok(Some(seq));
    }
    let near = place.time_of(id).map(|near| near.0);
    let (from, to) = match near.filter(|_| !place.everywhere) {
        Some(near) => (
            first_since(tx, near.saturating_sub(AROUND_MICROS))?.unwrap_or(i64::MAX),
            first_since(tx, near.saturating_add(AROUND_MICROS))?.unwrap_or(i64::MAX),
        ),
        None if place.everywhere => (0, i64::MAX),
        None => return Ok(None),
    };
    let log = "select seq from posthaste_outbox where seq between ?2 and ?3 and id = ?1 limit 1";
    if let Some(seq) = tx.query_row(log, params![text, from, to], |row| row.get(0)).optional()? {
        return Ok(Some(seq));
    }
    let waiting = "select seq from posthaste_deferred where id = ?1 limit 1";
    tx.query_row(waiting, [&text], |row| row.get(0)).optional()
}

/// An event with its payload, and whether the log has it: else a copy of it.
fn whole(tx: &Connection, seq: i64) -> rusqlite::Result<Option<(LogEvent, bool)>> {
    let columns = row::columns(ANY_PAYLOAD);
    for (table, in_log) in [("outbox", true), ("deferred", false), ("dead_letters", false)] {
        let sql = format!("select {columns} from posthaste_{table} where seq = ?1 limit 1");
        if let Some(event) = tx.query_row(&sql, [seq], row::shown).optional()? {
            return Ok(Some((event, in_log)));
        }
    }
    Ok(None)
}

fn sink_life(tx: &Connection, sink: &str, event: &LogEvent) -> rusqlite::Result<SinkLife> {
    let lane = lane_of(tx, sink, event)?;
    let (waiting, holds_key) = waiting(tx, sink, event.seq)?.unzip();
    let dead = super::dead::of_sink(tx, sink, event.seq)?;
    let passed = lane.position >= event.seq;
    let progress = match (&dead, &waiting) {
        (Some(_), _) => Progress::Dead,
        (None, Some(_)) => Progress::Deferred,
        (None, None) if !lane.reads => Progress::NotRouted,
        (None, None) if passed => Progress::Passed,
        (None, None) => Progress::Ahead,
    };
    let holds = dead.as_ref().is_some_and(|letter| letter.holds_key) || holds_key.unwrap_or(false);
    let key = event.key.as_deref();
    Ok(SinkLife {
        sink: sink.to_owned(),
        retired: lane.retired,
        progress,
        position: lane.position,
        passed: if passed && lane.reads { passed_at(tx, sink, lane.lane, event.seq)? } else { None },
        behind: match (key, &waiting) {
            (Some(key), Some(waiting)) if waiting.due_at.is_none() => before(tx, sink, key, event.seq)?,
            _ => None,
        },
        holds_back: match key.filter(|_| holds) {
            Some(key) => held_back(tx, sink, key, event.seq)?,
            None => 0,
        },
        waiting,
        dead,
    })
}

/// The lane that an event belongs to.
struct LaneOfEvent {
    lane: i16,
    position: i64,
    retired: bool,
    reads: bool,
}

fn lane_of(tx: &Connection, sink: &str, event: &LogEvent) -> rusqlite::Result<LaneOfEvent> {
    let slot = slot(event.key.as_deref().map(str::as_bytes), event.seq);
    let read = |row: &Row<'_>| {
        let (filter, before): (String, Option<String>) = (row.get(3)?, row.get(4)?);
        let condition = condition_since(&filter, before.as_deref(), row.get(5)?);
        let position: Option<i64> = row.get(1)?;
        Ok((row.get::<_, i16>(0)?, position.unwrap_or(0), row.get::<_, bool>(2)?, condition))
    };
    let sql = include_str!("../../sql/admin/lane_of.sql");
    let (lane, position, retired, condition) =
        tx.prepare_cached(sql)?.query_row(params![sink, slot], read)?;
    let sql = format!("select 1 from (select ?1 as topic, ?2 as seq) where true{condition}");
    let reads = tx.prepare(&sql)?.exists(params![event.topic, event.seq])?;
    Ok(LaneOfEvent { lane, position, retired, reads })
}

/// The receipt with which a cursor passed a number, by halving: positions grow with receipts, but for acts by
/// hand.
fn passed_at(tx: &Connection, sink: &str, lane: i16, seq: i64) -> rusqlite::Result<Option<PassedAt>> {
    let sql = "select n, position, epoch, settled_at from posthaste_receipts
                where sink = ?1 and lane = ?2 and n >= ?3 order by n limit 1";
    let at = |n: i64| -> rusqlite::Result<Option<(i64, i64, i64, i64)>> {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        tx.prepare_cached(sql)?.query_row(params![sink, lane, n], read).optional()
    };
    let sql = "select min(n), max(n) from posthaste_receipts where sink = ?1 and lane = ?2";
    let read = |row: &Row<'_>| Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?));
    let (Some(first), Some(last)) = tx.query_row(sql, params![sink, lane], read)? else { return Ok(None) };
    let (mut low, mut high) = (first, last);
    while low < high {
        let middle = low + (high - low) / 2;
        match at(middle)? {
            Some((n, position, ..)) if position < seq => low = n + 1,
            _ => high = middle,
        }
    }
    // The oldest one that is kept may have passed it long before: then nobody knows.
    let found = at(low)?.filter(|(n, position, ..)| *position >= seq && *n > first);
    Ok(found.map(|(n, _, epoch, at)| PassedAt { lane, receipt: n, epoch, settled_at: Timestamp(at) }))
}

/// How an event waits, and whether later ones of its key wait for it.
fn waiting(tx: &Connection, sink: &str, seq: i64) -> rusqlite::Result<Option<(Waiting, bool)>> {
    let sql = "select reason, attempts, earlier_attempts, replays, due_at, route, destination, error_class, last_error,
                      last_error_at, holds
                 from posthaste_deferred where sink = ?1 and seq = ?2";
    let read = |row: &Row<'_>| {
        let due_at: i64 = row.get(4)?;
        let waiting = Waiting {
            reason: row.get(0)?,
            attempts: row.get(1)?,
            earlier_attempts: row.get(2)?,
            replays: row.get(3)?,
            due_at: (due_at < NEVER).then_some(Timestamp(due_at)),
            route: row.get(5)?,
            destination: row.get(6)?,
            error_class: row.get(7)?,
            last_error: row.get(8)?,
            last_error_at: row.get::<_, Option<i64>>(9)?.map(Timestamp),
        };
        Ok((waiting, row.get(10)?))
    };
    tx.prepare_cached(sql)?.query_row(params![sink, seq], read).optional()
}

/// The event of a key that a later one waits for: the one before it.
fn before(tx: &Connection, sink: &str, key: &str, seq: i64) -> rusqlite::Result<Option<i64>> {
    let sql = "select max(seq) from (
                 select seq from posthaste_deferred where sink = ?1 and key = ?2 and holds and seq < ?3
                 union all
                 select seq from posthaste_dead_letters where sink = ?1 and key = ?2 and holds_key and seq < ?3)";
    tx.prepare_cached(sql)?.query_row(params![sink, key, seq], |row| row.get(0))
}

fn held_back(tx: &Connection, sink: &str, key: &str, seq: i64) -> rusqlite::Result<u64> {
    let sql = "select count(*) from (select 1 from posthaste_deferred
                where sink = ?1 and key = ?2 and holds and seq > ?3 limit ?4)";
    let count: i64 =
        tx.prepare_cached(sql)?.query_row(params![sink, key, seq, HELD_MAX], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Lines of the audit that name an event, the newest first.
fn acts(tx: &Connection, id: Uuid) -> rusqlite::Result<Vec<Acted>> {
    let sql =
        "select at, actor, action, reason from (select * from posthaste_audit order by id desc limit ?2)
                where instr(detail, ?1) and detail ->> 'consumer' is null order by id desc limit ?3";
    let read = |row: &Row<'_>| {
        Ok(Acted { at: Timestamp(row.get(0)?), actor: row.get(1)?, action: row.get(2)?, reason: row.get(3)? })
    };
    let mut statement = tx.prepare_cached(sql)?;
    statement.query_map(params![id.to_string(), AUDIT_LOOK, AUDIT_SHOWN], read)?.collect()
}

/// What a replay would send: events of the sink's routes that all of its lanes have passed.
struct Picked {
    events: Vec<LogEvent>,
    chunk: ReplayChunk,
}

fn pick(
    tx: &Connection,
    sink: &str,
    filter: &EventFilter,
    after: i64,
    chunk: i64,
) -> Result<Picked, AdminError> {
    check_sink(tx, sink)?;
    AdminError::check_served(sink, is_served(tx, sink).map_err(failed)?)?;
    let picked = || -> rusqlite::Result<Picked> {
        let sql = include_str!("../../sql/admin/reads.sql");
        let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Option<i64>>(1)?));
        let (stored, passed) = tx.query_row(sql, [sink], read)?;
        let (behind, to) = range(tx, filter, after)?;
        let to = to.min(passed.unwrap_or(0));
        let window = to.min(behind.saturating_add(SCAN));
        let limit = chunk.clamp(1, ROWS_MAX);
        let condition = crate::log::filter::condition(&stored);
        let found = select(tx, filter, (behind, window), &condition, limit)?;
        let full = found.len() as i64 == limit;
        let reached = found.last().filter(|_| full).map_or(window.max(behind), |last| last.seq);
        let (mut events, mut left_alone) = (Vec::new(), 0);
        for event in found {
            let there = "select 1 from posthaste_deferred where sink = ?1 and seq = ?2
                         union all select 1 from posthaste_dead_letters where sink = ?1 and seq = ?2";
            if tx.prepare_cached(there)?.exists(params![sink, event.seq])? {
                left_alone += 1;
            } else {
                events.push(event);
            }
        }
        let chunk = ReplayChunk {
            events: events.len() as u64,
            left_alone,
            reached,
            to_seq: to,
            done: reached >= to,
            samples: events.iter().take(SAMPLES).cloned().collect(),
        };
        Ok(Picked { events, chunk })
    };
    picked().map_err(failed)
}

pub(crate) fn would_replay(
    tx: &Connection,
    sink: &str,
    filter: &EventFilter,
    after: i64,
    chunk: i64,
) -> Result<ReplayChunk, AdminError> {
    Ok(pick(tx, sink, filter, after, chunk)?.chunk)
}

/// Copies wait and are due at once; a key's go in order, behind whatever of it waits already and is older.
pub(crate) fn replay(
    tx: &Transaction<'_>,
    sink: &str,
    filter: &EventFilter,
    after: i64,
    chunk: i64,
    (actor, job): (&Actor, Option<i64>),
) -> Result<ReplayChunk, AdminError> {
    let Picked { events, chunk } = pick(tx, sink, filter, after, chunk)?;
    let mut keys = BTreeSet::new();
    for event in &events {
        let sql = event_sql!("../../sql/admin/replay_event.sql");
        tx.prepare_cached(sql)
            .and_then(|mut s| s.execute(params![sink, event.seq, now()]))
            .map_err(failed)?;
        keys.extend(event.key.clone());
    }
    for key in keys {
        order_key(tx, sink, &key).map_err(failed)?;
    }
    if !events.is_empty() {
        let (seqs, ids): (Vec<i64>, Vec<Uuid>) = events.iter().map(|event| (event.seq, event.id)).unzip();
        let (action, mut detail) = filter.replayed(sink, &seqs, &ids);
        if let Some(job) = job {
            detail["job"] = job.into();
        }
        audit(tx, actor, action, &detail)?;
    }
    Ok(chunk)
}
