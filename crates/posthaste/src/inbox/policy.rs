//! What a failure leads to. Pure.
//!
//! | what happened, alone | attempt | then |
//! |---|---|---|
//! | any error, a timeout, a panic | +1 | again after the next delay; after the last dead, or durable |
//! | the message is poison | +1 | dead at once |
//! | a dependency is away | – | its breaker opens |
//! | another transaction was in the way | – | again, soon |
//! | the database is away | – | its breaker opens; every third time in the same handler +1 |

use super::failure::{Disposition, Failure, FailureKind};
use super::store::Work;
use crate::retry::RetryPolicy;
use std::time::Duration;

/// How often and when a message is tried again.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ConsumerRetry {
    /// The delays of the first tries, one for each. Jitter comes on top and never shortens one (F52).
    pub delays_ms: Vec<u64>,
    /// Durable tries after those. Without it the message is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub then: Option<RetryPolicy>,
}

impl Default for ConsumerRetry {
    fn default() -> Self {
        Self { delays_ms: vec![1_000, 2_000, 5_000], then: None }
    }
}

/// Most jitter on top of a delay of the list, as a part of it.
const JITTER: f64 = 0.2;

impl ConsumerRetry {
    /// The delay before the next try after so many attempts; `None`: that was the last one.
    #[must_use]
    pub fn delay(&self, attempts: u32, chance: f64) -> Option<Duration> {
        let spent = attempts.max(1) as usize;
        if let Some(base) = self.delays_ms.get(spent - 1) {
            let base = Duration::from_millis(*base);
            return Some(base + base.mul_f64(JITTER * chance.clamp(0.0, 1.0)));
        }
        // The list's tries count for the durable ones' maximum; their curve begins with the first of them.
        let then = self.then.as_ref().filter(|then| !then.is_exhausted(attempts))?;
        let durable = attempts.saturating_sub(self.delays_ms.len() as u32);
        Some(then.delay(durable, chance))
    }
}

/// What becomes of a message after a failure that it had alone.
#[derive(Debug, Clone, PartialEq)]
pub enum Consequence {
    /// Another try, not before this long from now. So many attempts are spent.
    Retry {
        /// Attempts so far.
        attempts: u32,
        /// The delay.
        delay: Duration,
    },
    /// It is given up.
    Dead {
        /// Attempts so far.
        attempts: u32,
        /// How it came to it.
        disposition: Disposition,
    },
    /// It spent no attempt: the fault is elsewhere, and whoever knows where waits for it.
    NotCounted,
}

/// So many losses of the connection in one message's handler are one attempt.
pub(crate) const LOSSES_EACH: u32 = 3;

impl ConsumerRetry {
    /// Decides for a deferred message. How often its handler lost the connection is in its history: every
    /// third time is an attempt, and from then on an error as others are.
    #[must_use]
    pub fn decide_deferred(&self, failure: &mut Failure, work: &Work, chance: f64) -> Consequence {
        let attempts = work.history.attempts().iter().rev();
        let before = attempts.take_while(|attempt| attempt.class == failure.class()).count();
        if failure.kind != FailureKind::ConnectionLost || before + 1 < LOSSES_EACH as usize {
            return self.decide(failure, work.attempts, chance);
        }
        failure.kind = FailureKind::Error;
        match self.decide(failure, work.attempts, chance) {
            Consequence::Dead { attempts, .. } => {
                Consequence::Dead { attempts, disposition: Disposition::Crashed }
            }
            other => other,
        }
    }

    /// Decides. `attempts` is what was spent before this failure; `chance` in `[0, 1)` makes the jitter.
    #[must_use]
    pub fn decide(&self, failure: &Failure, attempts: u32, chance: f64) -> Consequence {
        let counted = attempts.saturating_add(1);
        let last = match failure.kind {
            FailureKind::Error => Disposition::Exhausted,
            FailureKind::Timeout => Disposition::Timeout,
            FailureKind::Panic => Disposition::Panic,
            FailureKind::Poison(disposition) => return Consequence::Dead { attempts: counted, disposition },
            _ => return Consequence::NotCounted,
        };
        match self.delay(counted, chance) {
            Some(delay) => Consequence::Retry { attempts: counted, delay },
            None => Consequence::Dead { attempts: counted, disposition: last },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(kind: FailureKind) -> Failure {
        Failure::new(kind, "c", "m")
    }

    #[test]
    fn four_runs_in_all_and_then_dead() {
        let retry = ConsumerRetry::default();
        let error = failure(FailureKind::Error);
        for (spent, delay) in [(0, 1_000), (1, 2_000), (2, 5_000)] {
            let delay = Duration::from_millis(delay);
            assert_eq!(retry.decide(&error, spent, 0.0), Consequence::Retry { attempts: spent + 1, delay });
            let Consequence::Retry { delay: jittered, .. } = retry.decide(&error, spent, 0.99) else {
                panic!("a retry")
            };
            assert!(jittered > delay && jittered <= delay.mul_f64(1.2), "never less (F52): {jittered:?}");
        }
        for (kind, disposition) in [
            (FailureKind::Error, Disposition::Exhausted),
            (FailureKind::Timeout, Disposition::Timeout),
            (FailureKind::Panic, Disposition::Panic),
        ] {
            assert_eq!(retry.decide(&failure(kind), 3, 0.5), Consequence::Dead { attempts: 4, disposition });
        }
    }

    #[test]
    fn durable_tries_follow_the_list_and_end() {
        let then = RetryPolicy { max_attempts: 6, initial_ms: 10_000, jitter: 0.0, ..RetryPolicy::default() };
        let retry = ConsumerRetry { then: Some(then), ..ConsumerRetry::default() };
        let error = failure(FailureKind::Error);
        let delays: Vec<_> = (3..6).map(|spent| retry.decide(&error, spent, 0.0)).collect();
        let again = |attempts, secs| Consequence::Retry { attempts, delay: Duration::from_secs(secs) };
        let dead = Consequence::Dead { attempts: 6, disposition: Disposition::Exhausted };
        assert_eq!(delays, [again(4, 10), again(5, 20), dead]);
    }

    #[test]
    fn f50_an_outage_spends_nothing_and_poison_is_dead_at_once() {
        let retry = ConsumerRetry::default();
        for kind in [
            FailureKind::Unavailable("api".into()),
            FailureKind::Conflict,
            FailureKind::Outage,
            FailureKind::ConnectionLost,
        ] {
            assert_eq!(retry.decide(&failure(kind), 3, 0.0), Consequence::NotCounted);
        }
        let poison = failure(FailureKind::Poison(Disposition::Decode));
        let dead = Consequence::Dead { attempts: 1, disposition: Disposition::Decode };
        assert_eq!(retry.decide(&poison, 0, 0.0), dead);
    }

    #[test]
    fn an_empty_list_gives_one_try() {
        let retry = ConsumerRetry { delays_ms: Vec::new(), then: None };
        let dead = Consequence::Dead { attempts: 1, disposition: Disposition::Exhausted };
        assert_eq!(retry.decide(&failure(FailureKind::Error), 0, 0.0), dead);
    }
}
