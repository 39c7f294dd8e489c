//! The table itself: keys, topics and calls. Its methods are called under the lock, and none of them waits.

use super::topics::{TopicStanding, Topics};
use super::{DeliveryFault, LineId, Message, MessageRef, News};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::task::Waker;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageState {
    /// Behind others of its key.
    Waiting,
    /// Next of its key, but its topic is on trial and has enough messages out.
    Queued,
    /// May be handed to the line.
    Go(LineId),
    /// The line has it.
    Sent(LineId),
    Done,
}

#[derive(Debug)]
struct TrackedMessage {
    key: Option<u32>,
    topic: u32,
    /// The text that decides about the partition, where that is not the key itself.
    partition: Option<Box<str>>,
    /// The next waiting message of the key.
    next: Option<MessageRef>,
    state: MessageState,
    /// Whether it is counted among the messages of its topic that are out on trial.
    trial: bool,
}

#[derive(Debug)]
pub(super) struct CallEntry {
    messages: Vec<TrackedMessage>,
    /// Messages that are with a line, or may go to one.
    out: usize,
    /// Whether the call has not returned yet.
    live: bool,
    pub(super) news: Vec<(u32, News)>,
    pub(super) waker: Option<Waker>,
}

impl CallEntry {
    fn tell(&mut self, index: u32, news: News, woken: &mut Vec<Waker>) {
        self.news.push((index, news));
        woken.extend(self.waker.take());
    }
}

/// Where messages of a key are. Messages on equal rails end in one partition, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rail {
    line: LineId,
    topic: u32,
    partition: Option<Box<str>>,
}

#[derive(Debug, Default)]
struct KeyState {
    name: Arc<str>,
    /// Waiting messages: the first and the last.
    head: Option<MessageRef>,
    tail: Option<MessageRef>,
    /// Messages of calls that have not returned.
    live: usize,
    /// Messages that may go or are gone, and have no answer. Ghosts count, too.
    out: usize,
    /// How many of them are not handed over yet, and which call has them.
    unsent: usize,
    sender: u32,
    /// The rail of the messages that are out, if all of them are on one.
    open: Option<Rail>,
    /// The rail on which the last message was delivered.
    warm: Option<Rail>,
    failed: bool,
}

#[derive(Debug, Default)]
pub(super) struct OrderTable {
    pub(super) numbers: FxHashMap<Arc<str>, u32>,
    /// Keys by number. With numbers a key costs one look-up for each message. They are used again.
    keys: Vec<Option<KeyState>>,
    free: Vec<u32>,
    pub(super) calls: FxHashMap<u32, CallEntry>,
    entered: u32,
    pub(super) topics: Topics,
    pub(super) main: LineId,
    pub(super) trial: LineId,
}

impl OrderTable {
    pub(super) fn enter(&mut self, messages: &[Message]) -> u32 {
        loop {
            self.entered = self.entered.wrapping_add(1);
            if !self.calls.contains_key(&self.entered) {
                break;
            }
        }
        let call = self.entered;
        let mut tracked = Vec::with_capacity(messages.len());
        for message in messages {
            let name = message.order_key();
            let partition = message.partition_key().filter(|partition| name.is_some_and(|n| n != *partition));
            tracked.push(TrackedMessage {
                key: name.map(|name| self.number(name)),
                topic: self.topics.number(&message.destination),
                partition: partition.map(Into::into),
                next: None,
                state: MessageState::Waiting,
                trial: false,
            });
        }
        let news = Vec::with_capacity(messages.len());
        self.calls.insert(call, CallEntry { messages: tracked, out: 0, live: true, news, waker: None });
        // Nobody waits for this call yet.
        let woken = &mut Vec::new();
        for index in 0..messages.len() as u32 {
            self.queue(MessageRef { call, index }, woken);
        }
        call
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name: Arc<str> = name.into();
        let key = KeyState { name: Arc::clone(&name), ..KeyState::default() };
        let number = self.free.pop().unwrap_or(self.keys.len() as u32);
        if number as usize == self.keys.len() {
            self.keys.push(Some(key));
        } else {
            self.keys[number as usize] = Some(key);
        }
        self.numbers.insert(name, number);
        number
    }

    fn key(&mut self, number: u32) -> Option<&mut KeyState> {
        self.keys.get_mut(number as usize)?.as_mut()
    }

    fn message(&mut self, at: MessageRef) -> Option<&mut TrackedMessage> {
        self.calls.get_mut(&at.call)?.messages.get_mut(at.index as usize)
    }

    /// Puts a message behind the last of its key, and lets it go if it may.
    fn queue(&mut self, at: MessageRef, woken: &mut Vec<Waker>) {
        let Some(number) = self.message(at).and_then(|message| message.key) else {
            return self.claim(at, woken);
        };
        let Some(key) = self.key(number) else { return };
        key.live += 1;
        let before = key.tail.replace(at);
        if key.head.is_none() {
            key.head = Some(at);
        }
        match before.and_then(|before| self.message(before)) {
            Some(before) => before.next = Some(at),
            None => self.advance(number, woken),
        }
    }

    /// Lets the waiting messages of a key go as far as they may.
    fn advance(&mut self, number: u32, woken: &mut Vec<Waker>) {
        while let Some(at) = self.key(number).and_then(|key| key.head) {
            let failed = self.key(number).is_some_and(|key| key.failed);
            if !failed && !self.may_go(number, at) {
                return;
            }
            let next = self.message(at).and_then(|message| message.next.take());
            if let Some(key) = self.key(number) {
                key.head = next;
                key.tail = next.and(key.tail);
            }
            if failed {
                self.hold(at, woken);
            } else {
                self.claim(at, woken);
            }
        }
    }

    fn may_go(&self, number: u32, at: MessageRef) -> bool {
        let key = self.keys.get(number as usize).and_then(Option::as_ref);
        let message = self.calls.get(&at.call).and_then(|entry| entry.messages.get(at.index as usize));
        let (Some(key), Some(message)) = (key, message) else { return false };
        if key.out == 0 {
            return true;
        }
        // The three conditions, and the order of handing over.
        let handed_over = key.unsent == 0 || key.sender == at.call;
        let on_rail = |rail: &Rail| {
            rail.line == self.main && rail.topic == message.topic && rail.partition == message.partition
        };
        handed_over
            && self.topics.standing(message.topic) == TopicStanding::Proven
            && key.open.as_ref().is_some_and(on_rail)
            && key.warm == key.open
    }

    fn hold(&mut self, at: MessageRef, woken: &mut Vec<Waker>) {
        let Some(entry) = self.calls.get_mut(&at.call) else { return };
        entry.messages[at.index as usize].state = MessageState::Done;
        entry.tell(at.index, News::Held, woken);
    }

    /// The message is the next of its key. It goes, or waits for its topic's trial.
    fn claim(&mut self, at: MessageRef, woken: &mut Vec<Waker>) {
        let Some(entry) = self.calls.get_mut(&at.call) else { return };
        entry.out += 1;
        let message = &mut entry.messages[at.index as usize];
        message.state = MessageState::Queued;
        let (topic, number) = (message.topic, message.key);
        if let Some(key) = number.and_then(|number| self.key(number)) {
            key.out += 1;
            key.unsent += 1;
            key.sender = at.call;
        }
        match self.topics.admit(topic, at) {
            Some(standing) => self.go(at, standing, woken),
            None => {
                // It is on no rail until its topic has room for it.
                if let Some(key) = number.and_then(|number| self.key(number)) {
                    key.open = None;
                }
            }
        }
    }

    fn go(&mut self, at: MessageRef, standing: TopicStanding, woken: &mut Vec<Waker>) {
        let line = if standing == TopicStanding::Proven { self.main } else { self.trial };
        let Some(entry) = self.calls.get_mut(&at.call) else { return };
        let message = &mut entry.messages[at.index as usize];
        message.state = MessageState::Go(line);
        message.trial = standing == TopicStanding::Trial;
        entry.news.push((at.index, News::Go(line)));
        woken.extend(entry.waker.take());
        let Some(Some(key)) = message.key.map(|number| self.keys[number as usize].as_mut()) else { return };
        if key.out == 1 {
            let rail = Rail { line, topic: message.topic, partition: message.partition.clone() };
            if key.open.as_ref() != Some(&rail) {
                key.open = Some(rail);
            }
        }
    }

    pub(super) fn reroute(&mut self, at: MessageRef) -> Option<LineId> {
        let message = self.message(at)?;
        let (MessageState::Go(gone), number) = (message.state, message.key) else { return None };
        if number.and_then(|number| self.key(number)).is_some_and(|key| key.out > 1) {
            return None;
        }
        let (trial, topic) = (self.message(at)?.trial, self.message(at)?.topic);
        // A topic that has failed meanwhile must not end the next main line too.
        if !trial && self.topics.standing(topic) != TopicStanding::Proven {
            return None;
        }
        let line = if trial { self.trial } else { self.main };
        self.message(at)?.state = MessageState::Go(line);
        if let Some(rail) = number.and_then(|number| self.key(number)?.open.as_mut()) {
            rail.line = line;
        }
        (line != gone).then_some(line)
    }

    pub(super) fn sent(&mut self, at: MessageRef, woken: &mut Vec<Waker>) {
        let Some(message) = self.message(at) else { return };
        let MessageState::Go(line) = message.state else { return };
        message.state = MessageState::Sent(line);
        let Some(number) = message.key else { return };
        let Some(key) = self.key(number) else { return };
        key.unsent -= 1;
        if key.unsent == 0 && key.head.is_some() {
            self.advance(number, woken);
        }
    }

    /// A line reports on a message. A report on a message that another line has, or that is done, says
    /// nothing.
    pub(super) fn settle(
        &mut self,
        at: MessageRef,
        line: LineId,
        fault: Option<DeliveryFault>,
        woken: &mut Vec<Waker>,
    ) {
        let Some(message) = self.message(at) else { return };
        // A report can come before its call has said that the message was handed over.
        let unsent = match message.state {
            MessageState::Sent(on) if on == line => false,
            MessageState::Go(on) if on == line => true,
            _ => return,
        };
        if unsent {
            self.sent(at, woken);
        }
        match fault {
            None => self.finish(at, News::Delivered, woken),
            Some(fault) => self.fail(at, fault, true, line, woken),
        }
    }

    /// The message could not be handed over. So the messages of its key that its call still holds must not be
    /// either.
    pub(super) fn refuse(&mut self, at: MessageRef, fault: DeliveryFault, woken: &mut Vec<Waker>) {
        let Some(MessageState::Go(line)) = self.message(at).map(|message| message.state) else { return };
        self.fail(at, fault, false, line, woken);
    }

    /// The message failed. If that is its topic's fault, the messages that wait for the topic fail too,
    /// unsent.
    fn fail(
        &mut self,
        at: MessageRef,
        fault: DeliveryFault,
        sent: bool,
        line: LineId,
        woken: &mut Vec<Waker>,
    ) {
        let topic = self.topic_of(at).filter(|_| fault.is_destinations());
        let queued = topic.map(|topic| self.topics.take_queued(topic)).unwrap_or_default();
        self.finish(at, News::Failed { fault, sent, line }, woken);
        for at in queued {
            self.finish(at, News::Failed { fault, sent: false, line }, woken);
        }
    }

    /// The topic of a message. It is unknown when the call is gone, and then there is nobody to tell either.
    fn topic_of(&self, at: MessageRef) -> Option<u32> {
        Some(self.calls.get(&at.call)?.messages.get(at.index as usize)?.topic)
    }

    /// Ends a message that is queued, may go or is gone.
    fn finish(&mut self, at: MessageRef, news: News, woken: &mut Vec<Waker>) {
        let Some(entry) = self.calls.get_mut(&at.call) else { return };
        let message = &mut entry.messages[at.index as usize];
        let was = std::mem::replace(&mut message.state, MessageState::Done);
        let (number, topic, trial, live) = (message.key, message.topic, message.trial, entry.live);
        entry.out -= 1;
        let delivered = news == News::Delivered;
        if live {
            entry.tell(at.index, news, woken);
        } else if entry.out == 0 {
            self.remove(at.call);
        }
        if let Some(number) = number {
            self.finish_key(number, at, was, delivered, live, woken);
        }
        let released = self.topics.finish(topic, trial, delivered);
        for (at, standing) in released {
            self.go(at, standing, woken);
        }
    }

    fn finish_key(
        &mut self,
        number: u32,
        at: MessageRef,
        was: MessageState,
        delivered: bool,
        live: bool,
        woken: &mut Vec<Waker>,
    ) {
        let Some(key) = self.key(number) else { return };
        key.out -= 1;
        if !matches!(was, MessageState::Sent(_)) {
            key.unsent -= 1;
        }
        if delivered {
            // A rail is only left when nothing is out on it, so the delivered message was on the open one.
            if key.warm != key.open {
                key.warm.clone_from(&key.open);
            }
        } else if live {
            key.failed = true;
            self.hold_unsent(number, at, woken);
        }
        self.tidy(number);
        self.advance(number, woken);
    }

    /// Takes back the turns that a call got behind a message that failed before they were used.
    fn hold_unsent(&mut self, number: u32, behind: MessageRef, woken: &mut Vec<Waker>) {
        let Some(key) = self.key(number) else { return };
        if key.unsent == 0 {
            return;
        }
        let sender = key.sender;
        let Some(entry) = self.calls.get_mut(&sender) else { return };
        // All turns of a key that are not used yet are with one call.
        let from = if sender == behind.call { behind.index as usize + 1 } else { 0 };
        let mut topics = Vec::new();
        for (index, message) in entry.messages.iter_mut().enumerate().skip(from) {
            if message.key == Some(number)
                && matches!(message.state, MessageState::Go(_) | MessageState::Queued)
            {
                let queued = message.state == MessageState::Queued;
                message.state = MessageState::Done;
                entry.out -= 1;
                let at = MessageRef { call: sender, index: index as u32 };
                entry.news.push((at.index, News::Held));
                topics.push((message.topic, message.trial, queued, at));
            }
        }
        woken.extend(entry.waker.take());
        for (topic, trial, queued, at) in topics {
            if let Some(key) = self.key(number) {
                key.out -= 1;
                key.unsent -= 1;
            }
            if queued {
                self.topics.forget(topic, at);
            }
            for (at, standing) in self.topics.finish(topic, trial, false) {
                self.go(at, standing, woken);
            }
        }
    }

    /// A key that no call holds is open again. A key without messages is removed.
    fn tidy(&mut self, number: u32) {
        let Some(key) = self.key(number) else { return };
        if key.live == 0 {
            key.failed = false;
        }
        if key.live == 0 && key.out == 0 {
            let name = Arc::clone(&key.name);
            self.keys[number as usize] = None;
            self.numbers.remove(&name);
            self.free.push(number);
        }
    }

    /// A call returns, or was dropped. What it did not send is never sent. What has no answer is a ghost.
    pub(super) fn leave(&mut self, call: u32, woken: &mut Vec<Waker>) {
        let Some(entry) = self.calls.get_mut(&call) else { return };
        entry.waker = None;
        let undone = |message: &TrackedMessage| message.state != MessageState::Done;
        let left: Vec<u32> = (0..)
            .zip(&entry.messages)
            .filter(|(_, message)| undone(message))
            .map(|(index, _)| index)
            .collect();
        for index in left {
            self.abandon(MessageRef { call, index }, woken);
        }
        let Some(entry) = self.calls.get_mut(&call) else { return };
        entry.live = false;
        let numbers: Vec<u32> = entry.messages.iter().filter_map(|message| message.key).collect();
        if entry.out == 0 {
            self.remove(call);
        }
        for number in numbers {
            if let Some(key) = self.key(number) {
                key.live -= 1;
            }
            self.tidy(number);
        }
    }

    /// The call did not wait for the end of this message, so its verdict is not `Delivered`. The messages
    /// behind it must not go.
    fn abandon(&mut self, at: MessageRef, woken: &mut Vec<Waker>) {
        let Some(message) = self.message(at) else { return };
        let (state, topic, number) = (message.state, message.topic, message.key);
        if let Some(key) = number.and_then(|number| self.key(number)) {
            key.failed = true;
        }
        match state {
            MessageState::Done => {}
            MessageState::Queued => {
                self.topics.forget(topic, at);
                self.finish(at, News::Held, woken);
            }
            MessageState::Go(_) => self.finish(at, News::Held, woken),
            MessageState::Waiting | MessageState::Sent(_) => {
                if let Some(number) = number {
                    self.advance(number, woken);
                }
            }
        }
    }

    fn remove(&mut self, call: u32) {
        let Some(entry) = self.calls.remove(&call) else { return };
        for message in &entry.messages {
            self.topics.release(message.topic);
        }
    }
}
