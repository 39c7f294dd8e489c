//! One call: a batch goes to the sink, and comes back with its verdicts.

use super::batch::Batch;
use crate::crash_point;
use crate::sink::{Failure, Message, Sink, Verdict};
use crate::store::Lease;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::time::Instant;

/// What a call needs of the lane.
pub(super) struct Call {
    pub(super) batch: Batch,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) timeout: Duration,
    /// Where the lane goes one by one.
    pub(super) hand: Option<Hand>,
}

/// What is written down of an event that may kill its relay.
pub(super) struct Hand {
    pub(super) lease: Arc<dyn Lease>,
    /// One event in hand in the whole process: a death must not be charged to what another lane had in hand
    /// at that moment.
    pub(super) only_one: Arc<Mutex<()>>,
    pub(super) trust: watch::Receiver<Instant>,
}

impl Call {
    pub(super) async fn publish(mut self) -> (Batch, Vec<Verdict>) {
        let messages = self.batch.messages();
        let mut alone = None;
        if let Some(hand) = &self.hand {
            match hand.take(messages, self.timeout).await {
                Ok(guard) => alone = Some(guard),
                Err(failure) => return (self.batch, vec![Verdict::Retry(failure)]),
            }
        }
        poison(messages);
        let verdicts = match tokio::time::timeout(self.timeout, self.sink.publish(messages)).await {
            Ok(verdicts) => verdicts,
            Err(_) => unanswered(messages.len(), self.timeout),
        };
        // CRASH(publish.acknowledged): the broker has the events, the store does not know. The next
        // owner publishes them again: a duplicate, never a loss (G2).
        crash_point!("publish.acknowledged");
        if let Some(hand) = &self.hand {
            // It came back, so it kills nobody: an outage may last for many restarts. A failure only
            // means that a death before the next event is charged to this one.
            let _ = hand.lease.take_in_hand(None).await;
        }
        drop(alone);
        (self.batch, verdicts)
    }
}

impl Hand {
    async fn take(&self, messages: &[Message], timeout: Duration) -> Result<OwnedMutexGuard<()>, Failure> {
        let alone = Arc::clone(&self.only_one).lock_owned().await;
        if Instant::now() + timeout > *self.trust.borrow() {
            return Err(Failure::of_sink("relay.lease_short", "the lease is too short by now"));
        }
        let seq = messages.first().map(|message| message.stored.seq);
        // CRASH(publish.in_hand): the event is written down as in hand; if it kills the relay
        // now, the next owner charges it (F21).
        let written = self.lease.take_in_hand(seq).await;
        crash_point!("publish.in_hand");
        written.map(|()| alone).map_err(|error| Failure::of_sink("relay.in_hand", error.to_string()))
    }
}

fn unanswered(messages: usize, timeout: Duration) -> Vec<Verdict> {
    let failure = Failure::of_sink("relay.publish_timeout", format!("no answer within {timeout:?}"));
    vec![Verdict::Unknown(failure); messages]
}

/// Lets a test's event kill the process, as a bug in a client library would.
#[cfg(feature = "failpoints")]
fn poison(messages: &[Message]) {
    if messages.iter().any(|message| message.stored.event.headers.get("x-posthaste-test-abort").is_some()) {
        // CRASH(publish.poison): an event kills its relay again and again; it ends as a dead letter (F21).
        crash_point!("publish.poison");
        std::process::abort();
    }
}

#[cfg(not(feature = "failpoints"))]
fn poison(_: &[Message]) {}
