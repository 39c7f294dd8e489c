//! The seam to where leases are: the database of the inbox.
//!
//! A lease is an epoch and an expiry in the row of a partition. The expiry is written and judged by the
//! database's clock alone (F24). The epoch grows with each owner, and who knows the present one is the owner:
//! so nobody renews, settles or gives back what went to somebody else (G4).
//!
//! What a lease protects is work, not truth. Two owners at once cost repetitions, for the marks decide what
//! is done. So nothing here is asked in the transactions of a consumer.

use crate::source::{Partition, SourceError};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// A partition, and the epoch under which it is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    /// Which.
    pub partition: Partition,
    /// Its epoch.
    pub epoch: i64,
}

/// What a member says of itself, several times in the life of a lease.
#[derive(Debug, Clone)]
pub struct LeaseBeat {
    /// The member, unique among all.
    pub member: Arc<str>,
    /// What it holds, to be renewed.
    pub held: Vec<HeldLease>,
    /// The partitions that there are.
    pub partitions: Vec<Partition>,
    /// How long the leases live from now on.
    pub ttl: Duration,
}

/// Who is there, and what is free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRoll {
    /// For each lease of the beat, in order: whether it is still this member's, and was renewed.
    pub kept: Vec<bool>,
    /// All members that were heard of lately, with how many leases each said to hold. By name.
    pub members: Vec<(Arc<str>, usize)>,
    /// Of the partitions of the beat those that nobody holds.
    pub free: Vec<Partition>,
}

/// A lease that was just taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenLease {
    /// Its epoch, higher than any before.
    pub epoch: i64,
    /// The group's position, where the leases keep one. An inbox does not: its consumer seeks to the position
    /// that is saved with the marks.
    pub position: Option<i64>,
}

/// Where leases are. Every call is harmless when repeated.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Renews what is held, and says that the member lives.
    async fn renew(&self, beat: &LeaseBeat) -> Result<LeaseRoll, SourceError>;

    /// Takes a partition, if nobody holds it.
    async fn take(
        &self,
        member: &str,
        partition: &Partition,
        ttl: Duration,
    ) -> Result<Option<TakenLease>, SourceError>;

    /// Whether these are still held, in order. Leases that keep positions note the given ones.
    async fn settle(&self, settled: &[(HeldLease, Option<i64>)]) -> Result<Vec<bool>, SourceError>;

    /// Gives these back, so that nobody has to wait for their end. One that is held by somebody else is left
    /// alone.
    async fn release(&self, member: &str, held: &[HeldLease]) -> Result<(), SourceError>;

    /// The member is gone: the others share without it.
    async fn leave(&self, member: &str) -> Result<(), SourceError>;
}
