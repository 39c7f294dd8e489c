//! Append with tokio-postgres. The statements' types are declared, so that nothing is prepared first: one
//! round trip, and a pooler that hands out connections by transaction is no trouble.

use super::{DEFAULT, Outbox, column, pieces};
use crate::columns::{Value, WRITTEN};
use posthaste::{Event, EventError};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

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
    Database(#[from] tokio_postgres::Error),
}

impl Outbox {
    /// Appends an event in the caller's transaction. It exists if and only if that transaction commits
    /// (G1). Answers with its id: with an idempotency key that was used before, the first event's.
    pub async fn append(&self, tx: &mut Transaction<'_>, event: &Event) -> Result<Uuid, AppendError> {
        self.limits.check(event)?;
        let mut params = one(event);
        let Some(key) = &event.idempotency_key else {
            query(tx, &self.insert, &params).await?;
            return Ok(event.id);
        };
        params.push((Box::new(key), Type::TEXT));
        let rows = query(tx, &self.idempotent, &params).await?;
        Ok(rows.first().map_or(event.id, |row| row.get(0)))
    }

    /// Appends many events in one statement, in order. Events with an idempotency key go one by one.
    pub async fn append_all(
        &self,
        tx: &mut Transaction<'_>,
        events: &[Event],
    ) -> Result<Vec<Uuid>, AppendError> {
        self.check_all(events)?;
        let mut ids = Vec::with_capacity(events.len());
        for piece in pieces(events) {
            match piece {
                [event] => ids.push(self.append(tx, event).await?),
                events => {
                    query(tx, &self.insert_many, &many(events)).await?;
                    ids.extend(events.iter().map(|event| event.id));
                }
            }
        }
        Ok(ids)
    }
}

type Params<'a> = Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>;

fn one(event: &Event) -> Params<'_> {
    let param = |(_, value)| -> (Box<dyn ToSql + Sync + Send + '_>, Type) {
        match value {
            Value::Uuid(of) => (Box::new(of(event)), Type::UUID),
            Value::Text(of) => (Box::new(of(event)), Type::TEXT),
            Value::Json(of) => (Box::new(of(event)), Type::TEXT),
            Value::Bytes(of) => (Box::new(of(event)), Type::BYTEA),
            Value::Time(of) => (Box::new(of(event)), Type::INT8),
        }
    };
    WRITTEN.into_iter().map(param).collect()
}

fn many(events: &[Event]) -> Params<'_> {
    let param = |(_, value)| -> (Box<dyn ToSql + Sync + Send + '_>, Type) {
        match value {
            Value::Uuid(of) => (Box::new(column(events, of)), Type::UUID_ARRAY),
            Value::Text(of) => (Box::new(column(events, of)), Type::TEXT_ARRAY),
            Value::Json(of) => (Box::new(column(events, of)), Type::TEXT_ARRAY),
            Value::Bytes(of) => (Box::new(column(events, of)), Type::BYTEA_ARRAY),
            Value::Time(of) => (Box::new(column(events, of)), Type::INT8_ARRAY),
        }
    };
    WRITTEN.into_iter().map(param).collect()
}

async fn query(
    tx: &mut Transaction<'_>,
    sql: &str,
    params: &Params<'_>,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let params: Vec<(&(dyn ToSql + Sync), Type)> =
        params.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect();
    tx.query_typed(sql, &params).await
}

/// Appends an event to the outbox in the schema `posthaste`. See [`Outbox::append`].
///
/// ```no_run
/// # async fn place(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = client.transaction().await?;
/// let insert = "insert into orders (total) values ($1) returning id";
/// let order: i64 = tx.query_one(insert, &[&4200]).await?.get(0);
/// let payload = serde_json::json!({ "order": order });
/// let event = posthaste::Event::json("orders.placed", &payload)?.with_key(order);
/// posthaste_postgres::append(&mut tx, &event).await?;
/// tx.commit().await?; // the order and its event, or neither
/// # Ok(()) }
/// ```
///
/// A connection is no transaction, and neither is a pool. The mistake does not compile (F8):
///
/// ```compile_fail,E0308
/// # async fn place(client: &mut tokio_postgres::Client, event: &posthaste::Event) {
/// let _ = posthaste_postgres::append(client, event).await;
/// # }
/// ```
pub async fn append(tx: &mut Transaction<'_>, event: &Event) -> Result<Uuid, AppendError> {
    DEFAULT.append(tx, event).await
}

/// Appends many events to the outbox in the schema `posthaste`. See [`Outbox::append_all`].
pub async fn append_all(tx: &mut Transaction<'_>, events: &[Event]) -> Result<Vec<Uuid>, AppendError> {
    DEFAULT.append_all(tx, events).await
}
