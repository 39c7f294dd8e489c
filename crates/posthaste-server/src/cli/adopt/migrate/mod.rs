//! `posthaste adopt migrate`: from an adopted table to the log beside it, a step at a time.
//!
//! Without a step it says where it stands and what comes next. The steps themselves are the library's
//! ([`posthaste_postgres::claim::Handover`]); here is which log is meant ([`pair`]) and what people read
//! ([`show`]).

mod pair;
mod show;

use super::super::{Context, explain};
use crate::config::Config;
use crate::output::{Usage, ask, is_interactive, remark};
use clap::{Args, Subcommand};
use pair::Pair;
use posthaste::admin::Actor;
use posthaste_postgres::claim::{Done, Handover, HandoverError};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

pub(super) const EXAMPLES: &str = "\
Examples:
  posthaste adopt migrate                          where it stands, what is next
  posthaste adopt migrate start --reason 'to the log'
  posthaste adopt migrate finish                   exit code 1 until it is drained
  posthaste adopt migrate stop --reason 'not today'
  posthaste adopt migrate sql > trigger.sql        for a DBA who applies it

The configuration has both outboxes: the adopted table, and a log of our own in
the same database; `run` relays both. From `start` on each row goes to the log
in the transaction that writes it, and the table drains. docs/adopt.md says
what happens to a row, and when.";

const START_EXAMPLES: &str = "\
Examples:
  posthaste adopt migrate start --reason 'to the log'
  posthaste adopt migrate start --hold --reason 'to the log, in order' --yes
  posthaste adopt migrate start --reason x --owner-url postgres://owner@db/shop

Makes a trigger that appends the event and marks the row as published, both in
the transaction that writes the row. It needs a moment in which nobody writes to
the table: it waits for one a quarter of a second at a time. --hold pauses the
log's sinks until `finish`, so that no event overtakes an older row.";

const FINISH_EXAMPLES: &str = "\
Examples:
  posthaste adopt migrate finish
  until posthaste adopt migrate finish; do sleep 5; done
  posthaste adopt migrate finish --anyway

Checks that nothing waits in the table any more, lets held sinks go on, and says
which lines of the configuration are not needed any more. The exit code is 1 as
long as something waits. --anyway does not wait for rows whose time has not come:
the adopted outbox publishes them later, and has to stay until then.";

const STOP_EXAMPLES: &str = "\
Examples:
  posthaste adopt migrate stop --reason 'back to the table'
  posthaste adopt migrate stop --reason 'the application appends' --yes

Rows stay in the table again, from this moment on. What is in the log stays
there and is delivered. Function and trigger are removed; nothing is left.";

const SQL_EXAMPLES: &str = "\
Examples:
  posthaste adopt migrate sql
  posthaste adopt migrate sql > trigger.sql

For somebody who may change table and log. The trigger acts with the rights of
the role that applies it. `posthaste adopt migrate` sees that it is there.";

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    /// The outbox whose log is meant [default: the one in the same database]
    #[arg(long, value_name = "NAME", global = true)]
    to: Option<String>,
    /// Connect as somebody who may change the table
    #[arg(long, value_name = "URL", global = true, env = "POSTHASTE_OWNER_URL", hide_env_values = true)]
    owner_url: Option<String>,
    #[command(subcommand)]
    step: Option<MigrateStep>,
}

#[derive(Debug, Subcommand)]
enum MigrateStep {
    /// Hand new rows over to the log
    #[command(after_help = START_EXAMPLES)]
    Start {
        /// Pause the log's sinks until `finish`, so that nothing overtakes older rows
        #[arg(long)]
        hold: bool,
        #[command(flatten)]
        act: ActArgs,
    },
    /// Check that nothing waits in the table, and say what can go
    #[command(after_help = FINISH_EXAMPLES)]
    Finish {
        /// Why, for the audit
        #[arg(long, value_name = "TEXT", default_value = "the table is drained")]
        reason: String,
        /// Do not wait for rows whose time has not come
        #[arg(long)]
        anyway: bool,
    },
    /// Leave new rows in the table again, and remove the trigger
    #[command(after_help = STOP_EXAMPLES)]
    Stop(ActArgs),
    /// Print what start and stop would run
    #[command(after_help = SQL_EXAMPLES)]
    Sql,
}

#[derive(Debug, Args)]
struct ActArgs {
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// How long to try for a quiet moment of the table
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
}

type Exit = anyhow::Result<ExitCode>;

/// A table, its log, and the connection.
struct Move<'a> {
    context: &'a Context,
    pair: Pair<'a>,
    handover: Handover,
}

pub(super) async fn run(context: &Context, args: MigrateArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let pair = Pair::find(context, &config, args.to.as_deref(), args.owner_url.as_deref()).await?;
    let connected = Handover::connect(&pair.server, pair.layout, pair.schema).await;
    let handover = connected.map_err(|error| told(&pair, error))?;
    let mut step = Move { context, pair, handover };
    match args.step {
        None => step.stand().await,
        Some(MigrateStep::Start { hold, act }) => step.start(&config, hold, act).await,
        Some(MigrateStep::Finish { reason, anyway }) => step.finish(&reason, anyway).await,
        Some(MigrateStep::Stop(act)) => step.stop(act).await,
        Some(MigrateStep::Sql) => step.sql(),
    }
}

fn told(pair: &Pair<'_>, error: HandoverError) -> anyhow::Error {
    match error {
        HandoverError::Store(error) => explain(pair.adopted, error),
        HandoverError::Refused(text) => anyhow::anyhow!("outbox `{}`: {text}", pair.adopted.name),
    }
}

impl Move<'_> {
    async fn stand(&mut self) -> anyhow::Result<ExitCode> {
        let standing = self.handover.standing().await.map_err(|error| told(&self.pair, error))?;
        let next = show::next(&standing);
        let answer = json!({
            "outbox": &*self.pair.adopted.name, "to": &*self.pair.log.name, "standing": standing, "drained": standing.is_drained(),
            "next": next.first(),
        });
        self.context.out().data(&answer, || show::standing(&self.pair, &standing, &next))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn start(&mut self, config: &Config, hold: bool, act: ActArgs) -> anyhow::Result<ExitCode> {
        let topics = self.handover.topics().await.map_err(|error| told(&self.pair, error))?;
        let sinks = self.pair.check(config, &topics).await?;
        if self.pair.overtakes(hold) {
            remark(
                "note: the log keeps order by key, and the table does not: an event may overtake older rows of its key\n\
                 that still wait in the table. --hold keeps the log's sinks back until they are gone.",
            );
        }
        let table = self.pair.table();
        if !agreed(&act, &format!("hand new rows of {table} over to the log"))? {
            return Ok(ExitCode::FAILURE);
        }
        let held = if hold { sinks.as_slice() } else { &[] };
        let (actor, wait) = (self.context.actor(&act.reason), Duration::from_secs(act.wait));
        let done = self.handover.start(held, wait, &actor).await.map_err(|error| told(&self.pair, error))?;
        let text = match done {
            Done::Before => format!("rows of {table} are handed over already; nothing was changed"),
            _ => show::started(&self.pair, held),
        };
        if done == Done::Now && !self.handover.was_rehearsed() {
            remark(
                "note: no row waits in the table, and it takes none that was made up: the hand-over could not be tried.\n\
                 Watch the first insert. If a trigger or a check of the table refuses the mark, the insert fails:\n\
                 posthaste adopt migrate stop",
            );
        }
        self.said("start", done, held, &actor, &text)
    }

    async fn finish(&mut self, reason: &str, anyway: bool) -> anyhow::Result<ExitCode> {
        let actor = self.context.actor(reason);
        let before = self.handover.standing().await.map_err(|error| told(&self.pair, error))?;
        let finished = match anyway {
            false => self.handover.finish(&actor).await,
            true => self.handover.finish_anyway(&actor).await,
        };
        let resumed = finished.map_err(|error| told(&self.pair, error))?;
        let standing = self.handover.standing().await.map_err(|error| told(&self.pair, error))?;
        let paused: Vec<String> = before.held.into_iter().filter(|sink| !resumed.contains(sink)).collect();
        let question = self.handover.question();
        let sinks = show::Sinks { resumed: &resumed, paused: &paused };
        let text = show::finished(&self.pair, &standing, &sinks, &question);
        self.said("finish", Done::Now, &resumed, &actor, &text)
    }

    async fn stop(&mut self, act: ActArgs) -> anyhow::Result<ExitCode> {
        let table = self.pair.table();
        if !agreed(&act, &format!("leave new rows of {table} in the table again"))? {
            return Ok(ExitCode::FAILURE);
        }
        let (actor, wait) = (self.context.actor(&act.reason), Duration::from_secs(act.wait));
        let done = self.handover.stop(wait, &actor).await.map_err(|error| told(&self.pair, error))?;
        let text = show::stopped(&self.pair, done);
        let code = self.said("stop", done, &[], &actor, &text)?;
        // It works, and something is left to do: a script comes again.
        Ok(if done == Done::Off { ExitCode::FAILURE } else { code })
    }

    fn sql(&self) -> anyhow::Result<ExitCode> {
        let (start, stop) = (self.handover.script(), self.handover.script_back());
        let answer = json!({ "start": start, "stop": stop });
        self.context.out().data(&answer, || {
            let back: String = stop.lines().map(|line| format!("-- {line}\n")).collect();
            format!("-- posthaste adopt migrate start\n{start}\n-- posthaste adopt migrate stop:\n{back}")
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn said(&self, step: &str, done: Done, sinks: &[String], by: &Actor, text: &str) -> Exit {
        let actor = (done != Done::Before).then_some(by);
        let done = match done {
            Done::Now => "now",
            Done::Before => "before",
            Done::Off => "off",
        };
        let answer = json!({
            "outbox": &*self.pair.adopted.name, "to": &*self.pair.log.name, "step": step, "done": done, "sinks": sinks,
        });
        self.context.out().acted(answer, actor, || text.to_owned())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Asks on a terminal; elsewhere silence is no consent.
fn agreed(act: &ActArgs, what: &str) -> anyhow::Result<bool> {
    if act.yes {
        return Ok(true);
    }
    if !is_interactive() {
        return Err(Usage(format!("this would {what}: say --yes to do it")).into());
    }
    let agreed = ask(what)?;
    if !agreed {
        remark("nothing was done");
    }
    Ok(agreed)
}
