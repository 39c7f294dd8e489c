//! Append with sqlx 0.9: `posthaste_postgres::sqlx::append(&mut tx, &event)`.
//!
//! It takes a [`sqlx::Transaction`](::sqlx::Transaction) of PostgreSQL, not an executor: an executor may be a
//! pool, and then the event would be in another transaction than the data it tells of (F8).

use super::{DEFAULT, Outbox, column, pieces};
use crate::columns::{Value, WRITTEN};
use posthaste::{Event, EventError};
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row, Transaction};
use std::sync::Arc;
use uuid::Uuid;

#[cfg(feature = "store")]
pub use crate::handler::sqlx::{SqlxHandler, handler};
pub use crate::inbox::sqlx::{AdmitError, admit};

/// Why an append failed. In both cases nothing was appended; after a database error the caller's
/// transaction is aborted, as after any failed statement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The event is not acceptable. Nothing was sent to the database; the transaction is still usable.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The database refused.
    #[error("the event could not be appended")]
    Database(#[from] sqlx::Error),
}

impl Outbox {
    /// Appends an event in the caller's transaction. It exists if and only if that transaction commits
    /// (G1). Answers with its id: with an idempotency key that was used before, the first event's.
    pub async fn append_sqlx(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        event: &Event,
    ) -> Result<Uuid, AppendError> {
        self.limits.check(event)?;
        let Some(key) = &event.idempotency_key else {
            one(&self.insert, event).execute(&mut **tx).await?;
            return Ok(event.id);
        };
        let row = one(&self.idempotent, event).bind(key).fetch_one(&mut **tx).await?;
        Ok(row.try_get(0)?)
    }

    /// Appends many events in one statement, in order. Events with an idempotency key go one by one.
    pub async fn append_all_sqlx(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        events: &[Event],
    ) -> Result<Vec<Uuid>, AppendError> {
        self.check_all(events)?;
        let mut ids = Vec::with_capacity(events.len());
        for piece in pieces(events) {
            match piece {
                [event] => ids.push(self.append_sqlx(tx, event).await?),
                events => {
                    many(&self.insert_many, events).execute(&mut **tx).await?;
                    ids.extend(events.iter().map(|event| event.id));
                }
            }
        }
        Ok(ids)
    }
}

/// The statement's text is ours; what comes from outside is bound.
fn one<'q>(sql: &Arc<str>, event: &'q Event) -> Query<'q, Postgres, PgArguments> {
    let query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
    WRITTEN.into_iter().fold(query, |query, (_, value)| match value {
        Value::Uuid(of) => query.bind(of(event)),
        Value::Text(of) => query.bind(of(event)),
        Value::Json(of) => query.bind(of(event)),
        Value::Bytes(of) => query.bind(of(event)),
        Value::Time(of) => query.bind(of(event)),
    })
}

fn many<'q>(sql: &Arc<str>, events: &'q [Event]) -> Query<'q, Postgres, PgArguments> {
    let query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
    WRITTEN.into_iter().fold(query, |query, (_, value)| match value {
        Value::Uuid(of) => query.bind(column(events, of)),
        Value::Text(of) => query.bind(column(events, of)),
        Value::Json(of) => query.bind(column(events, of)),
        Value::Bytes(of) => query.bind(column(events, of)),
        Value::Time(of) => query.bind(column(events, of)),
    })
}

/// Appends an event to the outbox in the schema `posthaste`. See [`Outbox::append_sqlx`].
///
/// ```no_run
/// # async fn place(pool: &sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// sqlx::query("insert into orders (id) values ($1)").bind(42i64).execute(&mut *tx).await?;
/// let event = posthaste::Event::new("orders.placed", r#"{"order":42}"#).with_key("42");
/// posthaste_postgres::sqlx::append(&mut tx, &event).await?;
/// tx.commit().await?; // the order and its event, or neither
/// # Ok(()) }
/// ```
///
/// A pool is no transaction, and neither is a connection. The mistake does not compile (F8):
///
/// ```compile_fail,E0308
/// # async fn place(mut pool: sqlx::PgPool, event: &posthaste::Event) {
/// let _ = posthaste_postgres::sqlx::append(&mut pool, event).await;
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # async fn place(connection: &mut sqlx::PgConnection, event: &posthaste::Event) {
/// let _ = posthaste_postgres::sqlx::append(connection, event).await;
/// # }
/// ```
pub async fn append(tx: &mut Transaction<'_, Postgres>, event: &Event) -> Result<Uuid, AppendError> {
    DEFAULT.append_sqlx(tx, event).await
}

/// Appends many events to the outbox in the schema `posthaste`. See [`Outbox::append_all_sqlx`].
pub async fn append_all(
    tx: &mut Transaction<'_, Postgres>,
    events: &[Event],
) -> Result<Vec<Uuid>, AppendError> {
    DEFAULT.append_all_sqlx(tx, events).await
}
