//! Append: an event into the outbox, inside the transaction the caller already has.
//!
//! One file for each library that people have a transaction of. Each is thin: the statements, the limits and
//! the cut into batches are here. They take the library's own transaction and nothing else: a pool or a bare
//! connection is no transaction, and passing one does not compile. Where a library's transaction is the
//! connection itself (diesel), the adapter asks whether one is open and refuses otherwise. None of them
//! begins, commits or spawns.
//!
//! One trait over all of these libraries was refused. It would give the reader of a wrong call a page about
//! unmet bounds instead of "expected a transaction", and one error type for five libraries.

#[cfg(feature = "diesel")]
pub mod diesel;
#[cfg(feature = "diesel-async")]
pub mod diesel_async;
#[cfg(feature = "sea-orm")]
pub mod sea_orm;
#[cfg(feature = "sqlx")]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub(crate) mod tokio_postgres;

use crate::columns::{self, Value, WRITTEN};
use posthaste::{Event, EventError, Limits};
use std::sync::{Arc, LazyLock};

/// A statement holds at most this many events: its parameters are built in memory.
const EVENTS_MAX: usize = 1_000;

/// The outbox of a service: which schema, which limits. Make one at start and keep it.
#[derive(Debug, Clone)]
pub struct Outbox {
    insert: Arc<str>,
    #[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "diesel"))]
    insert_many: Arc<str>,
    idempotent: Arc<str>,
    #[cfg(feature = "sea-orm")]
    insert_dense: Arc<str>,
    limits: Limits,
}

static DEFAULT: LazyLock<Outbox> = LazyLock::new(Outbox::default);

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
        let names = columns::names();
        let parameter =
            |number: usize, value: &Value| value.stored(&format!("${number}::{}", value.sent_as()));
        let parameters = columns::list(|number, _, value| parameter(number, value));
        let named = columns::list(|number, name, value| format!("{name} => {}", parameter(number, value)));
        let last = WRITTEN.len() + 1;
        Self {
            insert: format!("insert into {schema}.outbox ({names}) values ({parameters})").into(),
            #[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "diesel"))]
            insert_many: format!(
                "insert into {schema}.outbox ({names})
                 select {} from unnest({}) with ordinality as e ({names}, place) order by place",
                columns::list(|_, name, value| value.stored(name)),
                columns::list(|number, _, value| format!("${number}::{}[]", value.sent_as())),
            )
            .into(),
            idempotent: format!("select {schema}.append({named}, idempotency_key => ${last}) as id").into(),
            #[cfg(feature = "sea-orm")]
            insert_dense: Self::insert_dense(&schema).into(),
            limits: Limits::default(),
        }
    }

    /// Other limits than the default ones. The relay checks its own again.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    fn check_all(&self, events: &[Event]) -> Result<(), EventError> {
        events.iter().try_for_each(|event| self.limits.check(event))
    }
}

/// The events in pieces of one statement each, in order. One with an idempotency key is a piece by itself:
/// the answer of its statement is its id.
fn pieces(events: &[Event]) -> impl Iterator<Item = &[Event]> {
    events
        .chunk_by(|a, b| a.idempotency_key.is_none() && b.idempotency_key.is_none())
        .flat_map(|run| run.chunks(EVENTS_MAX))
}

/// The values of many events in one column.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "diesel"))]
fn column<'a, T>(events: &'a [Event], of: fn(&'a Event) -> T) -> Vec<T> {
    events.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn pieces_keep_the_order_and_set_idempotent_events_apart() {
        let plain = || Event::new("t", "x");
        let keyed = || plain().with_idempotency_key("k");
        let mut events = vec![plain(), plain(), keyed(), keyed(), plain()];
        events.extend((0..EVENTS_MAX).map(|_| plain()));
        let lengths: Vec<usize> = pieces(&events).map(<[Event]>::len).collect();
        assert_eq!(lengths, [2, 1, 1, EVENTS_MAX, 1]);
        let ids: Vec<Uuid> = pieces(&events).flatten().map(|event| event.id).collect();
        assert_eq!(ids, events.iter().map(|event| event.id).collect::<Vec<_>>());
        assert_eq!(pieces(&[]).count(), 0);
    }
}
