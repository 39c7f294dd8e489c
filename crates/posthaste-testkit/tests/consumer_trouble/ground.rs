//! Sources, stores and handlers that can be told to make trouble.

use async_trait::async_trait;
use bytes::Bytes;
use posthaste::clock::SystemClock;
use posthaste::consumer::failure::{Failure, FailureKind, OUTAGE_ELSEWHERE};
use posthaste::consumer::store::*;
use posthaste::consumer::{
    ConsumerHandle, ConsumerPlan, ConsumerSettings, Filter, HandlerError, Message, start,
};
use posthaste::source::*;
use posthaste_testkit::broker::{BrokerKind, MemoryBroker};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::inbox::{InboxDatabase, MemoryHandler, MemoryTransaction};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub(crate) const NAME: &str = "billing";
pub(crate) const TOPIC: &str = "orders";
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
pub(crate) const STALL: Duration = Duration::from_secs(300);

/// Notes when it ran, takes its time, and fails for ids that begin with "bad", "poison", "own" or
/// "away", or for all.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) takes: Duration,
    pub(crate) runs: Mutex<Vec<(String, Instant)>>,
    /// A deployment that fails with every message.
    pub(crate) is_broken: AtomicBool,
}

#[async_trait]
impl MemoryHandler for Notes {
    async fn handle(&self, tx: &mut MemoryTransaction, message: &Message<'_>) -> Result<(), HandlerError> {
        self.runs.lock().expect("no panic").push((message.id().to_owned(), Instant::now()));
        tokio::time::sleep(self.takes).await;
        match message.id() {
            _ if self.is_broken.load(SeqCst) => Err(std::io::Error::other("no such column").into()),
            id if id.starts_with("poison") => Err(HandlerError::reject("test.poison", "not for me")),
            id if id.starts_with("bad") => Err(std::io::Error::other("not yet").into()),
            id if id.starts_with("own") => Err(HandlerError::unavailable("handler", "closed")),
            id if id.starts_with("away") => Err(HandlerError::unavailable("bank", "closed")),
            _ => {
                tx.effect(message);
                Ok(())
            }
        }
    }
}

pub(crate) fn received(id: &str, key: &str) -> Received {
    Received {
        id: Some(id.to_owned()),
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        payload: Some(Bytes::from_static(b"{}")),
        ..Received::default()
    }
}

/// What a store says of a handler that committed.
pub(crate) const ENDED: &str = "the handler ended the transaction that it was given";

/// A store that can be told to answer late, or not at all.
pub(crate) struct TroubledStore {
    pub(crate) inner: Arc<dyn InboxStore>,
    pub(crate) applies: AtomicUsize,
    /// Batches fail as a whole, and nobody is named.
    pub(crate) fails_together: bool,
    /// The first transaction's answer waits for the gate.
    pub(crate) is_gated: AtomicBool,
    pub(crate) gate: Notify,
    /// The next start of partition 1 is not written.
    pub(crate) start_fails: AtomicBool,
    /// Handlers end the transaction that they are given.
    pub(crate) commits: AtomicBool,
    /// A right is missing for marks, and for nothing else.
    pub(crate) is_broken: AtomicBool,
    /// Messages and bytes of each transaction.
    pub(crate) batches: Mutex<Vec<(usize, usize)>>,
    /// Transactions that are open, and the most that were at once.
    pub(crate) open: AtomicUsize,
    pub(crate) most_open: AtomicUsize,
}

impl TroubledStore {
    pub(crate) fn new(inner: impl InboxStore) -> Self {
        Self {
            inner: Arc::new(inner),
            applies: AtomicUsize::new(0),
            fails_together: false,
            is_gated: AtomicBool::new(false),
            gate: Notify::new(),
            start_fails: AtomicBool::new(false),
            commits: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            batches: Mutex::default(),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
        }
    }
}

#[async_trait]
impl InboxStore for TroubledStore {
    fn takes(&self, delivery: &Delivery) -> bool {
        self.inner.takes(delivery)
    }
    async fn take(&self, partitions: &[Partition], member: &str) -> Result<Taking, InboxError> {
        self.inner.take(partitions, member).await
    }
    async fn apply(
        &self,
        witness: Option<Witness>,
        batch: &[Work],
        timeout: Duration,
    ) -> Result<Applying, ApplyError> {
        // Without a pause the virtual clock stands still, so the test would never end.
        assert!(self.applies.fetch_add(1, SeqCst) < 20_000, "transactions without a pause");
        if self.fails_together && batch.len() > 1 {
            let failure = Failure::new(FailureKind::Unavailable("bank".into()), "test.away", "closed");
            return Err(ApplyError { witness: None, at: None, failure });
        }
        if self.commits.load(SeqCst) {
            let failure = Failure::new(FailureKind::Committed, "handler.committed", ENDED);
            return Err(ApplyError { witness: None, at: Some(0), failure });
        }
        if self.is_broken.load(SeqCst) {
            let failure = Failure::new(FailureKind::Broken, "inbox.broken", "permission denied");
            return Err(ApplyError { witness: None, at: None, failure });
        }
        // Somebody's lock: the handler's time is over, and it still waits.
        if let Some(at) = batch.iter().position(|work| work.id.starts_with("locked")) {
            tokio::time::sleep(timeout).await;
            let failure = Failure::new(FailureKind::Conflict, "handler.conflict", "a lock");
            return Err(ApplyError { witness: None, at: Some(at), failure });
        }
        if let Some(at) = batch.iter().position(|work| work.id.starts_with("elsewhere")) {
            let failure = Failure::new(FailureKind::ConnectionLost, OUTAGE_ELSEWHERE, "no such server");
            return Err(ApplyError { witness: None, at: Some(at), failure });
        }
        let bytes = batch.iter().map(|work| work.delivery.message.bytes()).sum();
        self.batches.lock().expect("no panic").push((batch.len(), bytes));
        self.most_open.fetch_max(self.open.fetch_add(1, SeqCst) + 1, SeqCst);
        let applied = self.inner.apply(witness, batch, timeout).await;
        self.open.fetch_sub(1, SeqCst);
        if self.is_gated.swap(false, SeqCst) {
            self.gate.notified().await;
        }
        applied
    }
    async fn defer(
        &self,
        witness: Option<Witness>,
        key: &[Work],
        how: &DeferOrBury,
    ) -> Result<Deferring, InboxError> {
        self.inner.defer(witness, key, how).await
    }
    async fn apply_deferred(&self, heads: &DueHeads) -> Result<DueOutcome, InboxError> {
        if self.commits.load(SeqCst) {
            return Err(InboxError::Broken(ENDED.to_owned()));
        }
        self.inner.apply_deferred(heads).await
    }
    async fn save(
        &self,
        member: &str,
        witness: Witness,
        positions: &[SavedPosition],
        report: Option<&ProcessReport>,
    ) -> Result<Saving, InboxError> {
        let is_start = |saved: &SavedPosition| saved.partition.number == 1 && saved.position.is_some();
        if positions.iter().any(is_start) && self.start_fails.swap(false, SeqCst) {
            return Err(InboxError::Unavailable("a hiccup".to_owned()));
        }
        self.inner.save(member, witness, positions, report).await
    }
    async fn sweep(&self, retention: ConsumerRetention, deferred_max: u64) -> Result<InboxSwept, InboxError> {
        self.inner.sweep(retention, deferred_max).await
    }
}

/// A source that can be told what to answer.
pub(crate) struct TroubledSource {
    pub(crate) inner: Arc<dyn Source>,
    /// The change that the next sign of life brings, once the gate is open.
    pub(crate) change: Mutex<Option<Change>>,
    pub(crate) is_asked: AtomicBool,
    pub(crate) gate: Notify,
    /// It delivers nothing, and lives.
    pub(crate) is_silent: AtomicBool,
    /// The broker writes no positions. It delivers so many that are not acknowledged, and has so many out.
    pub(crate) unwritten_max: AtomicUsize,
    pub(crate) unwritten: AtomicUsize,
    /// What the next call of any kind brings.
    pub(crate) tells: Mutex<Vec<Change>>,
    /// A partition is elsewhere when it is sought. The answer waits for the gate.
    pub(crate) is_elsewhere: AtomicBool,
    /// Changes its view.
    pub(crate) sees: fn(&mut PartitionView),
}

impl TroubledSource {
    pub(crate) fn new(inner: impl Source) -> Self {
        Self {
            inner: Arc::new(inner),
            change: Mutex::default(),
            is_asked: AtomicBool::new(false),
            gate: Notify::new(),
            is_silent: AtomicBool::new(false),
            unwritten_max: AtomicUsize::new(0),
            unwritten: AtomicUsize::new(0),
            tells: Mutex::default(),
            is_elsewhere: AtomicBool::new(false),
            sees: |_| {},
        }
    }
}

#[async_trait]
impl Source for TroubledSource {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn next(&self, limit: Limit, wait: Duration) -> Result<Batch, SourceError> {
        if limit.events == 0 && self.change.lock().expect("no panic").is_some() {
            self.is_asked.store(true, SeqCst);
            self.gate.notified().await;
            let change = self.change.lock().expect("no panic").take();
            return Ok(Batch { changes: change.into_iter().collect(), deliveries: Vec::new() });
        }
        let changes = std::mem::take(&mut *self.tells.lock().expect("no panic"));
        if !changes.is_empty() {
            return Ok(Batch { changes, deliveries: Vec::new() });
        }
        let events = if self.is_silent.load(SeqCst) { 0 } else { limit.events };
        let events = match self.unwritten_max.load(SeqCst) {
            0 => events,
            most => events.min(most - self.unwritten.load(SeqCst)),
        };
        let batch = self.inner.next(Limit { events, ..limit }, wait).await?;
        self.unwritten.fetch_add(batch.deliveries.len(), SeqCst);
        Ok(batch)
    }
    async fn ack(&self, tickets: &[Ticket]) -> Result<Vec<Standing>, SourceError> {
        let acked = self.inner.ack(tickets).await;
        let less = |unwritten: usize| Some(unwritten.saturating_sub(tickets.len()));
        let _ = self.unwritten.fetch_update(SeqCst, SeqCst, less); // never `None`
        if self.unwritten_max.load(SeqCst) > 0 {
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
        acked
    }
    async fn nack(&self, ticket: &Ticket, delay: Duration) -> Result<Standing, SourceError> {
        self.inner.nack(ticket, delay).await
    }
    async fn pause(&self, partition: &Partition) -> Result<(), SourceError> {
        self.inner.pause(partition).await
    }
    async fn resume(&self, partition: &Partition) -> Result<(), SourceError> {
        self.inner.resume(partition).await
    }
    async fn seek(&self, partition: &Partition, to: SeekTo) -> Result<i64, SourceError> {
        self.unwritten.store(0, SeqCst); // those come again
        if self.is_elsewhere.swap(false, SeqCst) {
            self.is_asked.store(true, SeqCst);
            self.gate.notified().await;
            return Err(SourceError::NotAssigned(partition.clone()));
        }
        self.inner.seek(partition, to).await
    }
    async fn view(&self) -> Result<Vec<PartitionView>, SourceError> {
        let mut views = self.inner.view().await?;
        views.iter_mut().for_each(self.sees);
        Ok(views)
    }
    async fn drain(&self, wait: Duration) -> Result<Drained, SourceError> {
        self.inner.drain(wait).await
    }
}

/// A broker with a topic, a database, and a handler.
pub(crate) struct Ground {
    pub(crate) broker: MemoryBroker,
    pub(crate) database: InboxDatabase,
    pub(crate) notes: Arc<Notes>,
    pub(crate) settings: ConsumerSettings,
    tunings: Mutex<Vec<watch::Sender<ConsumerSettings>>>,
}

impl Ground {
    pub(crate) fn new(partitions: u32) -> Self {
        let broker = MemoryBroker::new(BrokerKind::Log, 100_000);
        broker.declare(TOPIC, partitions);
        let settings = ConsumerSettings::default();
        let (notes, tunings) = (Arc::default(), Mutex::default());
        Self { broker, database: InboxDatabase::default(), notes, settings, tunings }
    }

    /// Publishes so many messages, each of a key of its own.
    pub(crate) fn publish(&self, prefix: &str, count: usize) {
        (0..count)
            .for_each(|n| self.broker.publish(TOPIC, received(&format!("{prefix}{n}"), &format!("k{n}"))));
    }

    pub(crate) fn store(&self) -> TroubledStore {
        TroubledStore::new(self.database.inbox(NAME, Filter::default(), Arc::clone(&self.notes) as _))
    }

    pub(crate) fn source(&self, member: &str, start_from: StartFrom) -> TroubledSource {
        TroubledSource::new(self.broker.join(NAME, TOPIC, member, start_from, STALL))
    }

    pub(crate) fn start(&self, source: Arc<TroubledSource>, store: Arc<TroubledStore>) -> ConsumerHandle {
        self.start_plan(ConsumerPlan::new(NAME, source, store))
    }

    pub(crate) fn start_plan(&self, plan: ConsumerPlan) -> ConsumerHandle {
        let (tuning, receiver) = watch::channel(self.settings.clone());
        self.tunings.lock().expect("no panic").push(tuning);
        start(plan, receiver, Arc::new(SystemClock))
    }

    /// Settings of all members change, as by a reload.
    pub(crate) fn tune(&self, settings: &ConsumerSettings) {
        self.tunings.lock().expect("no panic").iter().for_each(|one| drop(one.send(settings.clone())));
    }

    pub(crate) fn done(&self) -> usize {
        self.database.tables().effects.len()
    }
}

pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    eventually(what, PATIENCE, || async { is_so().then_some(()) }).await;
}
