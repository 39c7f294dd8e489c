//! What a consumer has in its hands: partitions, their key queues, the transactions that are open, and what
//! its handlers wait for.
//!
//! These are plain data with rules, without time of their own and without a database. The engine of
//! [`crate::consumer`] owns them and decides what happens next.

pub(crate) mod dependencies;
pub(crate) mod failing;
pub(crate) mod partition;
pub(crate) mod queue;
pub(crate) mod share;
pub(crate) mod transaction;
