//! `posthaste bench`: measure on your own database and broker.

use super::Context;
use clap::{Args, ValueEnum};
use std::process::ExitCode;

/// Measure drain rate, latency or append cost
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure
    what: What,
    /// Database to measure in
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Sink to deliver to: null, stdout or a broker's URL
    #[arg(long, value_name = "URL", default_value = "null")]
    sink: String,
    /// How many events
    #[arg(long, value_name = "N")]
    events: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// How fast a backlog is delivered
    Drain,
    /// From commit to acknowledgement at a steady rate
    Latency,
    /// What an append costs
    Append,
}

pub(crate) async fn run(_context: &Context, args: BenchArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "bench {:?} of {:?} events from {:?} to {} is not built yet",
        args.what,
        args.events,
        args.store.as_deref().map(crate::config::scrub),
        crate::config::scrub(&args.sink)
    )
}
