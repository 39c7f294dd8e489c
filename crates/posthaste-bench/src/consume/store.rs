//! A store under watch, and one that does nothing.

use async_trait::async_trait;
use posthaste::consumer::InboxStore;
use posthaste::consumer::store::{
    ApplyError, Applying, ConsumerRetention, DeferOrBury, Deferring, DueHeads, DueOutcome, InboxError,
    InboxSwept, MessageOutcome, ProcessReport, SavedPosition, Saving, SetAside, Taken, Taking, Witness, Work,
};
use posthaste::source::{Delivery, Partition};
use posthaste::store::Care;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Counts what is settled by the answers of a store: each of them says that something has committed.
pub(super) struct Watched {
    pub(super) store: Box<dyn InboxStore>,
    /// Whether each message is told on standard output.
    pub(super) tells: bool,
    /// When the first message was here.
    pub(super) began: OnceLock<Instant>,
    pub(super) settled: watch::Sender<u64>,
    /// Transactions with messages that have committed.
    pub(super) transactions: AtomicU64,
}

impl Watched {
    fn count(&self, settled: usize) {
        self.settled.send_modify(|sum| *sum += settled as u64);
    }

    /// In the words of the `stdout` sink, which the measurement can read.
    fn tell(batch: &[Work]) {
        let lines: String =
            batch.iter().map(|work| format!("{{\"Message-ID\":\"{}\"}}\n", work.id)).collect();
        // Whoever does not listen any more has ended, and we with him.
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    }
}

#[async_trait]
impl InboxStore for Watched {
    fn takes(&self, delivery: &Delivery) -> bool {
        self.began.get_or_init(Instant::now);
        self.store.takes(delivery)
    }

    async fn take(&self, partitions: &[Partition], member: &str) -> Result<Taking, InboxError> {
        self.store.take(partitions, member).await
    }

    async fn apply(
        &self,
        witness: Option<Witness>,
        batch: &[Work],
        handler_timeout: Duration,
    ) -> Result<Applying, ApplyError> {
        let applying = self.store.apply(witness, batch, handler_timeout).await?;
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.count(applying.outcomes.iter().filter(|outcome| **outcome == MessageOutcome::Done).count());
        if self.tells {
            Self::tell(batch);
        }
        Ok(applying)
    }

    async fn defer(
        &self,
        witness: Option<Witness>,
        key: &[Work],
        how: &DeferOrBury,
    ) -> Result<Deferring, InboxError> {
        let deferring = self.store.defer(witness, key, how).await?;
        if matches!(how, DeferOrBury::Bury(_)) {
            self.count(deferring.outcomes.iter().filter(|outcome| **outcome == SetAside::Kept).count());
        }
        Ok(deferring)
    }

    async fn apply_deferred(&self, heads: &DueHeads) -> Result<DueOutcome, InboxError> {
        let outcome = self.store.apply_deferred(heads).await?;
        self.count(outcome.done() + outcome.buried());
        Ok(outcome)
    }

    async fn save(
        &self,
        member: &str,
        witness: Witness,
        positions: &[SavedPosition],
        report: Option<&ProcessReport>,
    ) -> Result<Saving, InboxError> {
        self.store.save(member, witness, positions, report).await
    }

    async fn sweep(&self, retention: ConsumerRetention, deferred_max: u64) -> Result<InboxSwept, InboxError> {
        self.store.sweep(retention, deferred_max).await
    }
}

/// A store without a database: what is left is the source and the engine.
pub(super) struct Idle;

#[async_trait]
impl InboxStore for Idle {
    fn takes(&self, _: &Delivery) -> bool {
        true
    }

    async fn take(&self, partitions: &[Partition], _: &str) -> Result<Taking, InboxError> {
        let taken = |partition: &Partition| Taken {
            partition: partition.clone(),
            position: None,
            position_time: None,
            log_id: None,
            seeks: 0,
            care: Care::default(),
            knows_topic: false,
        };
        Ok(Taking { witness: Witness::default(), taken: partitions.iter().map(taken).collect() })
    }

    async fn apply(&self, _: Option<Witness>, batch: &[Work], _: Duration) -> Result<Applying, ApplyError> {
        let outcomes = vec![MessageOutcome::Done; batch.len()];
        Ok(Applying { witness: Witness::default(), outcomes, handler_time: Duration::ZERO })
    }

    async fn defer(
        &self,
        _: Option<Witness>,
        key: &[Work],
        _: &DeferOrBury,
    ) -> Result<Deferring, InboxError> {
        Ok(Deferring { witness: Witness::default(), outcomes: vec![SetAside::Kept; key.len()] })
    }

    async fn apply_deferred(&self, _: &DueHeads) -> Result<DueOutcome, InboxError> {
        Ok(DueOutcome::default())
    }

    async fn save(
        &self,
        _: &str,
        _: Witness,
        positions: &[SavedPosition],
        _: Option<&ProcessReport>,
    ) -> Result<Saving, InboxError> {
        let (seeks, owned) = (vec![0; positions.len()], vec![true; positions.len()]);
        Ok(Saving { seeks, owned, ..Saving::default() })
    }

    async fn sweep(&self, _: ConsumerRetention, _: u64) -> Result<InboxSwept, InboxError> {
        Ok(InboxSwept::default())
    }
}
