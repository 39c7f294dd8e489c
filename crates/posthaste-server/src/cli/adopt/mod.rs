//! `posthaste adopt`: take over an outbox table that is there already.
//!
//! ```text
//! inspect.rs   find tables, propose layouts      file.rs   a layout as configuration (pure)
//! sql.rs       every statement a table will see   dry_run.rs   what `run` would do now
//! migrate/     from the table to the log
//! ```

mod dry_run;
mod file;
mod inspect;
mod migrate;
mod sql;

pub(super) use dry_run::dry_run;

use super::Context;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste adopt inspect --url postgres://localhost/shop
  posthaste adopt inspect --url postgres://localhost/shop --write posthaste.toml
  posthaste adopt sql                 every statement that the table will see
  posthaste run --dry-run             what would be claimed and published now
  posthaste run
  posthaste adopt migrate             move to the log, when you like

The table and the application stay as they are. docs/adopt.md walks through
each preset.";

const INSPECT_EXAMPLES: &str = "\
Examples:
  posthaste adopt inspect --url postgres://localhost/shop
  posthaste adopt inspect --url postgres://localhost/shop --table app.outbox
  posthaste adopt inspect --url postgres://localhost/shop --write posthaste.toml

Looks at the catalog and at a few rows, and changes nothing. The first proposal
is what --write writes; an existing file is never overwritten.";

const SQL_EXAMPLES: &str = "\
Examples:
  posthaste adopt sql
  posthaste adopt sql --outbox orders > statements.sql

For the table of [outbox.adopt], with the types that its columns have. A
dead-letter table or an index that is missing is printed as DDL first: nothing
is ever created by the relay.";

/// Take over an outbox table that is there already
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AdoptArgs {
    #[command(subcommand)]
    act: AdoptAct,
}

#[derive(Debug, Subcommand)]
enum AdoptAct {
    /// Find outbox tables and propose a layout for each
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArgs),
    /// Print every statement that the adopted table will see
    #[command(after_help = SQL_EXAMPLES)]
    Sql,
    /// Move to the log, without a gap
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::MigrateArgs),
}

#[derive(Debug, Args)]
struct InspectArgs {
    /// Only this table
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
    /// Write the first proposal as a configuration file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

pub(crate) async fn run(context: &Context, args: AdoptArgs) -> anyhow::Result<ExitCode> {
    match args.act {
        AdoptAct::Inspect(args) => inspect::run(context, args).await,
        AdoptAct::Sql => sql::run(context).await,
        AdoptAct::Migrate(args) => migrate::run(context, args).await,
    }
}
