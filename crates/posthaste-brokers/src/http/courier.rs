//! Who carries requests: a task with a slot of a host and a connection to it.
//!
//! A call hires couriers for each of its hosts, as many as there is room for. A courier carries one request after another
//! over its connection, until there is none ready, somebody else wants the slot, the host fails, or time is up. So a
//! message costs a turn of a running task: no task, timer, slot or look into the pool of its own. Couriers are tasks
//! because writing to a socket is most of the work, and a call would do it with one thread.
//!
//! A request is sent a second time, at once and over a new connection, only where it is certain that nobody has seen it: the
//! old connection was closed before a byte of it was written, or a server of HTTP/2 says that it has not looked at it.
//!
//! One timer serves all requests of a courier: those of a call have the same deadline. So none of them is begun after half of
//! the time ([`Order::last_begin`]): a timeout is a silence of at least the other half, and never a request that was cut off
//! because others had the time before it.

use super::deliver::{self, Outcome};
use super::dial::Unreached;
use super::hosts::{Host, Room};
use super::kit::Kit;
use super::link::{Answer, Link};
use super::place::Place;
use super::pool::Pool;
use super::tray::{Job, Landed, Tray};
use super::verdict::{self, Silence, Statuses};
use posthaste::sink::Verdict;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use tokio::time::{Instant, Sleep, sleep_until};

/// What all couriers of a call have in common.
pub(super) struct Order {
    pub(super) tray: Tray,
    pub(super) kit: Arc<Kit>,
    pub(super) statuses: Arc<Statuses>,
    pub(super) started: Instant,
    /// When the last request may be begun.
    pub(super) last_begin: Instant,
    pub(super) deadline: Instant,
}

impl Order {
    /// Whether there is time enough to find out what a request is worth.
    pub(super) fn may_begin(&self) -> bool {
        Instant::now() < self.last_begin
    }
}

pub(super) struct Courier {
    order: Arc<Order>,
    /// The number of the host's queue.
    queue: usize,
    host: Arc<Host>,
    origin: Arc<str>,
    link: Option<Link>,
    /// The message whose request is on its way.
    in_hand: Option<usize>,
}

/// What there is instead of an answer.
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

impl Drop for Courier {
    /// It panicked, or nobody waits any more. A request that was on its way may have arrived.
    fn drop(&mut self) {
        if let Some(index) = self.in_hand.take() {
            let landed = Landed { index, queue: self.queue, verdict: verdict::interrupted() };
            self.order.tray.land(landed, false);
        }
    }
}

impl Courier {
    pub(super) fn new(order: Arc<Order>, queue: usize, host: Arc<Host>, origin: Arc<str>) -> Self {
        Self { order, queue, host, origin, link: None, in_hand: None }
    }

    /// Carries this request and those that follow it. Answers the number of the queue.
    pub(super) async fn carry(mut self, job: Job, room: Room) -> usize {
        let mut late = pin!(sleep_until(self.order.deadline));
        let mut next = Some(job);
        while let Some(job) = next {
            let index = job.index;
            self.in_hand = Some(index);
            let verdict = self.deliver(&job, late.as_mut()).await;
            self.in_hand = None;
            let now = Instant::now();
            let stay = now < self.order.last_begin && self.host.may_stay(&room, now);
            next = self.order.tray.land(Landed { index, queue: self.queue, verdict }, stay);
        }
        if let Some(link) = self.link.take() {
            self.pool().put(&self.origin, link);
        }
        // Last: who gets it next finds the connection.
        drop(room);
        self.queue
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.order.kit.client.pool
    }

    async fn deliver(&mut self, job: &Job, late: Pin<&mut Sleep>) -> Verdict {
        let destination = &job.place.destination;
        if let Some(failure) = self.host.failed_since(self.order.started, destination) {
            return verdict::not_tried(&failure);
        }
        let exchanged = self.exchange(job, late).await;
        let has_answered = exchanged.is_ok();
        let Outcome { verdict, failed } = match exchanged {
            Ok(answer) => Outcome::answered(self.judge(job, answer).await),
            Err(Missing::Time) => return Verdict::Held,
            Err(Missing::Answer(silence)) => Outcome::silent(silence),
        };
        // Before the slot is free: who gets it next must know.
        match failed {
            Some((reach, failure)) => self.host.failed(reach, destination, &failure),
            None if has_answered => self.host.answered(destination),
            // A connection that was lost says nothing, for the host or against it.
            None => {}
        }
        self.host.moved();
        verdict
    }

    /// Sends a request and waits for the head of the answer.
    async fn exchange(&mut self, job: &Job, mut late: Pin<&mut Sleep>) -> Result<Answer, Missing> {
        let order = Arc::clone(&self.order);
        let files = &order.kit.files;
        let mut is_repeated = false;
        loop {
            if !order.may_begin() {
                return Err(Missing::Time);
            }
            let mut link = self.link(&job.place, is_repeated, late.as_mut()).await?;
            let began = Instant::now();
            // Connecting took its time. Nothing was sent, and the connection is there for the next one.
            if began >= order.last_begin {
                self.link = Some(link);
                return Err(Missing::Time);
            }
            match before(late.as_mut(), link.send(&job.letter, &job.place)).await {
                Some(Ok(answer)) => {
                    self.link = Some(link);
                    return Ok(answer);
                }
                Some(Err(lost)) if lost.is_unsent && !is_repeated => is_repeated = true,
                Some(Err(lost)) if lost.is_unsent => {
                    return Err(Silence::unreached(&self.origin, files, &lost.error.into()).into());
                }
                Some(Err(lost)) => return Err(Silence::lost(&self.origin, files, &*lost.error).into()),
                None => {
                    self.pool().forget(&self.origin, &link);
                    return Err(Silence::timeout(&self.origin, began.elapsed()).into());
                }
            }
        }
    }

    /// A connection that can take a request: the last one, one that waits, or a new one.
    async fn link(&mut self, place: &Place, fresh: bool, late: Pin<&mut Sleep>) -> Result<Link, Silence> {
        if !fresh && let Some(link) = self.used().await {
            return Ok(link);
        }
        let client = &self.order.kit.client;
        let dialled = before(late, client.dialer.dial(&place.target)).await;
        let link = dialled
            .unwrap_or(Err(Unreached::Late))
            .map_err(|unreached| Silence::unreached(&self.origin, &self.order.kit.files, &unreached))?;
        if let Some(shared) = link.shared() {
            client.pool.put(&self.origin, shared);
        }
        Ok(link)
    }

    async fn used(&mut self) -> Option<Link> {
        // A wire looks by itself before it writes.
        if let Some(link) = self.link.take_if(|link| link.is_free()) {
            return Some(link);
        }
        let mut next = self.link.take().or_else(|| self.pool().take(&self.origin));
        while let Some(mut link) = next {
            if link.is_ready().await {
                return Some(link);
            }
            next = self.pool().take(&self.origin);
        }
        None
    }

    async fn judge(&mut self, job: &Job, mut answer: Answer) -> Verdict {
        let words = match &mut self.link {
            Some(link) if !link.is_free() || link.shared().is_some() => {
                deliver::read(link, &mut answer).await
            }
            _ => Vec::new(),
        };
        // What is not read to its end is closed.
        self.link.take_if(|link| !link.is_free());
        deliver::verdict(&self.order, &self.origin, &answer, &words, &job.letter.payload)
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
    use std::time::Duration;

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
