//! `posthaste dead`: see what was given up, and replay or discard it. Acts are in [`act`].

mod act;

use super::headers::HeaderArgs;
use super::letters::filter::FilterArgs;
use super::{Context, admin, consumer_admin, event_name, explain_act, letters};
use crate::config::{Config, Outbox};
use crate::output::{Usage, with_payload};
use act::Letters;
use clap::{Args, Subcommand};
use letters::draw;
use posthaste::admin::{Admin, AdminError, DeadAct, DeadFilter, DeadLetter, EventName, Where};
use posthaste::inbox::kept::KeptHeaders;
use serde_json::{Value, json};
use std::process::ExitCode;
use uuid::Uuid;

const EXAMPLES: &str = "\
Examples:
  posthaste dead causes
  posthaste dead list --sink nats --since 2h
  posthaste dead show 0192f7a0-5c1e-7a3e-b1f2-000000000001
  posthaste dead replay 0192f7a0-5c1e-7a3e-b1f2-000000000001 --reason mended
  posthaste dead replay --code payload.not_json --dry-run
  posthaste dead replay --topic 'orders.*' --reason 'limit was raised'
  posthaste dead discard --topic 'test.*' --reason 'test data'
  posthaste dead replay --all --rate 100/s --reason 'broker is back'
  posthaste dead causes --consumer billing
  posthaste dead replay --consumer billing --all --reason 'handler is mended'

A dead letter keeps the whole event. Replay (or reprocess) makes it due again,
in its place; discard (or purge) removes it for good. Both mean everything that
the filter matches, run in chunks, and are audited with --actor and --reason.";

const LIST_EXAMPLES: &str = "\
Examples:
  posthaste dead list --sink nats --since 2h
  posthaste dead list --newest --limit 10
  posthaste dead list --fingerprint 4f1d22c09ab3e671
  posthaste dead list --topic 'orders.*' --code payload.not_json --json
  posthaste dead list --error 'no field total' --header x-tenant=7 --holds-key
  posthaste dead list --consumer billing";

const SHOW_EXAMPLES: &str = "\
Examples:
  posthaste dead show 0192f7a0-5c1e-7a3e-b1f2-000000000001
  posthaste dead show 120000
  posthaste dead show 0192f7a0-5c1e-7a3e-b1f2-000000000001 --raw > payload
  posthaste dead show --consumer billing order-7-placed";

const CAUSES_EXAMPLES: &str = "\
Examples:
  posthaste dead causes
  posthaste dead causes --sink nats --since 2h --json
  posthaste dead causes --consumer billing
  posthaste dead replay --fingerprint 4f1d22c09ab3e671 --dry-run

Letters whose errors differ only in values (ids, numbers, times) have one cause.
Its number is what --fingerprint takes: to list, replay or discard all of them.
Letters that an older relay wrote have no number.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  posthaste dead replay 0192f7a0-5c1e-7a3e-b1f2-000000000001 --reason mended
  posthaste dead replay --code payload.not_json --dry-run
  posthaste dead replay --code payload.not_json --reason 'route takes text now'
  posthaste dead replay --all --rate 100/s --reason 'broker is back' --yes

A replayed event goes before later events of its key that still wait. What dies
while this runs is not part of it. What a filter matches is a job: Ctrl-C pauses
it, and `posthaste jobs resume` does the rest. A consumer's message keeps its
headers unless a list says otherwise: what it is known by, type, content-type
and saga-* in any case.";

const DISCARD_EXAMPLES: &str = "\
Examples:
  posthaste dead discard 0192f7a0-5c1e-7a3e-b1f2-000000000001 --reason 'a test'
  posthaste dead discard --topic 'test.*' --dry-run
  posthaste dead discard --topic 'test.*' --reason 'test data'

A discarded letter is gone: its event is never delivered to that sink.";

/// List, show, replay or discard dead letters
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DeadArgs {
    #[command(subcommand)]
    act: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// List dead letters, oldest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// Most letters to print
        #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
        /// Go on behind this cursor of a former list; of a consumer, behind this letter
        #[arg(long, value_name = "CURSOR")]
        after: Option<String>,
        /// Newest first; --after goes on towards the older ones
        #[arg(long)]
        newest: bool,
    },
    /// Show an event's dead letters with payload
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Event id, or number; of a consumer, a message's id or a letter's
        #[arg(value_name = "ID|SEQ")]
        event: String,
        /// Of this consumer
        #[arg(long, value_name = "NAME")]
        consumer: Option<String>,
        /// Write the payload's bytes and nothing else
        #[arg(long)]
        raw: bool,
    },
    /// Count dead letters by cause, the most frequent first
    #[command(after_help = CAUSES_EXAMPLES)]
    Causes {
        #[command(flatten)]
        filter: FilterArgs,
        /// Most causes to print
        #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1_000))]
        limit: i64,
    },
    /// Make dead letters due again, in their place
    #[command(after_help = REPLAY_EXAMPLES, visible_alias = "reprocess")]
    Replay {
        #[command(flatten)]
        args: act::ActArgs,
        #[command(flatten)]
        headers: HeaderArgs,
    },
    /// Remove dead letters for good
    #[command(after_help = DISCARD_EXAMPLES, visible_alias = "purge")]
    Discard(act::ActArgs),
}

pub(crate) async fn run(context: &Context, args: DeadArgs) -> anyhow::Result<ExitCode> {
    if let DeadCommand::Replay { args, .. } | DeadCommand::Discard(args) = &args.act {
        args.check()?;
    }
    let config = context.config()?;
    if let Some(consumer) = args.act.consumer() {
        return of_consumer(context, &config, &consumer, args.act).await;
    }
    let outbox = context.outbox(&config)?;
    let admin = &*admin(outbox).await?;
    match args.act {
        DeadCommand::List { filter, limit, after, newest } => {
            let (filter, after) = (filter.filter(), after.as_deref());
            let letters = match newest {
                true => admin.dead_newest(&filter, after, limit).await,
                false => admin.dead_list(&filter, after, limit).await,
            };
            let letters = letters.map_err(|error| explain_act(outbox, error))?;
            list(context, outbox, admin, &filter, &letters, limit).await?;
            letters::remark_on_others(context, &config, outbox).await
        }
        DeadCommand::Show { event, raw, .. } => {
            let event = event_name(&event).map_err(|why| Usage(format!("{event:?} {why}")))?;
            let id = id_of(outbox, admin, event).await?;
            show(context, outbox, admin, id, raw).await
        }
        DeadCommand::Causes { filter, limit } => {
            causes(context, outbox, admin, &filter.filter(), limit).await?;
            letters::remark_on_others(context, &config, outbox).await
        }
        DeadCommand::Replay { args, headers } => {
            headers.refuse()?;
            act::run(context, outbox, Letters::Sinks(admin), DeadAct::Replay, args).await
        }
        DeadCommand::Discard(args) => {
            act::run(context, outbox, Letters::Sinks(admin), DeadAct::Discard, args).await
        }
    }
}

impl DeadCommand {
    /// The consumer that it is about, if it is.
    fn consumer(&self) -> Option<String> {
        match self {
            Self::List { filter, .. } | Self::Causes { filter, .. } => filter.consumer.clone(),
            Self::Show { consumer, .. } => consumer.clone(),
            Self::Replay { args, .. } | Self::Discard(args) => args.filter.consumer.clone(),
        }
    }
}

/// The same acts on the letters of a consumer.
async fn of_consumer(
    context: &Context,
    config: &Config,
    consumer: &str,
    act: DeadCommand,
) -> anyhow::Result<ExitCode> {
    let outbox = context.outbox_of(config, consumer)?;
    let headers = match &act {
        DeadCommand::Replay { headers, .. } => headers.kept(config, consumer)?,
        _ => KeptHeaders::default(),
    };
    let admin = &*consumer_admin(config, outbox, Some(consumer)).await?;
    let whose = Letters::Consumer(admin, consumer, &headers);
    let desk = letters::Desk { context, outbox, admin, consumer };
    match act {
        DeadCommand::List { filter, limit, after, newest } => {
            desk.list(&filter.filter(), after.as_deref(), limit, newest).await
        }
        DeadCommand::Show { event, raw, .. } => desk.show(&event, raw).await,
        DeadCommand::Causes { filter, limit } => desk.causes(&filter.filter(), limit).await,
        DeadCommand::Replay { args, .. } => act::run(context, outbox, whose, DeadAct::Replay, args).await,
        DeadCommand::Discard(args) => act::run(context, outbox, whose, DeadAct::Discard, args).await,
    }
}

/// The id of an event: letters are found by it.
async fn id_of(outbox: &Outbox, admin: &dyn Admin, event: EventName) -> anyhow::Result<Uuid> {
    match event {
        EventName::Id(id) => Ok(id),
        EventName::Seq(_) => {
            let life = admin.event(event, Where::default()).await;
            Ok(life.map_err(|error| explain_act(outbox, error))?.event.id)
        }
    }
}

/// Where nothing was found: a sink that nobody knows is a slip of the pen, and "none" would be an all-clear.
async fn check_sink(outbox: &Outbox, admin: &dyn Admin, filter: &DeadFilter) -> anyhow::Result<()> {
    let Some(sink) = &filter.sink else { return Ok(()) };
    let status = admin.status().await.map_err(|error| explain_act(outbox, error))?;
    let known: Vec<String> = status.sinks.into_iter().map(|status| status.sink).collect();
    // Before a relay has run there are no sinks, and no letters.
    if known.is_empty() {
        return Ok(());
    }
    AdminError::check_sink(sink, &known).map_err(|error| explain_act(outbox, error))
}

async fn list(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    filter: &DeadFilter,
    letters: &[DeadLetter],
    limit: i64,
) -> anyhow::Result<()> {
    if letters.is_empty() {
        check_sink(outbox, admin, filter).await?;
    }
    let next = letters.last().filter(|_| letters.len() as i64 == limit).map(|letter| letter.cursor.as_str());
    context.out().data(&json!({ "dead": letters, "next": next }), || {
        let mut text = letters.iter().map(draw::letter).collect::<Vec<_>>().join("\n");
        match next {
            _ if letters.is_empty() => text.push_str("no dead letters"),
            Some(cursor) => text.push_str(&format!("\nthere may be more: --after {cursor}")),
            None => {}
        }
        text
    })
}

async fn causes(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    filter: &DeadFilter,
    limit: i64,
) -> anyhow::Result<()> {
    let found = admin.dead_causes(filter, limit).await.map_err(|error| explain_act(outbox, error))?;
    if found.causes.is_empty() {
        check_sink(outbox, admin, filter).await?;
    }
    context.out().data(&found, || {
        let mut lines: Vec<String> = found.causes.iter().map(draw::cause).collect();
        lines.extend(found.looked.filter(|_| !lines.is_empty()).map(draw::looked));
        if lines.is_empty() { "no dead letters".to_owned() } else { lines.join("\n") }
    })
}

async fn show(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    id: Uuid,
    raw: bool,
) -> anyhow::Result<ExitCode> {
    let letters = admin.dead_show(id).await.map_err(|error| explain_act(outbox, error))?;
    let Some(first) = letters.first() else { return Err(letters::no_letter(outbox, id, false)) };
    if raw {
        // All letters of an event carry the same bytes.
        context.out().bytes(first.payload.as_deref().unwrap_or_default())?;
        return Ok(ExitCode::SUCCESS);
    }
    let values = letters.iter().map(|letter| with_payload(letter, letter.payload.as_deref()));
    let values = values.collect::<Result<Vec<Value>, _>>()?;
    context.out().data(&values, || letters.iter().map(draw::whole).collect::<Vec<_>>().join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use clap::Parser;

    /// Plain SQL passes no code of ours: an event may be dead for its topic.
    #[test]
    fn letters_are_found_by_topics_that_no_event_should_have() {
        for topic in ["Order Placed", "orders.>"] {
            let parsed =
                Cli::try_parse_from(["posthaste", "dead", "discard", "--reason", "x", "--topic", topic]);
            assert!(parsed.is_ok(), "{parsed:?}");
        }
    }
}
