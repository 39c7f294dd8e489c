//! Crash points: places where a test lets the real process die.
//!
//! Each durable boundary carries a `CRASH(name):` note that says what a death at that line leaves behind
//! and which guarantee covers it. [`crash_point!`](crate::crash_point) with the same name stands under
//! the note. Without the feature `failpoints` it is nothing at all.
//!
//! `POSTHASTE_CRASH=name` kills this process with SIGKILL the first time the line is reached,
//! `name@7` the seventh time, and `name@7:PID` kills that process instead (the database's postmaster)
//! and goes on.

use std::time::Duration;

/// A time that no test of the whole program can wait for. In such a test a variable says another one, in
/// milliseconds.
#[must_use]
pub fn time(variable: &str, usual: Duration) -> Duration {
    let said = cfg!(feature = "failpoints").then(|| std::env::var(variable).ok()).flatten();
    said.and_then(|ms| ms.parse().ok()).map_or(usual, Duration::from_millis)
}

/// Dies here if a test asked for it.
#[doc(hidden)]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "failpoints")]
        $crate::failpoint::reached($name);
    };
}

/// Called by [`crash_point!`](crate::crash_point).
#[cfg(feature = "failpoints")]
pub fn reached(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Plan {
        name: String,
        left: AtomicU64,
        victim: Option<i32>,
    }
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    let plan = PLAN.get_or_init(|| {
        let text = std::env::var("POSTHASTE_CRASH").ok()?;
        let (point, victim) = match text.split_once(':') {
            Some((point, pid)) => (point, pid.parse().ok()),
            None => (text.as_str(), None),
        };
        let (name, count) = point.split_once('@').unwrap_or((point, "1"));
        let left = AtomicU64::new(count.parse().unwrap_or(1));
        Some(Plan { name: name.to_owned(), left, victim })
    });
    let Some(plan) = plan else { return };
    if plan.name != name || plan.left.fetch_sub(1, Ordering::SeqCst) != 1 {
        return;
    }
    let victim = plan.victim.and_then(rustix::process::Pid::from_raw);
    let killed = rustix::process::kill_process(
        victim.unwrap_or_else(rustix::process::getpid),
        rustix::process::Signal::KILL,
    );
    if killed.is_err() {
        tracing::error!(name, "crash point could not kill its victim");
    }
}
