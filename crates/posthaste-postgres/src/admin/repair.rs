//! Repair: the database went back in time, or is another one.
//!
//! A restored dump brings rows and cursors whose xids this server has not given out; a sequence that was
//! set back, or not restored, hands out numbers that cursors have passed. In both cases snapshots, marks
//! and numbers are no longer of one line, and a cursor that went on would skip events. So lanes stop
//! loudly (F6), and this re-bases them: nothing skipped, as little as possible sent twice.
//!
//! The position of a base is the end of what is *proven* to be handled (`repair_lane.sql` says what counts
//! as proof); in a restored dump that is usually the old position, and after a sequence went back on the
//! same server it is the beginning of the log. Its snapshot is that of the look itself.
//!
//! Foreign xids in the log are rewritten in the same transaction, which touches every sink at once: a
//! cursor that was left as it is would take the rewritten rows for handled. Hence a repair of one sink
//! re-bases all of them. It is one transaction, not chunks: half of it would be worse than none, and a
//! database that was just restored has nothing better to do.
//!
//! Rewriting the log and setting its sequence are the owner's rights, nobody else's.

use super::lanes::{Base, Cursor, next_epoch};
use super::{PostgresAdmin, finish};
use crate::session::{Param, Session, quote};
use posthaste::admin::{Actor, AdminError};
use posthaste::store::StoreError;
use serde_json::json;
use std::collections::BTreeMap;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// What does not fit together.
struct Damage {
    last_value: i64,
    xmax: i64,
    known: i64,
    foreign_rows: i64,
    foreign_notes: i64,
    may_update: bool,
    may_set: bool,
}

impl Damage {
    fn is_behind(&self) -> bool {
        self.last_value < self.known
    }

    fn is_none(&self, cursors: &[Cursor]) -> bool {
        let sound = |lane: &Cursor| {
            lane.state.as_ref().is_some_and(|(_, snapshot)| snapshot.xmax <= self.xmax.unsigned_abs())
        };
        !self.is_behind() && self.foreign_rows == 0 && self.foreign_notes == 0 && cursors.iter().all(sound)
    }
}

impl PostgresAdmin {
    pub(super) async fn rebase(&self, sink: &str, actor: &Actor) -> Result<String, AdminError> {
        // Whole tables are looked at here.
        let mut session = self.begin_freely().await?;
        let rebased = self.rebase_in(&mut session, sink, actor).await;
        finish(&mut session, rebased).await
    }

    async fn rebase_in(
        &self,
        session: &mut Session,
        sink: &str,
        actor: &Actor,
    ) -> Result<String, AdminError> {
        self.check_sink(session, sink).await?;
        let mark = self.lock_cursors(session).await?;
        let rows = self.query(session, include_str!("../../sql/admin/repair_look.sql"), &[]).await?;
        let damage = rows.first().map(damage).ok_or_else(StoreError::no_answer)?;
        let cursors = self.cursors(session).await?;
        if damage.is_none(&cursors) {
            return Err(AdminError::nothing_to_repair("numbers and transaction ids"));
        }
        self.check_rights(&damage)?;
        let mut bases = Vec::new();
        let mut again: BTreeMap<&str, i64> = BTreeMap::new();
        for lane in &cursors {
            let (base, count) = self.rebase_lane(session, lane).await?;
            *again.entry(&lane.sink).or_default() += count;
            bases.push(base);
        }
        self.rewrite(session).await?;
        let epoch = next_epoch(&cursors);
        self.write_bases(session, "repair", epoch, mark, &bases).await?;
        self.forget_former(session, cursors.iter()).await?;
        let sinks: Vec<&str> = again.keys().copied().collect();
        self.free_lanes(session, &sinks, epoch).await?;
        let detail = json!({
            "sink": sink, "sent_again": again, "foreign_rows": damage.foreign_rows,
            "last_value": damage.last_value, "known": damage.known, "epoch": epoch,
        });
        // Before the line in the audit, which may be an event and draw a number.
        let moved =
            if damage.is_behind() { Some(self.move_sequence(session, damage.known).await?) } else { None };
        self.audit(session, actor, "repair", &detail).await?;
        self.wake(session, "lanes").await?;
        Ok(report(&damage, &again, bases.len(), moved))
    }

    fn check_rights(&self, damage: &Damage) -> Result<(), AdminError> {
        let schema = quote(&self.sessions.config().schema);
        let mut lacking = Vec::new();
        if damage.foreign_rows > 0 && !damage.may_update {
            lacking.push(format!(
                "UPDATE on {schema}.outbox ({} rows came from another server)",
                damage.foreign_rows
            ));
        }
        if damage.is_behind() && !damage.may_set {
            lacking.push(format!(
                "UPDATE on sequence {schema}.outbox_seq (it stands at {}, the outbox knows {})",
                damage.last_value, damage.known
            ));
        }
        if lacking.is_empty() { Ok(()) } else { Err(AdminError::owner_needed(&lacking)) }
    }

    /// A lane's base, and how many events it sends again.
    async fn rebase_lane(&self, session: &mut Session, lane: &Cursor) -> Result<(Base, i64), AdminError> {
        let (old, snapshot) = match &lane.state {
            Some((position, snapshot)) => (*position, snapshot.to_string()),
            // Without a receipt nothing is proven.
            None => (0, "3:3:".to_owned()),
        };
        let params: [Param<'_>; 4] =
            [(&old, Type::INT8), (&snapshot, Type::TEXT), (&lane.sink, Type::TEXT), (&lane.lane, Type::INT2)];
        let sql = include_str!("../../sql/admin/repair_lane.sql");
        let rows = self.query_where(session, sql, &lane.condition, &params).await?;
        let row = rows.first().ok_or_else(StoreError::no_answer)?;
        let position = row.get::<_, Option<i64>>("unproven").map_or(old, |seq| seq - 1);
        let params: [Param<'_>; 2] = [(&position, Type::INT8), (&old, Type::INT8)];
        let sql = include_str!("../../sql/admin/repair_again.sql");
        let counted = self.query_where(session, sql, &lane.condition, &params).await?;
        let again = counted.first().map_or(0, |row| row.get(0));
        Ok((Base { sink: lane.sink.clone(), lane: lane.lane, position, snapshot: row.get("now") }, again))
    }

    async fn rewrite(&self, session: &mut Session) -> Result<(), AdminError> {
        self.query(session, include_str!("../../sql/admin/repair_rows.sql"), &[]).await?;
        self.query(session, include_str!("../../sql/admin/repair_receipts.sql"), &[]).await?;
        self.query(session, include_str!("../../sql/admin/repair_segments.sql"), &[]).await?;
        Ok(())
    }

    async fn move_sequence(&self, session: &mut Session, known: i64) -> Result<i64, AdminError> {
        let params: [Param<'_>; 1] = [(&known, Type::INT8)];
        let rows = self.query(session, include_str!("../../sql/admin/repair_sequence.sql"), &params).await?;
        Ok(rows.first().map_or(known, |row| row.get(0)))
    }
}

fn damage(row: &Row) -> Damage {
    Damage {
        last_value: row.get("last_value"),
        xmax: row.get("xmax"),
        known: row.get("known"),
        foreign_rows: row.get("foreign_rows"),
        foreign_notes: row.get("foreign_notes"),
        may_update: row.get("may_update"),
        may_set: row.get("may_set"),
    }
}

fn report(damage: &Damage, again: &BTreeMap<&str, i64>, lanes: usize, moved: Option<i64>) -> String {
    let total: i64 = again.values().sum();
    let each: Vec<String> = again.iter().map(|(sink, count)| format!("{sink} {count}")).collect();
    let mut text = format!(
        "re-based {lanes} lanes of {} sinks: {total} events are sent again ({}), none is skipped",
        again.len(),
        each.join(", ")
    );
    if damage.foreign_rows > 0 {
        text.push_str(&format!(
            "; {} rows of the log had transaction ids of another server and count as old now",
            damage.foreign_rows
        ));
    }
    if let Some(moved) = moved {
        text.push_str(&format!("; the sequence went from {} to {moved}", damage.last_value));
    }
    text
}
