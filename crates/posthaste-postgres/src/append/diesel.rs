//! Append with diesel 2.3: `posthaste_postgres::diesel::append(conn, &event)` inside `conn.transaction(…)`.
//!
//! Diesel's transaction is the connection itself, so the types cannot tell one from the other. The adapter
//! asks diesel whether it has begun a transaction, and refuses with [`AppendError::NoTransaction`] if not:
//! the event would be committed at once, whatever becomes of the data it tells of (F8). A transaction that
//! was begun behind diesel's back, with `BEGIN` as SQL, is refused too: diesel does not know of it.
//!
//! It works on every connection whose backend is PostgreSQL, also on one from an r2d2 pool, and does not link
//! libpq by itself.

use super::{DEFAULT, Outbox, column, pieces};
use crate::columns::{Value, WRITTEN};
use diesel::connection::{Connection, LoadConnection, TransactionManager};
use diesel::pg::Pg;
use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::sql_types::{Array, BigInt, Binary, Nullable, Text, Uuid as SqlUuid};
use diesel::{QueryableByName, RunQueryDsl, sql_query};
use posthaste::{Event, EventError};
use uuid::Uuid;

pub use crate::inbox::diesel::{AdmitError, admit};

/// Why an append failed. In each case nothing was appended; after a database error the caller's
/// transaction is aborted, as after any failed statement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The event is not acceptable. Nothing was sent to the database; the transaction is still usable.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The connection has no open transaction. Nothing was sent to the database.
    #[error(
        "the connection has no open transaction, so the event would not share the fate of your data; \
         append inside conn.transaction(|conn| …)"
    )]
    NoTransaction,
    /// The database refused.
    #[error("the event could not be appended")]
    Database(#[from] diesel::result::Error),
}

/// So that `?` works in a transaction whose error is diesel's own.
impl From<AppendError> for diesel::result::Error {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Database(error) => error,
            other => Self::QueryBuilderError(Box::new(other)),
        }
    }
}

/// The answer of `posthaste.append`.
#[derive(QueryableByName)]
#[diesel(check_for_backend(Pg))]
pub(super) struct Appended {
    #[diesel(sql_type = SqlUuid)]
    pub(super) id: Uuid,
}

impl Outbox {
    /// Appends an event in the transaction that is open on this connection. It exists if and only if that
    /// transaction commits (G1). Answers with its id: with an idempotency key that was used before, the first
    /// event's.
    pub fn append_diesel<C>(&self, conn: &mut C, event: &Event) -> Result<Uuid, AppendError>
    where
        C: LoadConnection<Backend = Pg>,
    {
        in_transaction(conn)?;
        self.limits.check(event)?;
        let Some(key) = &event.idempotency_key else {
            one(&self.insert, event).execute(conn)?;
            return Ok(event.id);
        };
        let appended: Appended = one(&self.idempotent, event).bind::<Text, _>(key).get_result(conn)?;
        Ok(appended.id)
    }

    /// Appends many events in one statement, in order. Events with an idempotency key go one by one.
    pub fn append_all_diesel<C>(&self, conn: &mut C, events: &[Event]) -> Result<Vec<Uuid>, AppendError>
    where
        C: LoadConnection<Backend = Pg>,
    {
        in_transaction(conn)?;
        self.check_all(events)?;
        let mut ids = Vec::with_capacity(events.len());
        for piece in pieces(events) {
            match piece {
                [event] => ids.push(self.append_diesel(conn, event)?),
                events => {
                    many(&self.insert_many, events).execute(conn)?;
                    ids.extend(events.iter().map(|event| event.id));
                }
            }
        }
        Ok(ids)
    }
}

fn in_transaction<C: Connection>(conn: &mut C) -> Result<(), AppendError> {
    if is_in_transaction(conn)? { Ok(()) } else { Err(AppendError::NoTransaction) }
}

/// Whether diesel has begun a transaction here.
pub(crate) fn is_in_transaction<C: Connection>(conn: &mut C) -> Result<bool, diesel::result::Error> {
    let depth = C::TransactionManager::transaction_manager_status_mut(conn).transaction_depth()?;
    Ok(depth.is_some())
}

pub(crate) type Prepared<'q> = BoxedSqlQuery<'q, Pg, SqlQuery>;

pub(super) fn one<'q>(sql: &str, event: &'q Event) -> Prepared<'q> {
    WRITTEN.into_iter().fold(sql_query(sql).into_boxed(), |query, (_, value)| match value {
        Value::Uuid(of) => query.bind::<SqlUuid, _>(of(event)),
        Value::Text(of) => query.bind::<Nullable<Text>, _>(of(event)),
        Value::Json(of) => query.bind::<Nullable<Text>, _>(of(event)),
        Value::Bytes(of) => query.bind::<Nullable<Binary>, _>(of(event)),
        Value::Time(of) => query.bind::<Nullable<BigInt>, _>(of(event)),
    })
}

pub(super) fn many<'q>(sql: &str, events: &'q [Event]) -> Prepared<'q> {
    WRITTEN.into_iter().fold(sql_query(sql).into_boxed(), |query, (_, value)| match value {
        Value::Uuid(of) => query.bind::<Array<SqlUuid>, _>(column(events, of)),
        Value::Text(of) => query.bind::<Array<Nullable<Text>>, _>(column(events, of)),
        Value::Json(of) => query.bind::<Array<Nullable<Text>>, _>(column(events, of)),
        Value::Bytes(of) => query.bind::<Array<Nullable<Binary>>, _>(column(events, of)),
        Value::Time(of) => query.bind::<Array<Nullable<BigInt>>, _>(column(events, of)),
    })
}

/// Appends an event to the outbox in the schema `posthaste`. See [`Outbox::append_diesel`].
///
/// ```no_run
/// # use diesel::{connection::LoadConnection, pg::Pg, prelude::*};
/// # fn place<C: LoadConnection<Backend = Pg>>(conn: &mut C) -> QueryResult<()> {
/// conn.transaction(|conn| {
///     diesel::sql_query("insert into orders (id) values (42)").execute(conn)?;
///     let event = posthaste::Event::new("orders.placed", r#"{"order":42}"#).with_key("42");
///     posthaste_postgres::diesel::append(conn, &event)?;
///     Ok(()) // the order and its event, or neither
/// })
/// # }
/// ```
pub fn append<C>(conn: &mut C, event: &Event) -> Result<Uuid, AppendError>
where
    C: LoadConnection<Backend = Pg>,
{
    DEFAULT.append_diesel(conn, event)
}

/// Appends many events to the outbox in the schema `posthaste`. See [`Outbox::append_all_diesel`].
pub fn append_all<C>(conn: &mut C, events: &[Event]) -> Result<Vec<Uuid>, AppendError>
where
    C: LoadConnection<Backend = Pg>,
{
    DEFAULT.append_all_diesel(conn, events)
}
