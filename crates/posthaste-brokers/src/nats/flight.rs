//! Publishing a call's messages and collecting their verdicts.
//!
//! A [`Flight`] is one call. It takes turns from the chain, sends what may go, and reads answers, until
//! every message has a verdict or time is up. There is no task and no timer for a single message: one
//! call is one future, woken for batches of turns and answers. Answers are read before turns are taken, because each
//! one lets the next message of its key go: so a burst of answers is one burst of messages.
//!
//! After the half of its time a call sends nothing more: so what was sent has at least the other half for its answer, and
//! a message that is not acknowledged says something about its stream. Nor does it on a connection that is about to be
//! left. What was not sent then is given back as soon as the rest is answered.
//!
//! Nothing is sent twice and nothing is sent on another connection than the one the call began with:
//! trying again is the relay's affair.

use super::entry::Pen;
use super::outbox;
use super::session::{Note, Registration, Session};
use super::verdict::{self, Silence};
use posthaste::sink::chain::{Call, Turn};
use posthaste::sink::{Message, Verdict};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// What a call appends before the writing begins. A server reads as much at once, and can begin with it while the
/// rest is written.
const APPEND_BYTES: usize = 64 << 10;

/// Small, because a call has a thousand of them, and answers come in any order.
#[derive(Clone, PartialEq)]
enum Fate {
    /// Not sent.
    Waiting,
    /// Sent; the answer is to come.
    Sent,
    Delivered,
    Failed(Box<Verdict>),
}

/// One call.
pub(super) struct Flight<'a> {
    messages: &'a [Message],
    fates: Vec<Fate>,
    undecided: usize,
    /// Taken from the window: for each message in flight one, and what is not used yet.
    permits: usize,
    in_flight: usize,
    /// May be sent, when there is room.
    ready: VecDeque<usize>,
    call: Call<'a>,
    answers: Registration,
    window: &'a Semaphore,
    /// What the server takes, when the call began; and whether perhaps somebody else said so.
    bytes_max: usize,
    is_hearsay: bool,
    turns: Vec<(usize, Turn)>,
    notes: Vec<Note>,
    pen: Pen,
    /// Nothing is sent after this.
    last_call: Instant,
    /// The connection is about to be left.
    is_leaving: bool,
}

impl<'a> Flight<'a> {
    pub(super) fn new(
        messages: &'a [Message],
        call: Call<'a>,
        answers: Registration,
        window: &'a Semaphore,
        last_call: Instant,
    ) -> Self {
        let info = answers.session().info();
        Self {
            messages,
            fates: vec![Fate::Waiting; messages.len()],
            undecided: messages.len(),
            permits: 0,
            in_flight: 0,
            ready: VecDeque::new(),
            call,
            bytes_max: info.bytes_max().unwrap_or(usize::MAX),
            is_hearsay: info.is_hearsay,
            answers,
            window,
            turns: Vec::new(),
            notes: Vec::new(),
            pen: Pen::default(),
            last_call,
            is_leaving: false,
        }
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        self.answers.session()
    }

    /// Whether there are messages without a verdict.
    pub(super) fn is_open(&self) -> bool {
        self.undecided > 0
    }

    fn may_send(&self) -> bool {
        !self.is_leaving && Instant::now() < self.last_call
    }

    /// Until all is decided, or nothing is under way and nothing more may be sent. Nobody wakes it when the time for
    /// sending is over: whoever calls this does. It may be dropped and called again.
    pub(super) async fn fly(&mut self) {
        while self.is_open() && (self.in_flight > 0 || self.may_send()) {
            self.await_news().await;
            self.take_turns();
            self.send_ready();
        }
    }

    /// Waits for turns, for answers, or for room to send more.
    async fn await_news(&mut self) {
        let (window, session) = (self.window, Arc::clone(self.answers.session()));
        let wants_room = !self.ready.is_empty() && self.may_send();
        let mut room = pin!(window.acquire());
        poll_fn(|context| {
            let news = self.poll_news(context);
            if wants_room
                && session.outbox.poll_room(context).is_ready()
                && let Poll::Ready(Ok(permit)) = room.as_mut().poll(context)
            {
                // Kept: given back to be taken again, it would go round among the waiting calls.
                permit.forget();
                self.permits += 1;
                return Poll::Ready(());
            }
            if news { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn poll_news(&mut self, context: &mut Context<'_>) -> bool {
        let notes = self.answers.poll_notes(context, &mut self.notes).is_ready();
        self.take_notes();
        let turns = self.call.poll_turns(context, &mut self.turns).is_ready();
        notes || turns
    }

    fn take_turns(&mut self) {
        let mut turns = std::mem::take(&mut self.turns);
        for (index, turn) in turns.drain(..) {
            match turn {
                // It may have been given up in the meantime.
                Turn::Go if self.fates[index] == Fate::Waiting => self.ready.push_back(index),
                Turn::Go => {}
                Turn::Held => self.set(index, Verdict::Held),
            }
        }
        self.turns = turns;
    }

    /// Reads what has come without waiting.
    pub(super) fn read_notes(&mut self) {
        self.answers.take_notes(&mut self.notes);
        self.take_notes();
    }

    fn take_notes(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        for note in notes.drain(..) {
            match note {
                Note::Answer(index, answer) => {
                    if self.fates.get(index) == Some(&Fate::Sent) {
                        let message = &self.messages[index];
                        self.decide(index, answer.verdict(|| &message.destination));
                    }
                }
                Note::Denied(subject) => self.deny(&subject),
                Note::Leaving => self.is_leaving = true,
                Note::Ended(why) => self.give_up(&Silence::ConnectionLost(why.to_string())),
            }
        }
        self.notes = notes;
    }

    /// The server names the subject and not the message.
    fn deny(&mut self, subject: &str) {
        for index in 0..self.messages.len() {
            if self.fates[index] == Fate::Sent && self.messages[index].destination == subject {
                self.decide(index, verdict::denied(subject, self.answers.session().identity()));
            }
        }
    }

    pub(super) fn give_up(&mut self, why: &Silence) {
        self.ready.clear();
        for index in 0..self.messages.len() {
            match self.fates[index] {
                Fate::Waiting => self.decide(index, why.verdict(false)),
                Fate::Sent => self.decide(index, why.verdict(true)),
                Fate::Delivered | Fate::Failed(_) => {}
            }
        }
    }

    /// Sends what may go, as far as there is room.
    fn send_ready(&mut self) {
        if !self.ready.is_empty() && self.may_send() {
            self.take_permits();
            let session = Arc::clone(self.answers.session());
            let mut goes_on = true;
            while goes_on {
                goes_on = false;
                session.outbox.append(|bytes| goes_on = self.write_ready(bytes));
            }
        }
        if self.permits > self.in_flight {
            self.window.add_permits(self.permits - self.in_flight);
            self.permits = self.in_flight;
        }
    }

    /// As many as are wanted and there.
    fn take_permits(&mut self) {
        let wanted = self.ready.len().saturating_sub(self.permits - self.in_flight);
        let there = wanted.min(self.window.available_permits());
        // Bounded by the window, which is far smaller.
        let Ok(count) = u32::try_from(there) else { return };
        if let Ok(permits) = self.window.try_acquire_many(count) {
            permits.forget();
            self.permits += there;
        }
    }

    /// Appends a piece, and answers whether there may be another one.
    fn write_ready(&mut self, bytes: &mut Vec<u8>) -> bool {
        let enough = bytes.len() + APPEND_BYTES;
        while self.permits > self.in_flight && outbox::has_room(bytes) {
            if bytes.len() >= enough {
                return true;
            }
            let Some(index) = self.ready.pop_front() else { break };
            // CRASH: from here on it may have left, also when this future is dropped. A death before the answer
            // leaves a message that the stream may hold: the relay sends it again, under the same id (G2).
            self.fates[index] = Fate::Sent;
            self.in_flight += 1;
            let reply = (self.answers.reply(), index);
            if let Err(verdict) = self.pen.write(&self.messages[index], reply, self.bytes_max, bytes) {
                self.decide(index, if self.is_hearsay { verdict::doubted(verdict) } else { verdict });
            }
        }
        false
    }

    /// Decides a message and tells those behind it.
    fn decide(&mut self, index: usize, verdict: Verdict) {
        self.in_flight -= usize::from(self.fates[index] == Fate::Sent);
        self.call.decide(index, &verdict);
        self.set(index, verdict);
    }

    fn set(&mut self, index: usize, verdict: Verdict) {
        if let Fate::Waiting | Fate::Sent = self.fates[index] {
            self.undecided -= 1;
            let delivered = verdict == Verdict::Delivered;
            self.fates[index] = if delivered { Fate::Delivered } else { Fate::Failed(Box::new(verdict)) };
        }
    }

    pub(super) fn verdicts(mut self) -> Vec<Verdict> {
        let verdict = |fate| match fate {
            Fate::Delivered => Verdict::Delivered,
            Fate::Failed(verdict) => *verdict,
            // A message is undecided only while `fly` runs.
            Fate::Waiting | Fate::Sent => Verdict::Held,
        };
        std::mem::take(&mut self.fates).into_iter().map(verdict).collect()
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.window.add_permits(self.permits);
    }
}

#[cfg(test)]
mod tests;
