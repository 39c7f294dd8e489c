//! The table against a model of producers and brokers, with a seed.
//!
//! A model line behaves as [`super::super`] says of a real one: per partition, messages are delivered in the
//! order in which they were handed over, and once one fails all behind it fail, on that line. The trial line
//! fails messages one by one. The rule to hold (G3): when a message is delivered, every earlier one of its
//! key was delivered before it, or failed in a call that had returned before this one's call began.

use super::*;
use posthaste::event::{Event, StoredEvent, Timestamp};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

fn message(topic: &str, key: Option<&str>, partition: Option<&str>) -> Message {
    let event = Event::new(topic, "");
    let event = if let Some(key) = key { event.with_key(key) } else { event };
    let stored = StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(0), event, defect: None };
    Message {
        stored,
        destination: topic.to_owned(),
        payload: None,
        ordered: true,
        source: "s".into(),
        envelope: Default::default(),
        partition_key: partition.map(str::to_owned),
    }
}

fn order() -> KeyOrder {
    let order = KeyOrder::default();
    order.set_main(1);
    order.set_trial(2);
    order
}

fn news(call: &OrderedCall<'_>) -> Vec<(u32, News)> {
    let mut news = Vec::new();
    call.take_news(&mut news);
    news
}

fn deliver(order: &KeyOrder, call: &OrderedCall<'_>, line: LineId, index: u32) {
    order.report(line, &mut vec![(MessageRef { call: call.id(), index }, None)]);
}

/// A topic that has delivered a message on trial.
fn prove(order: &KeyOrder, topic: &str) {
    let call = order.enter(&[message(topic, None, None)]);
    assert_eq!(news(&call), [(0, News::Go(2))]);
    call.sent(&mut vec![0]);
    deliver(order, &call, 2, 0);
}

#[test]
fn a_new_topic_is_tried_with_one_message_and_then_all_may_go() {
    let order = order();
    let call = order.enter(&[message("t", None, None), message("t", None, None), message("u", None, None)]);
    assert_eq!(news(&call), [(0, News::Go(2)), (2, News::Go(2))]);
    call.sent(&mut vec![0, 2]);
    deliver(&order, &call, 2, 0);
    assert_eq!(news(&call), [(0, News::Delivered), (1, News::Go(1))]);
}

#[test]
fn what_waits_for_a_trial_fails_with_its_topic() {
    let order = order();
    let call = order.enter(&[
        message("t", None, None),
        message("t", Some("k"), None),
        message("u", Some("k"), None),
    ]);
    assert_eq!(news(&call), [(0, News::Go(2))]);
    call.sent(&mut vec![0]);
    let fault = DeliveryFault(Code::TopicAuthorizationFailed);
    order.report(2, &mut vec![(MessageRef { call: call.id(), index: 0 }, Some(fault))]);
    let failed = |sent| News::Failed { fault, sent, line: 2 };
    assert_eq!(news(&call), [(0, failed(true)), (1, failed(false)), (2, News::Held)]);
}

#[test]
fn a_key_goes_on_behind_unanswered_messages_only_when_its_line_has_delivered_one() {
    let order = order();
    prove(&order, "t");
    let messages: Vec<_> = (0..4).map(|_| message("t", Some("k"), None)).collect();
    let first = order.enter(&messages);
    assert_eq!(news(&first), [(0, News::Go(1))], "cold: one alone");
    first.sent(&mut vec![0]);
    assert_eq!(news(&first), []);
    deliver(&order, &first, 1, 0);
    // Nothing is unanswered now: the next one goes, and with it those behind it in this call.
    assert_eq!(news(&first), [(0, News::Delivered), (1, News::Go(1)), (2, News::Go(1)), (3, News::Go(1))]);
    let second = order.enter(&messages[..1]);
    assert_eq!(news(&second), [], "not before the first call has handed over its own");
    first.sent(&mut vec![1, 2, 3]);
    assert_eq!(news(&second), [(0, News::Go(1))]);
}

#[test]
fn another_topic_partition_key_or_line_waits_for_the_answer() {
    for other in
        [message("u", Some("k"), None), message("t", Some("k"), Some("p")), message("t", Some("k"), None)]
    {
        let order = order();
        prove(&order, "t");
        prove(&order, "u");
        let warm = [message("t", Some("k"), None), message("t", Some("k"), None)];
        let first = order.enter(&warm);
        first.sent(&mut vec![0]);
        deliver(&order, &first, 1, 0);
        first.sent(&mut vec![1]);
        if other.destination == "t" && other.partition_key.is_none() {
            order.set_main(3);
        }
        let second = order.enter(&[other]);
        assert_eq!(news(&second), []);
        deliver(&order, &first, 1, 1);
        assert!(matches!(news(&second)[..], [(0, News::Go(_))]));
    }
}

#[test]
fn turns_behind_a_refused_message_are_taken_back() {
    let order = order();
    prove(&order, "t");
    let messages: Vec<_> = (0..3).map(|_| message("t", Some("k"), None)).collect();
    let call = order.enter(&messages);
    call.sent(&mut vec![0]);
    deliver(&order, &call, 1, 0);
    news(&call);
    let fault = DeliveryFault(Code::MessageSizeTooLarge);
    call.refuse(1, fault);
    assert_eq!(news(&call), [(1, News::Failed { fault, sent: false, line: 1 }), (2, News::Held)]);
    let later = order.enter(&messages[..1]);
    assert_eq!(news(&later), [(0, News::Held)], "closed until the call is back");
    drop((call, later));
    assert_eq!(news(&order.enter(&messages[..1])), [(0, News::Go(1))]);
}

#[test]
fn a_ghost_keeps_its_key_from_other_lines_until_its_fate_is_known() {
    let order = order();
    prove(&order, "t");
    let messages = [message("t", Some("k"), None)];
    let first = order.enter(&messages);
    let id = first.id();
    first.sent(&mut vec![0]);
    let waiting = order.enter(&messages);
    drop(first);
    assert_eq!(news(&waiting), [(0, News::Held)], "the one before it has no verdict");
    drop(waiting);
    order.set_main(3);
    let next = order.enter(&messages);
    assert_eq!(news(&next), []);
    order.report(1, &mut vec![(MessageRef { call: id, index: 0 }, Some(DeliveryFault(Code::PurgeInflight)))]);
    assert_eq!(news(&next), [(0, News::Go(3))]);
    next.sent(&mut vec![0]);
    deliver(&order, &next, 3, 0);
    drop(next);
    let table = order.table();
    assert!(table.calls.is_empty() && table.numbers.is_empty(), "nothing is left");
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Open,
    Delivered,
    /// At this step its call had not returned; `Some`: when it had.
    Failed,
}

/// One event in the order of entering.
struct Sent {
    key: String,
    fate: Fate,
    entered: u64,
    returned: Option<u64>,
}

/// Messages of one partition of one line, oldest first.
type Lane = VecDeque<(MessageRef, usize)>;

/// A call with its messages' numbers, what may go, and how many are undecided.
type Open<'a> = (OrderedCall<'a>, Vec<usize>, VecDeque<(u32, LineId)>, usize);

struct Model<'a> {
    order: &'a KeyOrder,
    dice: Dice,
    clock: u64,
    all: Vec<Sent>,
    calls: Vec<Open<'a>>,
    lanes: BTreeMap<(LineId, String), Lane>,
    destinations: BTreeMap<usize, String>,
    broken: BTreeSet<LineId>,
    main: LineId,
}

impl<'a> Model<'a> {
    fn new(order: &'a KeyOrder, seed: u64) -> Self {
        Self {
            order,
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            clock: 0,
            all: Vec::new(),
            calls: Vec::new(),
            lanes: BTreeMap::new(),
            destinations: BTreeMap::new(),
            broken: BTreeSet::new(),
            main: 1,
        }
    }

    fn enter(&mut self) {
        let mut messages = Vec::new();
        let mut numbers = Vec::new();
        for _ in 0..1 + self.dice.roll(6) {
            let key = format!("k{}", self.dice.roll(3));
            let topic = format!("t{}", if self.dice.roll(8) == 0 { 1 } else { 0 });
            let partition = (self.dice.roll(10) == 0).then_some("p");
            messages.push(message(&topic, Some(&key), partition));
            let rail = partition.map_or_else(|| key.clone(), str::to_owned);
            self.destinations.insert(self.all.len(), format!("{topic}/{rail}"));
            numbers.push(self.all.len());
            self.all.push(Sent { key, fate: Fate::Open, entered: self.clock, returned: None });
        }
        let call = self.order.enter(&messages);
        let undecided = numbers.len();
        self.calls.push((call, numbers, VecDeque::new(), undecided));
    }

    fn hear(&mut self) {
        for (call, numbers, ready, undecided) in &mut self.calls {
            for (index, news) in news(call) {
                let number = numbers[index as usize];
                match news {
                    News::Go(line) => ready.push_back((index, line)),
                    News::Held => {
                        *undecided -= 1;
                        self.all[number].fate = Fate::Failed;
                    }
                    News::Delivered | News::Failed { .. } => *undecided -= 1,
                }
            }
        }
    }

    /// A call hands over some of what it may.
    fn send(&mut self, at: usize) {
        let (call, numbers, ready, _) = &mut self.calls[at];
        let most = 1 + self.dice.roll(4) as usize;
        let mut sent = Vec::new();
        for _ in 0..most {
            let Some((index, line)) = ready.front().copied() else { break };
            let number = numbers[index as usize];
            if self.all[number].fate == Fate::Failed {
                ready.pop_front();
                continue;
            }
            if self.broken.contains(&line) || self.dice.roll(40) == 0 {
                call.sent(&mut sent);
                ready.pop_front();
                self.all[number].fate = Fate::Failed;
                call.refuse(index, DeliveryFault(Code::PurgeQueue));
                break;
            }
            ready.pop_front();
            let lane = (line, self.destinations[&number].clone());
            self.lanes.entry(lane).or_default().push_back((MessageRef { call: call.id(), index }, number));
            sent.push(index);
        }
        call.sent(&mut sent);
    }

    /// The broker answers the oldest of a lane, or the line ends.
    fn answer(&mut self) {
        let lanes: Vec<_> =
            self.lanes.iter().filter(|(_, lane)| !lane.is_empty()).map(|(at, _)| at.clone()).collect();
        if lanes.is_empty() {
            return;
        }
        let at = lanes[self.dice.roll(lanes.len() as u64) as usize].clone();
        let line = at.0;
        let good = !self.broken.contains(&line) && self.dice.roll(25) != 0;
        if good {
            let Some((message, number)) = self.lanes.get_mut(&at).and_then(VecDeque::pop_front) else {
                return;
            };
            self.check(number);
            self.all[number].fate = Fate::Delivered;
            return self.order.report(line, &mut vec![(message, None)]);
        }
        if line == 2 {
            let Some((message, number)) = self.lanes.get_mut(&at).and_then(VecDeque::pop_front) else {
                return;
            };
            self.all[number].fate = Fate::Failed;
            return self.order.report(2, &mut vec![(message, Some(DeliveryFault(Code::MessageTimedOut)))]);
        }
        self.end(line);
    }

    /// All that a line has fails, and another one takes its place.
    fn end(&mut self, line: LineId) {
        let mut reports = Vec::new();
        for (_, lane) in self.lanes.iter_mut().filter(|((on, _), _)| *on == line) {
            for (message, number) in lane.drain(..) {
                self.all[number].fate = Fate::Failed;
                reports.push((message, Some(DeliveryFault(Code::PurgeQueue))));
            }
        }
        self.broken.insert(line);
        if line == self.main {
            self.main = line + 2;
            self.order.set_main(self.main);
            if self.dice.roll(2) == 0 {
                self.order.suspect("t0", DeliveryFault(Code::Fatal));
            }
        }
        self.order.report(line, &mut reports);
    }

    /// A message is delivered: every earlier one of its key was, or its failure was known before this one
    /// entered.
    fn check(&self, number: usize) {
        let this = &self.all[number];
        // One that nobody waits for may come late: its call has returned.
        if this.returned.is_some() {
            return;
        }
        for earlier in self.all[..number].iter().filter(|earlier| earlier.key == this.key) {
            let known = earlier.returned.is_some_and(|at| at < this.entered);
            assert!(earlier.fate == Fate::Delivered || known, "{number} overtakes at step {}", self.clock);
        }
    }

    fn leave(&mut self, at: usize) {
        let (call, numbers, ..) = self.calls.swap_remove(at);
        for number in numbers {
            self.all[number].returned = Some(self.clock);
            if self.all[number].fate == Fate::Open {
                self.all[number].fate = Fate::Failed;
            }
        }
        drop(call);
    }

    fn step(&mut self) {
        self.clock += 1;
        match self.dice.roll(10) {
            0..=1 if self.calls.len() < 5 => self.enter(),
            2..=4 if !self.calls.is_empty() => {
                let at = self.dice.roll(self.calls.len() as u64) as usize;
                self.send(at);
            }
            5 if !self.calls.is_empty() && self.dice.roll(20) == 0 => {
                let at = self.dice.roll(self.calls.len() as u64) as usize;
                self.leave(at);
            }
            _ => self.answer(),
        }
        self.hear();
        while let Some(at) = self.calls.iter().position(|(.., undecided)| *undecided == 0) {
            self.clock += 1;
            self.leave(at);
        }
    }
}

#[test]
fn g3_nothing_overtakes_in_two_thousand_histories() {
    let mut delivered = 0;
    for seed in 1..=2_000 {
        let order = order();
        let mut model = Model::new(&order, seed);
        for _ in 0..300 {
            model.step();
        }
        delivered += model.all.iter().filter(|sent| sent.fate == Fate::Delivered).count();
        // Everything is answered in the end: nothing is left in the table.
        model.calls.clear();
        for line in model.lanes.keys().map(|(line, _)| *line).collect::<BTreeSet<_>>() {
            model.end(line);
        }
        let table = order.table();
        assert!(table.calls.is_empty() && table.numbers.is_empty(), "seed {seed}: {table:?}");
    }
    assert!(delivered > 20_000, "{delivered}: the histories must be worth something");
}
