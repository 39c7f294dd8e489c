//! How large a fault is. `./test` plays all of them small; `POSTHASTE_SOAK=1` plays them at full size,
//! for a machine that does nothing else meanwhile.

use std::time::Duration;

/// Whether the faults are played at full size.
pub(crate) fn is_soak() -> bool {
    std::env::var_os("POSTHASTE_SOAK").is_some_and(|value| !value.is_empty() && value != "0")
}

/// One of two sizes.
pub(crate) fn sized<T>(small: T, full: T) -> T {
    if is_soak() { full } else { small }
}

/// How long an outage lasts.
pub(crate) fn outage_time() -> Duration {
    Duration::from_secs(sized(5, 60))
}

/// Memory that a relay may take beside its own file, whatever waits for it.
pub(crate) const RSS_MAX_MB: u64 = 40;
