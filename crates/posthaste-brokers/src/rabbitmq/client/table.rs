//! What is under way on one connection: messages, numbers, answers; `channel` says which channel is for what.
//! The table is pure: bytes and frames go in and out, and nothing waits here.
//!
//! # Bounds
//!
//! What the broker says never grows what we hold. Frames on channels that we have not opened are not heard.
//! Of several frames that want an answer (`channel.flow`), only the last is answered.
//!
//! # Returns
//!
//! A message that no queue takes comes back before it is confirmed (`mandatory`), without the number that the
//! confirmation has. Its message id tells which one it is. A client that guesses ("the next confirmation must
//! be its own") takes a lost message for a delivered one as soon as two are in flight.

use super::answer::{Close, Note, PublishOutcome};
use super::channel::{Awaited, CONTROL, Channel, ChannelPlan, InFlight, Trial};
use super::frames::{self, Heard};
use crate::mailbox::Mailbox;
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Bytes that are encoded and not written yet. This many keep the socket busy. One more message may stand
/// behind them.
const OUT_BYTES: usize = 256 << 10;
/// No broker is set up to refuse messages of this size.
const ORDINARY_BYTES: usize = 64 << 10;
/// Names that are remembered. They are only a short cut.
const NAMES_MAX: usize = 1_024;

/// A message on its way.
pub(crate) struct Publish {
    /// The message's index in its call.
    pub(crate) index: usize,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) id: String,
    pub(crate) properties: Vec<u8>,
    pub(crate) payload: Bytes,
}

/// What a broker can be asked.
#[derive(Debug, Clone)]
pub(crate) enum Question {
    /// Whether it is there.
    Ping,
    Exchange(String),
    Queue(String),
}

/// Mailboxes that something was put into.
pub(super) type Bells = Vec<Arc<Mailbox<Note>>>;

/// Whoever asked waits at the other end.
pub(super) type Answered = oneshot::Sender<Result<(), Close>>;

/// What is under way.
#[derive(Default)]
pub(super) struct ChannelTable {
    frame_max: usize,
    plan: ChannelPlan,
    /// Encoded bytes, for the transport to take.
    out: Vec<u8>,
    /// How many bytes were ever encoded, and how many of them have left.
    encoded: u64,
    left: u64,
    queue: VecDeque<(u64, Publish)>,
    trials: VecDeque<(u64, Publish)>,
    channels: FxHashMap<u16, Channel>,
    unanswered: usize,
    /// Exchanges that took a message over this connection.
    trusted: FxHashSet<String>,
    /// Exchange and routing key of what was on a channel that was closed.
    suspects: FxHashSet<(String, String)>,
    /// The largest body that was taken.
    bytes_proven: usize,
    bytes_max: Option<usize>,
    blocked: Option<String>,
    questions: VecDeque<(Question, Answered)>,
    asked: Option<(Question, Answered)>,
    /// Channels that are to be told that their flow was heard.
    flows: FxHashMap<u16, bool>,
    /// A sign of life is due.
    beat: bool,
    registered: u64,
    calls: FxHashMap<u64, Arc<Mailbox<Note>>>,
    ended: Option<Arc<str>>,
}

impl std::fmt::Debug for ChannelTable {
    /// Messages are not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelTable").field("unanswered", &self.unanswered).finish_non_exhaustive()
    }
}

impl ChannelTable {
    pub(super) fn new(channels: u16, frame_max: usize) -> Self {
        Self { plan: ChannelPlan::of(channels), frame_max, ..Self::default() }
    }

    /// Opens a mailbox for a call and gives the call a number, which is never used again.
    pub(super) fn register(&mut self, mailbox: &Arc<Mailbox<Note>>) -> u64 {
        self.registered += 1;
        match &self.ended {
            Some(why) => drop(mailbox.post(Note::Ended(Arc::clone(why)))),
            None => drop(self.calls.insert(self.registered, Arc::clone(mailbox))),
        }
        self.registered
    }

    /// The call is gone. What it has not sent is never sent, and answers to it are nobody's.
    pub(super) fn forget(&mut self, call: u64) {
        self.withdraw(call);
        self.calls.remove(&call);
    }

    /// Why the broker takes nothing now, if so.
    pub(super) fn blocked(&self) -> Option<&str> {
        self.blocked.as_deref()
    }

    /// The largest body that the broker takes, once it has said so.
    pub(super) fn bytes_max(&self) -> Option<usize> {
        self.bytes_max
    }

    /// Messages that are with the broker.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered
    }

    pub(super) fn ask(&mut self, question: Question, answered: Answered) {
        // Whoever has stopped waiting needs no answer.
        self.questions.retain(|(_, answered)| !answered.is_closed());
        self.questions.push_back((question, answered));
    }

    /// Whether a question has no answer yet.
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some() || !self.questions.is_empty()
    }

    /// A sign of life is due.
    pub(super) fn beat(&mut self) {
        self.beat = true;
    }

    /// So many more bytes may have left.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.left += bytes as u64;
    }

    pub(super) fn submit(&mut self, call: u64, message: Publish) {
        // After the end the mailbox says so already.
        if self.ended.is_none() {
            let queue = if self.needs_trial(&message) { &mut self.trials } else { &mut self.queue };
            queue.push_back((call, message));
        }
    }

    fn needs_trial(&self, message: &Publish) -> bool {
        self.plan.ordinary.is_empty()
            || !self.trusted.contains(&message.exchange)
            || message.payload.len() > self.bytes_proven.max(ORDINARY_BYTES)
            || (!self.suspects.is_empty()
                && self.suspects.contains(&(message.exchange.clone(), message.routing_key.clone())))
    }

    /// Takes back the messages that have not left, and answers with their indices.
    pub(super) fn withdraw(&mut self, call: u64) -> Vec<usize> {
        let mut taken = Vec::new();
        for queue in [&mut self.queue, &mut self.trials] {
            queue.retain(|(owner, message)| {
                if *owner == call {
                    taken.push(message.index);
                }
                *owner != call
            });
        }
        taken
    }

    /// Encodes as much as fits, and hands it over.
    pub(super) fn fill(&mut self, out: &mut Vec<u8>) {
        self.answer_broker();
        self.ask_next();
        // Trials come first, because behind a queue that is always full they would never leave.
        while self.has_room()
            && let Some((number, call, message)) = self.next_trial()
        {
            self.encode_trial(number, call, message);
        }
        while self.has_room()
            && let Some((call, message)) = self.queue.pop_front()
        {
            self.encode(self.plan.ordinary_channel(&message.exchange), call, message);
        }
        self.encoded += self.out.len() as u64;
        std::mem::swap(&mut self.out, out);
        // One large message is no reason to keep its size for ever.
        if self.out.capacity() > 4 * OUT_BYTES {
            self.out = Vec::new();
        }
    }

    fn has_room(&self) -> bool {
        self.blocked.is_none() && self.out.len() < OUT_BYTES
    }

    /// Writes what the broker wants to hear: a sign of life, and that its flow was heard.
    fn answer_broker(&mut self) {
        if std::mem::take(&mut self.beat) {
            frames::heartbeat(&mut self.out);
        }
        for (number, active) in self.flows.drain() {
            frames::flow_ok(&mut self.out, number, active);
        }
    }

    /// The first message whose exchange is not on trial, and the free channel on which a refusal hurts the
    /// fewest.
    fn next_trial(&mut self) -> Option<(u16, u64, Publish)> {
        if self.trials.is_empty() {
            return None;
        }
        let channel = |number: &u16| self.channels.get(number);
        let trial = |number: u16| channel(&number).and_then(Channel::trial);
        let free = self.plan.trials.clone().filter(|number| trial(*number).is_none());
        let number = free.min_by_key(|number| channel(number).map_or(0, |channel| channel.entries.len()))?;
        let under_way: Vec<&Trial> = self.plan.trials.clone().filter_map(trial).collect();
        let is_new =
            |(_, message): &(u64, Publish)| under_way.iter().all(|trial| trial.exchange != message.exchange);
        let place = self.trials.iter().position(is_new)?;
        let (call, message) = self.trials.remove(place)?;
        Some((number, call, message))
    }

    fn encode_trial(&mut self, number: u16, call: u64, message: Publish) {
        let (exchange, bytes) = (message.exchange.clone(), message.payload.len());
        let tag = self.encode(number, call, message);
        frames::qos(&mut self.out, number);
        self.await_answer(number, Awaited::Trial(Trial { tag, exchange, bytes }));
    }

    fn await_answer(&mut self, number: u16, awaited: Awaited) {
        self.channels.entry(number).or_default().awaits.push_back(awaited);
    }

    fn ask_next(&mut self) {
        if self.asked.is_some() {
            return;
        }
        while let Some((question, answer)) = self.questions.pop_front() {
            if !answer.is_closed() {
                return self.write_question(question, answer);
            }
        }
    }

    fn write_question(&mut self, question: Question, answer: Answered) {
        self.open(CONTROL);
        match &question {
            Question::Ping => frames::qos(&mut self.out, CONTROL),
            Question::Exchange(name) => frames::exchange_declare_passive(&mut self.out, CONTROL, name),
            Question::Queue(name) => frames::queue_declare_passive(&mut self.out, CONTROL, name),
        }
        self.asked = Some((question, answer));
        self.await_answer(CONTROL, Awaited::Answer);
    }

    /// Opens a channel. Every channel confirms, because one that is for questions may be for trials too.
    fn open(&mut self, number: u16) {
        let channel = self.channels.entry(number).or_default();
        if std::mem::replace(&mut channel.open, true) {
            return;
        }
        channel.first = 1;
        frames::channel_open(&mut self.out, number);
        frames::confirm_select(&mut self.out, number);
    }

    /// Encodes a message behind what is there, and answers with its number.
    fn encode(&mut self, number: u16, call: u64, message: Publish) -> u64 {
        self.open(number);
        let Publish { index, exchange, routing_key, id, properties, payload } = message;
        let place = (exchange.as_str(), routing_key.as_str());
        frames::publish(&mut self.out, number, place, &properties, &payload, self.frame_max);
        let end = self.encoded + self.out.len() as u64;
        let bytes = payload.len();
        self.unanswered += 1;
        let channel = self.channels.entry(number).or_default();
        channel.entries.push_back(Some(InFlight {
            call,
            index,
            id,
            exchange,
            routing_key,
            bytes,
            end,
            returned: None,
        }));
        channel.first + channel.entries.len() as u64 - 1
    }

    /// Handles what the broker says. If it is `Some`, the connection is over.
    pub(super) fn hear(&mut self, number: u16, heard: Heard, bells: &mut Bells) -> Option<Close> {
        match heard {
            Heard::Ack { tag, multiple } => self.confirm(number, tag, multiple, true, bells),
            Heard::Nack { tag, multiple } => self.confirm(number, tag, multiple, false, bells),
            Heard::Return(close) => {
                if let Some(channel) = self.channels.get_mut(&number) {
                    channel.returning = Some(close);
                }
            }
            Heard::Header { message_id: Some(id), .. } => {
                if let Some(channel) = self.channels.get_mut(&number) {
                    channel.mark_returned(&id);
                }
            }
            // The message came back without our id, and nobody knows which one it was.
            Heard::Header { message_id: None, .. } => {
                return Some(Close { code: 0, text: "a message came back without its id".to_owned() });
            }
            Heard::QosOk | Heard::ExchangeDeclareOk | Heard::QueueDeclareOk => self.answered(number),
            Heard::ChannelClose(close) => self.close_channel(number, &close, bells),
            Heard::Flow(active) if self.channels.contains_key(&number) => {
                self.flows.insert(number, active);
            }
            Heard::Blocked(reason) => self.blocked = Some(reason),
            Heard::Unblocked => self.blocked = None,
            Heard::ConnectionClose(close) => return Some(close),
            _ => {}
        }
        None
    }

    /// The first question of a channel has its answer.
    fn answered(&mut self, number: u16) {
        let awaits = self.channels.get_mut(&number).map(|channel| &mut channel.awaits);
        match awaits.and_then(VecDeque::pop_front) {
            Some(Awaited::Trial(trial)) => self.passed(trial),
            Some(Awaited::Answer) => self.answer(Ok(())),
            None => {}
        }
    }

    fn answer(&mut self, answer: Result<(), Close>) {
        if let Some((_, asked)) = self.asked.take() {
            // Whoever asked may have stopped waiting.
            let _ = asked.send(answer);
        }
    }

    fn confirm(&mut self, number: u16, tag: u64, multiple: bool, taken: bool, bells: &mut Bells) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        for entry in channel.answered(tag, multiple) {
            self.unanswered -= 1;
            if taken {
                self.bytes_proven = self.bytes_proven.max(entry.bytes);
            }
            if !self.suspects.is_empty() {
                self.suspects.remove(&(entry.exchange, entry.routing_key));
            }
            let answer = match entry.returned {
                Some(close) => PublishOutcome::Returned(close),
                None if taken => PublishOutcome::Stored,
                None => PublishOutcome::Nacked,
            };
            self.tell(entry.call, entry.index, answer, bells);
        }
    }

    fn tell(&self, call: u64, index: usize, answer: PublishOutcome, bells: &mut Bells) {
        if let Some(mailbox) = self.calls.get(&call)
            && mailbox.post(Note::Outcome(index, answer))
        {
            bells.push(Arc::clone(mailbox));
        }
    }

    /// The message on trial was taken, so its like need no trial.
    fn passed(&mut self, trial: Trial) {
        self.bytes_proven = self.bytes_proven.max(trial.bytes);
        // Without ordinary channels every message is a trial.
        if !self.plan.ordinary.is_empty() {
            self.trust(trial.exchange);
        }
    }

    fn trust(&mut self, exchange: String) {
        if self.trusted.len() >= NAMES_MAX {
            self.trusted.clear();
        }
        self.trusted.insert(exchange);
        for (call, message) in std::mem::take(&mut self.trials) {
            self.submit(call, message);
        }
    }

    fn close_channel(&mut self, number: u16, close: &Close, bells: &mut Bells) {
        let Some(channel) = self.channels.remove(&number) else { return };
        frames::channel_close_ok(&mut self.out, number);
        self.flows.remove(&number);
        let culprit = self.blame(channel.awaits, close);
        for (tag, entry) in (channel.first..).zip(channel.entries) {
            let Some(entry) = entry else { continue };
            self.unanswered -= 1;
            if culprit == Some(tag) {
                self.refuse_its_like(&entry, close, bells);
            }
            let answer = PublishOutcome::Closed { close: close.clone(), culprit: culprit == Some(tag) };
            self.tell(entry.call, entry.index, answer, bells);
            self.suspect(entry, close);
        }
        self.bytes_max = close.bytes_max().or(self.bytes_max);
        // Messages that are under suspicion now do not go on among the others.
        for (call, message) in std::mem::take(&mut self.queue) {
            self.submit(call, message);
        }
    }

    /// The first question of a channel is the one that closed it. If that was a trial, its message is to
    /// blame.
    fn blame(&mut self, mut awaits: VecDeque<Awaited>, close: &Close) -> Option<u64> {
        let first = awaits.pop_front();
        if let Some(Awaited::Answer) = first {
            self.answer(Err(close.clone()));
        } else if awaits.iter().any(|awaited| matches!(awaited, Awaited::Answer)) {
            // What stood before the question closed the channel, so the question is asked again.
            self.questions.extend(self.asked.take());
        }
        match first {
            Some(Awaited::Trial(trial)) => Some(trial.tag),
            _ => None,
        }
    }

    /// Refuses the messages that wait for the same trial, because they would have the same end.
    fn refuse_its_like(&mut self, culprit: &InFlight, close: &Close, bells: &mut Bells) {
        let whole_exchange = close.concerns_exchange();
        let (refused, left): (VecDeque<_>, _) =
            std::mem::take(&mut self.trials).into_iter().partition(|(_, message)| {
                message.exchange == culprit.exchange
                    && (whole_exchange || message.routing_key == culprit.routing_key)
                    && close.bytes_max().is_none_or(|max| message.payload.len() > max)
            });
        self.trials = left;
        for (call, message) in refused {
            let answer = PublishOutcome::Closed { close: close.clone(), culprit: true };
            self.tell(call, message.index, answer, bells);
        }
    }

    /// The message was on a channel that was closed, and must show that it was not to blame. After a refusal
    /// for size there is no suspicion, because a size proves itself by being taken.
    fn suspect(&mut self, entry: InFlight, close: &Close) {
        if close.bytes_max().is_some() {
            return;
        }
        if close.concerns_exchange() && close.names(&entry.exchange) {
            self.trusted.remove(&entry.exchange);
        }
        if self.suspects.len() < NAMES_MAX {
            self.suspects.insert((entry.exchange, entry.routing_key));
        }
    }

    pub(super) fn end(&mut self, why: &Arc<str>, bells: &mut Bells) {
        self.ended = Some(Arc::clone(why));
        let entries = std::mem::take(&mut self.channels).into_values().flat_map(|channel| channel.entries);
        for entry in entries.flatten() {
            let answer = PublishOutcome::Lost { left: entry.end <= self.left, why: Arc::clone(why) };
            self.tell(entry.call, entry.index, answer, bells);
        }
        self.queue.clear();
        self.trials.clear();
        self.questions.clear();
        self.asked = None;
        for mailbox in std::mem::take(&mut self.calls).into_values() {
            mailbox.post(Note::Ended(Arc::clone(why)));
            bells.push(mailbox);
        }
    }
}

#[cfg(test)]
mod tests;
