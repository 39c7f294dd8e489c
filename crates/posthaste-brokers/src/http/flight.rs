//! One call: its messages become requests and then verdicts.
//!
//! A message waits for its turn in the chain, then in the queue of its host; from there it is laid on the tray as a
//! request, and a courier carries it. What waits is an entry in a queue: only some requests ahead of the couriers are
//! made, and each host's queue asks for one slot at a time. Dropping the call ends its couriers.
//!
//! Nothing is sent twice by a verdict: trying again is the relay's affair.

use super::courier::{Courier, Order};
use super::deliver::BODY_WAIT;
use super::hosts::{Host, Room};
use super::kit::Kit;
use super::letter::Letter;
use super::place::Place;
use super::sink::HttpSink;
use super::tray::{Job, Landed, Tray};
use super::verdict::{self, Silence};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use posthaste::sink::chain::{Call, Turn};
use posthaste::sink::{Message, Verdict};
use posthaste::task::{Task, spawn};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The last part of the delivery timeout, for reading the body of an answer that came late.
const LAST_PART: Duration = BODY_WAIT.saturating_add(Duration::from_millis(50));

/// How long after the deadline what waits for a host of which nothing was heard is given back: requests whose time was up then, of other calls too, tell
/// what their host is worth.
const GRACE: Duration = Duration::from_millis(20);

/// Requests of a host that are made ahead: what its couriers carry while the relay does something else. Not all of them:
/// a request is larger than its message, and its timestamp is that of the attempt.
const READY_MAX: usize = 256;

/// The messages of one host that wait for a place on the tray.
struct Queue {
    host: Arc<Host>,
    origin: Arc<str>,
    waiting: VecDeque<(usize, Arc<Place>)>,
    /// Whether a slot is being asked for.
    asking: bool,
    /// The host's moves when the call began with it.
    moves: usize,
}

pub(super) struct Flight<'a> {
    sink: &'a HttpSink,
    messages: &'a [Message],
    verdicts: Vec<Option<Verdict>>,
    undecided: usize,
    call: Call<'a>,
    turns: Vec<(usize, Turn)>,
    landed: Vec<Landed>,
    order: Arc<Order>,
    /// Nothing is begun any more.
    is_late: bool,
    /// Nothing is waited for any more.
    is_over: bool,
    /// Destinations whose URL was found good, and the queues of their hosts: most messages of a call go to few, and a URL
    /// is slow to read.
    places: FxHashMap<&'a str, (Arc<Place>, usize)>,
    numbers: FxHashMap<Arc<str>, usize>,
    queues: Vec<Queue>,
    rooms: FuturesUnordered<BoxFuture<'static, (usize, Option<Room>)>>,
    couriers: FuturesUnordered<Task<usize>>,
}

impl<'a> Flight<'a> {
    pub(super) fn new(sink: &'a HttpSink, messages: &'a [Message], call: Call<'a>, kit: Arc<Kit>) -> Self {
        let (started, patience) = (Instant::now(), sink.config.options.delivery_timeout());
        let (last_begin, deadline) =
            (started + patience / 2, started + patience - LAST_PART.min(patience / 4));
        let statuses = Arc::clone(&sink.statuses);
        Self {
            sink,
            messages,
            verdicts: vec![None; messages.len()],
            undecided: messages.len(),
            call,
            turns: Vec::new(),
            landed: Vec::new(),
            order: Arc::new(Order { tray: Tray::default(), kit, statuses, started, last_begin, deadline }),
            is_late: false,
            is_over: false,
            places: FxHashMap::default(),
            numbers: FxHashMap::default(),
            queues: Vec::new(),
            rooms: FuturesUnordered::new(),
            couriers: FuturesUnordered::new(),
        }
    }

    /// Until every message has its verdict. Couriers begin nothing after half of the time and end by themselves at the
    /// deadline; what none of them has carried is given back as soon as nothing of the call is on its way.
    pub(super) async fn fly(&mut self) {
        let mut late = std::pin::pin!(sleep_until(self.order.last_begin));
        let mut over = std::pin::pin!(sleep_until(self.order.deadline + GRACE));
        let order = Arc::clone(&self.order);
        while self.undecided > 0 {
            tokio::select! {
                biased;
                () = poll_fn(|context| order.tray.poll_landed(context, &mut self.landed)) => self.land(),
                () = self.call.turns(&mut self.turns) => self.take_turns(),
                Some((queue, room)) = self.rooms.next() => self.use_room(queue, room),
                Some(ended) = self.couriers.next() => self.relieve(ended.ok()),
                () = &mut late, if !self.is_late => self.is_late = true,
                () = &mut over, if !self.is_over => {
                    // Timers that fell behind go off together.
                    tokio::task::yield_now().await;
                    (self.is_late, self.is_over) = (true, true);
                }
            }
            if self.is_late && self.couriers.is_empty() {
                self.give_back();
            }
        }
    }

    fn take_turns(&mut self) {
        let mut turns = std::mem::take(&mut self.turns);
        for (index, turn) in turns.drain(..) {
            match turn {
                Turn::Go => self.line_up(index),
                Turn::Held => self.set(index, Verdict::Held),
            }
        }
        self.turns = turns;
        (0..self.queues.len()).for_each(|queue| self.advance(queue));
    }

    /// Puts a message into the queue of its host.
    fn line_up(&mut self, index: usize) {
        if self.is_late {
            return self.decide(index, Verdict::Held);
        }
        let messages = self.messages;
        let destination = messages[index].destination.as_str();
        if !self.places.contains_key(destination) {
            match self.find(destination) {
                Ok(place) => drop(self.places.insert(destination, place)),
                Err(verdict) => return self.decide(index, verdict),
            }
        }
        if let Some((place, queue)) = self.places.get(destination) {
            self.queues[*queue].waiting.push_back((index, Arc::clone(place)));
        }
    }

    fn find(&mut self, destination: &str) -> Result<(Arc<Place>, usize), Verdict> {
        let url = self.sink.addresses.find(destination).map_err(verdict::bad_url)?;
        let literal = self.sink.guard.check_literal(&url);
        literal.map_err(|forbidden| Silence::forbidden(&forbidden).verdict())?;
        let place =
            Arc::new(Place::new(destination, &url, &self.order.kit.keys.headers).map_err(verdict::bad_url)?);
        let queue = self.queue(&place.origin);
        Ok((place, queue))
    }

    fn queue(&mut self, origin: &Arc<str>) -> usize {
        if let Some(number) = self.numbers.get(origin) {
            return *number;
        }
        let (number, host) = (self.queues.len(), self.sink.hosts.host(origin));
        let (moves, waiting) = (host.moves(), VecDeque::new());
        self.numbers.insert(Arc::clone(origin), number);
        self.queues.push(Queue { host, origin: Arc::clone(origin), waiting, asking: false, moves });
        self.order.tray.open();
        number
    }

    /// Lays requests on the tray and hires couriers for them, as many as there is room for.
    fn advance(&mut self, number: usize) {
        self.leave_out(number);
        self.lay(number);
        while self.order.may_begin() && !self.queues[number].asking && self.order.tray.len(number) > 0 {
            let host = Arc::clone(&self.queues[number].host);
            match host.try_room() {
                Some(room) => self.hire(number, room),
                None => {
                    self.queues[number].asking = true;
                    self.rooms.push(Box::pin(async move { (number, host.room().await) }));
                }
            }
        }
    }

    /// Decides those whose host has failed since the call began.
    fn leave_out(&mut self, number: usize) {
        let host = Arc::clone(&self.queues[number].host);
        if host.is_calm() {
            return;
        }
        let started = self.order.started;
        let failure = |place: &Place| host.failed_since(started, &place.destination);
        let mut gone = self.order.tray.withdraw(number, |job| failure(&job.place).is_some());
        self.queues[number].waiting.retain(|(index, place)| {
            let goes = failure(place).is_some();
            gone.extend(goes.then_some(*index));
            !goes
        });
        for index in gone {
            self.give_up(index, &host);
        }
    }

    /// Its host's failure is its own; without one, others had the slots, and it is not to blame.
    fn give_up(&mut self, index: usize, host: &Host) {
        let failure = host.failed_since(self.order.started, &self.messages[index].destination);
        self.decide(index, failure.map_or(Verdict::Held, |failure| verdict::not_tried(&failure)));
    }

    fn lay(&mut self, number: usize) {
        let mut room = READY_MAX.saturating_sub(self.order.tray.len(number));
        while room > 0
            && let Some((index, place)) = self.queues[number].waiting.pop_front()
        {
            let message = &self.messages[index];
            match Letter::write(&self.order.kit, message, &place) {
                Ok(letter) => {
                    self.order.tray.lay(number, Job { index, place, letter });
                    room -= 1;
                }
                Err(verdict) => self.decide(index, verdict),
            }
        }
    }

    fn hire(&mut self, number: usize, room: Room) {
        let Some(job) = self.order.tray.take(number) else { return };
        let Queue { host, origin, .. } = &self.queues[number];
        let courier = Courier::new(Arc::clone(&self.order), number, Arc::clone(host), Arc::clone(origin));
        self.couriers.push(spawn("courier", courier.carry(job, room)));
    }

    fn use_room(&mut self, number: usize, room: Option<Room>) {
        self.queues[number].asking = false;
        self.leave_out(number);
        if let Some(room) = room.filter(|_| self.order.may_begin()) {
            self.hire(number, room);
        }
        self.advance(number);
    }

    /// A courier has ended, and there may be more for its host. One that died does not say whose it was.
    fn relieve(&mut self, queue: Option<usize>) {
        match queue {
            Some(queue) => self.advance(queue),
            None => (0..self.queues.len()).for_each(|queue| self.advance(queue)),
        }
    }

    fn land(&mut self) {
        let mut landed = std::mem::take(&mut self.landed);
        let mut last = None;
        for Landed { index, queue, verdict } in landed.drain(..) {
            self.decide(index, verdict);
            if last != Some(queue) {
                last = Some(queue);
                self.advance(queue);
            }
        }
        self.landed = landed;
    }

    /// Time is up for what was not carried, and nothing of the call is on its way.
    fn give_back(&mut self) {
        self.order.tray.drain(&mut self.landed);
        self.land();
        let mut is_all = true;
        for number in 0..self.queues.len() {
            let host = Arc::clone(&self.queues[number].host);
            if self.is_behind_silence(number) {
                is_all = false;
                continue;
            }
            let mut rest = self.order.tray.withdraw(number, |_| true);
            rest.extend(self.queues[number].waiting.drain(..).map(|(index, _)| index));
            rest.into_iter().for_each(|index| self.give_up(index, &host));
        }
        if !is_all {
            return;
        }
        // Behind a message of another call.
        for index in 0..self.messages.len() {
            if self.verdicts[index].is_none() {
                self.decide(index, Verdict::Held);
            }
        }
    }

    /// Whether others have all slots of this host and nothing was heard of it since: it may be dead, and who waits behind
    /// them has to learn of it.
    fn is_behind_silence(&self, number: usize) -> bool {
        let queue = &self.queues[number];
        let waits = !queue.waiting.is_empty() || self.order.tray.len(number) > 0;
        waits && !self.is_over && queue.asking && queue.host.moves() == queue.moves
    }

    /// Decides a message and tells those behind it.
    fn decide(&mut self, index: usize, verdict: Verdict) {
        self.call.decide(index, &verdict);
        self.set(index, verdict);
    }

    fn set(&mut self, index: usize, verdict: Verdict) {
        if self.verdicts[index].is_none() {
            self.undecided -= 1;
            self.verdicts[index] = Some(verdict);
        }
    }

    pub(super) fn verdicts(mut self) -> Vec<Verdict> {
        // All are decided when `fly` has ended.
        let verdicts = std::mem::take(&mut self.verdicts);
        verdicts.into_iter().map(|verdict| verdict.unwrap_or(Verdict::Held)).collect()
    }
}
