//! What a topology costs: its plan against the bare requests that it needs, and its apply against a loop of
//! bare requests.
//!
//! What is measured is the command itself, from its start to its end. The baseline opens a client of its own,
//! too. Topics and rights have names of this run, and are taken away in the end.

mod bare;

use crate::child::{Product, Scratch};
use crate::output::{Usage, remark, seconds, thousands};
use crate::report::{Report, rounded};
use anyhow::ensure;
use bare::BareCluster;
use clap::Args;
use std::fmt::Write as _;
use std::time::Instant;

/// Rights of one principal: to read topics, and one group.
const OF_A_PRINCIPAL: usize = 20;
/// Fewer topics are no measurement.
const JUDGED_FROM: usize = 300;
/// How often everything is made from nothing.
const APPLIES: usize = 2;

#[derive(Debug, Args)]
pub(super) struct TopologyArgs {
    /// The cluster to measure, with an authorizer: kafka://host:port,host:port
    #[arg(long, value_name = "URL")]
    brokers: String,
    /// How many topics, of one partition
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    topics: u32,
    /// How many rights; a multiple of twenty
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(20..))]
    acls: u32,
    /// Replicas of a topic
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// How often the plan is made; the best counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Topics and rights of one measurement.
struct Names {
    topics: Vec<String>,
    /// Principals, each with what it may read.
    principals: Vec<(String, Vec<String>)>,
    replicas: u32,
}

impl Names {
    fn new(args: &TopologyArgs, run: &str) -> Self {
        let topics: Vec<String> = (0..args.topics).map(|n| format!("bench.{run}.topic-{n}")).collect();
        let principal = |n: usize| {
            let reads = (1..OF_A_PRINCIPAL).map(|read| format!("bench.{run}.read-{n}-{read}"));
            (format!("bench.{run}.principal-{n}"), reads.collect())
        };
        let principals = (0..args.acls as usize / OF_A_PRINCIPAL).map(principal).collect();
        Self { topics, principals, replicas: args.replicas }
    }

    fn acls(&self) -> usize {
        self.principals.len() * OF_A_PRINCIPAL
    }

    /// As a topology.
    fn file(&self, servers: &str) -> String {
        let urls: Vec<&str> = servers.split(',').collect();
        let mut text = format!(
            "topic_defaults = {{ partitions = 1, replicas = {}, retention = \"7d\" }}\n\
             [brokers.kafka]\ntype = \"kafka\"\nurl = {urls:?}\n",
            self.replicas
        );
        // Writing to a string does not fail.
        for topic in &self.topics {
            let _ = writeln!(text, "[[topic]]\nname = {topic:?}");
        }
        for (name, reads) in &self.principals {
            let _ = writeln!(text, "[[principal]]\nname = {name:?}\nread = {reads:?}\ngroups = [{name:?}]");
        }
        text
    }
}

pub(super) async fn run(args: &TopologyArgs, product: &Product, scratch: &Scratch) -> anyhow::Result<Report> {
    let Some(servers) = args.brokers.strip_prefix("kafka://") else {
        return Err(
            Usage("--brokers wants kafka://host:port; `./bench topology` starts three".to_owned()).into()
        );
    };
    let cluster = BareCluster::new(servers);
    let mut report = Report::default();
    let run = uuid::Uuid::now_v7().simple().to_string().split_off(24);
    let (mut bare, mut ours, mut file) = (Vec::new(), Vec::new(), None);
    let mut names = Names::new(args, &run);
    for round in 0..APPLIES {
        names = Names::new(args, &format!("{run}.bare-{round}"));
        bare.push(timed(cluster.make(&names)).await?.1);
        cluster.remove(&names).await?;
        names = Names::new(args, &format!("{run}.ours-{round}"));
        let path = scratch.write(&format!("topology-{round}"), &names.file(servers))?;
        let words = ["topology", "apply", "--yes", "--file", path.to_str().unwrap_or_default()];
        let ((said, _), took) = timed(product.watched(&words)).await?;
        let made = format!("{} changes were made", thousands((names.topics.len() + names.acls()) as u64));
        ensure!(said.contains(&made), "not everything was made: {:?}", said.lines().last());
        ours.push(took);
        remark(&format!("bench: from nothing: {} bare, {} by apply", seconds(bare[round]), seconds(took)));
        file = Some(path);
        if round + 1 < APPLIES {
            cluster.remove(&names).await?;
        }
    }
    let path = file.unwrap_or_default();
    let words = ["topology", "plan", "--file", path.to_str().unwrap_or_default()];
    let (mut looks, mut plans, mut peak) = (Vec::new(), Vec::new(), 0_f64);
    for _ in 0..args.rounds {
        looks.push(timed(cluster.look(&names)).await?.1);
        let ((said, used), took) = timed(product.watched(&words)).await?;
        ensure!(said.contains("no difference"), "the plan is not empty: {:?}", said.lines().last());
        plans.push(took);
        peak = peak.max(used);
    }
    cluster.remove(&names).await?;
    figures(&mut report, &names, [&bare, &ours, &looks, &plans], peak);
    Ok(report)
}

fn figures(report: &mut Report, names: &Names, times: [&[f64]; 4], rss_peak_mb: f64) {
    let [bare, ours, looks, plans] = times.map(|times| times.iter().copied().fold(f64::NAN, f64::min));
    report.fact("topics", names.topics.len() as u64, "of one partition");
    report.fact("acls", names.acls() as u64, "");
    report.figure("look_ms", looks * 1e3, "the bare requests: metadata, settings, rights");
    report.figure("plan_ms", plans * 1e3, "`topology plan` without a difference, from start to end");
    report.figure("bare_apply_ms", bare * 1e3, "a loop of bare requests, from nothing");
    report.figure("apply_ms", ours * 1e3, "`topology apply` from nothing, everything read back");
    let is_judged = names.topics.len() >= JUDGED_FROM;
    let judged = [
        ("plan_ratio_to_look", plans / looks, 2.0, "its time"),
        ("apply_ratio_to_bare", ours / bare, 2.0, "its time"),
        ("plan_s", plans, 1.0, ""),
        ("rss_peak_mb", rss_peak_mb, 64.0, "of the plan's process"),
    ];
    for (name, value, most, words) in judged {
        report.figure(name, value, words);
        if is_judged && value > most {
            report.miss(format!("{name} is {value:.2}, and must be {most} at most"));
        }
    }
    for (name, times) in ["rounds_bare_apply", "rounds_apply", "rounds_look", "rounds_plan"].iter().zip(times)
    {
        report.detail(name, rounded(times));
    }
}

/// What came of it, and the seconds that it took.
async fn timed<T>(act: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, f64)> {
    let started = Instant::now();
    let done = act.await?;
    Ok((done, started.elapsed().as_secs_f64()))
}
