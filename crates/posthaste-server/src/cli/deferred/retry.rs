//! Letting events be tried now: everything the filter matches, as a job.
//!
//! A look before says how many go, and the last of them. No more than that is taken: an event that fails
//! again while this runs waits as long as its retries say. A login that may write no jobs drives the chunks
//! here.

use super::{WaitingArgs, check_sink};
use crate::cli::chunks::{self, Pace};
use crate::cli::jobs::ask::{self, Asked, JobAsk};
use crate::cli::{Context, explain_act, rate};
use crate::config::Outbox;
use crate::output::{Usage, plural, thousands};
use clap::Args;
use posthaste::admin::job::{JobPlan, Preview};
use posthaste::admin::{Admin, DeferredFilter};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    pub(super) filter: WaitingArgs,
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

impl RetryArgs {
    /// Refuses what no database is needed to refuse.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let WaitingArgs { sink, consumer: _, topic, key, destination, why, code, ids, all } = &self.filter;
        let texts = [sink, topic, key, destination, why, code];
        if *all || !ids.is_empty() || texts.iter().any(|text| text.is_some()) {
            return Ok(());
        }
        let text = "name what is meant: --id, --sink, --topic, --key, --destination, --why, --code, or --all";
        Err(Usage(text.to_owned()).into())
    }
}

/// What is asked for, of events and of messages.
pub(super) fn job_of(plan: JobPlan, many: fn(u64) -> String, args: &RetryArgs) -> JobAsk<'_> {
    JobAsk {
        plan,
        act: "retry",
        many,
        would: "would be tried now",
        did: "due now",
        rate: args.rate,
        chunk: args.chunk,
        upto: None,
        reason: args.reason.as_deref(),
        dry_run: args.dry_run,
        yes: args.yes,
    }
}

pub(super) async fn run(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    args: RetryArgs,
) -> anyhow::Result<ExitCode> {
    let filter = args.filter.filter();
    let Some(jobs) = admin.jobs() else {
        // An adopted table says what it cannot do.
        let refused = admin.deferred_list(&filter, None, 1).await;
        return refused.map(|_| ExitCode::SUCCESS).map_err(|error| explain_act(outbox, error));
    };
    let plan = JobPlan::DeferredRetry { filter: filter.clone() };
    let ask = job_of(plan, |count| plural(count, "event"), &args);
    match ask::run(context, outbox, jobs, &ask).await? {
        Asked::Ended(ended) => Ok(ended),
        Asked::Nothing(seen) => {
            if seen.matched() == 0 {
                check_sink(outbox, admin, &filter).await?;
            }
            ask::look(context, &ask, &Preview { samples: Vec::new(), ..seen }, "nothing would be tried now")?;
            Ok(ExitCode::SUCCESS)
        }
        Asked::NoJobs(seen) => by_chunks(context, outbox, admin, (&filter, &ask), &seen).await,
    }
}

/// Without a job.
async fn by_chunks(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    (filter, ask): (&DeferredFilter, &JobAsk<'_>),
    seen: &Preview,
) -> anyhow::Result<ExitCode> {
    let actor = context.actor(ask.reason.unwrap_or_default());
    let pace = Pace { chunk: chunks::chunk(ask.chunk, ask.rate), rate: ask.rate, matched: seen.goes };
    let step = async |chunk| admin.deferred_retry(filter, &actor, chunk).await;
    let result = chunks::run(pace, context.out().json, step).await;
    let result = result.map_err(|error| explain_act(outbox, error))?;
    let answer = json!({
        "act": ask.act, "matched": seen.matched(), "left_alone": seen.left_alone, "done": result.done,
        "stopped": result.stopped,
    });
    context.out().acted(answer, Some(&actor), || match result.stopped {
        true => format!(
            "stopped: {} of {} are due now. What is done is done; run the same command again\nfor the rest",
            thousands(result.done),
            thousands(seen.goes)
        ),
        false => format!("{} {}{}", (ask.many)(result.done), ask.did, ask::left_alone(seen)),
    })?;
    Ok(if result.stopped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
