//! The tables of the model, and the lock around them.
//!
//! One mutex stands for the whole database: a statement of the model is atomic and isolated because it
//! holds that mutex from end to end. Concurrency comes from outside, from who calls when; that is what
//! the fault wrappers and the simulation decide.

use super::mvcc::Log;
use posthaste::cursor::{Mark, Position, Xid};
use posthaste::event::{StoredEvent, Timestamp};
use posthaste::store::{Care, Controls, Death, Deaths, Deferral, LaneId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Hash slots of the log; lanes are equal ranges of them.
pub(super) const SLOTS: i16 = 1024;

/// A settlement, or a hand-over, of a lane: its history and its fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptRow {
    /// Its place in the lane's history. Unique: that is the fence.
    pub n: i64,
    /// The epoch it was written under.
    pub epoch: i64,
    /// Its own transaction.
    pub xid: Xid,
    /// A number that was read before `xid` was assigned.
    pub mark: i64,
    /// The cursor.
    pub position: Position,
    /// Double entry: events of the pages it settled.
    pub events: u64,
    /// Double entry: the sum of their numbers.
    pub seq_sum: i64,
    /// When, by the store's clock.
    pub settled_at: Timestamp,
}

impl ReceiptRow {
    /// The mark that this receipt is.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { xid: self.xid, seq: self.mark }
    }
}

/// Who holds a lane.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    pub(super) relay: Arc<str>,
    pub(super) session: u64,
}

/// A lane of a sink.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    pub(super) epoch: i64,
    pub(super) owner: Option<Owner>,
    pub(super) expires_at: Timestamp,
    /// The epoch whose lease may settle. It stands in the unlogged table: a crash empties it.
    pub(super) token: Option<i64>,
    /// Owners that died at one place.
    pub(super) died: Deaths,
    /// How the present owner was told to go.
    pub(super) care: Care,
    /// Owners that died, ever.
    pub(super) deaths: u32,
    pub(super) in_hand: Option<i64>,
    pub(super) receipts: Vec<ReceiptRow>,
}

impl LaneState {
    /// The last receipt. A lane is born with one.
    pub(super) fn last(&self) -> &ReceiptRow {
        self.receipts.last().expect("a lane is born with a receipt")
    }
}

/// A relay that made itself known.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) session: u64,
    pub(super) expires_at: Timestamp,
    pub(super) lease_ttl: Duration,
}

/// When a deferred event is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DueAt {
    Time(Timestamp),
    Behind,
}

/// A deferred event: a copy that needs the log no more.
#[derive(Debug, Clone)]
pub struct DeferredRow {
    /// The event.
    pub stored: StoredEvent,
    /// Its state.
    pub deferral: Deferral,
    pub(super) due: DueAt,
}

/// A dead letter: a copy that needs the log no more.
#[derive(Debug, Clone)]
pub struct Letter {
    /// The event.
    pub stored: StoredEvent,
    /// How it died.
    pub death: Death,
    /// When, by the store's clock.
    pub dead_at: Timestamp,
    /// When an operator replayed or discarded it.
    pub gone_at: Option<Timestamp>,
    /// Its address, for the way back.
    pub(super) destination: String,
}

/// By sink and number.
pub(super) type BySeq<T> = BTreeMap<(Arc<str>, i64), T>;

/// The whole database.
#[derive(Debug)]
pub(super) struct Tables {
    born: Instant,
    pub(super) log: Log,
    pub(super) lanes: BTreeMap<LaneId, LaneState>,
    pub(super) lane_count: Option<u16>,
    pub(super) routes: String,
    pub(super) relays: BTreeMap<Arc<str>, Member>,
    pub(super) sessions: BTreeSet<u64>,
    pub(super) next_session: u64,
    pub(super) deferred: BySeq<DeferredRow>,
    pub(super) dead: BySeq<Letter>,
    /// How many events that wait behind a due one are handed out with it.
    pub(super) run_max: usize,
    /// Every burial there ever was, whatever became of the letter.
    pub(super) burials: Vec<(Arc<str>, Letter)>,
    pub(super) controls: Controls,
    pub(super) doze_until: Timestamp,
    pub(super) bells: Vec<Bells>,
}

/// How a relay is woken: for events, and for lanes that became free.
#[derive(Debug, Clone)]
pub(super) struct Bells {
    pub(super) events: Weak<Notify>,
    pub(super) lanes: Weak<Notify>,
}

/// The epoch of the model's clock, the same as the simulated wall clock's.
const BORN_AT: Timestamp = Timestamp(1_700_000_000_000_000);

impl Tables {
    pub(super) fn new() -> Self {
        Self {
            born: Instant::now(),
            log: Log::default(),
            lanes: BTreeMap::new(),
            lane_count: None,
            routes: String::new(),
            relays: BTreeMap::new(),
            sessions: BTreeSet::new(),
            next_session: 1,
            deferred: BTreeMap::new(),
            dead: BTreeMap::new(),
            run_max: 32,
            burials: Vec::new(),
            controls: Controls::default(),
            doze_until: Timestamp(0),
            bells: Vec::new(),
        }
    }

    /// The store's clock: the only one that expiry and due times are judged by (F24).
    pub(super) fn now(&self) -> Timestamp {
        plus(BORN_AT, self.born.elapsed())
    }

    /// The lane of a slot.
    pub(super) fn lane_of(&self, slot: i16) -> i16 {
        let lanes = i32::from(self.lane_count.unwrap_or(1));
        i16::try_from(i32::from(slot) * lanes / i32::from(SLOTS)).expect("fewer lanes than slots")
    }

    /// Wakes every relay that listens.
    pub(super) fn ring(&mut self) {
        self.bells.retain(|bells| bells.events.upgrade().is_some());
        // A permit, not a broadcast: a notification waits for a listener that is not listening yet.
        self.bells.iter().filter_map(|bells| bells.events.upgrade()).for_each(|bell| bell.notify_one());
    }

    /// Tells every relay that a lane became free.
    pub(super) fn ring_lanes(&self) {
        self.bells.iter().filter_map(|bells| bells.lanes.upgrade()).for_each(|bell| bell.notify_one());
    }

    /// Whether an earlier event of this key waits and holds, or is dead and holds.
    pub(super) fn is_held(&self, sink: &Arc<str>, stored: &StoredEvent) -> bool {
        let Some(key) = &stored.event.key else { return false };
        let earlier = || (Arc::clone(sink), i64::MIN)..(Arc::clone(sink), stored.seq);
        let same = |other: &StoredEvent| other.event.key.as_ref() == Some(key);
        self.deferred.range(earlier()).any(|(_, w)| w.deferral.holds && same(&w.stored))
            || self.dead.range(earlier()).any(|(_, l)| l.death.holds && same(&l.stored))
    }
}

/// An instant and a duration later.
pub(super) fn plus(at: Timestamp, by: Duration) -> Timestamp {
    at.plus_micros(i64::try_from(by.as_micros()).unwrap_or(i64::MAX))
}

/// The slot of an event: by its key, or by its number where there is none.
pub(super) fn slot_of(key: Option<&str>, seq: i64) -> i16 {
    let hash = match key {
        // FNV-1a: stable over versions and platforms, which is all a slot needs.
        Some(key) => key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        }),
        None => seq.unsigned_abs(),
    };
    // The low bits of FNV are its weak ones.
    let mixed = if key.is_some() { hash ^ (hash >> 32) } else { hash };
    i16::try_from(mixed % u64::from(SLOTS.unsigned_abs())).expect("below the number of slots")
}
