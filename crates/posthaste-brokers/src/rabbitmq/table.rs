//! What is under way on one connection: parcels, numbers, answers. Pure: bytes and frames go in and out, and
//! nothing waits here.
//!
//! # Channels
//!
//! An error of one publish (no such exchange, no right, too large) closes the whole channel, and everything
//! unanswered on it has an unknown fate. So nothing new goes among the others. The first parcel for an
//! exchange, one that is larger than any before, and one whose destination was on a channel that was closed
//! goes to a channel for trials, one at a time, with a question behind it that is answered in order: if the
//! answer comes, the broker took the parcel, and its like go on by the ordinary channels; if the channel is
//! closed instead, it is known who did it. That is the topology check of each new connection, too. A
//! passive declaration was refused for it: it shows that an exchange is there, not that we may use it.
//!
//! A few ordinary channels, by the exchange's name, bound what the deletion of an exchange costs others.
//!
//! # Returns
//!
//! A message that no queue takes comes back before it is confirmed (`mandatory`), without the number that
//! the confirmation has. It is known by its message id. A client that guesses ("the next confirmation must be
//! its own") takes a lost message for a delivered one as soon as two are in flight.

use super::verdict::{self, Answer};
use super::wire::{self, Close, Heard};
use crate::mailbox::Mailbox;
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::Arc;
use tokio::sync::oneshot;

/// For questions.
const CONTROL: u16 = 1;
/// For what has not proven itself. Several, because the one before may be unanswered still.
const TRIALS: std::ops::Range<u16> = 2..5;
/// All together. The rest are the ordinary ones.
pub(super) const CHANNELS: u16 = 12;
/// Encoded and not written yet: enough to keep the socket busy. One more message may stand behind it.
const OUT_BYTES: usize = 256 << 10;
/// No broker is set up to refuse messages of this size.
const ORDINARY_BYTES: usize = 64 << 10;
/// Names that are remembered; they are only a short cut.
const NAMES_MAX: usize = 1_024;

/// What a call hears.
#[derive(Debug)]
pub(super) enum Note {
    /// What became of its message of this index.
    Answer(usize, Answer),
    /// The connection is gone: there will be no more answers.
    Ended(Arc<str>),
}

/// A message on its way.
pub(super) struct Parcel {
    pub(super) index: usize,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) id: String,
    pub(super) properties: Vec<u8>,
    pub(super) payload: Bytes,
}

/// What a broker can be asked.
#[derive(Debug, Clone)]
pub(super) enum Question {
    /// Whether it is there.
    Ping,
    Exchange(String),
    Queue(String),
}

/// Mailboxes that something was put into.
pub(super) type Bells = Vec<Arc<Mailbox<Note>>>;

/// Whoever asked waits at the other end.
pub(super) type Answered = oneshot::Sender<Result<(), Close>>;

/// A message that has been encoded for its channel.
#[derive(Debug)]
struct Entry {
    call: u64,
    index: usize,
    id: String,
    exchange: String,
    routing_key: String,
    bytes: usize,
    /// Place of its last byte among all that were ever written here.
    end: u64,
    returned: Option<Close>,
}

#[derive(Debug, Default)]
struct Channel {
    open: bool,
    /// Number of the first entry; those that were answered out of turn leave a gap.
    first: u64,
    entries: VecDeque<Option<Entry>>,
    /// What comes back now: its properties follow.
    returning: Option<Close>,
}

impl Channel {
    /// Takes the entries that a confirmation is about.
    fn answered(&mut self, tag: u64, multiple: bool) -> Vec<Entry> {
        let place = tag.checked_sub(self.first).map(|place| place as usize);
        let Some(last) = place.filter(|place| *place < self.entries.len()) else { return Vec::new() };
        let from = if multiple { 0 } else { last };
        let found = self.entries.range_mut(from..).take(last + 1 - from).filter_map(Option::take).collect();
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
        found
    }

    fn mark_returned(&mut self, id: &str) {
        let Some(close) = self.returning.take() else { return };
        // Every copy of it: a copy too many is sent again, and none is lost.
        for entry in self.entries.iter_mut().flatten().filter(|entry| entry.id == id) {
            entry.returned = Some(close.clone());
        }
    }
}

/// The message that nothing is known of yet.
#[derive(Debug)]
struct Trial {
    channel: u16,
    tag: u64,
    exchange: String,
    bytes: usize,
}

/// The table.
#[derive(Default)]
pub(super) struct Table {
    frame_max: usize,
    channels_max: u16,
    /// Encoded, for the transport to take.
    out: Vec<u8>,
    /// Bytes that were ever encoded, and those that have left.
    encoded: u64,
    left: u64,
    queue: VecDeque<(u64, Parcel)>,
    trials: VecDeque<(u64, Parcel)>,
    on_trial: Option<Trial>,
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
    asked: Option<Answered>,
    registered: u64,
    calls: FxHashMap<u64, Arc<Mailbox<Note>>>,
    ended: Option<Arc<str>>,
}

impl std::fmt::Debug for Table {
    /// Not what is in the messages.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("unanswered", &self.unanswered).finish_non_exhaustive()
    }
}

impl Table {
    pub(super) fn new(channels_max: u16, frame_max: usize) -> Self {
        Self { channels_max, frame_max, ..Self::default() }
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

    /// A call that is gone: what it has not sent is never sent, and answers to it are nobody's.
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
        self.questions.push_back((question, answered));
    }

    /// A sign of life.
    pub(super) fn beat(&mut self) {
        wire::heartbeat(&mut self.out);
    }

    /// That many bytes more have left.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.left += bytes as u64;
    }

    pub(super) fn submit(&mut self, call: u64, parcel: Parcel) {
        // Otherwise the mailbox says so already.
        if self.ended.is_none() {
            let queue = if self.needs_trial(&parcel) { &mut self.trials } else { &mut self.queue };
            queue.push_back((call, parcel));
        }
    }

    fn needs_trial(&self, parcel: &Parcel) -> bool {
        !self.trusted.contains(&parcel.exchange)
            || parcel.payload.len() > self.bytes_proven.max(ORDINARY_BYTES)
            || (!self.suspects.is_empty()
                && self.suspects.contains(&(parcel.exchange.clone(), parcel.routing_key.clone())))
    }

    /// Takes back what has not left; answers with the indexes.
    pub(super) fn withdraw(&mut self, call: u64) -> Vec<usize> {
        let mut taken = Vec::new();
        for queue in [&mut self.queue, &mut self.trials] {
            queue.retain(|(owner, parcel)| {
                if *owner == call {
                    taken.push(parcel.index);
                }
                *owner != call
            });
        }
        taken
    }

    /// Encodes as much as fits, and hands it over.
    pub(super) fn fill(&mut self, out: &mut Vec<u8>) {
        self.ask_next();
        while self.blocked.is_none() && self.out.len() < OUT_BYTES {
            // Trials first: behind a queue that is always full they would never come.
            if self.on_trial.is_none()
                && let Some((call, parcel)) = self.trials.pop_front()
            {
                let (exchange, bytes) = (parcel.exchange.clone(), parcel.payload.len());
                let channel = self.trial_channel();
                let tag = self.encode(channel, call, parcel);
                self.on_trial = Some(Trial { channel, tag, exchange, bytes });
                wire::qos(&mut self.out, channel);
            } else if let Some((call, parcel)) = self.queue.pop_front() {
                self.encode(self.ordinary_channel(&parcel.exchange), call, parcel);
            } else {
                break;
            }
        }
        self.encoded += self.out.len() as u64;
        std::mem::swap(&mut self.out, out);
        // One large message is no reason to keep its size for ever.
        if self.out.capacity() > 4 * OUT_BYTES {
            self.out = Vec::new();
        }
    }

    fn ordinary_channel(&self, exchange: &str) -> u16 {
        let ordinary = u64::from((self.channels_max + 1).saturating_sub(TRIALS.end).max(1));
        let mut hasher = FxHasher::default();
        hasher.write(exchange.as_bytes());
        // Less than CHANNELS.
        TRIALS.end + (hasher.finish() % ordinary) as u16
    }

    /// The one on which a refusal hurts fewest.
    fn trial_channel(&self) -> u16 {
        let unanswered = |number: &u16| self.channels.get(number).map_or(0, |channel| channel.entries.len());
        TRIALS.min_by_key(unanswered).unwrap_or(TRIALS.start)
    }

    fn ask_next(&mut self) {
        if self.asked.is_some() {
            return;
        }
        let Some((question, answer)) = self.questions.pop_front() else { return };
        self.asked = Some(answer);
        self.open(CONTROL, false);
        match question {
            Question::Ping => wire::qos(&mut self.out, CONTROL),
            Question::Exchange(name) => wire::exchange_declare_passive(&mut self.out, CONTROL, &name),
            Question::Queue(name) => wire::queue_declare_passive(&mut self.out, CONTROL, &name),
        }
    }

    fn open(&mut self, number: u16, confirms: bool) {
        let channel = self.channels.entry(number).or_default();
        if std::mem::replace(&mut channel.open, true) {
            return;
        }
        channel.first = 1;
        wire::channel_open(&mut self.out, number);
        if confirms {
            wire::confirm_select(&mut self.out, number);
        }
    }

    /// Writes a message behind what is there, and answers with its number.
    fn encode(&mut self, number: u16, call: u64, parcel: Parcel) -> u64 {
        self.open(number, true);
        let Parcel { index, exchange, routing_key, id, properties, payload } = parcel;
        let place = (exchange.as_str(), routing_key.as_str());
        wire::publish(&mut self.out, number, place, &properties, &payload, self.frame_max);
        let end = self.encoded + self.out.len() as u64;
        let bytes = payload.len();
        self.unanswered += 1;
        let channel = self.channels.entry(number).or_default();
        channel.entries.push_back(Some(Entry {
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

    /// What the broker says. `Some`: it ends the connection.
    pub(super) fn hear(&mut self, number: u16, heard: Heard, bells: &mut Bells) -> Option<Close> {
        match heard {
            Heard::Ack { tag, multiple } => self.confirm(number, tag, multiple, true, bells),
            Heard::Nack { tag, multiple } => self.confirm(number, tag, multiple, false, bells),
            Heard::Return(close) => self.channels.entry(number).or_default().returning = Some(close),
            Heard::Header { message_id: Some(id), .. } => {
                self.channels.entry(number).or_default().mark_returned(&id);
            }
            // Returned without our id: nobody knows which one it was.
            Heard::Header { message_id: None, .. } => {
                return Some(Close { code: 0, text: "a message came back without its id".to_owned() });
            }
            Heard::QosOk | Heard::ExchangeDeclareOk | Heard::QueueDeclareOk if number == CONTROL => {
                self.answer(Ok(()));
            }
            Heard::QosOk => self.passed(number),
            Heard::ChannelClose(close) => self.close_channel(number, &close, bells),
            Heard::Flow(active) => wire::flow_ok(&mut self.out, number, active),
            Heard::Blocked(reason) => self.blocked = Some(reason),
            Heard::Unblocked => self.blocked = None,
            Heard::ConnectionClose(close) => return Some(close),
            _ => {}
        }
        None
    }

    fn answer(&mut self, answer: Result<(), Close>) {
        if let Some(asked) = self.asked.take() {
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
                Some(close) => Answer::Returned(close),
                None if taken => Answer::Stored,
                None => Answer::Nacked,
            };
            self.tell(entry.call, entry.index, answer, bells);
        }
    }

    fn tell(&self, call: u64, index: usize, answer: Answer, bells: &mut Bells) {
        if let Some(mailbox) = self.calls.get(&call)
            && mailbox.post(Note::Answer(index, answer))
        {
            bells.push(Arc::clone(mailbox));
        }
    }

    /// The one on trial was taken: its like need none.
    fn passed(&mut self, number: u16) {
        let Some(trial) = self.on_trial.take_if(|trial| trial.channel == number) else { return };
        self.bytes_proven = self.bytes_proven.max(trial.bytes);
        self.trust(trial.exchange);
    }

    fn trust(&mut self, exchange: String) {
        if self.trusted.len() >= NAMES_MAX {
            self.trusted.clear();
        }
        self.trusted.insert(exchange);
        for (call, parcel) in std::mem::take(&mut self.trials) {
            self.submit(call, parcel);
        }
    }

    fn close_channel(&mut self, number: u16, close: &Close, bells: &mut Bells) {
        wire::channel_close_ok(&mut self.out, number);
        let Some(channel) = self.channels.remove(&number) else { return };
        if number == CONTROL {
            return self.answer(Err(close.clone()));
        }
        let culprit = self.on_trial.take_if(|trial| trial.channel == number).map(|trial| trial.tag);
        for (tag, entry) in (channel.first..).zip(channel.entries) {
            let Some(entry) = entry else { continue };
            self.unanswered -= 1;
            if culprit == Some(tag) {
                self.refuse_its_like(&entry, close, bells);
            }
            let answer = Answer::Closed { close: close.clone(), culprit: culprit == Some(tag) };
            self.tell(entry.call, entry.index, answer, bells);
            self.suspect(entry, close);
        }
        self.bytes_max = verdict::bytes_max(close).or(self.bytes_max);
        // What is under suspicion now does not go on among the others.
        for (call, parcel) in std::mem::take(&mut self.queue) {
            self.submit(call, parcel);
        }
    }

    /// What waits for the same trial, and would have the same end.
    fn refuse_its_like(&mut self, culprit: &Entry, close: &Close, bells: &mut Bells) {
        let whole_exchange = verdict::concerns_exchange(close);
        let (refused, left): (VecDeque<_>, _) =
            std::mem::take(&mut self.trials).into_iter().partition(|(_, parcel)| {
                parcel.exchange == culprit.exchange
                    && (whole_exchange || parcel.routing_key == culprit.routing_key)
                    && verdict::bytes_max(close).is_none_or(|max| parcel.payload.len() > max)
            });
        self.trials = left;
        for (call, parcel) in refused {
            let answer = Answer::Closed { close: close.clone(), culprit: true };
            self.tell(call, parcel.index, answer, bells);
        }
    }

    /// A size proves itself by being taken; everything else must show that it was not to blame.
    fn suspect(&mut self, entry: Entry, close: &Close) {
        if verdict::bytes_max(close).is_some() {
            return;
        }
        if verdict::concerns_exchange(close) && close.text.contains(&format!("'{}'", entry.exchange)) {
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
            let answer = Answer::Lost { left: entry.end <= self.left, why: Arc::clone(why) };
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
