//! The table itself: keys, topics and calls. Who holds the lock calls these; nothing here waits.

use super::topics::{Standing, Topics};
use super::{Fault, LineId, Message, News, Seat};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::task::Waker;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Behind others of its key.
    Waiting,
    /// Next of its key; its topic is on trial and has enough out.
    Queued,
    /// May be handed to the line.
    Go(LineId),
    /// The line has it.
    Sent(LineId),
    Done,
}

#[derive(Debug)]
struct Place {
    key: Option<u32>,
    topic: u32,
    /// What decides about the partition, where that is not the key itself.
    partition: Option<Box<str>>,
    /// The next waiting message of the key.
    next: Option<Seat>,
    state: State,
    /// Counted among those of its topic that are out on trial.
    trial: bool,
}

#[derive(Debug)]
pub(super) struct Entry {
    places: Vec<Place>,
    /// Places that are with a line, or may go to one.
    out: usize,
    /// Not returned yet.
    live: bool,
    pub(super) news: Vec<(u32, News)>,
    pub(super) waker: Option<Waker>,
}

impl Entry {
    fn tell(&mut self, index: u32, news: News, woken: &mut Vec<Waker>) {
        self.news.push((index, news));
        woken.extend(self.waker.take());
    }
}

/// Where messages of a key are: messages of equal rails end in one partition, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rail {
    line: LineId,
    topic: u32,
    partition: Option<Box<str>>,
}

#[derive(Debug)]
struct Key {
    name: Arc<str>,
    /// Waiting messages: the first and the last.
    head: Option<Seat>,
    tail: Option<Seat>,
    /// Places of calls that have not returned.
    live: usize,
    /// Messages that may go or are gone, and have no answer; ghosts too.
    out: usize,
    /// Those of them that are not handed over yet, and by which call.
    unsent: usize,
    sender: u32,
    /// Where those that are out are, if all are on one rail.
    open: Option<Rail>,
    /// Where the last one was delivered.
    warm: Option<Rail>,
    failed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) numbers: FxHashMap<Arc<str>, u32>,
    /// By number. Numbers are used again, so that a key costs one look-up a message.
    keys: Vec<Option<Key>>,
    free: Vec<u32>,
    pub(super) calls: FxHashMap<u32, Entry>,
    entered: u32,
    pub(super) topics: Topics,
    pub(super) main: LineId,
    pub(super) trial: LineId,
}

impl Table {
    pub(super) fn enter(&mut self, messages: &[Message]) -> u32 {
        loop {
            self.entered = self.entered.wrapping_add(1);
            if !self.calls.contains_key(&self.entered) {
                break;
            }
        }
        let call = self.entered;
        let mut places = Vec::with_capacity(messages.len());
        for message in messages {
            let name = message.order_key();
            let partition = message.partition_key().filter(|partition| name.is_some_and(|n| n != *partition));
            places.push(Place {
                key: name.map(|name| self.number(name)),
                topic: self.topics.number(&message.destination),
                partition: partition.map(Into::into),
                next: None,
                state: State::Waiting,
                trial: false,
            });
        }
        let news = Vec::with_capacity(messages.len());
        self.calls.insert(call, Entry { places, out: 0, live: true, news, waker: None });
        // Nobody waits for this call yet.
        let woken = &mut Vec::new();
        for index in 0..messages.len() as u32 {
            self.queue(Seat { call, index }, woken);
        }
        call
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name: Arc<str> = name.into();
        let key = Key {
            name: Arc::clone(&name),
            head: None,
            tail: None,
            live: 0,
            out: 0,
            unsent: 0,
            sender: 0,
            open: None,
            warm: None,
            failed: false,
        };
        let number = self.free.pop().unwrap_or(self.keys.len() as u32);
        if number as usize == self.keys.len() {
            self.keys.push(Some(key));
        } else {
            self.keys[number as usize] = Some(key);
        }
        self.numbers.insert(name, number);
        number
    }

    fn key(&mut self, number: u32) -> Option<&mut Key> {
        self.keys.get_mut(number as usize)?.as_mut()
    }

    fn place(&mut self, seat: Seat) -> Option<&mut Place> {
        self.calls.get_mut(&seat.call)?.places.get_mut(seat.index as usize)
    }

    /// Puts a message behind the last of its key, and lets it go if it may.
    fn queue(&mut self, seat: Seat, woken: &mut Vec<Waker>) {
        let Some(number) = self.place(seat).and_then(|place| place.key) else {
            return self.claim(seat, woken);
        };
        let Some(key) = self.key(number) else { return };
        key.live += 1;
        let before = key.tail.replace(seat);
        if key.head.is_none() {
            key.head = Some(seat);
        }
        match before.and_then(|before| self.place(before)) {
            Some(before) => before.next = Some(seat),
            None => self.advance(number, woken),
        }
    }

    /// Lets the waiting messages of a key go as far as they may.
    fn advance(&mut self, number: u32, woken: &mut Vec<Waker>) {
        while let Some(seat) = self.key(number).and_then(|key| key.head) {
            let failed = self.key(number).is_some_and(|key| key.failed);
            if !failed && !self.may_go(number, seat) {
                return;
            }
            let next = self.place(seat).and_then(|place| place.next.take());
            if let Some(key) = self.key(number) {
                key.head = next;
                key.tail = next.and(key.tail);
            }
            if failed {
                self.hold(seat, woken);
            } else {
                self.claim(seat, woken);
            }
        }
    }

    fn may_go(&self, number: u32, seat: Seat) -> bool {
        let key = self.keys.get(number as usize).and_then(Option::as_ref);
        let place = self.calls.get(&seat.call).and_then(|entry| entry.places.get(seat.index as usize));
        let (Some(key), Some(place)) = (key, place) else { return false };
        if key.out == 0 {
            return true;
        }
        // The three conditions, and the order of handing over.
        let handed_over = key.unsent == 0 || key.sender == seat.call;
        let on_rail = |rail: &Rail| {
            rail.line == self.main && rail.topic == place.topic && rail.partition == place.partition
        };
        handed_over
            && self.topics.standing(place.topic) == Standing::Proven
            && key.open.as_ref().is_some_and(on_rail)
            && key.warm == key.open
    }

    fn hold(&mut self, seat: Seat, woken: &mut Vec<Waker>) {
        let Some(entry) = self.calls.get_mut(&seat.call) else { return };
        entry.places[seat.index as usize].state = State::Done;
        entry.tell(seat.index, News::Held, woken);
    }

    /// The next of its key: it goes, or waits for its topic's trial.
    fn claim(&mut self, seat: Seat, woken: &mut Vec<Waker>) {
        let Some(entry) = self.calls.get_mut(&seat.call) else { return };
        entry.out += 1;
        let place = &mut entry.places[seat.index as usize];
        place.state = State::Queued;
        let (topic, number) = (place.topic, place.key);
        if let Some(key) = number.and_then(|number| self.key(number)) {
            key.out += 1;
            key.unsent += 1;
            key.sender = seat.call;
        }
        match self.topics.admit(topic, seat) {
            Some(standing) => self.go(seat, standing, woken),
            None => {
                // It is on no rail until its topic has a place for it.
                if let Some(key) = number.and_then(|number| self.key(number)) {
                    key.open = None;
                }
            }
        }
    }

    fn go(&mut self, seat: Seat, standing: Standing, woken: &mut Vec<Waker>) {
        let line = if standing == Standing::Proven { self.main } else { self.trial };
        let Some(entry) = self.calls.get_mut(&seat.call) else { return };
        let place = &mut entry.places[seat.index as usize];
        place.state = State::Go(line);
        place.trial = standing == Standing::Trial;
        entry.news.push((seat.index, News::Go(line)));
        woken.extend(entry.waker.take());
        let Some(Some(key)) = place.key.map(|number| self.keys[number as usize].as_mut()) else { return };
        if key.out == 1 {
            let rail = Rail { line, topic: place.topic, partition: place.partition.clone() };
            if key.open.as_ref() != Some(&rail) {
                key.open = Some(rail);
            }
        }
    }

    pub(super) fn reroute(&mut self, seat: Seat) -> Option<LineId> {
        let place = self.place(seat)?;
        let (State::Go(gone), number) = (place.state, place.key) else { return None };
        if number.and_then(|number| self.key(number)).is_some_and(|key| key.out > 1) {
            return None;
        }
        let (trial, topic) = (self.place(seat)?.trial, self.place(seat)?.topic);
        // One that has failed meanwhile must not end the next main line too.
        if !trial && self.topics.standing(topic) != Standing::Proven {
            return None;
        }
        let line = if trial { self.trial } else { self.main };
        self.place(seat)?.state = State::Go(line);
        if let Some(rail) = number.and_then(|number| self.key(number)?.open.as_mut()) {
            rail.line = line;
        }
        (line != gone).then_some(line)
    }

    pub(super) fn sent(&mut self, seat: Seat, woken: &mut Vec<Waker>) {
        let Some(place) = self.place(seat) else { return };
        let State::Go(line) = place.state else { return };
        place.state = State::Sent(line);
        let Some(number) = place.key else { return };
        let Some(key) = self.key(number) else { return };
        key.unsent -= 1;
        if key.unsent == 0 && key.head.is_some() {
            self.advance(number, woken);
        }
    }

    /// A report of a line. One about a message that another line has, or that is done, says nothing.
    pub(super) fn settle(&mut self, seat: Seat, line: LineId, fault: Option<Fault>, woken: &mut Vec<Waker>) {
        let Some(place) = self.place(seat) else { return };
        // A report can come before its call has said that the message was handed over.
        let unsent = match place.state {
            State::Sent(on) if on == line => false,
            State::Go(on) if on == line => true,
            _ => return,
        };
        if unsent {
            self.sent(seat, woken);
        }
        match fault {
            None => self.finish(seat, News::Delivered, woken),
            Some(fault) => self.fail(seat, fault, true, line, woken),
        }
    }

    /// Could not be handed over: those of its key that its call still holds must not be either.
    pub(super) fn refuse(&mut self, seat: Seat, fault: Fault, woken: &mut Vec<Waker>) {
        let Some(State::Go(line)) = self.place(seat).map(|place| place.state) else { return };
        self.fail(seat, fault, false, line, woken);
    }

    /// With its topic's fault, what the topic keeps waiting fails too, unsent.
    fn fail(&mut self, seat: Seat, fault: Fault, sent: bool, line: LineId, woken: &mut Vec<Waker>) {
        let topic = self.topic_of(seat).filter(|_| fault.is_destinations());
        let queued = topic.map(|topic| self.topics.take_queued(topic)).unwrap_or_default();
        self.finish(seat, News::Failed { fault, sent, line }, woken);
        for seat in queued {
            self.finish(seat, News::Failed { fault, sent: false, line }, woken);
        }
    }

    /// The place of a call that has gone meanwhile is unknown; then there is nobody to tell either.
    fn topic_of(&self, seat: Seat) -> Option<u32> {
        Some(self.calls.get(&seat.call)?.places.get(seat.index as usize)?.topic)
    }

    /// Ends a message that is queued, may go or is gone.
    fn finish(&mut self, seat: Seat, news: News, woken: &mut Vec<Waker>) {
        let Some(entry) = self.calls.get_mut(&seat.call) else { return };
        let place = &mut entry.places[seat.index as usize];
        let was = std::mem::replace(&mut place.state, State::Done);
        let (number, topic, trial, live) = (place.key, place.topic, place.trial, entry.live);
        entry.out -= 1;
        let delivered = news == News::Delivered;
        if live {
            entry.tell(seat.index, news, woken);
        } else if entry.out == 0 {
            self.remove(seat.call);
        }
        if let Some(number) = number {
            self.finish_key(number, seat, was, delivered, live, woken);
        }
        let released = self.topics.finish(topic, trial, delivered);
        for (seat, standing) in released {
            self.go(seat, standing, woken);
        }
    }

    fn finish_key(
        &mut self,
        number: u32,
        seat: Seat,
        was: State,
        delivered: bool,
        live: bool,
        woken: &mut Vec<Waker>,
    ) {
        let Some(key) = self.key(number) else { return };
        key.out -= 1;
        if !matches!(was, State::Sent(_)) {
            key.unsent -= 1;
        }
        if delivered {
            // A rail is only left behind when nothing is out on it: what was delivered was on it.
            if key.warm != key.open {
                key.warm.clone_from(&key.open);
            }
        } else if live {
            key.failed = true;
            self.hold_unsent(number, seat, woken);
        }
        self.tidy(number);
        self.advance(number, woken);
    }

    /// Takes back the turns that a call got behind a message that failed before they were used.
    fn hold_unsent(&mut self, number: u32, behind: Seat, woken: &mut Vec<Waker>) {
        let Some(key) = self.key(number) else { return };
        if key.unsent == 0 {
            return;
        }
        let sender = key.sender;
        let Some(entry) = self.calls.get_mut(&sender) else { return };
        // All turns of a key that are not used yet are with one call.
        let from = if sender == behind.call { behind.index as usize + 1 } else { 0 };
        let mut topics = Vec::new();
        for (index, place) in entry.places.iter_mut().enumerate().skip(from) {
            if place.key == Some(number) && matches!(place.state, State::Go(_) | State::Queued) {
                let queued = place.state == State::Queued;
                place.state = State::Done;
                entry.out -= 1;
                let seat = Seat { call: sender, index: index as u32 };
                entry.news.push((seat.index, News::Held));
                topics.push((place.topic, place.trial, queued, seat));
            }
        }
        woken.extend(entry.waker.take());
        for (topic, trial, queued, seat) in topics {
            if let Some(key) = self.key(number) {
                key.out -= 1;
                key.unsent -= 1;
            }
            if queued {
                self.topics.forget(topic, seat);
            }
            for (seat, standing) in self.topics.finish(topic, trial, false) {
                self.go(seat, standing, woken);
            }
        }
    }

    /// A key that no call holds is open again; one that nothing is left of is gone.
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

    /// A call returns, or was dropped. What it did not send is not sent; what has no answer is a ghost.
    pub(super) fn leave(&mut self, call: u32, woken: &mut Vec<Waker>) {
        let Some(entry) = self.calls.get_mut(&call) else { return };
        entry.waker = None;
        let undone = |place: &Place| place.state != State::Done;
        let left: Vec<u32> =
            (0..).zip(&entry.places).filter(|(_, place)| undone(place)).map(|(index, _)| index).collect();
        for index in left {
            self.abandon(Seat { call, index }, woken);
        }
        let Some(entry) = self.calls.get_mut(&call) else { return };
        entry.live = false;
        let numbers: Vec<u32> = entry.places.iter().filter_map(|place| place.key).collect();
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

    /// Its call did not wait for its end: those behind it must not go, its verdict is not `Delivered`.
    fn abandon(&mut self, seat: Seat, woken: &mut Vec<Waker>) {
        let Some(place) = self.place(seat) else { return };
        let (state, topic, number) = (place.state, place.topic, place.key);
        if let Some(key) = number.and_then(|number| self.key(number)) {
            key.failed = true;
        }
        match state {
            State::Done => {}
            State::Queued => {
                self.topics.forget(topic, seat);
                self.finish(seat, News::Held, woken);
            }
            State::Go(_) => self.finish(seat, News::Held, woken),
            State::Waiting | State::Sent(_) => {
                if let Some(number) = number {
                    self.advance(number, woken);
                }
            }
        }
    }

    fn remove(&mut self, call: u32) {
        let Some(entry) = self.calls.remove(&call) else { return };
        for place in &entry.places {
            self.topics.release(place.topic);
        }
    }
}
