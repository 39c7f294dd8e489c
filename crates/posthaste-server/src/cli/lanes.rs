//! `posthaste lanes`: see the lanes, change their number, move a sink back, mend it after a restore.

use super::{Context, admin, explain_act, status, time};
use crate::again::{AgainTense, say_again};
use crate::config::Outbox;
use crate::output::Usage;
use clap::{Args, Subcommand};
use posthaste::admin::{Admin, RewindTo, count_again};
use serde_json::json;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste lanes                                  who owns which lane
  posthaste lanes set 4 --reason 'two more relays'
  posthaste lanes rewind --sink search --to earliest --reason 'new index'
  posthaste lanes repair --sink nats --reason 'database was restored'

A lane is the unit that a relay leases. One lane is enough for one relay; more
lanes spread a sink's work over several. Order by key is kept with any number.";

/// List, set, rewind or repair lanes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LanesArgs {
    #[command(subcommand)]
    act: Option<LanesAct>,
}

const LIST_EXAMPLES: &str = "\
Examples:
  posthaste lanes list
  posthaste lanes list --json | jq '.sinks[].lanes[] | select(.owner == null)'";

const SET_EXAMPLES: &str = "\
Examples:
  posthaste lanes set 4 --reason 'two more relays'

Relays may run meanwhile; they share the new lanes within seconds. Some events
may be sent twice, none is skipped, and the order of each key is kept.";

const REWIND_EXAMPLES: &str = "\
Examples:
  posthaste lanes rewind --sink search --to earliest --reason 'new index'
  posthaste lanes rewind --sink search --to seq:120000 --reason 'lost there'
  posthaste lanes rewind --sink search --to time:2h --reason 'lost since noon'
  posthaste lanes rewind --sink search --to time:2026-11-15T08:00:00Z \\
      --reason 'the index lost this morning'

Everything from that place on is sent again, to this sink only; the answer says
how many events that are. A broker that drops duplicates by their id drops those
that it remembers: JetStream within two minutes by default. It never goes
forward: nothing can be skipped with it. How far back the log goes is decided by
`retention.events_hours`.";

const REPAIR_EXAMPLES: &str = "\
Examples:
  posthaste lanes repair --sink nats --reason 'database was restored'

For a restored backup, or a number sequence that was set back: lanes stop then,
and say so. Lanes of all sinks are re-based in one transaction. Some events may
be sent twice, none is skipped; the answer says how many. Run it as the owner of
the outbox if rows came from another server.";

#[derive(Debug, Subcommand)]
enum LanesAct {
    /// List lanes, owners and positions
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Change the number of lanes
    #[command(after_help = SET_EXAMPLES)]
    Set {
        /// How many
        #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
        lanes: u16,
        /// Why, for the audit
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Send a sink its history again, from a place in the log
    #[command(after_help = REWIND_EXAMPLES)]
    Rewind {
        /// The sink
        #[arg(long, value_name = "NAME")]
        sink: String,
        /// earliest, seq:NUMBER, time:RFC3339 or time:2h for two hours ago
        #[arg(long, value_parser = place)]
        to: RewindTo,
        /// Why, for the audit
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Re-base lanes after their database went back in time
    #[command(after_help = REPAIR_EXAMPLES)]
    Repair {
        /// The sink
        #[arg(long, value_name = "NAME")]
        sink: String,
        /// Why, for the audit
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

fn place(text: &str) -> Result<RewindTo, String> {
    match text.split_once(':') {
        None if text == "earliest" => Ok(RewindTo::Earliest),
        Some(("seq", number)) => {
            let number = number.parse().ok().filter(|number| *number >= 0);
            number
                .map(RewindTo::Seq)
                .ok_or_else(|| "seq:NUMBER needs a number of the log, 0 or above".to_owned())
        }
        Some(("time", instant)) => time::earlier(instant).map(RewindTo::Time),
        _ => Err("must be earliest, seq:NUMBER, time:RFC3339 or time:2h".to_owned()),
    }
}

pub(crate) async fn run(context: &Context, args: LanesArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    let admin = &*admin(outbox).await?;
    let Some(act) = args.act else { return list(context, outbox, admin).await };
    let failed = |error| explain_act(outbox, error);
    let actor = match &act {
        LanesAct::List => return list(context, outbox, admin).await,
        LanesAct::Set { reason, .. } | LanesAct::Rewind { reason, .. } | LanesAct::Repair { reason, .. } => {
            context.actor(reason)
        }
    };
    let said = match act {
        LanesAct::List => String::new(),
        LanesAct::Set { lanes, .. } => {
            admin.set_lanes(lanes, &actor).await.map_err(failed)?;
            format!("outbox {} has {lanes} lanes now; relays share them anew within seconds", outbox.name)
        }
        LanesAct::Rewind { sink, to, .. } => {
            check_sink(outbox, &sink)?;
            // Before: afterwards the sink has passed nothing behind that place. What cannot be counted can be
            // rewound all the same.
            let counted = count_again(admin, &sink, to).await.ok();
            admin.rewind(&sink, to, &actor).await.map_err(failed)?;
            let said = say_again(&sink, counted, AgainTense::IsDone);
            let again = counted.map(|again| again.count);
            let value = json!({ "outbox": &*outbox.name, "done": true, "text": said, "events": again });
            context.out().acted(value, Some(&actor), || said.clone())?;
            return Ok(ExitCode::SUCCESS);
        }
        LanesAct::Repair { sink, .. } => admin.repair(&sink, &actor).await.map_err(failed)?,
    };
    let answer = json!({ "outbox": &*outbox.name, "done": true, "text": said });
    context.out().acted(answer, Some(&actor), || said.clone())?;
    Ok(ExitCode::SUCCESS)
}

/// A slip in the name is caught here where routes are configured; otherwise the store knows.
fn check_sink(outbox: &Outbox, sink: &str) -> anyhow::Result<()> {
    let mut known = outbox.routes.routes().iter().flat_map(|route| &route.sinks).peekable();
    if known.peek().is_none() || sink == posthaste::route::UNROUTED || known.any(|name| name == sink) {
        return Ok(());
    }
    Err(Usage(format!("outbox {} has no sink `{sink}`", outbox.name)).into())
}

async fn list(context: &Context, outbox: &Outbox, admin: &dyn Admin) -> anyhow::Result<ExitCode> {
    let status = admin.status().await.map_err(|error| explain_act(outbox, error))?;
    let sinks: Vec<_> = status.sinks.iter().map(|s| json!({ "sink": s.sink, "lanes": s.lanes })).collect();
    context.out().data(&json!({ "outbox": &*outbox.name, "sinks": sinks }), || {
        if sinks.is_empty() {
            "no sink has lanes yet: they are made when a relay first runs".to_owned()
        } else {
            format!("{}\n\n{}", status::draw_relays(&status), status::draw_lanes(&status))
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
