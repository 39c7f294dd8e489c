//! Append with SeaORM 2: `posthaste_postgres::sea_orm::append(&tx, &event)`.
//!
//! It takes a [`DatabaseTransaction`], not any `ConnectionTrait`: that may be a pool, and then the event would
//! be in another transaction than the data it tells of (F8). Which database is behind it, SeaORM's types do not
//! tell; the adapter looks and refuses another one than PostgreSQL.
//!
//! SeaORM cannot bind an array with a null in it (it panics). So the batch has a statement of its own, in which
//! a value that no event can have stands for null.

use super::{DEFAULT, Outbox, micros, pieces};
use posthaste::{Event, EventError};
use sea_orm::sea_query::ArrayType;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, Statement, Value};
use uuid::Uuid;

/// Why an append failed. In each case nothing was appended; after a database error the caller's
/// transaction is aborted, as after any failed statement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The event is not acceptable. Nothing was sent to the database; the transaction is still usable.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The transaction is one of another database. Nothing was sent to it.
    #[error("the transaction belongs to {0:?}; this outbox lives in PostgreSQL")]
    NotPostgres(DbBackend),
    /// The database refused.
    #[error("the event could not be appended")]
    Database(#[from] DbErr),
}

/// No event is due then: PostgreSQL's times end long before.
const NEVER: i64 = i64::MIN;

impl Outbox {
    /// Appends an event in the caller's transaction. It exists if and only if that transaction commits
    /// (G1). Answers with its id: with an idempotency key that was used before, the first event's.
    pub async fn append_sea_orm(&self, tx: &DatabaseTransaction, event: &Event) -> Result<Uuid, AppendError> {
        in_postgres(tx)?;
        self.limits.check(event)?;
        let mut values = one(event);
        let Some(key) = &event.idempotency_key else {
            tx.execute_raw(statement(&self.insert, values)).await?;
            return Ok(event.id);
        };
        values.push(key.as_str().into());
        let row = tx.query_one_raw(statement(&self.idempotent, values)).await?;
        row.map_or(Ok(event.id), |row| row.try_get_by_index(0)).map_err(AppendError::Database)
    }

    /// Appends many events in one statement, in order. Events with an idempotency key go one by one.
    pub async fn append_all_sea_orm(
        &self,
        tx: &DatabaseTransaction,
        events: &[Event],
    ) -> Result<Vec<Uuid>, AppendError> {
        in_postgres(tx)?;
        self.check_all(events)?;
        let mut ids = Vec::with_capacity(events.len());
        for piece in pieces(events) {
            match piece {
                [event] => ids.push(self.append_sea_orm(tx, event).await?),
                events => {
                    tx.execute_raw(statement(&self.insert_dense, many(events))).await?;
                    ids.extend(events.iter().map(|event| event.id));
                }
            }
        }
        Ok(ids)
    }

    /// The batch without nulls. Keys, headers and content types of an event are never empty, so an empty text
    /// can stand for none.
    pub(super) fn insert_dense(schema: &str) -> String {
        format!(
            "insert into {schema}.outbox (id, topic, key, headers, content_type, payload, deliver_at)
             select id, topic, nullif(key, ''), nullif(headers, '')::jsonb, nullif(content_type, ''),
                    case when not tombstone then payload end, to_timestamp(nullif(deliver_at, {NEVER})::float8 / 1e6)
               from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bool[], $8::bigint[])
                    with ordinality as e (id, topic, key, headers, content_type, payload, tombstone, deliver_at, place)
              order by place"
        )
    }
}

fn in_postgres(tx: &DatabaseTransaction) -> Result<(), AppendError> {
    match tx.get_database_backend() {
        DbBackend::Postgres => Ok(()),
        other => Err(AppendError::NotPostgres(other)),
    }
}

fn statement(sql: &str, values: Vec<Value>) -> Statement {
    Statement::from_sql_and_values(DbBackend::Postgres, sql, values)
}

fn one(event: &Event) -> Vec<Value> {
    vec![
        event.id.into(),
        event.topic.as_str().into(),
        event.key.clone().into(),
        event.headers.to_json().into(),
        event.content_type.clone().into(),
        event.payload.as_ref().map(|bytes| bytes.to_vec()).into(),
        micros(event).into(),
    ]
}

fn many(events: &[Event]) -> Vec<Value> {
    let column = |kind, value: fn(&Event) -> Value| {
        Value::Array(kind, Some(Box::new(events.iter().map(value).collect())))
    };
    vec![
        column(ArrayType::Uuid, |event| event.id.into()),
        column(ArrayType::String, |event| event.topic.as_str().into()),
        column(ArrayType::String, |event| event.key.as_deref().unwrap_or_default().into()),
        column(ArrayType::String, |event| event.headers.to_json().unwrap_or_default().into()),
        column(ArrayType::String, |event| event.content_type.as_deref().unwrap_or_default().into()),
        column(ArrayType::Bytes, |event| event.payload.as_deref().unwrap_or_default().into()),
        column(ArrayType::Bool, |event| event.payload.is_none().into()),
        column(ArrayType::BigInt, |event| event.deliver_at.map_or(NEVER, |at| at.0).into()),
    ]
}

/// Appends an event to the outbox in the schema `posthaste`. See [`Outbox::append_sea_orm`].
///
/// ```no_run
/// # use sea_orm::{ConnectionTrait, TransactionTrait};
/// # async fn place(db: &sea_orm::DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
/// let tx = db.begin().await?;
/// tx.execute_unprepared("insert into orders (id) values (42)").await?;
/// let event = posthaste::Event::new("orders.placed", r#"{"order":42}"#).with_key("42");
/// posthaste_postgres::sea_orm::append(&tx, &event).await?;
/// tx.commit().await?; // the order and its event, or neither
/// # Ok(()) }
/// ```
///
/// A `DatabaseConnection` is a pool and no transaction. The mistake does not compile (F8):
///
/// ```compile_fail,E0308
/// # async fn place(db: &sea_orm::DatabaseConnection, event: &posthaste::Event) {
/// let _ = posthaste_postgres::sea_orm::append(db, event).await;
/// # }
/// ```
pub async fn append(tx: &DatabaseTransaction, event: &Event) -> Result<Uuid, AppendError> {
    DEFAULT.append_sea_orm(tx, event).await
}

/// Appends many events to the outbox in the schema `posthaste`. See [`Outbox::append_all_sea_orm`].
pub async fn append_all(tx: &DatabaseTransaction, events: &[Event]) -> Result<Vec<Uuid>, AppendError> {
    DEFAULT.append_all_sea_orm(tx, events).await
}
