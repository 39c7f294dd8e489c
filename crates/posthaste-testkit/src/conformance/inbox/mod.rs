//! The inbox suite: what [`posthaste::inbox`] promises, case by case.
//!
//! A fixture is a database of a consuming service with an inbox, and one table of the service's own in which
//! a handler's effects are counted.

pub mod cases;

use async_trait::async_trait;
use posthaste::inbox::Admission;
use std::time::Duration;

/// Why a message was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdmitted {
    /// It can never be marked.
    Unfit,
    /// Another transaction was in the way: run the handler again.
    Conflict,
    /// Anything else.
    Database,
}

/// How strictly a transaction is kept apart from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// As the database does it unless told otherwise.
    Default,
    /// It has read before it admits, and sees one state of the database from then on.
    Snapshot,
}

/// A handler's transaction, on a connection of its own.
#[async_trait]
pub trait HandlerTx: Send {
    /// The crate's `admit`.
    async fn admit(&mut self, consumer: &str, message_id: &str) -> Result<Admission, NotAdmitted>;
    /// The handler's work: one more effect of this message.
    async fn apply(&mut self, message_id: &str);
    /// Commits. `false`: another transaction was in the way.
    async fn commit(self: Box<Self>) -> bool;
    /// Rolls back.
    async fn rollback(self: Box<Self>);
}

/// A database with an inbox under test: fresh for each case.
#[async_trait]
pub trait InboxFixture: Send + Sync {
    /// Begins a transaction of a handler.
    async fn begin(&self, isolation: Isolation) -> Box<dyn HandlerTx>;
    /// How often the effects of a message were applied.
    async fn effects(&self, message_id: &str) -> usize;
    /// Marks of a consumer.
    async fn marks(&self, consumer: &str) -> usize;
    /// Makes all marks older, as if so much time had passed.
    async fn age(&self, by: Duration);
    /// The crate's `purge`.
    async fn purge(&self, consumer: &str, retention: Duration, chunk: u32) -> u64;
    /// Resolves when a transaction waits for another one. `false`: this database does not show it.
    async fn somebody_waits(&self) -> bool;
}

/// Runs the inbox suite: `inbox_suite!(module_name, async_fn_that_makes_a_fixture)`. A third argument is the
/// test attribute, `tokio::test` if not given.
#[macro_export]
macro_rules! inbox_suite {
    ($name:ident, $make:expr $(, $test:meta)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::__conformance_tests!(inbox, [$make $(, $test)?],
                g5_the_first_is_admitted_and_every_other_is_a_duplicate
                g5_a_rolled_back_handler_leaves_no_mark
                g5_within_one_transaction_the_second_is_a_duplicate
                g5_consumers_do_not_share_marks
                f70_of_two_that_race_one_waits_and_is_a_duplicate
                f70_if_the_first_rolls_back_the_waiting_one_goes_on
                f70_many_at_once_have_one_effect
                a_stale_snapshot_is_a_conflict_and_then_a_duplicate
                foreign_ids_are_marked_as_they_are
                f71_what_cannot_be_marked_leaves_the_transaction_usable
                f69_a_purge_takes_old_marks_in_chunks_and_no_others
                f69_a_purged_message_is_new_again
                two_purges_at_once_do_not_disturb_each_other
            );
        }
    };
}
