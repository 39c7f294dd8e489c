//! Faults over any store and any sink.
//!
//! A wrapper asks its [`Faults`] before each call what is to go wrong with it. The answer comes from
//! switches that a test sets at run time, or from a script under a seed; the wrapped thing is the
//! production one and knows nothing. Six faults, because these are the six ways a remote call fails:
//!
//! | fault | what happened | what the caller hears |
//! |---|---|---|
//! | refuse | nothing | an error; nothing was done, and that is known |
//! | do then fail | everything | an error; whether it was done is unknown |
//! | hold | nothing yet | nothing, until the hold is let go; then the truth |
//! | slow | everything, later | the truth, later |
//! | duplicate | everything, twice | the truth |
//! | drop ack | everything | nothing, ever |
//!
//! On top of them, [`Faults::freeze`] stops every call at its next step, before or after the effect, as
//! SIGSTOP would: the way to make a zombie.

mod dice;
mod recording;
mod sink;
mod store;
#[cfg(test)]
mod tests;

pub use dice::Dice;
pub use recording::{Broker, Delivery, Offer, RecordingSink, Reply};
pub use sink::FaultySink;
pub use store::FaultyStore;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The calls that can be disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Op {
    Join,
    Roll,
    Take,
    Read,
    Due,
    Settle,
    TakeInHand,
    Release,
    Sweep,
    Doze,
    Leave,
    Publish,
    Apply,
    Defer,
    ApplyDeferred,
    Save,
}

/// What goes wrong with one call; see the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Fails before anything was done.
    Refuse,
    /// Fails after everything was done.
    DoThenFail,
    /// Waits, before anything is done, until [`Faults::let_go`].
    Hold,
    /// Waits as long, before anything is done.
    Slow(Duration),
    /// Is done twice.
    Duplicate,
    /// Is done, and never answered.
    DropAck,
}

/// Probabilities for the calls of a script.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odds {
    /// Every call takes up to this long, once before and once after its effect.
    pub latency_max: Duration,
    /// Of [`Fault::Refuse`].
    pub refuse: f64,
    /// Of [`Fault::DoThenFail`].
    pub do_then_fail: f64,
    /// Of [`Fault::Duplicate`].
    pub duplicate: f64,
    /// Of [`Fault::DropAck`].
    pub drop_ack: f64,
}

#[derive(Debug, Default)]
struct FaultPlan {
    always: BTreeMap<Op, Fault>,
    once: BTreeMap<Op, VecDeque<Fault>>,
    script: Option<(Dice, Odds)>,
    frozen: bool,
    injected: u64,
}

/// What goes wrong, shared between a wrapper and the test that holds the switches.
///
/// Waiting calls go on in the order they came in: a `watch` channel would wake them in any order, and a
/// seed would not repeat itself.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    plan: Arc<Mutex<FaultPlan>>,
    thaw: Arc<Notify>,
    let_go: Arc<Notify>,
}

impl Faults {
    /// Nothing goes wrong until somebody says so.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Faults at random, under a seed.
    #[must_use]
    pub fn scripted(dice: Dice, odds: Odds) -> Self {
        let faults = Self::default();
        faults.plan().script = Some((dice, odds));
        faults
    }

    fn plan(&self) -> MutexGuard<'_, FaultPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every such call fails in this way from now on.
    pub fn always(&self, op: Op, fault: Fault) {
        self.plan().always.insert(op, fault);
    }

    /// The next such call fails in this way; several queue up.
    pub fn once(&self, op: Op, fault: Fault) {
        self.plan().once.entry(op).or_default().push_back(fault);
    }

    /// Everything works again; calls that are held go on.
    pub fn heal(&self) {
        let mut plan = self.plan();
        plan.always.clear();
        plan.once.clear();
        if let Some((_, odds)) = &mut plan.script {
            *odds = Odds { latency_max: odds.latency_max, ..Odds::default() };
        }
        drop(plan);
        self.let_go();
        self.thaw();
    }

    /// Lets every held call go on.
    pub fn let_go(&self) {
        self.let_go.notify_waiters();
    }

    /// Stops every call at its next step.
    pub fn freeze(&self) {
        self.plan().frozen = true;
    }

    /// Goes on.
    pub fn thaw(&self) {
        self.plan().frozen = false;
        self.thaw.notify_waiters();
    }

    /// How many calls went wrong so far.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.plan().injected
    }

    fn choose(&self, op: Op) -> (Fault, Duration, Duration) {
        let mut plan = self.plan();
        let once = plan.once.get_mut(&op).and_then(VecDeque::pop_front);
        let set = once.or_else(|| plan.always.get(&op).copied());
        let (thrown, before, after) = match &mut plan.script {
            None => (Fault::None, Duration::ZERO, Duration::ZERO),
            Some((dice, odds)) => {
                let table = [
                    (odds.refuse, Fault::Refuse),
                    (odds.do_then_fail, Fault::DoThenFail),
                    (odds.duplicate, Fault::Duplicate),
                    (odds.drop_ack, Fault::DropAck),
                ];
                let thrown =
                    table.iter().find(|(odds, _)| dice.happens(*odds)).map_or(Fault::None, |(_, f)| *f);
                (thrown, dice.up_to(odds.latency_max), dice.up_to(odds.latency_max))
            }
        };
        let fault = set.unwrap_or(thrown);
        plan.injected += u64::from(fault != Fault::None);
        (fault, before, after)
    }

    /// Decides about a call and lets the time before its effect pass.
    pub(crate) async fn before(&self, op: Op) -> (Fault, Duration) {
        let (fault, before, after) = self.choose(op);
        pause(before).await;
        match fault {
            Fault::Slow(delay) => pause(delay).await,
            Fault::Hold => self.let_go.notified().await,
            _ => {}
        }
        self.unfrozen().await;
        (fault, after)
    }

    /// Lets the time after a call's effect pass.
    pub(crate) async fn after(&self, fault: Fault, after: Duration) {
        pause(after).await;
        self.unfrozen().await;
        if fault == Fault::DropAck {
            std::future::pending::<()>().await;
        }
    }

    /// Lets the time of one statement inside a transaction pass.
    pub(crate) async fn step(&self) {
        let latency = match &mut self.plan().script {
            None => Duration::ZERO,
            Some((dice, odds)) => dice.up_to(odds.latency_max),
        };
        pause(latency).await;
        self.unfrozen().await;
    }

    async fn unfrozen(&self) {
        loop {
            // Asked for before the look, so that a thaw in between is not missed.
            let thaw = self.thaw.notified();
            if !self.plan().frozen {
                return;
            }
            thaw.await;
        }
    }
}

async fn pause(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await; // pace: virtual time
    }
}
