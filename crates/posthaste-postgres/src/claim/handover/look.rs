//! How far a move is, by the catalog and the table itself.

use super::{Handover, HandoverError};
use crate::claim::statements::handover::{OFF, TRIGGER};
use crate::claim::statements::quoted;
use crate::error::store_error;
use posthaste::admin::Count;
use serde::Serialize;
use tokio_postgres::types::Type;

/// Bound of a count; the statement of the gauges has the same.
const COUNT_MAX: u64 = 100_000;

/// The trigger on the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// There is none.
    Absent,
    /// It hands rows over, as this layout says.
    On,
    /// It hands rows over, as another layout or version said.
    Other,
    /// It is there and does nothing.
    Off,
    /// Somebody has disabled it.
    Disabled,
}

/// How far a move is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HandoverStatus {
    /// The table, with its schema.
    pub table: String,
    /// The schema of the log.
    pub log: String,
    /// The trigger.
    pub trigger: Trigger,
    /// Rows that the claim has to publish now.
    pub waiting: Count,
    /// Rows that wait for their time or the next attempt.
    pub later: Count,
    /// Rows that wait for no time. Nobody takes them.
    pub never: Count,
    /// Rows that were given up.
    pub dead: Count,
    /// Sinks of the log that `start` holds back until the table is drained.
    pub held: Vec<String>,
}

impl HandoverStatus {
    /// Whether the claim has nothing left to do.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.waiting.count == 0 && self.later.count == 0
    }
}

impl Handover {
    /// Looks, and changes nothing.
    pub async fn standing(&mut self) -> Result<HandoverStatus, HandoverError> {
        self.check_log().await?;
        let trigger = self.trigger().await?;
        let held = self.held().await?;
        // To know that nothing waits may take a look at every row, so there is no bound but the statement's
        // own.
        let rows = self.session.client().query(&self.statements.gauges(), &[]).await.map_err(store_error)?;
        let count = |at: usize| {
            let count = rows.first().map_or(0, |row| row.get::<_, i64>(at).unsigned_abs());
            Count { count, exact: count < COUNT_MAX }
        };
        Ok(HandoverStatus {
            table: self.place.table.to_string(),
            log: self.place.log.clone(),
            trigger,
            waiting: count(0),
            later: count(1),
            never: count(5),
            dead: count(2),
            held,
        })
    }

    /// Topics that rows of the table have, some of them.
    pub async fn topics(&mut self) -> Result<Vec<String>, HandoverError> {
        let sql = self.statements.some_topics(&self.place);
        let rows = self.session.query(&sql, &[]).await.map_err(store_error)?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Refuses where there is no log beside the table.
    pub(super) async fn check_log(&mut self) -> Result<(), HandoverError> {
        let outbox = format!("{}.outbox", self.log());
        let sql = "select to_regclass($1) is not null";
        let rows = self.session.query(sql, &[(&outbox, Type::TEXT)]).await.map_err(store_error)?;
        if rows.first().is_some_and(|row| row.get(0)) {
            return Ok(());
        }
        Err(HandoverError::Refused(format!(
            "there is no log in schema {} of this database: a row and its event must be written by one transaction, so the log \
             lives beside the table. Run `posthaste migrate up` for it first. Nothing was changed",
            self.place.log
        )))
    }

    pub(super) async fn trigger(&mut self) -> Result<Trigger, HandoverError> {
        let sql = "select t.tgenabled::text, p.prosrc, n.nspname::text
                     from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_namespace n on n.oid = p.pronamespace
                    where t.tgrelid = to_regclass($1) and t.tgname = $2 and not t.tgisinternal";
        let params: [crate::session::Param<'_>; 2] =
            [(&quoted(&self.place.table), Type::TEXT), (&TRIGGER, Type::TEXT)];
        let rows = self.session.query(sql, &params).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(Trigger::Absent) };
        let (enabled, body, log): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        if log != self.place.log {
            return Err(HandoverError::Refused(format!(
                "{} hands its rows over to another log already, in schema {log}. Nothing was changed",
                self.place.table
            )));
        }
        // Any other kind does not fire here: `D` is disabled, `R` is for what a replica applies.
        let fires = matches!(enabled, "O" | "A");
        Ok(match (fires, body) {
            (false, _) => Trigger::Disabled,
            (_, OFF) => Trigger::Off,
            (_, body) if body == self.statements.hand_over_body(&self.place) => Trigger::On,
            _ => Trigger::Other,
        })
    }

    /// Refuses where others could have functions of theirs run with the definer's rights, and where the
    /// table's key is not the key of all of its rows.
    pub(super) async fn check_surroundings(&mut self) -> Result<(), HandoverError> {
        let rows = self.session.query(&self.place.strangers(), &[]).await.map_err(store_error)?;
        let revokes: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        if !revokes.is_empty() {
            return Err(HandoverError::Refused(format!(
                "the trigger would act as the connected role and find functions by its search path, where others may make some: theirs \
                 could run with its rights. First: {}. Or run this as a role with another search path. Nothing was changed",
                revokes.join("; ")
            )));
        }
        let sql = "select c.oid::regclass::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
                    where i.inhparent = to_regclass($1) and not c.relispartition";
        let table = quoted(&self.place.table);
        let rows = self.session.query(sql, &[(&table, Type::TEXT)]).await.map_err(store_error)?;
        match rows.first() {
            None => Ok(()),
            Some(row) => Err(HandoverError::Refused(format!(
                "{} inherits from {}, and its rows are not handed over: the trigger is not on it, and the key is not unique over both. \
                 Partitions would do. Nothing was changed",
                row.get::<_, String>(0),
                self.place.table
            ))),
        }
    }

    /// Rows that wait in the table, as a question for psql.
    #[must_use]
    pub fn question(&self) -> String {
        self.statements.waiting_count(&self.place)
    }

    /// What the connected role must be able to do, and cannot.
    pub(super) async fn check_rights(&mut self) -> Result<(), HandoverError> {
        let layout = self.statements.layout();
        let change = if layout.delete_published { "DELETE" } else { "UPDATE" };
        let table = quoted(&self.place.table);
        let outbox = format!("{}.outbox", self.log());
        // A row is locked before it is tried, which takes UPDATE; so does every claim.
        let sql = "select w.what from (values
              ($3 = 'UPDATE' or has_table_privilege($1, 'UPDATE'), 'UPDATE on ' || $1),
              (has_table_privilege($1, 'SELECT'), 'SELECT on ' || $1), (has_table_privilege($1, $3), $3 || ' on ' || $1),
              (has_table_privilege($1, 'TRIGGER'), 'TRIGGER on ' || $1), (has_schema_privilege($4, 'CREATE'), 'CREATE on schema ' || $4),
              (has_column_privilege($2, 'payload', 'INSERT'), 'INSERT on ' || $2),
              (has_sequence_privilege($2 || '_seq', 'USAGE'), 'USAGE on sequence ' || $2 || '_seq'),
              (has_sequence_privilege($2 || '_segment', 'SELECT'), 'SELECT on sequence ' || $2 || '_segment'),
              (has_sequence_privilege($2 || '_wakeup', 'SELECT'), 'SELECT on sequence ' || $2 || '_wakeup')
            ) as w (has, what) where not w.has";
        let params: [crate::session::Param<'_>; 4] = [
            (&table, Type::TEXT),
            (&outbox, Type::TEXT),
            (&change, Type::TEXT),
            (&self.place.log, Type::TEXT),
        ];
        let rows = self.session.query(sql, &params).await.map_err(store_error)?;
        if rows.is_empty() {
            return Ok(());
        }
        let missing: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        Err(HandoverError::Refused(format!(
            "the trigger would act as the connected role, which lacks: {}. Run this as the owner of table and log (--owner-url), or \
             have `posthaste adopt migrate sql` applied by somebody who may. Nothing was changed",
            missing.join(", ")
        )))
    }
}
