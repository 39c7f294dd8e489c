//! How many are let in at once, and who has to go when another one knocks.
//!
//! A client that connects and says nothing costs a place and is worth nothing. So a full house does not turn
//! the next one away: it shows out whoever has been silent for the longest. Two thousand silent clients then
//! hold up nobody, and a client whose request is being answered is never disturbed.

use posthaste::task::Task;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Whether a connection has a request that is being answered.
#[derive(Clone, Default)]
pub(crate) struct Busy(Arc<AtomicUsize>);

/// Answering for as long as a request is being answered.
pub(crate) struct Answering(Busy);

impl Busy {
    /// A request is being answered until what is returned is dropped.
    pub(crate) fn hold(&self) -> Answering {
        self.0.fetch_add(1, Ordering::Relaxed);
        Answering(self.clone())
    }

    fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections, the oldest first.
pub(crate) struct Crowd {
    members: VecDeque<(Task<()>, Busy)>,
    places: usize,
}

impl Crowd {
    /// Room for so many.
    pub(crate) fn new(places: usize) -> Self {
        Self { members: VecDeque::new(), places }
    }

    /// Makes room for one more, if need be by ending the oldest silent one. Not if all are being answered.
    pub(crate) fn make_room(&mut self) -> bool {
        if self.members.len() >= self.places {
            self.members.retain(|(task, _)| !task.is_finished());
        }
        if self.members.len() < self.places {
            return true;
        }
        let silent = self.members.iter().position(|(_, busy)| !busy.is_held());
        // Dropping its task ends it.
        silent.and_then(|at| self.members.remove(at)).is_some()
    }

    /// Waits until everybody has left, but not longer than this.
    pub(crate) async fn gone(self, longest: Duration) {
        let all = async {
            for (task, _) in self.members {
                // One that panicked has left, too.
                let _ = task.await;
            }
        };
        let _ = timeout(longest, all).await;
    }

    /// Lets one in.
    pub(crate) fn enter(&mut self, task: Task<()>, busy: Busy) {
        self.members.push_back((task, busy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::task::spawn;

    #[tokio::test]
    async fn the_oldest_silent_one_goes_and_nobody_who_is_being_answered() {
        let mut crowd = Crowd::new(2);
        let (first, second) = (Busy::default(), Busy::default());
        for busy in [&first, &second] {
            assert!(crowd.make_room());
            crowd.enter(spawn("test", std::future::pending()), busy.clone());
        }
        let answered = first.hold();
        assert!(crowd.make_room(), "the second is silent");
        assert!(crowd.members.len() == 1 && crowd.members[0].1.is_held());
        crowd.enter(spawn("test", std::future::pending()), second.clone());
        let also = second.hold();
        assert!(!crowd.make_room(), "both are being answered");
        drop(answered);
        assert!(crowd.make_room());
        drop(also);
    }

    #[tokio::test]
    async fn whoever_has_left_takes_no_place() {
        let mut crowd = Crowd::new(1);
        let task = spawn("test", async {});
        let busy = Busy::default();
        let _held = busy.hold();
        crowd.enter(task, busy);
        tokio::task::yield_now().await;
        assert!(crowd.make_room());
    }
}
