//! How many bytes the client has taken and not written yet.
//!
//! The client bounds its queue by messages, and a message may have megabytes. So whoever hands messages over
//! counts their bytes here. Beyond the bound messages stay with their calls and count as not sent, until the
//! client says that it has written its queue.

use crate::lock::locked;
use async_nats::Client;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// Enough for a thousand events. More would only wait here instead of in the calls.
const BYTES_MAX: usize = 1 << 20;
/// From so many bytes on the client is asked to say when it has written them. That is rare enough to cost
/// nothing.
const FLUSH_BYTES: usize = BYTES_MAX / 4;

/// The bytes that one connection has to write.
#[derive(Debug, Default)]
pub(in crate::nats) struct WriteBacklog {
    inside: Mutex<UnwrittenBytes>,
    grown: Notify,
}

#[derive(Debug, Default)]
struct UnwrittenBytes {
    bytes: usize,
    /// Calls that wait for room.
    waiting: Vec<Waker>,
}

impl WriteBacklog {
    /// How many bytes may be handed over before the next look. A single message may be larger.
    pub(in crate::nats) fn room(&self) -> usize {
        BYTES_MAX.saturating_sub(self.inside().bytes)
    }

    /// These bytes were handed over.
    pub(in crate::nats) fn add(&self, bytes: usize) {
        let mut inside = self.inside();
        inside.bytes += bytes;
        let is_large = inside.bytes >= FLUSH_BYTES;
        drop(inside);
        if is_large {
            self.grown.notify_one();
        }
    }

    /// Whether there is room. If there is none, the waker is kept.
    pub(in crate::nats) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.inside();
        if inside.bytes < BYTES_MAX {
            return Poll::Ready(());
        }
        if !inside.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            inside.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Empties the backlog when the client has written, as long as the connection lasts. This does not end.
    pub(in crate::nats) async fn keep(&self, client: &Client) {
        loop {
            self.grown.notified().await;
            let bytes = self.inside().bytes;
            if client.flush().await.is_err() {
                // The connection is gone, and nothing is written any more. The session tells the calls.
                std::future::pending::<()>().await;
            }
            self.written(bytes);
        }
    }

    fn written(&self, bytes: usize) {
        let mut inside = self.inside();
        inside.bytes -= bytes;
        let (waiting, is_large) = (std::mem::take(&mut inside.waiting), inside.bytes >= FLUSH_BYTES);
        drop(inside);
        waiting.into_iter().for_each(Waker::wake);
        if is_large {
            self.grown.notify_one();
        }
    }

    fn inside(&self) -> MutexGuard<'_, UnwrittenBytes> {
        locked(&self.inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g7_what_waits_to_be_written_has_a_bound() {
        let backlog = WriteBacklog::default();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!((backlog.room(), backlog.poll_room(&mut context)), (BYTES_MAX, Poll::Ready(())));
        backlog.add(BYTES_MAX + 5);
        assert_eq!((backlog.room(), backlog.poll_room(&mut context)), (0, Poll::Pending));
        backlog.add(7);
        backlog.written(BYTES_MAX + 5);
        assert_eq!((backlog.room(), backlog.poll_room(&mut context)), (BYTES_MAX - 7, Poll::Ready(())));
        assert!(backlog.inside().waiting.is_empty());
    }
}
