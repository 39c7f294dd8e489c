//! Leases of plain logs, as a model.
//!
//! It keeps the group's position with the lease, as a broker does for its groups. So a source over a plain
//! log can be run by the suite that every source passes, without a consumer and its database.

use async_trait::async_trait;
use posthaste::source::leased::{HeldLease, LeaseBeat, LeaseRoll, Leases, TakenLease};
use posthaste::source::{Partition, SourceError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The leases of one group.
#[derive(Debug, Default)]
pub struct MemoryLeases {
    tables: Mutex<LeaseTables>,
}

#[derive(Debug, Default)]
struct LeaseTables {
    rows: BTreeMap<Partition, LeaseRow>,
    members: BTreeMap<Arc<str>, (usize, Instant)>,
}

#[derive(Debug, Default)]
struct LeaseRow {
    epoch: i64,
    owner: Option<Arc<str>>,
    expires_at: Option<Instant>,
    position: Option<i64>,
}

impl LeaseRow {
    fn is_free(&self) -> bool {
        self.expires_at.is_none_or(|at| at <= Instant::now())
    }
}

impl MemoryLeases {
    fn tables(&self) -> MutexGuard<'_, LeaseTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what a member holds, as its time does after it was killed.
    pub fn end(&self, member: &str) {
        let mut tables = self.tables();
        tables.members.remove(member);
        for row in tables.rows.values_mut().filter(|row| row.owner.as_deref() == Some(member)) {
            row.expires_at = None;
        }
    }
}

#[async_trait]
impl Leases for MemoryLeases {
    async fn renew(&self, beat: &LeaseBeat) -> Result<LeaseRoll, SourceError> {
        let (now, mut tables) = (Instant::now(), self.tables());
        let mut kept = Vec::new();
        for held in &beat.held {
            let row = tables.rows.get_mut(&held.partition).filter(|row| row.epoch == held.epoch);
            let is_kept = row.as_ref().is_some_and(|row| row.expires_at.is_some());
            if let Some(row) = row.filter(|_| is_kept) {
                row.expires_at = Some(now + beat.ttl);
            }
            kept.push(is_kept);
        }
        let count = kept.iter().filter(|kept| **kept).count();
        tables.members.insert(Arc::clone(&beat.member), (count, now));
        let lives = |(_, (_, seen)): &(&Arc<str>, &(usize, Instant))| now.duration_since(*seen) < beat.ttl;
        let living = tables.members.iter().filter(lives);
        let members = living.map(|(name, (held, _))| (Arc::clone(name), *held)).collect();
        let is_free = |partition: &&Partition| tables.rows.get(*partition).is_none_or(LeaseRow::is_free);
        let free = beat.partitions.iter().filter(is_free).cloned().collect();
        Ok(LeaseRoll { kept, members, free })
    }

    async fn take(
        &self,
        member: &str,
        partition: &Partition,
        ttl: Duration,
    ) -> Result<Option<TakenLease>, SourceError> {
        let mut tables = self.tables();
        let row = tables.rows.entry(partition.clone()).or_default();
        if !row.is_free() {
            return Ok(None);
        }
        row.epoch += 1;
        (row.owner, row.expires_at) = (Some(member.into()), Some(Instant::now() + ttl));
        Ok(Some(TakenLease { epoch: row.epoch, position: row.position }))
    }

    async fn settle(&self, settled: &[(HeldLease, Option<i64>)]) -> Result<Vec<bool>, SourceError> {
        let mut tables = self.tables();
        let mut kept = Vec::new();
        for (held, position) in settled {
            let row = tables.rows.get_mut(&held.partition);
            let row = row.filter(|row| row.epoch == held.epoch && row.expires_at.is_some());
            kept.push(row.is_some());
            if let (Some(row), Some(position)) = (row, position) {
                row.position = Some(*position);
            }
        }
        Ok(kept)
    }

    async fn release(&self, _member: &str, held: &[HeldLease]) -> Result<(), SourceError> {
        let mut tables = self.tables();
        for held in held {
            let row = tables.rows.get_mut(&held.partition).filter(|row| row.epoch == held.epoch);
            if let Some(row) = row {
                row.expires_at = None;
            }
        }
        Ok(())
    }

    async fn leave(&self, member: &str) -> Result<(), SourceError> {
        self.tables().members.remove(member);
        Ok(())
    }
}
