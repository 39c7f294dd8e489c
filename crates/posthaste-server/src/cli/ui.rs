//! `posthaste ui`: dashboard and API without a relay.

use super::Context;
use crate::config::Config;
use crate::daemon;
use clap::Args;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste ui                      on admin.listen, 127.0.0.1:7679
  posthaste ui --config ui.toml     a file of its own, with admin_url

Serves the dashboard, for a browser, and the API below it for the outboxes and
consumers of the configuration. Without a tokens_file a one-time code is told:
to the terminal, or into a file of mode 0600. Acts need admin_url in an
outbox's table; looks do not.";

/// Serve the dashboard and the API without a relay
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UiArgs {}

pub(crate) async fn run(context: &Context, _: UiArgs) -> anyhow::Result<ExitCode> {
    let config = Config::load(&context.flags())?;
    context.start_logging(&config, &config.log_level)?;
    daemon::serve_alone(&config, &context.flags()).await
}
