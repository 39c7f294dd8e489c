//! Crash points of the consumer, for whoever runs them and for whoever counts them.

/// What leads to a crash point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Any message.
    Plain,
    /// A message that fails at first.
    Late,
    /// A message that is rejected.
    Dead,
    /// A dead letter that somebody's tool sent to its topic again.
    Redrive,
    /// Another member that gets a partition of this one.
    Leave,
    /// A message that kills its process.
    Poison,
}

/// Every crash point, the visit at which to die, and the way that leads there.
pub(crate) const POINTS: [(&str, u32, Way); 12] = [
    ("consume.started", 1, Way::Plain),
    ("consume.taken", 1, Way::Plain),
    ("consume.admitted", 2, Way::Plain),
    ("consume.before_commit", 2, Way::Plain),
    ("consume.committed", 3, Way::Plain),
    ("consume.saved", 2, Way::Plain),
    ("consume.deferred", 2, Way::Late),
    ("consume.buried", 1, Way::Dead),
    ("consume.redriven", 1, Way::Redrive),
    ("consume.deferred_done", 1, Way::Late),
    ("consume.revoked", 1, Way::Leave),
    ("consume.poison", 1, Way::Poison),
];

/// Those of handlers in another process, which only PostgreSQL has: `http.rs`.
pub(crate) const OUTSIDE: [&str; 1] = ["outside.answered"];
