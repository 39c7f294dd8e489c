//! A source of anything that can be read from a position: a **plain log**.
//!
//! JetStream and Redis have groups of their own, and they keep no order: what a member leaves behind comes
//! again between newer messages. So their streams are read as what they are, logs, and the group is kept
//! where the marks are: in the database of the inbox. A [`PlainLog`] reads; [`Leases`] say who reads which
//! partition (`lease`); the positions are the consumer's own, saved with its marks, and it seeks to them.
//!
//! # How it is built
//!
//! `state` is what the member remembers, memory only, behind one lock. `beat` is a task that renews the
//! leases, takes what is free and gives back what is above the fair share (`share`). `watch` is a task that
//! looks at the logs every two seconds. For each partition a third one reads ahead, up to a bound (`read`).
//!
//! # The same log
//!
//! A position means something in one log only. Whenever a log was out of reach, or is another one by its id,
//! or ends before what was read of it, or its reading stands still, the partition is revoked and assigned
//! again under a higher epoch. So the consumer begins anew as at a start: it compares the log's id and the
//! record just before its position, and stops loudly if they are not those that it knew. What was in hand is
//! a repetition, which meets its marks.
//!
//! # Leases
//!
//! A lease is trusted for three quarters of its life, counted from before the call that renewed it (F22).
//! After that nothing more goes out, whether the database answers or not. Whoever is stopped for longer finds
//! its epoch outdated and settles nothing. Epochs of tickets are the lease's, with room between two of them
//! for the seeks of one owner.
//!
//! Refused: the broker's own consumer as the place of the position. It moves by acknowledgements that nobody
//! fences, it goes with the broker's disk, and it knows nothing of a restored database.

mod beat;
mod lease;
mod read;
mod share;
mod state;
mod tail;
mod watch;

pub use lease::{HeldLease, LeaseBeat, LeaseRoll, Leases, TakenLease};
pub use tail::{LogLook, PlainLog, Tail, Tailed};

use super::{
    AckScope, Batch, Capabilities, Drained, Limit, NackOrder, Partition, PartitionView, SeekTo, Source,
    SourceError, Standing, StartFrom, Ticket,
};
use async_trait::async_trait;
use beat::{beat_on, release_now};
use state::{Again, MemberState};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use watch::{SeenLog, watch_on};

/// For the last writes of a drain.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// A member of a group that shares plain logs, as configured.
#[derive(Debug, Clone)]
pub struct LeasedConfig {
    /// This member's name, unique among all.
    pub member: Arc<str>,
    /// The partitions. One whose topic does not exist yet is waited for.
    pub partitions: Vec<Partition>,
    /// Where to begin, if the leases keep positions and have none. `None`: the consumer keeps them itself,
    /// and nothing is delivered before it has sought.
    pub start_from: Option<StartFrom>,
    /// How long a lease lives without renewal. It is renewed four times as often. So long do the partitions
    /// of a process lie idle that was killed.
    pub lease_ttl: Duration,
    /// How long `next` may not be called before the partitions go to others.
    pub stall_limit: Duration,
    /// Most deliveries in hand, with those that are acknowledged ahead of an open one.
    pub in_hand_max: usize,
    /// How long a partition that goes to another member waits for what is in hand.
    pub handover_wait: Duration,
}

impl LeasedConfig {
    /// Defaults for a member and its topics, each with one partition.
    #[must_use]
    pub fn new(member: impl Into<Arc<str>>, topics: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        Self {
            member: member.into(),
            partitions: topics.into_iter().map(|topic| Partition::new(topic, 0)).collect(),
            start_from: None,
            lease_ttl: Duration::from_secs(8),
            stall_limit: Duration::from_secs(300),
            in_hand_max: 8_192,
            handover_wait: Duration::from_secs(5),
        }
    }
}

/// The source. Dropping it without a drain is what a crash is: others take over when its leases end.
pub struct LeasedSource {
    inner: Arc<LogMember>,
    beating: JoinHandle<()>,
    watching: JoinHandle<()>,
}

struct LogMember {
    log: Arc<dyn PlainLog>,
    leases: Arc<dyn Leases>,
    config: LeasedConfig,
    state: Mutex<MemberState>,
    /// What is known of the logs.
    seen: Mutex<BTreeMap<Partition, SeenLog>>,
    /// Something happened that `next` may wait for, and `drain`. One each: either would take the other's.
    stirred: Notify,
    settled: Notify,
    /// There is room to read ahead.
    room: Notify,
    /// The leases should be looked after now.
    beat_now: Notify,
}

impl std::fmt::Debug for LeasedSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeasedSource").field("member", &self.inner.config.member).finish_non_exhaustive()
    }
}

impl LeasedSource {
    /// Begins to share the logs. Needs a runtime to be called in.
    pub fn start(log: Arc<dyn PlainLog>, leases: Arc<dyn Leases>, config: LeasedConfig) -> Self {
        let inner = Arc::new(LogMember {
            log,
            leases,
            config,
            state: Mutex::new(MemberState::new()),
            seen: Mutex::default(),
            stirred: Notify::new(),
            settled: Notify::new(),
            room: Notify::new(),
            beat_now: Notify::new(),
        });
        let beating = tokio::spawn(beat_on(Arc::clone(&inner)));
        let watching = tokio::spawn(watch_on(Arc::clone(&inner)));
        Self { inner, beating, watching }
    }

    /// Stops renewing, as a process does that is frozen or dead. What it holds goes to others; it does not
    /// know. For tests.
    #[doc(hidden)]
    pub fn freeze(&self) {
        self.beating.abort();
        self.watching.abort();
    }
}

impl Drop for LeasedSource {
    fn drop(&mut self) {
        self.freeze();
        self.inner.state().partitions.clear();
    }
}

impl LogMember {
    fn state(&self) -> MutexGuard<'_, MemberState> {
        // A panic elsewhere leaves the state whole: no code of others runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<Partition, SeenLog>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits for something to happen.
    fn stir(&self) {
        self.stirred.notify_one();
        self.settled.notify_one();
    }

    /// Reading goes on from this position, under this epoch.
    fn read_from(self: &Arc<Self>, partition: &Partition, epoch: i64, from: i64) {
        // The task cannot keep anything before the state knows of it: what it kept would be forgotten, and it
        // would go on behind that.
        let mut state = self.state();
        let reading = tokio::spawn(read::read_on(Arc::clone(self), partition.clone(), epoch, from));
        state.read_from(partition, epoch, from, reading.abort_handle());
        drop(state);
        self.stir();
    }

    /// The partition's consumer has to look at the log again. Where the leases keep the position, reading
    /// goes on by itself.
    fn begin_anew(self: &Arc<Self>, partition: &Partition, epoch: i64) {
        let mut state = self.state();
        let committed =
            state.of_epoch(partition, epoch).and_then(|owned| Some(owned.hand.as_ref()?.committed()));
        let next = state.begin_anew(partition, epoch);
        drop(state);
        if let (Some(_), Some(from), Some(next)) = (self.config.start_from, committed, next) {
            self.read_from(partition, next, from);
        }
        self.stir();
    }

    /// Reads messages again that were given back.
    async fn read_again(
        &self,
        all: Vec<Again>,
        mut bytes: usize,
        batch: &mut Batch,
    ) -> Result<(), SourceError> {
        for again in all {
            let range = again.position..again.position.saturating_add(1);
            let page = self.log.read(&again.partition, range, 1).await?;
            let read = page.deliveries.into_iter().next();
            let size = read.as_ref().map_or(0, |delivery| delivery.message.bytes());
            if size > bytes && !batch.deliveries.is_empty() {
                break;
            }
            bytes = bytes.saturating_sub(size);
            self.state().deliver_again(&again, read, batch);
        }
        Ok(())
    }

    /// One look: `None` if there is nothing.
    async fn look(&self, limit: Limit) -> Result<Option<Batch>, SourceError> {
        let (mut batch, again) = self.state().look(limit, self.config.in_hand_max)?;
        self.room.notify_waiters();
        let sent: usize = batch.deliveries.iter().map(|delivery| delivery.message.bytes()).sum();
        // What was taken must go out: an error here would lose it. It comes again at the next call.
        let read = self.read_again(again, limit.bytes.saturating_sub(sent), &mut batch).await;
        match read {
            Err(error) if batch.is_empty() => Err(error),
            _ => Ok(Some(batch).filter(|batch| !batch.is_empty())),
        }
    }

    /// Waits until another look may find something.
    async fn wait(&self, until: Instant) {
        let due = self.state().next_due().map_or(until, |due| due.min(until));
        tokio::select! {
            () = self.stirred.notified() => {}
            () = tokio::time::sleep_until(due) => {}
        }
    }

    async fn position(&self, partition: &Partition, to: SeekTo) -> Result<i64, SourceError> {
        let look = async {
            let none = || SourceError::Transient(format!("there is no {:?} at the broker", partition.topic));
            self.log.look(partition).await?.ok_or_else(none)
        };
        Ok(match to {
            SeekTo::Position(position) => position,
            SeekTo::Earliest => look.await?.log.first,
            SeekTo::Latest => look.await?.log.end,
            SeekTo::Time(time) => self.log.position_at(partition, time).await?,
        })
    }
}

#[async_trait]
impl Source for LeasedSource {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ack_scope: AckScope::Prefix,
            nack_order: NackOrder::Kept,
            orders_keys: true,
            // Deaths are counted where the marks are.
            counts_redeliveries: false,
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
        let (mut standings, settled) = self.inner.state().ack(tickets);
        if settled.is_empty() {
            return Ok(standings);
        }
        let mut settling =
            LeasesAsked { inner: &self.inner, held: settled.iter().map(|(held, _)| held.clone()).collect() };
        let kept = self.inner.leases.settle(&settled).await?;
        let lost = settling.done(&kept);
        for (ticket, standing) in tickets.iter().zip(&mut standings) {
            if lost.contains(&ticket.partition) {
                *standing = Standing::Revoked;
            }
        }
        Ok(standings)
    }

    async fn nack(&self, ticket: &Ticket, delay: Duration) -> Result<Standing, SourceError> {
        let held = {
            let mut state = self.inner.state();
            let owned = state.of_epoch(&ticket.partition, ticket.epoch);
            let Some(owned) = owned else { return Ok(Standing::Revoked) };
            owned.held(&ticket.partition)
        };
        if self.inner.leases.settle(&[(held.clone(), None)]).await? == [false] {
            self.inner.state().lose(&held.partition, held.epoch);
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
        let (epoch, viewed, held) = {
            let mut state = self.inner.state();
            let owned = state.owned(partition)?;
            (owned.epoch, owned.viewed.clone(), owned.held(partition))
        };
        let from = self.inner.position(partition, to).await?;
        if self.inner.leases.settle(&[(held.clone(), Some(from))]).await? == [false] {
            self.inner.state().lose(&held.partition, held.epoch);
        }
        let mut state = self.inner.state();
        let next =
            state.begin_anew(partition, epoch).ok_or_else(|| SourceError::NotAssigned(partition.clone()))?;
        // What the consumer saw before it sought is what it judged by.
        if let Some(owned) = state.of_epoch(partition, next) {
            owned.viewed = viewed;
        }
        drop(state);
        self.inner.read_from(partition, next, from);
        Ok(next)
    }

    async fn view(&self) -> Result<Vec<PartitionView>, SourceError> {
        let mut views = self.inner.state().views(self.inner.config.start_from.is_some());
        for view in &mut views {
            let Some(look) = self.inner.log.look(&view.partition).await? else { continue };
            (view.first, view.end) = (Some(look.log.first), Some(look.log.end));
            view.log_id.clone_from(&look.log.log_id);
            if let Some(owned) = self.inner.state().of_epoch(&view.partition, view.epoch) {
                owned.viewed = look.log.log_id;
            }
        }
        Ok(views)
    }

    async fn drain(&self, wait: Duration) -> Result<Drained, SourceError> {
        let deadline = Instant::now() + wait;
        self.inner.state().close(deadline);
        self.inner.beat_now.notify_one();
        self.inner.stir();
        // The task does it; if that is gone, this does.
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

/// Acknowledgements that are being judged. Dropped before its end, there was no answer, or nobody waits for
/// it.
struct LeasesAsked<'a> {
    inner: &'a LogMember,
    held: Vec<HeldLease>,
}

impl LeasesAsked<'_> {
    /// Notes what became of each partition. Answers which were no longer ours.
    fn done(&mut self, kept: &[bool]) -> Vec<Partition> {
        let mut state = self.inner.state();
        let mut lost = Vec::new();
        for (held, is_kept) in self.held.drain(..).zip(kept) {
            state.acked(&held, Some(*is_kept));
            if !is_kept {
                lost.push(held.partition);
            }
        }
        lost
    }
}

impl Drop for LeasesAsked<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        for held in self.held.drain(..) {
            state.acked(&held, None);
        }
        if state.is_leaving() {
            self.inner.beat_now.notify_one();
        }
        drop(state);
        self.inner.stir();
    }
}
