//! Taking a lane: the fence, the cursor that comes with it, and what is known of the deaths before.
//!
//! Whoever takes a lane writes the next receipt under a new epoch; a former owner that still settles finds
//! its number taken (G4). Former owners that died at the same place make the next one careful (F21).

use crate::error::{is_code, store_error};
use crate::log::lease::TakenLane;
use crate::log::store::{Inner, SHORT_WAITS, single};
use crate::session::Session;
use posthaste::cursor::{CatchUp, Mark, Marks, Position};
use posthaste::store::{Deaths, LaneId, StoreCode, StoreError, reach};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

impl Inner {
    pub(crate) async fn take(&self, lane: &LaneId) -> Result<Option<TakenLane>, StoreError> {
        let mut session = self.sessions.session().await?;
        // A mark's number is read before the transaction has an xid.
        let sql =
            self.sessions.sql("select coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0)");
        let mark: i64 = single(session.query(&sql, &[]).await.map_err(store_error)?)?;
        session.begin().await.map_err(store_error)?;
        session.batch(SHORT_WAITS).await.map_err(store_error)?;
        let taken = match self.take_in(&mut session, lane, mark).await {
            Ok(taken) => taken,
            Err(error) => {
                session.rollback().await;
                return Err(error);
            }
        };
        // CRASH(take.before_commit): nothing is taken. The lane stays free.
        posthaste::crash_point!("take.before_commit");
        match session.commit().await {
            Ok(()) => {}
            // The former owner settled in between: its receipt came first. Try again at the next roll.
            Err(error) if is_code(&error, &SqlState::UNIQUE_VIOLATION) => return Ok(None),
            Err(error) => return Err(store_error(error)),
        }
        // CRASH(take.after_commit): the lane is ours by the table and nobody serves it. The heart's lock is
        // gone with the process, so the next relay takes it at once (G2).
        posthaste::crash_point!("take.after_commit");
        // A rewind may have come between the heartbeat and this: leave nothing out before the next one.
        self.set_closing(None, tokio::time::Instant::now());
        Ok(taken)
    }

    async fn take_in(
        &self,
        session: &mut Session,
        id: &LaneId,
        mark: i64,
    ) -> Result<Option<TakenLane>, StoreError> {
        let plan = self.plan()?;
        let heart = self.heart.lock().await.as_ref().and_then(|heart| heart.number);
        let sink: &str = &id.sink;
        let key: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&sink, Type::TEXT), (&id.lane, Type::INT2)];
        let sql = self.sessions.sql(include_str!("../../sql/log/take_lock.sql"));
        let asker = [key[0].clone(), key[1].clone(), (&plan.relay.as_ref() as _, Type::TEXT)];
        let rows = session.query(&sql, &asker).await.map_err(store_error)?;
        let Some(lane) = rows.first().filter(|row| row.get::<_, bool>("free")) else { return Ok(None) };
        let sql = self.sessions.sql(include_str!("../../sql/log/last_receipt.sql"));
        let rows = session.query(&sql, &key).await.map_err(store_error)?;
        let last = rows.first().ok_or_else(|| StoreError::no_receipt(id))?;
        let position = cursor_of(last)?;
        check_time(id, last, &position)?;
        let (n, epoch): (i64, i64) = (last.get("n"), lane.get::<_, i64>("epoch") + 1);
        let lanes: i64 = lane.get("lanes_of_sink");
        let (deaths, in_hand) = deaths(lane, &plan.relay, place(&position), reach(lanes));
        let (suspect, charged) = deaths.suspect.unzip();
        let sql = self.sessions.sql(include_str!("../../sql/log/take.sql"));
        let taken = session
            .query(
                &sql,
                &[
                    (&sink, Type::TEXT),
                    (&id.lane, Type::INT2),
                    (&plan.relay.as_ref(), Type::TEXT),
                    (&heart, Type::INT4),
                    (&epoch, Type::INT8),
                    (&plan.lease_ttl.as_secs_f64(), Type::FLOAT8),
                    (&count(deaths.unclean), Type::INT4),
                    (&deaths.place, Type::INT8),
                    (&suspect, Type::INT8),
                    (&count(charged.unwrap_or(0)), Type::INT4),
                    (&mark, Type::INT8),
                    (&n, Type::INT8),
                ],
            )
            .await
            .map_err(store_error)?;
        let xid: String =
            taken.first().map(|row| row.get(0)).ok_or_else(|| StoreError::LeaseLost(id.clone()))?;
        let marks = self.load_marks(session, &position, &xid, mark).await?;
        let sql = self.sessions.sql(include_str!("../../sql/log/holding.sql"));
        let holding: bool = single(session.query(&sql, &key[..1]).await.map_err(store_error)?)?;
        Ok(Some(TakenLane {
            id: id.clone(),
            epoch,
            n: n + 1,
            slots: (lane.get("slot_from"), lane.get("slot_to")),
            filter: lane.get("filter"),
            filter_before: lane.get("filter_before"),
            filter_until: lane.get("filter_until"),
            share: 1.0 / lanes.max(1) as f64,
            care: deaths.care(in_hand),
            position,
            marks,
            known_seq: mark,
            holding,
        }))
    }

    async fn load_marks(
        &self,
        session: &mut Session,
        position: &Position,
        xid: &str,
        mark: i64,
    ) -> Result<Marks, StoreError> {
        let oldest = position.snapshot.running.first().copied().unwrap_or(position.snapshot.xmin);
        let sql = self.sessions.sql(include_str!("../../sql/log/marks.sql"));
        let rows = session.query(&sql, &[(&oldest.to_string(), Type::TEXT)]).await.map_err(store_error)?;
        let mut marks = Marks::default();
        for row in rows {
            marks.add(Mark { xid: row.get::<_, i64>(0) as u64, seq: row.get(1) });
        }
        if let Ok(xid) = xid.parse() {
            marks.add(Mark { xid, seq: mark });
        }
        marks.thin(oldest);
        Ok(marks)
    }
}

/// Where a lane stands. While it catches up with a large transaction its position stays, and going through
/// that transaction is progress: an owner that was killed there did not die of one event.
fn place(position: &Position) -> i64 {
    position.catching_up.as_ref().map_or(position.position, |catch_up| catch_up.late_position)
}

/// What is known of the deaths before, the last one included. An owner that released its lane did not die.
/// Nor did one that asks for it again because its token went with the server: a server that is often down is
/// no event's fault (F50). With its token there, its lane's task may have died.
fn deaths(lane: &tokio_postgres::Row, asker: &str, place: i64, reach: i64) -> (Deaths, Option<i64>) {
    let Some(owner) = lane.get::<_, Option<String>>("owner") else {
        return (Deaths::default(), None);
    };
    let count = |name| lane.get::<_, i32>(name).unsigned_abs();
    let before = Deaths {
        unclean: count("unclean"),
        place: lane.get("unclean_position"),
        suspect: lane.get::<_, Option<i64>>("suspect").map(|seq| (seq, count("suspect_deaths"))),
    };
    if owner == asker && !lane.get::<_, bool>("has_token") {
        return (before, None);
    }
    let in_hand = lane.get("in_hand");
    (before.and_one(place, in_hand, reach), in_hand)
}

fn count(deaths: u32) -> i32 {
    i32::try_from(deaths).unwrap_or(i32::MAX)
}

fn cursor_of(row: &tokio_postgres::Row) -> Result<Position, StoreError> {
    let snapshot = |text: String| text.parse().map_err(|why| StoreError::broken(StoreCode::Unreadable, why));
    let target: Option<String> = row.get("target");
    let catching_up = match target {
        Some(text) => Some(CatchUp {
            target: snapshot(text)?,
            late_position: row.get::<_, Option<i64>>("late_position").unwrap_or(0),
        }),
        None => None,
    };
    Ok(Position { position: row.get("position"), snapshot: snapshot(row.get("snapshot"))?, catching_up })
}

/// A database that went back in time (a restored dump, a failover to a standby that was behind) would
/// make the cursor skip what comes next: the lane stops loudly (F6).
fn check_time(id: &LaneId, last: &tokio_postgres::Row, position: &Position) -> Result<(), StoreError> {
    let (last_value, now, then): (i64, i64, i64) =
        (last.get("last_value"), last.get("xmax_now"), last.get("xmax_then"));
    let what = if last_value < position.position {
        format!("the log ends at number {last_value}, but {id} was settled up to {}", position.position)
    } else if then > now {
        format!("transaction ids are at {now}, but {id} has seen {then}")
    } else {
        return Ok(());
    };
    Err(StoreError::broken(
        StoreCode::WentBack,
        format!(
            "the database went back in time: {what}. A restored backup, or a failover that lost the end? Nothing is \
             published from this lane until `posthaste lanes repair --sink {}` re-bases it",
            id.sink
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::cursor::Snapshot;

    #[test]
    fn catching_up_moves_the_place() {
        let snapshot: Snapshot = "10:10:".parse().expect("a snapshot");
        let mut position = Position { position: 900, snapshot: snapshot.clone(), catching_up: None };
        assert_eq!(place(&position), 900);
        position.catching_up = Some(CatchUp { target: snapshot, late_position: 100 });
        assert_eq!(place(&position), 100);
    }
}
