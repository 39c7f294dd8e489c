//! How many requests a connection of HTTP/2 may carry at once, as its server says.
//!
//! h2 takes more requests and keeps them until a stream is free. Nobody sees how long that takes, and a
//! request that has waited there is cut off by a deadline that was not meant for it. So requests wait here,
//! before they begin.

use crate::lock::locked;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// How many are allowed before the server has said its limit. It says so first, so the other requests hardly
/// wait.
pub(crate) const FIRST: usize = 1;

/// The streams of one connection.
pub(crate) struct Streams {
    state: Mutex<StreamCount>,
    changed: Notify,
}

struct StreamCount {
    allowed: usize,
    open: usize,
}

impl StreamCount {
    fn has_room(&self) -> bool {
        self.open < self.allowed
    }
}

/// The right to one stream. Dropping it gives the stream back.
pub(crate) struct StreamPermit(Arc<Streams>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let has_room = {
            let mut state = self.0.state();
            state.open -= 1;
            state.has_room()
        };
        if has_room {
            self.0.changed.notify_one();
        }
    }
}

impl Streams {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(StreamCount { allowed: FIRST, open: 0 }), changed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, StreamCount> {
        locked(&self.state)
    }

    /// The server allows this many streams.
    pub(crate) fn allow(&self, allowed: usize) {
        let has_grown = {
            let mut state = self.state();
            allowed > std::mem::replace(&mut state.allowed, allowed)
        };
        if has_grown {
            self.changed.notify_waiters();
        }
    }

    fn try_open(self: &Arc<Self>) -> Option<StreamPermit> {
        let mut state = self.state();
        if !state.has_room() {
            return None;
        }
        state.open += 1;
        Some(StreamPermit(Arc::clone(self)))
    }

    /// Waits until there is room for one more.
    pub(crate) async fn open(self: &Arc<Self>) -> StreamPermit {
        loop {
            // This is made before the look, so a change after the look is heard.
            let changed = self.changed.notified();
            if let Some(stream) = self.try_open() {
                return stream;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::poll;

    #[tokio::test]
    async fn as_many_as_are_allowed_and_the_next_one_waits() {
        let streams = Streams::new();
        let first = streams.open().await;
        let mut waiting = [Box::pin(streams.open()), Box::pin(streams.open()), Box::pin(streams.open())];
        for one in &mut waiting {
            assert!(poll!(one).is_pending(), "the server has not spoken");
        }
        streams.allow(2);
        let [mut second, mut third, fourth] = waiting;
        let second = match poll!(&mut second) {
            std::task::Poll::Ready(stream) => stream,
            std::task::Poll::Pending => panic!("there is room"),
        };
        assert!(poll!(&mut third).is_pending());
        drop(fourth);
        streams.allow(1);
        drop(second);
        assert!(poll!(&mut third).is_pending(), "fewer are allowed now");
        drop(first);
        third.await;
    }

    /// A waiter that was called and has left calls the next one.
    #[tokio::test]
    async fn nobody_waits_for_one_who_has_left() {
        let streams = Streams::new();
        let first = streams.open().await;
        let (mut gone, mut next) = (Box::pin(streams.open()), Box::pin(streams.open()));
        assert!(poll!(&mut gone).is_pending() && poll!(&mut next).is_pending());
        drop(first);
        drop(gone);
        next.await;
    }
}
