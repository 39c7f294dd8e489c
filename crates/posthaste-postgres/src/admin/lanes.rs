//! Cursors written by hand: another number of lanes, and rewinding a sink.
//!
//! Both write new **bases**: receipts behind the last ones, under a new epoch. A base fences the former
//! owner (its next receipt has the same number), gives the next owner its state, and is where audits
//! count from. Everything happens in one transaction, under the ring's lock (nothing is truncated
//! meanwhile, nobody joins) and a lock of lanes and receipts (nobody takes or settles meanwhile), in that
//! order. A relay that works on such a lane learns at its next settlement that the lease is lost, and
//! what it had published since is sent again by whoever takes the lane.
//!
//! A base must never claim more than the old cursor did. So a rewind keeps the old cursor's **snapshot**
//! and lowers its position: a row that the old cursor had not handled because its transaction was still
//! running, and that lies below the new position, stays a late row. The snapshot of now would show that
//! row, call it handled, and skip it.

use super::relane::{Old, Start, starts};
use super::{PostgresAdmin, failed, finish, reads};
use crate::log::filter;
use crate::session::{Param, Session};
use posthaste::Timestamp;
use posthaste::admin::{Actor, AdminError, DISORDER_MICROS, RewindTo};
use posthaste::cursor::Snapshot;
use posthaste::store::{StoreCode, StoreError};
use serde_json::json;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// A lane and its cursor.
pub(super) struct Cursor {
    pub(super) sink: String,
    pub(super) lane: i16,
    pub(super) slots: (i16, i16),
    /// Which rows it reads, as SQL: by its present routes alone if it has handled what the former ones took.
    pub(super) condition: String,
    /// Whether it has, and still remembers them.
    worked_off: bool,
    pub(super) epoch: i64,
    /// Position and snapshot; `None` where there is no receipt.
    pub(super) state: Option<(i64, Snapshot)>,
}

/// The next state of a cursor.
pub(super) struct Base {
    pub(super) sink: String,
    pub(super) lane: i16,
    pub(super) position: i64,
    pub(super) snapshot: String,
}

impl PostgresAdmin {
    /// Stops everything that writes cursors. Answers with a mark: a number that was read before this
    /// transaction had an xid, which the first lock gives it.
    pub(super) async fn lock_cursors(&self, session: &mut Session) -> Result<i64, AdminError> {
        // Whoever waits here makes relays wait behind it: not for long.
        session.batch("set local lock_timeout = '10s'").await.map_err(failed)?;
        let sql = "select coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0)";
        let rows = self.query(session, sql, &[]).await?;
        let mark = rows.first().map_or(0, |row| row.get(0));
        self.query(session, "select turn from posthaste.ring for update", &[]).await?;
        let lock = self.sessions.sql(include_str!("../../sql/admin/lock_cursors.sql"));
        session.batch(&lock).await.map_err(failed)?;
        Ok(mark)
    }

    pub(super) async fn cursors(&self, session: &mut Session) -> Result<Vec<Cursor>, AdminError> {
        let rows = self.query(session, include_str!("../../sql/admin/cursors.sql"), &[]).await?;
        rows.iter().map(cursor).collect()
    }

    pub(super) async fn write_bases(
        &self,
        session: &mut Session,
        kind: &str,
        epoch: i64,
        mark: i64,
        bases: &[Base],
    ) -> Result<(), AdminError> {
        let sinks: Vec<&str> = bases.iter().map(|base| base.sink.as_str()).collect();
        let lanes: Vec<i16> = bases.iter().map(|base| base.lane).collect();
        let positions: Vec<i64> = bases.iter().map(|base| base.position).collect();
        let snapshots: Vec<&str> = bases.iter().map(|base| base.snapshot.as_str()).collect();
        let params: [Param<'_>; 7] = [
            (&epoch, Type::INT8),
            (&kind, Type::TEXT),
            (&mark, Type::INT8),
            (&sinks, Type::TEXT_ARRAY),
            (&lanes, Type::INT2_ARRAY),
            (&positions, Type::INT8_ARRAY),
            (&snapshots, Type::TEXT_ARRAY),
        ];
        self.query(session, include_str!("../../sql/admin/base.sql"), &params).await?;
        Ok(())
    }

    /// Takes the lanes of these sinks from their owners.
    pub(super) async fn free_lanes(
        &self,
        session: &mut Session,
        sinks: &[&str],
        epoch: i64,
    ) -> Result<(), AdminError> {
        let params: [Param<'_>; 2] = [(&sinks, Type::TEXT_ARRAY), (&epoch, Type::INT8)];
        self.query(session, include_str!("../../sql/admin/free_lanes.sql"), &params).await?;
        Ok(())
    }

    /// Lanes that go back read by the routes in force, once they have handled what the former ones took.
    pub(super) async fn forget_former(
        &self,
        session: &mut Session,
        lanes: impl Iterator<Item = &Cursor>,
    ) -> Result<(), AdminError> {
        let done = lanes.filter(|lane| lane.worked_off).map(|lane| (lane.sink.as_str(), lane.lane));
        let (sinks, lanes): (Vec<&str>, Vec<i16>) = done.unzip();
        let params: [Param<'_>; 2] = [(&sinks, Type::TEXT_ARRAY), (&lanes, Type::INT2_ARRAY)];
        self.query(session, include_str!("../../sql/admin/forget_former.sql"), &params).await?;
        Ok(())
    }

    pub(super) async fn change_lanes(&self, lanes: u16, actor: &Actor) -> Result<(), AdminError> {
        AdminError::check_lanes(lanes)?;
        let mut session = self.begin().await?;
        let changed = self.change_lanes_in(&mut session, lanes, actor).await;
        finish(&mut session, changed).await
    }

    async fn change_lanes_in(
        &self,
        session: &mut Session,
        lanes: u16,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        let count = i32::from(lanes);
        let mark = self.lock_cursors(session).await?;
        let old = self.cursors(session).await?;
        let sinks: Vec<&[Cursor]> = old.chunk_by(|a, b| a.sink == b.sink).collect();
        let sql = "insert into posthaste.state (name, value) values ('lanes', $1)
                   on conflict (name) do update set value = excluded.value";
        self.query(session, sql, &[(&count.to_string(), Type::TEXT)]).await?;
        if sinks.iter().all(|sink| sink.len() == usize::from(lanes)) && !sinks.is_empty() {
            return Ok(());
        }
        let epoch = next_epoch(&old);
        let bases: Vec<Base> = sinks.iter().flat_map(|sink| relaned(sink, count)).collect();
        self.write_bases(session, "relane", epoch, mark, &bases).await?;
        self.replace_lanes(session, count, epoch).await?;
        let before = sinks.first().map_or(0, |sink| sink.len());
        self.audit(session, actor, "lanes", &json!({ "lanes": lanes, "before": before, "epoch": epoch }))
            .await?;
        self.wake(session, "lanes").await
    }

    async fn replace_lanes(&self, session: &mut Session, count: i32, epoch: i64) -> Result<(), AdminError> {
        let params: [Param<'_>; 2] = [(&count, Type::INT4), (&epoch, Type::INT8)];
        self.query(session, include_str!("../../sql/admin/keep_lanes.sql"), &params).await?;
        self.query(session, include_str!("../../sql/admin/add_lanes.sql"), &params[..1]).await?;
        Ok(())
    }

    pub(super) async fn move_back(&self, sink: &str, to: RewindTo, actor: &Actor) -> Result<(), AdminError> {
        let target = self.target(to).await?;
        let mut session = self.begin().await?;
        let moved = self.move_back_in(&mut session, sink, target, actor).await;
        finish(&mut session, moved).await
    }

    /// The position to go back to. Looked up before any lock.
    async fn target(&self, to: RewindTo) -> Result<i64, AdminError> {
        to.check()?;
        let instant = match to {
            RewindTo::Earliest => return Ok(0),
            RewindTo::Seq(seq) => return Ok(seq),
            RewindTo::Time(instant) => instant,
        };
        let mut session = self.sessions.session().await?;
        let from = self.shortly_before(&mut session, instant).await?;
        let sql = include_str!("../../sql/admin/first_since.sql");
        let params: [Param<'_>; 2] = [(&instant.0, Type::INT8), (&from, Type::INT8)];
        let rows = self.query(&mut session, sql, &params).await?;
        let first: Option<i64> = rows.first().map(|row| row.get(0));
        first.map(|seq| seq - 1).ok_or_else(|| AdminError::nothing_since(instant))
    }

    /// A number at or below the first one that was appended at or after an instant, found by halving.
    ///
    /// Numbers and times are drawn together but not in one step, and clocks are set back now and then: so
    /// the search is for a time [`DISORDER_MICROS`] earlier, and what lies between is walked through.
    pub(crate) async fn shortly_before(
        &self,
        session: &mut Session,
        instant: Timestamp,
    ) -> Result<i64, AdminError> {
        self.first_about(session, instant.plus_micros(-DISORDER_MICROS).0).await
    }

    /// The first number appended at or after an instant, as far as times grow with numbers; one behind the
    /// last if there is none.
    pub(super) async fn first_about(
        &self,
        session: &mut Session,
        micros_wanted: i64,
    ) -> Result<i64, AdminError> {
        let sql = include_str!("../../sql/admin/first_about.sql");
        let rows = self.query(session, sql, &[(&micros_wanted, Type::INT8)]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    async fn move_back_in(
        &self,
        session: &mut Session,
        sink: &str,
        target: i64,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        self.check_sink(session, sink).await?;
        let mark = self.lock_cursors(session).await?;
        let all = self.cursors(session).await?;
        let lanes: Vec<&Cursor> = all.iter().filter(|lane| lane.sink == sink).collect();
        let foremost = lanes.iter().map(|lane| lane.position()).max().unwrap_or(0);
        AdminError::check_rewind(sink, foremost, target)?;
        let epoch = next_epoch(&all);
        let bases: Vec<Base> = lanes.iter().map(|lane| lane.moved_back(target)).collect();
        self.write_bases(session, "rewind", epoch, mark, &bases).await?;
        self.forget_former(session, lanes.iter().copied()).await?;
        self.free_lanes(session, &[sink], epoch).await?;
        self.query(session, include_str!("../../sql/admin/open_audits.sql"), &[]).await?;
        let detail = json!({ "sink": sink, "position": target, "before": foremost, "epoch": epoch });
        self.audit(session, actor, "rewind", &detail).await?;
        self.wake(session, "lanes").await
    }
}

impl Cursor {
    fn position(&self) -> i64 {
        self.state.as_ref().map_or(0, |(position, _)| *position)
    }

    fn moved_back(&self, target: i64) -> Base {
        let empty = || Snapshot { xmin: 3, xmax: 3, running: Vec::new() };
        let (position, snapshot) = self.state.clone().unwrap_or_else(|| (0, empty()));
        Base {
            sink: self.sink.clone(),
            lane: self.lane,
            position: position.min(target),
            snapshot: snapshot.to_string(),
        }
    }
}

/// Higher than any epoch that any lane of this outbox ever had: lanes that come and go keep growing too.
pub(super) fn next_epoch(cursors: &[Cursor]) -> i64 {
    cursors.iter().map(|lane| lane.epoch).max().unwrap_or(0) + 1
}

/// Bases of a sink's new lanes; and of those that vanish, as a fence against their owners.
fn relaned(lanes: &[Cursor], count: i32) -> Vec<Base> {
    let Some(sink) = lanes.first().map(|lane| lane.sink.as_str()) else { return Vec::new() };
    let old: Vec<Old> =
        lanes.iter().map(|lane| Old { slots: lane.slots, cursor: lane.state.clone() }).collect();
    let base = |lane: i16, start: &Start| Base {
        sink: sink.to_owned(),
        lane,
        position: start.position,
        snapshot: start.snapshot.to_string(),
    };
    let mut bases: Vec<Base> =
        starts(&old, count).iter().zip(0..).map(|(start, lane)| base(lane, start)).collect();
    let vanished = lanes.iter().filter(|lane| i32::from(lane.lane) >= count);
    bases.extend(vanished.map(|lane| lane.moved_back(lane.position())));
    bases
}

fn cursor(row: &Row) -> Result<Cursor, AdminError> {
    let state = match (row.get::<_, Option<i64>>("position"), row.get::<_, Option<String>>("snapshot")) {
        (Some(position), Some(text)) => {
            let unreadable = |why: String| StoreError::broken(StoreCode::Unreadable, why);
            Some((position, text.parse().map_err(unreadable)?))
        }
        _ => None,
    };
    let slots = (row.get("slot_from"), row.get("slot_to"));
    let worked_off = row.get::<_, Option<bool>>("worked_off").unwrap_or(false);
    let topics = if worked_off { filter::condition(row.get("filter")) } else { reads(row) };
    Ok(Cursor {
        sink: row.get("sink"),
        lane: row.get("lane"),
        slots,
        condition: format!("{}{topics}", filter::slots(slots)),
        worked_off,
        epoch: row.get("epoch"),
        state,
    })
}
