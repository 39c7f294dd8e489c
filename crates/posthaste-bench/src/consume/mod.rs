//! How fast a consumer takes a topic, against what broker and database can do without it.
//!
//! Each mode is a child process (`plan`) that reads the topic from the beginning, under its own consumer,
//! into tables that are empty. Modes alternate in rounds, and the best of each counts. Those with a statement
//! for each message go first: they read a third of the topic, which then grows. After each of them the
//! effects are counted by SQL: a rate counts only if each is there once, in order.
//!
//! The targets are judged here, because most of them are ratios of modes. A topic that is over in a second
//! says nothing about them: below [`JUDGED_FROM`] messages only the effects are judged.

mod alone;
mod baseline;
mod consumer;
mod effects;
mod hot;
mod latency;
mod others;
mod plan;
mod store;
mod validation;

use crate::child::put_all;
use crate::load::{Load, Spread, TOPIC};
use crate::output::{Usage, remark, scrub};
use crate::report::{ProgressLine, Report, best, rounded};
use crate::yard::Yard;
use crate::yard::kafka::KafkaYard;
use crate::{Bench, Common};
use anyhow::bail;
use clap::{Args, ValueEnum as _};
use effects::Wrong;
pub(super) use plan::run as run_child;
use plan::{Measured, Mode, ModePlan};
use posthaste::consumer::{ConsumerSettings, Order};
use posthaste::sink::Message;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Of the topic: more than cores, as in production.
const PARTITIONS: i32 = 12;
/// Messages that are made at once, and their bytes.
const FILL: u64 = 20_000;
const FILL_BYTES: u64 = 32 << 20;
/// Modes with a statement for each message read so much less.
const SLOW_PART: u64 = 3;
/// Most messages of the loop by hand, which is slow.
const SEED_MESSAGES: u64 = 20_000;
/// Most messages that are posted, one by one.
const HTTP_MESSAGES: u64 = 30_000;
/// What a receiver that answers at once is asked in a second, at least.
const HTTP_PER_S: f64 = 3_000.0;
/// Fewer messages are no measurement.
const JUDGED_FROM: u64 = 100_000;
/// A long topic, and one of large messages, whose consumers' memory is looked at.
const LONG: u64 = 1_000_000;
const RSS_PEAK_MB: Range<f64> = 0.0..80.0;
const LARGE: u64 = 2_000;
const LARGE_BYTES: usize = 1 << 20;

#[derive(Debug, Args)]
#[command(mut_arg("spread", |arg| arg.default_value("zipf")))]
pub(super) struct ConsumeArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// What is measured, and with what it is compared; hot needs batch [default: all, memory, latency]
    #[arg(long, value_name = "MODE,...", value_delimiter = ',', conflicts_with_all = ["latency", "memory"])]
    modes: Vec<Mode>,
    /// Other brokers to read from, beside Kafka, when `set`, memory or latency is measured: nats, redis, amqp
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    also: Vec<String>,
    /// How many messages the topic has; modes with a statement a message read a third of them
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Repeat all modes in turn; the best of each counts
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only the time from an append through relay and Kafka to the effect
    #[arg(long, conflicts_with = "memory")]
    latency: bool,
    /// Only the memory of a consumer with a long topic, and with large messages
    #[arg(long)]
    memory: bool,
    /// For the latency: events a second
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// For the latency: how long
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// For the latency: how long nothing happens before the last event
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    idle_seconds: u64,
    /// A key of the consumer's settings: batch_max=256; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    consumer_set: Vec<String>,
    /// What one of these does in a process of its own
    #[arg(long, value_name = "FILE", hide = true)]
    pub(super) child: Option<PathBuf>,
}

impl ConsumeArgs {
    fn modes(&self) -> &[Mode] {
        match (self.latency || self.memory, self.modes.is_empty()) {
            (true, _) => &[],
            (_, false) => &self.modes,
            _ => Mode::value_variants(),
        }
    }

    /// Whether nothing is left out.
    fn is_whole(&self) -> bool {
        self.modes.is_empty() && !self.latency && !self.memory
    }

    fn is_judged(&self) -> bool {
        self.messages >= JUDGED_FROM
    }
}

/// What came of the modes, round by round.
type Rounds = BTreeMap<String, Vec<Measured>>;

pub(super) async fn run(bench: &Bench<'_>, args: &ConsumeArgs, report: &mut Report) -> anyhow::Result<()> {
    if !bench.common.sink.starts_with("kafka://") {
        bail!(Usage(
            "consume reads from Kafka: --sink kafka://host:port; `./bench consume` starts one".to_owned()
        ));
    }
    let (slow, fast): (Vec<Mode>, Vec<Mode>) =
        args.modes().iter().copied().filter(|mode| mode.is_common()).partition(|mode| mode.is_slow());
    let is_hot = args.modes().contains(&Mode::Hot);
    let others = others::open(&args.also).await?;
    if is_hot && !slow.contains(&Mode::Batch) {
        bail!(Usage("hot goes by the rate of batch: --modes batch,hot".to_owned()));
    }
    effects::make(bench.ground).await?;
    let mut yard = KafkaYard::new(&bench.common.sink, TOPIC, PARTITIONS);
    let (mut rounds, mut wrong, mut filled) = (Rounds::new(), Vec::new(), 0);
    for (modes, messages) in [(slow, args.messages.div_ceil(SLOW_PART)), (fast, args.messages)] {
        if modes.is_empty() {
            continue;
        }
        fill(&bench.load, &mut yard, filled..messages, effects::message).await?;
        filled = messages;
        for round in 1..=args.rounds {
            for &mode in &modes {
                let plan = ModePlan { messages, ..plan(bench, args, mode, round)? };
                let measured = measure(bench, plan, round == 1, &mut wrong).await?;
                rounds.entry(mode.name()).or_default().push(measured);
            }
        }
    }
    if !rounds.is_empty() {
        report.fact("messages", args.messages, "in the topic");
        rates(report, &rounds, args.is_judged());
    }
    if args.memory || args.is_whole() {
        memory(bench, args, (&mut yard, filled), report, &mut wrong).await?;
    }
    if is_hot {
        let batch = rate(&rounds, Mode::Batch);
        let hot = hot::run(bench, args, &mut yard, (batch, args.is_judged()), report);
        wrong.push(Box::pin(hot).await?);
    }
    if args.modes().contains(&Mode::Schema) {
        Box::pin(validation::run(bench, args, &mut yard, report, &mut wrong)).await?;
    }
    if args.latency || args.is_whole() {
        wrong.push(Box::pin(latency::run(bench, args, &mut yard, report)).await?);
    }
    for broker in others {
        let kafka_per_s = rate(&rounds, Mode::Set);
        Box::pin(others::run(bench, args, broker, kafka_per_s, report, &mut wrong)).await?;
    }
    judge_effects(report, &wrong);
    report.detail("partitions", PARTITIONS);
    Ok(yard.remove().await?)
}

/// Lets a child do it, with tables that are empty, and looks at the effects.
async fn measure(
    bench: &Bench<'_>,
    mut plan: ModePlan,
    is_shown: bool,
    wrong: &mut Vec<Wrong>,
) -> anyhow::Result<Measured> {
    let (mode, ground) = (plan.mode, bench.ground);
    if mode == Mode::Seed {
        plan.messages = plan.messages.min(SEED_MESSAGES);
    }
    let mut receiver = None;
    if mode.has_receiver() {
        plan.messages = plan.messages.min(HTTP_MESSAGES);
        let yard = crate::yard::http::open("http", "").await?;
        plan.receiver = yard.sink().get("url").and_then(|url| url.as_str()).map(str::to_owned);
        receiver = Some(yard);
    }
    if is_shown {
        show(&plan)?;
    }
    effects::clear(&ground.client, &ground.schema).await?;
    let measured = plan.measure(&bench.scratch).await?;
    remark(&format!("bench: {}: {:.0} a second", plan.consumer, measured.per_s));
    if let Some(mut receiver) = receiver {
        let requests = receiver.count().await?;
        if requests < plan.messages {
            bail!("{requests} of {} messages were posted", plan.messages);
        }
    }
    if mode.has_effects() {
        let dead = if mode == Mode::Faulty { effects::deaths(plan.messages) } else { 0 };
        wrong.push(effects::audit(&ground.client, &ground.schema, plan.messages, dead).await?);
    }
    Ok(measured)
}

/// The memory of a consumer with a long topic, which goes on where it is filled, and with large messages.
async fn memory(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    (yard, filled): (&mut KafkaYard, u64),
    report: &mut Report,
    wrong: &mut Vec<Wrong>,
) -> anyhow::Result<()> {
    let judged = args.is_judged();
    let (long, large) = if judged { (LONG.max(args.messages), LARGE) } else { (args.messages, 20) };
    fill(&bench.load, yard, filled..long, effects::message).await?;
    let plan = |messages, name: &str| {
        anyhow::Ok(ModePlan { messages, consumer: name.to_owned(), ..plan(bench, args, Mode::Set, 0)? })
    };
    let measured = measure(bench, plan(long, "long")?, true, wrong).await?;
    let words = "resident memory of `set` at its peak, with the long topic";
    judge(report, judged, ("rss_peak_mb", measured.rss_peak_mb, words), RSS_PEAK_MB);
    let load = Load::new(LARGE_BYTES, bench.common.keys, Spread::Zipf);
    fill(&load, yard, 0..large, effects::message).await?;
    let measured = measure(bench, plan(large, "large")?, true, wrong).await?;
    judge(
        report,
        judged,
        ("large_rss_peak_mb", measured.rss_peak_mb, "the same with messages of 1 MiB"),
        0.0..160.0,
    );
    Ok(())
}

/// Messages by the broker's usual client: behind those that are there, or into a topic that is made anew.
async fn fill(
    load: &Load,
    yard: &mut dyn Yard,
    messages: Range<u64>,
    make: fn(&Load, u64, &Arc<str>) -> Message,
) -> anyhow::Result<()> {
    if messages.start == 0 {
        yard.clear(None).await?;
    }
    let mut progress = ProgressLine::start("fill", messages.end - messages.start);
    let source = "bench".into();
    let some = FILL.min(FILL_BYTES / (load.payload(0).len() as u64).max(1)).max(1);
    for from in messages.clone().step_by(some as usize) {
        let some = from..messages.end.min(from + some);
        let made: Vec<_> = some.map(|index| make(load, index, &source)).collect();
        yard.client_alone(&made).await?;
        progress.set(from - messages.start);
    }
    progress.finish();
    Ok(())
}

/// A mode in a round, under a consumer of its own.
fn plan(bench: &Bench<'_>, args: &ConsumeArgs, mode: Mode, round: u32) -> anyhow::Result<ModePlan> {
    let mut settings = ConsumerSettings::default();
    if mode == Mode::Faulty {
        // A hundredth of the default: what is measured is how much is done meanwhile, not how long one waits.
        settings.retry.delays_ms.iter_mut().for_each(|delay| *delay /= 100);
    }
    let mut settings = toml::Table::try_from(settings)?;
    put_all(&mut settings, &args.consumer_set)?;
    let settings: ConsumerSettings = settings.try_into().map_err(|error| Usage(format!("{error}")))?;
    settings.check().map_err(Usage)?;
    Ok(ModePlan {
        mode,
        messages: 0,
        brokers: bench.common.sink.clone(),
        topic: TOPIC.to_owned(),
        partitions: PARTITIONS,
        keys: bench.common.keys,
        database: bench.common.store.clone(),
        schema: bench.common.schema.clone(),
        consumer: format!("{}-{round}", mode.name()),
        order: Order::Key,
        receiver: None,
        settings,
    })
}

/// Prints what a child is told, without passwords.
fn show(plan: &ModePlan) -> anyhow::Result<()> {
    remark(&format!("bench: {}:\n\n{}\n", plan.mode.name(), scrub(plan.text()?.trim_end())));
    Ok(())
}

fn rate(rounds: &Rounds, mode: Mode) -> f64 {
    best(&each(rounds, mode, |measured| measured.per_s))
}

fn each(rounds: &Rounds, mode: Mode, pick: impl Fn(&Measured) -> f64) -> Vec<f64> {
    rounds.get(&mode.name()).into_iter().flatten().map(pick).collect()
}

/// Rates and their ratios. A ratio that misses its target is said, if the topic was long enough to judge.
fn rates(report: &mut Report, rounds: &Rounds, judged: bool) {
    let rate = |mode| rate(rounds, mode);
    let modes = || Mode::value_variants().iter().copied().filter(|mode| mode.is_common());
    for mode in modes() {
        let words = mode.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
        report.figure(&format!("{}_per_s", mode.name()), rate(mode), &words.unwrap_or_default());
        report.detail(&format!("rounds_{}", mode.name()), rounded(&each(rounds, mode, |one| one.per_s)));
    }
    let limit = rate(Mode::Insert).min(rate(Mode::Read));
    let ratios = [
        ("set_ratio_to_limit", rate(Mode::Set) / limit, 0.45, "to the slower one of insert and read"),
        ("batch_ratio_to_seed", rate(Mode::Batch) / rate(Mode::Seed), 4.0, ""),
        ("sql_ratio_to_batch", rate(Mode::Sql) / rate(Mode::Batch), 0.8, ""),
        ("phoenix_ratio_to_set", rate(Mode::Phoenix) / rate(Mode::Set), 0.75, ""),
        ("idle_ratio_to_set", rate(Mode::Idle) / rate(Mode::Set), 3.0, ""),
        ("faulty_ratio_to_batch", rate(Mode::Faulty) / rate(Mode::Batch), 0.6, ""),
        ("idle_ratio_to_read", rate(Mode::Idle) / rate(Mode::Read), 0.0, ""),
    ];
    if rounds.contains_key(&Mode::Http.name()) && judged && rate(Mode::Http) < HTTP_PER_S {
        report.miss(format!("http_per_s is {:.0}, and must be {HTTP_PER_S} at least", rate(Mode::Http)));
    }
    for (name, ratio, least, words) in ratios {
        judge(report, judged, (name, ratio, words), least..f64::MAX);
    }
    for mode in modes().filter(|mode| rounds.contains_key(&mode.name())) {
        let cpu = best(&each(rounds, mode, |one| -one.cpu_us_per_message)).abs();
        report.figure(&format!("{}_cpu_us_per_message", mode.name()), cpu, "of its process");
        let together = each(rounds, mode, |one| one.messages_per_transaction.unwrap_or(f64::NAN));
        if best(&together).is_finite() {
            let name = format!("{}_messages_per_transaction", mode.name());
            report.figure(&name, best(&together), "");
        }
    }
}

/// A figure, and a sentence if it had to be within these bounds and is not.
fn judge(report: &mut Report, judged: bool, (name, value, words): (&str, f64, &str), bounds: Range<f64>) {
    report.figure(name, value, words);
    if !judged {
        return;
    }
    if value < bounds.start {
        report.miss(format!("{name} is {value:.2}, and must be {} at least", bounds.start));
    } else if value > bounds.end {
        report.miss(format!("{name} is {value:.1}, and must be {} at most", bounds.end));
    }
}

fn judge_effects(report: &mut Report, wrong: &[Wrong]) {
    for (at, name) in ["effects_twice", "effects_missing", "out_of_order"].into_iter().enumerate() {
        let count: i64 = wrong.iter().map(|wrong| wrong[at]).sum();
        report.fact(name, count, "over all rounds, counted by SQL");
        if count != 0 {
            report.miss(format!("{name} is {count}, and must be 0"));
        }
    }
}
