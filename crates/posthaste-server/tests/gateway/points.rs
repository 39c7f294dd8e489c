//! Crash points of the gateway, for whoever dies at them and for whoever counts them.

/// Each of them, and the visit at which to die.
pub(crate) const POINTS: [(&str, u32); 4] =
    [("gateway.taken", 7), ("gateway.before_commit", 5), ("gateway.after_commit", 5), ("gateway.stored", 7)];
