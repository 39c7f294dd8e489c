//! Taking a lane over: a higher epoch, a receipt that says so, and what is known of former owners' deaths.

use crate::clock::{micros, now};
use crate::error::store_error;
use crate::log::roll::Hearts;
use crate::watch::last_seq;
use posthaste::store::{Care, Deaths, JoinPlan, LaneId, StoreCode, StoreError, reach};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::path::Path;

/// What taking a lane yields.
pub(crate) struct TakenLane {
    pub(crate) id: LaneId,
    pub(crate) epoch: i64,
    pub(crate) n: i64,
    pub(crate) position: i64,
    pub(crate) slots: (i16, i16),
    /// The lane's condition on rows beyond their number, as SQL; empty when it reads everything.
    pub(crate) condition: String,
    pub(crate) share: f64,
    pub(crate) care: Care,
    pub(crate) holding: bool,
}

/// A lane's row.
struct LaneRow {
    epoch: i64,
    owner: Option<String>,
    heart: Option<String>,
    expires_at: Option<i64>,
    slots: (i16, i16),
    condition: String,
    in_hand: Option<i64>,
    deaths: Deaths,
    lanes_of_sink: i64,
}

/// Takes a lane if nobody alive owns it. Two takers go one after the other: the second sees the first one's
/// epoch.
pub(crate) fn take(
    tx: &Transaction<'_>,
    database: &Path,
    id: &LaneId,
    plan: &JoinPlan,
    heart: Option<&str>,
) -> Result<Option<TakenLane>, StoreError> {
    let Some(lane) = lane_row(tx, id).map_err(store_error)? else { return Ok(None) };
    let now = now();
    let is_ours = lane.owner.as_deref() == Some(&*plan.relay);
    let expired = lane.expires_at.is_none_or(|expires| expires <= now);
    if lane.owner.is_some() && !is_ours && !expired && Hearts::of(database).beat(lane.heart.as_deref()) {
        return Ok(None);
    }
    let (n, position) = last_receipt(tx, id)?;
    check_time(tx, id, position)?;
    let deaths = match lane.owner {
        // An owner that released its lane did not die.
        None => Deaths::default(),
        Some(_) => lane.deaths.and_one(position, lane.in_hand, reach(lane.lanes_of_sink)),
    };
    let (suspect, charged) = deaths.suspect.unzip();
    let epoch = lane.epoch + 1;
    let until = now.saturating_add(micros(plan.lease_ttl));
    tx.prepare_cached(include_str!("../../sql/log/take.sql"))
        .and_then(|mut statement| {
            statement.execute(params![
                &*id.sink,
                id.lane,
                &*plan.relay,
                heart,
                epoch,
                until,
                deaths.unclean,
                deaths.place,
                suspect,
                charged.unwrap_or(0),
            ])
        })
        .map_err(store_error)?;
    let receipt = "insert into posthaste_receipts (sink, lane, n, epoch, kind, position, settled_at)
                   values (?1, ?2, ?3, ?4, 'takeover', ?5, ?6)";
    tx.execute(receipt, params![&*id.sink, id.lane, n + 1, epoch, position, now]).map_err(store_error)?;
    let holding = is_holding(tx, &id.sink).map_err(store_error)?;
    // CRASH(sqlite.take.uncommitted): nothing is taken. The lane stays free.
    posthaste::crash_point!("sqlite.take.uncommitted");
    Ok(Some(TakenLane {
        id: id.clone(),
        epoch,
        n: n + 1,
        position,
        slots: lane.slots,
        share: 1.0 / lane.lanes_of_sink.max(1) as f64,
        care: deaths.care(lane.owner.and(lane.in_hand)),
        holding,
        condition: lane.condition,
    }))
}

fn lane_row(tx: &Transaction<'_>, id: &LaneId) -> rusqlite::Result<Option<LaneRow>> {
    let read = |row: &Row<'_>| {
        let slots = (row.get("slot_from")?, row.get("slot_to")?);
        let (filter, before): (String, Option<String>) = (row.get("filter")?, row.get("filter_before")?);
        let filter =
            crate::log::filter::condition_since(&filter, before.as_deref(), row.get("filter_until")?);
        Ok(LaneRow {
            epoch: row.get("epoch")?,
            owner: row.get("owner")?,
            heart: row.get("heart")?,
            expires_at: row.get("expires_at")?,
            slots,
            condition: format!("{}{filter}", crate::log::filter::slots(slots)),
            in_hand: row.get("in_hand")?,
            deaths: Deaths {
                unclean: row.get("unclean")?,
                place: row.get("unclean_position")?,
                suspect: row.get::<_, Option<i64>>("suspect")?.zip(row.get("suspect_deaths")?),
            },
            lanes_of_sink: row.get("lanes_of_sink")?,
        })
    };
    let sql = include_str!("../../sql/log/lane.sql");
    tx.prepare_cached(sql)?.query_row(params![&*id.sink, id.lane], read).optional()
}

/// The cursor: the last receipt's number and position.
fn last_receipt(tx: &Transaction<'_>, id: &LaneId) -> Result<(i64, i64), StoreError> {
    let sql =
        "select n, position from posthaste_receipts where sink = ?1 and lane = ?2 order by n desc limit 1";
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let last = tx.query_row(sql, params![&*id.sink, id.lane], read).optional().map_err(store_error)?;
    last.ok_or_else(|| StoreError::no_receipt(id))
}

/// A log that ends below a cursor was tampered with: what is appended next would be skipped. The lane stops
/// loudly (F6).
fn check_time(tx: &Transaction<'_>, id: &LaneId, position: i64) -> Result<(), StoreError> {
    let last = last_seq(tx).map_err(store_error)?;
    if last >= position {
        return Ok(());
    }
    Err(StoreError::broken(
        StoreCode::WentBack,
        format!(
            "the log went back in time: it ends at number {last}, but {id} was settled up to {position}. Was \
             sqlite_sequence changed, or the log copied from another file? Nothing is published from this lane until \
             `posthaste lanes repair --sink {}` re-bases it",
            id.sink
        ),
    ))
}

/// Whether any key of the sink is held at all: while none is, pages are not checked.
pub(crate) fn is_holding(tx: &rusqlite::Connection, sink: &str) -> rusqlite::Result<bool> {
    tx.prepare_cached(include_str!("../../sql/log/holding.sql"))?.query_row([sink], |row| row.get(0))
}
