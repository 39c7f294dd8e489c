//! How often a lane looks, and how fast it may publish.
//!
//! Right after activity a lane looks again soon; the pause grows with quiet. When it is long enough to
//! be called sleep, the lane asks the store for wakeups, looks once more, and only then sleeps: whoever
//! appended in between is found by that look, whoever appends later sees the flag.

use super::settings::RelaySettings;
use std::time::Duration;
use tokio::time::Instant;

/// From this pause on a lane asks to be woken. Below it polling is as quick as a wakeup.
const DOZE_FROM: Duration = Duration::from_millis(40);

/// Longest pause after reads that failed.
const FAILED_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Pace {
    pause: Duration,
    next_read: Instant,
    /// Appends notify until then.
    flagged_until: Option<Instant>,
    can_wake: bool,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { pause: Duration::ZERO, next_read: Instant::now(), flagged_until: None, can_wake: true }
    }

    pub(crate) fn next_read(&self) -> Instant {
        self.next_read
    }

    /// After a read that found something: at once if there is more, soon if not.
    pub(crate) fn found(&mut self, now: Instant, more: bool, settings: &RelaySettings) {
        self.pause = Duration::from_millis(settings.poll_min_ms);
        self.next_read = if more { now } else { now + self.pause };
    }

    /// After a read that found nothing. The pause grows by half, so that missing a wakeup costs about
    /// half the quiet before it.
    pub(crate) fn found_nothing(&mut self, now: Instant, settings: &RelaySettings) {
        let min = Duration::from_millis(settings.poll_min_ms);
        self.pause = (self.pause.mul_f64(1.5)).clamp(min, self.max(settings));
        self.next_read = now + self.pause;
    }

    fn max(&self, settings: &RelaySettings) -> Duration {
        let max = if self.can_wake { settings.poll_max_ms } else { settings.poll_max_unwoken_ms };
        Duration::from_millis(max.max(settings.poll_min_ms))
    }

    /// Settings changed, perhaps: no pause that runs is longer than the longest of now.
    pub(crate) fn hurry(&mut self, now: Instant, settings: &RelaySettings) {
        self.next_read = self.next_read.min(now + self.max(settings).max(FAILED_MAX));
    }

    /// After a read that failed.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(Duration::from_millis(50), FAILED_MAX);
        self.next_read = now + self.pause;
    }

    /// How long to ask for wakeups, if it is time to.
    pub(crate) fn wants_doze(&self, now: Instant) -> Option<Duration> {
        let uncovered = self.flagged_until.is_none_or(|until| until < self.next_read);
        let sleepy = self.can_wake && self.pause >= DOZE_FROM && self.next_read > now;
        (sleepy && uncovered).then(|| self.pause + Duration::from_millis(500))
    }

    /// The flag stands: look once more before sleeping.
    pub(crate) fn flagged(&mut self, now: Instant, length: Duration) {
        self.flagged_until = Some(now + length);
        self.next_read = now;
    }

    /// The store cannot wake anybody.
    pub(crate) fn cannot_wake(&mut self) {
        self.can_wake = false;
    }

    pub(crate) fn woken(&mut self, now: Instant, settings: &RelaySettings) {
        self.pause = Duration::from_millis(settings.poll_min_ms);
        self.next_read = now;
    }
}

/// A token bucket for a sink's rate limit. It holds a tenth of a second's worth, so that a limit is
/// smooth rather than a burst each second.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_second: f64,
    tokens: f64,
    filled_at: Instant,
}

impl RateLimit {
    pub(crate) fn new(per_second: f64, now: Instant) -> Self {
        Self { per_second, tokens: 1.0, filled_at: now }
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.per_second
    }

    /// Whole events allowed now.
    pub(crate) fn allowance(&mut self, now: Instant) -> usize {
        let gained = now.saturating_duration_since(self.filled_at).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + gained).min((self.per_second / 10.0).max(1.0));
        self.filled_at = now;
        self.tokens as usize
    }

    pub(crate) fn spend(&mut self, events: usize) {
        self.tokens -= events as f64;
    }

    /// When the next event is allowed.
    pub(crate) fn next_at(&self) -> Instant {
        let missing = (1.0 - self.tokens).max(0.0) / self.per_second.max(1e-6);
        self.filled_at + Duration::from_secs_f64(missing.min(3600.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pause_grows_with_quiet_and_asks_for_wakeups_once() {
        let settings = RelaySettings::default();
        let mut pace = Pace::new();
        let mut now = Instant::now();
        let mut dozes = 0;
        for _ in 0..30 {
            pace.found_nothing(now, &settings);
            if let Some(length) = pace.wants_doze(now) {
                dozes += 1;
                pace.flagged(now, length);
                assert!(pace.next_read() <= now, "look once more");
                continue;
            }
            now = pace.next_read();
        }
        assert_eq!(pace.pause, Duration::from_millis(settings.poll_max_ms));
        assert!(dozes >= 2);
        let shorter = RelaySettings { poll_max_ms: 2_000, ..RelaySettings::default() };
        pace.found_nothing(now, &settings);
        pace.hurry(now, &settings);
        assert_eq!(pace.next_read(), now + Duration::from_secs(5));
        pace.hurry(now, &shorter);
        assert_eq!(pace.next_read(), now + Duration::from_secs(2), "the new pause holds at once");
        pace.woken(now, &settings);
        assert!(pace.next_read() <= now);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_limit_holds_over_a_second() {
        let start = Instant::now();
        let mut limit = RateLimit::new(100.0, start);
        let mut sent = 0;
        for ms in 0..1000 {
            let allowed = limit.allowance(start + Duration::from_millis(ms));
            limit.spend(allowed);
            sent += allowed;
        }
        assert!((98..=101).contains(&sent), "{sent}");
    }
}
