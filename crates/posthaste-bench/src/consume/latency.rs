//! From an append to the effect in the next service, at a steady rate: outbox, relay, broker, consumer.
//!
//! The same open loop as for the relay alone. The consumer tells each message when its transaction has
//! committed, and the time counts from the moment when the event should have been appended (F90). Then
//! nothing happens for a while, the consumer's statements are counted, and one more event goes the whole way.

use super::plan::{Mode, ModePlan};
use super::{ConsumeArgs, effects, judge};
use crate::Bench;
use crate::child::{Relay, Setup};
use crate::latency::{EventTimes, Idle, append, append_one, wait_for_lane, wait_until};
use crate::load::Load;
use crate::pipe;
use crate::report::{ProgressLine, Report};
use crate::sample::{Counter, quantile, sorted};
use crate::yard::Yard;
use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use posthaste::task::spawn;
use posthaste_postgres::Outbox;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::process::Child;

/// Connections that append.
const APPENDERS: usize = 8;
/// A shorter time is no measurement.
const JUDGED_FROM_SECONDS: u64 = 10;
/// Brokers beside Kafka are measured for so long at most.
const OTHERS_SECONDS: u64 = 10;
const WORDS: &str = "intended time of the append → effect committed";

/// Through Kafka, with the idle time behind it.
pub(super) async fn run(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    yard: &mut dyn Yard,
    report: &mut Report,
) -> anyhow::Result<effects::Wrong> {
    let mut plan = super::plan(bench, args, Mode::Tell, 0)?;
    super::show(&plan)?;
    let counter = Counter::find(bench.ground).await;
    let is_alone = counter.is_on_demand(bench.ground).await?;
    if is_alone {
        let mark = if plan.database.contains('?') { '&' } else { '?' };
        plan.database = format!("{}{mark}options=-c%20pg_stat_statements.track%3Dtop", plan.database);
    }
    let times = times(&bench.load, args.rate, args.seconds);
    let mut way = Way::start(bench, &times, yard, plan).await?;
    way.steady(bench).await?;
    let mut last = bench.ground.connect().await?;
    let idle = Idle::count(bench, &counter, args.idle_seconds).await?;
    append_one(&mut last, &way.outbox, &times, times.steady).await?;
    wait_until(|| times.received() > times.steady).await;
    way.stop().await?;

    let all = sorted(times.latencies(args.rate..times.steady, EventTimes::intended));
    let judged = args.seconds >= JUDGED_FROM_SECONDS;
    judge(report, judged, ("p50_ms", quantile(&all, 0.5), WORDS), 0.0..50.0);
    judge(report, judged, ("p99_ms", quantile(&all, 0.99), ""), 0.0..200.0);
    report.figure("max_ms", quantile(&all, 1.0), "");
    let first = times.latencies(times.steady..times.steady + 1, EventTimes::committed);
    let words = "one event after the idle time: commit of the append → effect committed";
    report.figure("first_after_idle_ms", first.first().copied().unwrap_or(f64::NAN), words);
    let (judged, whose) = if is_alone { (judged, idle.how) } else { (false, "the relay's with them") };
    judge(report, judged, ("idle_statements_per_s", idle.per_s, whose), 0.0..4.0);
    report.detail("idle_statements", idle.statements);
    report.detail("latency_rate", args.rate);
    report.detail("latency_seconds", args.seconds);
    audit(bench, times.steady + 1).await
}

/// Through another broker.
pub(super) async fn other(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    (name, yard): (&str, &mut dyn Yard),
    plan: ModePlan,
    report: &mut Report,
) -> anyhow::Result<effects::Wrong> {
    // The outbox knows the ids of the events before.
    let load = Load::new(bench.common.payload_bytes, bench.common.keys, bench.common.spread);
    let seconds = args.seconds.min(OTHERS_SECONDS);
    let times = times(&Arc::new(load), args.rate, seconds);
    super::show(&plan)?;
    let mut way = Way::start(bench, &times, yard, plan).await?;
    way.steady(bench).await?;
    way.stop().await?;
    let all = sorted(times.latencies(args.rate..times.steady, EventTimes::intended));
    report.figure(&format!("{name}_p50_ms"), quantile(&all, 0.5), WORDS);
    report.figure(&format!("{name}_p99_ms"), quantile(&all, 0.99), "");
    report.detail(&format!("{name}_latency_seconds"), seconds);
    audit(bench, times.steady).await
}

/// The first second warms caches and connections and is not counted.
fn times(load: &Arc<Load>, rate: u64, seconds: u64) -> Arc<EventTimes> {
    Arc::new(EventTimes::new(load, rate, rate + rate * seconds))
}

/// Appenders overtake each other, so an event's number is not its place in its key.
async fn audit(bench: &Bench<'_>, events: u64) -> anyhow::Result<effects::Wrong> {
    let [twice, missing, _] = effects::audit(&bench.ground.client, &bench.ground.schema, events, 0).await?;
    Ok([twice, missing, 0])
}

/// A relay, and a consumer that tells what it has done.
struct Way<'a> {
    times: &'a Arc<EventTimes>,
    outbox: Outbox,
    relay: Relay,
    consumer: Child,
}

impl<'a> Way<'a> {
    async fn start(
        bench: &Bench<'_>,
        times: &'a Arc<EventTimes>,
        yard: &mut dyn Yard,
        plan: ModePlan,
    ) -> anyhow::Result<Self> {
        yard.clear(None).await?;
        effects::clear(&bench.ground.client, &bench.ground.schema).await?;
        let plan = ModePlan { messages: u64::MAX >> 1, ..plan };
        let mut consumer = plan.command(&bench.scratch)?.stdout(Stdio::piped()).spawn()?;
        let seen = Arc::clone(times);
        let stdout = consumer.stdout.take().context("the consumer has no output")?;
        pipe::read(stdout, move |id, moment| seen.arrive(id, moment))?;
        let options = yard.sink();
        let sink =
            Setup { sink: "bench", target: &plan.brokers, options: Some(&options), order: bench.order() };
        let (mut relay, _) = Relay::start(&bench.product, &bench.write(sink).await?, false)?;
        wait_for_lane(bench, &mut relay).await?;
        Ok(Self { times, outbox: Outbox::new(&bench.common.schema), relay, consumer })
    }

    /// Appends at the rate, until everything is there.
    async fn steady(&mut self, bench: &Bench<'_>) -> anyhow::Result<()> {
        let times = self.times;
        let mut appenders = try_join_all((0..APPENDERS).map(|_| bench.ground.connect())).await?;
        // One event shows that everybody is there.
        append_one(&mut appenders[0], &self.outbox, times, 0).await?;
        wait_until(|| times.received() == 1).await;
        let last_words = || self.relay.last_words();
        ensure!(times.received() == 1, "the consumer did not get the first event:\n{}", last_words());
        let progress = ProgressLine::start("steady", times.steady);
        times.begin();
        let next = Arc::new(AtomicU64::new(1));
        let append = |client| {
            spawn("appender", append(client, self.outbox.clone(), Arc::clone(times), Arc::clone(&next)))
        };
        for appender in appenders.into_iter().map(append).collect::<Vec<_>>() {
            appender.await??;
        }
        wait_until(|| times.received() == times.steady).await;
        progress.finish();
        Ok(())
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.relay.stop().await?;
        Ok(self.consumer.kill().await?)
    }
}
