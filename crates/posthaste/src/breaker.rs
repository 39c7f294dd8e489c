//! The breaker of a sink, of one destination, of a database, or of what a handler needs.
//!
//! It opens at the first failure that is not an event's own fault, waits, lets one probe through, and
//! closes when the probe succeeds. While it is open nothing is attempted and nothing is counted (F50).

use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Closed,
    Open { until: Instant },
    Probing,
}

/// What a breaker lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    /// Everything.
    Free,
    /// One probe.
    Probe,
    /// Nothing.
    Shut,
}

/// How long a breaker waits before a probe: at first, and at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pauses {
    pub(crate) initial: Duration,
    pub(crate) max: Duration,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    state: State,
    pause: Duration,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Self { state: State::Closed, pause: Duration::ZERO }
    }

    /// A breaker that opens now.
    pub(crate) fn opened(now: Instant, initial: Duration) -> Self {
        Self { state: State::Open { until: now + initial }, pause: initial }
    }

    pub(crate) fn passage(&self, now: Instant) -> Passage {
        match self.state {
            State::Closed => Passage::Free,
            State::Open { until } if now >= until => Passage::Probe,
            State::Open { .. } | State::Probing => Passage::Shut,
        }
    }

    /// A probe is on its way.
    pub(crate) fn probe(&mut self) {
        self.state = State::Probing;
    }

    pub(crate) fn succeed(&mut self) {
        *self = Self::new();
    }

    /// Opens, or opens again for twice as long.
    pub(crate) fn fail(&mut self, now: Instant, pauses: Pauses) {
        self.pause = match self.state {
            State::Closed => pauses.initial,
            // Several calls of one outage come back at once: they are one failure.
            State::Open { until } if until > now => return,
            State::Open { .. } | State::Probing => (self.pause * 2).clamp(pauses.initial, pauses.max),
        };
        self.state = State::Open { until: now + self.pause };
    }

    /// Stays open at least this long from now: the broker asked for it. The pause after the next failure does
    /// not grow by it.
    pub(crate) fn wait_at_least(&mut self, now: Instant, wait: Duration) {
        if let State::Open { until } = &mut self.state {
            *until = (*until).max(now + wait);
        }
    }

    /// When a probe is due, if it waits for one.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until),
            State::Closed | State::Probing => None,
        }
    }

    pub(crate) fn is_probing(&self) -> bool {
        self.state == State::Probing
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// For the gauge.
    pub(crate) fn level(&self) -> f64 {
        match self.state {
            State::Closed => 0.0,
            State::Probing => 0.5,
            State::Open { .. } => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn opens_probes_backs_off_and_closes() {
        let (initial, max) = (Duration::from_millis(100), Duration::from_millis(300));
        let mut breaker = Breaker::new();
        let start = Instant::now();
        breaker.fail(start, Pauses { initial, max });
        breaker.fail(start, Pauses { initial, max });
        assert_eq!(breaker.passage(start), Passage::Shut);
        assert_eq!(breaker.passage(start + initial), Passage::Probe);
        breaker.probe();
        assert_eq!(breaker.passage(start + initial), Passage::Shut);
        breaker.fail(start + initial, Pauses { initial, max });
        assert_eq!(breaker.wakes_at(), Some(start + initial + Duration::from_millis(200)));
        breaker.probe();
        breaker.fail(start, Pauses { initial, max });
        assert_eq!(breaker.wakes_at(), Some(start + max));
        breaker.succeed();
        assert_eq!(breaker.passage(start), Passage::Free);
    }

    #[tokio::test(start_paused = true)]
    async fn stays_open_as_long_as_it_was_asked_to() {
        let (initial, max) = (Duration::from_millis(100), Duration::from_millis(300));
        let (start, asked) = (Instant::now(), Duration::from_secs(30));
        let mut breaker = Breaker::opened(start, initial);
        breaker.wait_at_least(start, asked);
        breaker.wait_at_least(start, Duration::ZERO);
        assert_eq!(breaker.passage(start + max), Passage::Shut);
        assert_eq!(breaker.passage(start + asked), Passage::Probe);
        breaker.probe();
        breaker.fail(start + asked, Pauses { initial, max });
        assert_eq!(breaker.wakes_at(), Some(start + asked + Duration::from_millis(200)));
        breaker.succeed();
        breaker.wait_at_least(start, asked);
        assert_eq!(breaker.passage(start), Passage::Free, "a closed one has nobody to wait for");
    }
}
