//! What an answer means, and the lack of one.
//!
//! The status is the verdict. The body after it is read only for the words of a failure, and so that the
//! connection can be used again; a receiver that promised 200 and then stumbles over its own body has
//! promised all the same.

use super::courier::Order;
use super::hosts::Reach;
use super::link::{Answer, Link};
use super::snippet;
use super::verdict::{self, Silence};
use posthaste::sink::{Failure, Scope, Verdict};
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// A body that takes longer than this is not read to its end.
pub(super) const BODY_WAIT: Duration = Duration::from_millis(250);

/// What came of a request.
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// For whom the host does not work.
    pub(super) failed: Option<(Reach, Failure)>,
}

impl Outcome {
    /// Silence is the host's, as far as it can be told from here.
    pub(super) fn silent(silence: Silence) -> Self {
        let failed = silence.reach().map(|reach| (reach, silence.failure().clone()));
        Self { failed, verdict: silence.verdict() }
    }

    /// An answer is the destination's own.
    pub(super) fn answered(verdict: Verdict) -> Self {
        let failed = match &verdict {
            Verdict::Retry(failure) if failure.scope == Scope::Destination => {
                Some((Reach::Place, failure.clone()))
            }
            _ => None,
        };
        Self { verdict, failed }
    }
}

/// What an answer means.
pub(super) fn verdict(order: &Order, origin: &str, answer: &Answer, body: &[u8], payload: &[u8]) -> Verdict {
    let status = answer.status;
    if status.is_success() {
        return Verdict::Delivered;
    }
    let asked = answer.retry_after.as_deref();
    let wait = asked.and_then(|value| verdict::retry_after(value, SystemTime::now()));
    let said = snippet::snippet(body, &order.kit.keys.hidden, payload);
    order.statuses.verdict(status, verdict::words(origin, status, &said), wait)
}

/// The beginning of the body. The rest is read and dropped, within bounds.
pub(super) async fn read(link: &mut Link, answer: &mut Answer) -> Vec<u8> {
    let mut words = Vec::new();
    // Too slow: what has come is enough.
    let _ = timeout(BODY_WAIT, link.read(answer, &mut words)).await;
    words
}
