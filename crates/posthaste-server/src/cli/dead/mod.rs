//! `posthaste dead`: see what was given up, and replay or discard it. Acts are in [`act`].

mod act;

pub(crate) use act::rate;

use super::{Context, admin, event_name, explain_act, time};
use crate::config::Outbox;
use crate::output::escape::line;
use crate::output::{base16, fields, payload_field, plural, time as shown_time};
use clap::{Args, Subcommand};
use posthaste::Timestamp;
use posthaste::admin::{Admin, AdminError, DeadAct, DeadFilter, DeadLetter, EventName, Where};
use serde_json::{Value, json};
use std::process::ExitCode;
use uuid::Uuid;

const EXAMPLES: &str = "\
Examples:
  posthaste dead list --sink nats --since 2h
  posthaste dead show 0192f7a0-5c1e-7a3e-b1f2-000000000001
  posthaste dead replay 0192f7a0-5c1e-7a3e-b1f2-000000000001 --reason mended
  posthaste dead replay --code payload.not_json --dry-run
  posthaste dead replay --topic 'orders.*' --reason 'limit was raised'
  posthaste dead discard --topic 'test.*' --reason 'test data'
  posthaste dead replay --all --rate 100/s --reason 'broker is back'

A dead letter keeps the whole event. Replay makes it due again, in its place;
discard removes it for good. Both mean everything that the filter matches, run
in chunks, and are audited with --actor and --reason.";

const LIST_EXAMPLES: &str = "\
Examples:
  posthaste dead list --sink nats --since 2h
  posthaste dead list --topic 'orders.*' --code payload.not_json --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  posthaste dead show 0192f7a0-5c1e-7a3e-b1f2-000000000001
  posthaste dead show 120000
  posthaste dead show 0192f7a0-5c1e-7a3e-b1f2-000000000001 --raw > payload";

const REPLAY_EXAMPLES: &str = "\
Examples:
  posthaste dead replay 0192f7a0-5c1e-7a3e-b1f2-000000000001 --reason mended
  posthaste dead replay --code payload.not_json --dry-run
  posthaste dead replay --code payload.not_json --reason 'route takes text now'
  posthaste dead replay --all --rate 100/s --reason 'broker is back' --yes

A replayed event goes before later events of its key that still wait. What dies
while this runs is not part of it. Ctrl-C stops between two chunks; the same
command again does the rest.";

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
        /// Go on behind this cursor of a former list
        #[arg(long, default_value_t = 0, value_name = "CURSOR")]
        after: i64,
    },
    /// Show an event's dead letters with payload
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Event id, or number
        #[arg(value_name = "ID|SEQ", value_parser = event_name)]
        event: EventName,
        /// Write the payload's bytes and nothing else
        #[arg(long)]
        raw: bool,
    },
    /// Make dead letters due again, in their place
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(act::ActArgs),
    /// Remove dead letters for good
    #[command(after_help = DISCARD_EXAMPLES)]
    Discard(act::ActArgs),
}

#[derive(Debug, Args)]
struct FilterArgs {
    /// Of this sink
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// Of these topics; * stands for any run of characters
    #[arg(long, value_name = "PATTERN")]
    topic: Option<String>,
    /// Of this key
    #[arg(long)]
    key: Option<String>,
    /// With this error code, like payload.not_json
    #[arg(long)]
    code: Option<String>,
    /// Died at or after this time: RFC 3339, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = time::earlier)]
    since: Option<Timestamp>,
    /// Died before this time
    #[arg(long, value_name = "TIME", value_parser = time::earlier)]
    until: Option<Timestamp>,
    /// With this event id; may be repeated
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<Uuid>,
    /// Everything
    #[arg(long)]
    all: bool,
}

impl FilterArgs {
    fn filter(self) -> DeadFilter {
        DeadFilter {
            all: self.all,
            ids: self.ids,
            sink: self.sink,
            topic: self.topic,
            key: self.key,
            code: self.code,
            since: self.since,
            until: self.until,
        }
    }
}

pub(crate) async fn run(context: &Context, args: DeadArgs) -> anyhow::Result<ExitCode> {
    if let DeadCommand::Replay(args) | DeadCommand::Discard(args) = &args.act {
        args.check()?;
    }
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    let admin = &*admin(outbox).await?;
    match args.act {
        DeadCommand::List { filter, limit, after } => {
            list(context, outbox, admin, filter.filter(), after, limit).await
        }
        DeadCommand::Show { event, raw } => {
            let id = id_of(outbox, admin, event).await?;
            show(context, outbox, admin, id, raw).await
        }
        DeadCommand::Replay(args) => act::run(context, outbox, admin, DeadAct::Replay, args).await,
        DeadCommand::Discard(args) => act::run(context, outbox, admin, DeadAct::Discard, args).await,
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

fn no_letter(outbox: &Outbox, id: Uuid) -> anyhow::Error {
    let name = &outbox.name;
    anyhow::anyhow!(
        "outbox `{name}` has no dead letter of event {id}: it was delivered, replayed, discarded, or never died"
    )
}

async fn list(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    filter: DeadFilter,
    after: i64,
    limit: i64,
) -> anyhow::Result<ExitCode> {
    let letters = admin.dead_list(&filter, after, limit).await.map_err(|error| explain_act(outbox, error))?;
    if letters.is_empty() {
        check_sink(outbox, admin, &filter).await?;
    }
    let next = letters.last().filter(|_| letters.len() as i64 == limit).map(|letter| letter.cursor);
    context.out().data(&json!({ "dead": letters, "next": next }), || {
        let mut text = letters.iter().map(draw).collect::<Vec<_>>().join("\n");
        match next {
            _ if letters.is_empty() => text.push_str("no dead letters"),
            Some(cursor) => text.push_str(&format!("\nthere may be more: --after {cursor}")),
            None => {}
        }
        text
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Two lines a letter: what it is, and why it died.
fn draw(letter: &DeadLetter) -> String {
    let key = letter.key.as_ref().map_or_else(String::new, |key| format!("  key {}", line(key)));
    let holds = if letter.holds_key { "  (later events of its key wait for it)" } else { "" };
    format!(
        "{}  {}  {}{key}\n  {} after {}, {}: {}{holds}",
        letter.id,
        line(&letter.sink),
        line(&letter.topic),
        shown_time(letter.dead_at),
        plural(letter.attempts.unsigned_abs().into(), "attempt"),
        line(&letter.error_code),
        line(&letter.error)
    )
}

async fn show(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    id: Uuid,
    raw: bool,
) -> anyhow::Result<ExitCode> {
    let letters = admin.dead_show(id).await.map_err(|error| explain_act(outbox, error))?;
    let Some(first) = letters.first() else { return Err(no_letter(outbox, id)) };
    if raw {
        // All letters of an event carry the same bytes.
        context.out().bytes(first.payload.as_deref().unwrap_or_default())?;
        return Ok(ExitCode::SUCCESS);
    }
    let values = letters.iter().map(with_payload).collect::<Result<Vec<Value>, _>>()?;
    context.out().data(&values, || letters.iter().map(draw_whole).collect::<Vec<_>>().join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The letter as JSON, its payload as text, or as base16 where it is no UTF-8.
fn with_payload(letter: &DeadLetter) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(letter)?;
    match letter.payload.as_deref().map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        Some((_, Ok(text))) => value["payload"] = text.into(),
        Some((bytes, Err(_))) => value["payload_base16"] = base16(bytes).into(),
        None => value["payload"] = Value::Null,
    }
    Ok(value)
}

fn draw_whole(letter: &DeadLetter) -> String {
    let headers = letter.headers.as_ref().map_or_else(|| "none".to_owned(), Value::to_string);
    let lines = [
        ("event", letter.id.to_string()),
        ("sink", letter.sink.clone()),
        ("topic", letter.topic.clone()),
        ("key", letter.key.clone().unwrap_or_else(|| "none".to_owned())),
        ("seq", letter.seq.to_string()),
        ("appended", shown_time(letter.appended_at)),
        ("died", shown_time(letter.dead_at)),
        (
            "attempts",
            format!("{}, replayed {}", letter.attempts, plural(letter.replays.unsigned_abs().into(), "time")),
        ),
        ("error", format!("{} ({}): {}", letter.error_code, letter.error_class, letter.error)),
        ("holds key", if letter.holds_key { "yes: later events of its key wait" } else { "no" }.to_owned()),
        ("content type", letter.content_type.clone().unwrap_or_else(|| "none".to_owned())),
        ("headers", headers),
    ];
    format!("{}\n{}", fields(&lines, ""), payload_field(letter.payload.as_deref(), letter.payload_bytes))
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
