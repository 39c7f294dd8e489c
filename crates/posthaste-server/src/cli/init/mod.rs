//! `posthaste init`: looks at a database and a sink, and writes a configuration file for the two.
//!
//! The file is small: what was asked for, and the keys that people change first, as comments. Every key with
//! its default is what `config example` prints. A password never goes into the file: it is left out, and the
//! file names another file for it.
//!
//! What was found wrong does not keep the file from being written: a database that is down is up tomorrow. It
//! is printed, and so is what to do next.
//!
//! ```text
//! file.rs   the text (pure)      look.rs   what is there
//! ```

mod file;
mod look;

use super::{Context, pattern, with_sinks};
use crate::config::{Config, DEFAULT_FILE, scrub};
use crate::output::{Usage, escape, remark, shell_word};
use clap::Args;
use file::{InitPlan, SinkPlan};
use look::{DatabaseState, Seen};
use posthaste::sink::Level;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste init --url postgres://relay@localhost/shop --sink stdout
  posthaste init --url postgres://relay@db/shop --sink nats://nats:4222 \\
      --topic 'orders.*' --topic 'payments.*'
  posthaste init --url sqlite:shop.db --sink local:broker.db
  posthaste init --url sqlite:shop.db --sink stdout --file relay.toml --force

Looks first: is the outbox set up, may the role do it, is there a table that
looks like an outbox already, does the broker answer, and does a stream take the
topics. Nothing is changed but the file, and an existing file only with --force.
A password is not written into it.";

/// Write a configuration file for a database and a sink
#[derive(Debug, Args)]
#[command(after_help = with_sinks(EXAMPLES))]
pub(crate) struct InitArgs {
    /// Where events go: a broker's address, local:FILE (a SQLite file), stdout, null
    #[arg(long, value_name = "SINK")]
    sink: String,
    /// Topics to send; * stands for any run of characters. May be repeated
    #[arg(long = "topic", value_name = "PATTERN", default_value = "*", value_parser = pattern)]
    topics: Vec<String>,
    /// The service's name, for metrics and messages [default: the database's]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    file: PathBuf,
    /// Overwrite the file if it is there
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(context: &Context, args: InitArgs) -> anyhow::Result<ExitCode> {
    if args.file.exists() && !args.force {
        return Err(there_already(&args.file));
    }
    let plan = plan(context, &args)?;
    // As it will be read, with the secrets still in it: looking needs them.
    let config = Config::parse(&args.file, &plan.text_with_secrets())?;
    context.start_logging(&config, "error")?;
    let (seen, state) = look::look(&config, &plan).await;
    write(&args.file, &plan.text(&state), args.force)?;
    let next = next(&args.file, &plan, &state, &seen);
    let told: Vec<String> = next.iter().map(|step| format!("{} {}", step.what, step.command)).collect();
    let answer = json!({ "file": args.file, "findings": seen, "next": told });
    context.out().data(&answer, || draw(&args.file, &seen, &next))?;
    Ok(ExitCode::SUCCESS)
}

fn plan(context: &Context, args: &InitArgs) -> anyhow::Result<InitPlan> {
    let from_env = || std::env::var("POSTHASTE_OUTBOX__URL").ok().filter(|url| !url.is_empty());
    let url = context.flags().url.or_else(from_env).ok_or_else(|| {
        Usage("name the database: --url postgres://user@host/database or --url sqlite:file.db".to_owned())
    })?;
    let sink = SinkPlan::read(&args.sink).map_err(Usage)?;
    if let Some(words) = posthaste_brokers::missing(sink.name()) {
        return Err(Usage(format!("--sink {}: {words}. Nothing was written", scrub(&args.sink))).into());
    }
    Ok(InitPlan {
        service: args.service.clone().unwrap_or_else(|| file::service_of(&url)),
        schema: context.flags().schema,
        sink,
        topics: args.topics.clone(),
        url,
    })
}

fn there_already(file: &Path) -> anyhow::Error {
    Usage(format!(
        "{} is there already; say --force to overwrite it, or --file for another one",
        file.display()
    ))
    .into()
}

/// Writes the file: a new one, unless it was said that an old one may go.
fn write(file: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    let opened =
        if force { options.create(true).truncate(true) } else { options.create_new(true) }.open(file);
    let written = opened.and_then(|mut out| out.write_all(text.as_bytes()).and_then(|()| out.sync_all()));
    match written {
        // Somebody else wrote it while we looked.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(there_already(file)),
        Err(error) => Err(anyhow::anyhow!("cannot write {}: {error}", file.display())),
        Ok(()) => Ok(()),
    }
}

/// One thing to do: what it is, and the command that does it, if there is one.
struct Step {
    what: String,
    command: String,
}

/// What to do next, in order.
fn next(file: &Path, plan: &InitPlan, state: &DatabaseState, seen: &[Seen]) -> Vec<Step> {
    let config = match file == Path::new(DEFAULT_FILE) {
        true => String::new(),
        false => format!(" --config {}", shell_word(&file.display().to_string())),
    };
    let step = |what: &str, command: &str| Step {
        what: what.to_owned(),
        command: format!("posthaste {command}{config}"),
    };
    let advice = |what: String| Step { what, command: String::new() };
    let mut steps: Vec<Step> = plan.secrets_to_keep().into_iter().map(advice).collect();
    if seen.iter().any(|seen| seen.finding.level == Level::Fail) {
        steps.push(advice("mend what fails above, or its line in the file".to_owned()));
    }
    if !state.set_up {
        steps.push(step("set up the outbox:", "migrate up"));
    }
    let append = format!("append {} --payload hello", shell_word(&plan.sample_topic()));
    steps.push(step("append an event:", &append));
    steps.push(step("relay it:", "run"));
    steps.push(step("look for trouble:", "doctor"));
    steps
}

fn draw(file: &Path, seen: &[Seen], next: &[Step]) -> String {
    let word = |level| match level {
        Level::Ok => "ok  ",
        Level::Warn => "warn",
        Level::Fail => "fail",
    };
    let mut text = String::new();
    for seen in seen {
        let line = format!("{}  {}: {}", word(seen.finding.level), seen.of, escape::line(&seen.finding.text));
        text.push_str(&fold(&line, 80, "      "));
        text.push('\n');
    }
    text.push_str(&format!("\nwrote {}\n\nNext:\n", file.display()));
    for (number, Step { what, command }) in (1..).zip(next) {
        let line = format!("  {number}. {what:<20} {command}");
        // A command is never folded: it is there to be pasted.
        text.push_str(&match (command.as_str(), line.chars().count()) {
            ("", _) => fold(&format!("  {number}. {what}"), 80, "     "),
            (_, ..=80) => line,
            _ => format!("  {number}. {what}\n     {command}"),
        });
        text.push('\n');
    }
    text
}

/// Lines of at most a width, broken at spaces.
fn fold(text: &str, width: usize, indent: &str) -> String {
    let (mut out, mut line) = (String::new(), String::new());
    for word in text.split_inclusive(' ') {
        if !line.trim().is_empty() && (line.chars().count() + word.trim_end().chars().count()) > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line = indent.to_owned();
        }
        line.push_str(word);
    }
    out + line.trim_end()
}

/// Says that something was left out of the look.
fn could_not(what: &str, why: &dyn std::fmt::Display) {
    remark(&format!("could not look at {what}: {why}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_folded_at_spaces() {
        assert_eq!(fold("ab cd ef", 5, "  "), "ab cd\n  ef");
        assert_eq!(fold("  1. set up:   posthaste", 80, ""), "  1. set up:   posthaste");
        assert_eq!(fold("averylongword x", 5, ""), "averylongword\nx");
    }
}
