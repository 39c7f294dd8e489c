//! Admit with diesel-async 0.9: `posthaste_postgres::diesel_async::admit(conn, "billing", &id)` inside
//! `conn.transaction(…)`.
//!
//! The same as for diesel, whose statement and errors it shares.

use super::Inbox;
use super::diesel::{AdmitError, admission, mark};
use crate::append::diesel_async::is_in_transaction;
use diesel::pg::Pg;
use diesel_async::{AsyncConnection, RunQueryDsl};
use posthaste::inbox::{Admission, Origin, check};

impl Inbox {
    /// Marks a message as done by the transaction that is open on this connection, or finds that it is done.
    /// Call it first, and run the handler only for [`Admission::First`]. Waits for another transaction that
    /// has the same message in hand.
    pub async fn admit_diesel_async<C>(
        &self,
        conn: &mut C,
        message_id: &str,
        origin: Origin<'_>,
    ) -> Result<Admission, AdmitError>
    where
        C: AsyncConnection<Backend = Pg>,
    {
        if !is_in_transaction(conn)? {
            return Err(AdmitError::NoTransaction);
        }
        check(&self.consumer, message_id)?;
        Ok(admission(mark(self, message_id, origin).execute(conn).await?))
    }
}

/// Marks a message in the inbox in the schema `posthaste`. See [`Inbox::admit_diesel_async`].
///
/// ```no_run
/// # use diesel::result::Error;
/// # use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
/// # async fn handle(conn: &mut AsyncPgConnection, id: &str) -> Result<(), Error> {
/// conn.transaction(async |conn| {
///     if posthaste_postgres::diesel_async::admit(conn, "billing", id).await?.is_first() {
///         diesel::sql_query("insert into invoices (order_id) values (42)").execute(conn).await?;
///     }
///     Ok(()) // the invoice and the mark, or neither; then acknowledge
/// })
/// .await
/// # }
/// ```
pub async fn admit<C>(conn: &mut C, consumer: &str, message_id: &str) -> Result<Admission, AdmitError>
where
    C: AsyncConnection<Backend = Pg>,
{
    Inbox::new(consumer).admit_diesel_async(conn, message_id, Origin::default()).await
}
