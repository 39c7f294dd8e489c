//! One event: where it is in the log, and how far each sink is with it.
//!
//! By number it is one step into an index. By id there is no such step: an index on the id would cost every
//! append, and the log is written far more often than it is searched. Three ways, the cheapest first:
//!
//! 1. A UUIDv7 says when it was made. That time becomes a number by halving, and a bounded run of numbers
//!    around it is looked through. Ids are usually made right before the append.
//! 2. The BRIN index on the id, over all of the log: a few pages where ids grow with time and the index is
//!    summarised, everything otherwise. So it has [`SEARCH_MAX`], unless the caller wants it however long it
//!    takes.
//! 3. Copies: dead letters have an index on the id, the deferred are few.

use super::dead::letter;
use super::log::time;
use super::{PostgresAdmin, failed};
use crate::row::{self, Micros, event_sql};
use crate::session::{Param, Session};
use posthaste::Timestamp;
use posthaste::admin::{
    Acted, AdminError, DeadLetter, EventLife, EventName, LogEvent, PassedAt, Progress, SinkLife, Waiting,
    Where,
};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Numbers that are looked through around a time. More forward: an id is made before its event is appended.
const NEAR_BEFORE: i64 = 5_000;
const NEAR_AFTER: i64 = 15_000;

/// How long a search through all of the log may take, if nobody asked for it.
const SEARCH_MAX: &str = "3s";

/// An event and what the log knows besides.
struct LocatedEvent {
    event: LogEvent,
    slot: i16,
    /// `None`: a copy only.
    xid: Option<String>,
}

impl PostgresAdmin {
    pub(super) async fn show_event(&self, name: EventName, place: Where) -> Result<EventLife, AdminError> {
        let mut session = self.begin().await?;
        let life = self.life(&mut session, name, place).await;
        session.rollback().await;
        life
    }

    async fn life(
        &self,
        session: &mut Session,
        name: EventName,
        place: Where,
    ) -> Result<EventLife, AdminError> {
        let found = match name {
            EventName::Seq(seq) => self.find_seq(session, seq).await?,
            EventName::Id(id) => self.find_id(session, id, place).await?,
        };
        let sinks = self.sinks_of(session, &found).await?;
        let id = found.event.id.to_string();
        let acts =
            self.query(session, include_str!("../../sql/admin/acts.sql"), &[(&id, Type::TEXT)]).await?;
        Ok(EventLife {
            in_log: found.xid.is_some(),
            event: found.event,
            sinks,
            acts: acts.iter().map(acted).collect(),
        })
    }

    async fn find_seq(&self, session: &mut Session, seq: i64) -> Result<LocatedEvent, AdminError> {
        let sql = event_sql!("../../sql/admin/event_by_seq.sql");
        if let Some(row) = self.query(session, sql, &[(&seq, Type::INT8)]).await?.first() {
            return found(row);
        }
        let sql = event_sql!("../../sql/admin/event_copy_by_seq.sql");
        let copies = self.query(session, sql, &[(&seq, Type::INT8)]).await?;
        copies.first().map_or_else(|| Err(AdminError::unknown_event(EventName::Seq(seq))), found)
    }

    async fn find_id(
        &self,
        session: &mut Session,
        id: Uuid,
        place: Where,
    ) -> Result<LocatedEvent, AdminError> {
        if let Some(near) = place.time_of(id)
            && let Some(found) = self.find_near(session, id, near).await?
        {
            return Ok(found);
        }
        let limit = if place.everywhere { "0" } else { SEARCH_MAX };
        // The planner has no other plan that leaves pages out.
        let search = format!(
            "savepoint search; set local statement_timeout = '{limit}'; set local enable_bitmapscan = on; \
             set local plan_cache_mode = force_custom_plan"
        );
        session.batch(&search).await.map_err(failed)?;
        let searched = self.search(session, id, place).await;
        session.batch("rollback to savepoint search").await.map_err(failed)?;
        searched?.ok_or_else(|| AdminError::unknown_event(EventName::Id(id)))
    }

    /// In a run of numbers around a time.
    async fn find_near(
        &self,
        session: &mut Session,
        id: Uuid,
        near: Timestamp,
    ) -> Result<Option<LocatedEvent>, AdminError> {
        let middle = self.first_about(session, near.0).await?;
        let (from, to) = (middle - NEAR_BEFORE, middle + NEAR_AFTER);
        let params: [Param<'_>; 3] = [(&from, Type::INT8), (&to, Type::INT8), (&id, Type::UUID)];
        let rows = self.query(session, event_sql!("../../sql/admin/event_near.sql"), &params).await?;
        rows.first().map(found).transpose()
    }

    /// In all of the log, then among copies.
    async fn search(
        &self,
        session: &mut Session,
        id: Uuid,
        place: Where,
    ) -> Result<Option<LocatedEvent>, AdminError> {
        // Only a search that nobody asked for ends by time.
        let ended = |error: tokio_postgres::Error| match error.code() {
            Some(&SqlState::QUERY_CANCELED) => place.search_wider(id),
            _ => failed(error),
        };
        for sql in [
            event_sql!("../../sql/admin/event_by_id.sql"),
            event_sql!("../../sql/admin/event_copy_by_id.sql"),
        ] {
            let rows = session.query_alone(&self.sessions.sql(sql), &[(&id, Type::UUID)]).await;
            if let Some(row) = rows.map_err(ended)?.first() {
                return found(row).map(Some);
            }
        }
        Ok(None)
    }

    async fn sinks_of(
        &self,
        session: &mut Session,
        found: &LocatedEvent,
    ) -> Result<Vec<SinkLife>, AdminError> {
        let event = &found.event;
        let params: [Param<'_>; 5] = [
            (&event.seq, Type::INT8),
            (&found.slot, Type::INT2),
            (&event.topic, Type::TEXT),
            (&event.key, Type::TEXT),
            (&found.xid, Type::TEXT),
        ];
        let rows = self.query(session, include_str!("../../sql/admin/life.sql"), &params).await?;
        let letters = event_sql!("../../sql/admin/dead_show.sql");
        let letters = self.query(session, letters, &[(&event.id, Type::UUID)]).await?;
        let letters = letters.iter().map(letter).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        Ok(rows.iter().map(|row| sink(row, &letters, event.seq, found.xid.is_some())).collect())
    }
}

fn found(row: &Row) -> Result<LocatedEvent, AdminError> {
    let event = row::shown(row).map_err(failed)?;
    Ok(LocatedEvent { event, slot: row.get("slot"), xid: row.get("xid") })
}

fn acted(row: &Row) -> Acted {
    Acted {
        at: Timestamp(row.get::<_, Micros>("at").0),
        actor: row.get("actor"),
        action: row.get("action"),
        reason: row.get("reason"),
    }
}

fn sink(row: &Row, letters: &[DeadLetter], seq: i64, in_log: bool) -> SinkLife {
    let name: String = row.get("sink");
    let waiting = row.get::<_, Option<String>>("reason").map(|reason| waiting(row, reason));
    let dead = letters.iter().find(|letter| letter.sink == name && letter.seq == seq).cloned();
    let covered: bool = row.get("passed");
    let progress = match () {
        () if waiting.is_some() => Progress::Deferred,
        () if dead.is_some() => Progress::Dead,
        () if !row.get::<_, bool>("takes") => Progress::NotRouted,
        () if row.get("before_start") => Progress::BeforeStart,
        () if covered || !in_log => Progress::Passed,
        () => Progress::Ahead,
    };
    let unknown: Option<bool> = row.get("unknown_when");
    SinkLife {
        sink: name,
        retired: row.get("retired"),
        progress,
        position: row.get("position"),
        passed: (covered && unknown == Some(false) && progress != Progress::NotRouted).then(|| passed(row)),
        waiting,
        dead,
        behind: row.get("behind"),
        holds_back: row.get::<_, i64>("holds_back").unsigned_abs(),
    }
}

fn passed(row: &Row) -> PassedAt {
    PassedAt {
        lane: row.get("lane"),
        receipt: row.get("n"),
        epoch: row.get("epoch"),
        settled_at: Timestamp(row.get::<_, Micros>("settled_at").0),
    }
}

fn waiting(row: &Row, reason: String) -> Waiting {
    Waiting {
        reason,
        attempts: row.get("attempts"),
        earlier_attempts: row.get("earlier_attempts"),
        replays: row.get("replays"),
        due_at: time(row, "due_at"),
        route: row.get("route"),
        destination: row.get("destination"),
        error_class: row.get("error_class"),
        last_error: row.get("last_error"),
        last_error_at: time(row, "last_error_at"),
    }
}
