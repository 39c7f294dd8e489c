//! What can be tuned while a consumer runs, and what cannot. All of the settings apply again on reload.

use super::policy::ConsumerRetry;
use super::store::ConsumerRetention;
use crate::breaker::Pauses;
use std::collections::BTreeMap;
use std::time::Duration;

/// What becomes of later messages of a key after one of it has died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnDead {
    /// They go on.
    #[default]
    Continue,
    /// They wait until it is replayed or discarded.
    Hold,
}

/// What a consumer does when every message fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AllFailing {
    /// Each is tried as often as `retry` says, and is a dead letter then.
    #[default]
    Bury,
    /// Once 20 messages of 5 keys have failed and nothing has succeeded for 30 s, one message at a time is
    /// tried, and the others wait.
    Pause,
}

/// What becomes of a message that no handler takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Unmatched {
    /// It is acknowledged and counted. No mark is written.
    #[default]
    Skip,
    /// It is a dead letter.
    Dead,
}

/// How long a dependency's breaker waits before a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DependencyPauses {
    /// At first.
    pub initial_ms: u64,
    /// At most.
    pub max_ms: u64,
}

impl Default for DependencyPauses {
    fn default() -> Self {
        Self { initial_ms: 1_000, max_ms: 60_000 }
    }
}

impl DependencyPauses {
    pub(crate) fn pauses(self) -> Pauses {
        Pauses { initial: Duration::from_millis(self.initial_ms), max: Duration::from_millis(self.max_ms) }
    }
}

/// Settings of one consumer.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ConsumerSettings {
    /// How often and when a message is tried again.
    pub retry: ConsumerRetry,
    /// What becomes of later messages of a key after one of it has died.
    pub on_dead: OnDead,
    /// What it does when every message fails.
    pub all_failing: AllFailing,
    /// A handler that takes longer for one message has failed.
    pub handler_timeout_ms: u64,
    /// Messages of one transaction. Whoever calls others from a handler sets 1: innocent handlers of a failed
    /// batch run again.
    pub batch_max: usize,
    /// Bytes of one transaction; one message may exceed it alone.
    pub batch_bytes_max: usize,
    /// Transactions at once.
    pub transactions_max: usize,
    /// Messages taken and not yet settled, at most: what a crash can bring again.
    pub in_hand_max: usize,
    /// Bytes taken and not yet settled, at most.
    pub in_hand_bytes_max: usize,
    /// A message that would wait for longer than this is deferred, so that the position can go on.
    pub memory_wait_max_ms: u64,
    /// Deferred messages of this consumer, at most. Above it partitions are paused, and the broker keeps the
    /// rest (G7).
    pub deferred_max: u64,
    /// How long things are kept.
    pub retention: ConsumerRetention,
    /// Breakers of dependencies, by name. One that is not named has the default pauses.
    pub dependencies: BTreeMap<String, DependencyPauses>,
    /// How long a partition that goes to another member waits for open transactions.
    pub handover_wait_ms: u64,
    /// Longest drained shutdown.
    pub drain_timeout_ms: u64,
    /// Deaths of its process before a message in hand is given up.
    pub crash_limit: u32,
}

impl Default for ConsumerSettings {
    fn default() -> Self {
        Self {
            retry: ConsumerRetry::default(),
            on_dead: OnDead::Continue,
            all_failing: AllFailing::Bury,
            handler_timeout_ms: 10_000,
            batch_max: 64,
            batch_bytes_max: 1 << 20,
            transactions_max: 4,
            in_hand_max: 8_192,
            in_hand_bytes_max: 32 << 20,
            memory_wait_max_ms: 10_000,
            deferred_max: 100_000,
            retention: ConsumerRetention::default(),
            dependencies: BTreeMap::new(),
            handover_wait_ms: 5_000,
            drain_timeout_ms: 15_000,
            crash_limit: 3,
        }
    }
}

impl ConsumerSettings {
    /// Says what is wrong, if something is.
    pub fn check(&self) -> Result<(), String> {
        let at_least_one = [
            ("batch_max", self.batch_max as u64),
            ("batch_bytes_max", self.batch_bytes_max as u64),
            ("transactions_max", self.transactions_max as u64),
            ("in_hand_max", self.in_hand_max as u64),
            ("in_hand_bytes_max", self.in_hand_bytes_max as u64),
            ("deferred_max", self.deferred_max),
            ("handler_timeout_ms", self.handler_timeout_ms),
            ("crash_limit", u64::from(self.crash_limit)),
        ];
        if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must be at least 1"));
        }
        if self.batch_max > self.in_hand_max {
            return Err("batch_max must not be above in_hand_max".to_owned());
        }
        Ok(())
    }

    pub(crate) fn handler_timeout(&self) -> Duration {
        Duration::from_millis(self.handler_timeout_ms)
    }

    pub(crate) fn pauses_of(&self, dependency: &str) -> Pauses {
        self.dependencies.get(dependency).copied().unwrap_or_default().pauses()
    }
}
