//! A relay reduced to reading: it takes every free lane of a sink and settles what it reads.

use posthaste::route::Filter;
use posthaste::store::{
    JoinPlan, LaneId, Lease, PageLimit, Settlement, SinkPlan, StartAt, Store, StoreError,
};
use posthaste_postgres::{PostgresConfig, PostgresStore};
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct Reader {
    pub(crate) store: PostgresStore,
    leases: Vec<Arc<dyn Lease>>,
    sink: Arc<str>,
}

impl Reader {
    pub(crate) async fn join(config: &PostgresConfig, name: &str, sink: &str) -> Self {
        Self::try_join(config, name, sink).await.expect("lanes are sound")
    }

    pub(crate) async fn try_join(
        config: &PostgresConfig,
        name: &str,
        sink: &str,
    ) -> Result<Self, StoreError> {
        Self::try_join_for(config, name, sink, Filter::Everything).await
    }

    /// Reads only what a filter admits.
    pub(crate) async fn try_join_for(
        config: &PostgresConfig,
        name: &str,
        sink: &str,
        filter: Filter,
    ) -> Result<Self, StoreError> {
        let store = PostgresStore::connect(config.clone()).await.expect("the outbox is there");
        let sink: Arc<str> = sink.into();
        let plan = JoinPlan {
            relay: name.into(),
            routes: format!("{filter:?}"),
            sinks: vec![SinkPlan { name: Arc::clone(&sink), filter, start_at: StartAt::Earliest }],
            lanes: None,
            lease_ttl: Duration::from_secs(30),
        };
        store.join(&plan).await.expect("joined");
        let mut reader = Self { store, leases: Vec::new(), sink };
        reader.take().await?;
        Ok(reader)
    }

    /// Takes what is free; leases that are lost are forgotten.
    pub(crate) async fn take(&mut self) -> Result<(), StoreError> {
        let roll = self.store.roll(&[]).await?;
        self.leases.retain(|lease| {
            roll.lanes.iter().any(|lane| lane.id == *lease.id() && lane.epoch == lease.epoch())
        });
        for lane in roll.lanes.iter().filter(|lane| lane.is_free) {
            let id = LaneId { sink: Arc::clone(&self.sink), lane: lane.id.lane };
            self.leases.extend(self.store.take(&id).await?);
        }
        Ok(())
    }

    pub(crate) fn lanes(&self) -> usize {
        self.leases.len()
    }

    /// Reads without settling. Answers with numbers and what would settle them.
    pub(crate) async fn read(&self) -> Vec<(Arc<dyn Lease>, u64, Vec<i64>)> {
        let mut read = Vec::new();
        for lease in &self.leases {
            let page = lease.read(PageLimit { events: 500, bytes: 1 << 20 }).await.expect("readable");
            let seqs = page.events.iter().map(|event| event.seq).collect();
            read.push((Arc::clone(lease), page.number, seqs));
        }
        read
    }

    /// Reads and settles until nothing comes any more. Numbers that were settled.
    pub(crate) async fn drain(&mut self) -> Vec<i64> {
        let mut seen = Vec::new();
        loop {
            let before = seen.len();
            for (lease, page, seqs) in self.read().await {
                match settle(&lease, page).await {
                    Ok(()) => seen.extend(seqs),
                    Err(StoreError::LeaseLost(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            if seen.len() == before {
                return seen;
            }
        }
    }
}

pub(crate) async fn settle(lease: &Arc<dyn Lease>, through: u64) -> Result<(), StoreError> {
    lease.settle(&Settlement { through: Some(through), ..Settlement::default() }).await
}
