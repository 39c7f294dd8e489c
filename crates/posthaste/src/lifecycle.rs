//! What becomes of an event after a verdict: pure, no clock, no store.
//!
//! ```text
//!            ┌────────── Wait (the sink is out of reach: stays in hand, nothing counted)
//! published ─┼─ Delivered
//!            ├─ Defer  (retry later, or parked until its destination is back)
//!            ├─ Held   (behind an earlier event of its key)
//!            └─ Dead   (rejected, or attempts spent)
//! ```
//!
//! The rule that matters most: an outage is not an event's fault (F50). Only a failure whose scope is
//! the event itself spends an attempt.

use crate::mutation::{Mutation, active};
use crate::retry::RetryPolicy;
use crate::sink::{Failure, Scope, Verdict};
use crate::store::{ErrorClass, Reason};
use std::collections::BTreeMap;
use std::time::Duration;

/// What to do with an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// It is at the broker.
    Delivered,
    /// Keep it in hand and publish again when the sink is back.
    Wait(Failure),
    /// Put it among the deferred.
    Defer {
        /// Why.
        reason: Reason,
        /// Attempts spent so far, this one included if it counts.
        attempts: u32,
        /// Not before this long from now.
        delay: Duration,
        /// Class of the error.
        class: ErrorClass,
        /// The failure.
        failure: Failure,
    },
    /// Behind an earlier event of its key.
    Held,
    /// Give it up.
    Dead {
        /// Attempts spent.
        attempts: u32,
        /// Class of the error.
        class: ErrorClass,
        /// The failure.
        failure: Failure,
    },
}

/// Classes that configuration sets for a broker's codes, against the sink's own judgement.
pub type ClassOverrides = BTreeMap<String, ErrorClass>;

/// Decides. `attempts` is what was spent before this verdict; `chance` in `[0, 1)` makes the jitter.
#[must_use]
pub fn decide(
    verdict: Verdict,
    attempts: u32,
    policy: &RetryPolicy,
    overrides: &ClassOverrides,
    chance: f64,
) -> Decision {
    let (class, failure) = match verdict {
        Verdict::Delivered => return Decision::Delivered,
        Verdict::Held => return Decision::Held,
        Verdict::Retry(failure) => (ErrorClass::Transient, failure),
        Verdict::Rejected(failure) => (ErrorClass::Permanent, failure),
        Verdict::Unknown(failure) => (ErrorClass::Unknown, failure),
    };
    let overridden = overrides.get(failure.code.as_ref()).copied();
    let class = overridden.unwrap_or(class);
    // An explicit class makes it the event's own affair, whatever scope the sink saw.
    let scope = if overridden.is_some() { Scope::Event } else { failure.scope };
    match (class, scope) {
        (ErrorClass::Permanent, _) => {
            let attempts = attempts.saturating_add(1);
            if !policy.outlives_permanent(attempts) {
                return Decision::Dead { attempts, class, failure };
            }
            let delay = policy.delay(attempts, chance);
            Decision::Defer { reason: Reason::Retry, attempts, delay, class, failure }
        }
        (_, Scope::Sink) if !active(Mutation::CountOutages) => Decision::Wait(failure),
        (_, Scope::Destination) => {
            // Not counted: the destination's breaker decides when to look again.
            Decision::Defer { reason: Reason::Outage, attempts, delay: Duration::ZERO, class, failure }
        }
        (_, Scope::Event | Scope::Sink) => {
            let attempts = attempts.saturating_add(1);
            if policy.is_exhausted(attempts) {
                return Decision::Dead { attempts, class, failure };
            }
            let reason = if class == ErrorClass::Unknown { Reason::Unknown } else { Reason::Retry };
            // A broker that asks for more time than the policy gives gets it.
            let delay = policy.delay(attempts, chance).max(failure.wait_at_least());
            Decision::Defer { reason, attempts, delay, class, failure }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::Permanent;

    fn run(verdict: Verdict, attempts: u32) -> Decision {
        decide(verdict, attempts, &RetryPolicy::default(), &ClassOverrides::new(), 0.0)
    }

    #[test]
    fn outages_never_spend_an_attempt() {
        for attempts in [0, 14, 1_000] {
            let sink = Verdict::Retry(Failure::of_sink("x.down", "down"));
            assert!(matches!(run(sink, attempts), Decision::Wait(_)));
            let unknown = Verdict::Unknown(Failure::of_sink("x.timeout", "no answer"));
            assert!(matches!(run(unknown, attempts), Decision::Wait(_)));
            let place = Verdict::Retry(Failure::of_destination("x.no_leader", "no leader"));
            let Decision::Defer { reason: Reason::Outage, attempts: after, .. } = run(place, attempts) else {
                panic!("a destination's outage is parked");
            };
            assert_eq!(after, attempts);
        }
    }

    #[test]
    fn an_events_own_failure_is_counted_until_it_is_dead() {
        let retry = || Verdict::Retry(Failure::of_event("x.no", "no"));
        for attempts in 0..14 {
            let Decision::Defer { attempts: after, delay, .. } = run(retry(), attempts) else {
                panic!("deferred")
            };
            assert_eq!(after, attempts + 1);
            assert_eq!(delay, RetryPolicy::default().base(after));
        }
        assert!(matches!(
            run(retry(), 14),
            Decision::Dead { attempts: 15, class: ErrorClass::Transient, .. }
        ));
    }

    #[test]
    fn a_permanent_failure_counts_like_the_others_where_the_policy_says_so() {
        let policy = RetryPolicy { permanent: Permanent::Retry, max_attempts: 3, ..RetryPolicy::default() };
        let rejected = || Verdict::Rejected(Failure::of_event("x.denied", "no"));
        let decide = |attempts| decide(rejected(), attempts, &policy, &ClassOverrides::new(), 0.0);
        for attempts in 0..2 {
            let Decision::Defer { attempts: after, class: ErrorClass::Permanent, delay, .. } =
                decide(attempts)
            else {
                panic!("tried again")
            };
            assert_eq!((after, delay), (attempts + 1, policy.base(after)));
        }
        assert!(matches!(decide(2), Decision::Dead { attempts: 3, .. }));
    }

    #[test]
    fn a_broker_that_asks_for_time_gets_it_and_no_more_than_an_hour() {
        let asked = |seconds| {
            let failure = Failure::of_event("x.busy", "busy");
            let wait = Some(Duration::from_secs(seconds));
            match run(Verdict::Retry(failure.with_retry_after(wait)), 4) {
                Decision::Defer { delay, .. } => delay,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(asked(30), Duration::from_secs(30));
        assert_eq!(asked(0), RetryPolicy::default().base(5), "a lower bound, no upper one");
        assert_eq!(asked(u64::MAX), Duration::from_secs(3_600));
    }

    #[test]
    fn a_rejection_is_dead_at_once_and_config_may_overrule_the_sink() {
        let rejected = || Verdict::Rejected(Failure::of_event("x.denied", "no"));
        assert!(matches!(
            run(rejected(), 0),
            Decision::Dead { attempts: 1, class: ErrorClass::Permanent, .. }
        ));
        let overrides = ClassOverrides::from([("x.denied".to_owned(), ErrorClass::Transient)]);
        let decided = decide(rejected(), 0, &RetryPolicy::default(), &overrides, 0.0);
        assert!(matches!(decided, Decision::Defer { attempts: 1, .. }));
        let down = Verdict::Retry(Failure::of_sink("x.denied", "no"));
        let overrides = ClassOverrides::from([("x.denied".to_owned(), ErrorClass::Permanent)]);
        assert!(matches!(decide(down, 0, &RetryPolicy::default(), &overrides, 0.0), Decision::Dead { .. }));
    }
}
