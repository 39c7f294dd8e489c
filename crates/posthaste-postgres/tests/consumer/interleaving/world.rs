//! What a schedule is about: messages of a partition, handlers that fail, and what must be true at the end.
//!
//! | promise | how it is seen |
//! |---|---|
//! | I1 once | one effect of what is done, none of others, one more for each repeat that was asked for |
//! | I2 truth | before the saved position every message has its mark, or no handler takes it |
//! | I3 order | a handler begins when all before it of its key are done, or dead and hold nobody |
//! | I4 completeness | marks and rows agree |
//! | nothing stuck | once handlers succeed, only what a dead letter holds stays deferred |
//! | nothing lost | once the letters are replayed, everything is done that was not discarded |

use async_trait::async_trait;
use bytes::Bytes;
use posthaste::admin::History;
use posthaste::consumer::identity::order_id;
use posthaste::consumer::store::Work;
use posthaste::consumer::{HandlerError, Message, Order};
use posthaste::source::{Delivery, Partition, Received, Ticket};
use posthaste_postgres::consumer::Handler;
use posthaste_testkit::faults::Dice;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

/// The schedule's own table: each message with its place and its key, once.
pub(super) const TABLE: &str = "create table places (place bigint, id text, key text, skipped boolean)";

/// The effect of a message, and whose turn it would have been: earlier messages of the key that are neither
/// done, nor dead without a hold. Repeats, and what was skipped, have no place in the order. A letter that
/// held nobody ($2) and was replayed runs beside later ones.
const EFFECT: &str = "
  with effect as (insert into effects (consumer, id) values ('billing', $1))
  select e.id from places me join places e on e.key = me.key and e.place < me.place
   where me.id = $1 and not me.skipped and not e.skipped
     and not exists (select from effects x where x.id = e.id)
     and not exists (select from posthaste.inbox_deferred r where r.message_id = $1 and r.repeat)
     and not exists (select from posthaste.inbox i where i.message_id = e.id and i.outcome = 'x'
                       and not exists (select from posthaste.inbox_dead_letters l
                                        where l.message_id = e.id and l.holds_key))
     and not ($2 and exists (select from posthaste.inbox_deferred w where w.message_id = e.id and w.replays > 0))";

/// What the tables say of each message.
const STATE: &str = "
  select p.id, p.place, p.skipped, i.outcome::text as outcome,
         (select count(*) from effects x where x.id = p.id) as effects,
         (select count(*) from posthaste.inbox_deferred d where d.message_id = p.id and not d.repeat) as deferred,
         (select count(*) from posthaste.inbox_dead_letters l where l.message_id = p.id and not l.repeat) as letters,
         (select max(s.position) from posthaste.inbox_partitions s) as position
    from places p left join posthaste.inbox i on i.message_id = p.id order by p.place";

/// Deferred messages that nothing holds.
pub(super) const STUCK: &str = "
  select d.message_id from posthaste.inbox_deferred d
   where not exists (select from posthaste.inbox_dead_letters l
                      where l.topic = d.topic and l.order_id = d.order_id and l.holds_key and l.seq < d.seq)";

/// Away with everything.
pub(super) const CLEAN: &str = "
  delete from effects; delete from places; delete from posthaste.inbox; delete from posthaste.inbox_deferred;
  delete from posthaste.inbox_dead_letters; delete from posthaste.inbox_partitions";

/// What is noted while a schedule runs.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) problems: Vec<String>,
    pub(super) discarded: BTreeSet<String>,
    /// How often a repeat was asked for, at most.
    pub(super) repeats: BTreeMap<String, i64>,
    runs: BTreeMap<String, u64>,
    is_healed: bool,
}

pub(super) struct World {
    seed: u64,
    pub(super) dead_hold: bool,
    /// Chance of a handler to fail.
    failing: f64,
    /// The partition, with producers' duplicates.
    pub(super) log: Vec<Work>,
    /// No handler of a member takes these.
    pub(super) skipped: BTreeSet<Arc<str>>,
    ledger: Mutex<Ledger>,
}

pub(super) fn partition() -> Partition {
    Partition::new("orders", 0)
}

impl World {
    pub(super) fn throw(seed: u64, dead_hold: bool, dice: &mut Dice) -> Self {
        let (mut log, mut skipped): (Vec<Work>, BTreeSet<Arc<str>>) = Default::default();
        let keys = dice.between(1, 2);
        for position in 0..dice.between(5, 8) as i64 {
            if position > 1 && dice.happens(0.15) {
                let copied = log[dice.index(log.len())].clone();
                let key = copied.delivery.message.key.clone();
                log.push(message(position, &copied.id, key));
                continue;
            }
            let id = format!("m{position}");
            let key = Bytes::from(format!("k{}", dice.between(1, keys)));
            log.push(message(position, &id, Some(key)));
            if dice.happens(0.08) {
                skipped.insert(id.into());
            }
        }
        let failing = dice.between(30, 60) as f64 / 100.0;
        Self { seed, dead_hold, failing, log, skipped, ledger: Mutex::default() }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn problem(&self, problem: String) {
        self.ledger().problems.push(problem);
    }

    /// Handlers succeed from now on.
    pub(super) fn heal(&self) {
        self.ledger().is_healed = true;
    }

    pub(super) async fn write_places(&self, client: &Client) {
        let mut seen = BTreeSet::new();
        let (mut places, mut ids, mut keys, mut skipped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (work, place) in self.log.iter().zip(0i64..).filter(|(work, _)| seen.insert(&work.id)) {
            let key = work.delivery.message.key.as_deref().unwrap_or_default();
            places.push(place);
            ids.push(&*work.id);
            keys.push(String::from_utf8_lossy(key));
            skipped.push(self.skipped.contains(&work.id));
        }
        let insert =
            "insert into places select * from unnest($1::bigint[], $2::text[], $3::text[], $4::boolean[])";
        client.execute(insert, &[&places, &ids, &keys, &skipped]).await.expect("the places");
    }

    /// I1, I2 and I4, of what is committed.
    pub(super) async fn check(&self, client: &Client) {
        for row in client.query(STATE, &[]).await.expect("the state") {
            let (id, place): (String, i64) = (row.get("id"), row.get("place"));
            let (effects, rows, letters): (i64, i64, i64) =
                (row.get("effects"), row.get("deferred"), row.get("letters"));
            let outcome: Option<String> = row.get("outcome");
            let (repeats, is_discarded) = {
                let ledger = self.ledger();
                (ledger.repeats.get(&id).copied().unwrap_or(0), ledger.discarded.contains(&id))
            };
            let once = i64::from(outcome.as_deref() == Some("d"));
            if !(once..=once + repeats).contains(&effects) {
                self.problem(format!("I1: {id} is {outcome:?} with {effects} effects and {repeats} repeats"));
            }
            let agrees = match outcome.as_deref() {
                None | Some("d") => (rows, letters) == (0, 0),
                Some("w") => (rows, letters) == (1, 0),
                _ => rows == 0 && letters == i64::from(!is_discarded),
            };
            if !agrees {
                self.problem(format!("I4: {id} is {outcome:?} with {rows} rows and {letters} letters"));
            }
            let position: Option<i64> = row.get("position");
            if position.is_some_and(|position| place < position)
                && outcome.is_none()
                && !row.get::<_, bool>("skipped")
            {
                self.problem(format!("I2: {id} has no mark before the position {position:?}"));
            }
        }
    }

    /// At the end everything is done, or was discarded.
    pub(super) async fn check_done(&self, client: &Client) {
        for row in client.query(STATE, &[]).await.expect("the state") {
            let (id, outcome): (String, Option<String>) = (row.get("id"), row.get("outcome"));
            let is_over = match outcome.as_deref() {
                Some("d") => true,
                Some("x") => self.ledger().discarded.contains(&id),
                Some(_) => false,
                None => row.get("skipped"),
            };
            if !is_over {
                self.problem(format!("lost: {id} is {outcome:?} at the end"));
            }
        }
    }
}

fn message(position: i64, id: &str, key: Option<Bytes>) -> Work {
    let message = Received {
        id: Some(id.to_owned()),
        key,
        headers: Vec::new(),
        payload: Some(Bytes::from_static(b"{}")),
    };
    let delivery = Delivery {
        ticket: Ticket { partition: partition(), epoch: 1, number: position },
        position: Some(position),
        redelivery: None,
        published_at: None,
        address: None,
        message,
    };
    let order_id = order_id(Order::Key, &delivery);
    Work { delivery: Arc::new(delivery), id: id.into(), order_id, attempts: 0, history: History::default() }
}

/// The world of the schedule that runs now.
#[derive(Clone, Default)]
pub(super) struct CheckingHandler(Arc<Mutex<Option<Arc<World>>>>);

impl CheckingHandler {
    pub(super) fn set(&self, world: &Arc<World>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(world));
    }

    fn world(&self) -> Arc<World> {
        let world = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        world.expect("a schedule runs")
    }
}

#[async_trait]
impl Handler for CheckingHandler {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        let (world, id) = (self.world(), message.id());
        // In one round trip.
        let passed = tx.query_typed(EFFECT, &[(&id, Type::TEXT), (&!world.dead_hold, Type::BOOL)]).await?;
        let passed: Vec<String> = passed.iter().map(|row| row.get(0)).collect();
        let mut ledger = world.ledger();
        if !passed.is_empty() {
            ledger.problems.push(format!("I3: {id} runs before {}", passed.join(" ")));
        }
        let run = ledger.runs.entry(id.to_owned()).or_default();
        *run += 1;
        let place = id.bytes().fold(0u64, |sum, byte| sum << 8 | u64::from(byte));
        let mut dice = Dice::new(world.seed ^ place << 16 ^ *run);
        if ledger.is_healed || !dice.happens(world.failing) {
            return Ok(());
        }
        match dice.happens(0.3) {
            true => Err(HandlerError::reject("test.rejected", "as the dice say")),
            false => Err(std::io::Error::other("as the dice say").into()),
        }
    }
}
