//! The events of a run: made from their number alone, so that nothing has to be remembered.
//!
//! An event's id is a UUIDv7 that ends in its number, and its key and payload follow from the number too.
//! Whoever sees an id go by knows which event it was, of which key, and which one of that key had to come
//! before: three million events cost the observer one bit each. Random ids with a map were refused: the map
//! would be larger than the relay that is measured.
//!
//! Payloads are letters at random, because a server that compresses would make them small otherwise. Keys
//! come in no pattern: taken in turn, the same key would never be in flight twice (F90).

use bytes::Bytes;
use clap::ValueEnum;
use posthaste::event::StoredEvent;
use posthaste::{Event, Timestamp};
use std::sync::Arc;
use uuid::Uuid;

/// Every event's topic, and the subject of a broker's stream.
pub(super) const TOPIC: &str = "posthaste_bench.events";

/// Payloads are cut out of this much more than one of them.
const POOL_BYTES: usize = 64 << 10;

/// How events spread over keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Spread {
    /// Each key as likely as any other
    Uniform,
    /// The n-th key with a likelihood of 1/n: a few keys have most of the events
    Zipf,
}

/// What the events of a run are like.
pub(super) struct Load {
    /// The upper half of all ids: time and chance of this run.
    stamp: u64,
    payload_bytes: usize,
    keys: u32,
    /// For [`Spread::Zipf`]: the likelihood of a key or one before it.
    cumulative: Vec<f64>,
    pool: Bytes,
}

impl Load {
    /// A load with ids of its own.
    pub(super) fn new(payload_bytes: usize, keys: u32, spread: Spread) -> Self {
        let cumulative = if spread == Spread::Zipf { zipf(keys) } else { Vec::new() };
        let letter = |n: u64| b"abcdefghijklmnopqrstuvwxyz012345"[(mix(n) % 32) as usize];
        let pool: Vec<u8> = (0..(payload_bytes + POOL_BYTES) as u64).map(letter).collect();
        // The time and the version of a UUIDv7. Its own random bits may be a counter, alike for two runs.
        let time = (Uuid::now_v7().as_u128() >> 64) as u64 & !0xfff;
        let stamp = time | (Uuid::new_v4().as_u128() as u64 & 0xfff);
        Self { stamp, payload_bytes, keys: keys.max(1), cumulative, pool: pool.into() }
    }

    /// The id of event `index`.
    pub(super) fn id(&self, index: u64) -> Uuid {
        let lower = 0b10 << 62 | index;
        Uuid::from_u128(u128::from(self.stamp) << 64 | u128::from(lower))
    }

    /// Which event has this id; `None` if it is none of this run.
    pub(super) fn index(&self, id: Uuid) -> Option<u64> {
        let (upper, lower) = ((id.as_u128() >> 64) as u64, id.as_u128() as u64);
        (upper == self.stamp && lower >> 62 == 0b10).then_some(number(id))
    }

    /// The number of the event's key.
    pub(super) fn key(&self, index: u64) -> usize {
        let chance = mix(index);
        if self.cumulative.is_empty() {
            return (chance % u64::from(self.keys)) as usize;
        }
        let chance = (chance >> 11) as f64 / (1u64 << 53) as f64;
        self.cumulative.partition_point(|up_to| *up_to < chance).min(self.keys as usize - 1)
    }

    /// The same as a text.
    pub(super) fn key_text(&self, index: u64) -> String {
        format!("customer-{:05}", self.key(index))
    }

    pub(super) fn payload(&self, index: u64) -> Bytes {
        let from = (mix(index ^ 0x5eed) % POOL_BYTES as u64) as usize;
        self.pool.slice(from..from + self.payload_bytes)
    }

    /// Event `index`, as an application makes it.
    pub(super) fn event(&self, index: u64) -> Event {
        Event::new(TOPIC, self.payload(index)).with_id(self.id(index)).with_key(self.key_text(index))
    }

    /// The same as a store hands it to a relay.
    pub(super) fn stored(&self, index: u64) -> StoredEvent {
        let appended_at = Timestamp((self.stamp >> 16) as i64 * 1_000);
        StoredEvent { seq: index as i64 + 1, slot: 0, appended_at, event: self.event(index), defect: None }
    }
}

/// The number that an id ends in.
pub(super) fn number(id: Uuid) -> u64 {
    id.as_u128() as u64 & (u64::MAX >> 2)
}

/// Numbers without a pattern (splitmix64): the same ones in every run.
pub(super) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn zipf(keys: u32) -> Vec<f64> {
    let total: f64 = (1..=keys).map(|n| 1.0 / f64::from(n)).sum();
    let mut up_to = 0.0;
    (1..=keys)
        .map(|n| {
            up_to += 1.0 / f64::from(n) / total;
            up_to
        })
        .collect()
}

/// Counts what arrives: each event once, the rest as duplicates, and whether first deliveries of a key kept
/// the order in which they were appended (G3).
pub(super) struct Seen {
    load: Arc<Load>,
    events: u64,
    bits: Vec<u64>,
    /// For each key, one more than the number of its last first delivery.
    last: Vec<u64>,
    pub(super) distinct: u64,
    pub(super) duplicates: u64,
    pub(super) out_of_order: u64,
    /// Ids that are not of this run.
    pub(super) strangers: u64,
}

impl Seen {
    /// For this many events of the load.
    pub(super) fn new(load: &Arc<Load>, events: u64) -> Self {
        Self {
            load: Arc::clone(load),
            events,
            bits: vec![0; events.div_ceil(64) as usize],
            last: vec![0; load.keys as usize],
            distinct: 0,
            duplicates: 0,
            out_of_order: 0,
            strangers: 0,
        }
    }

    pub(super) fn note(&mut self, id: Uuid) {
        let Some(index) = self.load.index(id).filter(|index| *index < self.events) else {
            self.strangers += 1;
            return;
        };
        let (word, bit) = (&mut self.bits[(index / 64) as usize], 1 << (index % 64));
        if *word & bit != 0 {
            self.duplicates += 1;
            return;
        }
        *word |= bit;
        self.distinct += 1;
        let last = &mut self.last[self.load.key(index)];
        if *last > index {
            self.out_of_order += 1;
        }
        *last = (*last).max(index + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_tells_its_number_and_another_run_is_a_stranger() {
        let load = Load::new(500, 10, Spread::Uniform);
        let other = Load { stamp: load.stamp ^ 1, ..Load::new(500, 10, Spread::Uniform) };
        for index in [0, 1, 65_536, 3_000_000] {
            assert_eq!(load.index(load.id(index)), Some(index));
            assert_eq!(other.index(load.id(index)), None);
            assert_eq!(load.id(index).get_version_num(), 7);
            assert_eq!(load.payload(index).len(), 500);
        }
    }

    #[test]
    fn few_keys_have_most_of_the_events_under_zipf() {
        for (spread, least, most) in [(Spread::Uniform, 5, 50), (Spread::Zipf, 1_000, 1_800)] {
            let load = Load::new(1, 1_000, spread);
            let first = (0..10_000).filter(|index| load.key(*index) == 0).count();
            assert!((least..most).contains(&first), "{spread:?}: {first}");
        }
    }

    #[test]
    fn duplicates_strangers_and_disorder_are_seen() {
        let load = Arc::new(Load::new(1, 1, Spread::Uniform));
        let mut seen = Seen::new(&load, 4);
        for index in [0, 2, 1, 1, 3, 4] {
            seen.note(load.id(index));
        }
        let found = (seen.distinct, seen.duplicates, seen.out_of_order, seen.strangers);
        assert_eq!(found, (4, 1, 1, 1));
    }
}
