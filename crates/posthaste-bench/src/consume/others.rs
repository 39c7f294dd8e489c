//! The brokers beside Kafka: what a consumer takes of a plain log, against its client alone and against Kafka
//! in the same run; what it takes of a queue; its memory; and the way through relay and broker.
//!
//! A plain log keeps its messages, so all rounds read the same ones. A queue of RabbitMQ is empty after one
//! and is filled again, which takes longer than reading it: there are fewer messages in it.

use super::plan::{Measured, Mode, ModePlan};
use super::{ConsumeArgs, LONG, RSS_PEAK_MB, Wrong, effects, fill, judge, latency, measure};
use crate::Bench;
use crate::load::TOPIC;
use crate::output::Usage;
use crate::report::{Report, best, rounded};
use crate::yard::{Yard, nats, rabbitmq, yard};
use anyhow::{Context, bail};
use posthaste::consumer::Order;
use posthaste_brokers::kind_of;

/// A plain log's part of Kafka's rate, or of its client's alone, whichever is lower.
const LEAST_RATIO: f64 = 0.6;
/// What a round of RabbitMQ has at most, and what its memory is looked at with. A million would take more
/// than a minute to fill in.
const RABBITMQ: u64 = 50_000;
const RABBITMQ_LONG: u64 = 200_000;

/// One of them, with the destination that belongs to the measurement.
pub(super) struct OtherBroker {
    name: &'static str,
    url: String,
    /// As a source names the destination.
    topic: &'static str,
    yard: Box<dyn Yard>,
}

impl OtherBroker {
    fn is_log(&self) -> bool {
        self.name != "rabbitmq"
    }

    fn plan(
        &self,
        bench: &Bench<'_>,
        args: &ConsumeArgs,
        mode: Mode,
        name: &str,
    ) -> anyhow::Result<ModePlan> {
        Ok(ModePlan {
            brokers: self.url.clone(),
            topic: self.topic.to_owned(),
            partitions: 1,
            consumer: format!("{}-{name}", self.name),
            ..super::plan(bench, args, mode, 0)?
        })
    }
}

/// Connects to them before anything is measured: one that is not there is told at once.
pub(super) async fn open(urls: &[String]) -> anyhow::Result<Vec<OtherBroker>> {
    let mut brokers = Vec::new();
    for url in urls {
        brokers.push(connect(url).await?);
    }
    Ok(brokers)
}

async fn connect(url: &str) -> anyhow::Result<OtherBroker> {
    let (name, topic, yard) = match kind_of(url) {
        Some("nats") => ("nats", nats::STREAM, yard(url, TOPIC).await?),
        Some("redis") => ("redis", TOPIC, yard(url, TOPIC).await?),
        Some("rabbitmq") => ("rabbitmq", TOPIC, Some(rabbitmq::open_ordered(url, TOPIC).await?)),
        _ => bail!(Usage(format!("--also {url}: must be nats://, redis:// or amqp://"))),
    };
    let yard = yard.with_context(|| format!("--also {url}: nobody reads it here"))?;
    Ok(OtherBroker { name, url: url.to_owned(), topic, yard })
}

/// Everything about one of them. `kafka_per_s` is the rate of `set` in this run, if it was measured.
pub(super) async fn run(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    broker: OtherBroker,
    kafka_per_s: f64,
    report: &mut Report,
    wrong: &mut Vec<Wrong>,
) -> anyhow::Result<()> {
    // Kafka took minutes, and a connection that nobody used meanwhile may be gone.
    let (mut broker, mut filled) = (connect(&broker.url).await?, 0);
    if args.modes().contains(&Mode::Set) && broker.is_log() {
        filled = args.messages;
        fill(&bench.load, &mut *broker.yard, 0..filled, effects::message).await?;
        log(bench, args, &broker, kafka_per_s, report, wrong).await?;
    } else if args.modes().contains(&Mode::Set) {
        queue(bench, args, &mut broker, report, wrong).await?;
    }
    if args.memory || args.is_whole() {
        memory(bench, args, (&mut broker, filled), report, wrong).await?;
    }
    if args.latency || args.is_whole() {
        let plan = broker.plan(bench, args, Mode::Tell, "tell")?;
        wrong.push(latency::other(bench, args, (broker.name, &mut *broker.yard), plan, report).await?);
    }
    Ok(broker.yard.remove().await?)
}

/// A plain log: by its client alone, in order, and as a queue.
async fn log(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    broker: &OtherBroker,
    kafka_per_s: f64,
    report: &mut Report,
    wrong: &mut Vec<Wrong>,
) -> anyhow::Result<()> {
    let name = broker.name;
    let [mut read, mut set, mut queue] = [const { Vec::new() }; 3];
    for round in 1..=args.rounds {
        let kinds = [
            ("read", Mode::Read, Order::Key, &mut read),
            ("set", Mode::Set, Order::Key, &mut set),
            ("queue", Mode::Set, Order::None, &mut queue),
        ];
        for (kind, mode, order, measured) in kinds {
            let plan = broker.plan(bench, args, mode, &format!("{kind}-{round}"))?;
            let plan = ModePlan { messages: args.messages, order, ..plan };
            let mut found = Vec::new();
            measured.push(measure(bench, plan, round == 1, &mut found).await?);
            if order == Order::None {
                found.iter_mut().for_each(|[_, _, out_of_order]| *out_of_order = 0);
            }
            wrong.append(&mut found);
        }
    }
    rates(report, &format!("{name}_read"), &read, "the broker's client alone, read to the end");
    let set_per_s = rates(report, &format!("{name}_set"), &set, "as set, from this broker");
    rates(report, &format!("{name}_queue"), &queue, "the same with order = \"none\"");
    let read_per_s = best(&read.iter().map(|one| one.per_s).collect::<Vec<_>>());
    // What was not measured is not the lower one.
    let ratio = set_per_s / kafka_per_s.min(read_per_s);
    let words = "to Kafka's set or its client alone, whichever is slower";
    judge(
        report,
        args.is_judged(),
        (&format!("{name}_set_ratio_to_limit"), ratio, words),
        LEAST_RATIO..f64::MAX,
    );
    Ok(())
}

/// A queue, which is filled for each round.
async fn queue(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    broker: &mut OtherBroker,
    report: &mut Report,
    wrong: &mut Vec<Wrong>,
) -> anyhow::Result<()> {
    let (messages, mut set) = (args.messages.min(RABBITMQ), Vec::new());
    for round in 1..=args.rounds {
        fill(&bench.load, &mut *broker.yard, 0..messages, effects::message).await?;
        let plan = broker.plan(bench, args, Mode::Set, &format!("set-{round}"))?;
        set.push(measure(bench, ModePlan { messages, ..plan }, round == 1, wrong).await?);
    }
    rates(report, &format!("{}_set", broker.name), &set, "as set, from this broker");
    report.detail(&format!("{}_messages", broker.name), messages);
    Ok(())
}

/// Rate and CPU time of a kind.
fn rates(report: &mut Report, name: &str, measured: &[Measured], words: &str) -> f64 {
    let per_s: Vec<f64> = measured.iter().map(|one| one.per_s).collect();
    report.figure(&format!("{name}_per_s"), best(&per_s), words);
    report.detail(&format!("rounds_{name}"), rounded(&per_s));
    let cpu = measured.iter().map(|one| one.cpu_us_per_message).fold(f64::NAN, f64::min);
    report.figure(&format!("{name}_cpu_us_per_message"), cpu, "of its process");
    best(&per_s)
}

/// The memory of a consumer with many messages, behind those that are there.
async fn memory(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    (broker, filled): (&mut OtherBroker, u64),
    report: &mut Report,
    wrong: &mut Vec<Wrong>,
) -> anyhow::Result<()> {
    let most = if broker.is_log() { LONG.max(args.messages) } else { RABBITMQ_LONG };
    let messages = if args.is_judged() { most } else { args.messages };
    fill(&bench.load, &mut *broker.yard, filled..messages, effects::message).await?;
    let plan = ModePlan { messages, ..broker.plan(bench, args, Mode::Set, "long")? };
    let measured = measure(bench, plan, true, wrong).await?;
    let words = format!("resident memory of `set` at its peak, with {messages} messages");
    let name = format!("{}_rss_peak_mb", broker.name);
    judge(report, args.is_judged(), (&name, measured.rss_peak_mb, &words), RSS_PEAK_MB);
    Ok(())
}
