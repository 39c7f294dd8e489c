//! `posthaste config`: check a configuration without starting anything, see what is in force, or get a file
//! to start from.

use super::{Context, show_warnings};
use crate::config::{Config, EXAMPLE, schema};
use crate::output::plural;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste config check      exit code 2, and why, if it cannot be used
  posthaste config show       what is in force; secrets masked
  posthaste config example    a file to start from, with the keys explained
  posthaste config schema     JSON schema of the file, for editors

A small posthaste.toml:

  service = \"orders\"

  [outbox]
  url = \"postgres://relay@db.internal/orders\"
  password_file = \"/run/secrets/db\"

  [sinks.nats]
  type = \"nats\"
  url = \"nats://nats.internal:4222\"

  [[route]]
  topics = [\"orders.*\"]
  sinks = [\"nats\"]
  destination = \"events.{topic}\"";

const CHECK_EXAMPLES: &str = "\
Examples:
  posthaste config check
  posthaste config check --config new.toml && systemctl reload posthaste

File, environment and flags together, and the files that they name; no database
and no broker is asked (`posthaste doctor` does that). The exit code is 2 if it
cannot be used, and every reason is printed.";

const SHOW_EXAMPLES: &str = "\
Examples:
  posthaste config show
  POSTHASTE_RELAY__POLL_MAX_MS=500 posthaste config show --json | jq .relay";

const SCHEMA_EXAMPLES: &str = "\
Examples:
  posthaste config schema > posthaste.schema.json

With `#:schema ./posthaste.schema.json` as the first line of posthaste.toml,
editors that know TOML schemas complete and check its keys.";

const EXAMPLE_EXAMPLES: &str = "\
Examples:
  posthaste config example > posthaste.toml";

/// Check or show the configuration, or print an example
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    act: ConfigAct,
}

#[derive(Debug, Subcommand)]
enum ConfigAct {
    /// Check it as a whole
    #[command(after_help = CHECK_EXAMPLES)]
    Check,
    /// Print it as TOML (or JSON), secrets masked
    #[command(after_help = SHOW_EXAMPLES)]
    Show,
    /// Print a file to start from: keys, defaults and what they do
    #[command(after_help = EXAMPLE_EXAMPLES)]
    Example,
    /// Print the file's JSON schema, for editors
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema,
}

pub(crate) fn run(context: &Context, args: ConfigArgs) -> anyhow::Result<ExitCode> {
    match args.act {
        ConfigAct::Check => check(context, &context.config()?)?,
        ConfigAct::Example => context.out().exact(EXAMPLE)?,
        ConfigAct::Schema => context.out().exact(&serde_json::to_string_pretty(&schema())?)?,
        ConfigAct::Show => {
            let shown = without_null(with_lanes(context.config()?.shown()));
            let toml = toml::to_string_pretty(&shown)?;
            context.out().data(&shown, || toml)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(context: &Context, config: &Config) -> anyhow::Result<()> {
    config.check_runnable()?;
    config.check_files()?;
    show_warnings(config);
    let file = config.file.as_ref().map_or_else(|| "no file".to_owned(), |file| file.display().to_string());
    let routes: usize = config.outboxes.iter().map(|outbox| outbox.routes.routes().len()).sum();
    let joins: BTreeMap<&str, String> =
        config.consumers.iter().filter_map(|one| Some((&*one.name, one.source.broker()?.joins()?))).collect();
    let answer = json!({
        "file": config.file, "ok": true, "outboxes": config.outboxes.len(), "sinks": config.sinks.len(),
        "routes": routes, "consumers": config.consumers.len(), "joins": joins, "warnings": config.warnings,
    });
    context.out().data(&answer, || {
        let mut parts = vec![
            if config.outboxes.len() == 1 {
                "1 outbox".to_owned()
            } else {
                format!("{} outboxes", config.outboxes.len())
            },
            plural(config.sinks.len() as u64, "sink"),
            plural(routes as u64, "route"),
        ];
        if !config.consumers.is_empty() {
            parts.push(plural(config.consumers.len() as u64, "consumer"));
        }
        let joins: String = joins.iter().map(|(name, words)| format!("\nconsumer {name}: {words}")).collect();
        format!("ok: {file}: {}{joins}", parts.join(", "))
    })
}

/// One lane is made where nobody says how many. An adopted table has none.
fn with_lanes(mut shown: Value) -> Value {
    for outbox in shown["outbox"].as_array_mut().into_iter().flatten() {
        if outbox["lanes"].is_null() && outbox["adopt"].is_null() {
            outbox["lanes"] = 1.into();
        }
    }
    shown
}

/// TOML has no null.
fn without_null(value: Value) -> Value {
    match value {
        Value::Object(table) => {
            let kept = table.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_null(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_null).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_number_of_lanes_is_shown() {
        let lanes = |more: &str| {
            let text = format!("outbox.url = \"postgres://h/d\"\n{more}");
            let config = Config::parse(Path::new("t"), &text).map_err(|error| error.to_string());
            with_lanes(config.expect("an outbox").shown())["outbox"][0]["lanes"].clone()
        };
        assert_eq!((lanes(""), lanes("outbox.lanes = 4")), (1.into(), 4.into()));
    }
}
