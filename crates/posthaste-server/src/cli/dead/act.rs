//! Replay and discard: everything the filter matches, in chunks that are transactions of their own.
//!
//! The filter, not the page, is what is meant (F58): the count that a dry run prints is the count that is
//! done. What a filter matches is a job, which has an end: letters that die while it runs are not part of it.
//! Ctrl-C pauses it.
//!
//! Letters that are named, those of an adopted table, and those of a login that may write no jobs are acted
//! on here, chunk by chunk. Without `--until` the end of the filter is the store's clock at the start;
//! otherwise an event that dies again and again would be replayed for ever. Ctrl-C stops between two chunks,
//! and the same command takes the rest.

use super::{check_sink, id_of};
use crate::cli::chunks::{self, ActResult, Pace};
use crate::cli::jobs::ask::{self, Asked, JobAsk};
use crate::cli::letters::filter::FilterArgs;
use crate::cli::letters::no_letter;
use crate::cli::{Context, event_name, explain_act, rate};
use crate::config::Outbox;
use crate::output::{Usage, plural, remark, thousands};
use clap::Args;
use posthaste::admin::job::{JobPlan, JobStore};
use posthaste::admin::{Actor, Admin, AdminError, DeadAct, DeadFilter, EventName};
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::inbox::kept::KeptHeaders;
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct ActArgs {
    /// Of these events, by id or number; of a consumer, letters by their own ids
    #[arg(value_name = "ID|SEQ", value_parser = event_name)]
    events: Vec<EventName>,
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Only count
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// None beyond this one: `upto` of a dry run
    #[arg(long, value_name = "LETTER", conflicts_with_all = ["events", "ids"])]
    upto: Option<String>,
    /// Letters in one transaction
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=10_000))]
    chunk: i64,
    /// At most this many letters a second, like 100/s
    #[arg(long, value_name = "N/s", value_parser = rate)]
    rate: Option<f64>,
}

impl ActArgs {
    /// Refuses what no database is needed to refuse.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.events.is_empty() && self.filter.clone().filter().is_empty() {
            return Err(Usage(
                "name what is meant: an event's id, --sink, --topic, --key, --code, --fingerprint, --since, --until, another \
                 condition of --help, or --all"
                    .into(),
            )
            .into());
        }
        Ok(())
    }
}

/// Whose letters: those of sinks, or of a consumer, and which headers these keep.
#[derive(Clone, Copy)]
pub(super) enum Letters<'a> {
    Sinks(&'a dyn Admin),
    Consumer(&'a dyn ConsumerAdmin, &'a str, &'a KeptHeaders),
}

impl<'a> Letters<'a> {
    fn jobs(self) -> Option<&'a dyn JobStore> {
        match self {
            Self::Sinks(admin) => admin.jobs(),
            Self::Consumer(admin, ..) => admin.jobs(),
        }
    }

    fn plan(self, act: DeadAct, filter: DeadFilter) -> JobPlan {
        match self {
            Self::Sinks(_) => JobPlan::dead(act, filter),
            Self::Consumer(_, consumer, headers) => {
                let (consumer, headers) = (consumer.to_owned(), headers.clone());
                match act {
                    DeadAct::Replay => JobPlan::ConsumerReplay { consumer, filter, headers },
                    DeadAct::Discard => JobPlan::ConsumerDiscard { consumer, filter },
                }
            }
        }
    }

    async fn count(self, filter: &DeadFilter) -> Result<u64, AdminError> {
        match self {
            Self::Sinks(admin) => admin.dead_count(filter).await,
            Self::Consumer(admin, name, _) => admin.letter_count(name, filter).await,
        }
    }

    async fn act(
        self,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        match self {
            Self::Sinks(admin) => admin.dead_act(filter, act, actor, chunk).await,
            Self::Consumer(admin, name, headers) if act == DeadAct::Replay => {
                admin.replay_letters(name, filter, headers, actor, chunk).await
            }
            Self::Consumer(admin, name, _) => admin.letter_act(name, filter, act, actor, chunk).await,
        }
    }

    /// What is meant, with an end: what dies from now on is not part of it.
    async fn filter(
        self,
        outbox: &Outbox,
        args: FilterArgs,
        events: Vec<EventName>,
    ) -> anyhow::Result<DeadFilter> {
        let mut filter = args.filter();
        for event in events {
            filter.ids.push(match (self, event) {
                (Self::Sinks(admin), event) => id_of(outbox, admin, event).await?,
                (Self::Consumer(..), EventName::Id(id)) => id,
                (Self::Consumer(..), EventName::Seq(_)) => {
                    return Err(Usage("a consumer's letters have ids, and no numbers".to_owned()).into());
                }
            });
        }
        if let (Self::Sinks(admin), None) = (self, filter.until) {
            filter.until = Some(admin.status().await.map_err(|error| explain_act(outbox, error))?.now);
        }
        Ok(filter)
    }
}

pub(super) async fn run(
    context: &Context,
    outbox: &Outbox,
    letters: Letters<'_>,
    act: DeadAct,
    args: ActArgs,
) -> anyhow::Result<ExitCode> {
    let failed = |error| explain_act(outbox, error);
    let asked = as_job(context, outbox, letters, act, &args).await?;
    if let Some(Asked::Ended(ended)) = asked {
        return Ok(ended);
    }
    if args.upto.is_some() {
        return without_job(context, act, &args, asked);
    }
    let agreed = args.yes || matches!(asked, Some(Asked::NoJobs(_)));
    let (chunk, rate) = (chunks::chunk(args.chunk, args.rate), args.rate);
    let filter = letters.filter(outbox, args.filter, args.events).await?;
    let matched = letters.count(&filter).await.map_err(failed)?;
    if matched == 0 {
        if let Letters::Sinks(admin) = letters {
            check_sink(outbox, admin, &filter).await?;
        }
        if let Some(id) = filter.ids.first() {
            return Err(no_letter(outbox, *id, matches!(letters, Letters::Consumer(..))));
        }
    }
    let verb = if act == DeadAct::Replay { "replay" } else { "discard" };
    if args.dry_run {
        let answer = json!({ "act": verb, "matched": matched, "done": 0, "dry_run": true });
        context.out().data(&answer, || format!("{} would be {verb}ed", plural(matched, "dead letter")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let named = plural(matched, "dead letter");
    if matched > 1
        && !agreed
        && !chunks::agreed(&format!("{verb} {named}"), &format!("{named} would be {verb}ed"))?
    {
        remark("nothing was done");
        return Ok(ExitCode::FAILURE);
    }
    let actor = context.actor(args.reason.as_deref().unwrap_or_default());
    let step = async |chunk| letters.act(&filter, act, &actor, chunk).await;
    let done = chunks::run(Pace { chunk, rate, matched }, context.out().json, step).await.map_err(failed)?;
    report(context, verb, matched, &done, &actor)
}

/// An act with an end, of which no job came: nothing is done, for a filter alone would go beyond that end.
fn without_job(
    context: &Context,
    act: DeadAct,
    args: &ActArgs,
    asked: Option<Asked>,
) -> anyhow::Result<ExitCode> {
    let Some(Asked::Nothing(seen)) = asked else {
        let why =
            "--upto is the end of a job, and there is no place for one here; give --until. Nothing was done";
        return Err(Usage(why.into()).into());
    };
    let answer = json!({
        "act": act.action(), "matched": seen.matched(), "left_alone": seen.left_alone, "done": 0,
        "dry_run": args.dry_run,
    });
    let text = || format!("nothing would be {}ed{}", act.action(), ask::left_alone(&seen));
    context.out().data(&answer, text)?;
    Ok(ExitCode::SUCCESS)
}

/// As a job, if a filter says what is meant and there is a place for one.
async fn as_job(
    context: &Context,
    outbox: &Outbox,
    letters: Letters<'_>,
    act: DeadAct,
    args: &ActArgs,
) -> anyhow::Result<Option<Asked>> {
    let filter = args.filter.clone().filter();
    let Some(jobs) = letters.jobs().filter(|_| args.events.is_empty() && filter.ids.is_empty()) else {
        return Ok(None);
    };
    let (act_name, would, did) = match act {
        DeadAct::Replay => ("replay", "would be replayed", "replayed"),
        DeadAct::Discard => ("discard", "would be discarded", "discarded"),
    };
    let ask = JobAsk {
        plan: letters.plan(act, filter),
        act: act_name,
        many: |count| plural(count, "dead letter"),
        would,
        did,
        rate: args.rate,
        chunk: args.chunk,
        upto: args.upto.as_deref(),
        reason: args.reason.as_deref(),
        dry_run: args.dry_run,
        yes: args.yes,
    };
    ask::run(context, outbox, jobs, &ask).await.map(Some)
}

fn report(
    context: &Context,
    verb: &str,
    matched: u64,
    done: &ActResult,
    actor: &Actor,
) -> anyhow::Result<ExitCode> {
    let answer = json!({ "act": verb, "matched": matched, "done": done.done, "stopped": done.stopped });
    context.out().acted(answer, Some(actor), || match done.stopped {
        true => format!(
            "stopped: {} of {} {verb}ed. What is done is done; run the same command again for the rest",
            thousands(done.done),
            thousands(matched)
        ),
        false => format!("{} {verb}ed", plural(done.done, "dead letter")),
    })?;
    Ok(if done.stopped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
