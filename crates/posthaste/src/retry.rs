//! When to try again: pure arithmetic, no clock.
//!
//! The delay after attempt `n` is a base from one of two curves, capped, plus 0–20 % of jitter on top.
//! Jitter never shortens the delay (F52): a broker that asks for a second gets at least that second.

use std::time::Duration;

/// How the base delay grows with the attempt number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Curve {
    /// `min(initial · 2^(n-1), max)`
    #[default]
    Exponential,
    /// `min(initial · n, max)`
    Linear,
}

/// What a failure that will not pass means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Permanent {
    /// The event is dead at once.
    #[default]
    Dead,
    /// It is an attempt like any other. For adopted tables whose owners count every failure, and for brokers
    /// where somebody may create the missing topic within the hour.
    Retry,
}

/// The retry policy of a route.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Attempts before an event is dead. 15 with the other defaults last about 13 minutes: longer than
    /// most deployments of the other side, short enough that somebody is still awake.
    pub max_attempts: u32,
    /// Delay after the first failed attempt.
    pub initial_ms: u64,
    /// The curve.
    pub curve: Curve,
    /// Cap of the base delay.
    pub max_ms: u64,
    /// Most jitter, as a part of the base. 0.2 is 20 %.
    pub jitter: f64,
    /// Whether a failure that will not pass ends an event at once (`dead`), or counts like the others
    /// (`retry`).
    pub permanent: Permanent,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 15,
            initial_ms: 50,
            curve: Curve::Exponential,
            max_ms: 300_000,
            jitter: 0.2,
            permanent: Permanent::Dead,
        }
    }
}

impl RetryPolicy {
    /// Base delay after attempt `n` (the first is 1).
    #[must_use]
    pub fn base(&self, attempt: u32) -> Duration {
        let n = u64::from(attempt.max(1));
        let base = match self.curve {
            Curve::Linear => self.initial_ms.saturating_mul(n),
            Curve::Exponential if n > 63 => u64::MAX,
            Curve::Exponential => self.initial_ms.saturating_mul(1 << (n - 1)),
        };
        Duration::from_millis(base.min(self.max_ms))
    }

    /// Delay after attempt `n`, with `chance` in `[0, 1)` deciding the jitter.
    #[must_use]
    pub fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let base = self.base(attempt);
        base + base.mul_f64(self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0))
    }

    /// Whether attempt `n` was the last one.
    #[must_use]
    pub fn is_exhausted(&self, attempt: u32) -> bool {
        attempt >= self.max_attempts
    }

    /// Whether a permanent failure after this many attempts, itself included, is tried again.
    #[must_use]
    pub fn outlives_permanent(&self, attempt: u32) -> bool {
        self.permanent == Permanent::Retry && !self.is_exhausted(attempt)
    }

    /// The longest time from the first attempt to the last, with all the jitter there can be: what a broker's
    /// dedup window is compared with (F39).
    #[must_use]
    pub fn horizon(&self) -> Duration {
        (1..self.max_attempts.min(10_000)).map(|n| self.delay(n, 1.0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_two_curves_as_written_down() {
        let policy = RetryPolicy::default();
        let millis: Vec<u128> = (1..=5).map(|n| policy.base(n).as_millis()).collect();
        assert_eq!(millis, [50, 100, 200, 400, 800]);
        let linear = RetryPolicy { curve: Curve::Linear, ..policy };
        let millis: Vec<u128> = (1..=5).map(|n| linear.base(n).as_millis()).collect();
        assert_eq!(millis, [50, 100, 150, 200, 250]);
    }

    #[test]
    fn fifteen_attempts_last_about_thirteen_minutes_and_fourteen_at_most() {
        let policy = RetryPolicy::default();
        let minutes = |policy: &RetryPolicy| policy.horizon().as_secs_f64() / 60.0;
        assert!((14.0..14.5).contains(&minutes(&policy)), "{}", minutes(&policy));
        // Jitter adds a tenth on average.
        let average = minutes(&RetryPolicy { jitter: 0.0, ..policy }) * 1.1;
        assert!((12.5..13.5).contains(&average), "{average}");
    }

    proptest! {
        // F52
        #[test]
        fn capped_and_never_below_the_base(n in 1u32..1_000_000, chance in 0.0f64..1.0, linear: bool) {
            let curve = if linear { Curve::Linear } else { Curve::Exponential };
            let policy = RetryPolicy { curve, ..RetryPolicy::default() };
            let (base, delay) = (policy.base(n), policy.delay(n, chance));
            prop_assert!(base <= Duration::from_millis(policy.max_ms));
            prop_assert!(delay >= base);
            prop_assert!(delay <= base.mul_f64(1.2) + Duration::from_nanos(1));
        }
    }
}
