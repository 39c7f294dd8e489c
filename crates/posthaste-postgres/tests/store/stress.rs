//! The whole algorithm of the log under concurrent writers: savepoints, exception blocks, rollbacks,
//! prepared transactions, stragglers, large transactions; read by several lanes with tiny pages, by
//! readers that die and start again. None lost, none settled twice, no key out of order.

use crate::fixture::PostgresFixture;
use crate::three_rules::plan;
use posthaste::store::{LaneId, Lease, PageLimit, Settlement, Store};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, TestDatabase, Version};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Appends `count` events of this writer's own key, so that their order is promised.
fn appends(key: &str, count: u64) -> String {
    format!("select posthaste.append('t', 'x'::text, '{key}') from generate_series(1, {count});")
}

/// One transaction, of one of many shapes, as scripts to run one after the other. The committed events
/// are counted by the table itself.
fn transaction(dice: &mut Dice, key: &str, gid: &str) -> Vec<String> {
    let straggle = if dice.roll(12) == 0 {
        format!("select pg_sleep({});", 0.02 * dice.roll(20) as f64)
    } else {
        String::new()
    };
    let few = appends(key, 1 + dice.roll(4));
    let script = match dice.roll(12) {
        0 => format!("begin; {few} {straggle} rollback;"),
        1 => format!("begin; {few} savepoint a; {few} rollback to a; {straggle} {few} commit;"),
        2 => format!("begin; savepoint a; {few} savepoint b; {few} release b; {straggle} commit;"),
        3 => format!("begin; select pg_current_xact_id(); {straggle} {few} commit;"),
        4 => format!(
            "begin; do $$ begin perform posthaste.append('t', 'x'::text, '{key}'); raise 'no'; exception when others then null; end $$; {few} commit;"
        ),
        5 => {
            return vec![
                format!("begin; {few} {straggle} prepare transaction '{gid}'"),
                format!("commit prepared '{gid}'"),
            ];
        }
        6 => {
            return vec![
                format!("begin; {few} prepare transaction '{gid}'"),
                format!("rollback prepared '{gid}'"),
            ];
        }
        7 => format!("begin; {} {straggle} commit;", appends(key, 50 + dice.roll(400))),
        8 => format!(
            "insert into posthaste.outbox (topic, key, payload) values ('t', '{key}', 'x'), ('t', '{key}', 'y');"
        ),
        _ => format!("begin; {few} {straggle} commit;"),
    };
    vec![script]
}

/// Many transactions that stay open for a few settlements each: every one of them is an elder when it
/// ends, and some end between any two snapshots.
async fn linger(fixture: Arc<PostgresFixture>, writer: u64, stop: Arc<AtomicBool>) {
    let client = fixture.connect().await;
    let mut dice = Dice(writer * 104_729 + 1);
    while !stop.load(Ordering::Relaxed) {
        let few = appends(&format!("linger-{writer}"), 1 + dice.roll(3));
        let pause = 0.005 + 0.001 * dice.roll(60) as f64;
        let script = format!("begin; {few} select pg_sleep({pause}); commit;");
        client.batch_execute(&script).await.expect("a lingering transaction");
    }
}

async fn write(fixture: Arc<PostgresFixture>, writer: u64, stop: Arc<AtomicBool>) {
    let client = fixture.connect().await;
    let mut dice = Dice(writer * 7_919 + 1);
    let key = format!("key-{writer}");
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        for script in transaction(&mut dice, &key, &format!("g{writer}-{count}")) {
            client.batch_execute(&script).await.expect("a writer's transaction");
        }
    }
}

/// What the readers delivered and settled.
#[derive(Default)]
struct Ledger {
    settled: Vec<i64>,
    first: HashMap<String, Vec<i64>>,
    seen: HashSet<i64>,
    delivered: usize,
    restarts: usize,
}

/// Reads a lane, settles by whim and ahead of settlement, and dies now and then.
async fn drain_lane(lease: &Arc<dyn Lease>, dice: &mut Dice, ledger: &mut Ledger, reads: u64) {
    let mut pending: Vec<(u64, Vec<i64>)> = Vec::new();
    for _ in 0..reads {
        let events = 1 + dice.roll(60) as usize;
        let page = lease.read(PageLimit { events, bytes: 1 << 20 }).await.expect("read");
        let mut seqs = Vec::new();
        for stored in &page.events {
            ledger.delivered += 1;
            seqs.push(stored.seq);
            if ledger.seen.insert(stored.seq) {
                let key = stored.event.key.clone().unwrap_or_default();
                ledger.first.entry(key).or_default().push(stored.seq);
            }
        }
        pending.push((page.number, seqs));
        if dice.roll(3) == 0 {
            let pages = 1 + dice.roll(pending.len() as u64) as usize;
            let done: Vec<_> = pending.drain(..pages).collect();
            let through = done.last().map(|(number, _)| *number);
            lease.settle(&Settlement { through, ..Settlement::default() }).await.expect("settle");
            ledger.settled.extend(done.into_iter().flat_map(|(_, seqs)| seqs));
        }
    }
}

async fn stress(fixture: PostgresFixture, lanes: u16, seconds: u64) {
    let fixture = Arc::new(fixture);
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers: Vec<_> =
        (0..10).map(|n| tokio::spawn(write(Arc::clone(&fixture), n, Arc::clone(&stop)))).collect();
    writers.extend((0..30).map(|n| tokio::spawn(linger(Arc::clone(&fixture), n, Arc::clone(&stop)))));
    let (mut dice, mut ledger) = (Dice(42), Ledger::default());
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut store: Arc<dyn Store> = fixture.store_without_wakeups().await;
    store.join(&plan("a", lanes)).await.expect("join");
    let mut quiet = 0;
    // Until the writers have stopped and three rounds in a row found nothing new.
    while quiet < 3 {
        if Instant::now() > end {
            stop.store(true, Ordering::Relaxed);
        }
        let before = ledger.seen.len();
        for lane in 0..i16::try_from(lanes).expect("few lanes") {
            let id = LaneId { sink: "s".into(), lane };
            let lease = store.take(&id).await.expect("take").expect("the lane is free");
            drain_lane(&lease, &mut dice, &mut ledger, 10).await;
            // Whatever was not settled dies with the lease.
            lease.release().await.expect("release");
            ledger.restarts += 1;
        }
        let ended = writers.iter().all(|writer| writer.is_finished());
        quiet = if ended && ledger.seen.len() == before { quiet + 1 } else { 0 };
        if dice.roll(5) == 0 {
            store = fixture.store_without_wakeups().await;
            store.join(&plan("a", lanes)).await.expect("join again");
        }
    }
    for writer in writers {
        writer.await.expect("a writer");
    }
    verdict(&fixture, &ledger).await;
}

async fn verdict(fixture: &PostgresFixture, ledger: &Ledger) {
    let rows = fixture.connect().await.query("select seq from posthaste.outbox", &[]).await.expect("all");
    let committed: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
    let lost = committed.difference(&ledger.seen).count();
    let invented = ledger.seen.difference(&committed).count();
    let mut settled = HashSet::new();
    let twice = ledger.settled.iter().filter(|seq| !settled.insert(**seq)).count();
    println!("{} committed, {} delivered, {} restarts", committed.len(), ledger.delivered, ledger.restarts);
    assert!(committed.len() > 1_000 && ledger.restarts > 20, "the stress was one: {}", committed.len());
    assert_eq!((lost, invented, twice), (0, 0, 0), "lost, invented, settled twice");
    for (key, seqs) in &ledger.first {
        assert!(seqs.is_sorted(), "first deliveries of {key} out of order");
    }
}

/// On a server of its own: it would be a bad neighbour.
async fn stress_alone(lanes: u16, seconds: u64) {
    let server = require_service!(Postgres::start(Version::tested(), &PostgresOptions::default()).await);
    let database = TestDatabase::create_on(&server).await.expect("a database");
    stress(PostgresFixture::on(database).await, lanes, seconds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_with_one_lane() {
    stress_alone(1, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_with_four_lanes() {
    stress_alone(4, 5).await;
}
