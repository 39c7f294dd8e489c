//! Append with diesel-async 0.9: `posthaste_postgres::diesel_async::append(conn, &event)` inside
//! `conn.transaction(…)`.
//!
//! The same as [`diesel`](super::diesel), whose statements and errors it shares: the transaction is the
//! connection itself, so the adapter asks whether one is open.

use super::diesel::{Appended, many, one};
use super::{DEFAULT, Outbox, pieces};
use diesel::pg::Pg;
use diesel::sql_types::Text;
use diesel_async::{AsyncConnection, RunQueryDsl, TransactionManager};
use posthaste::Event;
use uuid::Uuid;

pub use super::diesel::AppendError;
pub use crate::inbox::diesel::AdmitError;
pub use crate::inbox::diesel_async::admit;

impl Outbox {
    /// Appends an event in the transaction that is open on this connection. It exists if and only if that
    /// transaction commits (G1). Answers with its id: with an idempotency key that was used before, the first
    /// event's.
    pub async fn append_diesel_async<C>(&self, conn: &mut C, event: &Event) -> Result<Uuid, AppendError>
    where
        C: AsyncConnection<Backend = Pg>,
    {
        in_transaction(conn)?;
        self.limits.check(event)?;
        let Some(key) = &event.idempotency_key else {
            one(&self.insert, event).execute(conn).await?;
            return Ok(event.id);
        };
        let appended: Appended = one(&self.idempotent, event).bind::<Text, _>(key).get_result(conn).await?;
        Ok(appended.id)
    }

    /// Appends many events in one statement, in order. Events with an idempotency key go one by one.
    pub async fn append_all_diesel_async<C>(
        &self,
        conn: &mut C,
        events: &[Event],
    ) -> Result<Vec<Uuid>, AppendError>
    where
        C: AsyncConnection<Backend = Pg>,
    {
        in_transaction(conn)?;
        self.check_all(events)?;
        let mut ids = Vec::with_capacity(events.len());
        for piece in pieces(events) {
            match piece {
                [event] => ids.push(self.append_diesel_async(conn, event).await?),
                events => {
                    many(&self.insert_many, events).execute(conn).await?;
                    ids.extend(events.iter().map(|event| event.id));
                }
            }
        }
        Ok(ids)
    }
}

fn in_transaction<C: AsyncConnection>(conn: &mut C) -> Result<(), AppendError> {
    if is_in_transaction(conn)? { Ok(()) } else { Err(AppendError::NoTransaction) }
}

/// Whether diesel has begun a transaction here.
pub(crate) fn is_in_transaction<C: AsyncConnection>(conn: &mut C) -> Result<bool, diesel::result::Error> {
    let depth = C::TransactionManager::transaction_manager_status_mut(conn).transaction_depth()?;
    Ok(depth.is_some())
}

/// Appends an event to the outbox in the schema `posthaste`. See [`Outbox::append_diesel_async`].
///
/// ```no_run
/// # use diesel::result::Error;
/// # use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
/// # async fn place(conn: &mut AsyncPgConnection) -> Result<(), Error> {
/// conn.transaction(async |conn| {
///     diesel::sql_query("insert into orders (id) values (42)").execute(conn).await?;
///     let event = posthaste::Event::new("orders.placed", r#"{"order":42}"#).with_key("42");
///     posthaste_postgres::diesel_async::append(conn, &event).await?;
///     Ok::<_, Error>(()) // the order and its event, or neither
/// })
/// .await
/// # }
/// ```
pub async fn append<C>(conn: &mut C, event: &Event) -> Result<Uuid, AppendError>
where
    C: AsyncConnection<Backend = Pg>,
{
    DEFAULT.append_diesel_async(conn, event).await
}

/// Appends many events to the outbox in the schema `posthaste`. See [`Outbox::append_all_diesel_async`].
pub async fn append_all<C>(conn: &mut C, events: &[Event]) -> Result<Vec<Uuid>, AppendError>
where
    C: AsyncConnection<Backend = Pg>,
{
    DEFAULT.append_all_diesel_async(conn, events).await
}
