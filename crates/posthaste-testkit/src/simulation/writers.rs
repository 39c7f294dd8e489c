//! The application: writers whose transactions overlap, straggle and roll back.
//!
//! Each key has a lock that a transaction holds from its first append of that key to its end, as a
//! service holds the row of the aggregate it changes. So the transactions of one key exclude each other,
//! and the order of their numbers is the order that is promised (F5). Everything else is left to chance:
//! an xid may be taken long before the first number, a transaction may stay open for seconds while
//! hundreds pass it, and a good part of them rolls back.

use super::world::{Appended, Temper, World, fate, lock};
use crate::faults::Dice;
use posthaste::event::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};
use uuid::Uuid;

/// Destinations of a sink, one for each topic.
pub(super) const TOPICS: [&str; 3] = ["orders", "payments", "parcels"];

/// All writers of a simulation.
pub(super) struct Writers {
    world: Arc<World>,
    keys: Vec<Arc<Mutex<()>>>,
    left: AtomicUsize,
}

impl Writers {
    pub(super) fn new(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            keys: (0..world.scenario.keys).map(|_| Arc::default()).collect(),
            left: AtomicUsize::new(world.scenario.events),
            world: Arc::clone(world),
        })
    }

    /// One writer, until all events are appended.
    pub(super) async fn write(self: Arc<Self>, mut dice: Dice) {
        while self.left.load(Ordering::Relaxed) > 0 {
            self.transaction(&mut dice).await;
            tokio::time::sleep(self.world.tempo.rest(dice.up_to(Duration::from_millis(150)))).await; // pace
        }
    }

    async fn transaction(&self, dice: &mut Dice) {
        let asynchronous = self.world.scenario.troubles.asynchronous && dice.happens(0.6);
        let mut tx = self.world.database.begin(!asynchronous);
        if dice.happens(0.3) {
            tx.touch();
            self.world.pause_inside(dice.up_to(Duration::from_millis(400))).await;
        }
        let locks = self.lock_keys(dice).await;
        let mut ids = Vec::new();
        for _ in 0..self.claim(size(dice)) {
            if dice.happens(0.1) {
                self.world.pause_inside(dice.up_to(Duration::from_millis(100))).await;
            }
            let (event, appended) = self.event(dice, &locks);
            ids.push(event.id);
            lock(&self.world.ledger).insert(event.id, appended);
            tx.append(event).await;
        }
        if dice.happens(0.12) {
            // A straggler: it keeps its keys and its numbers while everybody else passes.
            self.world.pause_inside(dice.up_to(Duration::from_secs(4))).await;
        }
        let rolls_back = dice.happens(0.2);
        let committed = if rolls_back {
            tx.rollback().await;
            false
        } else {
            tx.commit().await
        };
        if !committed {
            self.forget(&ids);
        }
    }

    /// Rolled back by itself, or with the server: none of it may ever be seen.
    fn forget(&self, ids: &[Uuid]) {
        let mut ledger = lock(&self.world.ledger);
        for id in ids {
            if let Some(appended) = ledger.get_mut(id) {
                appended.rolled_back = true;
            }
        }
    }

    /// Takes up to `wanted` events off what is left to append.
    fn claim(&self, wanted: usize) -> usize {
        let take = |left: usize| Some(left.saturating_sub(wanted));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.unwrap_or_else(|left| left).min(wanted)
    }

    /// Locks some keys, lowest first, so that no two writers wait for each other.
    async fn lock_keys(&self, dice: &mut Dice) -> Vec<(usize, OwnedMutexGuard<()>)> {
        let mut wanted: Vec<usize> = (0..dice.index(4)).map(|_| dice.index(self.keys.len())).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut locks = Vec::with_capacity(wanted.len());
        for key in wanted {
            locks.push((key, Arc::clone(&self.keys[key]).lock_owned().await));
        }
        locks
    }

    fn event(&self, dice: &mut Dice, locks: &[(usize, OwnedMutexGuard<()>)]) -> (Event, Appended) {
        let id = Uuid::from_u64_pair(dice.bits(), dice.bits());
        let payload = vec![b'x'; dice.index(300)];
        let mut event = Event::new(TOPICS[dice.index(TOPICS.len())], payload).with_id(id);
        if !locks.is_empty() && dice.happens(0.9) {
            event = event.with_key(format!("key-{}", locks[dice.index(locks.len())].0));
        }
        let scheduled = dice.happens(0.04);
        if scheduled {
            let delay = self.world.tempo.wait(Duration::from_micros(dice.between(1, 3_000_000)));
            let delay = i64::try_from(delay.as_micros()).expect("small");
            event = event.deliver_at(self.world.database.now().plus_micros(delay));
        }
        let fate = fate(dice, &self.world.scenario);
        (event, Appended { fate, scheduled, rolled_back: false })
    }

    /// One event that kills whoever publishes it.
    pub(super) async fn poison(self: Arc<Self>, mut dice: Dice) {
        self.world.pause(dice.up_to(Duration::from_secs(3))).await;
        let locks = self.lock_keys(&mut dice).await;
        let (event, appended) = self.event(&mut dice, &locks);
        let appended = Appended { fate: Temper::Poison, ..appended };
        let id = event.id;
        lock(&self.world.ledger).insert(id, appended);
        let mut tx = self.world.database.begin(true);
        tx.append(event).await;
        if !tx.commit().await {
            self.forget(&[id]);
        }
    }
}

/// Most transactions are tiny, some fill pages, a few fill many.
fn size(dice: &mut Dice) -> usize {
    let (low, high) = match dice.index(20) {
        0 => (40, 300),
        1..4 => (5, 25),
        _ => (1, 3),
    };
    usize::try_from(dice.between(low, high)).expect("small")
}
