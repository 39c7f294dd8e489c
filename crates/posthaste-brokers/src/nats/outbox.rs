//! Bytes that wait to be written.
//!
//! Calls append whole frames under a lock, and one task takes all of them at once: what several calls send after a
//! burst of acknowledgements leaves in one write. There is nothing to wait for between the first byte of a frame and
//! its last, so a call that is dropped leaves no half of one, and frames of two calls never mix. A channel of frames
//! would allocate for each of them and copy them once more.
//!
//! It has a bound: beyond it calls keep their messages until the server has read some, and those count as not sent.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Enough for a thousand events; more would only wait here instead of in the calls.
const BYTES_MAX: usize = 1 << 20;
/// Kept by a buffer that was written; a larger one had a very large message in it.
const BYTES_KEPT: usize = 2 * BYTES_MAX;

/// What goes to one connection.
#[derive(Default)]
pub(super) struct Outbox {
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    bytes: Vec<u8>,
    pings: u64,
    ended: bool,
    /// Who writes.
    carrier: Option<Waker>,
    /// Who waits for room.
    crowd: Vec<Waker>,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").finish_non_exhaustive()
    }
}

/// Whether another frame may be appended.
pub(super) fn has_room(bytes: &[u8]) -> bool {
    bytes.len() < BYTES_MAX
}

impl Outbox {
    /// Lets `append` append whole frames, unless the connection has ended.
    pub(super) fn append(&self, append: impl FnOnce(&mut Vec<u8>)) {
        self.change(|inside| append(&mut inside.bytes));
    }

    fn change(&self, change: impl FnOnce(&mut Inside)) {
        let mut inside = self.inside();
        if inside.ended {
            return;
        }
        change(&mut inside);
        let carrier = if inside.bytes.is_empty() { None } else { inside.carrier.take() };
        drop(inside);
        if let Some(carrier) = carrier {
            carrier.wake();
        }
    }

    /// Asks the server for a sign of life; the answer is how many signs there must have been then.
    pub(super) fn ping(&self) -> u64 {
        let mut number = u64::MAX;
        self.change(|inside| {
            inside.bytes.extend_from_slice(b"PING\r\n");
            inside.pings += 1;
            number = inside.pings;
        });
        number
    }

    /// Whether there is room; if not, the waker is kept.
    pub(super) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.inside();
        if has_room(&inside.bytes) && !inside.ended {
            return Poll::Ready(());
        }
        if !inside.crowd.iter().any(|waker| waker.will_wake(context.waker())) {
            inside.crowd.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Exchanges all bytes for `written`, which is emptied; if there are none, the waker is kept.
    pub(super) fn poll_take(&self, context: &mut Context<'_>, written: &mut Vec<u8>) -> Poll<()> {
        written.clear();
        let mut inside = self.inside();
        if inside.bytes.is_empty() {
            inside.carrier = Some(context.waker().clone());
            return Poll::Pending;
        }
        if written.capacity() > BYTES_KEPT {
            *written = Vec::new();
        }
        std::mem::swap(&mut inside.bytes, written);
        let crowd = std::mem::take(&mut inside.crowd);
        drop(inside);
        crowd.into_iter().for_each(Waker::wake);
        Poll::Ready(())
    }

    /// Nothing is taken any more.
    pub(super) fn end(&self) {
        let mut inside = self.inside();
        (inside.ended, inside.bytes) = (true, Vec::new());
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        // What can panic in a call is done before the first byte of its frame.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl std::task::Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn one_wakeup_for_a_burst_and_everything_in_one_piece() {
        let (outbox, bell) = (Outbox::default(), Arc::new(Bell::default()));
        let waker = Waker::from(Arc::clone(&bell));
        let (mut context, mut written) = (Context::from_waker(&waker), b"old".to_vec());
        assert!(outbox.poll_take(&mut context, &mut written).is_pending() && written.is_empty());
        outbox.append(|bytes| bytes.extend_from_slice(b"a"));
        outbox.append(|_| {});
        assert_eq!((outbox.ping(), outbox.ping()), (1, 2));
        assert_eq!(bell.0.load(Ordering::SeqCst), 1);
        assert!(outbox.poll_take(&mut context, &mut written).is_ready());
        assert_eq!(written, b"aPING\r\nPING\r\n");
    }

    #[test]
    fn who_waits_for_room_is_woken_when_there_is_some_and_nothing_is_taken_after_the_end() {
        let (outbox, bell) = (Outbox::default(), Arc::new(Bell::default()));
        let waker = Waker::from(Arc::clone(&bell));
        let mut context = Context::from_waker(&waker);
        assert!(outbox.poll_room(&mut context).is_ready());
        outbox.append(|bytes| bytes.resize(BYTES_MAX, 0));
        assert!(outbox.poll_room(&mut context).is_pending());
        assert!(outbox.poll_room(&mut context).is_pending());
        assert!(outbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut Vec::new()).is_ready());
        assert_eq!(bell.0.load(Ordering::SeqCst), 1, "once");
        assert!(outbox.poll_room(&mut context).is_ready());
        outbox.end();
        outbox.append(|_| panic!("nothing is taken"));
        assert!(outbox.poll_room(&mut context).is_pending());
        assert_eq!(outbox.ping(), u64::MAX, "an answer that never comes");
    }
}
