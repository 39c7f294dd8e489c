//! What lies between a call and its couriers: requests that are ready, and verdicts that came back.
//!
//! One lock, held for a moment. A courier puts its verdict down and takes the next request in one step, so that a busy
//! host never waits for the call; and the call takes all verdicts that are there, so that it is woken once for several.

use super::letter::Letter;
use super::place::Place;
use posthaste::sink::Verdict;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A request that is ready.
pub(super) struct Job {
    /// Which message of the call.
    pub(super) index: usize,
    pub(super) place: Arc<Place>,
    pub(super) letter: Letter,
}

/// A request that came back.
pub(super) struct Landed {
    pub(super) index: usize,
    pub(super) queue: usize,
    pub(super) verdict: Verdict,
}

/// Of one call.
#[derive(Default)]
pub(super) struct Tray {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By number of the host's queue.
    ready: Vec<VecDeque<Job>>,
    landed: Vec<Landed>,
    waker: Option<Waker>,
}

impl Tray {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more queue, with the next number.
    pub(super) fn open(&self) {
        self.state().ready.push(VecDeque::new());
    }

    /// Requests that nobody has taken.
    pub(super) fn len(&self, queue: usize) -> usize {
        self.state().ready[queue].len()
    }

    pub(super) fn lay(&self, queue: usize, job: Job) {
        self.state().ready[queue].push_back(job);
    }

    pub(super) fn take(&self, queue: usize) -> Option<Job> {
        self.state().ready[queue].pop_front()
    }

    /// Takes those back that `which` names.
    pub(super) fn withdraw(&self, queue: usize, which: impl Fn(&Job) -> bool) -> Vec<usize> {
        let (mut state, mut gone) = (self.state(), Vec::new());
        state.ready[queue].retain(|job| {
            let goes = which(job);
            gone.extend(goes.then_some(job.index));
            !goes
        });
        gone
    }

    /// Puts a verdict down and, if `stay`, takes the next request of the same host.
    pub(super) fn land(&self, landed: Landed, stay: bool) -> Option<Job> {
        let (next, waker) = {
            let mut state = self.state();
            let queue = landed.queue;
            state.landed.push(landed);
            let next = if stay { state.ready[queue].pop_front() } else { None };
            (next, state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        next
    }

    /// Takes all verdicts that are there, also none.
    pub(super) fn drain(&self, landed: &mut Vec<Landed>) {
        landed.append(&mut self.state().landed);
    }

    /// Takes all verdicts that are there; waits for one.
    pub(super) fn poll_landed(&self, context: &mut Context<'_>, landed: &mut Vec<Landed>) -> Poll<()> {
        let mut state = self.state();
        if state.landed.is_empty() {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        landed.append(&mut state.landed);
        Poll::Ready(())
    }
}
