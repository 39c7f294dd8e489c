//! A sender is a task with a slot of a host and a connection to it. A queue stands between a call and its
//! senders.
//!
//! A call starts senders for each of its hosts, as many as there are slots. A sender sends one request after
//! another over its connection, until there is none ready, somebody else wants the slot, the host fails, or
//! time is up. So a message costs a turn of a running task, and has no task, timer, slot or look into the
//! pool of its own. Senders are tasks, because writing to a socket is most of the work, and a call would do
//! it with one thread.
//!
//! A request is sent a second time, at once and over a new connection, only where nobody can have seen it.
//! Either the old connection was closed before a byte of the request was written, or a server of HTTP/2 says
//! that it has not looked at it.
//!
//! One timer serves all requests of a sender, because those of a call have the same deadline. So none of them
//! is begun after half of the time. A timeout is then a silence of at least the other half, and no request is
//! cut off because others had the time before it. A request of HTTP/2 is begun when its server has a stream
//! free.

use super::client::Request;
use super::client::connection::{Connection, ResponseHead};
use super::client::dial::Unreached;
use super::client::endpoint::Endpoint;
use super::client::hosts::{Host, Reach, Slot};
use super::reload::Current;
use super::verdict::{self, NoResponse, Statuses};
use crate::lock::locked;
use crate::snippet;
use posthaste::sink::{Scope, Verdict};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Poll;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, Sleep, sleep_until, timeout, timeout_at};

/// A body that takes longer than this is not read to its end.
pub(super) const BODY_WAIT: Duration = Duration::from_millis(250);

/// A request that is ready.
pub(super) struct Job {
    /// The message's index in the call.
    pub(super) index: usize,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) request: Request,
}

/// What became of a request.
pub(super) struct JobOutcome {
    pub(super) index: usize,
    /// The number of its queue.
    pub(super) queue: usize,
    pub(super) verdict: Verdict,
}

/// The requests of a call for one host, which are made ahead. A sender takes the next one when it has ended
/// one, so a busy host never waits for the call.
pub(super) struct Queue {
    pub(super) number: usize,
    pub(super) host: Arc<Host>,
    pub(super) origin: Arc<str>,
    ready: Mutex<VecDeque<Job>>,
}

impl Queue {
    pub(super) fn new(number: usize, host: Arc<Host>, origin: Arc<str>) -> Arc<Self> {
        Arc::new(Self { number, host, origin, ready: Mutex::default() })
    }

    /// Requests that nobody has taken.
    pub(super) fn ready(&self) -> MutexGuard<'_, VecDeque<Job>> {
        locked(&self.ready)
    }

    /// Takes the requests back that `which` names.
    pub(super) fn withdraw(&self, which: impl Fn(&Job) -> bool) -> VecDeque<Job> {
        let mut ready = self.ready();
        let (gone, kept) = std::mem::take(&mut *ready).into_iter().partition(which);
        *ready = kept;
        gone
    }
}

/// What all senders of a call have in common.
pub(super) struct CallContext {
    pub(super) done: UnboundedSender<JobOutcome>,
    pub(super) current: Arc<Current>,
    pub(super) statuses: Arc<Statuses>,
    pub(super) started: Instant,
    /// When the last request may be begun.
    pub(super) send_until: Instant,
    pub(super) deadline: Instant,
    /// Nothing of the call is begun any more.
    pub(super) is_over: RwLock<bool>,
}

impl CallContext {
    /// Begins a request, unless the call is over. The first poll begins it. An aborted task runs on until it
    /// waits, so a sender may come here when its call was dropped.
    fn begin<T>(&self, request: impl FnOnce() -> T) -> Option<T> {
        let is_over = self.is_over.read().unwrap_or_else(PoisonError::into_inner);
        if *is_over { None } else { Some(request()) }
    }

    fn is_over(&self) -> bool {
        *self.is_over.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a call when it is dropped: no request is begun after that.
pub(super) struct CallEnd(pub(super) Arc<CallContext>);

impl Drop for CallEnd {
    fn drop(&mut self) {
        // Waits for senders that begin a request at this moment.
        *self.0.is_over.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

pub(super) struct Sender {
    shared: Arc<CallContext>,
    queue: Arc<Queue>,
    connection: Option<Connection>,
    /// The message whose request is on its way.
    in_hand: Option<usize>,
}

/// Why there is no response.
enum Missing {
    /// It was too late to begin, or the call is over.
    Time,
    Answer(NoResponse),
}

impl From<NoResponse> for Missing {
    fn from(missing: NoResponse) -> Self {
        Self::Answer(missing)
    }
}

impl Drop for Sender {
    /// The sender panicked, or nobody waits any more. A request that was on its way may have arrived.
    fn drop(&mut self) {
        self.end(verdict::interrupted());
    }
}

impl Sender {
    pub(super) fn new(shared: Arc<CallContext>, queue: Arc<Queue>) -> Self {
        Self { shared, queue, connection: None, in_hand: None }
    }

    /// Tells the call what became of the request in hand, if there is one. A dropped call need not hear it.
    fn end(&mut self, verdict: Verdict) {
        if let Some(index) = self.in_hand.take() {
            let _ = self.shared.done.send(JobOutcome { index, queue: self.queue.number, verdict });
        }
    }

    /// Sends this request and those that follow it, and answers the number of the queue.
    pub(super) async fn run(mut self, job: Job, slot: Slot) -> usize {
        let mut late = pin!(sleep_until(self.shared.deadline));
        let mut next = Some(job);
        while let Some(job) = next {
            self.in_hand = Some(job.index);
            let verdict = self.deliver(job, late.as_mut()).await;
            let now = Instant::now();
            let stay = now < self.shared.send_until
                && !self.shared.is_over()
                && self.queue.host.may_stay(&slot, now);
            next = if stay { self.queue.ready().pop_front() } else { None };
            self.end(verdict);
        }
        // Nothing waits from here on. The call may be over, and an aborted task would lose the connection at
        // its next wait.
        if let Some(connection) = self.connection.take() {
            self.shared.current.client.pool.put(&self.queue.origin, connection);
        }
        // The slot is dropped last, so that its next holder finds the connection.
        drop(slot);
        self.queue.number
    }

    async fn deliver(&mut self, job: Job, late: Pin<&mut Sleep>) -> Verdict {
        let Job { endpoint, request, .. } = job;
        let destination = &endpoint.destination;
        if let Some(failure) = self.queue.host.failed_since(self.shared.started, destination) {
            return verdict::not_tried(&failure);
        }
        let (verdict, failed) = match self.exchange(request, &endpoint, late).await {
            Ok((connection, answer)) => {
                let verdict = self.judge(connection, answer).await;
                let failed = match &verdict {
                    // A response speaks for its destination alone.
                    Verdict::Retry(failure) if failure.scope == Scope::Destination => {
                        Some((Reach::Destination, failure.clone()))
                    }
                    _ => None,
                };
                // This is told before the slot is free, because its next holder must know.
                if failed.is_none() {
                    self.queue.host.answered(destination);
                }
                (verdict, failed)
            }
            Err(Missing::Time) => return Verdict::Held,
            // A lost connection says nothing for the host or against it.
            Err(Missing::Answer(missing)) => {
                let failed = missing.reach().map(|reach| (reach, missing.failure().clone()));
                (missing.verdict(), failed)
            }
        };
        if let Some((reach, failure)) = failed {
            self.queue.host.failed(reach, destination, &failure);
        }
        self.queue.host.moved();
        verdict
    }

    /// Sends a request and waits for the head of the response.
    async fn exchange(
        &mut self,
        mut request: Request,
        to: &Endpoint,
        mut late: Pin<&mut Sleep>,
    ) -> Result<(Connection, ResponseHead), Missing> {
        let shared = Arc::clone(&self.shared);
        let files = &shared.current.files;
        let mut is_repeated = false;
        loop {
            if Instant::now() >= shared.send_until {
                return Err(Missing::Time);
            }
            let mut connection = self.connect(to, is_repeated, late.as_mut()).await?;
            let stream = timeout_at(shared.send_until, connection.stream()).await;
            let began = Instant::now();
            // Connecting, or waiting for a stream, took too long. Nothing was sent, and the connection is
            // there for the next request.
            let Some(stream) = stream.ok().filter(|_| began < shared.send_until) else {
                self.connection = Some(connection);
                return Err(Missing::Time);
            };
            let sent = {
                let mut sending = pin!(connection.send(request, to, stream));
                let mut is_begun = false;
                let sent = poll_fn(|context| {
                    if std::mem::replace(&mut is_begun, true) {
                        return sending.as_mut().poll(context).map(Some);
                    }
                    match shared.begin(|| sending.as_mut().poll(context)) {
                        Some(polled) => polled.map(Some),
                        None => Poll::Ready(None),
                    }
                });
                before(late.as_mut(), sent).await
            };
            match sent {
                Some(None) => return Err(Missing::Time),
                Some(Some(Ok(answer))) => return Ok((connection, answer)),
                Some(Some(Err(lost))) => match lost.unsent {
                    Some(unsent) if !is_repeated => (is_repeated, request) = (true, unsent),
                    Some(_) => {
                        return Err(
                            NoResponse::unreached(&self.queue.origin, files, &lost.error.into()).into()
                        );
                    }
                    None => return Err(NoResponse::lost(&self.queue.origin, files, &*lost.error).into()),
                },
                None => {
                    shared.current.client.pool.forget(&self.queue.origin, &connection);
                    return Err(NoResponse::timeout(&self.queue.origin, began.elapsed()).into());
                }
            }
        }
    }

    /// A connection that can take a request: the sender's own, one of the pool, or a new one.
    async fn connect(
        &mut self,
        to: &Endpoint,
        fresh: bool,
        late: Pin<&mut Sleep>,
    ) -> Result<Connection, NoResponse> {
        let client = &self.shared.current.client;
        let mut next = if fresh {
            None
        } else {
            self.connection.take().or_else(|| client.pool.take(&self.queue.origin))
        };
        while let Some(mut connection) = next {
            if connection.is_ready().await {
                return Ok(connection);
            }
            next = client.pool.take(&self.queue.origin);
        }
        let dialled = before(late, client.dialler.dial(&to.target)).await;
        let connection = dialled.unwrap_or(Err(Unreached::Late)).map_err(|unreached| {
            NoResponse::unreached(&self.queue.origin, &self.shared.current.files, &unreached)
        })?;
        if let Some(shared) = connection.shared() {
            client.pool.put(&self.queue.origin, shared);
        }
        Ok(connection)
    }

    /// What a response means. The status is the verdict. The body is read only for the words of a failure,
    /// and so that the connection can be used again. A receiver that promised 200 and then stumbles over its
    /// own body has promised all the same.
    async fn judge(&mut self, mut connection: Connection, mut answer: ResponseHead) -> Verdict {
        let mut words = Vec::new();
        // If the body is too slow, what has come of it is enough.
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
        self.shared.statuses.verdict(status, verdict::words(&self.queue.origin, status, &said), wait)
    }
}

/// The output of `work`, if it comes before the time is up.
async fn before<F: Future>(mut late: Pin<&mut Sleep>, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        // A timer is silent to a task that has done too much at once, so the clock is asked.
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
