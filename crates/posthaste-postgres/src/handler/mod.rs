//! Handlers: the service's own work, in our transaction.

mod checked;
mod outside;
pub(crate) mod replies;
mod sql;
#[cfg(feature = "sqlx")]
pub(crate) mod sqlx;

pub use checked::CheckedHandler;
pub use outside::OutsideHandler;
pub use sql::{SqlFunction, SqlHandler};

use async_trait::async_trait;
use posthaste::consumer::{HandlerError, Message};
use tokio_postgres::Transaction;

/// What a service does with messages.
///
/// `?` on any error means "try it again"; [`HandlerError::reject`] and [`HandlerError::unavailable`] say
/// more. A handler neither commits nor rolls back. What it does outside of the transaction may happen again.
///
/// ```no_run
/// use posthaste::consumer::{HandlerError, Message};
/// use posthaste_postgres::{append, consumer::Handler};
/// use tokio_postgres::Transaction;
///
/// struct Book;
///
/// #[async_trait::async_trait]
/// impl Handler for Book {
///     async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
///         let order: serde_json::Value = message.json()?; // not JSON: rejected
///         tx.execute("insert into invoices (order_id) values ($1)", &[&order["id"].as_i64()]).await?;
///         append(tx, &message.event("invoices.made", "{}")).await?;
///         Ok(())
///     }
/// }
/// ```
///
/// A pool is no transaction. A handler that asks for one does not compile:
///
/// ```compile_fail,E0053
/// # use posthaste::consumer::{HandlerError, Message};
/// # use tokio_postgres::Client;
/// # struct Book;
/// #[async_trait::async_trait]
/// impl posthaste_postgres::consumer::Handler for Book {
///     async fn handle(&self, pool: &Client, message: &Message<'_>) -> Result<(), HandlerError> {
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Handles one message.
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError>;

    /// Handles several in a row, for handlers that have a better way than one by one. All of them together
    /// have the time that one has.
    async fn handle_all(&self, _tx: &mut Transaction<'_>, _batch: &[Message<'_>]) -> Result<(), Failed> {
        Err(Failed::OneByOne)
    }

    /// Itself, if it only brings in what somebody outside of the process has answered.
    #[doc(hidden)]
    fn outside(&self) -> Option<&OutsideHandler> {
        None
    }

    /// The function of the database that it calls. It must be there, and this login must be allowed to call
    /// it, before anything is taken: else every message would die of it.
    fn function(&self) -> Option<&SqlFunction> {
        None
    }
}

/// How several messages were not handled.
#[derive(Debug)]
pub enum Failed {
    /// This one failed, by its place.
    At(usize, HandlerError),
    /// Nobody alone. They are tried again in smaller parts.
    Together(HandlerError),
    /// Nothing was done: each is to be handled by itself.
    OneByOne,
}
