//! `posthaste events`: the log for people. What was appended, what became of one event, what comes in, and
//! sending some of it again.
//!
//! ```text
//! list.rs  by topic, key, time and number    tail.rs    as they come
//! show.rs  one event's life                  replay.rs  to a sink again
//! ```

mod list;
mod replay;
mod show;
mod tail;

use super::{Context, admin, pattern, time};
use crate::output::escape::line;
use crate::output::{bytes, time as shown_time};
use clap::{Args, Subcommand};
use posthaste::Timestamp;
use posthaste::admin::{EventFilter, LogEvent};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste events list --key order-7
  posthaste events list --topic 'orders.*' --since 1h
  posthaste events show 0192f7a0-5c1e-7a3e-b1f2-000000000001
  posthaste events tail --topic 'orders.*'
  posthaste events replay --sink nats --since 2h --dry-run

The log keeps events for its retention, delivered ones too. Looking at it takes
no lease and changes nothing.";

const LIST_EXAMPLES: &str = "\
Examples:
  posthaste events list --since 10m
  posthaste events list --key order-7 --topic 'orders.*'
  posthaste events list --after 120000 --limit 1000 --json

Numbers and times are found at once; topics and keys are looked for event by
event, from the oldest on. --since makes that short. Ctrl-C shows what was found
so far. An event whose transaction commits late appears in its place, which may
lie before --after.";

const SHOW_EXAMPLES: &str = "\
Examples:
  posthaste events show 0192f7a0-5c1e-7a3e-b1f2-000000000001
  posthaste events show 120000
  posthaste events show 0192f7a0-5c1e-7a3e-b1f2-000000000001 --raw > payload
  posthaste events show 8a1b3c4d-0000-4000-8000-000000000001 --near 2h

Shows the event and its life with each sink: delivered and settled, waiting and
why, dead and why, each attempt, and what waits behind it. A UUIDv7 says when it
was made, and is found there. Another id needs --near, or --scan.";

const TAIL_EXAMPLES: &str = "\
Examples:
  posthaste events tail
  posthaste events tail --topic 'orders.*' --json
  posthaste events tail --key order-7 --limit 1

Shows committed events from now on, also those whose transactions commit late,
if no more than 10,000 numbers were drawn meanwhile. It is for looking on: what
came while it was not running is not shown, and late ones come out of order.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  posthaste events replay --sink nats --since 2h --dry-run
  posthaste events replay --sink nats --topic 'orders.*' --since 2h \\
      --reason 'consumer lost its data'
  posthaste events replay --sink nats --from-seq 1000 --to-seq 2000 \\
      --rate 100/s --reason 'asked by shipping' --yes

Sends events that the sink has passed once more, with their ids, by the ordinary
way: retries, dead letters, order by key. Later events of a key wait for its
replayed ones. Events that wait or are dead already are left alone, and so are
topics that the sink's routes do not take. A broker may drop an id that it has
seen a short time ago: `posthaste doctor` says for how long.

It is a job: Ctrl-C pauses it, and `posthaste jobs resume` does the rest.";

/// List, show, follow or replay events of the log
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EventsArgs {
    #[command(subcommand)]
    act: EventsCommand,
}

#[derive(Debug, Subcommand)]
enum EventsCommand {
    /// List events, oldest first
    #[command(after_help = LIST_EXAMPLES)]
    List(list::ListArgs),
    /// Show one event's life
    #[command(after_help = SHOW_EXAMPLES)]
    Show(show::ShowArgs),
    /// Show new events as they come
    #[command(after_help = TAIL_EXAMPLES)]
    Tail(tail::TailArgs),
    /// Send events to a sink again
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(replay::ReplayArgs),
}

#[derive(Debug, Args)]
struct FilterArgs {
    /// Of these topics; * stands for any run of characters
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    topic: Option<String>,
    /// Of this key
    #[arg(long)]
    key: Option<String>,
    /// Appended at or after this time: RFC 3339, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = time::earlier)]
    since: Option<Timestamp>,
    /// Appended before this time
    #[arg(long, value_name = "TIME", value_parser = time::earlier)]
    until: Option<Timestamp>,
    /// From this number on
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(1..))]
    from_seq: Option<i64>,
    /// Up to this number
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(1..))]
    to_seq: Option<i64>,
}

impl FilterArgs {
    fn filter(self) -> EventFilter {
        EventFilter {
            topic: self.topic,
            key: self.key,
            since: self.since,
            until: self.until,
            from_seq: self.from_seq,
            to_seq: self.to_seq,
        }
    }
}

pub(crate) async fn run(context: &Context, args: EventsArgs) -> anyhow::Result<ExitCode> {
    if let EventsCommand::Replay(args) = &args.act {
        args.check()?;
    }
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    let admin = &*admin(outbox).await?;
    match args.act {
        EventsCommand::List(args) => list::run(context, outbox, admin, args).await,
        EventsCommand::Show(args) => show::run(context, outbox, admin, args).await,
        EventsCommand::Tail(args) => tail::run(context, outbox, admin, args).await,
        EventsCommand::Replay(args) => replay::run(context, outbox, admin, args).await,
    }
}

/// Two lines an event: where it stands, and what it is.
fn draw(event: &LogEvent) -> String {
    let key = event.key.as_ref().map_or_else(String::new, |key| format!("  key {}", line(key)));
    let size = event.payload_bytes.map_or_else(|| "tombstone".to_owned(), bytes);
    let kind = event.content_type.as_ref().map_or_else(String::new, |kind| format!("  {}", line(kind)));
    let later = event.deliver_at.map_or_else(String::new, |at| format!("  not before {}", shown_time(at)));
    format!(
        "{:<9} {}  {}{key}\n          {}  {size}{kind}{later}",
        event.seq,
        shown_time(event.appended_at),
        line(&event.topic),
        event.id
    )
}
