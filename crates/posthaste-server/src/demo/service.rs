//! The order service: commits orders with their events, and rolls some back.
//!
//! With a gateway (`tenant`) it hands its orders in instead, and one request in ten is refused.
//!
//! An order goes through three steps (placed, paid, shipped), each of them an event under the order's key.
//! A transaction takes some orders a step further and appends their events; about one in ten is rolled back
//! when everything in it is written. Three events in all are odd: one is poison, for the end of its payload
//! is missing; one does not say its amount, which only the consumer minds; one makes the consumer fail
//! twice.

use super::chance::Chance;
use super::stage::{Stage, connect};
use super::tenant::{Client, ClientControl};
use anyhow::Context as _;
use bytes::Bytes;
use posthaste::Event;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_blocking};

pub(super) const TOPICS: [&str; 3] = ["orders.placed", PAID, "orders.shipped"];

/// The consumer asks the bank about these.
pub(crate) const PAID: &str = "orders.paid";

/// Events of a transaction, at most.
const EVENTS_MAX: u64 = 4;

/// Orders under way, at most.
const OPEN_MAX: usize = 200;

/// One transaction in so many is rolled back.
const ROLL_BACK_ONE_IN: u64 = 10;

/// The odd events are some of the first after this part of them, in percent.
const ODD_FROM: u64 = 12;
const ODD: usize = 3;

/// What the script allows first, in percent. The odd events and some behind them are below it: a test plays
/// many shops.
pub(crate) const FIRST_GATE: u64 = 40;

/// How long the work is spread over: long enough to watch, short enough to wait for.
const DURATION: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(8));

/// Within these bounds, so long for each event.
const DURATION_EACH: Duration = Duration::from_micros(1_600);

/// Behind the story: events come so far apart, and one in so many is poison, in turn for the relay and for
/// billing. That is one in twenty seconds.
const STEADY_EACH: Duration = Duration::from_millis(20);
const POISON_EACH: u64 = 1_000;
/// The first one comes sooner: somebody is watching.
const POISON_FIRST: u64 = 250;

/// What an event says. The consumer reads it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Payload {
    pub(crate) order: String,
    pub(crate) customer: String,
    pub(crate) cents: i64,
    /// How often its handler fails.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) failures: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde asks for it
fn is_zero(failures: &u32) -> bool {
    *failures == 0
}

/// What the service is to do.
#[derive(Debug, Clone)]
pub(crate) struct DemoPlan {
    pub(crate) events: u64,
    pub(crate) seed: u64,
    /// Orders go on behind these events, until the service is told to stop.
    pub(crate) goes_on: bool,
}

/// The service at work, on a thread of its own.
pub(crate) struct Service {
    shared: Arc<ServiceControl>,
    /// With a gateway: of its client.
    client: Option<Arc<ClientControl>>,
    task: JoinHandle<anyhow::Result<()>>,
}

struct ServiceControl {
    stop: AtomicBool,
    /// Commits no more than this. The script opens the gate further, so that each fault meets work that is
    /// going on, however slow the machine is.
    allowed: AtomicU64,
    /// Over so many microseconds at least.
    spread: AtomicU64,
}

impl Service {
    /// Appends to the outbox in its own transactions, or hands in as this client.
    pub(crate) fn start(stage: &Stage, plan: DemoPlan, client: Option<Client>) -> Self {
        let shared = Arc::new(ServiceControl {
            stop: AtomicBool::new(false),
            allowed: AtomicU64::new(0),
            spread: AtomicU64::new(0),
        });
        let (path, own) = (stage.shop(), Arc::clone(&shared));
        let control = client.as_ref().map(|client| Arc::clone(&client.control));
        let task = spawn_blocking(move || Shop::open(path, plan, client)?.serve(&own));
        Self { shared, client: control, task }
    }

    /// Of its client, if it has one.
    pub(crate) fn client(&self) -> Option<Arc<ClientControl>> {
        self.client.clone()
    }

    /// Lets it commit up to this many, spread over this time where that is longer than it takes.
    pub(crate) fn allow(&self, events: u64, over: Duration) {
        self.shared.spread.store(u64::try_from(over.as_micros()).unwrap_or(u64::MAX), Relaxed);
        self.shared.allowed.store(events, Relaxed);
    }

    /// Whether it has ended by itself: with its plan, or with an error.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for its end.
    pub(crate) async fn join(self) -> anyhow::Result<()> {
        self.task.await.context("the order service panicked")?.context("the order service failed")
    }

    /// The same after telling it to stop.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Relaxed);
        if let Some(client) = &self.client {
            client.stop.store(true, Relaxed);
        }
        self.join().await
    }
}

/// An order under way.
#[derive(Debug, Clone)]
pub(super) struct OpenOrder {
    pub(super) id: String,
    pub(super) customer: String,
    /// Steps that it has taken.
    pub(super) steps: usize,
}

/// One step of one order, as a transaction writes it.
#[derive(Debug)]
pub(super) struct OrderStep {
    pub(super) order: OpenOrder,
    pub(super) event: Event,
}

struct Shop {
    connection: Connection,
    client: Option<Client>,
    plan: DemoPlan,
    chance: Chance,
    open: Vec<OpenOrder>,
    orders: u64,
    rolled_back: u64,
    /// Odd events so far.
    odd: usize,
    /// Poison behind the story: the number of the next, how many there were, and whether one is due.
    next_poison: u64,
    poisoned: u64,
    poison_due: bool,
}

impl Shop {
    fn open(path: PathBuf, plan: DemoPlan, client: Option<Client>) -> anyhow::Result<Self> {
        let (connection, chance) = (connect(&path)?, Chance::new(plan.seed));
        let next_poison = plan.events + POISON_FIRST;
        Ok(Self {
            connection,
            client,
            plan,
            chance,
            open: Vec::new(),
            orders: 0,
            rolled_back: 0,
            odd: 0,
            next_poison,
            poisoned: 0,
            poison_due: false,
        })
    }

    fn serve(mut self, shared: &ServiceControl) -> anyhow::Result<()> {
        let duration = DURATION_EACH.mul_f64(self.plan.events as f64).clamp(DURATION.0, DURATION.1);
        let each = duration.div_f64(self.plan.events as f64);
        let (mut due, mut committed) = (Instant::now(), 0);
        let (mut gate, mut pace) = (0, each);
        while (committed < self.plan.events || self.plan.goes_on) && !shared.stop.load(Relaxed) {
            let allowed = shared.allowed.load(Relaxed);
            if gate != allowed {
                let spread = Duration::from_micros(shared.spread.load(Relaxed));
                let least = if committed < self.plan.events { each } else { STEADY_EACH };
                (gate, pace) =
                    (allowed, spread.div_f64(allowed.saturating_sub(committed).max(1) as f64).max(least));
            }
            if committed >= allowed {
                std::thread::sleep(Duration::from_millis(2)); // pace
                // What was not allowed is not made up for.
                due = Instant::now();
                continue;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now())); // pace
            let count = self.transact(committed)?;
            due += pace.mul_f64(count as f64);
            committed += count;
        }
        Ok(())
    }

    /// One transaction; answers how many events it committed.
    fn transact(&mut self, committed: u64) -> anyhow::Result<u64> {
        let left = if committed < self.plan.events { self.plan.events - committed } else { EVENTS_MAX };
        let count = (1 + self.chance.below(EVENTS_MAX)).min(left);
        if committed >= self.next_poison {
            (self.poison_due, self.next_poison) = (true, committed + POISON_EACH);
        }
        // A rollback takes back what is in memory, too.
        let before = (self.open.clone(), self.orders, self.odd, self.poisoned, self.poison_due);
        let may_be_odd = committed * 100 >= self.plan.events * ODD_FROM;
        let steps: Vec<OrderStep> =
            (0..count).map(|_| self.step(may_be_odd)).collect::<anyhow::Result<_>>()?;
        // One of the first in any case: a short demo must show it, too.
        let roll_back = self.chance.one_in(ROLL_BACK_ONE_IN) || (committed > 2 && self.rolled_back == 0);
        let undone = match &mut self.client {
            None => commit(&mut self.connection, &steps, roll_back)?,
            Some(client) => client.hand_in(&mut self.connection, &steps, roll_back)?,
        };
        let Some(undone) = undone else { return Ok(count) };
        (self.open, self.orders, self.odd, self.poisoned, self.poison_due) = before;
        self.note_rollback(undone)?;
        Ok(0)
    }

    /// The next step of a new order or of one under way.
    fn step(&mut self, may_be_odd: bool) -> anyhow::Result<OrderStep> {
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
        let payload =
            Payload { order: order.id.clone(), customer: order.customer.clone(), cents, failures: 0 };
        let mut event = Event::json(TOPICS[order.steps], &payload)?.with_key(&order.id);
        order.steps += 1;
        let order = order.clone();
        let goes_on = order.steps < TOPICS.len();
        if !goes_on {
            self.open.swap_remove(index);
        }
        // Of an order that goes on: what comes after it must not be held up.
        if may_be_odd && goes_on && self.odd < ODD && !(self.odd == 2 && order.steps > 1) {
            event.payload = match self.odd {
                0 => event.payload.map(half),
                1 => Some(without_amount(&order)),
                _ => Event::json("", &Payload { failures: 2, ..payload })?.payload,
            };
            self.odd += 1;
        } else if self.poison_due && goes_on {
            event.payload = match self.poisoned % 2 {
                0 => event.payload.map(half),
                _ => Some(without_amount(&order)),
            };
            (self.poisoned, self.poison_due) = (self.poisoned + 1, false);
        }
        Ok(OrderStep { order, event })
    }

    fn note_rollback(&mut self, undone: Undone) -> anyhow::Result<()> {
        self.rolled_back += 1;
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for id in undone.ids {
            let sql = "insert into rolled_back (tx, event_id) values (?1, ?2)";
            tx.prepare_cached(sql)?.execute(params![undone.status.unwrap_or(self.rolled_back), id])?;
        }
        Ok(tx.commit()?)
    }
}

/// Poison for the relay, which takes JSON only.
fn half(payload: Bytes) -> Bytes {
    payload.slice(..payload.len() / 2)
}

/// Poison for billing.
fn without_amount(order: &OpenOrder) -> Bytes {
    format!("{{\"order\": \"{}\"}}", order.id).into()
}

/// What must not be anywhere: ids of events, or that of a request and what it was answered.
pub(super) struct Undone {
    pub(super) ids: Vec<String>,
    pub(super) status: Option<u64>,
}

/// Orders and events in one transaction, which may be rolled back.
fn commit(
    connection: &mut Connection,
    steps: &[OrderStep],
    roll_back: bool,
) -> anyhow::Result<Option<Undone>> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for step in steps {
        write(&tx, step)?;
    }
    if !roll_back {
        tx.commit()?;
        return Ok(None);
    }
    tx.rollback()?;
    Ok(Some(Undone { ids: steps.iter().map(|step| step.event.id.to_string()).collect(), status: None }))
}

/// The order and its event, in one transaction (G1).
fn write(tx: &Transaction<'_>, step: &OrderStep) -> anyhow::Result<()> {
    write_order(tx, &step.order.id, &step.order.customer, step.order.steps)?;
    posthaste_sqlite::append(tx, &step.event)?;
    Ok(())
}

pub(super) fn write_order(
    tx: &Transaction<'_>,
    id: &str,
    customer: &str,
    steps: usize,
) -> anyhow::Result<()> {
    let sql = "insert into orders (id, customer, steps) values (?1, ?2, ?3)
               on conflict (id) do update set steps = excluded.steps";
    tx.prepare_cached(sql)?.execute(params![id, customer, steps])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The script waits at its first gate until events behind the odd ones are delivered.
    #[test]
    fn the_odd_events_and_some_behind_them_are_below_the_first_gate() {
        let stage = Stage::temporary().expect("a directory");
        stage.set_up(None).expect("databases");
        for (events, seed) in (0..40).map(|seed| (100, seed)).chain((0..10).map(|seed| (317, seed))) {
            let mut shop =
                Shop::open(stage.orders(), DemoPlan { events, seed, goes_on: false }, None).expect("a shop");
            shop.connection.pragma_update(None, "synchronous", "off").expect("a test may lose its files");
            let (mut committed, mut last) = (0, None);
            while committed < events * FIRST_GATE / 100 {
                committed += shop.transact(committed).expect("a transaction");
                if shop.odd == ODD && last.is_none() {
                    // Somewhere in this transaction; its last place is the worst.
                    last = Some(committed);
                }
            }
            assert!(last.is_some_and(|seq| seq < committed), "{last:?} of {committed}, seed {seed}");
        }
    }
}
