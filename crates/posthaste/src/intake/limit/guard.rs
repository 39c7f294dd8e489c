//! What holds while the limiter that all gateways share is away.
//!
//! The mode is declared, and its default goes on in this process: to refuse everybody because a limiter is
//! down is an outage of its own making. In process a tenant has its rate divided by the number of gateways,
//! because buckets that know nothing of each other would multiply it; its burst stays whole.
//!
//! Five failures in a row are a loss. Then nobody asks for a second, and one request asks for all: a frozen
//! server costs one request in a second its timeout, and the others nothing. What is wrong with one tenant's
//! row is no loss: that tenant alone is judged in process.
//!
//! Whoever was refused is refused again without a question until a single event could pass. So a flood costs
//! the shared limiter nothing. The refusal is remembered with the rate it was judged by, because a limit that
//! was raised is in force at once.

#[cfg(test)]
mod tests;

use super::{LimitDecision, Limiter, LocalLimiter};
use crate::breaker::{Breaker, Passage, Pauses};
use crate::clock::{Clock, SystemClock};
use crate::event::Timestamp;
use crate::gcra::Rate;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Enough to tell an outage from a hiccup, and few enough that nobody notices them.
const FAILURES: u32 = 5;
/// A second without a question: the next one costs a request at most its timeout.
const PAUSE: Pauses = Pauses { initial: Duration::from_secs(1), max: Duration::from_secs(1) };

/// What becomes of requests while the shared limiter is away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// They are judged in this process, by the rate divided by the number of gateways.
    #[default]
    Local,
    /// They pass.
    Open,
    /// They are refused.
    Closed,
}

/// Who judges now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimiterMode {
    /// The limiter that all gateways share.
    Shared,
    /// This process.
    Local,
    /// Nobody, and everything passes.
    Open,
    /// Nobody, and nothing passes.
    Closed,
}

impl LimiterMode {
    /// All of them, for the gauge.
    pub const ALL: [Self; 4] = [Self::Shared, Self::Local, Self::Open, Self::Closed];

    /// Its name: a label of the metric, and a word of `/readyz`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

impl From<OnLoss> for LimiterMode {
    fn from(on_loss: OnLoss) -> Self {
        match on_loss {
            OnLoss::Local => Self::Local,
            OnLoss::Open => Self::Open,
            OnLoss::Closed => Self::Closed,
        }
    }
}

/// Who judges, since when and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterState {
    /// Who judges.
    pub mode: LimiterMode,
    /// Since when.
    pub since: Timestamp,
    /// Why it is not the shared one, if there is one. An operator's words, without secrets.
    pub why: Option<String>,
}

/// What the configuration says of the limiter.
#[derive(Clone, Default)]
pub struct LimiterPlan {
    /// The one that all gateways share. `None`: tenants are judged in process.
    pub shared: Option<Arc<dyn Limiter>>,
    /// What becomes of requests while it is away.
    pub on_loss: OnLoss,
    /// How many gateways there are. In process a tenant has this part of its rate. 0 counts as 1.
    pub gateways: u32,
}

impl std::fmt::Debug for LimiterPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { shared, on_loss, gateways } = self;
        f.debug_struct("LimiterPlan")
            .field("shared", &shared.is_some())
            .field("on_loss", on_loss)
            .field("gateways", gateways)
            .finish()
    }
}

impl LimiterPlan {
    /// The part of a rate that this process may give away by itself.
    fn share(&self, rate: Rate) -> Rate {
        Rate { per_s: rate.per_s / f64::from(self.gateways.max(1)), burst: rate.burst }
    }

    fn mode_at_first(&self) -> LimiterMode {
        if self.shared.is_some() { LimiterMode::Shared } else { LimiterMode::Local }
    }
}

/// Asks the shared limiter while it is there, and does what was declared while it is not.
#[derive(Debug)]
pub struct GuardedLimiter {
    plan: Mutex<Arc<LimiterPlan>>,
    /// Its buckets live on while the mode changes: to and fro gives nobody a second burst.
    local: LocalLimiter,
    watched: Mutex<Outlook>,
    refusals: Mutex<FxHashMap<Arc<str>, Refusal>>,
    state: watch::Sender<LimiterState>,
    errors: AtomicU64,
}

/// How the shared limiter fares.
#[derive(Debug)]
struct Outlook {
    breaker: Breaker,
    /// In a row.
    failures: u32,
    /// Of the plan. What was asked under an earlier one says nothing of this one.
    generation: u64,
    /// Tenants of which it cannot say anything.
    odd: FxHashSet<Arc<str>>,
}

/// When a single event could pass, judged by this rate.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    until: Instant,
    judged_by: Rate,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GuardedLimiter {
    /// Begins with the shared limiter, if there is one.
    #[must_use]
    pub fn new(plan: LimiterPlan) -> Self {
        let state = LimiterState { mode: plan.mode_at_first(), since: SystemClock.now(), why: None };
        Self {
            plan: Mutex::new(Arc::new(plan)),
            local: LocalLimiter::default(),
            watched: Mutex::new(Outlook {
                breaker: Breaker::new(),
                failures: 0,
                generation: 0,
                odd: FxHashSet::default(),
            }),
            refusals: Mutex::default(),
            state: watch::Sender::new(state),
            errors: AtomicU64::new(0),
        }
    }

    /// Another configuration, from now on. Buckets in process live on. Of the same shared limiter it is still
    /// known whether it is away; another one begins anew.
    pub fn change(&self, plan: LimiterPlan) {
        let mut watched = lock(&self.watched);
        let earlier = Arc::clone(&lock(&self.plan));
        let is_same =
            matches!((&earlier.shared, &plan.shared), (Some(old), Some(new)) if Arc::ptr_eq(old, new));
        if !is_same {
            watched.breaker = Breaker::new();
            watched.failures = 0;
            watched.generation += 1;
            self.enter_mode(plan.mode_at_first(), None);
        } else if !watched.breaker.is_closed() {
            let why = self.state.borrow().why.clone();
            self.enter_mode(plan.on_loss.into(), why.as_deref());
        }
        *lock(&self.plan) = Arc::new(plan);
    }

    /// Takes so many events of a tenant whose rate this is. `Lost` says that nobody can judge and that
    /// nothing may pass: the answer is 503. It is never `Odd`.
    pub async fn take(&self, tenant: &Arc<str>, rate: Rate, events: u32) -> LimitDecision {
        if let Some(refused) = self.refused(tenant, rate, events) {
            return refused;
        }
        let plan = Arc::clone(&lock(&self.plan));
        // Before the question: the time is never longer than it was said.
        let asked = Instant::now();
        let (decision, judged_by) = self.judge(&plan, tenant, rate, events).await;
        if let LimitDecision::Wait { one, .. } = &decision
            && !one.is_zero()
        {
            let refusal = Refusal { until: asked + *one, judged_by };
            lock(&self.refusals).insert(Arc::clone(tenant), refusal);
        }
        decision
    }

    /// The refusal of a tenant that was refused a moment ago, if its time has not come. Nobody is asked for
    /// it, and it costs nothing: it can be had before the body of a request is read.
    #[must_use]
    pub fn refused(&self, tenant: &Arc<str>, rate: Rate, events: u32) -> Option<LimitDecision> {
        // Read first: nobody waits for one lock with the state's in hand.
        let mode = self.state.borrow().mode;
        let judged_by = match mode {
            LimiterMode::Shared => rate,
            LimiterMode::Local => lock(&self.plan).share(rate),
            LimiterMode::Open | LimiterMode::Closed => return None,
        };
        let refusal = lock(&self.refusals).get(tenant).copied()?;
        let one = refusal.until.checked_duration_since(Instant::now()).filter(|one| !one.is_zero())?;
        if refusal.judged_by != judged_by {
            return None;
        }
        let more = f64::from(events.saturating_sub(1)) * judged_by.interval_us();
        let wait = one.saturating_add(Duration::from_micros(more.ceil() as u64));
        Some(LimitDecision::Wait { wait, one, left: 0 })
    }

    /// Forgets whoever is not among these any more. So memory is bounded by the tenants that are known.
    pub fn keep(&self, is_known: impl Fn(&str) -> bool) {
        self.local.keep(&is_known);
        lock(&self.refusals).retain(|tenant, _| is_known(tenant));
        lock(&self.watched).odd.retain(|tenant| is_known(tenant));
    }

    /// Who judges now.
    #[must_use]
    pub fn state(&self) -> LimiterState {
        self.state.borrow().clone()
    }

    /// The same, with each change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<LimiterState> {
        self.state.subscribe()
    }

    /// How often the shared limiter could not say, of one tenant or of any.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// The decision, and the rate it was judged by.
    async fn judge(
        &self,
        plan: &LimiterPlan,
        tenant: &Arc<str>,
        rate: Rate,
        events: u32,
    ) -> (LimitDecision, Rate) {
        let share = plan.share(rate);
        let local = || (self.local.take_now(tenant, share, events), share);
        let Some(shared) = &plan.shared else { return local() };
        let why = match self.ask() {
            None => self.state.borrow().why.clone().unwrap_or_default(),
            Some(question) => match shared.take(tenant, rate, events).await {
                LimitDecision::Lost(why) => {
                    question.lost(plan.on_loss, &why);
                    why
                }
                LimitDecision::Odd(why) => {
                    question.answered();
                    self.note_odd(tenant, &why);
                    return local();
                }
                said => {
                    question.answered();
                    return (said, rate);
                }
            },
        };
        match plan.on_loss {
            OnLoss::Local => local(),
            OnLoss::Open => {
                let left = rate.burst.saturating_sub(events);
                (LimitDecision::Passed { left, full_in: Duration::ZERO }, rate)
            }
            OnLoss::Closed => (LimitDecision::Lost(why), rate),
        }
    }

    /// The right to ask the shared limiter.
    fn ask(&self) -> Option<Question<'_>> {
        let mut watched = lock(&self.watched);
        let is_probe = match watched.breaker.passage(Instant::now()) {
            Passage::Free => false,
            Passage::Probe => {
                watched.breaker.probe();
                true
            }
            Passage::Shut => return None,
        };
        Some(Question { guard: self, generation: watched.generation, is_probe, is_open: true })
    }

    fn note_odd(&self, tenant: &Arc<str>, why: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        if lock(&self.watched).odd.insert(Arc::clone(tenant)) {
            tracing::warn!(
                tenant = &**tenant,
                "the shared limiter cannot judge this tenant, and this process does: {why}"
            );
        }
    }

    /// Called with `watched` locked, so that changes are told in their order.
    fn enter_mode(&self, mode: LimiterMode, why: Option<&str>) {
        let why = why.map(str::to_owned);
        let is_new = self.state.borrow().mode != mode;
        self.state.send_if_modified(|state| {
            let since = if is_new { SystemClock.now() } else { state.since };
            let next = LimiterState { mode, since, why: why.clone() };
            std::mem::replace(state, next.clone()) != next
        });
        if !is_new {
            return;
        }
        let (limiter, why) = (mode.as_str(), why.unwrap_or_default());
        match mode {
            LimiterMode::Shared => tracing::info!(limiter, "the shared limiter judges tenants again"),
            LimiterMode::Local => {
                tracing::warn!(
                    limiter,
                    "tenants are judged by this process alone, by its share of their rates: {why}"
                );
            }
            LimiterMode::Open => tracing::warn!(limiter, "no limit holds (on_loss = \"open\"): {why}"),
            LimiterMode::Closed => {
                tracing::error!(limiter, "every request is refused (on_loss = \"closed\"): {why}");
            }
        }
    }
}

/// A question to the shared limiter that is under way.
struct Question<'g> {
    guard: &'g GuardedLimiter,
    generation: u64,
    is_probe: bool,
    is_open: bool,
}

impl Question<'_> {
    fn answered(mut self) {
        self.is_open = false;
        let mut watched = lock(&self.guard.watched);
        if watched.generation != self.generation {
            return;
        }
        if self.is_probe {
            watched.breaker.succeed();
            self.guard.enter_mode(LimiterMode::Shared, None);
        }
        watched.failures = 0;
    }

    fn lost(mut self, on_loss: OnLoss, why: &str) {
        self.is_open = false;
        self.guard.errors.fetch_add(1, Ordering::Relaxed);
        let mut watched = lock(&self.guard.watched);
        if watched.generation != self.generation {
            return;
        }
        // What was asked before the breaker opened comes back late, and says nothing new.
        if !self.is_probe && !watched.breaker.is_closed() {
            return;
        }
        watched.failures += 1;
        if self.is_probe || watched.failures >= FAILURES {
            watched.breaker.fail(Instant::now(), PAUSE);
            self.guard.enter_mode(on_loss.into(), Some(why));
        }
    }
}

/// A request whose client hung up may have been the probe. Another one shall ask in its place.
impl Drop for Question<'_> {
    fn drop(&mut self) {
        if self.is_open && self.is_probe {
            let mut watched = lock(&self.guard.watched);
            if watched.generation == self.generation {
                watched.breaker.fail(Instant::now(), PAUSE);
            }
        }
    }
}
