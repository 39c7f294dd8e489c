//! Who sends requests: a task with a slot of a host and a connection to it; and the queue between a call and its senders.
//!
//! A call starts senders for each of its hosts, as many as there are slots. A sender sends one request after another over its
//! connection, until there is none ready, somebody else wants the slot, the host fails, or time is up. So a message costs a
//! turn of a running task: no task, timer, slot or look into the pool of its own. Senders are tasks because writing to a
//! socket is most of the work, and a call would do it with one thread.
//!
//! A request is sent a second time, at once and over a new connection, only where it is certain that nobody has seen it: the
//! old connection was closed before a byte of it was written, or a server of HTTP/2 says that it has not looked at it.
//!
//! One timer serves all requests of a sender: those of a call have the same deadline. So none of them is begun after half of
//! the time: a timeout is a silence of at least the other half, and never a request that was cut off because others had
//! the time before it.

use super::client::Request;
use super::client::connection::{Answer, Connection};
use super::client::dial::Unreached;
use super::client::endpoint::Endpoint;
use super::client::hosts::{Host, Reach, Slot};
use super::reload::Current;
use super::snippet;
use super::verdict::{self, Silence, Statuses};
use posthaste::sink::{Scope, Verdict};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

/// A body that takes longer than this is not read to its end.
pub(super) const BODY_WAIT: Duration = Duration::from_millis(250);

/// A request that is ready.
pub(super) struct Job {
    /// Which message of the call.
    pub(super) index: usize,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) request: Request,
}

/// A request that came to an end.
pub(super) struct Done {
    pub(super) index: usize,
    pub(super) host: usize,
    pub(super) verdict: Verdict,
}

/// What lies between a call and its senders. One lock, held for a moment. A sender puts its verdict down and takes the next
/// request in one step, so that a busy host never waits for the call; and the call takes all verdicts that are there, so that
/// it is woken once for several.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By number of the host.
    ready: Vec<VecDeque<Job>>,
    done: Vec<Done>,
    waker: Option<Waker>,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more host, with the next number.
    pub(super) fn open(&self) {
        self.state().ready.push(VecDeque::new());
    }

    /// Requests that nobody has taken.
    pub(super) fn len(&self, host: usize) -> usize {
        self.state().ready[host].len()
    }

    pub(super) fn push(&self, host: usize, job: Job) {
        self.state().ready[host].push_back(job);
    }

    pub(super) fn take(&self, host: usize) -> Option<Job> {
        self.state().ready[host].pop_front()
    }

    /// Takes those back that `which` names.
    pub(super) fn withdraw(&self, host: usize, which: impl Fn(&Job) -> bool) -> Vec<Job> {
        let ready = &mut self.state().ready[host];
        let (gone, kept) = std::mem::take(ready).into_iter().partition::<VecDeque<_>, _>(which);
        *ready = kept;
        gone.into()
    }

    /// Puts a verdict down and, if `stay`, takes the next request of the same host.
    fn finish(&self, done: Done, stay: bool) -> Option<Job> {
        let (next, waker) = {
            let mut state = self.state();
            let host = done.host;
            state.done.push(done);
            let next = if stay { state.ready[host].pop_front() } else { None };
            (next, state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        next
    }

    /// Takes all verdicts that are there, or leaves the waker.
    pub(super) fn poll_done(&self, context: &mut Context<'_>, done: &mut Vec<Done>) -> Poll<()> {
        let mut state = self.state();
        if state.done.is_empty() {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        done.append(&mut state.done);
        Poll::Ready(())
    }
}

/// What all senders of a call have in common.
pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) current: Arc<Current>,
    pub(super) statuses: Arc<Statuses>,
    pub(super) started: Instant,
    /// When the last request may be begun.
    pub(super) send_until: Instant,
    pub(super) deadline: Instant,
}

pub(super) struct Sender {
    shared: Arc<Shared>,
    /// The number of the host.
    number: usize,
    host: Arc<Host>,
    origin: Arc<str>,
    connection: Option<Connection>,
    /// The message whose request is on its way.
    in_hand: Option<usize>,
}

/// What there is instead of a response.
enum Missing {
    /// It was too late to begin.
    Time,
    Answer(Silence),
}

impl From<Silence> for Missing {
    fn from(silence: Silence) -> Self {
        Self::Answer(silence)
    }
}

impl Drop for Sender {
    /// It panicked, or nobody waits any more. A request that was on its way may have arrived.
    fn drop(&mut self) {
        if let Some(index) = self.in_hand.take() {
            let done = Done { index, host: self.number, verdict: verdict::interrupted() };
            self.shared.queue.finish(done, false);
        }
    }
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, number: usize, host: Arc<Host>, origin: Arc<str>) -> Self {
        Self { shared, number, host, origin, connection: None, in_hand: None }
    }

    /// Sends this request and those that follow it. Answers the number of the host.
    pub(super) async fn run(mut self, job: Job, slot: Slot) -> usize {
        let mut late = pin!(sleep_until(self.shared.deadline));
        let mut next = Some(job);
        while let Some(job) = next {
            let index = job.index;
            self.in_hand = Some(index);
            let verdict = self.deliver(job, late.as_mut()).await;
            self.in_hand = None;
            let now = Instant::now();
            let stay = now < self.shared.send_until && self.host.may_stay(&slot, now);
            next = self.shared.queue.finish(Done { index, host: self.number, verdict }, stay);
        }
        // No wait from here on: the call may be over, and what it has ended would lose the connection.
        if let Some(connection) = self.connection.take() {
            self.shared.current.client.pool.put(&self.origin, connection);
        }
        // Last: who gets it next finds the connection.
        drop(slot);
        self.number
    }

    async fn deliver(&mut self, job: Job, late: Pin<&mut Sleep>) -> Verdict {
        let Job { endpoint, request, .. } = job;
        let destination = &endpoint.destination;
        if let Some(failure) = self.host.failed_since(self.shared.started, destination) {
            return verdict::not_tried(&failure);
        }
        let (verdict, failed) = match self.exchange(request, &endpoint, late).await {
            Ok((connection, answer)) => {
                let verdict = self.judge(connection, answer).await;
                let failed = match &verdict {
                    // A response is the destination's own.
                    Verdict::Retry(failure) if failure.scope == Scope::Destination => {
                        Some((Reach::Destination, failure.clone()))
                    }
                    _ => None,
                };
                // Before the slot is free: who gets it next must know.
                if failed.is_none() {
                    self.host.answered(destination);
                }
                (verdict, failed)
            }
            Err(Missing::Time) => return Verdict::Held,
            // A connection that was lost says nothing, for the host or against it.
            Err(Missing::Answer(silence)) => {
                let failed = silence.reach().map(|reach| (reach, silence.failure().clone()));
                (silence.verdict(), failed)
            }
        };
        if let Some((reach, failure)) = failed {
            self.host.failed(reach, destination, &failure);
        }
        self.host.moved();
        verdict
    }

    /// Sends a request and waits for the head of the response.
    async fn exchange(
        &mut self,
        mut request: Request,
        to: &Endpoint,
        mut late: Pin<&mut Sleep>,
    ) -> Result<(Connection, Answer), Missing> {
        let shared = Arc::clone(&self.shared);
        let files = &shared.current.files;
        let mut is_repeated = false;
        loop {
            if Instant::now() >= shared.send_until {
                return Err(Missing::Time);
            }
            let mut connection = self.connect(to, is_repeated, late.as_mut()).await?;
            let began = Instant::now();
            // Connecting took its time. Nothing was sent, and the connection is there for the next one.
            if began >= shared.send_until {
                self.connection = Some(connection);
                return Err(Missing::Time);
            }
            match before(late.as_mut(), connection.send(request, to)).await {
                Some(Ok(answer)) => return Ok((connection, answer)),
                Some(Err(lost)) => match lost.unsent {
                    Some(unsent) if !is_repeated => (is_repeated, request) = (true, unsent),
                    Some(_) => {
                        return Err(Silence::unreached(&self.origin, files, &lost.error.into()).into());
                    }
                    None => return Err(Silence::lost(&self.origin, files, &*lost.error).into()),
                },
                None => {
                    shared.current.client.pool.forget(&self.origin, &connection);
                    return Err(Silence::timeout(&self.origin, began.elapsed()).into());
                }
            }
        }
    }

    /// A connection that can take a request: the last one, one that waits, or a new one.
    async fn connect(
        &mut self,
        to: &Endpoint,
        fresh: bool,
        late: Pin<&mut Sleep>,
    ) -> Result<Connection, Silence> {
        let client = &self.shared.current.client;
        let mut next =
            if fresh { None } else { self.connection.take().or_else(|| client.pool.take(&self.origin)) };
        while let Some(mut connection) = next {
            if connection.is_ready().await {
                return Ok(connection);
            }
            next = client.pool.take(&self.origin);
        }
        let dialled = before(late, client.dialer.dial(&to.target)).await;
        let connection = dialled
            .unwrap_or(Err(Unreached::Late))
            .map_err(|unreached| Silence::unreached(&self.origin, &self.shared.current.files, &unreached))?;
        if let Some(shared) = connection.shared() {
            client.pool.put(&self.origin, shared);
        }
        Ok(connection)
    }

    /// What a response means. The status is the verdict. The body after it is read only for the words of a failure, and so that
    /// the connection can be used again; a receiver that promised 200 and then stumbles over its own body has promised all the
    /// same.
    async fn judge(&mut self, mut connection: Connection, mut answer: Answer) -> Verdict {
        let mut words = Vec::new();
        // Too slow: what has come is enough.
        let read = timeout(BODY_WAIT, connection.read(&mut answer, &mut words)).await;
        let (status, retry_after) = (answer.status, answer.retry_after.take());
        match read {
            Ok(true) => self.connection = Some(connection),
            _ if status.is_success() => self.shared.current.client.pool.close(connection, answer),
            _ => {}
        }
        if status.is_success() {
            return Verdict::Delivered;
        }
        let wait = retry_after.and_then(|value| verdict::retry_after(&value, SystemTime::now()));
        let said = snippet::snippet(&words, &self.shared.current.keys.hidden);
        self.shared.statuses.verdict(status, verdict::words(&self.origin, status, &said), wait)
    }
}

/// What comes of it, if it does before the time is up.
async fn before<F: Future>(mut late: Pin<&mut Sleep>, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        // A timer says nothing to a task that has done too much at once; the clock does.
        Poll::Pending if Instant::now() >= late.deadline() => Poll::Ready(None),
        Poll::Pending => late.as_mut().poll(context).map(|()| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work that never rests has used up what a task may do at a time, whenever the timer is asked.
    #[tokio::test]
    async fn g7_the_deadline_holds_for_work_that_never_rests() {
        let restless = poll_fn(|context| {
            while pin!(tokio::task::consume_budget()).poll(context).is_ready() {}
            Poll::<()>::Pending
        });
        let late = pin!(sleep_until(Instant::now() + Duration::from_millis(50)));
        let ended = tokio::time::timeout(Duration::from_secs(30), before(late, restless)).await;
        assert_eq!(ended, Ok(None));
    }
}
