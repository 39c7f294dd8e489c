//! The list of the consumer suite. Its cases, and what they are made of, stand beside the model.

pub use crate::inbox::suite::*;

/// Runs the consumer suite: `consumer_suite!(module_name, async_fn_that_makes_a_fixture)`. A third argument
/// is the test attribute, `tokio::test` if not given.
#[macro_export]
macro_rules! consumer_suite {
    ($name:ident, $make:expr $(, $test:meta)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::__conformance_tests!(consumer, [$make $(, $test)?],
                g5_the_first_runs_and_every_copy_is_a_duplicate
                g5_a_batch_is_one_transaction
                g5_a_message_twice_in_a_batch_runs_once
                g5_members_that_race_do_each_message_once
                g5_consumers_share_nothing
                f68_a_failure_names_its_message_and_its_kind
                f86_a_handler_sees_what_was_delivered
                a_handler_runs_in_the_span_of_its_message
                g3_a_batch_runs_in_its_order
                g3_nothing_of_a_held_key_runs_and_others_do
                g3_a_message_without_a_key_is_never_held
                g3_the_order_is_that_of_one_topic
                g6_a_deferred_message_has_its_mark_and_a_copy
                g6_what_has_its_mark_is_not_set_aside_again
                g3_followers_run_behind_their_head
                g3_behind_a_hold_that_is_gone_is_free
                g3_behind_a_message_that_is_done_is_free
                g6_a_burial_has_its_mark_and_a_letter
                g3_a_dead_letter_holds_its_key_when_asked
                f86_a_deferred_message_comes_back_as_it_came
                f86_whatever_a_failure_says_can_be_written_down
                g3_a_head_that_is_not_due_keeps_its_followers
                f30_a_failing_key_does_not_stop_others
                attempts_and_history_grow_until_a_message_dies
                g3_after_a_death_the_followers_run_or_wait
                f50_a_dependency_that_is_away_spends_no_attempt
                g5_what_no_handler_takes_any_more_is_a_dead_letter
                f55_a_look_at_due_messages_is_bounded
                g5_two_looks_at_once_do_each_message_once
                the_next_due_time_is_told
                f21_a_careful_look_runs_one_and_counts_it_once
                f57_a_replayed_letter_returns_to_its_place
                f59_of_two_replays_one_wins
                a_replay_starts_again_and_keeps_its_history
                a_discard_lets_the_key_go_on
                g6_a_letter_that_is_sent_back_is_handled_again
                a_redelivery_of_a_dead_letter_changes_nothing
                a_repeat_is_done_once_more_and_its_mark_stays
                a_repeat_that_dies_has_a_letter_and_its_mark_stays
                a_repeat_that_dies_again_has_one_letter
                rows_of_a_range_are_a_queue_of_their_own
                g3_a_range_ends_at_the_saved_position_when_it_is_copied
                a_partition_is_made_when_it_is_taken
                f71_the_first_and_the_last_time_are_kept
                f26_of_two_positions_the_higher_one_stays
                a_seek_is_not_undone_by_an_older_save
                g4_a_zombie_releases_nothing_and_has_nothing_in_hand
                f21_deaths_make_the_next_owner_careful
                a_release_is_no_death_and_neither_is_a_second_take
                f71_whatever_a_report_says_the_position_is_saved
                controls_reach_every_save
                f6_another_life_of_the_server_is_seen
                f6_messages_of_another_life_are_not_touched
                f69_marks_above_the_position_are_never_purged
                marks_of_the_dead_stay_as_long_as_their_letters
                letters_are_purged_when_declared_and_their_keys_go_on
            );
        }
    };
}
