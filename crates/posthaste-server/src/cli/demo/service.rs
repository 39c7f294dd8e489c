//! The order service: commits orders with their events, and rolls some back.
//!
//! An order goes through three steps (placed, paid, shipped), each of them an event under the order's key. A
//! transaction takes some orders a step further and appends their events; about one in ten is rolled back
//! when everything in it is written. One event in all is poison: the end of its payload is missing.

use super::chance::Chance;
use super::stage::{Stage, connect};
use anyhow::Context as _;
use posthaste::Event;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_blocking};

const TOPICS: [&str; 3] = ["orders.placed", "orders.paid", "orders.shipped"];

/// Events of a transaction, at most.
const EVENTS_MAX: u64 = 4;

/// Orders under way, at most.
const OPEN_MAX: usize = 200;

/// One transaction in so many is rolled back.
const ROLL_BACK_ONE_IN: u64 = 10;

/// The poisonous event is one of the first after this part of them, in percent.
const POISON_FROM: u64 = 12;

/// What the script allows first, in percent. The poisonous event and some behind it are below it: at
/// `POISON_FROM` at most half as many orders are one step from their end, and every other step can be poison.
pub(super) const FIRST_GATE: u64 = 30;

/// How long the work is spread over: long enough to watch, short enough to wait for.
const DURATION: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(8));

/// Within these bounds, so long for each event.
const DURATION_EACH: Duration = Duration::from_micros(1_600);

/// What an event says. The consumer reads it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Payload {
    pub(super) order: String,
    pub(super) customer: String,
    pub(super) cents: i64,
}

/// What the service is to do.
#[derive(Debug, Clone)]
pub(super) struct DemoPlan {
    pub(super) events: u64,
    pub(super) seed: u64,
}

/// The service at work, on a thread of its own.
pub(super) struct Service {
    shared: Arc<ServiceControl>,
    task: JoinHandle<anyhow::Result<()>>,
}

struct ServiceControl {
    stop: AtomicBool,
    /// Commits no more than this. The script opens the gate further, so that each fault meets work that is
    /// going on, however slow the machine is.
    allowed: AtomicU64,
}

impl Service {
    pub(super) fn start(stage: &Stage, plan: DemoPlan) -> Self {
        let shared = Arc::new(ServiceControl { stop: AtomicBool::new(false), allowed: AtomicU64::new(0) });
        let (path, own) = (stage.orders(), Arc::clone(&shared));
        Self { shared, task: spawn_blocking(move || Shop::open(path, plan)?.serve(&own)) }
    }

    pub(super) fn allow(&self, events: u64) {
        self.shared.allowed.store(events, Relaxed);
    }

    /// Whether it has ended by itself: with its plan, or with an error.
    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for its end.
    pub(super) async fn join(self) -> anyhow::Result<()> {
        self.task.await.context("the order service panicked")?.context("the order service failed")
    }

    /// The same after telling it to stop.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Relaxed);
        self.join().await
    }
}

/// An order under way.
#[derive(Debug, Clone)]
struct OpenOrder {
    id: String,
    customer: String,
    /// Steps that it has taken.
    steps: usize,
}

/// One step of one order, as a transaction writes it.
#[derive(Debug)]
struct OrderStep {
    order: OpenOrder,
    event: Event,
}

struct Shop {
    connection: Connection,
    plan: DemoPlan,
    chance: Chance,
    open: Vec<OpenOrder>,
    orders: u64,
    rolled_back: u64,
    poisoned: bool,
}

impl Shop {
    fn open(path: PathBuf, plan: DemoPlan) -> anyhow::Result<Self> {
        let (connection, chance) = (connect(&path)?, Chance::new(plan.seed));
        Ok(Self { connection, plan, chance, open: Vec::new(), orders: 0, rolled_back: 0, poisoned: false })
    }

    fn serve(mut self, shared: &ServiceControl) -> anyhow::Result<()> {
        let duration = DURATION_EACH.mul_f64(self.plan.events as f64).clamp(DURATION.0, DURATION.1);
        let each = duration.div_f64(self.plan.events as f64);
        let (mut due, mut committed) = (Instant::now(), 0);
        while committed < self.plan.events && !shared.stop.load(Relaxed) {
            if committed >= shared.allowed.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(2)); // pace
                // What was not allowed is not made up for.
                due = Instant::now();
                continue;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now())); // pace
            let count = self.transact(committed)?;
            due += each.mul_f64(count as f64);
            committed += count;
        }
        Ok(())
    }

    /// One transaction; answers how many events it committed.
    fn transact(&mut self, committed: u64) -> anyhow::Result<u64> {
        let count = (1 + self.chance.below(EVENTS_MAX)).min(self.plan.events - committed);
        // A rollback takes back what is in memory, too.
        let before = (self.open.clone(), self.orders, self.poisoned);
        let may_poison = committed * 100 >= self.plan.events * POISON_FROM;
        let steps: Vec<OrderStep> =
            (0..count).map(|_| self.step(may_poison)).collect::<anyhow::Result<_>>()?;
        // One of the first in any case: a short demo must show it, too.
        let roll_back = self.chance.one_in(ROLL_BACK_ONE_IN) || (committed > 2 && self.rolled_back == 0);
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for step in &steps {
            write(&tx, step)?;
        }
        if !roll_back {
            tx.commit()?;
            return Ok(count);
        }
        tx.rollback()?;
        (self.open, self.orders, self.poisoned) = before;
        self.note_rollback(&steps)?;
        Ok(0)
    }

    /// The next step of a new order or of one under way.
    fn step(&mut self, may_poison: bool) -> anyhow::Result<OrderStep> {
        let begin = self.open.is_empty() || (self.open.len() < OPEN_MAX && self.chance.one_in(3));
        let index = if begin {
            self.orders += 1;
            let customer = format!("customer-{:02}", self.chance.below(20));
            self.open.push(OpenOrder { id: format!("order-{:06}", self.orders), customer, steps: 0 });
            self.open.len() - 1
        } else {
            self.chance.below(self.open.len() as u64) as usize
        };
        let cents = 100 + self.chance.below(9_900) as i64;
        let order = &mut self.open[index];
        let payload = Payload { order: order.id.clone(), customer: order.customer.clone(), cents };
        let mut event = Event::json(TOPICS[order.steps], &payload)?.with_key(&order.id);
        order.steps += 1;
        let order = order.clone();
        let goes_on = order.steps < TOPICS.len();
        if !goes_on {
            self.open.swap_remove(index);
        }
        // Of an order that goes on: what comes after it must not be held up.
        if may_poison && !self.poisoned && goes_on {
            self.poisoned = true;
            event.payload = event.payload.map(|bytes| bytes.slice(..bytes.len() / 2));
        }
        Ok(OrderStep { order, event })
    }

    fn note_rollback(&mut self, steps: &[OrderStep]) -> anyhow::Result<()> {
        self.rolled_back += 1;
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for step in steps {
            let sql = "insert into rolled_back (tx, event_id) values (?1, ?2)";
            tx.prepare_cached(sql)?.execute(params![self.rolled_back, step.event.id.to_string()])?;
        }
        Ok(tx.commit()?)
    }
}

/// The order and its event, in one transaction (G1).
fn write(tx: &Transaction<'_>, step: &OrderStep) -> anyhow::Result<()> {
    let sql = "insert into orders (id, customer, steps) values (?1, ?2, ?3)
               on conflict (id) do update set steps = excluded.steps";
    let OrderStep { order, event } = step;
    tx.prepare_cached(sql)?.execute(params![order.id, order.customer, order.steps])?;
    posthaste_sqlite::append(tx, event)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The script waits at its first gate until events behind the poisonous one are delivered.
    #[test]
    fn the_poisonous_event_and_some_behind_it_are_below_the_first_gate() {
        let stage = Stage::temporary().expect("a directory");
        stage.set_up().expect("databases");
        for (events, seed) in (0..40).map(|seed| (100, seed)).chain((0..10).map(|seed| (317, seed))) {
            let mut shop = Shop::open(stage.orders(), DemoPlan { events, seed }).expect("a shop");
            shop.connection.pragma_update(None, "synchronous", "off").expect("a test may lose its files");
            let (mut committed, mut poison) = (0, None);
            while committed < events * FIRST_GATE / 100 {
                committed += shop.transact(committed).expect("a transaction");
                if shop.poisoned && poison.is_none() {
                    // Somewhere in this transaction; its last place is the worst.
                    poison = Some(committed);
                }
            }
            assert!(poison.is_some_and(|seq| seq < committed), "{poison:?} of {committed}, seed {seed}");
        }
    }
}
