//! The limiter that gateways share, on real servers: the same numbers as in process, and what holds while it
//! is away.

mod loss;
mod place;
mod same;

use super::*;
use async_trait::async_trait;
use posthaste::gcra::Rate;
use posthaste::intake::{GuardedLimiter, LimitDecision, Limiter, LimiterMode, LimiterPlan, OnLoss};
use posthaste_brokers::RedisLimiter;
use posthaste_testkit::services::Proxy;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const RATE: Rate = Rate { per_s: 30.0, burst: 10 };
/// Longer than the default, so that a busy machine is no outage.
const TIMEOUT: Duration = Duration::from_millis(60);
/// What a machine that does other things too may take in addition.
const SLACK: Duration = Duration::from_secs(3);

fn limiter(config: &RedisConfig, timeout: Duration) -> Arc<RedisLimiter> {
    Arc::new(RedisLimiter::start(config, timeout, "gateway").expect("a valid configuration"))
}

fn tenant(name: &str) -> Arc<str> {
    name.into()
}

/// Nobody has asked for it before.
fn anybody() -> Arc<str> {
    tenant(&uuid::Uuid::now_v7().simple().to_string())
}

fn passes(decision: &LimitDecision) -> bool {
    matches!(decision, LimitDecision::Passed { .. })
}

/// Ten events in 33 s; in 100 s where a third of it is given away in process.
const SLOW: Rate = Rate { per_s: 0.3, burst: 10 };

/// Refused for ten events of [`SLOW`], by a gateway of three that judges alone.
fn is_a_share(decision: &LimitDecision) -> bool {
    let range = Duration::from_secs(50)..=Duration::from_secs(101);
    matches!(decision, LimitDecision::Wait { wait, .. } if range.contains(wait))
}

/// A limiter that counts who asks it.
struct Counted {
    real: Arc<RedisLimiter>,
    asked: AtomicU64,
}

#[async_trait]
impl Limiter for Counted {
    async fn take(&self, tenant: &Arc<str>, rate: Rate, events: u32) -> LimitDecision {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.real.take(tenant, rate, events).await
    }
}

/// A gateway's limiter.
struct Gateway {
    shared: Arc<Counted>,
    guard: GuardedLimiter,
}

impl Gateway {
    fn new(config: &RedisConfig, on_loss: OnLoss, timeout: Duration) -> Self {
        let shared = Arc::new(Counted { real: limiter(config, timeout), asked: AtomicU64::new(0) });
        let plan =
            LimiterPlan { shared: Some(Arc::clone(&shared) as Arc<dyn Limiter>), on_loss, gateways: 3 };
        Self { shared, guard: GuardedLimiter::new(plan) }
    }

    fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::SeqCst)
    }

    fn mode(&self) -> LimiterMode {
        self.guard.state().mode
    }

    /// One event of somebody new. Nobody waits longer than the timeout for the server.
    async fn one(&self) -> LimitDecision {
        let started = Instant::now();
        let decision = self.guard.take(&anybody(), RATE, 1).await;
        assert!(started.elapsed() < TIMEOUT + SLACK, "it took {:?}", started.elapsed());
        decision
    }

    /// Until the server judges again, within seconds of its return.
    async fn until_shared(&self) {
        let started = Instant::now();
        let judges = async || {
            self.one().await;
            let before = self.guard.errors();
            let passed = passes(&self.one().await);
            passed && self.guard.errors() == before && self.mode() == LimiterMode::Shared
        };
        until(judges).await;
        assert!(started.elapsed() < BACK_WITHIN + Duration::from_secs(20), "{:?}", started.elapsed());
    }
}
