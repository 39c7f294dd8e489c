//! A store whose calls go wrong.

use super::{Fault, Faults, Op};
use async_trait::async_trait;
use posthaste::store::{
    Care, DueBatch, DueQuery, HandAct, JoinPlan, LaneId, Lease, Page, PageLimit, Roll, Settlement, Store,
    StoreError, Swept,
};
use std::sync::Arc;
use std::time::Duration;

/// Any store, and the leases it gives out, under faults.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    faults: Faults,
}

impl FaultyStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

struct FaultyLease {
    inner: Arc<dyn Lease>,
    faults: Faults,
}

fn failed(op: Op, outcome_known: bool) -> StoreError {
    StoreError::Transient { message: format!("{op:?} failed on purpose"), outcome_known }
}

/// Runs a call under its fault. The call is a closure because a duplicate runs it twice.
macro_rules! under {
    ($self:ident, $op:expr, $call:expr) => {{
        let (fault, after) = $self.faults.before($op).await;
        if fault == Fault::Refuse {
            return Err(failed($op, true));
        }
        let mut answer = $call.await;
        if fault == Fault::Duplicate {
            answer = $call.await;
        }
        $self.faults.after(fault, after).await;
        if fault == Fault::DoThenFail && answer.is_ok() {
            return Err(failed($op, false));
        }
        answer
    }};
}

#[async_trait]
impl Store for FaultyStore {
    async fn join(&self, plan: &JoinPlan) -> Result<(), StoreError> {
        under!(self, Op::Join, self.inner.join(plan))
    }

    async fn roll(&self, held: &[(LaneId, i64)]) -> Result<Roll, StoreError> {
        under!(self, Op::Roll, self.inner.roll(held))
    }

    async fn take(&self, lane: &LaneId) -> Result<Option<Arc<dyn Lease>>, StoreError> {
        let taken: Result<Option<Arc<dyn Lease>>, StoreError> = under!(self, Op::Take, self.inner.take(lane));
        let wrap = |inner| -> Arc<dyn Lease> { Arc::new(FaultyLease { inner, faults: self.faults.clone() }) };
        Ok(taken?.map(wrap))
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        under!(self, Op::Sweep, self.inner.sweep())
    }

    async fn doze(&self, at_most: Duration) -> Result<bool, StoreError> {
        under!(self, Op::Doze, self.inner.doze(at_most))
    }

    async fn wakeup(&self) {
        self.inner.wakeup().await;
        self.faults.unfrozen().await;
    }

    async fn lanes_changed(&self) {
        self.inner.lanes_changed().await;
        self.faults.unfrozen().await;
    }

    async fn taken_by_hand(&self, lane: &LaneId, epoch: i64) -> Result<Option<HandAct>, StoreError> {
        self.inner.taken_by_hand(lane, epoch).await
    }

    async fn leave(&self) -> Result<(), StoreError> {
        under!(self, Op::Leave, self.inner.leave())
    }
}

#[async_trait]
impl Lease for FaultyLease {
    fn id(&self) -> &LaneId {
        self.inner.id()
    }

    fn epoch(&self) -> i64 {
        self.inner.epoch()
    }

    fn care(&self) -> Care {
        self.inner.care()
    }

    fn share(&self) -> f64 {
        self.inner.share()
    }

    async fn read(&self, limit: PageLimit) -> Result<Page, StoreError> {
        // A read has no effect but on the cursor in memory, which must not move when the caller gets no
        // page: so whatever is to go wrong with it goes wrong before.
        let (fault, after) = self.faults.before(Op::Read).await;
        if matches!(fault, Fault::Refuse | Fault::DoThenFail) {
            return Err(failed(Op::Read, true));
        }
        let page = self.inner.read(limit).await;
        self.faults.after(fault, after).await;
        page
    }

    async fn due(&self, query: DueQuery) -> Result<DueBatch, StoreError> {
        under!(self, Op::Due, self.inner.due(query.clone()))
    }

    async fn settle(&self, settlement: &Settlement) -> Result<(), StoreError> {
        under!(self, Op::Settle, self.inner.settle(settlement))
    }

    fn keeps_in_outages(&self) -> bool {
        self.inner.keeps_in_outages()
    }

    fn look_max(&self) -> Duration {
        self.inner.look_max()
    }

    fn given_up(&self) -> u64 {
        self.inner.given_up()
    }

    async fn take_in_hand(&self, seq: Option<i64>) -> Result<(), StoreError> {
        under!(self, Op::TakeInHand, self.inner.take_in_hand(seq))
    }

    async fn release(&self) -> Result<(), StoreError> {
        under!(self, Op::Release, self.inner.release())
    }
}
