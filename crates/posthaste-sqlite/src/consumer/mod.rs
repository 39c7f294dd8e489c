//! The consumer's inbox on SQLite: handlers, marks, deferred messages, dead letters and positions in one
//! file.
//!
//! The words and the contract are in [`posthaste::consumer::store`]. SQLite lets one transaction write at a
//! time, and every transaction here begins with `begin immediate`. So what PostgreSQL needs a lock by key,
//! a second look and sorted marks for is given: a transaction sees everything that was committed before it,
//! and nobody commits beside it. Nor is there a witness: an open connection keeps its file. A file is
//! restored only while its service is stopped.
//!
//! Handlers run on the writer's thread, each batch in a transaction of its own: a deferred constraint that
//! fails at commit must not fail the jobs of others. Events of dead letters go to the outbox of the same
//! file.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use posthaste::consumer::{HandlerError, Message};
//! use posthaste_sqlite::consumer::{Handler, InboxOptions, inbox};
//! use posthaste_sqlite::writer::Writer;
//!
//! struct Book;
//! impl Handler for Book {
//!     fn handle(&self, tx: &rusqlite::Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
//!         let order: i64 = message.json()?; // not JSON: rejected
//!         tx.execute("insert into invoices (order_id) values (?1)", [order])?; // any error: tried again
//!         posthaste_sqlite::append(tx, &message.event("invoices.made", order.to_string()))?;
//!         Ok(())
//!     }
//! }
//!
//! let writer = Writer::open("billing.db".as_ref(), Default::default())?;
//! let store = inbox(writer, InboxOptions::new("billing"), Book);
//! # Ok(()) }
//! ```

mod apply;
mod defer;
mod due;
mod failure;
mod handler;
pub(crate) mod operator;
mod partitions;
mod row;
mod sweep;

pub use handler::{Failed, Handler};

use crate::writer::Writer;
use async_trait::async_trait;
use posthaste::consumer::store::{
    ApplyError, Applying, ConsumerRetention, DeferOrBury, Deferring, DueHeads, DueOutcome, InboxError,
    InboxStore, InboxSwept, MessageOutcome, ProcessReport, SavedPosition, Saving, Taking, Witness, Work,
};
use posthaste::consumer::{DeadLetterTopic, Filter};
use posthaste::source::{Delivery, Partition};
use rusqlite::Connection;
use std::sync::Arc;
use std::time::Duration;

/// The only life of a file.
const LIFE: Witness = Witness(None);

/// What an inbox is, beside its handlers.
#[derive(Debug, Clone)]
pub struct InboxOptions {
    /// The consumer's name. It is for ever: under another one everything is new.
    pub consumer: String,
    /// Where the events of dead letters go. Without it the letters stay in their table alone.
    pub dead_letters: Option<DeadLetterTopic>,
}

impl InboxOptions {
    /// An inbox of this consumer, without a topic for dead letters.
    #[must_use]
    pub fn new(consumer: impl Into<String>) -> Self {
        Self { consumer: consumer.into(), dead_letters: None }
    }
}

/// The inbox of a consumer, with one handler for all messages. [`SqliteInbox::with`] makes one of several.
///
/// The tables are those of `posthaste migrate up` ([`crate::migrate::up`]). The writer may be shared with
/// whoever else writes to the file from this process, but a handler must not wait for it: it runs there.
#[must_use]
pub fn inbox(writer: Writer, options: InboxOptions, handler: impl Handler) -> SqliteInbox {
    SqliteInbox::with(writer, options, vec![(Filter::default(), Arc::new(handler))])
}

/// The inbox of one consumer in a SQLite file.
pub struct SqliteInbox {
    writer: Writer,
    setup: Arc<InboxSetup>,
}

/// Who is told of a batch that was committed.
type OnCommit = dyn Fn(&Connection, &[Work], &[MessageOutcome]) + Send + Sync;

/// What the thread needs to know.
struct InboxSetup {
    consumer: String,
    dead_letters: Option<DeadLetterTopic>,
    handlers: Vec<(Filter, Arc<dyn Handler>)>,
    on_commit: Option<Box<OnCommit>>,
}

impl InboxSetup {
    /// For people, who run no handler.
    fn of_operator(consumer: &str) -> Self {
        let consumer = consumer.to_owned();
        Self { consumer, dead_letters: None, handlers: Vec::new(), on_commit: None }
    }

    /// The place of the handler that takes this message: the first one that does.
    fn handler_of(&self, delivery: &Delivery) -> Option<usize> {
        self.handlers.iter().position(|(filter, _)| filter.takes_delivery(delivery))
    }
}

impl SqliteInbox {
    /// With several handlers; of those that take a message the first is asked.
    #[must_use]
    pub fn with(writer: Writer, options: InboxOptions, handlers: Vec<(Filter, Arc<dyn Handler>)>) -> Self {
        let InboxOptions { consumer, dead_letters } = options;
        Self { writer, setup: Arc::new(InboxSetup { consumer, dead_letters, handlers, on_commit: None }) }
    }

    /// Tells of each batch that is committed, before its consumer hears of it. A death in there is one
    /// between the commit and everything that follows it. Handles of this inbox must not be in use yet.
    #[must_use]
    pub fn on_commit(
        mut self,
        tell: impl Fn(&Connection, &[Work], &[MessageOutcome]) + Send + Sync + 'static,
    ) -> Self {
        if let Some(setup) = Arc::get_mut(&mut self.setup) {
            setup.on_commit = Some(Box::new(tell));
        }
        self
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection, &InboxSetup) -> Result<T, InboxError> + Send + 'static,
    ) -> Result<T, InboxError> {
        let setup = Arc::clone(&self.setup);
        let answer = self.writer.alone(move |connection| work(connection, &setup)).await;
        answer.unwrap_or_else(|error| Err(InboxError::Unavailable(error.to_string())))
    }
}

#[async_trait]
impl InboxStore for SqliteInbox {
    fn takes(&self, delivery: &Delivery) -> bool {
        self.setup.handler_of(delivery).is_some()
    }

    async fn take(&self, partitions: &[Partition], member: &str) -> Result<Taking, InboxError> {
        let (partitions, member) = (partitions.to_vec(), member.to_owned());
        self.run(move |connection, setup| partitions::take(connection, setup, &partitions, &member)).await
    }

    async fn apply(
        &self,
        witness: Option<Witness>,
        batch: &[Work],
        handler_timeout: Duration,
    ) -> Result<Applying, ApplyError> {
        if LIFE.is_not(witness) {
            return Err(ApplyError::another_life(LIFE));
        }
        let (setup, batch) = (Arc::clone(&self.setup), batch.to_vec());
        let work =
            move |connection: &mut Connection| apply::apply(connection, &setup, &batch, handler_timeout);
        let applied = self.writer.alone(work).await.unwrap_or_else(|error| {
            Err(failure::of_nobody(failure::of_store(InboxError::Unavailable(error.to_string()))))
        });
        let told = |Failed { at, failure }| ApplyError { witness: Some(LIFE), at, failure };
        applied.map_err(told)
    }

    async fn defer(
        &self,
        witness: Option<Witness>,
        key: &[Work],
        how: &DeferOrBury,
    ) -> Result<Deferring, InboxError> {
        if LIFE.is_not(witness) {
            return Ok(Deferring { witness: LIFE, outcomes: Vec::new() });
        }
        let (key, how) = (key.to_vec(), how.clone());
        self.run(move |connection, setup| defer::set_aside(connection, setup, &key, &how)).await
    }

    async fn apply_deferred(&self, heads: &DueHeads) -> Result<DueOutcome, InboxError> {
        let heads = heads.clone();
        self.run(move |connection, setup| due::apply(connection, setup, &heads)).await
    }

    async fn save(
        &self,
        member: &str,
        _: Witness,
        positions: &[SavedPosition],
        report: Option<&ProcessReport>,
    ) -> Result<Saving, InboxError> {
        let (member, positions, report) = (member.to_owned(), positions.to_vec(), report.cloned());
        let save = move |connection: &mut Connection, setup: &InboxSetup| {
            partitions::save(connection, setup, &member, &positions, report.as_ref())
        };
        self.run(save).await
    }

    async fn sweep(&self, retention: ConsumerRetention, deferred_max: u64) -> Result<InboxSwept, InboxError> {
        let mut swept = InboxSwept::default();
        // The lock is given back after each chunk.
        for _ in 0..sweep::CHUNKS {
            let purge = move |connection: &mut Connection, setup: &InboxSetup| {
                sweep::purge(connection, setup, retention)
            };
            let (marks, letters) = self.run(purge).await?;
            (swept.marks, swept.letters) = (swept.marks + marks, swept.letters + letters);
            if marks.max(letters) < sweep::CHUNK {
                break;
            }
        }
        let count = move |connection: &mut Connection, setup: &InboxSetup| {
            sweep::count(connection, setup, deferred_max, &mut swept).map_err(failure::of_statement)?;
            Ok(swept)
        };
        self.run(count).await
    }
}
