//! How many events a tenant may hand in.

mod guard;

pub use guard::{GuardedLimiter, LimiterMode, LimiterPlan, LimiterState, OnLoss};

use crate::gcra::{Rate, Taken, take};
use async_trait::async_trait;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What a limiter says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitDecision {
    /// They may pass.
    Passed {
        /// How many more could.
        left: u32,
        /// Until the whole burst is there again.
        full_in: Duration,
    },
    /// Nothing was taken.
    Wait {
        /// Until these could pass.
        wait: Duration,
        /// Until a single one could.
        one: Duration,
        /// How many could now.
        left: u32,
    },
    /// The limiter cannot say: it is away. An operator's words.
    Lost(String),
    /// The limiter cannot say of this tenant, and can of others. An operator's words. [`GuardedLimiter`]
    /// never answers so.
    Odd(String),
}

impl LimitDecision {
    /// What the algorithm says, in time.
    #[must_use]
    pub fn of(taken: Taken) -> Self {
        match taken {
            Taken::Now { left, full_in_us, .. } => {
                Self::Passed { left, full_in: Duration::from_micros(full_in_us) }
            }
            Taken::Wait { for_us, one_us, left, .. } => {
                Self::Wait { wait: Duration::from_micros(for_us), one: Duration::from_micros(one_us), left }
            }
        }
    }
}

/// Knows how many of each tenant have passed.
#[async_trait]
pub trait Limiter: Send + Sync {
    /// Takes so many events of a tenant whose rate this is.
    async fn take(&self, tenant: &Arc<str>, rate: Rate, events: u32) -> LimitDecision;
}

/// In this process. It knows nothing of other gateways.
#[derive(Debug)]
pub struct LocalLimiter {
    began: Instant,
    buckets: Mutex<FxHashMap<Arc<str>, f64>>,
}

impl Default for LocalLimiter {
    fn default() -> Self {
        Self { began: Instant::now(), buckets: Mutex::default() }
    }
}

impl LocalLimiter {
    /// At once, without waiting for anything.
    pub fn take_now(&self, tenant: &Arc<str>, rate: Rate, events: u32) -> LimitDecision {
        let now_us = self.began.elapsed().as_secs_f64() * 1e6;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = take(buckets.get(tenant).copied(), now_us, rate, events);
        if let Taken::Now { tat_us, .. } | Taken::Wait { nearer_us: Some(tat_us), .. } = taken {
            buckets.insert(Arc::clone(tenant), tat_us);
        }
        LimitDecision::of(taken)
    }

    /// Forgets whoever is not among these any more.
    pub fn keep(&self, is_known: impl Fn(&str) -> bool) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.retain(|tenant, _| is_known(tenant));
    }
}

#[async_trait]
impl Limiter for LocalLimiter {
    async fn take(&self, tenant: &Arc<str>, rate: Rate, events: u32) -> LimitDecision {
        self.take_now(tenant, rate, events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_tenant_has_a_bucket_and_time_fills_it() {
        let limiter = LocalLimiter::default();
        let (acme, other): (Arc<str>, Arc<str>) = ("acme".into(), "other".into());
        let rate = Rate { per_s: 2.0, burst: 2 };
        let passes = |decision| matches!(decision, LimitDecision::Passed { .. });
        assert!(passes(limiter.take_now(&acme, rate, 2)));
        assert!(!passes(limiter.take_now(&acme, rate, 1)));
        assert!(passes(limiter.take_now(&other, rate, 1)));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(passes(limiter.take_now(&acme, rate, 1)));
        assert!(!passes(limiter.take_now(&acme, rate, 1)));
        // A limit that is raised is in force at once, however long ago it was the lower one.
        let slow = Rate { per_s: 0.01, burst: 2 };
        assert!(passes(limiter.take_now(&acme, Rate { burst: 3, ..slow }, 1)));
        assert!(!passes(limiter.take_now(&acme, rate, 1)));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(passes(limiter.take_now(&acme, rate, 1)));
        limiter.keep(|tenant| tenant == "other");
        assert_eq!(limiter.buckets.lock().expect("nobody panicked").len(), 1);
    }
}
