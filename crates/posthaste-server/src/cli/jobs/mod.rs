//! `posthaste jobs`: bulk acts, and how far they are. What runs one is in [`drive`].

pub(super) mod ask;
pub(super) mod drive;

use super::{Context, explain, explain_act};
use crate::config::Outbox;
use crate::output::escape::line;
use crate::output::{Usage, fields, table, thousands, time};
use clap::{Args, Subcommand};
use posthaste::admin::job::{CHUNK_MAX, JobOrder, JobPlan, JobState, JobStatus, JobStore};
use posthaste::admin::{Actor, AdminError};
use serde_json::json;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste jobs                              the newest first
  posthaste jobs list --open                  what is not over
  posthaste jobs show 7
  posthaste jobs pause 7 --reason 'the warehouse is slow'
  posthaste jobs resume 7 --reason 'it is quick again'
  posthaste jobs cancel 7 --reason 'wrong filter'

A replay, discard or retry of what a filter matches is a job: its progress is in
the database. A chunk is one transaction with its line in the audit. A job whose
process died goes on behind its last chunk: resume it. Nothing is done twice.";

const LIST_EXAMPLES: &str = "\
Examples:
  posthaste jobs list --open
  posthaste jobs list --limit 5 --before 20
  posthaste jobs list --json | jq '.jobs[] | select(.state == \"failed\")'";

const SHOW_EXAMPLES: &str = "\
Examples:
  posthaste jobs show 7
  posthaste jobs show 7 --json | jq .reasons

Shows what it was asked to do, by whom and why, how far it is, and why some were
left alone.";

const PAUSE_EXAMPLES: &str = "\
Examples:
  posthaste jobs pause 7 --reason 'the warehouse is slow'

The chunk that is under way is done to its end. `posthaste jobs resume` goes on
behind it.";

const CANCEL_EXAMPLES: &str = "\
Examples:
  posthaste jobs cancel 7 --reason 'wrong filter'

What is done is done: a cancelled job takes nothing back, and is not resumed.";

const RESUME_EXAMPLES: &str = "\
Examples:
  posthaste jobs resume 7 --reason 'it is quick again'

Runs the job here until it ends; Ctrl-C pauses it again. Also for a job whose
process died: after 20 seconds of silence it is free.";

/// List bulk acts; pause, resume or cancel one
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    act: Option<JobsCommand>,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// List jobs, the newest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Only those that are not over
        #[arg(long)]
        open: bool,
        /// Most jobs to print
        #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1_000))]
        limit: i64,
        /// Go on before this job of a former list
        #[arg(long, value_name = "JOB")]
        before: Option<i64>,
    },
    /// Show one job
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Its number
        job: i64,
    },
    /// Stop a job for now; its chunk is done to the end
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause(OrderArgs),
    /// Go on with a job, here
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(OrderArgs),
    /// Stop a job for good; what is done is done
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel(OrderArgs),
}

#[derive(Debug, Args)]
struct OrderArgs {
    /// Its number
    job: i64,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub(crate) async fn run(context: &Context, args: JobsArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    // A job about a consumer with tables of its own is done by those, as where it was begun.
    let here: Vec<_> = config.consumers.iter().filter(|one| one.outbox == outbox.name).collect();
    let admin = outbox.database.job_admin(&here).await.map_err(|error| explain(outbox, error))?;
    let admin = admin.ok_or_else(|| no_jobs(outbox))?;
    let jobs = admin.jobs().ok_or_else(|| no_jobs(outbox))?;
    let failed = |error: AdminError| explain_act(outbox, error);
    let default = JobsCommand::List { open: false, limit: 20, before: None };
    match args.act.unwrap_or(default) {
        JobsCommand::List { open, limit, before } => {
            let all = jobs.jobs(before, open, limit).await.map_err(failed)?;
            let next = all.last().filter(|_| all.len() as i64 == limit).map(|job| job.job);
            context.out().data(&json!({ "jobs": all, "next": next }), || draw_list(&all, next))?;
            Ok(ExitCode::SUCCESS)
        }
        JobsCommand::Show { job } => {
            let job = jobs.job(job).await.map_err(failed)?;
            context.out().data(&job, || draw(&job))?;
            Ok(ExitCode::SUCCESS)
        }
        JobsCommand::Pause(args) => order(context, outbox, jobs, args, JobOrder::Pause).await,
        JobsCommand::Cancel(args) => order(context, outbox, jobs, args, JobOrder::Cancel).await,
        JobsCommand::Resume(args) => resume(context, outbox, jobs, args).await,
    }
}

/// The refusal of an outbox that keeps no jobs.
fn no_jobs(outbox: &Outbox) -> anyhow::Error {
    let why =
        "it is an adopted table, and has no place for jobs: acts on it run in the command that was given";
    Usage(format!("outbox `{}`: {why}", outbox.name)).into()
}

async fn order(
    context: &Context,
    outbox: &Outbox,
    jobs: &dyn JobStore,
    args: OrderArgs,
    order: JobOrder,
) -> anyhow::Result<ExitCode> {
    let actor = context.actor(&args.reason);
    let job = jobs.order_job(args.job, order, &actor).await.map_err(|error| explain_act(outbox, error))?;
    told(context, &job, &actor)?;
    Ok(ExitCode::SUCCESS)
}

async fn resume(
    context: &Context,
    outbox: &Outbox,
    jobs: &dyn JobStore,
    args: OrderArgs,
) -> anyhow::Result<ExitCode> {
    let failed = |error: AdminError| explain_act(outbox, error);
    let actor = context.actor(&args.reason);
    let found = jobs.job(args.job).await.map_err(failed)?;
    if let Err(why) = JobPlan::read(&found.plan.to_string()) {
        anyhow::bail!("job {}: {why}. Nothing was done", args.job);
    }
    let resumed = jobs.order_job(args.job, JobOrder::Resume, &actor).await.map_err(failed)?;
    let lease = jobs.take_job(&drive::owner(), Some(args.job)).await.map_err(failed)?;
    let Some(lease) = lease else {
        let now = jobs.job(args.job).await.map_err(failed)?;
        let owner = now.owner.as_deref().unwrap_or("somebody");
        let done = match found.state {
            JobState::Paused => "it was resumed, and is not run here",
            _ => "nothing was done",
        };
        anyhow::bail!("job {} is run by {} at this moment; {done}", args.job, line(owner));
    };
    let job = drive::drive(context, jobs, &lease, &resumed, (CHUNK_MAX, &actor)).await.map_err(failed)?;
    told(context, &job, &actor)?;
    Ok(if job.state == JobState::Done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What became of a job by an order. The order has a trace of its own; the job's chunks go by the job's.
fn told(context: &Context, job: &JobStatus, actor: &Actor) -> anyhow::Result<()> {
    let mut answer = serde_json::to_value(job)?;
    answer["job_trace_id"] = job.trace_id.as_str().into();
    context.out().acted(answer, Some(actor), || sentence(job))
}

/// How far a job is, in one sentence.
pub(super) fn sentence(job: &JobStatus) -> String {
    let looked = job.done + job.left_alone;
    let state = match job.state {
        JobState::Running if !job.alive => "running, but its process is silent",
        state => state.as_str(),
    };
    let left = match job.left_alone {
        0 => String::new(),
        left => format!(", {} left alone: {}", thousands(left), reasons(job)),
    };
    let error = job.error.as_ref().map_or_else(String::new, |error| format!("; {}", line(error)));
    format!(
        "job {} ({}): {state}, {} done{left}; {} of {} looked at{error}",
        job.job,
        job.kind,
        thousands(job.done),
        thousands(looked),
        thousands(job.total.max(looked)),
    )
}

/// Why some were left alone.
pub(super) fn reasons(job: &JobStatus) -> String {
    let each = job.reasons.iter().map(|(code, count)| format!("{} {}", thousands(*count), line(code)));
    each.collect::<Vec<_>>().join(", ")
}

fn draw_list(jobs: &[JobStatus], next: Option<i64>) -> String {
    if jobs.is_empty() {
        return "no jobs".to_owned();
    }
    let row = |job: &JobStatus| {
        let state = if job.state == JobState::Running && !job.alive { "silent" } else { job.state.as_str() };
        vec![
            job.job.to_string(),
            job.kind.clone(),
            state.to_owned(),
            thousands(job.done),
            thousands(job.total),
            job.actor.clone(),
            time(job.created_at),
        ]
    };
    let mut text =
        table(&[">job", "kind", "state", ">done", ">of", "who", "since"], jobs.iter().map(row).collect());
    if let Some(job) = next {
        text.push_str(&format!("\nthere may be more: --before {job}"));
    }
    text
}

fn draw(job: &JobStatus) -> String {
    let none = || "-".to_owned();
    let who = if job.verified { "by a token" } else { "as they say" };
    let lines = [
        ("job", format!("{}, {}", job.job, job.kind)),
        ("state", sentence(job)),
        ("plan", job.plan.to_string()),
        ("up to", job.upto.clone()),
        ("at", job.position.clone().unwrap_or_else(none)),
        ("rate", job.rate_per_s.map_or_else(|| "none".to_owned(), |rate| format!("{rate}/s"))),
        ("who", format!("{}, {who}", job.actor)),
        ("why", job.reason.clone()),
        ("trace", job.trace_id.clone()),
        ("run by", job.owner.clone().unwrap_or_else(none)),
        ("asked for", time(job.created_at)),
        ("begun", job.started_at.map_or_else(none, time)),
        ("ended", job.ended_at.map_or_else(none, time)),
    ];
    fields(&lines, "")
}
