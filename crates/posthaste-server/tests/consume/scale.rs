//! How large a fault is. `./test` plays all of them small; `POSTHASTE_SOAK=1` plays them at full size,
//! for a machine that does nothing else meanwhile.

/// One of two sizes.
pub(crate) fn sized<T>(small: T, full: T) -> T {
    let is_soak = std::env::var_os("POSTHASTE_SOAK").is_some_and(|value| !value.is_empty() && value != "0");
    if is_soak { full } else { small }
}
