//! `posthaste run`: the daemon.

use super::{Context, with_sinks};
use crate::config::Config;
use crate::daemon;
use clap::Args;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste run
      Relay what posthaste.toml says.
  posthaste run --url postgres://localhost/shop --sink stdout
      Print every event; no file is needed.
  posthaste run --url postgres://localhost/shop --sink nats://localhost:4222

Signals:
  SIGTERM, SIGINT  drain: settle what is in flight, give leases back, exit 0
  a second one     end at once, exit 1: nothing is lost, some are sent twice;
                   two SIGTERM within a second are one
  SIGHUP           read the configuration again: relay settings (except
                   lease_ttl_ms), retry policies, rate limits and the pace of
                   adopted tables apply at once, and so do the tokens and the
                   certificate of the API; the log names what takes effect at
                   the next start only

Pages:
  /metrics  Prometheus   /livez  the process runs   /readyz  events progress
  [admin] with a tokens_file or a listen serves the dashboard, for a browser,
  and the API beside them, on 127.0.0.1:7679 unless it says otherwise; see
  `posthaste token new`.

A password in --url is visible to others on this host. Prefer
POSTHASTE_OUTBOX__URL, or password_file in the configuration.";

/// Relay events until a signal
#[derive(Debug, Args)]
#[command(after_help = with_sinks(EXAMPLES))]
pub(crate) struct RunArgs {
    /// Deliver everything to this sink: stdout, null or a broker's URL; may be repeated
    #[arg(long = "sink", value_name = "SINK")]
    sinks: Vec<String>,
    /// Where such a sink begins if it is new: earliest, now or a number
    #[arg(long, value_name = "PLACE", default_value = "earliest", requires = "sinks")]
    start_at: String,
    /// Address of metrics and health, or `off` [default: http.listen, 127.0.0.1:7678]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Show what would be claimed from adopted tables and published now; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Drain and end when standard input closes, too: with whoever started this
    #[arg(long)]
    lifeline: bool,
}

pub(crate) async fn run(context: &Context, args: RunArgs) -> anyhow::Result<ExitCode> {
    let mut flags = context.flags();
    flags.sinks = args.sinks;
    flags.start_at = Some(args.start_at);
    flags.listen = args.listen;
    let mut config = Config::load(&flags)?;
    if context.global.outbox.is_some() {
        config.outboxes = context.outboxes(&config)?.into_iter().cloned().collect();
        config
            .consumers
            .retain(|consumer| config.outboxes.iter().any(|outbox| outbox.name == consumer.outbox));
    }
    config.check_runnable()?;
    context.start_logging(&config, &config.log_level)?;
    if args.dry_run {
        return super::adopt::dry_run(context, &config).await;
    }
    let format = context.log_format(&config);
    daemon::run(config, flags, format, args.lifeline).await
}
