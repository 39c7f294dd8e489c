//! Append: an event into the outbox, inside the transaction the caller already has.
//!
//! These functions take a [`tokio_postgres::Transaction`] and nothing else: a pool or a bare connection
//! is no transaction, and passing one does not compile. They never begin, commit or spawn.

use posthaste::{Event, EventError, Limits};
use std::sync::Arc;
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

/// The outbox of a service: which schema, which limits. Make one at start and keep it.
#[derive(Debug, Clone)]
pub struct Outbox {
    insert: Arc<str>,
    insert_many: Arc<str>,
    idempotent: Arc<str>,
    limits: Limits,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new("posthaste")
    }
}

impl Outbox {
    /// The outbox in this schema, with default limits.
    #[must_use]
    pub fn new(schema: &str) -> Self {
        let schema = format!("\"{}\"", schema.replace('"', "\"\""));
        Self {
            insert: format!(
                "insert into {schema}.outbox (id, topic, key, headers, content_type, payload, deliver_at)
                 values ($1, $2, $3, $4::text::jsonb, $5, $6, to_timestamp($7::float8 / 1e6))"
            )
            .into(),
            insert_many: format!(
                "insert into {schema}.outbox (id, topic, key, headers, content_type, payload, deliver_at)
                 select id, topic, key, headers::jsonb, content_type, payload, to_timestamp(deliver_at::float8 / 1e6)
                   from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bigint[])
                        with ordinality as e (id, topic, key, headers, content_type, payload, deliver_at, place)
                  order by place"
            )
            .into(),
            idempotent: format!(
                "select {schema}.append($2, $6::bytea, $3, $4::text::jsonb, $1, $8, to_timestamp($7::float8 / 1e6), $5)"
            )
            .into(),
            limits: Limits::default(),
        }
    }

    /// Other limits than the default ones. The relay checks its own again.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Appends an event in the caller's transaction. It exists if and only if that transaction commits
    /// (G1). Answers with its id: with an idempotency key that was used before, the first event's.
    pub async fn append(&self, tx: &mut Transaction<'_>, event: &Event) -> Result<Uuid, AppendError> {
        self.limits.check(event)?;
        let headers = event.headers.to_json();
        let payload = event.payload.as_deref();
        let deliver_at = event.deliver_at.map(|at| at.0 as f64);
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
        for event in events {
            self.limits.check(event)?;
        }
        let mut ids = Vec::with_capacity(events.len());
        for run in events.chunk_by(|a, b| a.idempotency_key.is_none() == b.idempotency_key.is_none()) {
            if run[0].idempotency_key.is_some() {
                for event in run {
                    ids.push(self.append(tx, event).await?);
                }
                continue;
            }
            // A statement holds at most this many: its parameters are built in memory.
            for chunk in run.chunks(1_000) {
                self.insert_many(tx, chunk).await?;
                ids.extend(chunk.iter().map(|event| event.id));
            }
        }
        Ok(ids)
    }

    async fn insert_many(
        &self,
        tx: &mut Transaction<'_>,
        events: &[Event],
    ) -> Result<(), tokio_postgres::Error> {
        let headers: Vec<Option<String>> = events.iter().map(|event| event.headers.to_json()).collect();
        let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
        let topics: Vec<&str> = events.iter().map(|event| event.topic.as_str()).collect();
        let keys: Vec<Option<&str>> = events.iter().map(|event| event.key.as_deref()).collect();
        let types: Vec<Option<&str>> = events.iter().map(|event| event.content_type.as_deref()).collect();
        let payloads: Vec<Option<&[u8]>> = events.iter().map(|event| event.payload.as_deref()).collect();
        let times: Vec<Option<i64>> = events.iter().map(|event| event.deliver_at.map(|at| at.0)).collect();
        tx.query_typed(
            &self.insert_many,
            &[
                (&ids, Type::UUID_ARRAY),
                (&topics, Type::TEXT_ARRAY),
                (&keys, Type::TEXT_ARRAY),
                (&headers, Type::TEXT_ARRAY),
                (&types, Type::TEXT_ARRAY),
                (&payloads, Type::BYTEA_ARRAY),
                (&times, Type::INT8_ARRAY),
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
/// tx.execute("insert into orders (id) values ($1)", &[&42i64]).await?;
/// let event = posthaste::Event::new("orders.placed", r#"{"order":42}"#).with_key("42");
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

static DEFAULT: std::sync::LazyLock<Outbox> = std::sync::LazyLock::new(Outbox::default);
