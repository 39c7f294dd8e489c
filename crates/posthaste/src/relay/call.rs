//! One call: a batch goes to the sink, and comes back with its verdicts.

use super::batch::Batch;
use super::handle::Process;
use crate::crash_point;
use crate::sink::{Failure, Message, Sink, Verdict};
use crate::store::Lease;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// How long the calls of others are waited for, and then kept away, for an event that must be alone. What
/// kills its relay does so at once. A sink that hangs must not keep all other sinks of the process waiting
/// (F30).
const ALONE_AT_MOST: Duration = Duration::from_secs(1);

/// What a call needs of the lane.
pub(super) struct Call {
    pub(super) batch: Batch,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) timeout: Duration,
    pub(super) manner: Manner,
}

/// How a call goes to the sink.
pub(super) enum Manner {
    /// Beside the calls of others, but not beside an event that must be alone.
    Beside { _company: OwnedRwLockReadGuard<()> },
    /// One by one.
    InHand(Hand),
}

/// What is written down of an event that may kill its relay.
pub(super) struct Hand {
    pub(super) seq: Option<i64>,
    pub(super) must_be_alone: bool,
    pub(super) lease: Arc<dyn Lease>,
    pub(super) process: Process,
    pub(super) trust: watch::Receiver<Instant>,
}

/// What an event in hand keeps others from: to be in hand, and to be with a sink.
#[derive(Default)]
struct Kept {
    _only_one: Option<OwnedMutexGuard<()>>,
    alone: Option<OwnedRwLockWriteGuard<()>>,
}

impl Call {
    pub(super) async fn publish(mut self) -> (Batch, Vec<Verdict>) {
        let messages = self.batch.messages();
        let mut kept = Kept::default();
        if let Manner::InHand(hand) = &self.manner {
            match hand.take(self.timeout).await {
                Ok(guards) => kept = guards,
                Err(failure) => return (self.batch, vec![Verdict::Retry(failure)]),
            }
        }
        poison(messages);
        let deadline = Instant::now() + self.timeout;
        let mut publishing = self.sink.publish(messages);
        if kept.alone.is_some() {
            let enough = deadline.min(Instant::now() + ALONE_AT_MOST);
            match timeout_at(enough, &mut publishing).await {
                // It stays alone until it is no longer written down.
                Ok(verdicts) => publishing = Box::pin(std::future::ready(verdicts)),
                Err(_) => kept.alone = None,
            }
        }
        let verdicts = match timeout_at(deadline, publishing).await {
            Ok(verdicts) => verdicts,
            Err(_) => unanswered(messages.len(), self.timeout),
        };
        // CRASH(publish.acknowledged): the broker has the events, the store does not know. The next
        // owner publishes them again: a duplicate, never a loss (G2).
        crash_point!("publish.acknowledged");
        if let Manner::InHand(hand) = &self.manner {
            // It came back, so it kills nobody: an outage may last for many restarts. A failure only
            // means that a death before the next event is charged to this one.
            let _ = hand.lease.take_in_hand(None).await;
        }
        drop(kept);
        (self.batch, verdicts)
    }
}

impl Hand {
    async fn take(&self, within: Duration) -> Result<Kept, Failure> {
        let only_one = Arc::clone(&self.process.one_hand).lock_owned().await;
        let alone = match self.must_be_alone {
            // No other call begins meanwhile. One that hangs is not waited for.
            true => timeout(ALONE_AT_MOST, Arc::clone(&self.process.company).write_owned()).await.ok(),
            false => None,
        };
        if Instant::now() + within > *self.trust.borrow() {
            return Err(Failure::of_sink("relay.lease_short", "the lease is too short by now"));
        }
        // CRASH(publish.in_hand): the event is written down as in hand; if it kills the relay
        // now, the next owner charges it (F21).
        let written = self.lease.take_in_hand(self.seq).await;
        crash_point!("publish.in_hand");
        written
            .map(|()| Kept { _only_one: Some(only_one), alone })
            .map_err(|error| Failure::of_sink("relay.in_hand", error.to_string()))
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
