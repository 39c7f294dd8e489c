//! Events of the log to a sink again: everything the filter matches, as a job.
//!
//! First the range is looked through and counted, as far as a look goes. Its end is fixed then: where the
//! sink's cursor stood. Otherwise a replay would run after the events that come in, and after its own.
//!
//! A login that may write no jobs drives the chunks here. Then Ctrl-C stops between two chunks. Whatever was
//! sent is sent and audited; `--from-seq` goes on behind it. The same is said when the database goes away in
//! between.

use super::FilterArgs;
use crate::cli::jobs::ask::{self, Asked, JobAsk};
use crate::cli::{Context, explain_act, rate};
use crate::config::Outbox;
use crate::output::{Usage, plural, remark, thousands};
use clap::Args;
use posthaste::admin::job::{JobPlan, Preview};
use posthaste::admin::{Actor, Admin, AdminError, EventFilter};
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
    let (pace, sink) = (ReplayPace { chunk: args.chunk(), rate: args.rate }, args.sink.clone());
    let mut filter = args.filter.filter();
    let Some(jobs) = admin.jobs() else {
        // An adopted table says what it cannot do.
        let refused = admin.events_replay(&sink, &filter, 0, 1, None).await;
        return refused.map(|_| ExitCode::SUCCESS).map_err(|error| explain_act(outbox, error));
    };
    let (would, did) = (format!("would be sent to {sink} again"), format!("on the way to {sink} again"));
    let ask = JobAsk {
        plan: JobPlan::EventsReplay { sink: sink.clone(), filter: filter.clone() },
        act: "replay",
        many: |count| plural(count, "event"),
        would: &would,
        did: &did,
        rate: args.rate,
        chunk: args.chunk,
        upto: None,
        reason: args.reason.as_deref(),
        dry_run: args.dry_run,
        yes: args.yes,
    };
    match ask::run(context, outbox, jobs, &ask).await? {
        Asked::Ended(ended) => Ok(ended),
        Asked::Nothing(seen) => {
            ask::look(context, &ask, &seen, &format!("nothing {would}"))?;
            Ok(ExitCode::SUCCESS)
        }
        Asked::NoJobs(seen) => {
            filter.to_seq = seen.upto.parse().ok();
            let actor = context.actor(ask.reason.unwrap_or_default());
            let done = send(admin, &sink, &filter, &actor, pace).await;
            report(context, outbox, (&sink, &seen), done, &actor)
        }
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

/// How many were to go, as far as that was looked at.
fn expected(look: &Preview) -> String {
    let least = if look.exact { "" } else { "at least " };
    format!("{least}{}", thousands(look.goes))
}

fn report(
    context: &Context,
    outbox: &Outbox,
    (sink, look): (&str, &Preview),
    done: ReplayResult,
    actor: &Actor,
) -> anyhow::Result<ExitCode> {
    let go_on = format!("--from-seq {} --to-seq {}", done.reached + 1, look.upto);
    let stopped = match done.ended {
        Ok(ReplayEnd::Whole) => false,
        Ok(ReplayEnd::Stopped) => true,
        Err(error) => {
            if done.events > 0 {
                remark(&format!(
                    "{} of {} were sent before it failed; for the rest: the same command with {go_on}",
                    thousands(done.events),
                    expected(look)
                ));
            }
            return Err(explain_act(outbox, error));
        }
    };
    let answer = json!({
        "sink": sink, "matched": look.matched(), "exact": look.exact, "left_alone": look.left_alone, "done": done.events,
        "reached": done.reached, "upto": look.upto, "stopped": stopped,
    });
    context.out().acted(answer, Some(actor), || match stopped {
        true => format!(
            "stopped: {} of {} are on their way to {sink} again. For the rest: the same command with\n  {go_on}",
            thousands(done.events),
            expected(look)
        ),
        false => format!(
            "{} on the way to {sink} again{}",
            plural(done.events, "event"),
            ask::left_alone(look)
        ),
    })?;
    Ok(if stopped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
