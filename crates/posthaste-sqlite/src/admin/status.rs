//! One look at everything, in one snapshot.
//!
//! None of its parts reads more than a fixed number of rows, whatever the backlog or the history (F82). A
//! backlog is counted row by row up to a bound. Above it, the rest is estimated from short probes at even
//! distances: numbers are dense here (a rolled-back transaction gives its numbers back), so a sink that reads
//! everything is estimated exactly, and one with a filter as well as its probes show.

use super::control;
use crate::clock::now;
use crate::log::roll::Hearts;
use crate::watch::last_seq;
use posthaste::Timestamp;
use posthaste::admin::{
    Beside, Count, LaneStatus, OutboxStatus, PausedRoute, RelayProcess, Said, SegmentStatus, SinkStatus,
    UnreadLog,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::path::Path;

/// Counted one by one up to here.
const EXACT_MAX: i64 = 10_000;

/// Rows looked at one by one for a sink: a sparse filter is exact as long as the log behind it is shorter.
const LOOK_MAX: i64 = 50_000;

/// Probes into the rest, and how many numbers each looks at.
const PROBES: i64 = 64;
const PROBE_NUMBERS: i64 = 64;

/// A sink's lanes as they are stored.
struct Lanes {
    sink: String,
    /// Which topics it reads, as SQL.
    condition: String,
    /// First and last slot and position of each lane.
    cursors: Vec<(i16, i16, i64)>,
    lanes: Vec<LaneStatus>,
}

/// Rows that a sink has not handled.
#[derive(Default)]
struct PendingCount {
    count: u64,
    ages: f64,
    oldest: f64,
}

pub(super) fn look(tx: &Connection, database: &Path) -> rusqlite::Result<OutboxStatus> {
    let now = now();
    let mut hearts = Hearts::of(database);
    let version = tx.query_row("select max(version) from posthaste_migrations", [], |row| row.get(0))?;
    let mut sinks = Vec::new();
    for lanes in lanes(tx, now, &mut hearts, false)? {
        sinks.push(sink(tx, lanes, now, false)?);
    }
    // Of those that left the configuration, whoever has something left. What they had not read is nobody's.
    for mut lanes in lanes(tx, now, &mut hearts, true)? {
        lanes.cursors.clear();
        let left = sink(tx, lanes, now, true)?;
        sinks.extend(Some(left).filter(|left| left.deferred.count + left.dead.count > 0));
    }
    let relays = relays(tx, now, &mut hearts)?;
    let unread = if sinks.is_empty() { unread(tx)? } else { None };
    Ok(OutboxStatus {
        now: Timestamp(now),
        reports: reports(tx, &relays)?,
        relays,
        schema_version: version,
        sinks,
        segments: vec![log(tx)?],
        paused_routes: control::of_kind(tx, "route")?
            .into_iter()
            .filter(|set| set.beside.paused)
            .map(|set| PausedRoute { route: set.name, set_by: set.set_by })
            .collect(),
        jobs_wait: tx.query_row(include_str!("../../sql/admin/jobs_wait.sql"), [now], |row| row.get(0))?,
        unread,
    })
}

/// What waits in a log that no relay has ever read.
fn unread(tx: &Connection) -> rusqlite::Result<Option<UnreadLog>> {
    let sql = include_str!("../../sql/admin/unread.sql");
    tx.query_row(sql, [EXACT_MAX + 1], |row| {
        let (found, oldest_at): (i64, Option<i64>) = (row.get("count")?, row.get("oldest_at")?);
        let count = Count { count: found.min(EXACT_MAX).unsigned_abs(), exact: found <= EXACT_MAX };
        Ok((found > 0).then_some(UnreadLog { count, oldest_at: oldest_at.map(Timestamp) }))
    })
}

fn relays(tx: &Connection, now: i64, hearts: &mut Hearts<'_>) -> rusqlite::Result<Vec<String>> {
    let sql = "select relay, heart from posthaste_relays where expires_at > ?1 order by relay";
    let mut statement = tx.prepare_cached(sql)?;
    let rows = statement
        .query_map([now], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?)))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(rows.into_iter().filter(|(_, heart)| hearts.beat(heart.as_deref())).map(|(relay, _)| relay).collect())
}

/// What the living say about themselves.
fn reports(tx: &Connection, relays: &[String]) -> rusqlite::Result<Vec<RelayProcess>> {
    let sql = include_str!("../../sql/admin/reports.sql");
    let read = |row: &Row<'_>| {
        let said: String = row.get("report")?;
        Ok(RelayProcess {
            relay: row.get("process")?,
            version: row.get("version")?,
            host: row.get("host")?,
            started_at: Timestamp(row.get("started_at")?),
            seen_at: Timestamp(row.get("seen_at")?),
            said: Said::read(serde_json::from_str(&said).unwrap_or_default()),
        })
    };
    let mut statement = tx.prepare_cached(sql)?;
    let mut all = statement.query_map([], read)?.collect::<rusqlite::Result<Vec<_>>>()?;
    all.retain(|process| relays.contains(&process.relay));
    Ok(all)
}

fn lanes(tx: &Connection, now: i64, hearts: &mut Hearts<'_>, retired: bool) -> rusqlite::Result<Vec<Lanes>> {
    let mut sinks: Vec<Lanes> = Vec::new();
    let mut statement = tx.prepare_cached(include_str!("../../sql/admin/lanes.sql"))?;
    let mut rows = statement.query([retired])?;
    while let Some(row) = rows.next()? {
        let sink: String = row.get("sink")?;
        if sinks.last().is_none_or(|last| last.sink != sink) {
            let (filter, before): (String, Option<String>) = (row.get("filter")?, row.get("filter_before")?);
            let condition =
                crate::log::filter::condition_since(&filter, before.as_deref(), row.get("filter_until")?);
            sinks.push(Lanes { sink, condition, cursors: Vec::new(), lanes: Vec::new() });
        }
        let lane = lane(row, now, hearts)?;
        if let Some(sink) = sinks.last_mut() {
            sink.cursors.push((row.get("slot_from")?, row.get("slot_to")?, lane.position));
            sink.lanes.push(lane);
        }
    }
    Ok(sinks)
}

fn lane(row: &Row<'_>, now: i64, hearts: &mut Hearts<'_>) -> rusqlite::Result<LaneStatus> {
    let (owner, heart): (Option<String>, Option<String>) = (row.get("owner")?, row.get("heart")?);
    let expires_at: Option<i64> = row.get("expires_at")?;
    let settled_at: Option<i64> = row.get("settled_at")?;
    let lives = expires_at.is_some_and(|expires| expires > now) && hearts.beat(heart.as_deref());
    Ok(LaneStatus {
        lane: row.get("lane")?,
        lease_ms: owner.as_ref().and(expires_at).map(|expires| (expires - now) / 1_000),
        owner: owner.filter(|_| lives),
        epoch: row.get("epoch")?,
        position: row.get::<_, Option<i64>>("position")?.unwrap_or(0),
        catching_up: false,
        settled_seconds_ago: settled_at.map(|at| (now - at) as f64 / 1e6),
        unclean: row.get("unclean")?,
    })
}

fn sink(tx: &Connection, lanes: Lanes, now: i64, retired: bool) -> rusqlite::Result<SinkStatus> {
    let (backlog, pending) = backlog(tx, &lanes, now)?;
    let bounded =
        |sql: &str| tx.prepare_cached(sql)?.query_row(params![lanes.sink, EXACT_MAX + 1], |row| row.get(0));
    let deferred: i64 =
        bounded("select count(*) from (select 1 from posthaste_deferred where sink = ?1 limit ?2)")?;
    let dead: i64 =
        bounded("select count(*) from (select 1 from posthaste_dead_letters where sink = ?1 limit ?2)")?;
    let overdue =
        "select appended_at from posthaste_deferred where sink = ?1 and due_at <= ?2 order by due_at limit 1";
    let overdue: Option<i64> =
        tx.prepare_cached(overdue)?.query_row(params![lanes.sink, now], |row| row.get(0)).optional()?;
    let overdue = overdue.map_or(0.0, |appended| (now - appended) as f64 / 1e6);
    let set = control::of_kind(tx, "sink")?.into_iter().find(|set| set.name == lanes.sink);
    let Beside { paused, rate: rate_limit, .. } = set.as_ref().map(|set| set.beside).unwrap_or_default();
    // Of what was lifted again nobody needs to know who it was.
    let set_by = set.and_then(|set| set.set_by).filter(|_| paused || rate_limit.is_some());
    let average = if pending.count > 0 { pending.ages / pending.count as f64 } else { 0.0 };
    Ok(SinkStatus {
        backlog,
        oldest_age_seconds: pending.oldest.max(overdue).max(0.0),
        average_age_seconds: average.max(0.0),
        deferred: up_to(deferred),
        dead: up_to(dead),
        delivered_per_second: delivered(tx, &lanes, now)? as f64 / 60.0,
        paused,
        rate_limit,
        set_by,
        waiting: super::aside::causes_of(tx, &lanes.sink, EXACT_MAX)?,
        retired,
        sink: lanes.sink,
        lanes: lanes.lanes,
    })
}

/// A count up to the bound; above it, "more than".
fn up_to(count: i64) -> Count {
    Count { count: count.unsigned_abs(), exact: count <= EXACT_MAX }
}

/// Events delivered in the last minute: from each lane's last receipt backwards. A busy lane writes some
/// fifty a second.
fn delivered(tx: &Connection, lanes: &Lanes, now: i64) -> rusqlite::Result<i64> {
    let mut total = 0;
    for lane in &lanes.lanes {
        let mut statement = tx.prepare_cached(include_str!("../../sql/admin/rates.sql"))?;
        total += statement
            .query_row(params![lanes.sink, lane.lane, now - 60_000_000], |row| row.get::<_, i64>(0))?;
    }
    Ok(total)
}

fn backlog(tx: &Connection, lanes: &Lanes, now: i64) -> rusqlite::Result<(Count, PendingCount)> {
    let last = last_seq(tx)?;
    let behind = lanes.cursors.iter().map(|(_, _, position)| *position).min().unwrap_or(0);
    let mut pending = PendingCount::default();
    let (seen, reached) = count(tx, lanes, (behind, last), LOOK_MAX, now, &mut pending)?;
    if seen {
        return Ok((Count { count: pending.count, exact: true }, pending));
    }
    let (mut probed, step) = (PendingCount::default(), (last - reached) as f64 / PROBES as f64);
    for probe in 0..PROBES {
        let from = reached + ((probe as f64 + 0.5) * step) as i64;
        count(tx, lanes, (from, (from + PROBE_NUMBERS).min(last)), LOOK_MAX, now, &mut probed)?;
    }
    let scale = (last - reached) as f64 / (PROBES * PROBE_NUMBERS) as f64;
    pending.count += (probed.count as f64 * scale).round() as u64;
    pending.ages += probed.ages * scale;
    Ok((Count { count: pending.count, exact: false }, pending))
}

/// Adds up what is not handled in a range of numbers. Answers whether all of it was seen, and how far.
fn count(
    tx: &Connection,
    lanes: &Lanes,
    (behind, last): (i64, i64),
    rows_max: i64,
    now: i64,
    pending: &mut PendingCount,
) -> rusqlite::Result<(bool, i64)> {
    let sql = format!(
        "select seq, posthaste_slot(key, seq), appended_at, (true{}) from posthaste_outbox
          where seq > ?1 and seq <= ?2 order by seq limit ?3",
        lanes.condition
    );
    let mut statement = tx.prepare_cached(&sql)?;
    let mut rows = statement.query(params![behind, last, rows_max])?;
    let (mut seen, mut reached) = (0, behind);
    while let Some(row) = rows.next()? {
        reached = row.get(0)?;
        seen += 1;
        let (slot, appended_at, reads): (i16, i64, bool) = (row.get(1)?, row.get(2)?, row.get(3)?);
        let unhandled =
            |(from, to, position): &(i16, i16, i64)| *from <= slot && slot <= *to && reached > *position;
        if reads && lanes.cursors.iter().any(unhandled) {
            let age = (now - appended_at) as f64 / 1e6;
            pending.count += 1;
            pending.ages += age;
            pending.oldest = pending.oldest.max(age);
        }
        if pending.count > EXACT_MAX.unsigned_abs() {
            return Ok((reached >= last, reached));
        }
    }
    Ok((seen < rows_max, reached))
}

/// The log has no segments here: one line, with what the whole file holds.
fn log(tx: &Connection) -> rusqlite::Result<SegmentStatus> {
    let one = |sql: &str| tx.query_row(sql, [], |row| row.get::<_, i64>(0));
    let bytes = (one("pragma page_count")? - one("pragma freelist_count")?) * one("pragma page_size")?;
    let sql = "select appended_at from posthaste_outbox order by seq limit 1";
    let opened_at: Option<i64> = tx.query_row(sql, [], |row| row.get(0)).optional()?;
    Ok(SegmentStatus { segment: 1, state: "current".to_owned(), bytes, opened_at: opened_at.map(Timestamp) })
}
