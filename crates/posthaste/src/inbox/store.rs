//! The seam to the service's database: marks, positions, deferred messages and dead letters.
//!
//! A store runs the handlers, because their effects and the mark of a message are one transaction. The engine
//! decides what runs when; everything that must be true after a crash is here. The contract, which the
//! conformance suite of the testkit runs on every store:
//!
//! - **Once.** Effects of a message are committed if and only if its mark is committed as done. At most one
//!   transaction ever commits a mark (G5).
//! - **Order.** While a message is deferred, or is dead and holds its key, none of its key that came later
//!   runs: [`InboxStore::apply`] answers [`MessageOutcome::Held`] (G3).
//! - **Completeness.** A mark "deferred" has one row among the deferred, a mark "dead" one dead letter (G6).
//! - **Truth.** A position that was saved is never taken back but by an operator's seek: of two the higher
//!   one stays. So a consumer that lost its partition long ago may say what it knows; it is true.
//! - **Witness.** Every answer says which life of the database it comes from. If that changes, the database
//!   may have gone back in time, and nothing that the engine remembers counts any more. What is made of its
//!   memory, messages and positions, comes with the witness that it was learnt under. A store in another life
//!   does nothing with it: a later message of a key would run before earlier ones that are forgotten here.
//!
//! Refused: an epoch in every transaction. It would be a row that all transactions of a partition write to,
//! for what the unique mark gives anyway (docs/adr/0014).

pub use crate::store::ProcessReport;

use super::failure::{Disposition, Failure, FailureKind};
use super::policy::ConsumerRetry;
use crate::admin::history::History;
use crate::event::Timestamp;
use crate::source::{Delivery, Partition};
use crate::store::Care;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Which life of the database an answer comes from: when its server process began. A database that cannot go
/// back in time under a living client has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Witness(pub Option<Timestamp>);

impl Witness {
    /// Whether this is another life of the database than the one asked for. `None`: any will do.
    #[must_use]
    pub fn is_not(self, asked: Option<Self>) -> bool {
        asked.is_some_and(|asked| asked != self)
    }
}

/// One message to be handled.
#[derive(Debug, Clone)]
pub struct Work {
    /// The message.
    pub delivery: Arc<Delivery>,
    /// What the inbox knows it by.
    pub id: Arc<str>,
    /// What it is kept in order with, together with its topic. `None`: nothing waits for it.
    pub order_id: Option<Uuid>,
    /// Attempts that were spent before.
    pub attempts: u32,
    /// How the last of them failed.
    pub history: History,
}

/// What became of one message in a transaction that committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageOutcome {
    /// Its handler ran, here.
    Done,
    /// It has its mark, by whomever: it is settled.
    Duplicate,
    /// Something of its key is deferred, or dead and holds it. Nothing was done, and nothing behind it may
    /// run.
    Held,
    /// Nothing was done with it, for its handler could not answer in this company: it runs alone. Nothing
    /// behind it was done.
    Again,
    /// Somebody's tool sent a dead letter back. It is among the deferred now, in its old place.
    Redriven,
}

/// A transaction that committed.
#[derive(Debug)]
pub struct Applying {
    /// Which life of the database.
    pub witness: Witness,
    /// One for each message, in order.
    pub outcomes: Vec<MessageOutcome>,
    /// What the handlers took.
    pub handler_time: Duration,
}

/// A transaction that did not commit: nothing happened.
#[derive(Debug)]
pub struct ApplyError {
    /// Which life of the database, if it said anything.
    pub witness: Option<Witness>,
    /// Whose handler failed. `None`: nobody's alone, as at the commit.
    pub at: Option<usize>,
    /// Why.
    pub failure: Failure,
}

impl ApplyError {
    /// This is another life of the database: no handler ran.
    #[must_use]
    pub fn another_life(witness: Witness) -> Self {
        let why = "the messages were taken from another life of the database";
        let failure = Failure::new(FailureKind::Conflict, "inbox.another_life", why);
        Self { witness: Some(witness), at: None, failure }
    }
}

/// What is done with messages that cannot run now.
#[derive(Debug, Clone)]
pub enum DeferOrBury {
    /// The first of them is tried again after this delay; the others wait behind it.
    Defer {
        /// Not before this long from now, by the database's clock.
        delay: Duration,
        /// Why it failed.
        failure: Failure,
    },
    /// All of them wait behind a hold. If there is none any more, nothing is done.
    Behind,
    /// The only one of them is given up.
    Bury(Burial),
}

/// How a message is given up.
#[derive(Debug, Clone)]
pub struct Burial {
    /// The letter's id, fresh: also the id of the event for the dead-letter topic.
    pub letter: Uuid,
    /// How it came to it.
    pub disposition: Disposition,
    /// Why.
    pub failure: Failure,
    /// Whether later messages of its key wait until it is replayed or discarded.
    pub holds_key: bool,
}

/// What became of a message that was to be deferred or buried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetAside {
    /// It is kept: its mark and its copy, or its dead letter.
    Kept,
    /// It had its mark already: it is settled.
    Settled,
    /// Nothing of its key is in the way any more: it can run.
    Free,
}

/// The answer of [`InboxStore::defer`].
#[derive(Debug)]
pub struct Deferring {
    /// Which life of the database.
    pub witness: Witness,
    /// One for each message, in order. None, if that was another one than asked for: nothing was done.
    pub outcomes: Vec<SetAside>,
}

/// What a look at the deferred messages may do.
#[derive(Debug, Clone)]
pub struct DueHeads {
    /// Most messages in the transaction.
    pub messages_max: usize,
    /// Most time of its handlers.
    pub handler_time_max: Duration,
    /// For one message.
    pub handler_timeout: Duration,
    /// How often and when.
    pub retry: ConsumerRetry,
    /// Whether a message that dies here holds its key.
    pub dead_hold: bool,
    /// How long a message whose dependency is away waits.
    pub unavailable_pause: Duration,
    /// Whether processes died here: then one message runs, and its attempt is written down and committed
    /// before its handler does (F21).
    pub careful: bool,
    /// In `[0, 1)`, for the jitter.
    pub chance: f64,
}

/// What a look at the deferred messages did.
#[derive(Debug, Default)]
pub struct DueOutcome {
    /// Which life of the database.
    pub witness: Witness,
    /// What happened to each message, in order: whoever counts needs to know all of it.
    pub steps: Vec<(Arc<Delivery>, DueStep)>,
    /// Why messages were not handled that are tried again later.
    pub failed: Vec<Failure>,
    /// What the handlers took of those that are done.
    pub handler_time: Duration,
    /// How long from now the next one is due. `None`: none is.
    pub next_due: Option<Duration>,
}

/// Something that happened to a deferred message. One that fails for the last time fails, and is dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DueStep {
    /// Its effects are committed.
    Done,
    /// Its handler failed, alone or in company.
    Failed(FailureKind),
    /// The failure counted, and it is tried again.
    Retried,
    /// It was given up, or no handler takes it any more.
    Dead,
}

impl DueOutcome {
    /// Notes what happened to a message.
    pub fn note(&mut self, work: &Work, step: DueStep) {
        self.steps.push((Arc::clone(&work.delivery), step));
    }

    fn count(&self, wanted: &DueStep) -> usize {
        self.steps.iter().filter(|(_, step)| step == wanted).count()
    }

    /// Messages that were handled.
    #[must_use]
    pub fn done(&self) -> usize {
        self.count(&DueStep::Done)
    }

    /// Messages that were given up.
    #[must_use]
    pub fn buried(&self) -> usize {
        self.count(&DueStep::Dead)
    }

    /// Messages that are not deferred any more.
    #[must_use]
    pub fn moved(&self) -> usize {
        self.done() + self.buried()
    }
}

/// What a consumer finds at a partition that it was assigned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub partition: Partition,
    /// Everything before it is decided. `None`: nothing is yet.
    pub position: Option<i64>,
    /// The broker's time of the record just before it.
    pub position_time: Option<Timestamp>,
    /// Which log the position belongs to.
    pub log_id: Option<String>,
    /// How often an operator moved the position.
    pub seeks: i64,
    /// How carefully to go: former owners died here.
    pub care: Care,
    /// Whether this consumer has a position in any partition of the topic.
    pub knows_topic: bool,
}

/// The answer of [`InboxStore::take`].
#[derive(Debug)]
pub struct Taking {
    /// Which life of the database.
    pub witness: Witness,
    /// One for each partition, in order.
    pub taken: Vec<Taken>,
}

/// What is to be written about a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedPosition {
    /// Which.
    pub partition: Partition,
    /// Everything before it is decided. `None`: nothing is known; only the rest is written.
    pub position: Option<i64>,
    /// The broker's time of the record just before it.
    pub position_time: Option<Timestamp>,
    /// Which log it belongs to.
    pub log_id: Option<String>,
    /// The message that is in hand alone, before its handler runs. Only after deaths.
    pub in_hand: Option<i64>,
    /// The number of seeks that the position was made under. If there was another one, nothing is written.
    pub seeks: i64,
    /// Whether the partition is given back: its next owner has nothing to fear.
    pub release: bool,
}

/// The answer of [`InboxStore::save`].
#[derive(Debug, Default)]
pub struct Saving {
    /// Which life of the database.
    pub witness: Witness,
    /// How often an operator moved each of the partitions, in the order that was asked in.
    pub seeks: Vec<i64>,
    /// Whether each of them has an owner, whoever it is. That what is given back here has none is not said.
    pub owned: Vec<bool>,
    /// What an operator set for this consumer.
    pub controls: ConsumerControls,
}

/// What an operator set for a consumer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ConsumerControls {
    /// Nothing is begun.
    pub paused: bool,
    /// At most this many messages a second.
    pub rate_limit: Option<f64>,
}

/// How long things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ConsumerRetention {
    /// Days for which marks are kept. Those above the saved position are kept in any case.
    pub marks_days: u32,
    /// Days for which dead letters are kept; 0: for ever.
    pub dead_letter_days: u32,
}

impl Default for ConsumerRetention {
    fn default() -> Self {
        Self { marks_days: crate::inbox::RETENTION_DAYS, dead_letter_days: 0 }
    }
}

/// The answer of [`InboxStore::sweep`].
#[derive(Debug, Default, Clone, PartialEq)]
pub struct InboxSwept {
    /// Which life of the database.
    pub witness: Witness,
    /// Marks that were purged.
    pub marks: u64,
    /// Dead letters whose declared retention was over.
    pub letters: u64,
    /// Deferred messages now; counted up to the bound that was given.
    pub deferred: u64,
    /// Age of the oldest deferred message.
    pub oldest_deferred: Option<Duration>,
    /// Dead letters now.
    pub dead_letters: u64,
}

/// Errors of a store, by what the engine does next. Nothing was done, or it is harmless to do it again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InboxError {
    /// Another transaction was in the way: again, soon.
    #[error("{0}")]
    Conflict(String),
    /// The database is out of reach. The engine waits, and asks with nothing in its hands.
    #[error("{0}")]
    Unavailable(String),
    /// It cannot go on without an operator: a missing table, a missing right, a wrong password.
    #[error("{0}")]
    Broken(String),
}

/// Where a consumer's marks, positions, deferred messages and dead letters live.
#[async_trait]
pub trait InboxStore: Send + Sync + 'static {
    /// Whether any handler takes this message.
    fn takes(&self, delivery: &Delivery) -> bool;

    /// Takes partitions that were assigned to this member. An owner that did not give one back before is a
    /// death there.
    async fn take(&self, partitions: &[Partition], member: &str) -> Result<Taking, InboxError>;

    /// Runs messages in one transaction, each key's in order. It commits as a whole or not at all. A handler
    /// that takes longer than `handler_timeout` for one message has failed. Under another witness no handler
    /// runs: [`ApplyError::another_life`].
    async fn apply(
        &self,
        witness: Option<Witness>,
        batch: &[Work],
        handler_timeout: Duration,
    ) -> Result<Applying, ApplyError>;

    /// Sets messages of one key aside, in one transaction. Under another witness nothing is done.
    async fn defer(
        &self,
        witness: Option<Witness>,
        key: &[Work],
        how: &DeferOrBury,
    ) -> Result<Deferring, InboxError>;

    /// Runs deferred messages that are due, in one transaction. Any member may call it at any time. It needs
    /// no witness: everything that it runs and writes it has read from this life of the database, where what
    /// is before a row of its key is decided.
    async fn apply_deferred(&self, heads: &DueHeads) -> Result<DueOutcome, InboxError>;

    /// Whether skipped messages are written down: [`InboxStore::trace_skipped`].
    fn traces_skipped(&self) -> bool {
        false
    }

    /// Writes down messages that no handler takes, for people. They get no mark. It is called before the
    /// positions behind them are saved, and again if it failed.
    async fn trace_skipped(&self, _skipped: &[Work]) -> Result<(), InboxError> {
        Ok(())
    }

    /// Writes positions, and answers what operators want. With no positions it is the question whether the
    /// database works. What was made under another witness is not written.
    async fn save(
        &self,
        member: &str,
        witness: Witness,
        positions: &[SavedPosition],
        report: Option<&ProcessReport>,
    ) -> Result<Saving, InboxError>;

    /// Housekeeping, bounded in time. Deferred messages are counted up to `deferred_max`.
    async fn sweep(&self, retention: ConsumerRetention, deferred_max: u64) -> Result<InboxSwept, InboxError>;
}
