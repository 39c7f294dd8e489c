//! `posthaste migrate`: set up the outbox in a database, or print the SQL for whoever may.

use super::{Context, explain};
use crate::config::{Config, Outbox};
use crate::output::{remark, time};
use clap::{Args, Subcommand};
use posthaste_postgres::migrate::{Outcome, Status, TopicChange};
use serde_json::json;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste migrate up --url postgres://localhost/shop
  posthaste migrate status                  exit code 1 if something is missing
  posthaste migrate sql > posthaste.sql     for a DBA who applies it with psql

`up` may be run again at any time, and by several at once: it does what is
missing. On PostgreSQL it makes the schema `posthaste`, and three roles where
that is permitted: one for the application (append only), one for the relay,
one for administration. Their names are in [outbox.roles]. In a SQLite file it
makes tables whose names begin with `posthaste_`, and the file if need be.";

const UP_EXAMPLES: &str = "\
Examples:
  posthaste migrate up
  posthaste migrate up --url postgres://owner@db.internal/shop

What the connected role may not do (make roles, grant) is printed as SQL for
somebody who may; that is no failure.";

const STATUS_EXAMPLES: &str = "\
Examples:
  posthaste migrate status
  until posthaste migrate status; do sleep 1; done    wait in a deployment

The exit code is 1 if something is missing.";

const SQL_EXAMPLES: &str = "\
Examples:
  posthaste migrate sql > posthaste.sql
  psql -v ON_ERROR_STOP=1 -f posthaste.sql

One transaction: schema, tables, functions, roles and grants.";

/// Set up the outbox in a database
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    act: MigrateAct,
}

#[derive(Debug, Subcommand)]
enum MigrateAct {
    /// Apply what is missing
    #[command(after_help = UP_EXAMPLES)]
    Up,
    /// Show what is applied and what is missing
    #[command(after_help = STATUS_EXAMPLES)]
    Status,
    /// Print all of it as SQL, without a database
    #[command(after_help = SQL_EXAMPLES)]
    Sql,
}

pub(crate) async fn run(context: &Context, args: MigrateArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    match args.act {
        MigrateAct::Up => up(context, &config).await,
        MigrateAct::Status => status(context, &config).await,
        MigrateAct::Sql => sql(context, &config),
    }
}

/// The outboxes that are set up by us. Adopted tables beside them are left alone, and said so; one that is
/// alone or was chosen is an error of whoever chose it.
fn ours<'a>(context: &Context, config: &'a Config) -> anyhow::Result<Vec<&'a Outbox>> {
    let (adopted, ours): (Vec<&Outbox>, Vec<&Outbox>) =
        context.outboxes(config)?.into_iter().partition(|outbox| outbox.database.layout().is_some());
    if ours.is_empty() {
        return Ok(adopted);
    }
    for outbox in adopted {
        let (name, place) = (&outbox.name, outbox.database.place());
        remark(&format!("outbox {name}, {place}: an adopted table, nothing of it is set up by us"));
    }
    Ok(ours)
}

async fn up(context: &Context, config: &Config) -> anyhow::Result<ExitCode> {
    let mut outcomes = Vec::new();
    for outbox in ours(context, config)? {
        let outcome = outbox.database.migrate().await.map_err(|error| explain(outbox, error))?;
        outcomes.push((outbox, outcome));
    }
    let json: Vec<_> = outcomes
        .iter()
        .map(|(outbox, outcome)| json!({ "outbox": &*outbox.name, "applied": outcome.applied, "to_run_by_hand": outcome.to_run_by_hand, "audit_topic": outcome.audit_topic }))
        .collect();
    context.out().data(&json, || {
        outcomes.iter().map(|(outbox, outcome)| draw_outcome(outbox, outcome)).collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Statements that are left over are no failure: they are for somebody who may run them.
fn draw_outcome(outbox: &Outbox, outcome: &Outcome) -> String {
    let place = format!("outbox {}, {}", outbox.name, outbox.database.place());
    let mut text = match outcome.applied.as_slice() {
        [] => format!("{place}: nothing to apply"),
        applied => format!("{place}: applied {}", versions(applied)),
    };
    match &outcome.audit_topic {
        None => {}
        Some(TopicChange { now: Some(topic), .. }) => {
            text.push_str(&format!("\n  each line of the audit goes to topic {topic} now"));
        }
        Some(TopicChange { before, now: None }) => {
            let before = before.as_deref().unwrap_or_default();
            text.push_str(&format!("\n  the audit goes to no topic any more; before: {before}"));
        }
    }
    if !outcome.to_run_by_hand.is_empty() {
        text.push_str("\nThe connected role may not run these; somebody who may has to:\n");
        text.extend(outcome.to_run_by_hand.iter().map(|statement| format!("\n{statement};")));
    }
    text
}

fn versions(versions: &[(i32, String)]) -> String {
    versions.iter().map(|(version, name)| format!("{version} ({name})")).collect::<Vec<_>>().join(", ")
}

/// Exit code 1 where something is missing, so that a deployment can wait for it.
async fn status(context: &Context, config: &Config) -> anyhow::Result<ExitCode> {
    let mut answers = Vec::new();
    for outbox in ours(context, config)? {
        let status = outbox.database.migrations().await.map_err(|error| explain(outbox, error))?;
        answers.push((outbox, status));
    }
    let json: Vec<_> =
        answers.iter().map(|(outbox, status)| json!({ "outbox": &*outbox.name, "status": status })).collect();
    context.out().data(&json, || {
        answers.iter().map(|(outbox, status)| draw_status(outbox, status)).collect::<Vec<_>>().join("\n")
    })?;
    let complete = answers.iter().all(|(_, status)| status.pending.is_empty());
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn draw_status(outbox: &Outbox, status: &Status) -> String {
    let place = format!("outbox {}, {}", outbox.name, outbox.database.place());
    let version = match status.current {
        None => "not set up yet".to_owned(),
        Some(version) => format!("version {version}, this binary knows {}", status.latest),
    };
    let applied = status.applied.iter().map(|applied| {
        let by =
            if applied.applied_by.is_empty() { String::new() } else { format!(" by {}", applied.applied_by) };
        format!("\n  applied {} ({}) at {}{by}", applied.version, applied.name, time(applied.applied_at))
    });
    let missing = match status.pending.as_slice() {
        [] => String::new(),
        pending => format!("\n  missing {}: run `posthaste migrate up`", versions(pending)),
    };
    let (there, configured) = (status.audit_topic.as_deref(), outbox.database.audit_topic());
    let audit = match (there, configured) {
        (None, None) => String::new(),
        _ => format!("\n  audit: {}", posthaste::admin::compare_topics(there, configured).1),
    };
    format!("{place}: {version}{}{missing}{audit}", applied.collect::<String>())
}

fn sql(context: &Context, config: &Config) -> anyhow::Result<ExitCode> {
    for outbox in ours(context, config)? {
        let script = outbox.database.script();
        context.out().exact(&script.map_err(|error| explain(outbox, error))?)?;
    }
    Ok(ExitCode::SUCCESS)
}
