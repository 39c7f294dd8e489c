//! How many bytes a session has been handed and has not answered.
//!
//! The window counts messages, but messages may be large, or the line narrow. A message that a narrow line
//! does not answer in its call's time is `Unknown` and is sent again. Then the first copy still stands before
//! the second. So no more is handed over than the server has lately answered within a second. The rest stays
//! with its calls, and counts as not sent.
//!
//! Replies come in the order of the requests. So an answer settles all that was handed over before, also for
//! calls that are gone.

use crate::lock::locked;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::time::Instant;

/// The bound for a server that has answered nothing lately. 50 kB/s carry it within half of the default
/// delivery timeout.
pub(in crate::redis) const BYTES_MIN: u64 = 128 << 10;
/// The bound for a quick server. It is more than the relay leaves unsettled by default, so it bounds large
/// messages only.
const BYTES_MAX: u64 = 8 << 20;
const SECOND_MS: u64 = 1_000;

/// One of the two connections of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::redis) enum SessionConnection {
    Plain,
    Fence,
}

/// The bytes that one session has to answer.
#[derive(Debug)]
pub(in crate::redis) struct ReplyBacklog {
    inside: Mutex<ByteCounts>,
}

#[derive(Debug)]
struct ByteCounts {
    /// Bytes since the beginning, for each connection.
    handed: [u64; 2],
    answered: [u64; 2],
    /// `recent` are the bytes that were answered since then, and `before` those of the second before.
    since: Instant,
    recent: u64,
    before: u64,
    is_over: bool,
    /// Calls that wait for room.
    waiting: Vec<Waker>,
}

impl Default for ReplyBacklog {
    fn default() -> Self {
        let since = Instant::now();
        let (handed, answered, waiting) = ([0; 2], [0; 2], Vec::new());
        let inside = ByteCounts { handed, answered, since, recent: 0, before: 0, is_over: false, waiting };
        Self { inside: Mutex::new(inside) }
    }
}

impl ReplyBacklog {
    /// How many bytes may be handed over before the next look. A single message may be larger.
    pub(in crate::redis) fn room(&self) -> u64 {
        self.inside().room()
    }

    /// Whether there is room. If there is none, the waker is kept.
    pub(in crate::redis) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.inside();
        if inside.room() > 0 {
            return Poll::Ready(());
        }
        if !inside.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            inside.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// These bytes were handed over. The answer is where they end.
    pub(in crate::redis) fn add(&self, connection: SessionConnection, bytes: u64) -> u64 {
        let mut inside = self.inside();
        inside.handed[connection as usize] += bytes;
        inside.handed[connection as usize]
    }

    /// Where the bytes end that were handed over last.
    pub(super) fn end(&self, connection: SessionConnection) -> u64 {
        self.inside().handed[connection as usize]
    }

    /// Everything up to there is answered.
    pub(super) fn answered(&self, connection: SessionConnection, end: u64) {
        let mut inside = self.inside();
        let bytes = end.saturating_sub(inside.answered[connection as usize]);
        inside.answered[connection as usize] += bytes;
        inside.recent += bytes;
        // An answer may stand for seconds of a narrow line's work, so it does not count for one moment.
        let elapsed = u64::try_from(inside.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        if elapsed >= SECOND_MS {
            inside.before = inside.recent.saturating_mul(SECOND_MS) / elapsed;
            (inside.recent, inside.since) = (0, Instant::now());
        }
        inside.wake();
    }

    /// The session is over, so nobody needs to wait for room.
    pub(super) fn close(&self) {
        let mut inside = self.inside();
        inside.is_over = true;
        inside.wake();
    }

    fn inside(&self) -> MutexGuard<'_, ByteCounts> {
        locked(&self.inside)
    }
}

impl ByteCounts {
    fn room(&self) -> u64 {
        if self.is_over {
            return u64::MAX;
        }
        let unanswered: u64 =
            self.handed.iter().zip(&self.answered).map(|(handed, answered)| handed - answered).sum();
        self.recent.max(self.before).clamp(BYTES_MIN, BYTES_MAX).saturating_sub(unanswered)
    }

    fn wake(&mut self) {
        if self.room() > 0 {
            self.waiting.drain(..).for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn g7_a_narrow_line_gets_little_and_a_wide_one_more() {
        let backlog = ReplyBacklog::default();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(backlog.room(), BYTES_MIN);
        let first = backlog.add(SessionConnection::Plain, BYTES_MIN);
        let second = backlog.add(SessionConnection::Fence, 5);
        assert_eq!((backlog.room(), backlog.poll_room(&mut context)), (0, Poll::Pending));
        // 50 kB/s.
        tokio::time::advance(Duration::from_millis(2_622)).await;
        backlog.answered(SessionConnection::Plain, first);
        assert_eq!((backlog.room(), backlog.poll_room(&mut context)), (BYTES_MIN - 5, Poll::Ready(())));
        assert!(backlog.inside().waiting.is_empty());
        backlog.answered(SessionConnection::Fence, second);
        for _ in 0..100 {
            let end = backlog.add(SessionConnection::Plain, backlog.room() + 1_000);
            tokio::time::advance(Duration::from_millis(2_642)).await;
            backlog.answered(SessionConnection::Plain, end);
            assert_eq!(backlog.room(), BYTES_MIN, "it does not creep");
        }
        // The same in a moment, again and again: twice as much each time.
        for _ in 0..20 {
            let end = backlog.add(SessionConnection::Plain, backlog.room());
            backlog.answered(SessionConnection::Plain, end);
        }
        assert_eq!(backlog.room(), BYTES_MAX);
        tokio::time::advance(Duration::from_secs(6_000)).await;
        backlog.answered(SessionConnection::Plain, backlog.end(SessionConnection::Plain));
        assert_eq!(backlog.room(), BYTES_MIN, "what was long ago says nothing");
    }

    #[tokio::test]
    async fn an_answer_settles_what_was_before_and_an_end_everything() {
        let backlog = ReplyBacklog::default();
        let mut context = Context::from_waker(Waker::noop());
        backlog.add(SessionConnection::Plain, BYTES_MIN);
        let last = backlog.add(SessionConnection::Plain, 7);
        backlog.answered(SessionConnection::Plain, last);
        assert_eq!(backlog.room(), BYTES_MIN + 7, "so much was answered within a second");
        backlog.add(SessionConnection::Plain, BYTES_MAX);
        assert!(backlog.poll_room(&mut context).is_pending());
        backlog.close();
        assert!(backlog.poll_room(&mut context).is_ready());
    }
}
