//! Append with SeaORM 2: `posthaste_postgres::sea_orm::append(&tx, &event)`.
//!
//! It takes a [`DatabaseTransaction`], not any `ConnectionTrait`: that may be a pool, and then the event
//! would be in another transaction than the data it tells of (F8). Which database is behind it, SeaORM's
//! types do not tell; the adapter looks and refuses another one than PostgreSQL.
//!
//! SeaORM cannot bind an array with a null in it (it panics). So the batch has a statement of its own, in
//! which a value that no event can have stands for null.

use super::{DEFAULT, Outbox, pieces};
use crate::columns::{self, Value as Column, WRITTEN};
use posthaste::{Event, EventError};
use sea_orm::sea_query::ArrayType;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, Statement, Value};
use uuid::Uuid;

pub use crate::inbox::sea_orm::{AdmitError, admit};

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

    /// The batch without nulls. Texts of an event are never empty, so an empty one can stand for none. Bytes
    /// may be: whether there are any is sent beside them.
    pub(super) fn insert_dense(schema: &str) -> String {
        let (mut sent, mut stored, mut arrays) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in WRITTEN {
            sent.push(name.to_owned());
            arrays.push(format!("${}::{}[]", sent.len(), value.sent_as()));
            stored.push(match value {
                Column::Uuid(_) => name.to_owned(),
                Column::Text(_) | Column::Json(_) => value.stored(&format!("nullif({name}, '')")),
                Column::Time(_) => value.stored(&format!("nullif({name}, {NEVER})")),
                Column::Bytes(_) => {
                    sent.push(format!("no_{name}"));
                    arrays.push(format!("${}::bool[]", sent.len()));
                    format!("case when not no_{name} then {name} end")
                }
            });
        }
        format!(
            "insert into {schema}.outbox ({})
             select {} from unnest({}) with ordinality as e ({}, place) order by place",
            columns::names(),
            stored.join(", "),
            arrays.join(", "),
            sent.join(", "),
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
    let value = |(_, column)| match column {
        Column::Uuid(of) => of(event).into(),
        Column::Text(of) => of(event).into(),
        Column::Json(of) => of(event).into(),
        Column::Bytes(of) => of(event).map(<[u8]>::to_vec).into(),
        Column::Time(of) => of(event).into(),
    };
    WRITTEN.into_iter().map(value).collect()
}

fn many(events: &[Event]) -> Vec<Value> {
    fn array(kind: ArrayType, events: &[Event], value: impl Fn(&Event) -> Value) -> Value {
        Value::Array(kind, Some(Box::new(events.iter().map(value).collect())))
    }
    let mut values = Vec::new();
    for (_, column) in WRITTEN {
        values.push(match column {
            Column::Uuid(of) => array(ArrayType::Uuid, events, |event| of(event).into()),
            Column::Text(of) => {
                array(ArrayType::String, events, |event| of(event).unwrap_or_default().into())
            }
            Column::Json(of) => {
                array(ArrayType::String, events, |event| of(event).unwrap_or_default().into())
            }
            Column::Bytes(of) => {
                array(ArrayType::Bytes, events, |event| of(event).unwrap_or_default().into())
            }
            Column::Time(of) => array(ArrayType::BigInt, events, |event| of(event).unwrap_or(NEVER).into()),
        });
        if let Column::Bytes(of) = column {
            values.push(array(ArrayType::Bool, events, |event| of(event).is_none().into()));
        }
    }
    values
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
