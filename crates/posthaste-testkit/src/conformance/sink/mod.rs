//! The sink suite: what [`posthaste::sink`] promises, case by case.
//!
//! What arrived is read back by foreign means: another client, another protocol, a file; never through
//! the sink itself. Which cases say something about a sink depends on what it declares
//! ([`Capabilities`](posthaste::sink::Capabilities)) and what its broker can carry ([`Carries`]).

pub mod cases;
mod memory;

pub use memory::{NullFixture, RecordingFixture};

use async_trait::async_trait;
use bytes::Bytes;
use posthaste::sink::Sink;
use std::sync::Arc;
use std::time::Duration;

/// A message as it was found at the broker.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrived {
    /// The event id, from wherever the broker keeps its dedup id.
    pub id: Option<String>,
    /// The key, from wherever the broker keeps it.
    pub key: Option<String>,
    /// Headers. Names may differ in case.
    pub headers: Vec<(String, String)>,
    /// Payload; `None` for a tombstone.
    pub payload: Option<Bytes>,
}

/// What a broker can carry.
#[derive(Debug, Clone, Copy)]
pub struct Carries {
    /// A difference between no payload and an empty one.
    pub tombstones: bool,
    /// Headers.
    pub headers: bool,
}

/// A sink under test.
#[async_trait]
pub trait SinkFixture: Send + Sync {
    /// The sink, with a connection of its own.
    async fn sink(&self) -> Arc<dyn Sink>;
    /// A destination that exists and is empty, another one at each call.
    async fn destination(&self) -> String;
    /// What is at a destination, in order: asked when at least `count` messages should be there, so it
    /// may wait for them up to a deadline. `None`: this sink cannot be read back.
    async fn arrived(&self, destination: &str, count: usize) -> Option<Vec<Arrived>>;
    /// A destination for which every message is `Rejected`, if there is such a thing.
    async fn hopeless_destination(&self) -> Option<String> {
        None
    }
    /// The same sink behind a line that can be made slow. `None`: nothing is between it and its broker.
    async fn behind_a_line(&self, _delivery_timeout: Duration) -> Option<Box<dyn SlowLine>> {
        None
    }
    /// What the broker can carry.
    fn carries(&self) -> Carries {
        Carries { tombstones: true, headers: true }
    }
}

/// A sink with room for one message at a time, and the line between it and its broker.
#[async_trait]
pub trait SlowLine: Send + Sync {
    /// The sink.
    fn sink(&self) -> Arc<dyn Sink>;
    /// A destination that exists and is empty.
    fn destination(&self) -> String;
    /// From now on everything arrives this much later, in each direction.
    async fn delay(&self, delay: Duration);
    /// How many messages are at the destination.
    async fn count(&self) -> usize;
}

/// Runs the sink suite: `sink_suite!(module_name, async_fn_that_makes_a_fixture)`. A third argument is
/// the test attribute, `tokio::test` if not given.
#[macro_export]
macro_rules! sink_suite {
    ($name:ident, $make:expr $(, $test:meta)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::__conformance_tests!(sink, [$make $(, $test)?],
                every_message_has_its_verdict
                an_empty_call_has_no_verdicts
                f86_payloads_arrive_byte_for_byte
                a_tombstone_is_not_an_empty_payload
                headers_arrive_with_ours_first
                the_event_id_is_the_dedup_id
                destinations_are_kept_apart
                g3_a_keys_order_holds_within_a_call
                g3_a_keys_order_holds_over_overlapping_calls
                g3_behind_a_failure_its_key_is_held
                g3_a_failed_key_is_open_again_in_the_next_call
                f28_a_rejected_message_does_not_harm_its_neighbours
                f28_a_message_too_large_is_rejected_alone
                messages_without_order_wait_for_nothing
                a_dropped_call_leaves_its_keys_usable
                many_calls_may_overlap
                a_good_destination_passes_the_examination
                g7_nothing_is_sent_in_the_second_half
                closing_is_harmless
            );
        }
    };
}
