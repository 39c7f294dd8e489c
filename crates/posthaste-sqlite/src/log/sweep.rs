//! Retention: removing what is old and handled, in small bites.
//!
//! SQLite has no partitions to truncate, so old events are deleted from the front of the log, a bounded
//! number of rows and bytes in one transaction, each a job of the writer among others: an append never waits
//! for longer than one bite. An event goes when
//!
//! 1. every sink's cursor is past it (a sink that left the configuration counts for another day), and
//! 2. it is older than the retention, or the file is larger than it may be.
//!
//! Both are checked in the transaction that deletes. Joins, rewinds and settlements write too, so each of
//! them comes before or after: no cursor can go back between the check and the delete (G2). Deferred events
//! and dead letters are copies and stay.
//!
//! A deleted row leaves room in the file, which the next rows use. A file that was made by `migrate up` also
//! gives room back to the file system, some pages at a time. It never grows by retention, and it shrinks when
//! the backlog was large once.
//!
//! Refused: a ring of tables as on PostgreSQL. Emptying a table costs SQLite as much as deleting its rows,
//! and every read would have to look into all of them.

use crate::clock::{micros, now};
use crate::error::store_error;
use crate::log::store::Inner;
use posthaste::admin::TOPICS_AUDITED;
use posthaste::crash_point;
use posthaste::store::{StoreError, Swept};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::collections::BTreeSet;

/// Rows and bytes of one bite: some milliseconds of the write lock.
const BITE_ROWS: i64 = 2_000;
const BITE_BYTES: i64 = 4 << 20;

/// Bites of one sweep: about a second of work, with the lock given back after each. A relay sweeps every ten
/// seconds by default, so 50,000 events a second can go.
const BITES: usize = 250;

/// How long a sink that left the configuration still holds events: a wrong deployment must not cost its
/// backlog.
const RETIRED_COUNTS: i64 = 86_400_000_000;

/// Free pages that stay in the file, for the next rows; and how many are given back in one sweep.
const FREE_PAGES_KEPT: i64 = 2_000;
const PAGES_GIVEN_BACK: i64 = 1_000;

/// A log beside the file that is larger than this is folded in: some reader kept SQLite from doing it by
/// itself.
const WAL_PAGES_MAX: i64 = 16_000;

pub(crate) async fn sweep(inner: &Inner) -> Result<Swept, StoreError> {
    let mut swept = Swept::default();
    for _ in 0..BITES {
        let cutoff = cutoff(inner).await?;
        let gone = inner.write(move |tx| bite(tx, cutoff).map_err(store_error)).await?;
        swept.purged += gone;
        if gone < BITE_ROWS.unsigned_abs() / 4 {
            break;
        }
    }
    let retention = inner.config.retention;
    let (purged, dead) = inner.write(move |tx| purge(tx, &retention).map_err(store_error)).await?;
    swept.purged += purged + dead;
    swept.dead_purged = dead;
    give_back(inner).await?;
    let path = inner.path().to_owned();
    // A directory that cannot be listed leaves some empty files behind, nothing else.
    let _ = tokio::task::spawn_blocking(move || crate::log::heart::remove_stopped(&path)).await;
    Ok(swept)
}

/// Events appended before this may go, once they are handled.
async fn cutoff(inner: &Inner) -> Result<i64, StoreError> {
    let retention = inner.config.retention;
    let by_age = now().saturating_sub(micros(retention.events));
    let Some(max) = retention.file_bytes_max else { return Ok(by_age) };
    let used = inner.readers.read(|tx| used_bytes(tx).map_err(store_error)).await?;
    Ok(if used > max { i64::MAX } else { by_age })
}

/// Bytes of the file that hold something.
fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let one = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let (pages, free) = (one("pragma page_count")?, one("pragma freelist_count")?);
    Ok(((pages - free) * one("pragma page_size")?).max(0).unsigned_abs())
}

/// Removes the front of the log, if it may go. Answers with the number of rows.
fn bite(tx: &Transaction<'_>, cutoff: i64) -> rusqlite::Result<u64> {
    let horizon: Option<i64> = tx
        .prepare_cached(include_str!("../../sql/log/horizon.sql"))?
        .query_row([now() - RETIRED_COUNTS], |row| row.get(0))?;
    // Nobody has ever read this outbox: what is in it waits for the first relay.
    let Some(horizon) = horizon else { return Ok(0) };
    let Some(last) = last_to_go(tx, horizon, cutoff)? else { return Ok(0) };
    let gone = tx.prepare_cached("delete from posthaste_outbox where seq <= ?1")?.execute([last])?;
    // CRASH(sqlite.sweep.deleted): not committed, so the events are still there, and go with the next sweep.
    crash_point!("sqlite.sweep.deleted");
    Ok(gone as u64)
}

/// The last number of the next bite. It ends at the first event that is too young, whatever comes after it:
/// rows go from the front only.
fn last_to_go(tx: &Transaction<'_>, horizon: i64, cutoff: i64) -> rusqlite::Result<Option<i64>> {
    let sql = "select seq, appended_at, octet_length(payload) from posthaste_outbox
                where seq <= ?1 order by seq limit ?2";
    let mut statement = tx.prepare_cached(sql)?;
    let mut rows = statement.query([horizon, BITE_ROWS])?;
    let (mut last, mut bytes) = (None, 0);
    while let Some(row) = rows.next()? {
        let (seq, appended_at): (i64, i64) = (row.get(0)?, row.get(1)?);
        if appended_at >= cutoff || bytes > BITE_BYTES {
            break;
        }
        bytes += row.get::<_, Option<i64>>(2)?.unwrap_or(0);
        last = Some(seq);
    }
    Ok(last)
}

/// Small old rows: receipts, idempotency keys, relays that left long ago; and, counted by themselves, dead
/// letters under a declared retention.
fn purge(tx: &Transaction<'_>, retention: &crate::config::Retention) -> rusqlite::Result<(u64, u64)> {
    let now = now();
    let before = |age| now.saturating_sub(micros(age));
    let receipts = purge_receipts(tx, before(retention.events))?;
    let keys = tx
        .prepare_cached(include_str!("../../sql/log/purge_keys.sql"))?
        .execute([before(retention.idempotency_keys), BITE_ROWS])?;
    let an_hour_ago = now - 3_600_000_000;
    tx.execute("delete from posthaste_relays where expires_at < ?1", [an_hour_ago])?;
    let reports = "delete from posthaste_processes where role = 'relay' and seen_at < ?1
                      and process not in (select relay from posthaste_relays)";
    tx.execute(reports, [an_hour_ago])?;
    let mut dead = 0;
    if let Some(age) = retention.dead_letters {
        let gone = tx
            .prepare_cached(include_str!("../../sql/log/purge_dead.sql"))?
            .query_map([before(age), BITE_ROWS], |row| row.get(0))?
            .collect::<rusqlite::Result<Vec<String>>>()?;
        dead = gone.len();
        if dead > 0 {
            let topics: BTreeSet<String> = gone.into_iter().collect();
            let topics: Vec<String> = topics.into_iter().take(TOPICS_AUDITED).collect();
            let detail = serde_json::json!({ "count": dead, "topics": topics }).to_string();
            let sql = "insert into posthaste_audit (at, actor, action, reason, detail, trace_id)
                       values (?1, 'retention', 'purge', 'declared dead letter retention', ?2, ?3)";
            tx.execute(sql, params![now, detail, uuid::Uuid::new_v4().simple().to_string()])?;
        }
    }
    Ok(((receipts + keys) as u64, dead as u64))
}

/// Old receipts of every lane that ever was, also of those that vanished when the number of lanes changed.
/// The pairs are found by jumping along the primary key.
fn purge_receipts(tx: &Transaction<'_>, before: i64) -> rusqlite::Result<usize> {
    let next =
        "select sink, lane from posthaste_receipts where (sink, lane) > (?1, ?2) order by sink, lane limit 1";
    let (mut purged, mut place) = (0, (String::new(), -1_i64));
    while let Some((sink, lane)) = tx
        .prepare_cached(next)?
        .query_row(params![place.0, place.1], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
    {
        purged += tx
            .prepare_cached(include_str!("../../sql/log/purge_receipts.sql"))?
            .execute(params![sink, lane, before, BITE_ROWS])?;
        place = (sink, lane);
    }
    Ok(purged)
}

/// Gives free pages back to the file system, and folds a log in that grew too long.
async fn give_back(inner: &Inner) -> Result<(), StoreError> {
    let one = |tx: &Connection, sql: &str| tx.query_row(sql, [], |row| row.get::<_, i64>(0));
    let look = move |tx: &Transaction<'_>| -> rusqlite::Result<(i64, i64)> {
        Ok((one(tx, "pragma auto_vacuum")?, one(tx, "pragma freelist_count")?))
    };
    let (mode, free) = inner.readers.read(move |tx| look(tx).map_err(store_error)).await?;
    let surplus = (free - FREE_PAGES_KEPT).min(PAGES_GIVEN_BACK);
    if mode == 2 && surplus > 0 {
        inner
            .write(move |tx| {
                let pragma = format!("pragma incremental_vacuum({surplus})");
                // The pragma steps once for each page.
                let run = tx.prepare(&pragma).and_then(|mut statement| {
                    let mut rows = statement.query([])?;
                    while rows.next()?.is_some() {}
                    Ok(())
                });
                run.map_err(store_error)
            })
            .await?;
    }
    let path = inner.path().to_owned();
    let _ = tokio::task::spawn_blocking(move || fold(&path)).await;
    Ok(())
}

/// Folds the log beside the file in, if it is long. A hint to SQLite: if readers are in the way, the next
/// sweep tries again.
fn fold(path: &std::path::Path) {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    // Asked by name, never opened: closing a descriptor of the database would drop SQLite's locks, and the
    // -wal is left alone for good measure.
    let long = std::fs::metadata(wal).is_ok_and(|data| data.len() > WAL_PAGES_MAX.unsigned_abs() * 4_096);
    if !long {
        return;
    }
    let folded = crate::connect::open_writer(path, crate::connect::Synchronous::Full).map(|connection| {
        let _ = connection.busy_handler(None);
        connection.query_row("pragma wal_checkpoint(truncate)", [], |row| row.get::<_, i64>(0))
    });
    if let Ok(Err(error)) = folded {
        tracing::debug!(%error, "the -wal stays long for now");
    }
}
