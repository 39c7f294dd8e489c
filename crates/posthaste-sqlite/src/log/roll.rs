//! The heartbeat: renews the leases in hand and looks around.
//!
//! The look is a read. It becomes a write only when a third of a lease is gone, so an idle relay syncs the
//! disk every few seconds and not at every beat.

use crate::admin::control;
use crate::clock::{micros, now};
use crate::error::store_error;
use crate::log::heart::beats;
use crate::log::store::{Inner, transient};
use posthaste::Timestamp;
use posthaste::store::{ControlRow, Controls, HandAct, JoinPlan, LaneId, LaneView, Roll, StoreError};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use rustc_hash::FxHashMap;
use std::path::Path;
use std::sync::Arc;

/// What is left of a lease when it is renewed: two thirds.
fn renewal_due(expires_at: Option<i64>, now: i64, ttl: i64) -> bool {
    expires_at.is_none_or(|expires| expires < now.saturating_add(ttl / 3 * 2))
}

/// Which hearts beat; each is asked once.
pub(crate) struct Hearts<'a> {
    database: &'a Path,
    known: FxHashMap<String, bool>,
}

impl<'a> Hearts<'a> {
    pub(crate) fn of(database: &'a Path) -> Self {
        Self { database, known: FxHashMap::default() }
    }

    /// Whether the owner of this heart lives. No heart: expiry alone decides.
    pub(crate) fn beat(&mut self, heart: Option<&str>) -> bool {
        let Some(heart) = heart else { return true };
        if let Some(known) = self.known.get(heart) {
            return *known;
        }
        let beating = beats(self.database, heart);
        self.known.insert(heart.to_owned(), beating);
        beating
    }
}

/// A lane's row, as far as its ownership goes.
struct LaneRow {
    id: LaneId,
    epoch: i64,
    owner: Option<String>,
    heart: Option<String>,
    expires_at: Option<i64>,
}

/// What the look found.
struct RollRead {
    roll: Roll,
    renew: bool,
}

pub(crate) async fn roll(inner: &Inner, held: &[(LaneId, i64)]) -> Result<Roll, StoreError> {
    let plan = inner.plan()?;
    let heart = inner.heart();
    let (path, held) = (inner.path().to_owned(), held.to_vec());
    let (asker, own_heart, leases) = (Arc::clone(&plan), heart.clone(), held.clone());
    let look = inner.readers.read(move |tx| look(tx, &path, &asker, own_heart.as_deref(), &leases)).await?;
    if look.renew {
        inner.write(move |tx| renew(tx, &plan, heart.as_deref(), &held).map_err(store_error)).await?;
    }
    Ok(look.roll)
}

fn look(
    tx: &Transaction<'_>,
    database: &Path,
    plan: &JoinPlan,
    heart: Option<&str>,
    held: &[(LaneId, i64)],
) -> Result<RollRead, StoreError> {
    let mut hearts = Hearts::of(database);
    if !hearts.beat(heart) {
        return Err(transient("the heart's file is gone; joining again"));
    }
    let (now, ttl) = (now(), micros(plan.lease_ttl));
    let (relays, own) = relays(tx, plan, now, &mut hearts).map_err(store_error)?;
    let Some(own_expiry) = own else {
        return Err(transient("this relay is not known any more; joining again"));
    };
    let rows = lanes(tx, plan).map_err(store_error)?;
    let is_held = |row: &LaneRow| held.iter().any(|(id, epoch)| *id == row.id && *epoch == row.epoch);
    let renew = renewal_due(Some(own_expiry), now, ttl)
        || rows.iter().any(|row| is_held(row) && renewal_due(row.expires_at, now, ttl));
    let lanes = rows.into_iter().map(|row| view(row, now, &mut hearts)).collect();
    let roll = Roll {
        lanes,
        relays,
        now: Timestamp(now),
        controls: controls(tx).map_err(store_error)?,
        refused: refused(tx, plan).map_err(store_error)?,
    };
    Ok(RollRead { roll, renew })
}

/// How many relays live, and until when this one is known.
fn relays(
    tx: &Connection,
    plan: &JoinPlan,
    now: i64,
    hearts: &mut Hearts<'_>,
) -> rusqlite::Result<(usize, Option<i64>)> {
    let (mut count, mut own) = (0, None);
    let mut statement = tx.prepare_cached("select relay, heart, expires_at from posthaste_relays")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (relay, heart): (String, Option<String>) = (row.get(0)?, row.get(1)?);
        let expires_at: i64 = row.get(2)?;
        if relay == *plan.relay {
            own = Some(expires_at);
        }
        count += usize::from(expires_at > now && hearts.beat(heart.as_deref()));
    }
    Ok((count, own))
}

fn lanes(tx: &Connection, plan: &JoinPlan) -> rusqlite::Result<Vec<LaneRow>> {
    let sql = "select sink, lane, epoch, owner, heart, expires_at from posthaste_lanes order by sink, lane";
    let mut statement = tx.prepare_cached(sql)?;
    let read = |row: &Row<'_>| {
        let sink: String = row.get(0)?;
        Ok(LaneRow {
            id: LaneId { sink: sink.into(), lane: row.get(1)? },
            epoch: row.get(2)?,
            owner: row.get(3)?,
            heart: row.get(4)?,
            expires_at: row.get(5)?,
        })
    };
    let rows = statement.query_map([], read)?.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(rows.into_iter().filter(|row| plan.sinks.iter().any(|sink| sink.name == row.id.sink)).collect())
}

fn view(row: LaneRow, now: i64, hearts: &mut Hearts<'_>) -> LaneView {
    let expired = row.expires_at.is_none_or(|expires| expires <= now);
    let is_free = row.owner.is_none() || expired || !hearts.beat(row.heart.as_deref());
    LaneView { id: row.id, owner: row.owner.map(Into::into), epoch: row.epoch, is_free }
}

fn controls(tx: &Connection) -> rusqlite::Result<Controls> {
    let read = |row: &Row<'_>| {
        Ok(ControlRow {
            kind: row.get("kind")?,
            name: row.get("name")?,
            paused: row.get("paused")?,
            rate: row.get("rate_limit")?,
            settings: control::value(row)?,
            set_by: control::set_by(row)?,
        })
    };
    let mut statement = tx.prepare_cached(include_str!("../../sql/log/controls.sql"))?;
    let rows = statement.query_map([now()], read)?.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(Controls::of(rows))
}

/// Which act took a lane by hand from a lease of this epoch.
pub(crate) fn taken_by_hand(tx: &Connection, lane: &LaneId, epoch: i64) -> rusqlite::Result<Option<HandAct>> {
    let read = |row: &Row<'_>| Ok(HandAct { action: row.get(0)?, actor: row.get(1)?, reason: row.get(2)? });
    let mut statement = tx.prepare_cached(include_str!("../../sql/log/by_hand.sql"))?;
    statement.query_row(params![&*lane.sink, epoch], read).optional()
}

/// Why a relay that joined before must stop.
fn refused(tx: &Connection, plan: &JoinPlan) -> rusqlite::Result<Option<String>> {
    let sql = "select value from posthaste_state where name = 'routes'";
    let routes: Option<String> = tx.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    let differs = routes.as_deref() != Some(plan.routes.as_str());
    Ok(differs.then(|| {
        "another relay joined with other routes or sinks; this one stops so that nothing is skipped"
            .to_owned()
    }))
}

/// A lease is renewed only by its owner and epoch. One that expired but that nobody took is simply renewed:
/// the epoch is what fences.
fn renew(
    tx: &Transaction<'_>,
    plan: &JoinPlan,
    heart: Option<&str>,
    held: &[(LaneId, i64)],
) -> rusqlite::Result<()> {
    let until = now().saturating_add(micros(plan.lease_ttl));
    let mut lanes = tx.prepare_cached(include_str!("../../sql/log/renew.sql"))?;
    for (id, epoch) in held {
        lanes.execute(params![&*id.sink, id.lane, epoch, &*plan.relay, until, heart])?;
    }
    tx.prepare_cached("update posthaste_relays set expires_at = ?2, heart = ?3 where relay = ?1")?
        .execute(params![&*plan.relay, until, heart])?;
    Ok(())
}
