//! The inbox on SQLite: `admit` in the handler's transaction (G5).
//!
//! The words are in [`posthaste::inbox`]. SQLite lets one transaction write at a time, so two with the same
//! message cannot race: the second waits for the write lock, in `begin immediate` or in `admit`, for as long
//! as the connection's busy timeout allows. Then the mark of the first is there, or the first never was.
//!
//! A transaction that has read something before another one committed sees an old state, and SQLite does not
//! let it write any more: [`AdmitError::Conflict`]. `begin immediate` (`TransactionBehavior::Immediate`)
//! avoids that.

use crate::clock;
use posthaste::inbox::{Admission, Origin, Unfit, check};
use rusqlite::{Connection, ErrorCode, Transaction, params};
use std::time::Duration;

/// Why a message was not admitted, by what the consumer does next. Nothing was marked in any case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// The message cannot be marked at all. Nothing was sent to the database.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// Another transaction was in the way: this one sees an old state, or the write lock was not free in
    /// time. Roll back and handle the message again. It is nobody's fault and spends no attempt.
    #[error("another transaction was in the way; the handler's transaction must be run again: {0}")]
    Conflict(#[source] rusqlite::Error),
    /// The database failed.
    #[error("the message could not be marked in the inbox: {0}")]
    Database(#[source] rusqlite::Error),
}

impl AdmitError {
    /// Whether the same message may be admitted later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Unfit(_))
    }
}

impl From<rusqlite::Error> for AdmitError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Conflict(error),
            _ => Self::Database(error),
        }
    }
}

/// Makes the inbox's table where there is none. Call it at start; it is harmless when repeated.
pub fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(include_str!("../sql/inbox/schema.sql"))
}

/// The inbox of one consumer.
#[derive(Debug, Clone)]
pub struct Inbox {
    consumer: String,
}

impl Inbox {
    /// The inbox of this consumer. A consumer's name is for ever: under another one everything is new.
    #[must_use]
    pub fn new(consumer: &str) -> Self {
        Self { consumer: consumer.to_owned() }
    }

    /// Marks a message as done by this transaction, or finds that it is done. Call it first, and run the
    /// handler only for [`Admission::First`].
    pub fn admit(
        &self,
        tx: &Transaction<'_>,
        message_id: &str,
        origin: Origin<'_>,
    ) -> Result<Admission, AdmitError> {
        check(&self.consumer, message_id)?;
        let sql =
            "insert into posthaste_inbox (consumer, message_id, topic, partition, position, processed_at)
                   values (?1, ?2, ?3, ?4, ?5, ?6) on conflict do nothing";
        let written = tx.prepare_cached(sql)?.execute(params![
            self.consumer,
            message_id,
            origin.topic,
            origin.partition,
            origin.position,
            clock::now(),
        ])?;
        Ok(if written == 0 { Admission::Duplicate } else { Admission::First })
    }

    /// Removes marks that are older than `retention`, at most `chunk` of them, and answers how many. Call it
    /// again while it answers with a full chunk. See [`posthaste::inbox`] for how long marks must be kept.
    pub fn purge(&self, connection: &Connection, retention: Duration, chunk: u32) -> rusqlite::Result<usize> {
        let micros = i64::try_from(retention.as_micros()).unwrap_or(i64::MAX);
        let sql = "delete from posthaste_inbox where consumer = ?1 and message_id in (
                     select message_id from posthaste_inbox
                      where consumer = ?1 and processed_at < ?2 order by processed_at limit ?3)";
        let before = clock::now().saturating_sub(micros);
        connection.prepare_cached(sql)?.execute(params![self.consumer, before, chunk])
    }
}

/// Marks a message in the inbox. See [`Inbox::admit`].
///
/// ```no_run
/// # fn handle(connection: &mut rusqlite::Connection, delivery: &posthaste::source::Delivery)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use rusqlite::TransactionBehavior::Immediate;
/// let tx = connection.transaction_with_behavior(Immediate)?;
/// let id = delivery.identity().ok_or("a message without an identity")?;
/// if posthaste_sqlite::inbox::admit(&tx, "billing", &id)?.is_first() {
///     tx.execute("insert into invoices (order_id) values (?1)", [42])?;
/// }
/// tx.commit()?; // the invoice and the mark, or neither; now acknowledge
/// # Ok(()) }
/// ```
///
/// A connection is no transaction: the mark would be durable although the handler failed. The mistake does
/// not compile:
///
/// ```compile_fail,E0308
/// # fn handle(connection: &rusqlite::Connection) {
/// let _ = posthaste_sqlite::inbox::admit(connection, "billing", "id");
/// # }
/// ```
pub fn admit(tx: &Transaction<'_>, consumer: &str, message_id: &str) -> Result<Admission, AdmitError> {
    Inbox::new(consumer).admit(tx, message_id, Origin::default())
}
