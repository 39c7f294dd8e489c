//! One call of [`Sink::publish`](posthaste::sink::Sink::publish), the same for every broker.
//!
//! A [`Flight`] is one call. It is a future without tasks or timers for single messages, and is woken for
//! bursts of turns and answers. It knows which messages may go, which are with the broker and what became of
//! the others. A broker's [`Publisher`] only hands messages over, says what came back, and asks the server
//! whether it is there.
//!
//! # Time
//!
//! ```text
//! started ────── send_until ─────────── question ── deadline
//!   send and hear   │    hear              │ "are you there?"
//! ```
//!
//! Nothing is sent in the second half of a call. So whatever was sent has at least that half for its answer,
//! and a missing answer says something about the destination. Messages that were not sent are given back as
//! soon as the others are answered.
//!
//! # What a silence means
//!
//! The last part of the time is spent on asking the server whether it is there ([`Publisher::question`]). If
//! it answers, the fault is the destination's. Then a message that was sent is `Unknown`, and one that was
//! not sent is `Held`, for it only waited for its turn or for room. If the server does not answer, the fault
//! is its own. Then a message that was sent is `Unknown`, and one that was not sent is `Retry`. [`Silence`]
//! is this rule.
//!
//! # What is never done
//!
//! No message is sent twice, unless its server has said that it did not take it. Nothing is sent over another
//! connection than the one that the call began with. Trying again is the relay's affair.

use futures_util::future::BoxFuture;
use posthaste::sink::chain::{Call, Turn};
use posthaste::sink::{Failure, Message, Verdict};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// How long a call waits for a connection before it gives its messages back. A reconnect takes less, and an
/// outage is noticed soon enough.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// The last part of a call, for asking the server whether it is there.
const QUESTION_MAX: Duration = Duration::from_millis(500);

/// A broker's half of a call.
pub(crate) trait Publisher: Send {
    /// What the question at the end finds out.
    type Found: Send;

    /// Whether it is the client that gives a message's room back. It does where it may keep the message
    /// longer than the call.
    const CLIENT_RELEASES: bool = false;

    /// Tells the flight what has come back. If nothing has, the waker is kept.
    fn poll_answers(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> Poll<()>;

    /// Whether the messages that are ready are worth sending now. This is asked before room in the window is.
    fn wants_to_send(&self, _flight: &Flight<'_>) -> bool {
        true
    }

    /// Whether the client takes more now. If it does not, the waker is kept.
    fn poll_room(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Hands over the messages that may go. It takes their indices from [`Flight::next`] and says
    /// [`Flight::sent`] or [`Flight::decide`] of each.
    fn send(&mut self, flight: &mut Flight<'_>);

    /// The time for sending is over. A client with a queue of its own gives back what has not left that queue
    /// ([`Flight::unsent`]), because it would leave in the second half.
    fn stop(&mut self, _flight: &mut Flight<'_>) {}

    /// Whether something is worth waiting for although nothing of this call is with the broker.
    fn is_waiting(&self, _flight: &Flight<'_>) -> bool {
        false
    }

    /// How long the question at the end may take.
    fn question_time(&self, patience: Duration) -> Duration {
        QUESTION_MAX.min(patience / 4)
    }

    /// Asks the server whether it is there.
    fn question(&mut self, flight: &Flight<'_>, within: Duration) -> BoxFuture<'static, Self::Found>;

    /// Takes back what was handed over and has not left.
    fn withdraw(&mut self) -> Vec<usize> {
        Vec::new()
    }

    /// What the lack of an answer means for a message.
    fn silence(&self, index: usize, message: &Message, is_sent: bool, found: &Self::Found) -> Verdict;
}

/// A message without an answer, and what is known of its server.
#[derive(Debug, Clone)]
pub(crate) enum Silence {
    /// The server answers otherwise.
    Present(Failure),
    /// The server does not answer, takes nothing, or its connection is gone.
    Absent(Failure),
}

impl Silence {
    pub(crate) fn verdict(&self, is_sent: bool) -> Verdict {
        match (self, is_sent) {
            (Self::Present(failure) | Self::Absent(failure), true) => Verdict::Unknown(failure.clone()),
            // It waited for its turn or for room: its own destination is not to blame.
            (Self::Present(_), false) => Verdict::Held,
            (Self::Absent(failure), false) => Verdict::Retry(failure.clone()),
        }
    }
}

/// Where a message is. The type is small, because a call has a thousand of them.
#[derive(Clone, PartialEq)]
enum Fate {
    /// Not sent.
    Waiting,
    /// With the broker; the answer is to come.
    Sent,
    /// Sent, and the client has given it up without an answer.
    Silent,
    Delivered,
    Failed(Box<Verdict>),
}

/// One call.
pub(crate) struct Flight<'a> {
    messages: &'a [Message],
    fates: Vec<Fate>,
    undecided: usize,
    in_flight: usize,
    /// Messages that may be sent when there is room.
    ready: VecDeque<usize>,
    /// Turns of keys; `None` where the broker's module keeps the order itself.
    keys: Option<Call<'a>>,
    turns: Vec<(usize, Turn)>,
    /// Room for messages of all calls together; `None` where the publisher has room of its own.
    window: Option<&'a Semaphore>,
    /// Room that was taken from the window for messages that are not sent yet.
    spare: usize,
    client_releases: bool,
    started: Instant,
    patience: Duration,
    /// Nothing is sent from then on.
    send_until: Instant,
}

impl<'a> Flight<'a> {
    /// A call that begins now and may take this long.
    pub(crate) fn new(messages: &'a [Message], patience: Duration) -> Self {
        let started = Instant::now();
        Self {
            messages,
            fates: vec![Fate::Waiting; messages.len()],
            undecided: messages.len(),
            in_flight: 0,
            ready: VecDeque::new(),
            keys: None,
            turns: Vec::new(),
            window: None,
            spare: 0,
            client_releases: false,
            started,
            patience,
            send_until: started + patience / 2,
        }
    }

    /// Each message waits for its turn.
    pub(crate) fn in_turns(mut self, keys: Call<'a>) -> Self {
        self.keys = Some(keys);
        self
    }

    /// No more messages of all calls together are with the broker than this window has room for.
    pub(crate) fn in_window(mut self, window: &'a Semaphore) -> Self {
        self.window = Some(window);
        self
    }

    /// How long the call may wait for a connection.
    pub(crate) fn connect_wait(&self) -> Duration {
        CONNECT_WAIT.min(self.patience / 2)
    }

    /// The verdicts of a call that sent nothing, because there is no connection.
    pub(crate) fn refused(self, failure: Failure) -> Vec<Verdict> {
        vec![Verdict::Retry(failure); self.messages.len()]
    }

    /// Runs until every message has its verdict, or time is up.
    pub(crate) async fn run<P: Publisher>(mut self, publisher: &mut P) -> Vec<Verdict> {
        self.client_releases = P::CLIENT_RELEASES;
        let question = publisher.question_time(self.patience);
        // Whether it ended in time shows in what is left.
        let _ = timeout_at(self.send_until, self.fly(publisher)).await;
        publisher.stop(&mut self);
        let _ = timeout_at(self.deadline() - question, self.fly(publisher)).await;
        if self.is_open() {
            self.find_out(publisher, question).await;
        }
        self.verdicts()
    }

    /// Runs until all is decided, or nothing is under way and nothing more may be sent. The caller has to end
    /// it when the time for sending is over. It may be dropped and called again.
    async fn fly<P: Publisher>(&mut self, publisher: &mut P) {
        while self.is_open() && (self.in_flight > 0 || self.may_send() || publisher.is_waiting(self)) {
            self.await_news(publisher).await;
            self.take_turns();
            self.send_ready(publisher);
        }
    }

    /// Waits for answers, for turns, or for room to send more. Answers are heard before turns are taken,
    /// because each answer lets the next message of its key go. So a burst of answers makes one burst of
    /// messages.
    async fn await_news<P: Publisher>(&mut self, publisher: &mut P) {
        let window = self.window;
        let wants_room = !self.ready.is_empty() && self.may_send() && publisher.wants_to_send(self);
        let mut room = pin!(acquire(window));
        poll_fn(|context| {
            let answers = publisher.poll_answers(context, self).is_ready();
            let turns = self.poll_turns(context).is_ready();
            if wants_room && publisher.poll_room(context).is_ready() {
                if self.spare > 0 || window.is_none() {
                    return Poll::Ready(());
                }
                if room.as_mut().poll(context).is_ready() {
                    // The permit is kept. If it were given back to be taken again, it would go round among
                    // the waiting calls.
                    self.spare += 1;
                    return Poll::Ready(());
                }
            }
            if answers || turns { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn poll_turns(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.keys {
            Some(keys) => keys.poll_turns(context, &mut self.turns),
            None => Poll::Pending,
        }
    }

    fn take_turns(&mut self) {
        let mut turns = std::mem::take(&mut self.turns);
        for (index, turn) in turns.drain(..) {
            match turn {
                Turn::Go => self.go(index),
                Turn::Held => self.hold(index),
            }
        }
        self.turns = turns;
    }

    fn send_ready<P: Publisher>(&mut self, publisher: &mut P) {
        if !self.ready.is_empty() && self.may_send() && publisher.wants_to_send(self) {
            self.take_room();
            publisher.send(self);
        }
        self.give_room_back();
    }

    /// Takes as much room as is wanted and there.
    fn take_room(&mut self) {
        let Some(window) = self.window else { return };
        let wanted = self.ready.len().saturating_sub(self.spare).min(window.available_permits());
        // It is bounded by the window, which is far smaller.
        let Ok(count) = u32::try_from(wanted) else { return };
        if let Ok(permits) = window.try_acquire_many(count) {
            permits.forget();
            self.spare += wanted;
        }
    }

    fn give_room_back(&mut self) {
        if let Some(window) = self.window {
            window.add_permits(std::mem::take(&mut self.spare));
        }
    }

    /// Decides what is left, because time is up.
    async fn find_out<P: Publisher>(&mut self, publisher: &mut P, within: Duration) {
        let question = publisher.question(self, within);
        let deadline = self.deadline();
        let (found, _) = tokio::join!(question, timeout_at(deadline, self.fly(publisher)));
        // What has come in the meantime counts. Nobody waits here any more, so nobody needs to be woken.
        let _ = publisher.poll_answers(&mut Context::from_waker(Waker::noop()), self);
        for index in publisher.withdraw() {
            self.unsent(index);
        }
        let messages = self.messages;
        self.decide_rest(|index, is_sent| publisher.silence(index, &messages[index], is_sent, &found));
    }

    /// Whether there are messages without a verdict.
    fn is_open(&self) -> bool {
        self.undecided > 0
    }

    /// Whether it is early enough to send.
    pub(crate) fn may_send(&self) -> bool {
        Instant::now() < self.send_until
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn send_until(&self) -> Instant {
        self.send_until
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.started + self.patience
    }

    /// Nothing more is sent from now on: the connection is about to be left.
    pub(crate) fn stop_sending(&mut self) {
        self.send_until = self.started;
    }

    pub(crate) fn messages(&self) -> &'a [Message] {
        self.messages
    }

    /// Messages that may be sent, whether or not there is room.
    pub(crate) fn ready(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.ready.iter().copied()
    }

    /// The next message that may be sent and that there is room for.
    pub(crate) fn next(&mut self) -> Option<usize> {
        if !self.has_room() {
            return None;
        }
        loop {
            let index = self.ready.pop_front()?;
            // The message may have been given up, or have left with another one, in the meantime.
            if self.is_unsent(index) {
                return Some(index);
            }
        }
    }

    /// Puts a message back before all others, because the client had no room for it.
    pub(crate) fn put_back(&mut self, index: usize) {
        self.ready.push_front(index);
    }

    /// Whether there is room for one more.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.spare == 0
            && let Some(window) = self.window
        {
            let Ok(permit) = window.try_acquire() else { return false };
            permit.forget();
            self.spare += 1;
        }
        true
    }

    /// The message has been handed over. This is said before it leaves, because from here on it may have
    /// left, also when the call is dropped.
    pub(crate) fn sent(&mut self, index: usize) {
        self.fates[index] = Fate::Sent;
        self.in_flight += 1;
        self.spare -= usize::from(self.window.is_some());
    }

    /// The message has not left, although it was handed over. A message that has its verdict keeps it.
    pub(crate) fn unsent(&mut self, index: usize) {
        if self.is_sent(index) {
            self.land(index);
            self.fates[index] = Fate::Waiting;
        }
    }

    /// The client has given the message up without an answer.
    pub(crate) fn silent(&mut self, index: usize) {
        if self.is_sent(index) {
            self.land(index);
            self.fates[index] = Fate::Silent;
        }
    }

    /// A message that is not with the broker any more leaves room for another one.
    fn land(&mut self, index: usize) {
        if self.fates[index] == Fate::Sent {
            self.in_flight -= 1;
            self.spare += usize::from(self.window.is_some() && !self.client_releases);
        }
    }

    /// Whether the message is with the broker.
    pub(crate) fn is_sent(&self, index: usize) -> bool {
        self.fates.get(index) == Some(&Fate::Sent)
    }

    /// Whether the message has neither left nor a verdict.
    pub(crate) fn is_unsent(&self, index: usize) -> bool {
        self.fates[index] == Fate::Waiting
    }

    /// Messages that may have left and have no answer.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = usize> + '_ {
        let is_unanswered = |(_, fate): &(usize, &Fate)| matches!(fate, Fate::Sent | Fate::Silent);
        self.fates.iter().enumerate().filter(is_unanswered).map(|(index, _)| index)
    }

    /// Whether the message has been delivered.
    pub(crate) fn is_delivered(&self, index: usize) -> bool {
        self.fates[index] == Fate::Delivered
    }

    /// The message may be sent.
    pub(crate) fn go(&mut self, index: usize) {
        if self.is_unsent(index) {
            self.ready.push_back(index);
        }
    }

    /// An earlier message of its key was not delivered.
    pub(crate) fn hold(&mut self, index: usize) {
        self.set(index, Verdict::Held);
    }

    /// Decides a message and lets the next one of its key go, or not.
    pub(crate) fn decide(&mut self, index: usize, verdict: Verdict) {
        if let Some(keys) = &mut self.keys {
            keys.decide(index, &verdict);
        }
        self.set(index, verdict);
    }

    fn set(&mut self, index: usize, verdict: Verdict) {
        if let Fate::Delivered | Fate::Failed(_) = self.fates[index] {
            return;
        }
        self.land(index);
        self.undecided -= 1;
        let is_delivered = verdict == Verdict::Delivered;
        self.fates[index] = if is_delivered { Fate::Delivered } else { Fate::Failed(Box::new(verdict)) };
    }

    /// Decides every message that is left. `verdict` gets its index, and whether it may have left.
    pub(crate) fn decide_rest(&mut self, mut verdict: impl FnMut(usize, bool) -> Verdict) {
        self.ready.clear();
        for index in 0..self.messages.len() {
            match self.fates[index] {
                Fate::Waiting => self.decide(index, verdict(index, false)),
                Fate::Sent | Fate::Silent => self.decide(index, verdict(index, true)),
                Fate::Delivered | Fate::Failed(_) => {}
            }
        }
    }

    fn verdicts(mut self) -> Vec<Verdict> {
        debug_assert!(!self.is_open(), "a message without a verdict");
        let verdict = |fate| match fate {
            Fate::Delivered => Verdict::Delivered,
            Fate::Failed(verdict) => *verdict,
            // `run` has decided all.
            Fate::Waiting | Fate::Sent | Fate::Silent => Verdict::Held,
        };
        std::mem::take(&mut self.fates).into_iter().map(verdict).collect()
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if let Some(window) = self.window {
            let kept = if self.client_releases { 0 } else { self.in_flight };
            window.add_permits(self.spare + kept);
        }
    }
}

/// Room for one message. Nobody closes a window.
async fn acquire(window: Option<&Semaphore>) {
    if let Some(window) = window
        && let Ok(permit) = window.acquire().await
    {
        SemaphorePermit::forget(permit);
    }
}

#[cfg(test)]
mod tests;
