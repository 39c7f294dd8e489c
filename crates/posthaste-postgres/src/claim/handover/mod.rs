//! Moving from an adopted table to the log, without a gap: `posthaste adopt migrate`.
//!
//! A trigger on the table hands each new row over to the log, in the transaction that wrote it. The relay of
//! the adopted table goes on with the rows that were there before, until none is left. Then the table can be
//! forgotten, or the application appends to the log by itself.
//!
//! # Whose is a row?
//!
//! > A row that is committed as waiting belongs to the claim. A row that the trigger handed over was never
//! > committed as waiting: the statement that appends its event also marks it as published (or deletes it),
//! > and touches nothing if it does not find it waiting.
//!
//! That is the whole rule. It holds for each row by itself, so it does not matter when the trigger came, was
//! changed or went away, which transactions were running then, or where this process died. What somebody sets
//! back to waiting by hand belongs to the claim again.
//!
//! # The trigger
//!
//! It is a constraint trigger, deferred: it runs when the transaction commits, and sees the row as it is
//! committed. Refused:
//! - **BEFORE INSERT**, which could mark the row without a second version of it: it also fires for rows that
//!   `ON CONFLICT DO NOTHING` drops (an event of a row that is not there), and `ON CONFLICT DO UPDATE SET
//!   status = excluded.status` would take the mark over to a row that nobody published.
//! - **AFTER INSERT at once**: libraries that map objects insert a row and update all of its columns before
//!   they commit. The log would have the first version, the table would say "waiting" again, and both would
//!   be published.
//! - **For a statement, with a transition table**: the same, and rows written into a partition directly would
//!   not be seen.
//! - **A copy by the relay**: it would be a second reader of the table, and later than the commit.
//!
//! The function is `SECURITY DEFINER` with its settings pinned, so the application needs no new right. It
//! acts as the role that ran `start`, with that role's search path. For marking a row runs its owners' own
//! triggers, and these must find what they find when a relay marks one. A path in which others may create
//! functions is refused, because theirs would run with the definer's rights.
//!
//! # Steps
//!
//! Nothing is kept but what the catalog shows, and one line in `state` if sinks are held. Every step is a
//! transaction, is harmless when repeated, and goes on where a dead one stopped.
//!
//! | step | a death in it leaves |
//! |---|---|
//! | start: hold sinks of the log (only if asked) | held sinks, no trigger: `start` again, or `stop` |
//! | start: function and trigger | all or nothing |
//! | finish: nothing waits; let held sinks go | all or nothing |
//! | stop: the function does nothing any more, held sinks go on | all or nothing |
//! | stop: function and trigger are dropped | a trigger that does nothing: `stop` again |
//!
//! CREATE TRIGGER waits for transactions that write to the table, and whoever comes next waits behind it. So
//! it is tried for a quarter of a second and given up, again and again ([`lock`]). Switching off needs no
//! lock at all, which is why `stop` does it first.

mod act;
mod hold;
mod lock;
mod look;
mod rehearse;

pub use lock::PATIENCE;
pub use look::{HandoverStatus, Trigger};

use super::check;
use super::layout::Layout;
use super::session::ClaimSession;
use super::statements::handover::HandoverTarget;
use super::statements::{Statements, quoted};
use crate::config::PostgresConfig;
use crate::error::store_error;
use posthaste::admin::Actor;
use posthaste::store::{StoreCode, StoreError};
use tokio_postgres::types::Type;

/// This connection counts whole tables, which may take long and may read them from end to end.
const SETTINGS: &str = "set statement_timeout = '10min'; set enable_seqscan = on; set enable_bitmapscan = on";

/// Columns of types that the server compares by operators of its own.
const PLAIN: &str = "select a.attname::text from pg_attribute a join pg_type y on y.oid = a.atttypid
    where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped
      and (y.typtype = 'e' or (y.typtype = 'b' and y.typnamespace = 'pg_catalog'::regnamespace))
    order by a.attnum";

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Something stands in the way, in words. Nothing was changed, unless the words say what.
    #[error("{0}")]
    Refused(String),
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It was taken.
    Now,
    /// There was nothing to do.
    Before,
    /// The trigger does nothing any more, and could not be removed yet.
    Off,
}

/// An adopted table and a log in the same database.
pub struct Handover {
    session: ClaimSession,
    statements: Statements,
    place: HandoverTarget,
    rehearsed: bool,
}

impl Handover {
    /// Connects, and looks at the table. Whatever does not fit is an error at once.
    pub async fn connect(config: &PostgresConfig, layout: &Layout, log: &str) -> Result<Self, HandoverError> {
        layout.check().map_err(|why| StoreError::fatal(StoreCode::Layout, why))?;
        let mut session = ClaimSession::open(config, layout).await?;
        session.batch(SETTINGS).await.map_err(store_error)?;
        let statements = check::statements(&mut session, layout.clone()).await?;
        let found = check::table(session.client(), &layout.table).await?;
        let Some(found) = found else {
            return Err(HandoverError::Refused(format!("there is no table {} here", layout.table)));
        };
        let rows = session.query("select current_schemas(false)::text[]", &[]).await.map_err(store_error)?;
        let path = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let table = quoted(&found.name);
        let rows = session.query(PLAIN, &[(&table, Type::TEXT)]).await.map_err(store_error)?;
        let plain = rows.iter().map(|row| row.get(0)).collect();
        let place = HandoverTarget { table: found.name, log: log.to_owned(), path, plain };
        Ok(Self { session, statements, place, rehearsed: false })
    }

    /// What `start` runs, for somebody who applies it by hand, as a role that may change both.
    #[must_use]
    pub fn script(&self) -> String {
        let place = &self.place;
        let statements =
            [place.no_strangers(), self.definition(), place.keep_private(), place.describe(), place.put_on()];
        let each: String = statements.iter().map(|sql| format!("{sql};\n\n")).collect();
        format!("begin;\nset local lock_timeout = '{}ms';\n\n{each}commit;\n", lock::WAIT_MS)
    }

    /// The same for `stop`.
    #[must_use]
    pub fn script_back(&self) -> String {
        format!(
            "begin;\nset local lock_timeout = '{}ms';\n\n{};\n\ncommit;\n",
            lock::WAIT_MS,
            self.place.take_off()
        )
    }

    fn definition(&self) -> String {
        let zone = &self.statements.layout().time_zone;
        self.place.define(&self.statements.hand_over_body(&self.place), zone)
    }

    /// The log's name for statements.
    fn log(&self) -> String {
        crate::session::quote(&self.place.log)
    }

    async fn audit(
        &mut self,
        actor: &Actor,
        action: &str,
        detail: &serde_json::Value,
    ) -> Result<(), StoreError> {
        let sql = format!(
            "insert into {}.audit (actor, action, reason, detail, trace_id) values ($1, $2, $3, $4::text::jsonb, $5)",
            self.log()
        );
        let detail = detail.to_string();
        let params: [crate::session::Param<'_>; 5] = [
            (&actor.name, Type::TEXT),
            (&action, Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&detail, Type::TEXT),
            (&actor.trace_id, Type::TEXT),
        ];
        self.session.query(&sql, &params).await.map_err(store_error)?;
        Ok(())
    }
}
