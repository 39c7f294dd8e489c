//! The looks: what is asked, and the open loop that asks it while events are appended and delivered.

use super::asker::{Ask, Asker};
use super::daemon::{ApiDaemon, SINK};
use super::fill::{ApiField, CODE};
use crate::latency::{EventTimes, append};
use crate::load::{Load, TOPIC, mix};
use crate::report::ProgressLine;
use anyhow::Context as _;
use futures_util::future::try_join_all;
use posthaste::task::spawn;
use posthaste_postgres::Outbox;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Connections that append.
const APPENDERS: usize = 4;
/// The first seconds open connections and are not counted.
const WARM_SECONDS: u64 = 2;
/// Events that are looked for, of each of the two kinds.
const EVENTS: u64 = 400;
/// Pages behind the first one that are asked for.
const PAGES: usize = 4;

/// What the outbox is called in the configuration.
pub(super) const OUTBOX: &str = "/outboxes/bench";

/// A kind of request, and how long it may take.
pub(super) struct LookKind {
    pub(super) name: &'static str,
    pub(super) p99_most_ms: f64,
    pub(super) words: &'static str,
}

const fn kind(name: &'static str, p99_most_ms: f64, words: &'static str) -> LookKind {
    LookKind { name, p99_most_ms, words }
}

/// All of them, asked in turn.
pub(super) const KINDS: [LookKind; 8] = [
    kind("overview", 60.0, "GET /outboxes/{o}: intended time → last byte"),
    kind("dead", 40.0, "a page of 50: all, of a cause, of a sink, later pages"),
    kind("deferred", 40.0, "a page of 50: all, by reason, later pages"),
    kind("audit", 40.0, "a page of 50: all, by action, later pages"),
    kind("causes", 150.0, "GET …/dead/causes of all letters"),
    kind("event_id", 50.0, "an event anywhere in the log by its UUIDv7"),
    kind("event_number", 50.0, "the same by its number"),
    kind("dry_run", 150.0, "a job's count: a cause, a sink, a topic, a code; deferred events"),
];

/// What a run has seen.
pub(super) struct Looked {
    /// Of each kind, in milliseconds.
    pub(super) times_ms: [Vec<f64>; KINDS.len()],
    /// Why requests had no answer.
    pub(super) failed: Vec<String>,
}

/// Asks at the rate, over the log as it is.
pub(super) async fn run(field: &mut ApiField<'_>, daemon: &ApiDaemon) -> anyhow::Result<Looked> {
    let (asker, args) = (daemon.asker()?, field.args);
    let asks = prepare(field, asker).await?;
    let seconds = WARM_SECONDS + args.seconds;
    let common = field.bench.common;
    // The outbox has the ids of the run before.
    let load = Arc::new(Load::new(common.payload_bytes, common.keys, common.spread));
    let times = Arc::new(EventTimes::new(&load, args.append_rate, args.append_rate * seconds));
    let clients = try_join_all((0..APPENDERS).map(|_| field.bench.ground.connect())).await?;
    let (next, outbox) = (Arc::new(AtomicU64::new(0)), Outbox::new(&common.schema));
    times.begin();
    let appenders: Vec<_> = clients
        .into_iter()
        .map(|client| {
            spawn("appender", append(client, outbox.clone(), Arc::clone(&times), Arc::clone(&next)))
        })
        .collect();
    let looked = open_loop(asker, &asks, args.rate, seconds).await?;
    for appender in appenders {
        appender.await??;
    }
    field.appended += times.steady;
    // What answers beside it has to go on delivering, too.
    field.delivered(None).await?;
    Ok(looked)
}

/// Request n goes out at its intended time, whatever became of those before it.
async fn open_loop(asker: &Asker, asks: &[Vec<Ask>], rate: u64, seconds: u64) -> anyhow::Result<Looked> {
    let (warm, total) = (rate * WARM_SECONDS, rate * seconds);
    let mut progress = ProgressLine::start("look", total);
    let begin = Instant::now();
    let mut under_way = JoinSet::new();
    for n in 0..total {
        let intended = begin + Duration::from_secs_f64(n as f64 / rate as f64);
        tokio::time::sleep_until(intended.into()).await;
        let kind = n as usize % KINDS.len();
        let ask = asks[kind][n as usize / KINDS.len() % asks[kind].len()].clone();
        let asker = asker.clone();
        under_way.spawn(async move {
            let answer = asker.send(&ask).await;
            (n, kind, intended.elapsed(), answer.err())
        });
        progress.set(n);
    }
    let mut looked = Looked { times_ms: Default::default(), failed: Vec::new() };
    while let Some(done) = under_way.join_next().await {
        let (n, kind, took, error) = done?;
        match error {
            Some(error) => looked.failed.push(format!("{error:#}")),
            None if n >= warm => looked.times_ms[kind].push(took.as_secs_f64() * 1e3),
            None => {}
        }
    }
    progress.finish();
    Ok(looked)
}

/// Requests of each kind, in the order of [`KINDS`].
async fn prepare(field: &ApiField<'_>, asker: &Asker) -> anyhow::Result<[Vec<Ask>; KINDS.len()]> {
    let causes = causes(asker).await?;
    let cause = |n: usize| &causes[n % causes.len()].fingerprint;
    let look = |path: String| Ask::look(path);
    let mut dead = pages(asker, &format!("{OUTBOX}/dead")).await?;
    dead.extend((0..4).map(|n| look(format!("{OUTBOX}/dead?fingerprint={}", cause(n)))));
    dead.push(look(format!("{OUTBOX}/dead?sink={SINK}&code={CODE}")));
    let mut deferred = pages(asker, &format!("{OUTBOX}/deferred")).await?;
    deferred.extend(["retry", "held"].map(|reason| look(format!("{OUTBOX}/deferred?reason={reason}"))));
    let mut audit = pages(asker, "/audit").await?;
    audit.extend(["replay", "pause"].map(|action| look(format!("/audit?action={action}"))));
    let (by_id, by_number) = events(field).await?;
    let dry = |kind: &str, filter: Value| {
        let body = json!({ "kind": kind, "filter": filter, "dry_run": true });
        Ask::act(format!("{OUTBOX}/jobs"), &body)
    };
    let dry_run = vec![
        dry("dead.replay", json!({ "fingerprint": cause(0) })),
        dry("dead.replay", json!({ "sink": SINK })),
        dry("dead.replay", json!({ "fingerprint": cause(2) })),
        dry("dead.replay", json!({ "topic": TOPIC })),
        dry("dead.discard", json!({ "code": CODE })),
        dry("deferred.retry", json!({ "sink": SINK })),
    ];
    let overview = vec![look(OUTBOX.to_owned())];
    let causes = vec![look(format!("{OUTBOX}/dead/causes"))];
    Ok([overview, dead, deferred, audit, causes, by_id, by_number, dry_run])
}

/// A cause, and how many letters it has.
pub(super) struct Cause {
    pub(super) fingerprint: String,
    pub(super) letters: u64,
}

/// The most frequent first.
pub(super) async fn causes(asker: &Asker) -> anyhow::Result<Vec<Cause>> {
    let answer = asker.look(&format!("{OUTBOX}/dead/causes")).await?;
    let one = |cause: &Value| {
        let fingerprint = cause["fingerprint"].as_str()?.to_owned();
        Some(Cause { fingerprint, letters: cause["count"].as_u64()? })
    };
    let causes: Vec<Cause> = answer["causes"].as_array().into_iter().flatten().filter_map(one).collect();
    anyhow::ensure!(causes.len() >= 3, "there are {} causes: {answer}", causes.len());
    Ok(causes)
}

/// The first page, and some behind it.
async fn pages(asker: &Asker, path: &str) -> anyhow::Result<Vec<Ask>> {
    let mut asks = vec![Ask::look(path)];
    for _ in 0..PAGES {
        let page = asker.json(&asks[asks.len() - 1]).await?;
        let next = page["next"].as_str().with_context(|| format!("{path} has no further page"))?;
        asks.push(Ask::look(format!("{path}?cursor={next}")));
    }
    Ok(asks)
}

/// Events anywhere in the log, one in four with a dead letter: by id, and others by number.
async fn events(field: &ApiField<'_>) -> anyhow::Result<(Vec<Ask>, Vec<Ask>)> {
    let number = |n: u64| {
        let most = if n.is_multiple_of(4) { field.args.rows } else { field.appended };
        (mix(n) % most) as i64 + 1
    };
    let by_number = (0..EVENTS).map(number).map(|seq| Ask::look(format!("{OUTBOX}/events/{seq}"))).collect();
    let numbers: Vec<i64> = (EVENTS..2 * EVENTS).map(number).collect();
    let ground = field.bench.ground;
    let sql =
        format!("select id::text from {}.outbox where seq = any ($1) order by md5(id::text)", ground.schema);
    let rows = ground.client.query(&sql, &[&numbers]).await?;
    let by_id: Vec<Ask> =
        rows.iter().map(|row| Ask::look(format!("{OUTBOX}/events/{}", row.get::<_, String>(0)))).collect();
    anyhow::ensure!(!by_id.is_empty(), "the log has none of the events that are looked for");
    Ok((by_id, by_number))
}
