//! What people look at and act on, of the consumers of one database. No engine may call it.
//!
//! The same habits as [`crate::admin`]: lists go by keyset pages, bulk acts mean the filter and not the page
//! (F58), run in chunks, and are audited with actor and reason (G6).

use super::kept::KeptHeaders;
use super::store::Work;
use crate::admin::job::JobStore;
use crate::admin::{Actor, AdminError, Count, DeadAct, DeadFilter, DeferredFilter, History, SetBy};
use crate::event::Timestamp;
use crate::source::Partition;
use async_trait::async_trait;
use serde::Serialize;
use uuid::Uuid;

/// State of one partition of a consumer.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConsumerPartition {
    /// The topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// Everything before it is decided. `None`: nothing is yet.
    pub position: Option<i64>,
    /// The broker's time of the record just before it.
    pub position_time: Option<Timestamp>,
    /// When it was saved last.
    pub saved_at: Option<Timestamp>,
    /// Which log the position belongs to.
    pub log_id: Option<String>,
    /// How often an operator moved it.
    pub seeks: i64,
    /// Its owner, while it has one.
    pub owner: Option<String>,
    /// Whether its last owner gave it back.
    pub clean: bool,
    /// Owners that died at this place.
    pub unclean: i32,
}

/// What a process said about itself last.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConsumerProcess {
    /// The process.
    pub process: String,
    /// Its version.
    pub version: String,
    /// Its host.
    pub host: String,
    /// When it started.
    pub started_at: Timestamp,
    /// When it was heard of last.
    pub seen_at: Timestamp,
    /// Breakers, dependencies, paused and stopped partitions, the last error.
    pub report: serde_json::Value,
}

/// State of one consumer.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConsumerStatus {
    /// The store's clock.
    pub now: Timestamp,
    /// Its name.
    pub consumer: String,
    /// Its partitions. Whoever shows them adds what the broker and the processes say.
    #[serde(skip)]
    pub partitions: Vec<ConsumerPartition>,
    /// Its processes.
    pub processes: Vec<ConsumerProcess>,
    /// Messages that wait.
    pub deferred: Count,
    /// Age of the oldest of them.
    pub oldest_deferred_seconds: Option<f64>,
    /// Dead letters.
    pub dead: Count,
    /// Whether an operator paused it.
    pub paused: bool,
    /// Messages a second an operator allows.
    #[serde(rename = "rate_limit_per_s")]
    pub rate_limit: Option<f64>,
    /// Who set that, and why.
    pub set_by: Option<SetBy>,
}

/// A consumer's dead letter.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConsumerLetter {
    /// Its own id, and its place in the list: pass the last one on for the next page.
    pub letter: Uuid,
    /// The consumer.
    pub consumer: String,
    /// The message.
    pub id: String,
    /// Where it came from.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its position there.
    pub position: Option<i64>,
    /// What it was addressed to.
    pub address: Option<String>,
    /// Its key, with what is no text replaced.
    pub key: Option<String>,
    /// Headers as stored: `[[name, text | {"base64": …}], …]`.
    pub headers: serde_json::Value,
    /// Size of the payload; `None` for a tombstone.
    pub payload_bytes: Option<i64>,
    /// The payload, only when one letter is shown.
    #[serde(skip)]
    pub payload: Option<Vec<u8>>,
    /// When the broker took it.
    pub published_at: Option<Timestamp>,
    /// When it died.
    pub dead_at: Timestamp,
    /// Attempts over its whole life.
    pub attempts: i32,
    /// How often it was replayed before.
    pub replays: i32,
    /// How it came to it.
    pub disposition: String,
    /// Class of the last error.
    pub error_class: String,
    /// Code of the last error.
    pub error_code: String,
    /// The last error.
    pub error: String,
    /// Where it happened.
    pub stack: Option<String>,
    /// The last attempts.
    pub history: History,
    /// The number of its cause.
    #[serde(serialize_with = "crate::admin::hex")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub fingerprint: i64,
    /// Whether later messages of its key wait for it.
    pub holds_key: bool,
    /// Whether it died while it was done again.
    pub repeat: bool,
}

/// Dead letters of one cause.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LetterCause {
    /// Its number.
    #[serde(serialize_with = "crate::admin::hex")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub fingerprint: i64,
    /// How many.
    pub count: i64,
    /// How they came to it.
    pub disposition: String,
    /// Code of the error.
    pub error_code: String,
    /// The error of the last of them.
    pub error: String,
    /// The first of them.
    pub first_at: Timestamp,
    /// The last of them.
    pub last_at: Timestamp,
    /// One of them, to look at.
    pub letter: Uuid,
}

/// A message that a consumer set aside.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeferredMessage {
    /// The consumer.
    pub consumer: String,
    /// Its number, and its place in the list: pass the last one on for the next page.
    pub seq: i64,
    /// The message.
    pub id: String,
    /// Where it came from.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its position there.
    pub position: Option<i64>,
    /// Its key, with what is no text replaced.
    pub key: Option<String>,
    /// Why it waits: retry, outage, held, replayed, redriven.
    pub reason: String,
    /// When it is due; `None`: behind an earlier message of its key.
    pub due_at: Option<Timestamp>,
    /// Attempts since it came or was last replayed.
    pub attempts: i32,
    /// How often it was replayed.
    pub replays: i32,
    /// Code of the last error.
    pub error_code: Option<String>,
    /// The last error.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_at: Option<Timestamp>,
    /// The last attempts.
    pub history: History,
    /// Whether it is done again.
    pub repeat: bool,
    /// When the broker took it.
    pub published_at: Option<Timestamp>,
    /// When it was set aside.
    pub deferred_at: Timestamp,
}

/// Deferred messages that wait for one thing.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessageCause {
    /// The consumer.
    pub consumer: String,
    /// Why they wait.
    pub reason: String,
    /// Code of the error.
    pub error_code: Option<String>,
    /// The error of the last of them.
    pub error: Option<String>,
    /// How many.
    pub count: i64,
    /// When the first of them was set aside.
    pub oldest_at: Timestamp,
    /// When the first of them is due; `None`: all wait behind others.
    pub due_at: Option<Timestamp>,
}

/// What a consumer knows of one message.
#[derive(Debug, Clone, Serialize)]
pub struct MessageTrace {
    /// The consumer.
    pub consumer: String,
    /// `d` done, `w` deferred, `x` dead. `None`: there is no mark.
    pub outcome: Option<String>,
    /// Where the message came from, as `topic/partition@position`.
    pub place: Option<String>,
    /// When the mark was made.
    pub marked_at: Option<Timestamp>,
    /// The transaction that made it.
    pub xid: Option<String>,
    /// If it waits: why, after how many attempts, and until when. Without a time it waits behind another.
    pub deferred: Option<DeferredTrace>,
    /// Its dead letters.
    pub letters: Vec<Uuid>,
    /// What its handler appended, as far as the log still has it.
    pub appended: Vec<CausedEvent>,
}

/// An event that a handler appended.
#[derive(Debug, Clone, Serialize)]
pub struct CausedEvent {
    /// Its id.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// When.
    pub appended_at: Timestamp,
}

/// Why a message waits.
#[derive(Debug, Clone, Serialize)]
pub struct DeferredTrace {
    /// Why.
    pub reason: String,
    /// Attempts so far.
    pub attempts: i32,
    /// When it is tried again.
    pub due_at: Option<Timestamp>,
    /// The last error.
    pub last_error: Option<String>,
}

/// Looking at consumers and acting on them.
///
/// Of a [`DeadFilter`] `ids` are letters, and `sink` means nothing here.
#[async_trait]
pub trait ConsumerAdmin: Send + Sync {
    /// The consumers of this database, or one of them.
    async fn consumers(&self, consumer: Option<&str>) -> Result<Vec<ConsumerStatus>, AdminError>;
    /// A consumer's dead letters after a place in the list, oldest first.
    async fn letters(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ConsumerLetter>, AdminError>;
    /// A consumer's dead letters before a place in the list, newest first; without a place, the newest.
    async fn letters_newest(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ConsumerLetter>, AdminError>;
    /// Letters of a message, or the letter of this id, with payload.
    async fn letter(&self, consumer: &str, id: &str) -> Result<Vec<ConsumerLetter>, AdminError>;
    /// How many match.
    async fn letter_count(&self, consumer: &str, filter: &DeadFilter) -> Result<u64, AdminError>;
    /// Why they died, the most frequent cause first.
    async fn letter_causes(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        limit: i64,
    ) -> Result<Vec<LetterCause>, AdminError>;
    /// A consumer's deferred messages after a place in the list, by their numbers. Of a [`DeferredFilter`]
    /// `ids` are ids of messages; `sink` and `destination` mean nothing here. To let them be tried now is a
    /// job.
    async fn deferred_messages(
        &self,
        consumer: &str,
        filter: &DeferredFilter,
        after: Option<i64>,
        limit: i64,
    ) -> Result<Vec<DeferredMessage>, AdminError>;
    /// What they wait for, the most frequent first.
    async fn message_causes(
        &self,
        consumer: &str,
        filter: &DeferredFilter,
        limit: i64,
    ) -> Result<Vec<MessageCause>, AdminError>;
    /// Acts on the next chunk of what matches; 0 means done. Call again for the rest.
    async fn letter_act(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError>;
    /// Lets the next chunk of what matches be handled again, as [`letter_act`](Self::letter_act) does, with
    /// these of its headers.
    async fn replay_letters(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        headers: &KeptHeaders,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError>;
    /// Moves a partition. Its owner notices at its next save. Marks still protect what is done.
    async fn seek(
        &self,
        consumer: &str,
        partition: &Partition,
        to: i64,
        log_id: Option<&str>,
        actor: &Actor,
    ) -> Result<(), AdminError>;
    /// Copies messages of a range, in order, so that they are handled again: what has its mark only with
    /// `repeat`, and without it only what has none; with these of their headers. They hold nobody up. What is
    /// not before the saved position at this moment is left out. Answers how many were copied.
    async fn copy_range(
        &self,
        consumer: &str,
        range: &[Work],
        repeat: bool,
        headers: &KeptHeaders,
        actor: &Actor,
    ) -> Result<u64, AdminError>;
    /// Bulk acts that are written down.
    fn jobs(&self) -> Option<&dyn JobStore> {
        None
    }
    /// What every consumer of this database knows of a message.
    async fn trace(&self, id: &str) -> Result<Vec<MessageTrace>, AdminError>;
}
