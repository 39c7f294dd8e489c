//! `posthaste token`: tokens for the API. The token is printed once, and only its hash goes into the file.

use super::Context;
use crate::access::{OperatorRole, PREFIX, PayloadRight, token_line};
use crate::http::token::mint;
use clap::{Args, Subcommand};
use posthaste::Timestamp;
use serde_json::json;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste token new --name ann --role operate
  posthaste token new --name grafana --role read --for orders --days 90

Prints the token, which is shown this once, and the entry for the tokens_file of
[admin], which holds its hash. SIGHUP reads the file again. To revoke a token,
take its entry out.";

/// Make tokens for the API
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    act: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make one, and print it with its entry for the file
    #[command(after_help = EXAMPLES)]
    New(NewArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// Whose it is: the audit shows it
    #[arg(long)]
    name: String,
    /// What it may: read, operate or admin
    #[arg(long, value_name = "ROLE", hide_possible_values = true)]
    role: OperatorRole,
    /// For this outbox; may be repeated [default: all]
    #[arg(long = "for-outbox", visible_alias = "for", value_name = "NAME")]
    outboxes: Vec<String>,
    /// For this consumer; may be repeated [default: all]
    #[arg(long = "consumer", value_name = "NAME")]
    consumers: Vec<String>,
    /// How much of payloads it sees: hidden, masked or shown [default: by role]
    #[arg(long, value_name = "RIGHT", hide_possible_values = true)]
    payloads: Option<PayloadRight>,
    /// After how many days it ends [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: Option<u32>,
}

pub(crate) fn run(context: &Context, args: TokenArgs) -> anyhow::Result<ExitCode> {
    let TokenCommand::New(args) = args.act;
    let (id, token) = mint(PREFIX)?;
    let expires = args.days.map(|days| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp(i64::try_from(now.as_micros()).unwrap_or(i64::MAX));
        now.plus_micros(i64::from(days) * 86_400_000_000)
    });
    let scope = (args.outboxes, args.consumers);
    let line = token_line((&id, &token), &args.name, args.role, scope, args.payloads, expires)?;
    context.out().data(&json!({ "token": token, "entry": line }), || {
        format!(
            "{token}\n\nIt is shown this once. The entry for the tokens_file of [admin]:\n\n{}",
            line.trim_end()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
