//! Append: an event into the outbox, inside the transaction the caller already has.
//!
//! These functions take a [`rusqlite::Transaction`] and nothing else: a bare connection is no transaction,
//! and passing one does not compile. They never begin, commit or spawn.

use crate::clock;
use crate::columns::{self, WRITTEN};
use posthaste::{Event, EventError, Limits};
use rusqlite::{OptionalExtension, Transaction, params, params_from_iter};
use std::sync::LazyLock;
use uuid::Uuid;

/// Why an append failed. In both cases nothing was appended, and the transaction is still usable: SQLite
/// rolls back the failed statement alone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The event is not acceptable. Nothing was sent to the database.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The database refused.
    #[error("the event could not be appended: {0}")]
    Database(#[from] rusqlite::Error),
}

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let names = columns::list(|name, _| name.to_owned());
    let values = ", ?".repeat(WRITTEN.len());
    include_str!("../sql/append.sql").replace("/*names*/", &names).replace("/*values*/", &values)
});
const REMEMBER: &str = include_str!("../sql/remember_key.sql");
const EARLIER: &str = "select id from posthaste_idempotency_keys where topic = ?1 and key = ?2";

/// The outbox of a service: which limits. Make one at start and keep it.
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    limits: Limits,
}

impl Outbox {
    /// Other limits than the default ones. The relay checks its own again.
    #[must_use]
    pub fn with_limits(limits: Limits) -> Self {
        Self { limits }
    }

    /// Appends an event in the caller's transaction. It exists if and only if that transaction commits (G1).
    /// Answers with its id: with an idempotency key that was used before, the first event's.
    pub fn append(&self, tx: &Transaction<'_>, event: &Event) -> Result<Uuid, AppendError> {
        self.limits.check(event)?;
        if let Some(earlier) = remember(tx, event)? {
            return Ok(earlier);
        }
        insert(tx, event)?;
        Ok(event.id)
    }

    /// Appends many events, in order. All of them are checked before the first is written.
    pub fn append_all(&self, tx: &Transaction<'_>, events: &[Event]) -> Result<Vec<Uuid>, AppendError> {
        for event in events {
            self.limits.check(event)?;
        }
        events.iter().map(|event| self.append(tx, event)).collect()
    }
}

pub(crate) fn insert(tx: &Transaction<'_>, event: &Event) -> rusqlite::Result<()> {
    let written = WRITTEN.iter().map(|(_, column)| column.of(event));
    let values = std::iter::once(clock::now().into()).chain(written);
    tx.prepare_cached(&INSERT)?.execute(params_from_iter(values))?;
    Ok(())
}

/// Remembers an idempotency key. If it was there already: the id of the event that brought it. Transactions
/// write one after the other, so two cannot race: the second sees the first, or the first never was.
fn remember(tx: &Transaction<'_>, event: &Event) -> Result<Option<Uuid>, AppendError> {
    let Some(key) = &event.idempotency_key else { return Ok(None) };
    let id = event.id.hyphenated().to_string();
    let fresh = tx.prepare_cached(REMEMBER)?.execute(params![event.topic, key, id, clock::now()])?;
    if fresh > 0 {
        return Ok(None);
    }
    let earlier: Option<String> =
        tx.prepare_cached(EARLIER)?.query_row(params![event.topic, key], |row| row.get(0)).optional()?;
    Ok(earlier.and_then(|id| Uuid::parse_str(&id).ok()))
}

/// Appends an event to the outbox. See [`Outbox::append`].
///
/// ```no_run
/// # fn place(connection: &mut rusqlite::Connection) -> Result<(), Box<dyn std::error::Error>> {
/// use rusqlite::TransactionBehavior::Immediate;
/// let tx = connection.transaction_with_behavior(Immediate)?;
/// tx.execute("insert into orders (id) values (?1)", [42])?;
/// let event = posthaste::Event::new("orders.placed", r#"{"order":42}"#).with_key("42");
/// posthaste_sqlite::append(&tx, &event)?;
/// tx.commit()?; // the order and its event, or neither
/// # Ok(()) }
/// ```
///
/// Begin with `Immediate`, as above, and set a busy timeout on the connection: a transaction that first reads
/// and then writes may find that somebody else wrote in between, and SQLite refuses it at once.
///
/// A connection is no transaction. The mistake does not compile (F8):
///
/// ```compile_fail,E0308
/// # fn place(connection: &mut rusqlite::Connection, event: &posthaste::Event) {
/// let _ = posthaste_sqlite::append(connection, event);
/// # }
/// ```
pub fn append(tx: &Transaction<'_>, event: &Event) -> Result<Uuid, AppendError> {
    Outbox::default().append(tx, event)
}

/// Appends many events to the outbox. See [`Outbox::append_all`].
pub fn append_all(tx: &Transaction<'_>, events: &[Event]) -> Result<Vec<Uuid>, AppendError> {
    Outbox::default().append_all(tx, events)
}
