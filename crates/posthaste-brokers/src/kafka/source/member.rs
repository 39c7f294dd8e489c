//! The source itself. It waits for what the polling thread and commits do.

use super::assignment::Membership;
use super::client::{self, KafkaClient};
use super::thread;
use crate::kafka::cause::Causes;
use crate::kafka::client::watch::CredentialWatch;
use crate::kafka::{KafkaConfig, KafkaSourceConfig, check_name};
use crate::lock::locked;
use crate::{BuildError, GroupMember};
use async_trait::async_trait;
use posthaste::source::{
    AckScope, Batch, Capabilities, Change, Drained, Limit, NackOrder, Partition, PartitionView, SeekTo,
    Source, SourceError, Standing, Ticket,
};
use rdkafka::error::{KafkaError, KafkaResult};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

/// How long a question to the brokers may take.
pub(super) const ANSWER: Duration = Duration::from_secs(2);
/// Between two looks whether a first position is written.
const COMMIT_PACE: Duration = Duration::from_millis(5);
/// For the last commit of a drain, and for leaving the group.
const DRAIN_GRACE: Duration = Duration::from_secs(5);

/// A member of a consumer group. Dropping it without a drain gives its partitions back at once: what was in
/// hand comes again elsewhere.
pub struct KafkaSource {
    member: Arc<SourceMember>,
    _watch: Option<CredentialWatch>,
}

/// What the source, its thread and its commits share.
pub(super) struct SourceMember {
    /// The connection of `source`.
    pub(super) config: KafkaConfig,
    pub(super) source: KafkaSourceConfig,
    pub(super) plan: GroupMember,
    pub(super) topics: Vec<Arc<str>>,
    pub(super) causes: Arc<Causes>,
    pub(super) runtime: Handle,
    /// What became of the last commit.
    pub(super) commits: watch::Sender<Option<KafkaError>>,
    /// Certificates or passwords have changed.
    pub(super) renews: AtomicBool,
    /// Set once: the thread ends, whatever is in hand.
    pub(super) stopped: AtomicBool,
    /// The client is to end as by a fatal error of its own.
    pub(super) breaks: AtomicBool,
    /// The next client is to miss its polls, once it has partitions.
    pub(super) stalls: AtomicBool,
    /// How many clients there were.
    pub(super) clients: AtomicU64,
    /// How often a client was told that it polled too late, and has left the group.
    pub(super) late_polls: AtomicU64,
    state: Mutex<Membership>,
    /// Something happened that `next` may wait for, and `drain`. One each: either would take the other's.
    stirred: Notify,
    ended: Notify,
    /// The polling thread, and the one that commits.
    pub(super) threads: Mutex<[Option<Thread>; 2]>,
}

impl std::fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GroupMember { group, topics, .. } = &self.member.plan;
        f.debug_struct("KafkaSource").field("group", group).field("topics", topics).finish_non_exhaustive()
    }
}

impl KafkaSource {
    /// Checks the configuration and begins to join the group. A broker that is down is no error. Needs a
    /// runtime to be called in.
    pub fn start(config: &KafkaSourceConfig, plan: &GroupMember) -> Result<Self, BuildError> {
        config.check()?;
        plan.check()?;
        if let Some(why) = plan.topics.iter().find_map(|topic| check_name(topic).err()) {
            return Err(BuildError::option("topics", why));
        }
        let member = Arc::new(SourceMember {
            config: config.connection.clone(),
            source: config.clone(),
            plan: plan.clone(),
            topics: plan.topics.iter().map(|topic| topic.as_str().into()).collect(),
            causes: Arc::default(),
            runtime: Handle::current(),
            commits: watch::Sender::new(None),
            renews: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            breaks: AtomicBool::new(false),
            stalls: AtomicBool::new(false),
            clients: AtomicU64::new(0),
            late_polls: AtomicU64::new(0),
            state: Mutex::new(Membership::new()),
            stirred: Notify::new(),
            ended: Notify::new(),
            threads: Mutex::default(),
        });
        let polled = Arc::clone(&member);
        let thread = std::thread::Builder::new().name("kafka-source".to_owned());
        let thread = thread.spawn(move || thread::run(&polled));
        let thread = thread.map_err(|error| BuildError::option("type", format!("no thread: {error}")))?;
        locked(&member.threads)[0] = Some(thread.thread().clone());
        let watched = Arc::downgrade(&member);
        let renew =
            move || watched.upgrade().map(|member| member.renews.store(true, Ordering::SeqCst)).is_some();
        Ok(Self { member, _watch: CredentialWatch::start(&config.connection, renew) })
    }

    /// Ends the client as a fatal error of its own does, which no broker can be made to cause. For tests.
    #[doc(hidden)]
    pub fn break_client(&self) {
        self.member.breaks.store(true, Ordering::SeqCst);
        self.member.wake();
    }

    /// Lets another client take the place of this one, and miss its polls once it has partitions. For tests.
    #[doc(hidden)]
    pub fn stall_client(&self) {
        self.member.stalls.store(true, Ordering::SeqCst);
        self.member.renews.store(true, Ordering::SeqCst);
        self.member.wake();
    }

    /// How many clients there were, one after the other. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn clients(&self) -> u64 {
        self.member.clients.load(Ordering::SeqCst)
    }

    /// How often a client polled too late, left the group by itself, and joined it again. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn late_polls(&self) -> u64 {
        self.member.late_polls.load(Ordering::SeqCst)
    }

    /// Ends as a process does that dies: nothing more is committed. For tests.
    #[doc(hidden)]
    pub fn freeze(&self) {
        self.member.stopped.store(true, Ordering::SeqCst);
        let mut state = self.member.state();
        state.client = None;
        state.partitions.clear();
        drop(state);
        self.member.wake();
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.member.stopped.store(true, Ordering::SeqCst);
        self.member.wake();
    }
}

impl SourceMember {
    pub(super) fn state(&self) -> MutexGuard<'_, Membership> {
        locked(&self.state)
    }

    /// Wakes whoever waits for something to happen.
    pub(super) fn stir(&self) {
        self.stirred.notify_one();
        self.ended.notify_one();
    }

    /// Says why nothing comes.
    pub(super) fn fail(&self, why: String) {
        self.state().fault = Some(SourceError::Transient(why));
        self.stir();
    }

    /// Wakes the threads, if they rest.
    pub(super) fn wake(&self) {
        locked(&self.threads).iter().flatten().for_each(Thread::unpark);
    }

    /// Asks the brokers over the client, away from the runtime's threads. `None`: there is no client now.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&KafkaClient) -> KafkaResult<T> + Send + 'static,
    ) -> Result<T, SourceError> {
        let none = || SourceError::Transient("the client is made anew".to_owned());
        let client = self.state().client.clone().ok_or_else(none)?;
        let asked = self.runtime.spawn_blocking(move || question(&client)).await;
        let answer = asked.map_err(|died| SourceError::Transient(died.to_string()))?;
        answer.map_err(|error| self.transient(&error))
    }

    /// An error, with the reason that the client gave beside it.
    pub(super) fn transient(&self, error: &KafkaError) -> SourceError {
        let cause = self.causes.current(&self.config).map(|failure| failure.message.to_string());
        SourceError::Transient(cause.unwrap_or_else(|| error.to_string()))
    }

    /// Where a seek goes, and where the log begins if it was asked.
    async fn resolve(&self, partition: &Partition, to: SeekTo) -> Result<(i64, Option<i64>), SourceError> {
        if let SeekTo::Position(position @ 0..) = to {
            return Ok((position, None));
        }
        let asked = partition.clone();
        let answer = self.ask(move |client| {
            let found = client::bounds(client, std::slice::from_ref(&asked), ANSWER)?;
            let (first, end) = found.get(&asked).copied().unwrap_or_default();
            let position = match to {
                SeekTo::Latest => end,
                SeekTo::Time(time) => client::position_at(client, &asked, time, ANSWER)?.unwrap_or(end),
                SeekTo::Earliest | SeekTo::Position(_) => first,
            };
            Ok((position, Some(first)))
        });
        answer.await
    }
}

#[async_trait]
impl Source for KafkaSource {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ack_scope: AckScope::Prefix,
            nack_order: NackOrder::Kept,
            orders_keys: true,
            counts_redeliveries: false,
            seeks: true,
            stall_limit: self.member.plan.stall_limit,
            ahead_max: None,
        }
    }

    async fn next(&self, limit: Limit, wait: Duration) -> Result<Batch, SourceError> {
        let until = Instant::now() + wait;
        loop {
            let due = {
                let mut state = self.member.state();
                if state.closing.is_some() {
                    return Err(SourceError::Closed);
                }
                if state.closed {
                    return Err(SourceError::Fatal("the thread that polls Kafka has ended".to_owned()));
                }
                state.last_call = Instant::now();
                let changes = state.take_changes();
                // Changes alone: what was read before them may belong to another epoch for the caller.
                let deliveries = if changes.is_empty() { state.hand_out(limit) } else { Vec::new() };
                if !changes.is_empty() || !deliveries.is_empty() {
                    drop(state);
                    self.member.wake();
                    return Ok(Batch { changes, deliveries });
                }
                if let Some(fault) = state.fault.take() {
                    return Err(fault);
                }
                state.next_due()
            };
            if Instant::now() >= until {
                return Ok(Batch::default());
            }
            let sleep = due.filter(|_| limit.events > 0).map_or(until, |due| due.min(until));
            tokio::select! {
                () = self.member.stirred.notified() => {}
                () = tokio::time::sleep_until(sleep.into()) => {}
            }
        }
    }

    async fn ack(&self, tickets: &[Ticket]) -> Result<Vec<Standing>, SourceError> {
        self.member.settle(tickets).await
    }

    async fn nack(&self, ticket: &Ticket, delay: Duration) -> Result<Standing, SourceError> {
        let standing = self.member.state().nack(ticket, Instant::now() + delay);
        self.member.wake();
        Ok(standing)
    }

    async fn pause(&self, partition: &Partition) -> Result<(), SourceError> {
        self.member.state().owned(partition)?.paused = true;
        Ok(())
    }

    async fn resume(&self, partition: &Partition) -> Result<(), SourceError> {
        self.member.state().owned(partition)?.paused = false;
        self.member.wake();
        self.member.stir();
        Ok(())
    }

    async fn seek(&self, partition: &Partition, to: SeekTo) -> Result<i64, SourceError> {
        self.member.state().owned(partition)?;
        let (position, first) = self.member.resolve(partition, to).await?;
        let mut state = self.member.state();
        let epoch = state.seek(partition, position, first.is_some())?;
        if let (SeekTo::Position(from), Some(until)) = (to, first) {
            state.changes.push(Change::Lost { partition: partition.clone(), from, until });
        }
        drop(state);
        self.member.wake();
        self.member.stir();
        Ok(epoch)
    }

    async fn view(&self) -> Result<Vec<PartitionView>, SourceError> {
        let until = Instant::now() + ANSWER;
        let mut views = self.member.state().views();
        // Where a group begins is being written down. Whoever looks sees that place, not that there is none.
        while views.iter().any(|view| view.committed.is_none()) && Instant::now() < until {
            tokio::time::sleep(COMMIT_PACE).await;
            views = self.member.state().views();
        }
        if views.is_empty() {
            return Ok(views);
        }
        let partitions: Vec<Partition> = views.iter().map(|view| view.partition.clone()).collect();
        let asked =
            self.member.ask(move |client| Ok(client::bounds_known(client, &partitions, ANSWER))).await;
        // While a leader does not answer, the bounds of its partitions are not known; the rest is.
        let bounds = asked.unwrap_or_default();
        for view in &mut views {
            let found = bounds.get(&view.partition);
            (view.first, view.end) = (found.map(|(first, _)| *first), found.map(|(_, end)| *end));
        }
        Ok(views)
    }

    async fn drain(&self, wait: Duration) -> Result<Drained, SourceError> {
        let deadline = Instant::now() + wait;
        self.member.state().close(deadline);
        self.member.wake();
        self.member.stir();
        let drained = async {
            loop {
                if let Some(drained) = self.member.state().drained() {
                    return drained;
                }
                self.member.ended.notified().await;
            }
        };
        match tokio::time::timeout_at((deadline + DRAIN_GRACE).into(), drained).await {
            Ok(drained) => Ok(drained),
            // No broker answers. The group notices by itself.
            Err(_) => Ok(self.member.state().abandon()),
        }
    }
}
