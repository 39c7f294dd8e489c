//! What can be tuned while a relay runs. All of it applies again on reload.

use crate::breaker::Pauses;
use std::time::Duration;

/// Settings of the engine, shared by all outboxes of a process.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RelaySettings {
    /// Most events in one page. 2,048 is where a bare SELECT loop stops getting faster.
    pub page_events_max: usize,
    /// Most payload bytes in one page.
    pub page_bytes_max: usize,
    /// Events read and not yet settled, at most: what a crash can send twice.
    pub max_unsettled_events: usize,
    /// Bytes read and not yet settled, at most: what a lane holds in memory.
    pub max_unsettled_bytes: usize,
    /// Shortest pause between two reads of a lane that found nothing. It holds right after activity.
    pub poll_min_ms: u64,
    /// Longest pause: wakeups make it unimportant while they work.
    pub poll_max_ms: u64,
    /// Longest pause where the store cannot wake anybody (behind a pooler).
    pub poll_max_unwoken_ms: u64,
    /// Shortest time between two settlements of a lane while nothing presses: 20 ms is 50 a second.
    pub settle_interval_ms: u64,
    /// A lease lives this long without renewal. A vanished host's lanes are free after it.
    pub lease_ttl_ms: u64,
    /// Heartbeat: renewals, fair shares, controls. A dead process is noticed within two of them.
    pub heartbeat_ms: u64,
    /// A publish call without an answer for this long is an outage of the sink. A sink that has a bound of
    /// its own keeps it below this one, so that the sink says what the silence means.
    pub publish_timeout_ms: u64,
    /// Longest drained shutdown.
    pub drain_timeout_ms: u64,
    /// Pause between two sweeps (retention) of an outbox.
    pub sweep_interval_ms: u64,
    /// Publish calls in flight for a lane, at most. One that is not back after 250 ms no longer counts: it
    /// waits for something that the others do not need.
    pub calls_in_flight: usize,
    /// Deferred events tried at once, at most: retries never starve fresh events.
    pub due_events_max: usize,
    /// First pause of an open breaker before it probes.
    pub breaker_initial_ms: u64,
    /// Longest pause of an open breaker. Delivery resumes at most this long after an outage.
    pub breaker_max_ms: u64,
    /// Deaths of its relay before an event in hand is given up.
    pub crash_limit: u32,
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self {
            page_events_max: 2_048,
            page_bytes_max: 8 << 20,
            max_unsettled_events: 8_192,
            max_unsettled_bytes: 24 << 20,
            poll_min_ms: 3,
            poll_max_ms: 5_000,
            poll_max_unwoken_ms: 250,
            settle_interval_ms: 20,
            lease_ttl_ms: 20_000,
            heartbeat_ms: 1_000,
            publish_timeout_ms: 10_000,
            drain_timeout_ms: 15_000,
            sweep_interval_ms: 10_000,
            calls_in_flight: 4,
            due_events_max: 512,
            breaker_initial_ms: 200,
            breaker_max_ms: 2_000,
            crash_limit: 3,
        }
    }
}

impl RelaySettings {
    /// Says what is wrong with the combination, if something is.
    pub fn check(&self) -> Result<(), String> {
        let at_least_one = [
            ("page_events_max", self.page_events_max),
            ("page_bytes_max", self.page_bytes_max),
            ("max_unsettled_events", self.max_unsettled_events),
            ("max_unsettled_bytes", self.max_unsettled_bytes),
            ("calls_in_flight", self.calls_in_flight),
            ("due_events_max", self.due_events_max),
        ];
        if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must be at least 1"));
        }
        if self.poll_min_ms == 0 || self.poll_min_ms > self.poll_max_ms {
            return Err("poll_min_ms must be at least 1 and not above poll_max_ms".to_owned());
        }
        if self.heartbeat_ms == 0 || self.heartbeat_ms * 4 > self.lease_ttl_ms {
            return Err("lease_ttl_ms must be at least four heartbeats".to_owned());
        }
        let trusted = self.lease_trust().as_millis() as u64;
        if self.publish_timeout_ms + 2 * self.heartbeat_ms > trusted {
            return Err(format!(
                "publish_timeout_ms and two heartbeats must fit into the trusted part of a lease \
                 (80 % of lease_ttl_ms: {trusted} ms), or a publish could outlive its lease"
            ));
        }
        Ok(())
    }

    /// How long a lease is trusted, counted from before the call that renewed it (F22). The rest pays
    /// for clock rate error and one slow renewal.
    #[must_use]
    pub fn lease_trust(&self) -> Duration {
        Duration::from_millis(self.lease_ttl_ms * 4 / 5)
    }

    pub(crate) fn publish_timeout(&self) -> Duration {
        Duration::from_millis(self.publish_timeout_ms)
    }

    pub(crate) fn breaker_pauses(&self) -> Pauses {
        let pause = Duration::from_millis;
        Pauses { initial: pause(self.breaker_initial_ms), max: pause(self.breaker_max_ms) }
    }
}
