//! Admit with sqlx 0.9: `posthaste_postgres::sqlx::admit(&mut tx, "billing", &id)`.

use super::{Inbox, is_in_the_way};
use posthaste::inbox::{Admission, Origin, Unfit, check};
use sqlx::postgres::Postgres;
use sqlx::{AssertSqlSafe, Transaction};
use std::sync::Arc;

/// Why a message was not admitted, by what the consumer does next. Nothing was marked in any case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// The message cannot be marked at all. Nothing was sent to the database; the transaction is still
    /// usable.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// Another transaction was in the way: a serialization failure or a deadlock. Roll back and handle the
    /// message again. It is nobody's fault and spends no attempt.
    #[error("another transaction was in the way; the handler's transaction must be run again")]
    Conflict(#[source] sqlx::Error),
    /// The database failed. The transaction is aborted, as after any failed statement.
    #[error("the message could not be marked in the inbox")]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for AdmitError {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code());
        match code.is_some_and(|code| is_in_the_way(&code)) {
            true => Self::Conflict(error),
            false => Self::Database(error),
        }
    }
}

impl Inbox {
    /// Marks a message as done by this transaction, or finds that it is done. Call it first, and run the
    /// handler only for [`Admission::First`]. Waits for another transaction that has the same message in
    /// hand.
    pub async fn admit_sqlx(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        message_id: &str,
        origin: Origin<'_>,
    ) -> Result<Admission, AdmitError> {
        check(&self.consumer, message_id)?;
        let marked = sqlx::query(AssertSqlSafe(Arc::clone(&self.admit)))
            .bind(&*self.consumer)
            .bind(message_id)
            .bind(origin.topic)
            .bind(origin.partition)
            .bind(origin.position)
            .fetch_optional(&mut **tx)
            .await?;
        Ok(if marked.is_some() { Admission::First } else { Admission::Duplicate })
    }
}

/// Marks a message in the inbox in the schema `posthaste`. See [`Inbox::admit_sqlx`].
///
/// ```no_run
/// # async fn handle(pool: &sqlx::PgPool, id: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// if posthaste_postgres::sqlx::admit(&mut tx, "billing", id).await?.is_first() {
///     sqlx::query("insert into invoices (order_id) values ($1)").bind(42i64).execute(&mut *tx).await?;
/// }
/// tx.commit().await?; // the invoice and the mark, or neither; now acknowledge
/// # Ok(()) }
/// ```
///
/// A pool is no transaction, and neither is a connection: the mark would be durable although the handler
/// failed. The mistake does not compile (F8):
///
/// ```compile_fail,E0308
/// # async fn handle(mut pool: sqlx::PgPool) {
/// let _ = posthaste_postgres::sqlx::admit(&mut pool, "billing", "id").await;
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # async fn handle(connection: &mut sqlx::PgConnection) {
/// let _ = posthaste_postgres::sqlx::admit(connection, "billing", "id").await;
/// # }
/// ```
pub async fn admit(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &str,
    message_id: &str,
) -> Result<Admission, AdmitError> {
    Inbox::new(consumer).admit_sqlx(tx, message_id, Origin::default()).await
}
