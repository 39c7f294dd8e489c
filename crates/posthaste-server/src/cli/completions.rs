//! `posthaste completions`: a script that teaches a shell our words. It comes from the same description as
//! the parser and the help, so it knows every flag.

use super::{Cli, Context};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste completions bash > /etc/bash_completion.d/posthaste
  posthaste completions zsh > \"${fpath[1]}/_posthaste\"
  posthaste completions fish > ~/.config/fish/completions/posthaste.fish";

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(context: &Context, args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "posthaste", &mut script);
    context.out().bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
