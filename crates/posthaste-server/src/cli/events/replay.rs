//! Events of the log to a sink again: everything the filter matches, in chunks that are transactions of their
//! own.
//!
//! First the whole range is looked through and counted. Its end is fixed then: where the sink's cursor stood.
//! Otherwise a replay would run after the events that come in, and after its own.
//!
//! Ctrl-C stops between two chunks. Whatever was sent is sent and audited; `--from-seq` goes on behind it.
//! The same is said when the database goes away in between.

use super::{FilterArgs, draw};
use crate::cli::{Context, explain_act, rate};
use crate::config::Outbox;
use crate::output::{Usage, ask, is_interactive, plural, remark, thousands};
use clap::Args;
use posthaste::admin::{Actor, Admin, AdminError, EventFilter, LogEvent};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// To this sink
    #[arg(long, value_name = "NAME")]
    sink: String,
    #[command(flatten)]
    filter: FilterArgs,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Only count, and show the first few
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Events in one transaction
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=10_000))]
    chunk: i64,
    /// At most this many events a second, like 100/s
    #[arg(long, value_name = "N/s", value_parser = rate)]
    rate: Option<f64>,
}

impl ReplayArgs {
    /// Refuses what no database is needed to refuse.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let filter = &self.filter;
        let named = filter.topic.is_some()
            || filter.key.is_some()
            || filter.since.is_some()
            || filter.until.is_some()
            || filter.from_seq.is_some()
            || filter.to_seq.is_some();
        if named {
            return Ok(());
        }
        Err(Usage(
            "name what is meant: --topic, --key, --since, --until, --from-seq or --to-seq; --from-seq 1 is everything"
                .into(),
        )
        .into())
    }

    /// A chunk is no larger than what a second allows, so that the rate is even and Ctrl-C is quick.
    fn chunk(&self) -> i64 {
        self.rate.map_or(self.chunk, |rate| self.chunk.min((rate.ceil() as i64).max(1)))
    }
}

/// What the whole range holds.
#[derive(Default)]
struct ReplayPreview {
    matched: u64,
    left_alone: u64,
    to_seq: i64,
    samples: Vec<LogEvent>,
}

/// How it went.
struct ReplayResult {
    events: u64,
    /// The last number looked at.
    reached: i64,
    ended: Result<ReplayEnd, AdminError>,
}

enum ReplayEnd {
    Whole,
    Stopped,
}

pub(super) async fn run(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    args: ReplayArgs,
) -> anyhow::Result<ExitCode> {
    let (chunk, rate, sink) = (args.chunk(), args.rate, args.sink.clone());
    let mut filter = args.filter.filter();
    let look = look(admin, &sink, &filter).await.map_err(|error| explain_act(outbox, error))?;
    filter.to_seq = Some(look.to_seq);
    if args.dry_run {
        return report_look(context, &sink, &look);
    }
    if look.matched > 1 && !args.yes && !agreed(&sink, look.matched)? {
        remark("nothing was done");
        return Ok(ExitCode::FAILURE);
    }
    let actor = context.actor(args.reason.as_deref().unwrap_or_default());
    let done = send(admin, &sink, &filter, &actor, ReplayPace { chunk, rate }).await;
    report(context, outbox, &sink, &look, done)
}

/// Looks through the whole range without changing anything.
async fn look(admin: &dyn Admin, sink: &str, filter: &EventFilter) -> Result<ReplayPreview, AdminError> {
    let (mut look, mut filter, mut after) = (ReplayPreview::default(), filter.clone(), 0);
    loop {
        let chunk = admin.events_replay(sink, &filter, after, 10_000, None).await?;
        if look.samples.is_empty() {
            look.samples = chunk.samples;
        }
        look.matched += chunk.events;
        look.left_alone += chunk.left_alone;
        look.to_seq = chunk.to_seq;
        filter.to_seq = Some(chunk.to_seq);
        if chunk.done {
            return Ok(look);
        }
        after = chunk.reached;
    }
}

#[derive(Clone, Copy)]
struct ReplayPace {
    chunk: i64,
    rate: Option<f64>,
}

async fn send(
    admin: &dyn Admin,
    sink: &str,
    filter: &EventFilter,
    actor: &Actor,
    pace: ReplayPace,
) -> ReplayResult {
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let mut done = ReplayResult { events: 0, reached: 0, ended: Ok(ReplayEnd::Whole) };
    let mut next = Instant::now();
    loop {
        let chunk = match admin.events_replay(sink, filter, done.reached, pace.chunk, Some(actor)).await {
            Ok(chunk) => chunk,
            Err(error) => return ReplayResult { ended: Err(error), ..done },
        };
        done.events += chunk.events;
        done.reached = chunk.reached;
        if chunk.done {
            return done;
        }
        let pause =
            pace.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(chunk.events as f64 / rate));
        next = next.max(Instant::now() - pause) + pause;
        tokio::select! {
            biased;
            _ = &mut interrupted => return ReplayResult { ended: Ok(ReplayEnd::Stopped), ..done },
            () = sleep_until(next) => {}
        }
    }
}

fn left_alone(number: u64) -> String {
    match number {
        0 => String::new(),
        number => format!("; {} waiting or dead already, left alone", thousands(number)),
    }
}

fn report_look(context: &Context, sink: &str, look: &ReplayPreview) -> anyhow::Result<ExitCode> {
    let answer = json!({
        "sink": sink, "matched": look.matched, "left_alone": look.left_alone, "to_seq": look.to_seq,
        "samples": look.samples, "done": 0, "dry_run": true,
    });
    context.out().data(&answer, || {
        let mut text = format!(
            "{} would be sent to {sink} again, up to number {}{}",
            plural(look.matched, "event"),
            look.to_seq,
            left_alone(look.left_alone)
        );
        for event in &look.samples {
            text.push_str(&format!("\n{}", draw(event)));
        }
        if look.matched > look.samples.len() as u64 {
            text.push_str("\n…");
        }
        text
    })?;
    Ok(ExitCode::SUCCESS)
}

fn report(
    context: &Context,
    outbox: &Outbox,
    sink: &str,
    look: &ReplayPreview,
    done: ReplayResult,
) -> anyhow::Result<ExitCode> {
    let go_on = format!("--from-seq {} --to-seq {}", done.reached + 1, look.to_seq);
    let stopped = match done.ended {
        Ok(ReplayEnd::Whole) => false,
        Ok(ReplayEnd::Stopped) => true,
        Err(error) => {
            if done.events > 0 {
                remark(&format!(
                    "{} of {} were sent before it failed; for the rest: the same command with {go_on}",
                    thousands(done.events),
                    thousands(look.matched)
                ));
            }
            return Err(explain_act(outbox, error));
        }
    };
    let answer = json!({
        "sink": sink, "matched": look.matched, "left_alone": look.left_alone, "done": done.events,
        "reached": done.reached, "to_seq": look.to_seq, "stopped": stopped,
    });
    context.out().data(&answer, || match stopped {
        true => format!(
            "stopped: {} of {} are on their way to {sink} again. For the rest: the same command with\n  {go_on}",
            thousands(done.events),
            thousands(look.matched)
        ),
        false => format!(
            "{} on the way to {sink} again{}",
            plural(done.events, "event"),
            left_alone(look.left_alone)
        ),
    })?;
    Ok(if stopped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Asks on a terminal; elsewhere silence is no consent.
fn agreed(sink: &str, matched: u64) -> anyhow::Result<bool> {
    let events = plural(matched, "event");
    if !is_interactive() {
        let text =
            format!("{events} would be sent to {sink} again: say --yes to do it, or --dry-run to look");
        return Err(Usage(text).into());
    }
    ask(&format!("send {events} to {sink} again"))
}
