//! A mailbox between the task that reads a broker's answers and a call that waits for them.
//!
//! Brokers that answer message by message send answers in bursts. Letters are put in without waking anybody,
//! and one ring at the end of the burst wakes the call once. The call then handles all of them and sends what
//! may follow in one go. A channel would wake the reader at the first letter, and at 100,000 letters a second
//! it is the waking that costs.

use crate::lock::locked;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// Letters for one reader.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    inside: Mutex<Letters<T>>,
}

#[derive(Debug)]
struct Letters<T> {
    letters: Vec<T>,
    reader: Option<Waker>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { inside: Mutex::new(Letters { letters: Vec::new(), reader: None }) }
    }
}

impl<T> Mailbox<T> {
    /// Puts a letter in and answers whether it is the first. If so, somebody must [`ring`](Self::ring).
    pub(crate) fn post(&self, letter: T) -> bool {
        let mut inside = self.inside();
        inside.letters.push(letter);
        inside.letters.len() == 1
    }

    /// The same, but a letter is lost if there are `most` letters already (G7).
    pub(crate) fn post_within(&self, letter: T, most: usize) -> bool {
        let mut inside = self.inside();
        if inside.letters.len() >= most {
            return false;
        }
        inside.letters.push(letter);
        inside.letters.len() == 1
    }

    /// Wakes the reader.
    pub(crate) fn ring(&self) {
        let reader = self.inside().reader.take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Takes all letters. If there are none, the waker is kept.
    pub(crate) fn poll_take(&self, context: &mut Context<'_>, letters: &mut Vec<T>) -> Poll<()> {
        let mut inside = self.inside();
        if inside.letters.is_empty() {
            inside.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        letters.append(&mut inside.letters);
        Poll::Ready(())
    }

    /// Takes all letters that are there.
    #[cfg(test)]
    pub(crate) fn take(&self, letters: &mut Vec<T>) {
        letters.append(&mut self.inside().letters);
    }

    fn inside(&self) -> MutexGuard<'_, Letters<T>> {
        locked(&self.inside)
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
    fn g7_a_box_that_is_full_takes_no_more() {
        let (mailbox, mut letters) = (Mailbox::default(), Vec::new());
        assert_eq!([1, 2, 3].map(|letter| mailbox.post_within(letter, 2)), [true, false, false]);
        mailbox.take(&mut letters);
        assert_eq!(letters, [1, 2]);
    }

    #[test]
    fn one_ring_for_a_burst() {
        let (mailbox, bell) = (Mailbox::default(), Arc::new(Bell::default()));
        let waker = Waker::from(Arc::clone(&bell));
        let mut letters = Vec::new();
        assert!(mailbox.poll_take(&mut Context::from_waker(&waker), &mut letters).is_pending());
        assert_eq!([mailbox.post(1), mailbox.post(2), mailbox.post(3)], [true, false, false]);
        mailbox.ring();
        mailbox.ring();
        assert_eq!(bell.0.load(Ordering::SeqCst), 1);
        assert!(mailbox.poll_take(&mut Context::from_waker(&waker), &mut letters).is_ready());
        assert_eq!(letters, [1, 2, 3]);
        assert!(mailbox.post(4), "the first again");
    }
}
