//! Cursors written by hand: another number of lanes, rewinding a sink, repairing one.
//!
//! All three write new **bases**: receipts behind the last ones, under a new epoch. A base takes the lane
//! from its owner (whose next settlement finds another epoch), and gives the next owner its position. What
//! the former owner had published since is sent again. One transaction, under the write lock: nobody joins,
//! settles or sweeps meanwhile.
//!
//! A base never claims more than the old cursors did: a new lane starts at the lowest position of the old
//! lanes whose slots it takes over, and a rewind goes back only.

use super::{audit, check_sink, failed};
use crate::clock::now;
use crate::log::join::{set_state, slots_of};
use crate::log::store::note_freed;
use crate::watch::last_seq;
use posthaste::admin::{Actor, AdminError, DISORDER_MICROS, RewindTo};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::json;

/// A lane and its cursor.
struct Cursor {
    sink: String,
    lane: i32,
    slots: (i32, i32),
    epoch: i64,
    position: i64,
}

fn cursors(tx: &Connection) -> rusqlite::Result<Vec<Cursor>> {
    let read = |row: &Row<'_>| {
        Ok(Cursor {
            sink: row.get(0)?,
            lane: row.get(1)?,
            slots: (row.get(2)?, row.get(3)?),
            epoch: row.get(4)?,
            // Without a receipt nothing is proven.
            position: row.get::<_, Option<i64>>(5)?.unwrap_or(0),
        })
    };
    let mut statement = tx.prepare(include_str!("../../sql/admin/cursors.sql"))?;
    statement.query_map([], read)?.collect()
}

/// Higher than any epoch that any lane of this outbox ever had: lanes that come and go keep growing too.
fn next_epoch(cursors: &[Cursor]) -> i64 {
    cursors.iter().map(|lane| lane.epoch).max().unwrap_or(0) + 1
}

/// Writes a lane's next state and takes it from its owner.
fn rebase(
    tx: &Transaction<'_>,
    kind: &str,
    sink: &str,
    lane: i32,
    position: i64,
    epoch: i64,
) -> rusqlite::Result<()> {
    let base = include_str!("../../sql/admin/base.sql");
    tx.prepare_cached(base)?.execute(params![sink, lane, epoch, kind, position, now()])?;
    let free = include_str!("../../sql/admin/free_lane.sql");
    tx.prepare_cached(free)?.execute(params![sink, lane, epoch])?;
    Ok(())
}

/// A lane that goes back and has handled what its former routes took reads by its present ones alone. The
/// former filter would bring events that no route of the sink takes any more, and that were delivered.
fn forget_former(tx: &Transaction<'_>, lane: &Cursor) -> rusqlite::Result<()> {
    let sql = "update posthaste_lanes set filter_before = null, filter_until = 0
                where sink = ?1 and lane = ?2 and filter_until <= ?3";
    tx.prepare_cached(sql)?.execute(params![lane.sink, lane.lane, lane.position])?;
    Ok(())
}

pub(super) fn set(tx: &Transaction<'_>, lanes: u16, actor: &Actor) -> Result<(), AdminError> {
    AdminError::check_lanes(lanes)?;
    let count = i32::from(lanes);
    let old = cursors(tx).map_err(failed)?;
    set_state(tx, "lanes", &count.to_string()).map_err(failed)?;
    let sinks: Vec<&[Cursor]> = old.chunk_by(|a, b| a.sink == b.sink).collect();
    if !sinks.is_empty() && sinks.iter().all(|sink| sink.len() == usize::from(lanes)) {
        return Ok(());
    }
    let epoch = next_epoch(&old);
    for sink in &sinks {
        relane(tx, sink, count, epoch).map_err(failed)?;
    }
    note_freed(tx).map_err(failed)?;
    let before = sinks.first().map_or(0, |sink| sink.len());
    audit(tx, actor, "lanes", &json!({ "lanes": lanes, "before": before, "epoch": epoch }))
}

/// A sink's new lanes, each from the lowest position of the old ones it takes slots from.
fn relane(tx: &Transaction<'_>, old: &[Cursor], count: i32, epoch: i64) -> rusqlite::Result<()> {
    let Some(first) = old.first() else { return Ok(()) };
    for lane in 0..count {
        let (from, to) = slots_of(lane, count);
        let overlapping = old.iter().filter(|old| old.slots.0 <= to && from <= old.slots.1);
        let position = overlapping.map(|old| old.position).min().unwrap_or(0);
        let params = params![first.sink, lane, from, to, first.lane];
        tx.execute(include_str!("../../sql/admin/lane.sql"), params)?;
        rebase(tx, "relane", &first.sink, lane, position, epoch)?;
    }
    // Lanes that vanish leave their receipts: a former owner finds no lane of its own, and settles nothing.
    tx.execute("delete from posthaste_lanes where sink = ?1 and lane >= ?2", params![first.sink, count])?;
    Ok(())
}

pub(super) fn rewind(
    tx: &Transaction<'_>,
    sink: &str,
    to: RewindTo,
    actor: &Actor,
) -> Result<(), AdminError> {
    check_sink(tx, sink)?;
    let target = target(tx, to)?;
    let all = cursors(tx).map_err(failed)?;
    let lanes: Vec<&Cursor> = all.iter().filter(|lane| lane.sink == sink).collect();
    let foremost = lanes.iter().map(|lane| lane.position).max().unwrap_or(0);
    AdminError::check_rewind(sink, foremost, target)?;
    let epoch = next_epoch(&all);
    for lane in lanes {
        forget_former(tx, lane).map_err(failed)?;
        rebase(tx, "rewind", sink, lane.lane, lane.position.min(target), epoch).map_err(failed)?;
    }
    note_freed(tx).map_err(failed)?;
    let detail = json!({ "sink": sink, "position": target, "before": foremost, "epoch": epoch });
    audit(tx, actor, "rewind", &detail)
}

/// The position to go back to.
fn target(tx: &Connection, to: RewindTo) -> Result<i64, AdminError> {
    to.check()?;
    match to {
        RewindTo::Earliest => Ok(0),
        RewindTo::Seq(seq) => Ok(seq),
        RewindTo::Time(instant) => {
            let first = first_since(tx, instant.0).map_err(failed)?;
            first.map(|seq| seq - 1).ok_or_else(|| AdminError::nothing_since(instant))
        }
    }
}

/// The first number at or after an instant. There is no index on time, which would make every append dearer;
/// but rows are appended one transaction after the other, so times grow with numbers, as far as the clock
/// does. A place a little before the instant is found by halving, and the rest walked through.
pub(super) fn first_since(tx: &Connection, instant: i64) -> rusqlite::Result<Option<i64>> {
    let at = |seq: i64| -> rusqlite::Result<Option<(i64, i64)>> {
        let sql = "select seq, appended_at from posthaste_outbox where seq >= ?1 order by seq limit 1";
        tx.prepare_cached(sql)?.query_row([seq], |row| Ok((row.get(0)?, row.get(1)?))).optional()
    };
    let (mut low, mut high) = (0, last_seq(tx)? + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match at(middle)? {
            Some((seq, appended_at)) if appended_at < instant.saturating_sub(DISORDER_MICROS) => {
                low = seq + 1
            }
            _ => high = middle,
        }
    }
    let sql = "select seq from posthaste_outbox where seq >= ?1 and appended_at >= ?2 order by seq limit 1";
    tx.prepare_cached(sql)?.query_row([low, instant], |row| row.get(0)).optional()
}

/// Re-bases a sink's lanes after the log's numbers went back: somebody changed `sqlite_sequence`, or the log
/// was copied without it. Which of the numbers that were drawn again are handled, nobody knows; so the sink
/// starts over.
pub(super) fn repair(tx: &Transaction<'_>, sink: &str, actor: &Actor) -> Result<String, AdminError> {
    check_sink(tx, sink)?;
    let all = cursors(tx).map_err(failed)?;
    let last = last_seq(tx).map_err(failed)?;
    let sql = include_str!("../../sql/admin/known_seq.sql");
    let known: i64 = tx.query_row(sql, [], |row| row.get(0)).map_err(failed)?;
    let missing = all.iter().any(|lane| lane.sink == sink && lane.position == 0 && lane.epoch == 0);
    if last >= known && !missing {
        return Err(AdminError::nothing_to_repair("the log's numbers"));
    }
    // Every sink, not this one alone: once the numbers go on above, the others would not notice any more.
    let epoch = next_epoch(&all);
    let behind: Vec<&Cursor> = all.iter().filter(|lane| lane.position > last || lane.sink == sink).collect();
    for lane in &behind {
        forget_former(tx, lane).map_err(failed)?;
        rebase(tx, "repair", &lane.sink, lane.lane, 0, epoch).map_err(failed)?;
    }
    let moved =
        tx.execute("update sqlite_sequence set seq = ?1 where name = 'posthaste_outbox'", [known.max(last)]);
    if moved.map_err(failed)? == 0 {
        let sql = "insert into sqlite_sequence (name, seq) values ('posthaste_outbox', ?1)";
        tx.execute(sql, [known.max(last)]).map_err(failed)?;
    }
    note_freed(tx).map_err(failed)?;
    audit(
        tx,
        actor,
        "repair",
        &json!({ "sink": sink, "last": last, "known": known, "lanes": behind.len(), "epoch": epoch }),
    )?;
    Ok(format!(
        "re-based {} lanes: everything in the log is sent again to their sinks, none is skipped; numbers go on above {}",
        behind.len(),
        known.max(last)
    ))
}
