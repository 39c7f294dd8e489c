//! The key queues of one partition: the messages in hand, in order by key.
//!
//! A queue's head decides; nothing behind it moves. A queue is ready, in a transaction, waiting for a time,
//! or waiting for a dependency. Messages without an order have a queue each. Queues that are ready are found
//! by the arrival of their heads, and those whose head must run alone come first.

use crate::inbox::failure::{Disposition, Failure};
use crate::inbox::store::Work;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// What is kept in order within a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum QueueKey {
    /// Messages of one key, or of the partition.
    Ordered(Uuid),
    /// One message, by its arrival.
    Single(u64),
}

/// One message in hand.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) work: Work,
    pub(crate) position: i64,
    /// Its number among everything that arrived.
    pub(crate) arrival: u64,
    pub(crate) bytes: usize,
    /// What happened to it before. Healthy messages have none.
    pub(crate) trouble: Option<Box<Trouble>>,
}

/// What happened to a message, and what is to be done with it next.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    pub(crate) next: Next,
    /// It runs in a transaction of its own.
    pub(crate) alone: bool,
    /// Conflicts in a row, and since when.
    pub(crate) conflicts: u32,
    pub(crate) in_conflict_since: Option<Instant>,
    /// How often the connection was lost in its handler.
    pub(crate) losses: u32,
    /// How often its handler heard of an outage over a connection that lives.
    pub(crate) outages_elsewhere: u32,
    pub(crate) held_since: Option<Instant>,
    /// What it waits for another try after.
    pub(crate) waits_for: Option<Failure>,
    /// When it last said that a dependency is away.
    pub(crate) unavailable_at: Option<Instant>,
    /// Its turn among the probes of a dependency.
    pub(crate) probed: u64,
}

/// What is to be done with a message.
#[derive(Debug, Clone, Default)]
pub(crate) enum Next {
    /// Its handler runs.
    #[default]
    Run,
    /// It is deferred until then.
    Defer { until: Instant, failure: Failure },
    /// It goes behind what holds its key.
    Behind,
    /// It is given up.
    Bury { disposition: Disposition, failure: Failure },
}

impl Entry {
    pub(crate) fn trouble(&mut self) -> &mut Trouble {
        self.trouble.get_or_insert_default()
    }

    pub(crate) fn next(&self) -> Next {
        self.trouble.as_ref().map_or(Next::Run, |trouble| trouble.next.clone())
    }

    /// Whether the connection was lost in its handler.
    pub(crate) fn is_suspect(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.losses > 0)
    }

    /// Whether it may run with others.
    fn is_sociable(&self) -> bool {
        self.trouble.as_ref().is_none_or(|trouble| !trouble.alone && matches!(trouble.next, Next::Run))
    }

    fn company(&self) -> Company {
        let is_in_conflict = |trouble: &Trouble| trouble.conflicts > 0 && matches!(trouble.next, Next::Run);
        match &self.trouble {
            Some(trouble) if is_in_conflict(trouble) => Company::AloneInConflict,
            _ if self.is_sociable() => Company::Any,
            _ => Company::Alone,
        }
    }
}

/// In whose company a message may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Company {
    Alone,
    Any,
    /// It has met somebody's lock, and may wait for it again for as long as a handler may take.
    AloneInConflict,
}

/// Whose turn it is, of messages that have met a lock and of all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConflictTurn {
    First,
    Last,
    /// Enough of them wait for their locks: the rest of the transactions are for others.
    Never,
}

#[derive(Debug, Clone, PartialEq)]
enum QueueState {
    Ready,
    Running,
    Waiting(Instant),
    Blocked(Arc<str>),
}

#[derive(Debug)]
struct KeyQueue {
    entries: VecDeque<Entry>,
    state: QueueState,
}

/// Ready queues: those that must run alone first, then by the arrival of their heads.
type ReadyKey = (Company, u64);

/// The queues of one partition.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    queues: FxHashMap<QueueKey, KeyQueue>,
    ready: BTreeMap<ReadyKey, QueueKey>,
    waiting: BTreeMap<(Instant, QueueKey), ()>,
}

impl Queues {
    /// A message arrives.
    pub(crate) fn push(&mut self, key: QueueKey, entry: Entry) {
        let queue = self
            .queues
            .entry(key)
            .or_insert_with(|| KeyQueue { entries: VecDeque::new(), state: QueueState::Ready });
        let is_head = queue.entries.is_empty();
        queue.entries.push_back(entry);
        if is_head && queue.state == QueueState::Ready {
            self.enlist(key);
        }
    }

    /// The arrival of the first ready head, those that must run alone first.
    pub(crate) fn first_ready(&self, conflicts: ConflictTurn) -> Option<(ReadyKey, QueueKey)> {
        let mut in_conflict = self.ready.range((Company::AloneInConflict, 0)..);
        let mut all = self.ready.iter();
        let first = match conflicts {
            ConflictTurn::First => in_conflict.next().or_else(|| all.next()),
            ConflictTurn::Last => all.next(),
            ConflictTurn::Never => {
                all.next().filter(|((company, _), _)| *company != Company::AloneInConflict)
            }
        };
        first.map(|(at, key)| (*at, *key))
    }

    /// Whether anything is ready.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes messages of a queue from its head, as many as may run together, up to these bounds; one may
    /// exceed the bytes. The queue runs until they are put back or finished.
    pub(crate) fn take(&mut self, key: QueueKey, events_max: usize, bytes_max: usize) -> Vec<Entry> {
        self.delist(key);
        let Some(queue) = self.queues.get_mut(&key) else { return Vec::new() };
        queue.state = QueueState::Running;
        let (mut taken, mut bytes): (Vec<Entry>, usize) = (Vec::new(), 0);
        while taken.len() < events_max.max(1)
            && let Some(head) = queue.entries.front()
        {
            let is_first = taken.is_empty();
            if !is_first && (!head.is_sociable() || bytes + head.bytes > bytes_max) {
                break;
            }
            let is_last = is_first && !head.is_sociable();
            bytes += head.bytes;
            taken.extend(queue.entries.pop_front());
            if is_last {
                break;
            }
        }
        taken
    }

    /// Takes the head, and what may be set aside behind it.
    pub(crate) fn take_aside(&mut self, key: QueueKey, events_max: usize) -> Vec<Entry> {
        self.delist(key);
        let Some(queue) = self.queues.get_mut(&key) else { return Vec::new() };
        queue.state = QueueState::Running;
        // One that is to be buried goes by itself: it must never run.
        let goes_along = |entry: &&Entry| matches!(entry.next(), Next::Run);
        let followers = queue.entries.iter().skip(1).take(events_max.max(1) - 1).take_while(goes_along);
        let taken = (1 + followers.count()).min(queue.entries.len());
        queue.entries.drain(..taken).collect()
    }

    /// Puts messages back in front of their queue, in their order.
    pub(crate) fn put_back(&mut self, key: QueueKey, entries: Vec<Entry>) {
        let running = || KeyQueue { entries: VecDeque::new(), state: QueueState::Running };
        let queue = self.queues.entry(key).or_insert_with(running);
        entries.into_iter().rev().for_each(|entry| queue.entries.push_front(entry));
    }

    /// The queue may run.
    pub(crate) fn set_ready(&mut self, key: QueueKey) {
        self.set(key, QueueState::Ready);
        self.enlist(key);
    }

    /// Nothing of the queue runs before this time.
    pub(crate) fn set_waiting(&mut self, key: QueueKey, until: Instant) {
        self.set(key, QueueState::Waiting(until));
        if self.queues.contains_key(&key) {
            self.waiting.insert((until, key), ());
        }
    }

    /// Nothing of the queue runs before this dependency is back.
    pub(crate) fn set_blocked(&mut self, key: QueueKey, dependency: &Arc<str>) {
        self.set(key, QueueState::Blocked(Arc::clone(dependency)));
    }

    /// Makes everything ready that waited until now.
    pub(crate) fn wake(&mut self, now: Instant) {
        while let Some(((until, key), ())) = self.waiting.first_key_value()
            && *until <= now
        {
            let key = *key;
            self.waiting.pop_first();
            self.set_ready(key);
        }
    }

    /// When the next queue wakes.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((until, _), ())| *until)
    }

    /// The dependency is back.
    pub(crate) fn unblock(&mut self, dependency: &str) {
        let blocked =
            |queue: &KeyQueue| matches!(&queue.state, QueueState::Blocked(name) if &**name == dependency);
        let keys: Vec<_> =
            self.queues.iter().filter(|(_, queue)| blocked(queue)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.set_ready(key));
    }

    /// Heads that could probe a dependency: those that wait for it, and those that are ready.
    pub(crate) fn candidates<'a>(
        &'a self,
        dependency: &'a str,
    ) -> impl Iterator<Item = (QueueKey, &'a Entry)> {
        self.queues.iter().filter_map(move |(key, queue)| {
            let is_one = match &queue.state {
                QueueState::Ready => true,
                QueueState::Blocked(name) => &**name == dependency,
                QueueState::Running | QueueState::Waiting(_) => false,
            };
            if is_one { queue.entries.front().map(|head| (*key, head)) } else { None }
        })
    }

    /// The queue whose head has this position, if that head waits for a time: what keeps the position back.
    pub(crate) fn waiting_at(&self, position: i64) -> Option<QueueKey> {
        let waits = |key: &QueueKey| {
            self.queues
                .get(key)
                .and_then(|queue| queue.entries.front())
                .is_some_and(|head| head.position == position)
        };
        self.waiting.keys().map(|(_, key)| *key).find(waits)
    }

    /// The head of a queue.
    pub(crate) fn head_mut(&mut self, key: QueueKey) -> Option<&mut Entry> {
        self.queues.get_mut(&key).and_then(|queue| queue.entries.front_mut())
    }

    /// How many messages a queue has, but those in a transaction.
    pub(crate) fn len(&self, key: QueueKey) -> usize {
        self.queues.get(&key).map_or(0, |queue| queue.entries.len())
    }

    /// How long the head's queue still waits.
    pub(crate) fn waits_until(&self, key: QueueKey) -> Option<Instant> {
        match self.queues.get(&key).map(|queue| &queue.state) {
            Some(QueueState::Waiting(until)) => Some(*until),
            _ => None,
        }
    }

    /// Time until a conflict is tried again: 50 ms doubling to 5 s.
    pub(crate) fn conflict_pause(conflicts: u32) -> Duration {
        Duration::from_millis(50_u64.saturating_mul(1 << conflicts.min(10))).min(Duration::from_secs(5))
    }

    fn set(&mut self, key: QueueKey, state: QueueState) {
        self.delist(key);
        let Some(queue) = self.queues.get_mut(&key) else { return };
        if queue.entries.is_empty() {
            self.queues.remove(&key);
        } else {
            queue.state = state;
        }
    }

    fn enlist(&mut self, key: QueueKey) {
        if let Some(queue) = self.queues.get(&key)
            && queue.state == QueueState::Ready
            && let Some(head) = queue.entries.front()
        {
            self.ready.insert((head.company(), head.arrival), key);
        }
    }

    fn delist(&mut self, key: QueueKey) {
        let Some(queue) = self.queues.get(&key) else { return };
        if let QueueState::Waiting(until) = queue.state {
            self.waiting.remove(&(until, key));
        }
        if queue.state == QueueState::Ready
            && let Some(head) = queue.entries.front()
        {
            // The head may have been troubled since it was enlisted.
            for company in [Company::Alone, Company::Any, Company::AloneInConflict] {
                self.ready.remove(&(company, head.arrival));
            }
        }
    }
}
