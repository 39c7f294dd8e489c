//! A handler whose transaction is sqlx's.
//!
//! The consumer's own transaction lives in a connection of tokio_postgres, and sqlx cannot be lent that
//! one. So the handler has a second transaction, in the service's pool, with a mark of its own under a
//! second name: effects and that mark commit together, before the consumer's own mark does. A death in
//! between brings the message again, and the second mark says that its effects are there. So effects happen
//! once, and in the order of their keys, for the consumer begins nothing of a key before this handler has
//! committed what was before.
//!
//! What it costs: a connection of the pool beside the consumer's, a second mark, and a commit for each
//! message. The second mark is not swept with the consumer's: keep it for as long, and delete it as
//! `docs/inbox.md` says. What an operator has repeated on purpose finds it, too, and does nothing. The
//! database of the pool may be another one than that of the consumer, if it has the inbox.
//!
//! Refused: one mark of one name. The handler's insert would wait for the consumer's open transaction, and
//! that one for the handler. And a store of its own over sqlx: it would be the four transactions and their
//! proof a second time.

use super::Handler;
use crate::Inbox;
use crate::consumer::failure::{causes, is_conflict, is_outage};
use async_trait::async_trait;
use posthaste::consumer::{HandlerError, Message};
use posthaste::inbox::Origin;
use posthaste::inbox::failure::Wish;
use sqlx::{PgPool, Postgres, Transaction};
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// The pool's database, as a dependency that may be away.
const DEPENDENCY: &str = "sqlx";
/// Between two tries of a transaction that another one was in the way of; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a service does with messages, in a transaction of sqlx.
///
/// ```no_run
/// use posthaste::consumer::{HandlerError, Message};
/// use posthaste_postgres::sqlx::{SqlxHandler, append, handler};
/// use sqlx::{PgPool, Postgres, Transaction};
///
/// struct Book;
///
/// #[async_trait::async_trait]
/// impl SqlxHandler for Book {
///     async fn handle(
///         &self,
///         tx: &mut Transaction<'_, Postgres>,
///         message: &Message<'_>,
///     ) -> Result<(), HandlerError> {
///         let order: serde_json::Value = message.json()?; // not JSON: rejected
///         let insert = sqlx::query("insert into invoices (order_id) values ($1)");
///         insert.bind(order["id"].as_i64()).execute(&mut **tx).await?; // any error: tried again
///         append(tx, &message.event("invoices.made", "{}")).await?;
///         Ok(())
///     }
/// }
///
/// # use posthaste_postgres::PostgresConfig;
/// # async fn run(config: PostgresConfig, pool: PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let book = handler(pool, "billing.effects", Book);
/// let store = posthaste_postgres::consumer::inbox(config, "billing", book).await?;
/// # drop(store); Ok(()) }
/// ```
///
/// A pool is no transaction. A handler that asks for one does not compile:
///
/// ```compile_fail,E0053
/// # use posthaste::consumer::{HandlerError, Message};
/// # struct Book;
/// #[async_trait::async_trait]
/// impl posthaste_postgres::sqlx::SqlxHandler for Book {
///     async fn handle(&self, pool: &sqlx::PgPool, message: &Message<'_>) -> Result<(), HandlerError> {
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait SqlxHandler: Send + Sync + 'static {
    /// Handles one message. It neither commits nor rolls back.
    async fn handle(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        message: &Message<'_>,
    ) -> Result<(), HandlerError>;
}

/// A handler for a consumer out of one for sqlx. `marks` is the name of its own marks, for ever, and
/// another one than the consumer's.
#[must_use]
pub fn handler(pool: PgPool, marks: &str, handler: impl SqlxHandler) -> impl Handler {
    InPool { pool, inbox: Inbox::new(marks), marks: marks.to_owned(), handler }
}

struct InPool<H> {
    pool: PgPool,
    inbox: Inbox,
    marks: String,
    handler: H,
}

#[async_trait]
impl<H: SqlxHandler> Handler for InPool<H> {
    async fn handle(
        &self,
        _tx: &mut tokio_postgres::Transaction<'_>,
        message: &Message<'_>,
    ) -> Result<(), HandlerError> {
        if self.marks == message.consumer() {
            let why =
                "the marks of the handler have the consumer's own name, and one would wait for the other";
            return Err(HandlerError::unavailable(DEPENDENCY, why));
        }
        let mut pause = PAUSE_MIN;
        loop {
            let Err(error) = self.transact(message).await else { return Ok(()) };
            match trouble(&error) {
                Trouble::Conflict => tokio::time::sleep(pause).await,
                Trouble::Away => return Err(HandlerError::unavailable(DEPENDENCY, error.message)),
                Trouble::Own => return Err(error),
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl<H: SqlxHandler> InPool<H> {
    async fn transact(&self, message: &Message<'_>) -> Result<(), HandlerError> {
        let mut tx = self.pool.begin().await?;
        let partition = message.partition();
        let origin = Origin {
            topic: Some(&partition.topic),
            partition: Some(partition.number),
            position: message.position,
        };
        if self.inbox.admit_sqlx(&mut tx, message.id(), origin).await?.is_first() {
            self.handler.handle(&mut tx, message).await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

/// What went wrong in the second transaction.
#[derive(Debug, PartialEq, Eq)]
enum Trouble {
    /// Another transaction was in the way: once more, until the handler's time is over.
    Conflict,
    /// The database of the pool does not answer. No message is to blame for it (F50).
    Away,
    /// The handler's own.
    Own,
}

fn trouble(error: &HandlerError) -> Trouble {
    let behind = error.error.as_deref().filter(|_| error.wish == Wish::Retry);
    let found =
        behind.and_then(|behind| causes(behind).find_map(|cause| cause.downcast_ref::<sqlx::Error>()));
    match found {
        Some(sqlx::Error::Database(error)) => {
            let code = error.code().map(|code| SqlState::from_code(&code));
            match code {
                Some(code) if is_conflict(&code) => Trouble::Conflict,
                Some(code) if is_outage(&code) => Trouble::Away,
                _ => Trouble::Own,
            }
        }
        Some(
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed,
        ) => Trouble::Away,
        _ => Trouble::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f50_a_pool_without_a_database_is_no_fault_of_a_message() {
        let io = || sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into());
        let cases = [
            (io().into(), Trouble::Away),
            (crate::sqlx::AdmitError::from(io()).into(), Trouble::Away),
            (sqlx::Error::PoolTimedOut.into(), Trouble::Away),
            (sqlx::Error::RowNotFound.into(), Trouble::Own),
            (std::fmt::Error.into(), Trouble::Own),
            (HandlerError::reject("test.no", "never"), Trouble::Own),
        ];
        for (error, expected) in cases {
            assert_eq!(trouble(&error), expected, "{error:?}");
        }
    }
}
