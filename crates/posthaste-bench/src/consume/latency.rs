//! From an append to the effect in the next service, at a steady rate: outbox, relay, Kafka, consumer.
//!
//! The same open loop as for the relay alone. The consumer tells each message when its transaction has
//! committed, and the time counts from the moment when the event should have been appended (F90). Then
//! nothing happens for a while, the consumer's statements are counted, and one more event goes the whole way.

use super::plan::{Mode, ModePlan};
use super::{ConsumeArgs, effects, judge};
use crate::Bench;
use crate::child::{Relay, Setup};
use crate::latency::{EventTimes, Idle, append, append_one, wait_for_lane, wait_until};
use crate::pipe;
use crate::report::{ProgressLine, Report};
use crate::sample::{Counter, quantile, sorted};
use crate::yard::Yard as _;
use crate::yard::kafka::KafkaYard;
use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use posthaste::task::spawn;
use posthaste_postgres::Outbox;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Connections that append.
const APPENDERS: usize = 8;
/// A shorter time is no measurement.
const JUDGED_FROM_SECONDS: u64 = 10;

pub(super) async fn run(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    yard: &mut KafkaYard,
    report: &mut Report,
) -> anyhow::Result<effects::Wrong> {
    yard.clear(None).await?;
    let ground = bench.ground;
    effects::clear(&ground.client, &ground.schema).await?;
    // The first second warms caches and connections and is not counted.
    let warm = args.rate;
    let times = Arc::new(EventTimes::new(&bench.load, args.rate, warm + args.rate * args.seconds));
    let mut plan = ModePlan { messages: u64::MAX >> 1, ..super::plan(bench, args, Mode::Tell, 0)? };
    super::show(&plan)?;
    let counter = Counter::find(ground).await;
    let is_alone = counter.is_on_demand(ground).await?;
    if is_alone {
        let mark = if plan.database.contains('?') { '&' } else { '?' };
        plan.database = format!("{}{mark}options=-c%20pg_stat_statements.track%3Dtop", plan.database);
    }
    let mut child = plan.command(&bench.scratch)?.stdout(Stdio::piped()).spawn()?;
    let seen = Arc::clone(&times);
    let stdout = child.stdout.take().context("the consumer has no output")?;
    pipe::read(stdout, move |id, moment| seen.arrive(id, moment))?;
    let options = yard.sink();
    let sink =
        Setup { sink: "bench", target: &bench.common.sink, options: Some(&options), order: bench.order() };
    let (mut relay, _) = Relay::start(&bench.product, &bench.write(sink).await?, false)?;
    wait_for_lane(bench, &mut relay).await?;

    let outbox = Outbox::new(&bench.common.schema);
    let mut appenders = try_join_all((0..APPENDERS).map(|_| ground.connect())).await?;
    // One event shows that everybody is there.
    append_one(&mut appenders[0], &outbox, &times, 0).await?;
    wait_until(|| times.received() == 1).await;
    ensure!(times.received() == 1, "the consumer did not get the first event:\n{}", relay.last_words());
    let progress = ProgressLine::start("steady", times.steady);
    times.begin();
    let next = Arc::new(AtomicU64::new(1));
    let append =
        |client| spawn("appender", append(client, outbox.clone(), Arc::clone(&times), Arc::clone(&next)));
    for appender in appenders.into_iter().map(append).collect::<Vec<_>>() {
        appender.await??;
    }
    wait_until(|| times.received() == times.steady).await;
    progress.finish();
    let mut last = ground.connect().await?;
    let idle = Idle::count(bench, &counter, args.idle_seconds).await?;
    append_one(&mut last, &outbox, &times, times.steady).await?;
    wait_until(|| times.received() > times.steady).await;
    relay.stop().await?;
    child.kill().await?;

    let all = sorted(times.latencies(warm..times.steady, EventTimes::intended));
    let words = "intended time of the append → effect committed";
    let judged = args.seconds >= JUDGED_FROM_SECONDS;
    judge(report, judged, ("p50_ms", quantile(&all, 0.5), words), 0.0..50.0);
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
    let [twice, missing, _] = effects::audit(&ground.client, &ground.schema, times.steady + 1, 0).await?;
    // Appenders overtake each other, so an event's number is not its place in its key.
    Ok([twice, missing, 0])
}
