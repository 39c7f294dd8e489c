//! `posthaste doctor`: checks every assumption, of the stores and of the brokers, and says what to do.

mod tenants;

use super::{Context, time};
use crate::config::{ConsumerSetting, Outbox, SinkConfig, SinkSetting, scrub};
use crate::daemon::{Sinks, destinations, example_destinations};
use crate::output::{plural, seconds, table};
use clap::Args;
use posthaste::admin::{AdminError, DeadFilter, DeferredCause, DeferredFilter, OutboxStatus};
use posthaste::clock::{Clock, SystemClock};
use posthaste::sink::{DURABILITY, Finding, Level, Sink};
use posthaste_postgres::doctor::{Bounds, CONSUMER_RIGHTS};
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// A broker that does not answer within this time is a finding of its own.
const PATIENCE: Duration = Duration::from_secs(15);

const EXAMPLES: &str = "\
Examples:
  posthaste doctor
  posthaste doctor --problems             only what is not as it should be
  posthaste doctor --json | jq '.[] | select(.level == \"fail\")'
  posthaste doctor --allow-warnings       in a pipeline that accepts warnings
  posthaste doctor --list                 the names of all checks

ok    as it should be
warn  works, but can lose or stall in the way that is named
fail  does not work

What is wrong comes first. The exit code is 1 if anything but ok was
found; with --allow-warnings, if something fails. Nothing is changed and nothing
is published.";

/// Checks of this program itself, beside those of stores and sinks.
const OWN_CHECKS: [(&str, &[&str]); 6] = [
    ("configuration", &["config"]),
    ("outbox", &["connect", "lanes", WAITING]),
    ("sink", &["answer", "dedup"]),
    ("consumer login", &["connect", "answer"]),
    ("consumer outbox", &[LETTERS_TOLD]),
    ("gateway", &["connect", tenants::LIMITER]),
];

/// What events wait for after an error.
const WAITING: &str = "waiting";
/// Causes that are told, and looked up at the broker.
const CAUSES_MAX: i64 = 8;

/// Whether events of dead letters are relayed.
const LETTERS_TOLD: &str = "letters_told";
/// A relay that lives settles the event of a letter within this time.
const TOLD_WITHIN: Duration = Duration::from_secs(600);

/// Whether a broker knows an address.
const DESTINATION: &str = "destination";

/// Checks of a broker that does not let us ask it anything more.
const SILENT: [&str; 3] = ["answer", "reachable", "authenticated"];

/// Check databases, privileges, clocks, poolers, consumers, the gateway and brokers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Exit with 0 if there are warnings and nothing worse
    #[arg(long)]
    allow_warnings: bool,
    /// Show only what is not ok
    #[arg(long)]
    problems: bool,
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
    /// `outbox NAME`, `consumer NAME`, `gateway` or `sink NAME`.
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
    let mut waiting = Vec::new();
    for outbox in &outboxes {
        remarks.extend(examine_outbox(outbox, &bounds, &mut waiting).await);
    }
    for outbox in &outboxes {
        for setting in config.consumers.iter().filter(|setting| setting.outbox == outbox.name) {
            remarks.extend(examine_consumer(outbox, setting, &bounds).await);
        }
    }
    for outbox in &outboxes {
        remarks.extend(tenants::examine(outbox, &config, &bounds).await);
    }
    let sinks = Sinks::build(&config).await?;
    for setting in &config.sinks {
        if let Some(sink) = sinks.share(&setting.name) {
            let mut known = destinations(outboxes.iter().copied(), &setting.name);
            let waits = waiting.iter().filter(|cause: &&DeferredCause| cause.sink == *setting.name);
            known.extend(waits.map(|cause| cause.destination.clone()).filter(|to| !to.is_empty()));
            known.sort();
            known.dedup();
            let mut found = examine_sink(setting, &sink, &known).await;
            let is_silent = |remark: &Remark| {
                remark.finding.level == Level::Fail && SILENT.contains(&remark.finding.check.as_str())
            };
            let answers = !found.iter().any(is_silent);
            if answers && takes_patterns(&setting.config) {
                let mut examples = example_destinations(outboxes.iter().copied(), &setting.name);
                examples.retain(|example| !known.contains(example));
                let more = examine_examples(setting, &sink, &examples, &found).await;
                found.extend(more);
                known.extend(examples);
            }
            remarks.extend(found);
            if answers {
                let horizon = horizon(&outboxes, &setting.name);
                remarks.extend(compare_windows(setting, &sink, &known, horizon).await);
            }
        }
    }
    sinks.close().await;
    // A stable sort: within a level in the order of the checks.
    remarks.sort_by_key(|remark| std::cmp::Reverse(remark.finding.level));
    let counts = count(&remarks);
    let worst = remarks.first().map_or(Level::Ok, |remark| remark.finding.level);
    if args.problems {
        remarks.retain(|remark| remark.finding.level != Level::Ok);
    }
    context.out().data(&remarks, || draw(&remarks, &counts))?;
    let accepted = if args.allow_warnings { Level::Warn } else { Level::Ok };
    Ok(if worst <= accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Serialize)]
struct Listed {
    of: String,
    check: &'static str,
}

fn list(context: &Context) -> anyhow::Result<ExitCode> {
    let stores = crate::database::checks();
    let sinks = crate::config::sink_checks();
    let sources = crate::source::checks().into_iter().map(|(of, checks)| (format!("source {of}"), checks));
    let others =
        OWN_CHECKS.into_iter().chain(stores).chain(sinks).map(|(of, checks)| (of.to_owned(), checks));
    let listed: Vec<Listed> = others
        .chain(sources)
        .flat_map(|(of, checks)| checks.iter().map(move |check| Listed { of: of.clone(), check }))
        .collect();
    context.out().data(&listed, || {
        table(&["of", "check"], listed.iter().map(|l| vec![l.of.clone(), l.check.to_owned()]).collect())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn remark(of: String, check: &str, level: Level, text: String) -> Remark {
    Remark { of, finding: Finding { check: check.to_owned(), level, text: scrub(&text) } }
}

async fn examine_outbox(outbox: &Outbox, bounds: &Bounds, waiting: &mut Vec<DeferredCause>) -> Vec<Remark> {
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
        remarks.push(remark(of.clone(), "lanes", level, text));
    }
    if usable {
        match failing_causes(outbox).await {
            Ok(causes) => {
                let told = judge_waiting(&causes).into_iter();
                remarks.extend(told.map(|(level, text)| remark(of.clone(), WAITING, level, text)));
                waiting.extend(causes);
            }
            // What keeps it from being looked at has a name already.
            Err(_) if remarks.iter().any(|remark| remark.finding.level == Level::Fail) => {}
            Err(error) => {
                remarks.push(remark(of, WAITING, Level::Fail, format!("could not be checked: {error}")));
            }
        }
    }
    remarks
}

/// What waits after an error. What waits for its time, or behind another event of its key, is as it should
/// be.
async fn failing_causes(outbox: &Outbox) -> Result<Vec<DeferredCause>, AdminError> {
    let admin = outbox.database.admin().await?;
    let everything = DeferredFilter { all: true, ..DeferredFilter::default() };
    // Causes without an error are among them; there are few kinds of those.
    let mut causes = admin.deferred_causes(&everything, 4 * CAUSES_MAX).await?;
    causes.retain(|cause| cause.error_code.is_some() || cause.error.is_some());
    causes.truncate(CAUSES_MAX as usize);
    Ok(causes)
}

fn judge_waiting(causes: &[DeferredCause]) -> Vec<(Level, String)> {
    if causes.is_empty() {
        return vec![(Level::Ok, "no event waits because of an error".to_owned())];
    }
    let now = SystemClock.now();
    let told = causes.iter().map(|cause| {
        let place = match cause.destination.as_str() {
            "" => String::new(),
            destination => format!(", destination {destination:?}"),
        };
        let code = cause.error_code.as_deref().unwrap_or("an error of an older relay");
        let error = cause.error.as_deref().map_or_else(String::new, |error| format!(": {error}"));
        let text = format!(
            "{} for sink {}{place}, the oldest of them appended {} ago: {code}{error}. Nothing is lost, and what waits is \
             tried again by itself; mend the cause, and `posthaste status` shows it go down",
            match cause.count {
                1 => "1 event waits".to_owned(),
                count => format!("{} wait", plural(count.unsigned_abs(), "event")),
            },
            cause.sink,
            seconds(now.seconds_since(cause.oldest_at)),
        );
        (Level::Warn, text)
    });
    told.collect()
}

/// Its login, its tables and its broker. Of a login that is the outbox's own only what an outbox does not
/// need.
async fn examine_consumer(outbox: &Outbox, setting: &ConsumerSetting, bounds: &Bounds) -> Vec<Remark> {
    let of = format!("consumer {}", setting.name);
    let shares_login = outbox.database.server().is_some_and(|own| {
        (&own.url, &own.password_file) == (&setting.database.url, &setting.database.password_file)
    });
    let mut findings = match crate::database::examine_login(setting, bounds).await {
        Ok(findings) => findings,
        Err(error) => {
            let text = format!("{error}. Messages wait at the broker");
            vec![Finding { check: "connect".to_owned(), level: Level::Fail, text }]
        }
    };
    findings.retain(|finding| !shares_login || finding.check == CONSUMER_RIGHTS);
    findings.extend(crate::database::examine_handlers(setting).await);
    findings.extend(crate::database::examine_tables(setting).await);
    findings.extend(examine_letters(outbox, setting).await);
    match tokio::time::timeout(PATIENCE, crate::source::examine(setting)).await {
        Ok(found) => findings.extend(found),
        Err(_) => {
            let text =
                format!("its broker did not answer within {} s. Messages wait there", PATIENCE.as_secs());
            findings.push(Finding { check: "answer".to_owned(), level: Level::Fail, text });
        }
    }
    findings.into_iter().map(|found| remark(of.clone(), &found.check, found.level, found.text)).collect()
}

/// Whoever waits on the dead-letter topic hears of nothing while nobody relays it. A sink that has settled
/// something since the last letters died is alive.
async fn examine_letters(outbox: &Outbox, setting: &ConsumerSetting) -> Option<Finding> {
    let topic = &setting.own.dead_letters.as_ref().filter(|_| outbox.relays)?.topic;
    let routes = outbox.routes.routes().iter();
    let takes = routes.filter(|route| route.topics.iter().any(|pattern| pattern.matches(topic)));
    let sinks: Vec<&str> = takes.flat_map(|route| &route.sinks).map(|sink| &**sink).collect();
    let (level, text) = match silent_sinks(outbox, setting, &sinks).await {
        Ok(silent) if silent.is_empty() => (Level::Ok, format!("topic {topic:?} hears of dead letters")),
        Ok(silent) => {
            let (names, minutes) = (silent.join(", "), TOLD_WITHIN.as_secs() / 60);
            let why = "its relay is down, or the sink is paused or waits for its broker";
            let text = format!(
                "messages died more than {minutes} minutes ago, and sink {names} has settled nothing since: {why}. \
                 Nothing is lost, and topic {topic:?} does not hear of them: `posthaste status` says more"
            );
            (Level::Warn, text)
        }
        Err(error) => (Level::Fail, format!("could not be checked: {error}")),
    };
    Some(Finding { check: LETTERS_TOLD.to_owned(), level, text })
}

/// Those of these sinks whose last receipt is older than a letter that should be told of by now.
async fn silent_sinks(
    outbox: &Outbox,
    setting: &ConsumerSetting,
    sinks: &[&str],
) -> Result<Vec<String>, AdminError> {
    let Some(admin) = outbox.database.consumer_admin(None, &[setting]).await? else { return Ok(Vec::new()) };
    let (status, now) = (look(outbox).await?, SystemClock.now());
    let ago = |seconds: f64| now.plus_micros(-((seconds * 1e6) as i64));
    let mut silent = Vec::new();
    for name in sinks {
        let lanes = status.sinks.iter().filter(|sink| sink.sink == *name).flat_map(|sink| &sink.lanes);
        let receipt = lanes.filter_map(|lane| lane.settled_seconds_ago).min_by(f64::total_cmp).map(ago);
        let until = Some(ago(TOLD_WITHIN.as_secs_f64()));
        let untold = DeadFilter { since: receipt, until, ..DeadFilter::default() };
        if !admin.letters(&setting.name, &untold, None, 1).await?.is_empty() {
            silent.push((*name).to_owned());
        }
    }
    Ok(silent)
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

fn takes_patterns(sink: &SinkConfig) -> bool {
    matches!(sink, SinkConfig::Broker(broker) if broker.takes_patterns())
}

/// The same for one example of each pattern, as `init` looks at it. An example that goes nowhere is a warning
/// only: perhaps nobody sends it. What was said already is not said again.
async fn examine_examples(
    setting: &SinkSetting,
    sink: &Arc<dyn Sink>,
    examples: &[String],
    said: &[Remark],
) -> Vec<Remark> {
    if examples.is_empty() {
        return Vec::new();
    }
    let mut found = examine_sink(setting, sink, examples).await;
    found.retain(|remark| !said.iter().any(|before| before.finding == remark.finding));
    for Remark { finding, .. } in found.iter_mut().filter(|remark| remark.finding.check == DESTINATION) {
        finding.level = finding.level.min(Level::Warn);
        finding.text = format!("{} (an example of a route's pattern)", finding.text);
    }
    found
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

/// How many there are of each level, for people.
fn count(remarks: &[Remark]) -> String {
    let count = |level| remarks.iter().filter(|r| r.finding.level == level).count();
    format!("{} fail, {} warn, {} ok", count(Level::Fail), count(Level::Warn), count(Level::Ok))
}

fn draw(remarks: &[Remark], counts: &str) -> String {
    if remarks.is_empty() {
        return format!("nothing is wrong: {counts}");
    }
    let word = |level| match level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        Level::Fail => "fail",
    };
    let row = |r: &Remark| {
        vec![word(r.finding.level).to_owned(), r.of.clone(), r.finding.check.clone(), r.finding.text.clone()]
    };
    let rows = table(&["", "of", "check", "what was found"], remarks.iter().map(row).collect());
    format!("{rows}\n\n{counts}")
}
