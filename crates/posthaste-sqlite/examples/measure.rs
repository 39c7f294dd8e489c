//! Measures this crate on the disk at hand: append against a plain INSERT, reading and settling against a
//! bare batched INSERT of the same rows.
//!
//! ```sh
//! cargo run --release -p posthaste-sqlite --example measure -- [DIRECTORY]
//! ```
//!
//! Every figure is a ratio of two measured in the same run; rounds alternate, the best of each counts.

use posthaste::Event;
use posthaste::route::Filter;
use posthaste::store::{JoinPlan, LaneId, PageLimit, Settlement, SinkPlan, StartAt, Store};
use posthaste_sqlite::{SqliteConfig, SqliteStore, append, migrate};
use rusqlite::{Connection, TransactionBehavior, params};
use std::path::Path;
use std::time::{Duration, Instant};

const PAYLOAD_BYTES: usize = 500;
const SINGLES: usize = 500;
const ROWS: usize = 100_000;
const ROUNDS: usize = 3;

type Anything<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Anything<()> {
    let base = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let directory = base.join(format!("posthaste-measure-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let measured = measure(&directory);
    std::fs::remove_dir_all(&directory)?;
    measured
}

fn measure(directory: &Path) -> Anything<()> {
    let config = SqliteConfig::new(directory.join("ours.db"));
    migrate::up(&config)?;
    let mut ours = connect(&config.path)?;
    let mut plain = connect(&directory.join("plain.db"))?;
    plain.execute_batch(
        "create table bare (seq integer primary key, topic text, key text, payload blob, at integer)",
    )?;
    let (mut best, mut batch) = ([Duration::MAX; 2], [Duration::MAX; 2]);
    for _ in 0..ROUNDS {
        best[0] = best[0].min(singles(&mut plain, insert)?);
        best[1] = best[1].min(singles(&mut ours, |tx, n| Ok(append(tx, &event(n)).map(drop)?))?);
        batch[0] = batch[0].min(batches(&mut plain, insert)?);
        batch[1] = batch[1].min(batches(&mut ours, |tx, n| Ok(append(tx, &event(n)).map(drop)?))?);
    }
    let micros = |time: Duration, count: usize| time.as_secs_f64() * 1e6 / count as f64;
    for (name, [plain, ours], count) in
        [("one in a transaction", best, SINGLES), ("1,000 in a transaction", batch, ROWS)]
    {
        println!(
            "append, {name}: {:.1} µs, plain INSERT {:.1} µs, ratio {:.2}",
            micros(ours, count),
            micros(plain, count),
            ours.as_secs_f64() / plain.as_secs_f64()
        );
    }
    let rows: u32 = ours.query_row("select count(*) from posthaste_outbox", [], |row| row.get(0))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let drained = runtime.block_on(drain(config))?;
    let rate = |time: Duration, count: usize| count as f64 / time.as_secs_f64();
    let (drained, inserted) = (rate(drained, rows as usize), rate(batch[0], ROWS));
    println!(
        "read and settle: {drained:.0}/s, bare batched INSERT {inserted:.0}/s, ratio {:.2}",
        drained / inserted
    );
    println!("peak memory: {} kB", peak_kb());
    Ok(())
}

fn connect(path: &Path) -> Anything<Connection> {
    let connection = Connection::open(path)?;
    connection.query_row("pragma journal_mode = wal", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.busy_timeout(Duration::from_secs(10))?;
    Ok(connection)
}

fn event(n: usize) -> Event {
    Event::new("orders.placed", vec![b'x'; PAYLOAD_BYTES]).with_key(format!("key-{}", n % 1_000))
}

fn insert(tx: &rusqlite::Transaction<'_>, n: usize) -> Anything<()> {
    let (key, payload) = (format!("key-{}", n % 1_000), vec![b'x'; PAYLOAD_BYTES]);
    tx.prepare_cached("insert into bare (topic, key, payload, at) values ('orders.placed', ?1, ?2, ?3)")?
        .execute(params![key, payload, n as i64])?;
    Ok(())
}

type Insert = fn(&rusqlite::Transaction<'_>, usize) -> Anything<()>;

fn singles(connection: &mut Connection, insert: Insert) -> Anything<Duration> {
    let began = Instant::now();
    for n in 0..SINGLES {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        insert(&tx, n)?;
        tx.commit()?;
    }
    Ok(began.elapsed())
}

fn batches(connection: &mut Connection, insert: Insert) -> Anything<Duration> {
    let began = Instant::now();
    for first in (0..ROWS).step_by(1_000) {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for n in first..first + 1_000 {
            insert(&tx, n)?;
        }
        tx.commit()?;
    }
    Ok(began.elapsed())
}

/// Reads and settles everything, a page ahead, as a relay on a sink that costs nothing.
async fn drain(config: SqliteConfig) -> Anything<Duration> {
    let store = SqliteStore::connect(config).await?;
    let sink = SinkPlan { name: "s".into(), filter: Filter::Everything, start_at: StartAt::Earliest };
    let plan = JoinPlan {
        relay: "measure".into(),
        sinks: vec![sink],
        routes: String::new(),
        lanes: Some(1),
        lease_ttl: Duration::from_secs(60),
    };
    store.join(&plan).await?;
    let lease = store.take(&LaneId { sink: "s".into(), lane: 0 }).await?.ok_or("the lane is taken")?;
    let began = Instant::now();
    let limit = PageLimit { events: 2_048, bytes: 8 << 20 };
    let mut page = lease.read(limit).await?;
    while !page.events.is_empty() {
        let settlement = Settlement { through: Some(page.number), ..Settlement::default() };
        let (settled, next) = tokio::join!(lease.settle(&settlement), lease.read(limit));
        settled?;
        page = next?;
    }
    Ok(began.elapsed())
}

/// The most memory this process ever held, as Linux tells it.
fn peak_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}
