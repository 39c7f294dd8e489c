//! From an event's commit to its acknowledgement, at a steady rate.
//!
//! An open loop: event n has its intended time, n divided by the rate, and goes out at that time or as soon
//! after as a connection is free; nobody waits for an acknowledgement before the next one (F90). The time is
//! taken from the return of COMMIT to the arrival of the line in our pipe, which the `stdout` sink writes
//! before it acknowledges, or of the message from the stream. Times from the intended moment stand beside
//! it: they include what the database makes an application wait.
//!
//! Afterwards nothing is appended for a while, statements are counted, and one more event shows how long a
//! relay takes that has gone to sleep.

mod times;

pub(super) use times::EventTimes;

use super::child::{Relay, Setup, show};
use super::load::TOPIC;
use super::pipe;
use super::report::{ProgressLine, Report};
use super::sample::{Counter, ProcessUsage, audit, covered, quantile, sorted};
use super::{Bench, Common};
use crate::output::{remark, seconds};
use crate::yard::yard;
use anyhow::{Context as _, bail};
use clap::Args;
use futures_util::future::try_join_all;
use posthaste::task::{Task, spawn};
use posthaste_postgres::Outbox;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::Client;
use uuid::Uuid;

/// The first second warms caches and connections and is not counted.
const WARM: Duration = Duration::from_secs(1);
/// How long the last events may take to arrive.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long the system is left alone before it counts as idle.
const CALM: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct LatencyArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Events a second
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Connections that append
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    appenders: u64,
    /// How long nothing happens before the last event
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    idle_seconds: u64,
    /// Keep a transaction with an event open meanwhile
    #[arg(long)]
    hold_transaction: bool,
}

pub(super) async fn run(bench: &Bench<'_>, args: &LatencyArgs, report: &mut Report) -> anyhow::Result<()> {
    let holder = if args.hold_transaction { Some(bench.ground.hold().await?) } else { None };
    let warm = args.rate * WARM.as_secs();
    let times = Arc::new(EventTimes::new(&bench.load, args.rate, warm + args.rate * args.seconds));
    let mut watched = WatchedRelay::start(bench, &times).await?;
    let appenders: Vec<Client> = try_join_all((0..args.appenders).map(|_| bench.ground.connect())).await?;
    // Connected before the idle time, because connecting takes longer than an append.
    let mut last = bench.ground.connect().await?;

    let cpu_percent = watched.steady(&times, appenders, args).await?;
    let idle = watched.idle(bench, args).await?;
    let first = watched.first_after_idle(&mut last, bench, &times).await?;
    drop(holder);
    watched.relay.stop().await?;

    figures(report, &times, warm, args);
    missing(report, bench, &times).await?;
    report.figure("relay_cpu_percent", cpu_percent, "of one core, during the steady part");
    report.figure("idle_statements_per_s", idle.per_s, idle.how);
    report.figure("first_after_idle_ms", first, "one event after the idle time");
    report.fact("idle_seconds", args.idle_seconds, "");
    report.detail("idle_statements", idle.statements);
    report.detail("rate", args.rate);
    report.detail("seconds", args.seconds);
    report.detail("appenders", args.appenders);
    report.detail("hold_transaction", args.hold_transaction);
    report.detail("observed_by", watched.observed_by);
    Ok(())
}

fn figures(report: &mut Report, times: &EventTimes, warm: u64, args: &LatencyArgs) {
    let all = warm..times.steady;
    let from_commit = sorted(times.latencies(all.clone(), EventTimes::committed));
    let from_intended = sorted(times.latencies(all.clone(), EventTimes::intended));
    let waits = sorted(times.spans(all, EventTimes::intended, EventTimes::committed));
    report.figure("p50_ms", quantile(&from_commit, 0.5), "commit returned → acknowledged");
    report.figure("p99_ms", quantile(&from_commit, 0.99), "");
    report.figure("max_ms", quantile(&from_commit, 1.0), "");
    report.figure(
        "p50_intended_ms",
        quantile(&from_intended, 0.5),
        "intended time → acknowledged, the append included",
    );
    report.figure("p99_intended_ms", quantile(&from_intended, 0.99), "");
    report.figure(
        "append_p99_ms",
        quantile(&waits, 0.99),
        "intended time → commit returned: the database's part",
    );
    // A long run shows whether anything grows: its first minute against its last.
    let edge = args.rate * (args.seconds / 2).clamp(1, 60);
    let p99 = |range| quantile(&sorted(times.latencies(range, EventTimes::committed)), 0.99);
    let (head, tail) = (p99(warm..warm + edge), p99(times.steady - edge..times.steady));
    report.figure("p99_first_ms", head, "of the first minute, or half");
    report.figure("p99_last_ms", tail, "of the last");
    report.figure("ratio_p99_last_to_first", tail / head, "whether anything grows");
    report.fact("sent", times.steady - warm, "");
    report.fact("received", from_commit.len(), "distinct events among them that arrived");
    report.fact("duplicates", times.duplicates(), "");
}

/// Names what did not arrive. A figure without these events would look better than it is.
async fn missing(report: &mut Report, bench: &Bench<'_>, times: &EventTimes) -> anyhow::Result<()> {
    let ids: Vec<Uuid> =
        (0..=times.steady).filter(|n| times.arrived(*n).is_none()).map(|n| bench.load.id(n)).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let settled = match audit(&bench.ground.client, &bench.ground.schema, "bench").await {
        Ok(_) => "although all of them are settled".to_owned(),
        Err(error) => error.to_string(),
    };
    remark(&format!("bench: WARNING: {} events did not arrive, {settled}", ids.len()));
    report.detail("missing", json!(ids.iter().take(20).collect::<Vec<_>>()));
    report.detail("missing_count", ids.len());
    Ok(())
}

/// What was asked of the server in the idle time.
pub(super) struct Idle {
    pub(super) per_s: f64,
    pub(super) how: &'static str,
    /// How often each.
    pub(super) statements: Value,
}

impl Idle {
    /// Lets so many seconds go by.
    pub(super) async fn count(bench: &Bench<'_>, counter: &Counter, idle: u64) -> anyhow::Result<Self> {
        remark(&format!("bench: idle for {}", seconds(idle as f64)));
        tokio::time::sleep(CALM).await;
        let (before, since) = (counter.read(bench.ground).await?, Instant::now());
        tokio::time::sleep(Duration::from_secs(idle)).await;
        let (after, took) = (counter.read(bench.ground).await?, since.elapsed());
        let more = |(text, calls): (&String, &i64)| {
            let more = calls - before.get(text).unwrap_or(&0);
            (more > 0).then(|| (text.clone(), more))
        };
        let statements: BTreeMap<String, i64> = after.iter().filter_map(more).collect();
        let per_s = statements.values().sum::<i64>() as f64 / took.as_secs_f64();
        Ok(Self { per_s, how: counter.words(), statements: json!(statements) })
    }
}

/// A relay, and whoever sees its acknowledgements.
struct WatchedRelay {
    relay: Relay,
    observed_by: &'static str,
    _stream: Option<Task<()>>,
}

impl WatchedRelay {
    /// Starts it and waits until it has its lane.
    async fn start(bench: &Bench<'_>, times: &Arc<EventTimes>) -> anyhow::Result<Self> {
        // The null sink acknowledges where nobody can see it: a pipe stands in for it.
        let target = if bench.common.sink == "null" { "stdout" } else { bench.common.sink.as_str() };
        let yard = yard(target, TOPIC).await?;
        let options = yard.as_ref().map(|yard| yard.sink());
        let setup = Setup { sink: "bench", target, options: options.as_ref(), order: bench.order() };
        let path = bench.write(setup).await?;
        show(&setup.text(bench.common)?);
        let arrived = |times: &Arc<EventTimes>| {
            let times = Arc::clone(times);
            move |id, moment| times.arrive(id, moment)
        };
        let mut stream = None;
        if let Some(mut yard) = yard {
            yard.clear(None).await?;
            stream = Some(yard.follow(Box::new(arrived(times))).await?);
        } else if target != "stdout" {
            bail!("latency cannot be seen at this sink: use null, stdout or a broker's URL");
        }
        let (mut relay, stdout) = Relay::start(&bench.product, &path, target == "stdout")?;
        if let Some(stdout) = stdout {
            // The thread ends with the relay.
            pipe::read(stdout, arrived(times))?;
        }
        wait_for_lane(bench, &mut relay).await?;
        let observed_by =
            if stream.is_some() { "a consumer at the broker" } else { "lines of the stdout sink in a pipe" };
        Ok(Self { relay, observed_by, _stream: stream })
    }

    /// Appends at the rate. Answers with the relay's CPU time in percent of a core.
    async fn steady(
        &mut self,
        times: &Arc<EventTimes>,
        appenders: Vec<Client>,
        args: &LatencyArgs,
    ) -> anyhow::Result<f64> {
        let mut progress = ProgressLine::start("steady", times.steady);
        times.begin();
        let next = Arc::new(AtomicU64::new(0));
        let outbox = Outbox::new(&args.common.schema);
        let append = |client| append(client, outbox.clone(), Arc::clone(times), Arc::clone(&next));
        let tasks: Vec<_> = appenders.into_iter().map(|client| spawn("appender", append(client))).collect();
        let mut before = None;
        while next.load(Ordering::Relaxed) < times.steady {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.relay.check()?;
            let sent = next.load(Ordering::Relaxed).min(times.steady);
            progress.set(sent);
            if before.is_none() && sent >= args.rate * WARM.as_secs() {
                before = Some((ProcessUsage::of(self.relay.pid())?.cpu_s, Instant::now()));
            }
            if tasks.iter().any(Task::is_finished) && sent < times.steady {
                break;
            }
        }
        let (cpu_s, since) = before.context("the run was too short")?;
        let percent =
            (ProcessUsage::of(self.relay.pid())?.cpu_s - cpu_s) / since.elapsed().as_secs_f64() * 100.0;
        for task in tasks {
            task.await??;
        }
        progress.finish();
        wait_until(|| times.received() >= times.steady).await;
        Ok(percent)
    }

    /// What the relay asks of the server while nothing happens.
    async fn idle(&mut self, bench: &Bench<'_>, args: &LatencyArgs) -> anyhow::Result<Idle> {
        let idle = Idle::count(bench, &Counter::find(bench.ground).await, args.idle_seconds).await?;
        self.relay.check()?;
        Ok(idle)
    }

    /// One event into the silence, in milliseconds.
    async fn first_after_idle(
        &mut self,
        client: &mut Client,
        bench: &Bench<'_>,
        times: &EventTimes,
    ) -> anyhow::Result<f64> {
        append_one(client, &Outbox::new(&bench.common.schema), times, times.steady).await?;
        wait_until(|| times.arrived(times.steady).is_some()).await;
        self.relay.check()?;
        Ok(times
            .latencies(times.steady..times.steady + 1, EventTimes::committed)
            .first()
            .copied()
            .unwrap_or(f64::NAN))
    }
}

pub(super) async fn wait_for_lane(bench: &Bench<'_>, relay: &mut Relay) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !covered(&bench.ground.client, &bench.ground.schema, "bench").await?.taken {
        relay.check()?;
        if Instant::now() > deadline {
            bail!("the relay took no lane:\n{}", relay.last_words());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits for arrivals, but not for ever: what did not come is missing from the figures.
pub(super) async fn wait_until(done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Takes the next event, waits for its time, appends it, and again.
pub(super) async fn append(
    mut client: Client,
    outbox: Outbox,
    times: Arc<EventTimes>,
    next: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= times.steady {
            return Ok(());
        }
        tokio::time::sleep_until(times.moment(index).into()).await;
        append_one(&mut client, &outbox, &times, index).await?;
    }
}

pub(super) async fn append_one(
    client: &mut Client,
    outbox: &Outbox,
    times: &EventTimes,
    index: u64,
) -> anyhow::Result<()> {
    let event = times.event(index);
    let mut tx = client.transaction().await?;
    outbox.append(&mut tx, &event).await?;
    tx.commit().await?;
    times.commit(index);
    Ok(())
}
