//! Rate limits of the configuration, laid under those that operators set.
//!
//! The engine takes its limits from the store's heartbeat, where `posthaste rate` puts them. This wrapper
//! adds `rate_limit_per_s` of the configuration for sinks without such a limit, so that a file that is
//! reloaded changes them within one heartbeat and the engine knows one way only.

use async_trait::async_trait;
use posthaste::store::{HandAct, JoinPlan, LaneId, Lease, ProcessReport, Roll, Store, StoreError, Swept};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Events a second, by sink.
pub(crate) type Rates = BTreeMap<String, f64>;

/// A store whose heartbeats carry the configured limits too.
pub(crate) struct RatedStore {
    inner: Arc<dyn Store>,
    rates: watch::Receiver<Rates>,
}

impl RatedStore {
    pub(crate) fn new(inner: Arc<dyn Store>, rates: watch::Receiver<Rates>) -> Self {
        Self { inner, rates }
    }
}

fn lay_under(set: &mut Vec<(String, f64)>, rates: &Rates) {
    let by_hand: Vec<String> = set.iter().map(|(sink, _)| sink.clone()).collect();
    let configured = rates.iter().filter(|(sink, _)| !by_hand.contains(sink));
    set.extend(configured.map(|(sink, rate)| (sink.clone(), *rate)));
}

#[async_trait]
impl Store for RatedStore {
    async fn join(&self, plan: &JoinPlan) -> Result<(), StoreError> {
        self.inner.join(plan).await
    }

    async fn roll(&self, held: &[(LaneId, i64)]) -> Result<Roll, StoreError> {
        let mut roll = self.inner.roll(held).await?;
        lay_under(&mut roll.controls.rate_limits, &self.rates.borrow());
        Ok(roll)
    }

    async fn take(&self, lane: &LaneId) -> Result<Option<Arc<dyn Lease>>, StoreError> {
        self.inner.take(lane).await
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        self.inner.sweep().await
    }

    async fn doze(&self, at_most: Duration) -> Result<bool, StoreError> {
        self.inner.doze(at_most).await
    }

    async fn wakeup(&self) {
        self.inner.wakeup().await;
    }

    async fn lanes_changed(&self) {
        self.inner.lanes_changed().await;
    }

    async fn taken_by_hand(&self, lane: &LaneId, epoch: i64) -> Result<Option<HandAct>, StoreError> {
        self.inner.taken_by_hand(lane, epoch).await
    }

    async fn report(&self, report: &ProcessReport) -> Result<(), StoreError> {
        self.inner.report(report).await
    }

    async fn leave(&self) -> Result<(), StoreError> {
        self.inner.leave().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_set_by_hand_goes_first() {
        let mut set = vec![("nats".to_owned(), 5.0)];
        lay_under(&mut set, &Rates::from([("nats".to_owned(), 100.0), ("http".to_owned(), 7.0)]));
        assert_eq!(set, [("nats".to_owned(), 5.0), ("http".to_owned(), 7.0)]);
    }
}
