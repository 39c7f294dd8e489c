//! The intake: events that come from outside of any transaction of ours, through the gateway.
//!
//! A request is appended and committed before it is answered: [`Admitted`] means durable (W1). Whatever else
//! is answered says whether something may be stored. Requests of many tenants share a commit; what is wrong
//! with one of them costs itself alone.
//!
//! A request is **queued**, then **taken**, by one compare-and-swap ([`Ticket`]). One that is still queued
//! when its time is up is withdrawn, and nothing of it is ever stored. One that was taken gets its outcome,
//! or [`IntakeError::OutcomeUnknown`].
//!
//! [`TenantStore`] is who may come: tenants, their limits and their keys, with an audit of each change.
//! [`Limiter`] is how many, and [`GuardedLimiter`] what holds while it is away.
//!
//! Refused: producing to the broker from here. It would be a second path with its own retries, its own order
//! and its own losses, and an outage of the broker would be one of the gateway.

mod limit;
mod room;
mod tenant;

pub use limit::{
    GuardedLimiter, LimitDecision, Limiter, LimiterMode, LimiterPlan, LimiterState, LocalLimiter, OnLoss,
};
pub use room::{IntakePlace, IntakeRoom};
pub use tenant::{
    KeyHash, Roster, Tenant, TenantChange, TenantError, TenantKey, TenantStore, is_key_id, is_tenant_name,
};

use crate::event::Event;
use crate::store::StoreError;
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// What one request hands in: stored as a whole or not at all.
#[derive(Debug, Clone)]
pub struct IngestRequest {
    /// Whose it is.
    pub tenant: Arc<str>,
    /// Where it goes. All of its events have this topic.
    pub topic: Arc<str>,
    /// At least one, in order.
    pub events: Vec<Event>,
    /// So that it can be repeated.
    pub idempotency: Option<Idempotency>,
}

/// What makes a repeated request the same request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The client's, scoped by tenant and topic.
    pub key: Arc<str>,
    /// Of what the client sent. The same key with another hash is another request.
    pub hash: [u8; 32],
}

/// It is stored, and will stay so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Of its events, in order.
    pub ids: Vec<Uuid>,
    /// An earlier request with the same key stored them.
    pub replayed: bool,
}

/// Why a request was not admitted. Nothing of it is stored, but for [`OutcomeUnknown`](Self::OutcomeUnknown).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntakeError {
    /// As much as may wait is waiting.
    #[error("too much is waiting for the database")]
    Busy,
    /// Its idempotency key belongs to another request of the same tenant and topic.
    #[error("this idempotency key was used for another request")]
    KeyReused,
    /// Another request with its idempotency key is under way, and does not end.
    #[error("another request with this idempotency key is under way")]
    InFlight,
    /// The database refused this request, and would again. The words may quote it: they are for the log.
    #[error("the database refused the events: {0}")]
    Refused(String),
    /// The database was not there in time. The request was withdrawn.
    #[error("the database is away: {0}")]
    Unavailable(String),
    /// The commit was not answered: it may be stored. Only a repetition with the same key finds out.
    #[error("nobody knows whether it is stored: {0}")]
    OutcomeUnknown(String),
}

/// Where a gateway's events go.
#[async_trait]
pub trait Intake: Send + Sync {
    /// Stores a request durably, or says why not.
    ///
    /// Dropping the future withdraws what is queued and cancels nothing that was taken.
    async fn append(&self, request: IngestRequest) -> Result<Admitted, IntakeError>;

    /// Forgets requests that are older than this, and what else is kept for as long, some of it at a time.
    /// Answers how many rows.
    async fn purge(&self, older_than: Duration) -> Result<u64, StoreError>;

    /// Figures for metrics.
    fn figures(&self) -> IntakeFigures;

    /// Why nothing could be stored the last time, if nothing could.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Tries whether something could be stored, and stores nothing. An error in an operator's words.
    async fn probe(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Bounds of an intake (G7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntakeBounds {
    /// Connections that commit. Two: while one waits for the disk, the other one fills.
    pub connections: usize,
    /// Requests that may be in the intake.
    pub requests_max: usize,
    /// Bytes of them.
    pub bytes_max: usize,
    /// How long a request may wait to be stored.
    pub append_timeout: Duration,
}

impl Default for IntakeBounds {
    fn default() -> Self {
        let append_timeout = Duration::from_secs(5);
        Self { connections: 2, requests_max: 1024, bytes_max: 64 << 20, append_timeout }
    }
}

/// Figures of an intake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IntakeFigures {
    /// Events that wait for a commit, or are in one.
    pub queued_events: u64,
    /// Commits so far.
    pub commits: u64,
    /// Events in them.
    pub committed_events: u64,
}

/// Whether a request is queued, taken or withdrawn.
#[derive(Debug, Clone, Default)]
pub struct Ticket(Arc<AtomicU8>);

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;
const WITHDRAWN: u8 = 2;

impl Ticket {
    /// Of a request that is queued now.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes it. `false`: it was withdrawn, and must not be stored.
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.compare_exchange(QUEUED, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Gives it back to the queue: it is certain that nothing of it was stored.
    pub fn put_back(&self) {
        let _ = self.0.compare_exchange(TAKEN, QUEUED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether nobody waits for it any more, and nothing of it may be stored.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Acquire) == WITHDRAWN
    }

    /// Withdraws it. `false`: it was taken, and its outcome has to be waited for.
    #[must_use]
    pub fn withdraw(&self) -> bool {
        self.0.compare_exchange(QUEUED, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_or_withdrawn_and_never_both() {
        let ticket = Ticket::new();
        assert!(ticket.take());
        assert!(!ticket.withdraw() && !ticket.take());
        ticket.put_back();
        assert!(ticket.withdraw());
        assert!(!ticket.take() && ticket.is_withdrawn());
        ticket.put_back();
        assert!(!ticket.take(), "what is withdrawn stays so");
    }
}
