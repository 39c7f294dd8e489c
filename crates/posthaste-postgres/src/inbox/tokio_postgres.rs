//! Admit with tokio_postgres: `posthaste_postgres::admit(&mut tx, "billing", &id)`.

use super::Inbox;
use posthaste::inbox::{Admission, Origin, Unfit, check};
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

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
    Conflict(#[source] tokio_postgres::Error),
    /// The database failed. The transaction is aborted, as after any failed statement.
    #[error("the message could not be marked in the inbox")]
    Database(#[source] tokio_postgres::Error),
}

impl AdmitError {
    /// Whether the same message may be admitted later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Unfit(_))
    }
}

impl From<tokio_postgres::Error> for AdmitError {
    fn from(error: tokio_postgres::Error) -> Self {
        let in_the_way = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
        if error.code().is_some_and(|code| in_the_way.contains(code)) {
            Self::Conflict(error)
        } else {
            Self::Database(error)
        }
    }
}

impl Inbox {
    /// Marks a message as done by this transaction, or finds that it is done. Call it first, and run the
    /// handler only for [`Admission::First`]. Waits for another transaction that has the same message in
    /// hand.
    pub async fn admit(
        &self,
        tx: &mut Transaction<'_>,
        message_id: &str,
        origin: Origin<'_>,
    ) -> Result<Admission, AdmitError> {
        check(&self.consumer, message_id)?;
        let consumer = &*self.consumer;
        let rows = tx
            .query_typed(
                &self.admit,
                &[
                    (&consumer, Type::TEXT),
                    (&message_id, Type::TEXT),
                    (&origin.topic, Type::TEXT),
                    (&origin.partition, Type::INT4),
                    (&origin.position, Type::INT8),
                ],
            )
            .await?;
        Ok(if rows.is_empty() { Admission::Duplicate } else { Admission::First })
    }

    /// Removes marks that are older than `retention`, at most `chunk` of them, and answers how many. Call it
    /// again while it answers with a full chunk. See [`posthaste::inbox`] for how long marks must be kept.
    pub async fn purge(
        &self,
        client: &Client,
        retention: Duration,
        chunk: u32,
    ) -> Result<u64, tokio_postgres::Error> {
        let (consumer, seconds, chunk) = (&*self.consumer, retention.as_secs_f64(), i64::from(chunk));
        let statement = client.prepare_typed(&self.purge, &[Type::TEXT, Type::FLOAT8, Type::INT8]).await?;
        client.execute(&statement, &[&consumer, &seconds, &chunk]).await
    }
}

/// Marks a message in the inbox in the schema `posthaste`. See [`Inbox::admit`].
///
/// ```no_run
/// # async fn handle(client: &mut tokio_postgres::Client, delivery: &posthaste::source::Delivery)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = client.transaction().await?;
/// let id = delivery.identity().ok_or("a message without an identity")?;
/// if posthaste_postgres::admit(&mut tx, "billing", &id).await?.is_first() {
///     tx.execute("insert into invoices (order_id) values ($1)", &[&42i64]).await?;
/// }
/// tx.commit().await?; // the invoice and the mark, or neither; now acknowledge
/// # Ok(()) }
/// ```
///
/// A connection is no transaction, and neither is a pool: the mark would be durable although the handler
/// failed. The mistake does not compile:
///
/// ```compile_fail,E0308
/// # async fn handle(client: &mut tokio_postgres::Client) {
/// let _ = posthaste_postgres::admit(client, "billing", "id").await;
/// # }
/// ```
pub async fn admit(
    tx: &mut Transaction<'_>,
    consumer: &str,
    message_id: &str,
) -> Result<Admission, AdmitError> {
    Inbox::new(consumer).admit(tx, message_id, Origin::default()).await
}
