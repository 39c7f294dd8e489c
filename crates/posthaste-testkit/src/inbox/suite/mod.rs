//! The consumer suite: what [`posthaste::consumer::store`] promises, case by case.
//!
//! A fixture is the database of a consuming service, with one table of the service's own: each handler writes
//! one **effect**, the message's id, and then does what a [`Script`] says. So an effect that is there was
//! committed by a handler that succeeded.

mod applying;
mod due;
mod memory;
mod operating;
mod owning;
mod setting_aside;
mod stage;

pub use memory::MemoryInboxFixture;
pub use stage::{Script, Told};

/// The cases, by name.
pub mod cases {
    pub use super::applying::*;
    pub use super::due::*;
    pub use super::operating::*;
    pub use super::owning::*;
    pub use super::setting_aside::*;
}

use async_trait::async_trait;
use posthaste::consumer::Filter;
use posthaste::consumer::store::{ConsumerControls, InboxStore, Work};
use posthaste::source::Partition;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A deferred message, as the tables have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredView {
    /// The message.
    pub id: String,
    /// Whether later ones of its key wait for it.
    pub holds: bool,
    /// Whether it is done again.
    pub repeat: bool,
    /// Attempts since it was deferred, or replayed, for the first time.
    pub attempts: u32,
    /// How often it was replayed.
    pub replays: u32,
    /// Whether it waits behind another (its due time is infinite).
    pub is_behind: bool,
    /// The code of the last error.
    pub code: Option<String>,
    /// The codes of its history, oldest first.
    pub history: Vec<String>,
}

/// A dead letter, as the tables have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterView {
    /// Its own id.
    pub letter: Uuid,
    /// The message.
    pub id: String,
    /// Whether later ones of its key wait for it.
    pub holds_key: bool,
    /// Whether it died while it was done again.
    pub repeat: bool,
    /// Attempts.
    pub attempts: u32,
    /// How it came to it.
    pub disposition: String,
    /// The code of the last error.
    pub code: String,
    /// The codes of its history, oldest first.
    pub history: Vec<String>,
}

/// A partition, as the tables have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRecord {
    /// The saved position.
    pub position: Option<i64>,
    /// Whether its owner gave it back.
    pub clean: bool,
    /// What is in hand alone.
    pub in_hand: Option<i64>,
    /// How often an operator moved it.
    pub seeks: i64,
}

/// The database of a consuming service: fresh for each case.
#[async_trait]
pub trait ConsumerFixture: Send + Sync {
    /// A store of one more member of this consumer, with connections of its own. For what the filter takes,
    /// its handler inserts the message's id into the table of effects, then answers with [`Script::run`].
    async fn inbox(&self, consumer: &str, filter: Filter, script: &Arc<Script>) -> Arc<dyn InboxStore>;
    /// A consumer's effects, in the order in which they were made.
    async fn effects(&self, consumer: &str) -> Vec<String>;
    /// A consumer's marks: by message id, `d`, `w` or `x`.
    async fn marks(&self, consumer: &str) -> BTreeMap<String, char>;
    /// Its deferred messages, by number.
    async fn deferred(&self, consumer: &str) -> Vec<DeferredView>;
    /// Its dead letters, by number.
    async fn letters(&self, consumer: &str) -> Vec<LetterView>;
    /// One of its partitions.
    async fn partition(&self, consumer: &str, partition: &Partition) -> Option<PartitionRecord>;
    /// Makes every deferred message with a finite due time due.
    async fn make_due(&self, consumer: &str);
    /// Makes all marks and dead letters older, and the time since partitions were taken longer.
    async fn age(&self, consumer: &str, by: Duration);
    /// An operator replays a dead letter. `false`: somebody was quicker.
    async fn replay(&self, consumer: &str, letter: Uuid) -> bool;
    /// An operator discards a dead letter.
    async fn discard(&self, consumer: &str, letter: Uuid);
    /// An operator moves a partition.
    async fn seek(&self, consumer: &str, partition: &Partition, to: i64);
    /// An operator's range replay copies those of these messages that are before the saved position, in
    /// order: rows that hold nobody, the first of each key due, the others behind it. With `repeat` for what
    /// has its mark; else the copy comes with the mark.
    async fn copy_range(&self, consumer: &str, range: &[Work], repeat: bool);
    /// An operator sets the controls of a consumer.
    async fn control(&self, consumer: &str, controls: &ConsumerControls);
    /// The server ends and comes back. `false`: this database has no server.
    async fn restart_server(&self) -> bool {
        false
    }
}
