//! `posthaste doctor`: checks every assumption, of the stores and of the brokers, and says what to do.

use super::{Context, time};
use crate::config::{Outbox, SinkSetting, scrub};
use crate::daemon::{Sinks, destinations};
use crate::output::table;
use clap::Args;
use posthaste::admin::{AdminError, OutboxStatus};
use posthaste::sink::{DURABILITY, Finding, Level, Sink};
use posthaste_postgres::doctor::Bounds;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// A broker that does not answer within this time is a finding of its own.
const PATIENCE: Duration = Duration::from_secs(15);

const EXAMPLES: &str = "\
Examples:
  posthaste doctor
  posthaste doctor --json | jq '.[] | select(.level != \"ok\")'
  posthaste doctor --allow-warnings       in a pipeline that accepts warnings
  posthaste doctor --list                 the names of all checks

ok    as it should be
warn  works, but can lose or stall in the way that is named
fail  does not work

The exit code is 1 if anything but ok was found; with --allow-warnings, if
something fails. Nothing is changed and nothing is published.";

/// Checks of this program itself, beside those of stores and sinks.
const OWN_CHECKS: [(&str, &[&str]); 3] =
    [("configuration", &["config"]), ("outbox", &["connect", "lanes"]), ("sink", &["answer", "dedup"])];

/// Checks of a broker that does not let us ask it anything more.
const SILENT: [&str; 3] = ["answer", "reachable", "authenticated"];

/// Check databases, privileges, clocks, poolers and brokers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Exit with 0 if there are warnings and nothing worse
    #[arg(long)]
    allow_warnings: bool,
    /// Only print the names of all checks
    #[arg(long)]
    list: bool,
    /// Clocks of this host and the database may differ by this much
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time::distance)]
    clock_skew: Duration,
    /// A transaction may be open for this long
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time::distance)]
    long_transaction: Duration,
}

#[derive(Serialize)]
struct Remark {
    /// `outbox NAME` or `sink NAME`.
    of: String,
    #[serde(flatten)]
    finding: Finding,
}

pub(crate) async fn run(context: &Context, args: DoctorArgs) -> anyhow::Result<ExitCode> {
    if args.list {
        return list(context);
    }
    let bounds =
        Bounds { clock_skew: args.clock_skew, long_transaction: args.long_transaction, ..Bounds::default() };
    let config = context.config()?;
    let outboxes = context.outboxes(&config)?;
    let mut remarks = Vec::new();
    for warning in &config.warnings {
        remarks.push(remark("configuration".to_owned(), "config", Level::Warn, warning.clone()));
    }
    for outbox in &outboxes {
        remarks.extend(examine_outbox(outbox, &bounds).await);
    }
    let sinks = Sinks::build(&config).await?;
    for setting in &config.sinks {
        if let Some(sink) = sinks.share(&setting.name) {
            let known = destinations(outboxes.iter().copied(), &setting.name);
            let found = examine_sink(setting, &sink, &known).await;
            let is_silent = |remark: &Remark| {
                remark.finding.level == Level::Fail && SILENT.contains(&remark.finding.check.as_str())
            };
            let answers = !found.iter().any(is_silent);
            remarks.extend(found);
            if answers {
                let horizon = horizon(&outboxes, &setting.name);
                remarks.extend(compare_windows(setting, &sink, &known, horizon).await);
            }
        }
    }
    sinks.close().await;
    context.out().data(&remarks, || draw(&remarks))?;
    let accepted = if args.allow_warnings { Level::Warn } else { Level::Ok };
    let sound = remarks.iter().all(|remark| remark.finding.level <= accepted);
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Serialize)]
struct Listed {
    of: &'static str,
    check: &'static str,
}

fn list(context: &Context) -> anyhow::Result<ExitCode> {
    let stores = crate::database::checks();
    let sinks = crate::config::sink_checks();
    let all = OWN_CHECKS.into_iter().chain(stores).chain(sinks);
    let listed: Vec<Listed> =
        all.flat_map(|(of, checks)| checks.iter().map(move |check| Listed { of, check })).collect();
    context.out().data(&listed, || {
        table(&["of", "check"], listed.iter().map(|l| vec![l.of.to_owned(), l.check.to_owned()]).collect())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn remark(of: String, check: &str, level: Level, text: String) -> Remark {
    Remark { of, finding: Finding { check: check.to_owned(), level, text: scrub(&text) } }
}

async fn examine_outbox(outbox: &Outbox, bounds: &Bounds) -> Vec<Remark> {
    let of = format!("outbox {}", outbox.name);
    let findings = match outbox.database.examine(bounds).await {
        Ok(findings) => findings,
        Err(error) => {
            let text = format!("{error}. What was appended stays in the database and is delivered later");
            return vec![remark(of, "connect", Level::Fail, text)];
        }
    };
    let usable = findings.iter().any(|f| f.check == "schema_version" && f.level == Level::Ok);
    let mut remarks: Vec<Remark> =
        findings.into_iter().map(|finding| Remark { of: of.clone(), finding }).collect();
    if let Some(configured) = outbox.lanes.filter(|_| usable) {
        let (level, text) = match look(outbox).await {
            Ok(status) => judge_lanes(configured, &status),
            Err(error) => (Level::Fail, format!("could not be checked: {error}")),
        };
        remarks.push(remark(of, "lanes", level, text));
    }
    remarks
}

async fn look(outbox: &Outbox) -> Result<OutboxStatus, AdminError> {
    outbox.database.admin().await?.status().await
}

/// The number in the file counts for a new outbox only; one that says another later misleads its reader.
fn judge_lanes(configured: u16, status: &OutboxStatus) -> (Level, String) {
    match status.sinks.first().map(|sink| sink.lanes.len()) {
        None => (Level::Ok, format!("{configured} are made when a relay first runs")),
        Some(lanes) if lanes == usize::from(configured) => (Level::Ok, format!("{lanes}, as configured")),
        Some(lanes) => (
            Level::Warn,
            format!(
                "the outbox has {lanes} lanes, and `lanes = {configured}` in the configuration counts for a new outbox only: \
                 relays go by {lanes}. Run `posthaste lanes set {configured}`, or take `lanes` out of the file"
            ),
        ),
    }
}

async fn examine_sink(setting: &SinkSetting, sink: &Arc<dyn Sink>, destinations: &[String]) -> Vec<Remark> {
    let of = format!("sink {}", setting.name);
    let Ok(mut findings) = tokio::time::timeout(PATIENCE, sink.examine(destinations)).await else {
        let text = format!(
            "the broker did not answer within {} s. Events for it wait in the log",
            PATIENCE.as_secs()
        );
        return vec![remark(of, "answer", Level::Fail, text)];
    };
    if findings.is_empty() {
        return vec![remark(of, "sink", Level::Ok, "there is nothing to check".to_owned())];
    }
    for finding in &mut findings {
        // With `durability = "durable"` nothing is sent there.
        if setting.durable && finding.check == DURABILITY && finding.level == Level::Warn {
            finding.level = Level::Fail;
        }
    }
    findings.into_iter().map(|finding| Remark { of: of.clone(), finding }).collect()
}

/// The longest time over which the routes of a sink retry an event.
fn horizon(outboxes: &[&Outbox], sink: &str) -> Duration {
    let routes = outboxes.iter().flat_map(|outbox| outbox.routes.routes());
    let feeds = routes.filter(|route| route.sinks.iter().any(|name| name == sink));
    feeds.map(|route| route.retry.horizon()).max().unwrap_or_default()
}

/// A broker that drops duplicates forgets ids after a time; what is retried later is stored twice (F39).
async fn compare_windows(
    setting: &SinkSetting,
    sink: &Arc<dyn Sink>,
    destinations: &[String],
    horizon: Duration,
) -> Option<Remark> {
    let mut shortest: Option<(Duration, &String)> = None;
    for destination in destinations {
        let window = tokio::time::timeout(PATIENCE, sink.dedup_window(destination)).await.ok().flatten();
        if let Some(window) = window.filter(|window| shortest.is_none_or(|(least, _)| *window < least)) {
            shortest = Some((window, destination));
        }
    }
    let (window, destination) = shortest?;
    let text = format!(
        "{destination:?} drops duplicates for {} s, and events are retried over {} s",
        window.as_secs(),
        horizon.as_secs()
    );
    let of = format!("sink {}", setting.name);
    if window >= horizon {
        return Some(remark(of, "dedup", Level::Ok, text));
    }
    let how = setting.config.longer_dedup(horizon.as_secs().next_multiple_of(60));
    let how = how.map_or_else(String::new, |how| format!(" ({how})"));
    let more = format!(
        "{text}: one that is retried after that may be stored twice. Make the window longer{how}, retry less (`retry` of \
         the route), or let the consumer's inbox refuse the second one"
    );
    Some(remark(of, "dedup", Level::Warn, more))
}

fn draw(remarks: &[Remark]) -> String {
    let word = |level| match level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        Level::Fail => "fail",
    };
    let row = |r: &Remark| {
        vec![word(r.finding.level).to_owned(), r.of.clone(), r.finding.check.clone(), r.finding.text.clone()]
    };
    let count = |level| remarks.iter().filter(|r| r.finding.level == level).count();
    let rows = table(&["", "of", "check", "what was found"], remarks.iter().map(row).collect());
    format!("{rows}\n\n{} ok, {} warn, {} fail", count(Level::Ok), count(Level::Warn), count(Level::Fail))
}
