//! What a service writes: its handler. And how it is run: in time, with panics caught.

use super::failure;
use crate::writer::words;
use posthaste::consumer::{Failure, FailureKind, HandlerError, Message};
use rusqlite::{Connection, Transaction};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use tracing::Span;

/// Does a message's work, in the transaction that marks it: both commit, or neither.
///
/// It runs on a thread of its own, so it may block. Whatever it does outside of the transaction happens at
/// least once. A handler that takes longer than its time has failed. A statement that runs then is
/// interrupted; anything else cannot be, and the failure is told when the handler returns. Nobody writes to
/// the file until then.
///
/// It must not commit or roll back. A connection is no transaction, and the mistake does not compile:
///
/// ```compile_fail,E0053
/// # use posthaste::consumer::{HandlerError, Message};
/// struct Book;
/// impl posthaste_sqlite::consumer::Handler for Book {
///     fn handle(&self, tx: &rusqlite::Connection, message: &Message<'_>) -> Result<(), HandlerError> {
///         Ok(())
///     }
/// }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Handles one message. `?` on any error means "try again".
    fn handle(&self, tx: &Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError>;

    /// Handles a batch, of each key in order: one by one, unless a handler knows better.
    fn handle_all(&self, tx: &Transaction<'_>, batch: &[Message<'_>]) -> Result<(), Failed> {
        for (at, message) in batch.iter().enumerate() {
            // One that is alone is in its span already.
            let span = if batch.len() > 1 { message.span() } else { Span::none() };
            let handle = || self.handle(tx, message).map_err(failure::of_handler);
            let answer = timed(LIMIT.get(), || span.in_scope(handle));
            answer.map_err(|failure| Failed { at: Some(at), failure })?;
            if !leave(tx) || !enter(tx) {
                // The next one would run in another transaction, or in none.
                return Err(Failed { at: Some(at), failure: failure::ended() });
            }
        }
        Ok(())
    }
}

/// Why a batch failed, and whose fault it is. By `?` it is nobody's: the batch is halved until it is known.
#[derive(Debug)]
pub struct Failed {
    /// The message's place in the batch.
    pub(super) at: Option<usize>,
    pub(super) failure: Failure,
}

impl Failed {
    /// The message at this place of the batch failed.
    #[must_use]
    pub fn at(place: usize, error: HandlerError) -> Self {
        Self { at: Some(place), failure: failure::of_handler(error) }
    }
}

impl<E: Into<HandlerError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self { at: None, failure: failure::of_handler(error.into()) }
    }
}

/// Steps of SQLite's machine between two looks at the clock: some microseconds.
const STEPS: i32 = 1_000;

thread_local! {
    /// The time for one message, and when that of the running one ends.
    static LIMIT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Sets the savepoint that is gone when a handler has ended the transaction.
pub(super) fn enter(tx: &Transaction<'_>) -> bool {
    let set = tx.prepare_cached("savepoint posthaste_handler");
    set.and_then(|mut statement| statement.execute([])).is_ok()
}

/// Takes it away. `false`: it is gone.
pub(super) fn leave(tx: &Transaction<'_>) -> bool {
    let release = tx.prepare_cached("release posthaste_handler");
    release.and_then(|mut statement| statement.execute([])).is_ok()
}

/// Runs a handler with some messages of a batch. Answers with how long it took.
pub(super) fn run(
    handler: &dyn Handler,
    tx: &Transaction<'_>,
    messages: &[Message<'_>],
    limit: Duration,
) -> (Duration, Result<(), Failed>) {
    LIMIT.set(limit);
    let began = Instant::now();
    let all = limit.saturating_mul(u32::try_from(messages.len()).unwrap_or(u32::MAX));
    let span = Message::span_of(messages);
    let answer = timed(all, || Ok(span.in_scope(|| handler.handle_all(tx, messages))));
    (began.elapsed(), answer.unwrap_or_else(|failure| Err(Failed { at: None, failure })))
}

/// Runs something with a deadline. A panic is a failure like others (F68).
fn timed<T>(limit: Duration, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let began = Instant::now();
    let outer = DEADLINE.replace(began.checked_add(limit));
    let answer = catch_unwind(AssertUnwindSafe(work));
    DEADLINE.set(outer);
    match answer {
        Err(panic) => Err(Failure::new(FailureKind::Panic, "handler.panic", words(&*panic))),
        Ok(_) if began.elapsed() > limit => {
            let why = format!("the handler took longer than {} ms", limit.as_millis());
            Err(Failure::new(FailureKind::Timeout, "handler.timeout", why))
        }
        Ok(answer) => answer,
    }
}

/// Lets statements of handlers be interrupted when their time is over.
pub(super) fn watch_time(connection: &Connection) -> rusqlite::Result<()> {
    let is_over = || DEADLINE.get().is_some_and(|deadline| Instant::now() > deadline);
    connection.progress_handler(STEPS, Some(is_over))
}
