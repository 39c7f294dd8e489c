//! `posthaste doctor`: checks every assumption, of the stores and of the brokers, and says what to do.

use super::Context;
use crate::config::{Outbox, scrub};
use crate::daemon::Sinks;
use crate::output::table;
use clap::Args;
use posthaste::admin::Admin;
use posthaste::route::{Pattern, Route};
use posthaste::sink::{Finding, Level, Sink};
use posthaste_postgres::PostgresAdmin;
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

ok    as it should be
warn  works, but can lose or stall in the way that is named
fail  does not work; the exit code is 1

Nothing is changed and nothing is published.";

/// Check databases, privileges, clocks, poolers and brokers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {}

#[derive(Serialize)]
struct Remark {
    /// `outbox NAME` or `sink NAME`.
    of: String,
    #[serde(flatten)]
    finding: Finding,
}

pub(crate) async fn run(context: &Context, _args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outboxes = context.outboxes(&config)?;
    let mut remarks = Vec::new();
    for warning in &config.warnings {
        remarks.push(remark("configuration".to_owned(), "config", Level::Warn, warning.clone()));
    }
    for outbox in &outboxes {
        remarks.extend(examine_outbox(outbox).await);
    }
    let sinks = Sinks::build(&config).await?;
    for setting in &config.sinks {
        if let Some(sink) = sinks.share(&setting.name) {
            remarks.extend(examine_sink(&setting.name, &sink, &destinations(&outboxes, &setting.name)).await);
        }
    }
    sinks.close().await;
    context.out().data(&remarks, || draw(&remarks))?;
    let failed = remarks.iter().any(|remark| remark.finding.level == Level::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn remark(of: String, check: &str, level: Level, text: String) -> Remark {
    Remark { of, finding: Finding { check: check.to_owned(), level, text: scrub(&text) } }
}

async fn examine_outbox(outbox: &Outbox) -> Vec<Remark> {
    let of = format!("outbox {}", outbox.name);
    // Not `connect`: that refuses the very databases that have something to be found.
    match PostgresAdmin::new(outbox.postgres.clone()).doctor().await {
        Ok(findings) => findings.into_iter().map(|finding| Remark { of: of.clone(), finding }).collect(),
        Err(error) => vec![remark(of, "connect", Level::Fail, error.to_string())],
    }
}

async fn examine_sink(name: &str, sink: &Arc<dyn Sink>, destinations: &[String]) -> Vec<Remark> {
    let of = format!("sink {name}");
    let Ok(findings) = tokio::time::timeout(PATIENCE, sink.examine(destinations)).await else {
        let text = format!(
            "the broker did not answer within {} s. Events for it wait in the log",
            PATIENCE.as_secs()
        );
        return vec![remark(of, "answer", Level::Fail, text)];
    };
    if findings.is_empty() {
        return vec![remark(of, "sink", Level::Ok, "there is nothing to check".to_owned())];
    }
    findings.into_iter().map(|finding| Remark { of: of.clone(), finding }).collect()
}

/// Addresses that are known without an event: fixed ones, and topics without a wildcard.
fn destinations(outboxes: &[&Outbox], sink: &str) -> Vec<String> {
    let feeds = |route: &&Arc<Route>| route.sinks.iter().any(|name| name == sink);
    let routes = outboxes.iter().flat_map(|outbox| outbox.routes.routes()).filter(feeds);
    let mut known: Vec<String> = routes.flat_map(|route| known_of(route)).collect();
    known.sort();
    known.dedup();
    known
}

fn known_of(route: &Route) -> Vec<String> {
    if let Some(fixed) = route.destination.fixed() {
        return vec![fixed.to_owned()];
    }
    let exact = |pattern: &&Pattern| !pattern.as_str().contains('*');
    let topics = route.topics.iter().filter(exact).map(|pattern| pattern.as_str().to_owned());
    if route.destination.is_topic() { topics.collect() } else { Vec::new() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::route::Template;

    #[test]
    fn only_addresses_that_are_certain_are_examined() {
        let mut route = Route::everything_to("s");
        route.topics = vec![Pattern::new("a.b"), Pattern::new("c.*")];
        assert_eq!(known_of(&route), ["a.b"]);
        route.destination = Template::parse("fixed").expect("valid");
        assert_eq!(known_of(&route), ["fixed"]);
        route.destination = Template::parse("{key}").expect("valid");
        assert!(known_of(&route).is_empty());
    }
}
