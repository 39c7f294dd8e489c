//! Replay and discard: everything the filter matches, in chunks that are transactions of their own.
//!
//! The filter, not the page, is what is meant (F58): the count that a dry run prints is the count that is
//! done. Letters that die while this runs are not part of it, because without `--until` the end of the
//! filter is the store's clock at the start; otherwise an event that dies again and again would be replayed
//! for ever.
//!
//! Ctrl-C stops between two chunks. Whatever was done is done and audited; running the same command again
//! takes the rest.

use super::{FilterArgs, check_sink, id_of, no_letter};
use crate::cli::{Context, event_name, explain_act, rate};
use crate::config::Outbox;
use crate::output::{Usage, ask, is_interactive, plural, remark, thousands};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use posthaste::admin::{Actor, Admin, AdminError, DeadAct, DeadFilter, EventName};
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::inbox::kept::KeptHeaders;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

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
        let filter = &self.filter;
        let names_nothing = self.events.is_empty()
            && filter.ids.is_empty()
            && [&filter.sink, &filter.topic, &filter.key, &filter.code].iter().all(|part| part.is_none())
            && filter.since.is_none()
            && filter.until.is_none();
        if names_nothing && !filter.all {
            return Err(Usage(
                "name what is meant: an event's id, --sink, --topic, --key, --code, --since, --until, or --all".into(),
            )
            .into());
        }
        Ok(())
    }

    /// A chunk is no larger than what a second allows, so that the rate is even and Ctrl-C is quick.
    fn chunk(&self) -> i64 {
        self.rate.map_or(self.chunk, |rate| self.chunk.min((rate.ceil() as i64).max(1)))
    }
}

/// How it went.
struct ActResult {
    letters: u64,
    stopped: bool,
}

/// Whose letters: those of sinks, or of a consumer, and which headers these keep.
#[derive(Clone, Copy)]
pub(super) enum Letters<'a> {
    Sinks(&'a dyn Admin),
    Consumer(&'a dyn ConsumerAdmin, &'a str, &'a KeptHeaders),
}

impl Letters<'_> {
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
    let (chunk, rate) = (args.chunk(), args.rate);
    let filter = letters.filter(outbox, args.filter, args.events).await?;
    let matched = letters.count(&filter).await.map_err(failed)?;
    if matched == 0 {
        if let Letters::Sinks(admin) = letters {
            check_sink(outbox, admin, &filter).await?;
        }
        if let Some(id) = filter.ids.first() {
            return Err(no_letter(outbox, *id));
        }
    }
    let verb = if act == DeadAct::Replay { "replay" } else { "discard" };
    if args.dry_run {
        let answer = json!({ "act": verb, "matched": matched, "done": 0, "dry_run": true });
        context.out().data(&answer, || format!("{} would be {verb}ed", plural(matched, "dead letter")))?;
        return Ok(ExitCode::SUCCESS);
    }
    if matched > 1 && !args.yes && !agreed(verb, matched)? {
        remark("nothing was done");
        return Ok(ExitCode::FAILURE);
    }
    let actor = context.actor(args.reason.as_deref().unwrap_or_default());
    let bar = progress(matched, context.out().json);
    let done = chunks(letters, &filter, act, &actor, Pace { chunk, rate, matched }, &bar).await;
    bar.finish_and_clear();
    let done = done.map_err(failed)?;
    report(context, verb, matched, &done)
}

fn report(context: &Context, verb: &str, matched: u64, done: &ActResult) -> anyhow::Result<ExitCode> {
    let answer = json!({ "act": verb, "matched": matched, "done": done.letters, "stopped": done.stopped });
    context.out().data(&answer, || match done.stopped {
        true => format!(
            "stopped: {} of {} {verb}ed. What is done is done; run the same command again for the rest",
            thousands(done.letters),
            thousands(matched)
        ),
        false => format!("{} {verb}ed", plural(done.letters, "dead letter")),
    })?;
    Ok(if done.stopped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Asks on a terminal; elsewhere silence is no consent.
fn agreed(verb: &str, matched: u64) -> anyhow::Result<bool> {
    if !is_interactive() {
        let text = format!(
            "{} would be {verb}ed: say --yes to do it, or --dry-run to look",
            plural(matched, "dead letter")
        );
        return Err(Usage(text).into());
    }
    ask(&format!("{verb} {}", plural(matched, "dead letter")))
}

fn progress(matched: u64, json: bool) -> ProgressBar {
    let target = if json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(matched), target);
    let style = ProgressStyle::with_template("{bar:30} {human_pos}/{human_len}  {per_sec}  {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[derive(Clone, Copy)]
struct Pace {
    chunk: i64,
    rate: Option<f64>,
    /// Letters at the beginning. A consumer's that dies again while this runs is not taken a second time.
    matched: u64,
}

async fn chunks(
    whose: Letters<'_>,
    filter: &DeadFilter,
    act: DeadAct,
    actor: &Actor,
    pace: Pace,
    bar: &ProgressBar,
) -> Result<ActResult, AdminError> {
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let (mut done, mut next) = (0, Instant::now());
    loop {
        let left = pace.matched.saturating_sub(done).try_into().unwrap_or(i64::MAX);
        let chunk = if let Letters::Consumer(..) = whose { pace.chunk.min(left) } else { pace.chunk };
        let letters = if chunk == 0 { 0 } else { whose.act(filter, act, actor, chunk).await? };
        done += letters;
        bar.set_position(done);
        if letters == 0 {
            return Ok(ActResult { letters: done, stopped: false });
        }
        let pause = pace.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(letters as f64 / rate));
        next = next.max(Instant::now() - pause) + pause;
        tokio::select! {
            biased;
            _ = &mut interrupted => return Ok(ActResult { letters: done, stopped: true }),
            () = sleep_until(next) => {}
        }
    }
}
