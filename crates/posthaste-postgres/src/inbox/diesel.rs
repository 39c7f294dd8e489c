//! Admit with diesel 2.3: `posthaste_postgres::diesel::admit(conn, "billing", &id)` inside
//! `conn.transaction(…)`.
//!
//! Diesel's transaction is the connection itself, so the types cannot tell one from the other. As for
//! `append` the adapter asks diesel whether it has begun a transaction, and refuses if not: the mark would be
//! durable although the handler failed (F8).

use super::Inbox;
use crate::append::diesel::{Prepared, is_in_transaction};
use diesel::connection::LoadConnection;
use diesel::pg::Pg;
use diesel::result::{DatabaseErrorKind, Error};
use diesel::sql_types::{BigInt, Integer, Nullable, Text};
use diesel::{RunQueryDsl, sql_query};
use posthaste::inbox::{Admission, Origin, Unfit, check};

/// Why a message was not admitted, by what the consumer does next. Nothing was marked in any case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// The message cannot be marked at all. Nothing was sent to the database; the transaction is still
    /// usable.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The connection has no open transaction. Nothing was sent to the database.
    #[error(
        "the connection has no open transaction, so the mark would not share the fate of what the handler does; \
         admit inside conn.transaction(|conn| …)"
    )]
    NoTransaction,
    /// Another transaction was in the way: a serialization failure. Roll back and handle the message again.
    /// It is nobody's fault and spends no attempt. Of a deadlock diesel does not say that it is one.
    #[error("another transaction was in the way; the handler's transaction must be run again")]
    Conflict(#[source] Error),
    /// The database failed. The transaction is aborted, as after any failed statement.
    #[error("the message could not be marked in the inbox")]
    Database(#[source] Error),
}

impl From<Error> for AdmitError {
    fn from(error: Error) -> Self {
        match error {
            Error::DatabaseError(DatabaseErrorKind::SerializationFailure, _) => Self::Conflict(error),
            other => Self::Database(other),
        }
    }
}

/// So that `?` works in a transaction whose error is diesel's own.
impl From<AdmitError> for Error {
    fn from(error: AdmitError) -> Self {
        match error {
            AdmitError::Conflict(error) | AdmitError::Database(error) => error,
            other => Self::QueryBuilderError(Box::new(other)),
        }
    }
}

impl Inbox {
    /// Marks a message as done by the transaction that is open on this connection, or finds that it is done.
    /// Call it first, and run the handler only for [`Admission::First`]. Waits for another transaction that
    /// has the same message in hand.
    pub fn admit_diesel<C>(
        &self,
        conn: &mut C,
        message_id: &str,
        origin: Origin<'_>,
    ) -> Result<Admission, AdmitError>
    where
        C: LoadConnection<Backend = Pg>,
    {
        if !is_in_transaction(conn)? {
            return Err(AdmitError::NoTransaction);
        }
        check(&self.consumer, message_id)?;
        Ok(admission(mark(self, message_id, origin).execute(conn)?))
    }
}

/// The statement that makes the mark.
pub(super) fn mark<'q>(inbox: &'q Inbox, message_id: &'q str, origin: Origin<'q>) -> Prepared<'q> {
    sql_query(&*inbox.admit)
        .into_boxed()
        .bind::<Text, _>(&*inbox.consumer)
        .bind::<Text, _>(message_id)
        .bind::<Nullable<Text>, _>(origin.topic)
        .bind::<Nullable<Integer>, _>(origin.partition)
        .bind::<Nullable<BigInt>, _>(origin.position)
}

/// By how many marks were made.
pub(super) fn admission(made: usize) -> Admission {
    if made > 0 { Admission::First } else { Admission::Duplicate }
}

/// Marks a message in the inbox in the schema `posthaste`. See [`Inbox::admit_diesel`].
///
/// ```no_run
/// # use diesel::{connection::LoadConnection, pg::Pg, prelude::*};
/// # fn handle<C: LoadConnection<Backend = Pg>>(conn: &mut C, id: &str) -> QueryResult<()> {
/// conn.transaction(|conn| {
///     if posthaste_postgres::diesel::admit(conn, "billing", id)?.is_first() {
///         diesel::sql_query("insert into invoices (order_id) values (42)").execute(conn)?;
///     }
///     Ok(()) // the invoice and the mark, or neither; then acknowledge
/// })
/// # }
/// ```
pub fn admit<C>(conn: &mut C, consumer: &str, message_id: &str) -> Result<Admission, AdmitError>
where
    C: LoadConnection<Backend = Pg>,
{
    Inbox::new(consumer).admit_diesel(conn, message_id, Origin::default())
}
