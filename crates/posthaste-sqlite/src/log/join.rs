//! Joining: agreeing on routes, lanes and sinks, in one transaction.
//!
//! The write lock lets one relay join at a time, and keeps births and removals of events apart.

use crate::clock::{micros, now};
use crate::connect::SLOTS;
use crate::error::store_error;
use crate::log::filter::stored_filter;
use crate::watch::last_seq;
use posthaste::route::UNROUTED;
use posthaste::store::{JoinPlan, SinkPlan, StartAt, StoreError};
use rusqlite::{OptionalExtension, Transaction, params};

/// Events that are counted for a warning, at most.
const UNREAD_MAX: i64 = 10_000;

/// Makes the relay known and its sinks ready. Everything or nothing.
pub(crate) fn agree(tx: &Transaction<'_>, plan: &JoinPlan, heart: Option<&str>) -> Result<(), StoreError> {
    crate::migrate::check_version(tx)?;
    agree_on_routes(tx, plan)?;
    let lanes = agree_on_lanes(tx, plan).map_err(store_error)?;
    let untouched: bool = tx
        .query_row("select not exists (select 1 from posthaste_lanes)", [], |row| row.get(0))
        .map_err(store_error)?;
    let unread = if untouched { 0 } else { unread(tx).map_err(store_error)? };
    for sink in &plan.sinks {
        let start_at = match sink.start_at {
            StartAt::Auto if untouched => StartAt::Earliest,
            StartAt::Auto => StartAt::Now,
            declared => declared,
        };
        if agree_on_sink(tx, sink, start_at, lanes)? {
            tell_unread(sink, start_at, unread);
        }
    }
    retire_others(tx, plan).map_err(store_error)?;
    enrol(tx, plan, heart).map_err(store_error)
}

/// The routes in force are kept in the database. Another set may only begin when nobody lives by the old one:
/// two relays that filter differently would skip each other's events.
fn agree_on_routes(tx: &Transaction<'_>, plan: &JoinPlan) -> Result<(), StoreError> {
    let sql =
        "select relay, heart from posthaste_relays where relay <> ?1 and routes <> ?2 and expires_at > ?3";
    let mut statement = tx.prepare_cached(sql).map_err(store_error)?;
    let others = statement
        .query_map(params![&*plan.relay, plan.routes, now()], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?))
        })
        .map_err(store_error)?;
    let database = crate::connect::file_of(tx);
    for other in others {
        let (relay, heart) = other.map_err(store_error)?;
        if heart.is_some_and(|heart| !crate::log::heart::beats(&database, &heart)) {
            continue;
        }
        return Err(StoreError::other_routes(&relay));
    }
    set_state(tx, "routes", &plan.routes).map_err(store_error)
}

pub(crate) fn set_state(tx: &Transaction<'_>, name: &str, value: &str) -> rusqlite::Result<()> {
    let sql = include_str!("../../sql/log/state.sql");
    tx.prepare_cached(sql)?.execute([name, value])?;
    Ok(())
}

/// The stored number of lanes counts; the configuration's only where there is none yet.
fn agree_on_lanes(tx: &Transaction<'_>, plan: &JoinPlan) -> rusqlite::Result<i32> {
    let sql = "select cast(value as integer) from posthaste_state where name = 'lanes'";
    let stored: Option<i32> = tx.query_row(sql, [], |row| row.get(0)).optional()?;
    if let Some(stored) = stored {
        return Ok(stored.clamp(1, 256));
    }
    let lanes = plan.lanes.map_or(1, i32::from).clamp(1, 256);
    set_state(tx, "lanes", &lanes.to_string())?;
    Ok(lanes)
}

/// Events that no sink has read, up to a bound: those behind the furthest cursor.
fn unread(tx: &Transaction<'_>) -> rusqlite::Result<i64> {
    tx.query_row(include_str!("../../sql/log/unread.sql"), params![UNROUTED, UNREAD_MAX], |row| row.get(0))
}

/// A new sink that begins at the end passes over what nobody else has read either.
fn tell_unread(sink: &SinkPlan, start_at: StartAt, unread: i64) {
    if unread > 0 && start_at == StartAt::Now && *sink.name != *UNROUTED {
        tracing::warn!(
            sink = %sink.name, unread,
            "the new sink begins at the end of the log, behind events that no sink has read: `posthaste lanes rewind` sends \
             them; with start_at = \"earliest\" they would have been read"
        );
    }
}

/// Makes a new sink's lanes and cursors (then `true`), or brings a known one's filter up to date.
fn agree_on_sink(
    tx: &Transaction<'_>,
    sink: &SinkPlan,
    start_at: StartAt,
    lanes: i32,
) -> Result<bool, StoreError> {
    let filter = stored_filter(&sink.filter);
    let name: &str = &sink.name;
    check_former_filter(tx, name, &filter)?;
    let last = last_seq(tx).map_err(store_error)?;
    let known = tx
        .execute(include_str!("../../sql/log/refilter.sql"), params![name, filter, last])
        .map_err(store_error)?;
    if known > 0 {
        return Ok(false);
    }
    let position = match start_at {
        StartAt::Now | StartAt::Auto => last,
        StartAt::Earliest => 0,
        StartAt::Seq(seq) => seq.clamp(0, last),
    };
    for lane in 0..lanes {
        let (from, to) = slots_of(lane, lanes);
        tx.execute(
            "insert into posthaste_lanes (sink, lane, slot_from, slot_to, filter) values (?1, ?2, ?3, ?4, ?5)",
            params![name, lane, from, to, filter],
        )
        .map_err(store_error)?;
        tx.execute(
            "insert into posthaste_receipts (sink, lane, n, epoch, kind, position, settled_at)
             values (?1, ?2, 1, 0, 'born', ?3, ?4)",
            params![name, lane, position, now()],
        )
        .map_err(store_error)?;
    }
    tracing::info!(sink = name, ?start_at, "new sink");
    Ok(true)
}

/// First and last slot of a lane.
pub(crate) fn slots_of(lane: i32, lanes: i32) -> (i32, i32) {
    (SLOTS * lane / lanes, SLOTS * (lane + 1) / lanes - 1)
}

/// Routes may change again only when the last change is worked off: a lane remembers one former filter.
fn check_former_filter(tx: &Transaction<'_>, sink: &str, filter: &str) -> Result<(), StoreError> {
    let found: Option<(i64, i64)> = tx
        .query_row(include_str!("../../sql/log/former_filter.sql"), params![sink, filter], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()
        .map_err(store_error)?;
    let Some((until, position)) = found else { return Ok(()) };
    Err(StoreError::routes_changing(sink, position, until))
}

/// Sinks that are in nobody's configuration any more hold up nothing.
fn retire_others(tx: &Transaction<'_>, plan: &JoinPlan) -> rusqlite::Result<()> {
    let known = tx
        .prepare("select distinct sink from posthaste_lanes where retired_at is null")?
        .query_map([], |row| row.get::<_, String>(0))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    for sink in known.iter().filter(|sink| !plan.sinks.iter().any(|plan| *plan.name == ***sink)) {
        tx.execute("update posthaste_lanes set retired_at = ?2 where sink = ?1", params![sink, now()])?;
    }
    Ok(())
}

fn enrol(tx: &Transaction<'_>, plan: &JoinPlan, heart: Option<&str>) -> rusqlite::Result<()> {
    let (now, relay) = (now(), &*plan.relay);
    tx.execute(
        "insert into posthaste_relays (relay, heart, routes, joined_at, expires_at) values (?1, ?2, ?3, ?4, ?5)
         on conflict (relay) do update set heart = excluded.heart, routes = excluded.routes,
                                           expires_at = excluded.expires_at",
        params![relay, heart, plan.routes, now, now.saturating_add(micros(plan.lease_ttl))],
    )?;
    // The heart may be a new one: what this relay owns beats with it from now on.
    tx.execute("update posthaste_lanes set heart = ?2 where owner = ?1", params![relay, heart])?;
    Ok(())
}
