//! Append with tokio-postgres. The statements' types are declared, so that nothing is prepared first: one round
//! trip, and a pooler that hands out connections by transaction is no trouble.

use super::{Columns, DEFAULT, Outbox, micros, pieces};
use posthaste::{Event, EventError};
use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};
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
        let headers = event.headers.to_json();
        let payload = event.payload.as_deref();
        let deliver_at = micros(event);
        let params: [(&(dyn ToSql + Sync), Type); 7] = [
            (&event.id, Type::UUID),
            (&event.topic, Type::TEXT),
            (&event.key, Type::TEXT),
            (&headers, Type::TEXT),
            (&event.content_type, Type::TEXT),
            (&payload, Type::BYTEA),
            (&deliver_at, Type::FLOAT8),
        ];
        let Some(key) = &event.idempotency_key else {
            tx.query_typed(&self.insert, &params).await?;
            return Ok(event.id);
        };
        let mut params = params.to_vec();
        params.push((key, Type::TEXT));
        let rows = tx.query_typed(&self.idempotent, &params).await?;
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
                many => {
                    let columns = Columns::of(many);
                    self.insert_many(tx, &columns).await?;
                    ids.extend(columns.ids);
                }
            }
        }
        Ok(ids)
    }

    async fn insert_many(&self, tx: &mut Transaction<'_>, columns: &Columns<'_>) -> Result<(), AppendError> {
        tx.query_typed(
            &self.insert_many,
            &[
                (&columns.ids, Type::UUID_ARRAY),
                (&columns.topics, Type::TEXT_ARRAY),
                (&columns.keys, Type::TEXT_ARRAY),
                (&columns.headers, Type::TEXT_ARRAY),
                (&columns.content_types, Type::TEXT_ARRAY),
                (&columns.payloads, Type::BYTEA_ARRAY),
                (&columns.times, Type::INT8_ARRAY),
            ],
        )
        .await?;
        Ok(())
    }
}

/// Appends an event to the outbox in the schema `posthaste`. See [`Outbox::append`].
///
/// ```no_run
/// # async fn place(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = client.transaction().await?;
/// let insert = "insert into orders (total) values ($1) returning id";
/// let order: i64 = tx.query_one(insert, &[&4200]).await?.get(0);
/// let event = posthaste::Event::json("orders.placed", &serde_json::json!({ "order": order }))?.with_key(order);
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
