//! The store suite: what [`posthaste::store`] promises, case by case.

mod care;
mod deferring;
mod leasing;
mod reading;
mod settling;
mod stage;

/// The cases, by name.
pub mod cases {
    pub use super::care::*;
    pub use super::deferring::*;
    pub use super::leasing::*;
    pub use super::reading::*;
    pub use super::settling::*;
}

use async_trait::async_trait;
use posthaste::admin::{Control, ControlTarget, DeadAct};
use posthaste::event::{Event, Timestamp};
use posthaste::store::Store;
use std::sync::Arc;

/// A transaction of the application. It stays open across anything a case does.
#[async_trait]
pub trait OpenTransaction: Send {
    /// Appends an event and returns its number, which is drawn now.
    async fn append(&mut self, event: Event) -> i64;
    /// Commits.
    async fn commit(self: Box<Self>);
    /// Rolls back.
    async fn rollback(self: Box<Self>);
}

/// A store under test: one fresh, empty database for each case.
#[async_trait]
pub trait StoreFixture: Send + Sync {
    /// A store for one more relay on the same database, with connections of its own.
    async fn store(&self) -> Arc<dyn Store>;
    /// Begins a transaction of the application, on a connection of its own.
    async fn begin(&self) -> Box<dyn OpenTransaction>;
    /// Whether several transactions can write at once, so that one overtakes another. Where one writes at a
    /// time, nothing commits late, and cases about that end early.
    fn writers_overlap(&self) -> bool {
        true
    }
    /// The store's clock.
    async fn now(&self) -> Timestamp;
    /// Numbers of a sink's deferred events, ascending.
    async fn deferred(&self, sink: &str) -> Vec<i64>;
    /// Numbers of a sink's dead letters, ascending.
    async fn dead(&self, sink: &str) -> Vec<i64>;
    /// Replays or discards every dead letter of a sink.
    async fn act_on_dead(&self, sink: &str, act: DeadAct);
    /// Sets a control, as an operator does.
    async fn control(&self, target: &ControlTarget, control: &Control);
    /// The heart of this relay stops for good, as when its process dies. The case keeps the relay's store
    /// and leases, and goes on using them as a zombie would.
    async fn kill(&self, relay: &str);
    /// Crashes the server and waits until it is back. `false`: this fixture cannot.
    async fn crash_server(&self) -> bool {
        false
    }
}

/// Runs the store suite: `store_suite!(module_name, async_fn_that_makes_a_fixture)`. A third argument is
/// the test attribute, `tokio::test` if not given.
#[macro_export]
macro_rules! store_suite {
    ($name:ident, $make:expr $(, $test:meta)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::__conformance_tests!(store, [$make $(, $test)?],
                g1_a_rolled_back_event_is_never_read
                g1_an_open_transaction_is_not_read
                g2_each_committed_event_is_read_once
                g2_pages_of_any_size_follow_each_other
                g2_a_late_commit_is_read_after_its_successors
                g2_a_late_commit_is_found_by_the_next_owner
                g2_an_elder_is_found_long_after_it_was_passed
                g2_a_running_transaction_that_no_snapshot_listed_is_found
                g2_late_events_come_before_newer_ones
                g2_a_transaction_larger_than_a_page_is_read_whole
                g2_rollbacks_leave_gaps_and_nothing_waits_for_them
                full_late_pages_catch_up
                catching_up_goes_on_where_it_was_settled
                g2_unsettled_pages_are_read_again_by_the_next_owner
                g2_prefix_only_is_settled
                page_limits_hold_in_events_and_bytes
                pages_are_numbered_without_gaps
                a_sink_reads_only_what_its_filter_admits
                a_sparse_sink_moves_on
                two_sinks_have_their_own_cursors
                a_new_sink_starts_at_now_earliest_or_seq
                lanes_divide_the_events_and_keep_keys_together
                f86_an_event_is_read_as_it_was_written
                settle_is_harmless_when_repeated
                settle_is_all_or_nothing
                settle_takes_whatever_a_broker_says
                settling_an_older_page_changes_nothing
                one_settlement_may_cover_several_pages
                g4_a_stale_epoch_cannot_settle
                g4_a_stale_epoch_cannot_settle_deferred_events
                g4_a_released_lease_cannot_settle
                g4_epochs_grow
                dead_letters_are_kept_for_each_sink
                g3_a_deferred_event_detains_its_key
                g3_held_events_come_due_one_after_another
                g3_what_waits_behind_comes_due_whatever_the_reason
                g3_a_held_event_with_nothing_before_it_is_due_at_once
                a_deferred_event_comes_due_after_its_delay
                a_scheduled_event_waits_and_does_not_hold_its_key
                an_unordered_deferred_event_detains_nobody
                dead_letters_hold_their_key_when_asked
                a_replayed_letter_returns_to_its_place
                what_happened_to_a_deferred_event_travels_with_it
                due_leaves_out_closed_destinations_and_paused_routes
                g3_nothing_passes_what_due_leaves_out
                g3_a_run_begins_at_the_head_of_its_key
                g3_a_run_ends_at_a_dead_letter_that_holds
                due_is_bounded
                deferred_events_belong_to_their_lane_and_outlive_its_owner
                a_live_lane_cannot_be_taken
                a_released_lane_is_free_at_once
                an_expired_lane_is_free
                a_renewed_lane_stays
                a_dead_process_frees_its_lanes
                two_relays_race_for_a_lane_and_one_wins
                other_routes_are_refused_while_a_relay_lives
                the_stored_number_of_lanes_wins
                the_roll_shows_relays_lanes_and_clock
                controls_reach_every_roll
                joining_again_changes_nothing
                g8_a_relay_that_has_not_joined_leaves_in_peace
                an_append_wakes_a_dozing_relay
                a_sweep_loses_nothing
                f7_a_crash_of_the_server_ends_every_lease
                care_grows_after_unclean_handovers
                release_is_clean
                progress_resets_care
                f21_small_steps_do_not_hide_a_death
                f21_the_event_in_hand_is_the_suspect
                f21_a_crash_of_the_server_is_nobodys_death
            );
        }
    };
}
