//! The inbox on PostgreSQL: `admit` in the handler's transaction (G5).
//!
//! One statement, one round trip, one row. The words are in [`posthaste::inbox`], the argument why it is
//! right under concurrency on top of `sql/inbox/admit.sql`. One file for each library that people have a
//! transaction of, as for [`append`](crate::Outbox): each takes the library's own transaction and nothing
//! else, and never begins, commits or spawns.

#[cfg(feature = "diesel")]
pub(crate) mod diesel;
#[cfg(feature = "diesel-async")]
pub(crate) mod diesel_async;
#[cfg(feature = "sea-orm")]
pub(crate) mod sea_orm;
#[cfg(feature = "sqlx")]
pub(crate) mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub(crate) mod tokio_postgres;

use std::sync::Arc;

/// The inbox of one consumer. Make one at start and keep it.
#[derive(Debug, Clone)]
pub struct Inbox {
    consumer: Arc<str>,
    admit: Arc<str>,
    #[cfg(feature = "tokio-postgres")]
    purge: Arc<str>,
}

impl Inbox {
    /// The inbox of this consumer in the schema `posthaste`. A consumer's name is for ever: under another one
    /// everything is new.
    #[must_use]
    pub fn new(consumer: &str) -> Self {
        Self::in_schema("posthaste", consumer)
    }

    /// The same in another schema.
    #[must_use]
    pub fn in_schema(schema: &str, consumer: &str) -> Self {
        let table = format!("\"{}\".inbox", schema.replace('"', "\"\""));
        let sql = |text: &str| text.replace("posthaste.inbox", &table).into();
        Self {
            consumer: consumer.into(),
            admit: sql(include_str!("../../sql/inbox/admit.sql")),
            #[cfg(feature = "tokio-postgres")]
            purge: sql(include_str!("../../sql/inbox/purge.sql")),
        }
    }
}

/// SQLSTATEs of a transaction that another one was in the way of: a serialization failure, and a deadlock.
#[cfg(any(feature = "sqlx", feature = "sea-orm"))]
fn is_in_the_way(code: &str) -> bool {
    matches!(code, "40001" | "40P01")
}
