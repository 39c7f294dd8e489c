//! The source suite: what [`posthaste::source`] promises, case by case.
//!
//! Which cases say something about a source depends on what it declares
//! ([`Capabilities`](posthaste::source::Capabilities)): a log and a queue both pass, each by its own words.
//! Messages are published past any sink of ours, as anybody might.

mod delivering;
mod leasing;
mod memory;
mod settling;
mod stage;

/// The cases, by name.
pub mod cases {
    pub use super::delivering::*;
    pub use super::leasing::*;
    pub use super::settling::*;
}

pub use memory::MemorySourceFixture;

use async_trait::async_trait;
use bytes::Bytes;
use posthaste::source::{Source, StartFrom};
use std::sync::Arc;
use std::time::Duration;

/// A message to publish.
#[derive(Debug, Clone, Default)]
pub struct Publication {
    /// The dedup id.
    pub id: Option<String>,
    /// The key.
    pub key: Option<String>,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// Payload; `None` is a tombstone.
    pub payload: Option<Bytes>,
}

/// How a member joins.
#[derive(Debug, Clone, Copy)]
pub struct Joining {
    /// Where the group begins.
    pub start_from: StartFrom,
    /// How long the consumer may be silent. `None`: as long as no case waits for it.
    pub stall_limit: Option<Duration>,
}

impl Default for Joining {
    fn default() -> Self {
        Self { start_from: StartFrom::Earliest, stall_limit: None }
    }
}

/// A broker under test: fresh for each case.
#[async_trait]
pub trait SourceFixture: Send + Sync {
    /// A new topic with so many partitions; fewer, if the broker has none.
    async fn topic(&self, partitions: u32) -> String;
    /// Publishes messages, in order.
    async fn publish(&self, topic: &str, messages: Vec<Publication>);
    /// One more member of a group, with connections of its own.
    async fn join(&self, group: &str, topic: &str, member: &str, how: Joining) -> Arc<dyn Source>;
    /// This member dies, as when its process is killed. The case keeps its source and goes on using it as a
    /// zombie would.
    async fn kill(&self, group: &str, member: &str);
    /// Most deliveries in hand of a member.
    fn in_hand_max(&self) -> usize;
    /// Whether members see whose a partition is. A broker may keep that to itself.
    fn shows_owners(&self) -> bool {
        true
    }
    /// Removes all messages of a partition below a position, as retention does. `false`: this fixture cannot.
    async fn remove_below(&self, topic: &str, partition: i32, position: i64) -> bool;
    /// Whether positions follow on each other without gaps, so that a loss is exact.
    fn is_dense(&self) -> bool {
        true
    }
    /// Whether the broker's clients cut white space off the values of headers.
    fn trims_headers(&self) -> bool {
        false
    }
}

/// Runs the source suite: `source_suite!(module_name, async_fn_that_makes_a_fixture)`. A third argument is
/// the test attribute, `tokio::test` if not given.
#[macro_export]
macro_rules! source_suite {
    ($name:ident, $make:expr $(, $test:meta)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::__conformance_tests!(source, [$make $(, $test)?],
                each_message_is_delivered_once
                f86_a_message_is_delivered_as_it_was_published
                f72_a_message_without_an_id_is_known_by_its_place
                g3_a_keys_messages_come_in_order
                g7_a_call_keeps_its_bounds
                g7_what_is_in_hand_is_bounded
                an_empty_source_waits_as_long_as_told
                a_waiting_call_is_woken_by_a_message
                a_dropped_call_loses_nothing
                a_group_begins_where_it_declared
                f62_a_topic_that_comes_later_is_read_from_its_beginning
                groups_do_not_share_positions
                a_loss_by_retention_is_reported
                g2_what_was_not_acknowledged_comes_again_after_a_crash
                f61_an_acknowledgement_covers_nothing_before_it
                ack_is_harmless_when_repeated
                f73_a_nacked_message_comes_again_after_its_delay
                g3_nothing_newer_passes_a_nacked_message
                a_nack_does_not_touch_other_partitions
                redeliveries_are_counted
                f21_a_death_counts_as_a_redelivery
                a_paused_partition_is_silent_and_stays
                f63_pausing_often_loses_nothing
                seeking_replays
                g4_what_was_in_hand_before_a_seek_settles_nothing
                g4_a_queue_hands_out_again_what_is_in_hand
                g8_a_drain_waits_for_what_is_in_hand_and_gives_the_rest_back
                a_drain_ends_at_its_deadline
                g4_a_zombie_settles_nothing
                g4_epochs_grow
                members_share_the_partitions
                a_member_that_leaves_is_replaced_at_once
                f67_a_silent_consumer_loses_its_partitions
                f65_members_come_and_go_and_nothing_is_lost
            );
        }
    };
}
