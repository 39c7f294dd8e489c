//! The local broker as a source: a member of a consumer group.
//!
//! What is in hand lives in memory, one [`Hand`](posthaste::source::hand::Hand) a partition; what is durable
//! is a partition's committed position, its owner and its epoch (`group.rs`). A task of its own renews the
//! membership, takes and gives back partitions (`membership.rs`). `next` reads (`fetch.rs`), `ack` writes;
//! neither waits for the other.
//!
//! Delays of a nack are kept in memory too: the next owner of a partition does not know them.

mod assignment;
mod fetch;
mod membership;
mod reader;

pub use reader::LocalReader;

use super::file::Broker;
use super::group::{self, Held, Sought};
use super::watch::CommitWatch;
use crate::error::store_error;
use crate::log::heart::Heart;
use crate::writer::WriteError;
use assignment::{MemberState, Owned};
use async_trait::async_trait;
use membership::{beat_on, release_now};
use posthaste::source::{
    AckScope, Batch, Capabilities, Change, Drained, Limit, NackOrder, Partition, PartitionView, SeekTo,
    Source, SourceError, Standing, StartFrom, Ticket,
};
use posthaste::store::StoreError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

/// For the last writes of a drain.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// A member of a group, as configured.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// The group. Its members share the partitions; each group gets every message.
    pub group: String,
    /// The topics. One that does not exist yet is waited for.
    pub topics: Vec<String>,
    /// This member's name, unique in the group; made up if not given.
    pub member: Option<String>,
    /// Where the group begins in a partition that it has never read.
    pub start_from: StartFrom,
    /// How long the membership lives without renewal; it is renewed three times as often. A process that dies
    /// is noticed at once by its heart: this is for one that hangs as a whole.
    pub lease_ttl: Duration,
    /// How long `next` may not be called before the partitions go to others. Longer than any handler should
    /// take.
    pub stall_limit: Duration,
    /// Most deliveries in hand, with those that are acknowledged ahead of an open one.
    pub in_hand_max: usize,
    /// How long a partition that goes to another member waits for what is in hand.
    pub handover_wait: Duration,
}

impl SourceConfig {
    /// Defaults for a group and its topics.
    #[must_use]
    pub fn new(group: impl Into<String>, topics: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            member: None,
            start_from: StartFrom::Earliest,
            lease_ttl: Duration::from_secs(10),
            stall_limit: Duration::from_secs(300),
            in_hand_max: 10_000,
            handover_wait: Duration::from_secs(10),
        }
    }
}

/// The source. Dropping it without a drain is what a crash is: the others take over at once, and what was in
/// hand comes again.
pub struct LocalSource {
    inner: Arc<SourceMember>,
    beating: JoinHandle<()>,
}

pub(super) struct SourceMember {
    pub(super) broker: Arc<Broker>,
    pub(super) config: SourceConfig,
    pub(super) group: Arc<str>,
    pub(super) member: Arc<str>,
    pub(super) topics: Vec<Arc<str>>,
    pub(super) heart: Mutex<Option<Heart>>,
    state: Mutex<MemberState>,
    /// Something happened that `next` may wait for, and `drain`. One each: either would take the other's.
    stirred: Notify,
    settled: Notify,
    /// The membership should be looked after now.
    pub(super) beat_now: Notify,
    /// Held by whoever writes epochs, from what it believes to hold until it has noted what it holds: a
    /// heartbeat between a seek and its note would take the partition for lost, and then for forgotten.
    pub(super) moving: tokio::sync::Mutex<()>,
    watch: CommitWatch,
    /// Set once: no more heartbeats, not even one that is under way.
    pub(super) frozen: Arc<AtomicBool>,
}

impl std::fmt::Debug for LocalSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SourceMember { group, member, .. } = &*self.inner;
        f.debug_struct("LocalSource").field("group", group).field("member", member).finish_non_exhaustive()
    }
}

impl Broker {
    /// Joins a group. Needs a runtime to be called in.
    pub fn source(self: &Arc<Self>, config: SourceConfig) -> Result<LocalSource, SourceError> {
        let link = self.link().map_err(source_error)?;
        crate::log::heart::remove_stopped(&link.path);
        let heart = Heart::start(&link.path).map_err(|error| {
            SourceError::Fatal(format!(
                "{}: no file can be made beside the local broker's ({error}). Give this process the right to write its \
                 directory",
                link.path.display()
            ))
        })?;
        let made_up = || format!("{}-{}", std::process::id(), Uuid::new_v4().simple());
        let inner = Arc::new(SourceMember {
            broker: Arc::clone(self),
            group: config.group.as_str().into(),
            member: config.member.clone().unwrap_or_else(made_up).into(),
            topics: config.topics.iter().map(|topic| topic.as_str().into()).collect(),
            heart: Mutex::new(heart),
            state: Mutex::new(MemberState::new()),
            stirred: Notify::new(),
            settled: Notify::new(),
            beat_now: Notify::new(),
            moving: tokio::sync::Mutex::default(),
            watch: CommitWatch::start(&link.path).map_err(source_error)?,
            frozen: Arc::default(),
            config,
        });
        let beating = tokio::spawn(beat_on(Arc::clone(&inner)));
        Ok(LocalSource { inner, beating })
    }
}

impl Drop for LocalSource {
    fn drop(&mut self) {
        self.freeze();
    }
}

impl LocalSource {
    /// Stops renewing, as a process does that is frozen or dead. What it holds goes to others; it does not
    /// know. For tests.
    #[doc(hidden)]
    pub fn freeze(&self) {
        self.inner.frozen.store(true, Ordering::SeqCst);
        self.beating.abort();
        self.inner.stop_heart();
    }

    /// This member's name.
    #[must_use]
    pub fn member(&self) -> &str {
        &self.inner.member
    }
}

pub(super) fn source_error(error: StoreError) -> SourceError {
    match error {
        StoreError::Transient { message, .. } => SourceError::Transient(message),
        other => SourceError::Fatal(other.to_string()),
    }
}

impl SourceMember {
    fn state(&self) -> MutexGuard<'_, MemberState> {
        // A panic elsewhere leaves the state whole: no code of others runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits for something to happen.
    pub(super) fn stir(&self) {
        self.stirred.notify_one();
        self.settled.notify_one();
    }

    fn stop_heart(&self) {
        self.heart.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits until another look may find something.
    async fn wait(&self, until: Instant) {
        let due = self.state().next_due().map_or(until, |due| due.min(until));
        tokio::select! {
            () = self.stirred.notified() => {}
            () = self.watch.committed() => {}
            () = tokio::time::sleep_until(due) => {}
        }
    }

    /// Whether this member still holds a partition, by the file.
    async fn holds(&self, row: i64, epoch: i64) -> Result<bool, SourceError> {
        let (group, member) = (Arc::clone(&self.group), Arc::clone(&self.member));
        let readers = self.broker.link().map_err(source_error)?.readers;
        let look = move |tx: &rusqlite::Transaction<'_>| {
            group::holds(tx, &group, &member, row, epoch).map_err(store_error)
        };
        readers.read(look).await.map_err(source_error)
    }
}

#[async_trait]
impl Source for LocalSource {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ack_scope: AckScope::Prefix,
            nack_order: NackOrder::Kept,
            orders_keys: true,
            counts_redeliveries: true,
            seeks: true,
            stall_limit: self.inner.config.stall_limit,
            ahead_max: None,
        }
    }

    async fn next(&self, limit: Limit, wait: Duration) -> Result<Batch, SourceError> {
        let until = Instant::now() + wait;
        loop {
            if let Some(batch) = self.inner.look(limit).await? {
                return Ok(batch);
            }
            if Instant::now() >= until {
                return Ok(Batch::default());
            }
            self.inner.wait(until).await;
        }
    }

    async fn ack(&self, tickets: &[Ticket]) -> Result<Vec<Standing>, SourceError> {
        let (mut standings, held) = self.inner.state().ack(tickets);
        if held.is_empty() {
            return Ok(standings);
        }
        let settling = Settling { inner: &self.inner, held: held.clone() };
        let (group, member) = (Arc::clone(&self.inner.group), Arc::clone(&self.inner.member));
        let writer = self.inner.broker.link().map_err(source_error)?.writer;
        let kept: Result<Vec<bool>, WriteError> = writer
            .run(move |tx| {
                let kept = held.iter().map(|(_, held)| group::commit(tx, &group, &member, held));
                Ok(kept.collect::<rusqlite::Result<_>>()?)
            })
            .await;
        let kept = kept.map_err(|error| source_error(error.into()))?;
        let revoked = settling.done(&kept);
        for (ticket, standing) in tickets.iter().zip(&mut standings) {
            if revoked.contains(&(ticket.partition.clone(), ticket.epoch)) {
                *standing = Standing::Revoked;
            }
        }
        Ok(standings)
    }

    async fn nack(&self, ticket: &Ticket, delay: Duration) -> Result<Standing, SourceError> {
        let Some(row) = self.inner.state().row_of(ticket) else { return Ok(Standing::Revoked) };
        if !self.inner.holds(row, ticket.epoch).await? {
            self.inner.state().lose(row, ticket.epoch);
            self.inner.stir();
            return Ok(Standing::Revoked);
        }
        let mut state = self.inner.state();
        let standing = state.nack(ticket, Instant::now() + delay);
        if state.is_leaving() {
            self.inner.beat_now.notify_one();
        }
        drop(state);
        self.inner.stir();
        Ok(standing)
    }

    async fn pause(&self, partition: &Partition) -> Result<(), SourceError> {
        self.inner.state().owned(partition)?.paused = true;
        Ok(())
    }

    async fn resume(&self, partition: &Partition) -> Result<(), SourceError> {
        self.inner.state().owned(partition)?.paused = false;
        self.inner.stir();
        Ok(())
    }

    async fn seek(&self, partition: &Partition, to: SeekTo) -> Result<i64, SourceError> {
        let _moving = self.inner.moving.lock().await;
        let (row, epoch) = {
            let mut state = self.inner.state();
            let owned = state.owned(partition)?;
            (owned.row, owned.epoch)
        };
        let (group, member) = (Arc::clone(&self.inner.group), Arc::clone(&self.inner.member));
        let writer = self.inner.broker.link().map_err(source_error)?.writer;
        let sought: Result<Option<Sought>, WriteError> =
            writer.run(move |tx| Ok(group::seek(tx, &group, row, to, Some((&member, epoch)))?)).await;
        let sought = sought.map_err(|error| source_error(error.into()))?;
        let mut state = self.inner.state();
        state.lose(row, epoch);
        let Some(Sought { held, first, next }) = sought else {
            self.inner.stir();
            return Err(SourceError::NotAssigned(partition.clone()));
        };
        state.changes.push(Change::Assigned { partition: partition.clone(), epoch: held.epoch });
        state.changes.extend(Change::misplaced(partition, to, first, next));
        state.partitions.insert(partition.clone(), Owned::new(held.row, held.epoch, held.committed));
        drop(state);
        self.inner.stir();
        Ok(held.epoch)
    }

    async fn view(&self) -> Result<Vec<PartitionView>, SourceError> {
        let mut views = self.inner.state().views();
        let topics = self.inner.broker.topics().await.map_err(source_error)?;
        for view in &mut views {
            let topic = topics.iter().find(|topic| topic.name == *view.partition.topic);
            let number = usize::try_from(view.partition.number).ok();
            let ends = topic.and_then(|topic| topic.partitions.get(number?));
            (view.first, view.end) = (ends.map(|(first, _)| *first), ends.map(|(_, next)| *next));
        }
        Ok(views)
    }

    async fn drain(&self, wait: Duration) -> Result<Drained, SourceError> {
        let deadline = Instant::now() + wait;
        self.inner.state().close(deadline);
        self.inner.beat_now.notify_one();
        self.inner.stir();
        // The membership task does it; if that is gone, this does.
        if self.beating.is_finished() {
            return release_now(&self.inner).await;
        }
        let drained = async {
            loop {
                if let Some(drained) = self.inner.state().drained() {
                    return drained;
                }
                self.inner.settled.notified().await;
            }
        };
        // Beyond the deadline only the writing remains.
        match tokio::time::timeout_at(deadline + DRAIN_GRACE, drained).await {
            Ok(drained) => Ok(drained),
            Err(_) => release_now(&self.inner).await,
        }
    }
}

/// Acknowledgements that are being written. Dropped before its end, the writing failed or nobody waits for
/// it.
struct Settling<'a> {
    inner: &'a SourceMember,
    held: Vec<(Partition, Held)>,
}

impl Settling<'_> {
    /// Notes what became of each partition. Answers which were no longer ours.
    fn done(mut self, kept: &[bool]) -> Vec<(Partition, i64)> {
        let mut state = self.inner.state();
        let mut revoked = Vec::new();
        for ((partition, held), kept) in self.held.drain(..).zip(kept) {
            state.acked(&held, Some(*kept));
            if !kept {
                revoked.push((partition, held.epoch));
            }
        }
        drop(state);
        revoked
    }
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        for (_, held) in self.held.drain(..) {
            state.acked(&held, None);
        }
        if state.is_leaving() {
            self.inner.beat_now.notify_one();
        }
        drop(state);
        self.inner.stir();
    }
}
