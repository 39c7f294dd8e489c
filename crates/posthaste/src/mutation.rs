//! Deliberate defects, to prove that the simulation bites.
//!
//! A test that cannot fail is worth nothing. Each mutation below breaks one rule of the production
//! engine; the simulation must turn red within a few hundred seeds under every one of them. Without the
//! feature `mutations`, [`active`] is a constant `false` and the branch is gone.

/// One broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Settle a page when it is published, before the sink answered.
    SettleBeforeAck,
    /// Accept a settlement whose epoch is stale.
    IgnoreEpoch,
    /// Do not look again for the rows of long transactions when they end.
    SkipElders,
    /// Let the settled prefix run past a page that still has an undecided event.
    PassUnsettled,
    /// Count an attempt although the sink, or the database, was out of reach.
    CountOutages,
    /// Read from the broker's position instead of the database's.
    BrokersPosition,
    /// Go on with what is remembered although the database may have gone back in time.
    IgnoreWitness,
    /// Let any life of the database handle messages, and hear of another one only from its answer.
    AnyLife,
    /// A consumer runs a message although something of its key is deferred.
    HoldNotAsked,
    /// A consumer defers a message without its mark.
    DeferWithoutMark,
    /// Marks above the saved position are purged.
    PurgeAbovePosition,
    /// A topology's plan removes what neither the file nor the command line names.
    RemoveUnnamed,
    /// Rights are taken away before the new ones are given.
    RightsGoFirst,
}

impl Mutation {
    /// Those of the relay.
    pub const ALL: [Self; 5] =
        [Self::SettleBeforeAck, Self::IgnoreEpoch, Self::SkipElders, Self::PassUnsettled, Self::CountOutages];
    /// Those of the consumer.
    pub const OF_CONSUMER: [Self; 9] = [
        Self::SettleBeforeAck,
        Self::PassUnsettled,
        Self::CountOutages,
        Self::BrokersPosition,
        Self::IgnoreWitness,
        Self::AnyLife,
        Self::HoldNotAsked,
        Self::DeferWithoutMark,
        Self::PurgeAbovePosition,
    ];
}

#[cfg(feature = "mutations")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Breaks (or mends) the engine for the simulation that runs on this thread.
#[cfg(feature = "mutations")]
pub fn set(mutation: Option<Mutation>) {
    ACTIVE.set(mutation);
}

/// Whether the engine is broken in this way.
#[cfg(feature = "mutations")]
#[must_use]
pub fn active(mutation: Mutation) -> bool {
    ACTIVE.get() == Some(mutation)
}

/// Whether the engine is broken in this way: never.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
#[must_use]
pub const fn active(_: Mutation) -> bool {
    false
}
