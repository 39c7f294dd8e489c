//! `posthaste-bench`: measure on your own database and broker.
//!
//! Eight questions: how fast is a backlog delivered (`drain`), how long does an event take from its commit to
//! the acknowledgement (`latency`), what does an append cost (`append`), how fast is an adopted table drained
//! (`adopt`), how fast does a consumer take a topic (`consume`), what does a topology cost (`topology`), how
//! fast does the administration answer (`api`), and what does the gateway take (`gateway`).
//! Every figure that depends on the machine comes with a baseline from the same run, so that what is reported
//! is a ratio.
//!
//! ```text
//! ground (a schema of its own) ─▶ fill ─▶ baseline ─▶ child: posthaste run ─▶ sample ─▶ report
//! ```
//!
//! What is measured is a `posthaste` that was built without any of this: the relay runs as a process of its
//! own (`child`), and everything is seen from outside: receipts in the database, lines in a pipe, messages in
//! a stream (`sample`, `pipe`, `yard`). A rate without a proof that every event arrived is a rate of nothing,
//! so each drain ends with one.

mod adopt;
mod api;
mod append;
mod baseline;
mod child;
mod consume;
mod drain;
mod field;
mod gateway;
mod ground;
mod judge;
mod kill;
mod latency;
mod load;
mod output;
mod pipe;
mod report;
mod sample;
mod sqlite;
mod topology;
pub mod yard;

use child::{Product, Scratch, Setup};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ground::BenchOutbox;
use load::{Load, Spread};
use posthaste::route::Order;
use posthaste_sqlite::SqliteConfig;
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

const EXAMPLES: &str = "\
Examples:
  posthaste-bench drain --store postgres://localhost/scratch
  posthaste-bench drain --store … --sink nats://localhost:4222
  posthaste-bench drain --store … --compare-order         order by key, and none
  posthaste-bench drain --store … --sink stdout --kill    kill -9 in the middle
  posthaste-bench latency --store … --rate 500 --seconds 20
  posthaste-bench append --store … --json
  posthaste-bench adopt --store … --rounds 3              somebody else's table
  posthaste-bench consume --store … --sink kafka://localhost:9092
  posthaste-bench drain --store sqlite:scratch.db --sink local
  posthaste-bench topology --brokers kafka://localhost:9092 --replicas 1
  posthaste-bench api --store postgres://localhost/scratch
  posthaste-bench gateway --store … --redis redis://localhost

It works in a schema of its own, which it makes and drops, and with a stream of
its own on NATS; on SQLite, in files that it makes and removes. It loads the
server as much as it can: do not run it beside anything that matters.
`posthaste run` is measured as a child process with the configuration that is
printed; --config-set changes it.";

/// Measures the relay, an append, an adopted table, a consumer, a topology, the API or the gateway
#[derive(Debug, Parser)]
#[command(name = "posthaste-bench", version, after_help = EXAMPLES, propagate_version = true, term_width = 80)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    /// The binary to measure [default: the `posthaste` beside this program]
    #[arg(long, global = true, value_name = "FILE", env = "POSTHASTE_BENCH_BINARY", hide_env = true)]
    posthaste: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Log of the measurement itself: off, error, warn, info, debug or trace
    #[arg(long, global = true, value_name = "LEVEL", default_value = "error")]
    log_level: tracing_subscriber::filter::LevelFilter,
}

#[derive(Debug, Subcommand)]
enum What {
    /// How fast a backlog is delivered
    Drain(Box<drain::DrainArgs>),
    /// From commit to acknowledgement at a steady rate
    Latency(Box<latency::LatencyArgs>),
    /// What an append costs
    Append(Box<append::AppendArgs>),
    /// How fast an adopted table is drained
    Adopt(Box<adopt::AdoptArgs>),
    /// How fast a consumer takes a topic, each effect once and in order
    Consume(Box<consume::ConsumeArgs>),
    /// What a plan and an apply cost, against bare requests
    Topology(topology::TopologyArgs),
    /// How fast the API answers over a large log, and what its jobs do
    Api(Box<api::ApiArgs>),
    /// What the gateway takes, against a bare handler
    Gateway(Box<gateway::GatewayArgs>),
}

impl What {
    /// What those with an outbox have in common, or the one without.
    fn common(&self) -> Result<&Common, &topology::TopologyArgs> {
        Ok(match self {
            Self::Drain(args) => &args.common,
            Self::Latency(args) => &args.common,
            Self::Append(args) => &args.common,
            Self::Adopt(args) => &args.common,
            Self::Consume(args) => &args.common,
            Self::Api(args) => &args.common,
            Self::Gateway(args) => &args.common,
            Self::Topology(args) => return Err(args),
        })
    }
}

/// What all of them need.
#[derive(Debug, Args)]
struct Common {
    /// Database to measure in
    #[arg(long, value_name = "URL")]
    store: String,
    /// Sink to deliver to: null, stdout or a broker's URL; on SQLite null or local
    #[arg(long, value_name = "SINK", default_value = "null")]
    sink: String,
    /// Size of a payload
    #[arg(long, value_name = "N", default_value_t = 500)]
    payload_bytes: usize,
    /// How many keys the events have
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// How events spread over keys
    #[arg(long, value_name = "HOW", default_value = "uniform")]
    spread: Spread,
    /// The route's order
    #[arg(long, value_name = "ORDER", default_value = "key")]
    order: OrderArg,
    /// Schema to make and drop
    #[arg(long, value_name = "NAME", default_value = "posthaste_bench")]
    schema: String,
    /// Leave the schema as it is in the end
    #[arg(long)]
    keep: bool,
    /// A key of the relay's configuration: relay.page_events_max=512; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    config_set: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OrderArg {
    /// By key
    Key,
    /// None
    None,
}

impl From<OrderArg> for Order {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::Key => Self::Key,
            OrderArg::None => Self::None,
        }
    }
}

/// What a measurement works with.
struct Bench<'a> {
    common: &'a Common,
    ground: &'a BenchOutbox,
    load: Arc<Load>,
    scratch: Scratch,
    product: Product,
}

impl Bench<'_> {
    /// Writes a relay's configuration.
    async fn write(&self, setup: Setup<'_>) -> anyhow::Result<PathBuf> {
        setup.write(self.common, &self.scratch, &self.product).await
    }

    fn order(&self) -> Order {
        self.common.order.into()
    }
}

/// The whole program.
#[must_use]
pub fn main() -> ExitCode {
    // Two crypto providers may be linked; without a choice the first handshake panics. A second call
    // cannot happen here, so its error has nothing to say.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(cli.global.log_level).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return output::complain(&anyhow::anyhow!("cannot start the runtime: {error}")),
    };
    match runtime.block_on(run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::complain(&error),
    }
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let (global, what) = (cli.global, cli.what);
    if let What::Consume(args) = &what
        && let Some(plan) = &args.child
    {
        return consume::run_child(plan).await;
    }
    if let What::Gateway(args) = &what
        && let Some(plan) = &args.child
    {
        return gateway::run_child(plan).await;
    }
    let (product, scratch) = (Product::find(global.posthaste).await?, Scratch::make()?);
    let common = match what.common() {
        Ok(common) => common,
        Err(args) => {
            let mut report = topology::run(args, &product, &scratch).await?;
            surroundings(&mut report, &product.version);
            let missed = report.missed();
            return report.print(global.json).and(missed);
        }
    };
    // A mistake in the options has a name before anything is made.
    let setup = Setup { sink: "check", target: &common.sink, options: None, order: common.order.into() };
    let path = setup.write(common, &scratch, &product).await?;
    if common.store.starts_with("sqlite:") {
        let config = SqliteConfig::from_url(&common.store)?;
        let mut report = sqlite::run(config, common, &what, scratch, &product).await?;
        conditions(&mut report, common, &product.version);
        let missed = report.missed();
        return report.print(global.json).and(missed);
    }
    let ground = BenchOutbox::make(setup.database(common)?, &product, &path).await?;
    let load = Arc::new(Load::new(common.payload_bytes, common.keys, common.spread));
    let bench = Bench { common, ground: &ground, load, scratch, product };
    // The ground is left in every case: dropping the measurement ends its relay first.
    let outcome = tokio::select! {
        outcome = measure(&bench, &what) => outcome,
        name = interrupted() => Err(anyhow::anyhow!("{name}: the measurement was given up")),
    };
    drop(bench);
    let left = ground.leave(common.keep).await;
    let report = outcome?;
    let missed = report.missed();
    report.print(global.json)?;
    left.and(missed)
}

async fn measure(bench: &Bench<'_>, what: &What) -> anyhow::Result<Report> {
    let mut report = Report::default();
    match what {
        What::Drain(args) => Box::pin(drain::run(bench, args, &mut report)).await?,
        What::Latency(args) => Box::pin(latency::run(bench, args, &mut report)).await?,
        What::Append(args) => Box::pin(append::run(bench, args, &mut report)).await?,
        What::Adopt(args) => Box::pin(adopt::run(bench, args, &mut report)).await?,
        What::Consume(args) => Box::pin(consume::run(bench, args, &mut report)).await?,
        What::Api(args) => Box::pin(api::run(bench, args, &mut report)).await?,
        What::Gateway(args) => Box::pin(gateway::run(bench, args, &mut report)).await?,
        // It has no outbox, and never comes here.
        What::Topology(_) => {}
    }
    report.detail("server", bench.ground.facts().await?);
    conditions(&mut report, bench.common, &bench.product.version);
    Ok(report)
}

/// What else decides about figures.
fn conditions(report: &mut Report, common: &Common, version: &str) {
    report.detail("payload_bytes", common.payload_bytes);
    report.detail("keys", common.keys);
    report.detail("spread", format!("{:?}", common.spread).to_lowercase());
    surroundings(report, version);
}

/// What was measured, and on what.
fn surroundings(report: &mut Report, version: &str) {
    report.detail("posthaste", version);
    report.detail("cores", std::thread::available_parallelism().map_or(0, usize::from));
}

/// Resolves at a signal that asks us to end.
async fn interrupted() -> &'static str {
    let listen = |kind| signal(kind).ok();
    let (Some(mut term), Some(mut int)) = (listen(SignalKind::terminate()), listen(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    }
}
