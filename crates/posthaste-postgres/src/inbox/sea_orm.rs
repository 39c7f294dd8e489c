//! Admit with SeaORM 2: `posthaste_postgres::sea_orm::admit(&tx, "billing", &id)`.

use super::{Inbox, is_in_the_way};
use posthaste::inbox::{Admission, Origin, Unfit, check};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, RuntimeErr, Statement, Value};

/// Why a message was not admitted, by what the consumer does next. Nothing was marked in any case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// The message cannot be marked at all. Nothing was sent to the database; the transaction is still
    /// usable.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The transaction is one of another database. Nothing was sent to it.
    #[error("the transaction belongs to {0:?}; this inbox lives in PostgreSQL")]
    NotPostgres(DbBackend),
    /// Another transaction was in the way: a serialization failure or a deadlock. Roll back and handle the
    /// message again. It is nobody's fault and spends no attempt.
    #[error("another transaction was in the way; the handler's transaction must be run again")]
    Conflict(#[source] DbErr),
    /// The database failed. The transaction is aborted, as after any failed statement.
    #[error("the message could not be marked in the inbox")]
    Database(#[source] DbErr),
}

impl From<DbErr> for AdmitError {
    fn from(error: DbErr) -> Self {
        let code = match &error {
            DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error)) => {
                error.as_database_error().and_then(|error| error.code())
            }
            _ => None,
        };
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
    pub async fn admit_sea_orm(
        &self,
        tx: &DatabaseTransaction,
        message_id: &str,
        origin: Origin<'_>,
    ) -> Result<Admission, AdmitError> {
        if tx.get_database_backend() != DbBackend::Postgres {
            return Err(AdmitError::NotPostgres(tx.get_database_backend()));
        }
        check(&self.consumer, message_id)?;
        let values: [Value; 5] = [
            (&*self.consumer).into(),
            message_id.into(),
            origin.topic.into(),
            origin.partition.into(),
            origin.position.into(),
        ];
        let mark = Statement::from_sql_and_values(DbBackend::Postgres, &*self.admit, values);
        let marked = tx.query_one_raw(mark).await?;
        Ok(if marked.is_some() { Admission::First } else { Admission::Duplicate })
    }
}

/// Marks a message in the inbox in the schema `posthaste`. See [`Inbox::admit_sea_orm`].
///
/// ```no_run
/// # use sea_orm::{ConnectionTrait, TransactionTrait};
/// # async fn handle(db: &sea_orm::DatabaseConnection, id: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let tx = db.begin().await?;
/// if posthaste_postgres::sea_orm::admit(&tx, "billing", id).await?.is_first() {
///     tx.execute_unprepared("insert into invoices (order_id) values (42)").await?;
/// }
/// tx.commit().await?; // the invoice and the mark, or neither; now acknowledge
/// # Ok(()) }
/// ```
///
/// A `DatabaseConnection` is a pool and no transaction. The mistake does not compile (F8):
///
/// ```compile_fail,E0308
/// # async fn handle(db: &sea_orm::DatabaseConnection) {
/// let _ = posthaste_postgres::sea_orm::admit(db, "billing", "id").await;
/// # }
/// ```
pub async fn admit(
    tx: &DatabaseTransaction,
    consumer: &str,
    message_id: &str,
) -> Result<Admission, AdmitError> {
    Inbox::new(consumer).admit_sea_orm(tx, message_id, Origin::default()).await
}
