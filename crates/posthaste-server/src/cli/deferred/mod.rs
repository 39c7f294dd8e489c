//! `posthaste deferred`: what waits and why, and letting it be tried now. The act is in [`retry`], and what
//! waits of a consumer in [`messages`].

mod messages;
mod retry;

use super::letters::draw::{error, short};
use super::{Context, admin, explain_act};
use crate::config::Outbox;
use crate::output::escape::line;
use crate::output::{exact_time, paragraph, plural, time};
use clap::{Args, Subcommand};
use posthaste::Timestamp;
use posthaste::admin::{Admin, AdminError, DeferredCause, DeferredEvent, DeferredFilter};
use serde_json::json;
use std::process::ExitCode;
use uuid::Uuid;

const EXAMPLES: &str = "\
Examples:
  posthaste deferred causes
  posthaste deferred list --sink nats --destination mail.sent
  posthaste deferred retry --code http.status_503 --dry-run
  posthaste deferred retry --sink nats --reason 'the stream is there now'

Deferred events wait, and are not lost: for a retry, for their delivery time,
for a destination that is out of reach, or for an earlier event of their key.
Relays try them by themselves; `retry` only makes that sooner.";

const LIST_EXAMPLES: &str = "\
Examples:
  posthaste deferred list
  posthaste deferred list --sink nats --why outage
  posthaste deferred list --key order-7 --json
  posthaste deferred list --after nats/120000
  posthaste deferred list --consumer billing

By sink and number. --why takes one of: retry, unknown (the outcome of an
attempt is), outage, paused (its route is), scheduled, held (by an earlier event
of its key), drained (a relay ended), replayed, redriven (a consumer's message
that was sent to its topic again).";

const CAUSES_EXAMPLES: &str = "\
Examples:
  posthaste deferred causes
  posthaste deferred causes --sink nats --json
  posthaste deferred causes --consumer billing

Counts what waits by sink, reason, destination and error, the most frequent
first.";

const RETRY_EXAMPLES: &str = "\
Examples:
  posthaste deferred retry --all --dry-run
  posthaste deferred retry --destination mail.sent --reason 'stream was made'
  posthaste deferred retry --code http.status_503 --rate 100/s \\
      --reason 'the receiver is back' --yes
  posthaste deferred retry --consumer billing --all --reason 'ledger is back'

Makes what the filter matches due now, in chunks, and is audited. Left alone is
what waits for its delivery time, behind an earlier event of its key, or is due
already. A destination that is out of reach is still asked with one event first.
Ctrl-C pauses it; `posthaste jobs resume` does the rest.";

/// List what waits and why, or let it be tried now
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DeferredArgs {
    #[command(subcommand)]
    act: DeferredCommand,
}

#[derive(Debug, Subcommand)]
enum DeferredCommand {
    /// List events that wait
    #[command(after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        filter: WaitingArgs,
        /// Most events to print
        #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
        /// Go on behind this place of a former list, like nats/120000
        #[arg(long, value_name = "NAME/SEQ", value_parser = place)]
        after: Option<(String, i64)>,
    },
    /// Count what waits by cause, the most frequent first
    #[command(after_help = CAUSES_EXAMPLES)]
    Causes {
        #[command(flatten)]
        filter: WaitingArgs,
        /// Most causes to print
        #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1_000))]
        limit: i64,
    },
    /// Let events be tried now
    #[command(after_help = RETRY_EXAMPLES)]
    Retry(retry::RetryArgs),
}

#[derive(Debug, Args)]
struct WaitingArgs {
    /// Of this sink
    #[arg(long, value_name = "NAME", conflicts_with = "consumer")]
    sink: Option<String>,
    /// Of this consumer, instead of sinks
    #[arg(long, value_name = "NAME", conflicts_with = "destination")]
    consumer: Option<String>,
    /// Of these topics; * stands for any run of characters
    #[arg(long, value_name = "PATTERN")]
    topic: Option<String>,
    /// Of this key
    #[arg(long)]
    key: Option<String>,
    /// For this destination
    #[arg(long, value_name = "NAME")]
    destination: Option<String>,
    /// That wait for this: retry, outage, scheduled, held, ...
    #[arg(long, value_name = "REASON", value_parser = why)]
    why: Option<String>,
    /// With this error code, like http.status_503
    #[arg(long)]
    code: Option<String>,
    /// With this event id; may be repeated
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<Uuid>,
    /// Everything
    #[arg(long)]
    all: bool,
}

impl WaitingArgs {
    fn filter(&self) -> DeferredFilter {
        DeferredFilter {
            all: self.all,
            ids: self.ids.clone(),
            sink: self.sink.clone(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            destination: self.destination.clone(),
            reason: self.why.clone(),
            code: self.code.clone(),
        }
    }
}

/// Reasons to wait.
const REASONS: [&str; 9] =
    ["retry", "unknown", "outage", "paused", "scheduled", "held", "drained", "replayed", "redriven"];

fn why(text: &str) -> Result<String, String> {
    match REASONS.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("must be one of {}", REASONS.join(", "))),
    }
}

/// A place in the list. A name may hold a slash, a number does not.
fn place(text: &str) -> Result<(String, i64), String> {
    let place = text.rsplit_once('/').and_then(|(sink, seq)| Some((sink.to_owned(), seq.parse().ok()?)));
    place.ok_or_else(|| "must be a place of a former list, like nats/120000".to_owned())
}

pub(crate) async fn run(context: &Context, args: DeferredArgs) -> anyhow::Result<ExitCode> {
    if let DeferredCommand::Retry(args) = &args.act {
        args.check()?;
    }
    let config = context.config()?;
    if let Some(consumer) = args.act.consumer() {
        return messages::run(context, &config, &consumer, args.act).await;
    }
    let outbox = context.outbox(&config)?;
    let admin = &*admin(outbox).await?;
    match args.act {
        DeferredCommand::List { filter, limit, after } => {
            let after = after.as_ref().map(|(sink, seq)| (sink.as_str(), *seq));
            list(context, outbox, admin, &filter.filter(), after, limit).await
        }
        DeferredCommand::Causes { filter, limit } => {
            causes(context, outbox, admin, &filter.filter(), limit).await
        }
        DeferredCommand::Retry(args) => retry::run(context, outbox, admin, args).await,
    }
}

impl DeferredCommand {
    /// The consumer that it is about, if it is.
    fn consumer(&self) -> Option<String> {
        match self {
            Self::List { filter, .. } | Self::Causes { filter, .. } => filter.consumer.clone(),
            Self::Retry(args) => args.filter.consumer.clone(),
        }
    }
}

/// Where nothing was found: a sink that nobody knows is a slip of the pen, and "nothing" an all-clear.
async fn check_sink(outbox: &Outbox, admin: &dyn Admin, filter: &DeferredFilter) -> anyhow::Result<()> {
    let Some(sink) = &filter.sink else { return Ok(()) };
    let status = admin.status().await.map_err(|error| explain_act(outbox, error))?;
    let known: Vec<String> = status.sinks.into_iter().map(|status| status.sink).collect();
    if known.is_empty() {
        return Ok(());
    }
    AdminError::check_sink(sink, &known).map_err(|error| explain_act(outbox, error))
}

async fn list(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    filter: &DeferredFilter,
    after: Option<(&str, i64)>,
    limit: i64,
) -> anyhow::Result<ExitCode> {
    let events = admin.deferred_list(filter, after, limit).await;
    let events = events.map_err(|error| explain_act(outbox, error))?;
    if events.is_empty() {
        check_sink(outbox, admin, filter).await?;
    }
    let next = events.last().filter(|_| events.len() as i64 == limit);
    let next = next.map(|last| format!("{}/{}", last.sink, last.seq));
    context.out().data(&json!({ "deferred": events, "next": next }), || {
        let mut text = events.iter().map(draw).collect::<Vec<_>>().join("\n");
        match &next {
            _ if events.is_empty() => text.push_str("nothing waits"),
            Some(place) => text.push_str(&format!("\nthere may be more: --after {}", line(place))),
            None => {}
        }
        text
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Two lines an event, and one more for its error.
fn draw(event: &DeferredEvent) -> String {
    let key = event.key.as_ref().map_or_else(String::new, |key| format!("  key {}", line(key)));
    let head = format!("{}  {}/{}  {}{key}", event.id, event.sink, event.seq, event.topic);
    let destination = match event.destination.as_str() {
        "" => String::new(),
        destination => format!(", for {destination}"),
    };
    let tries = match event.attempts {
        0 => String::new(),
        attempts => format!(", {}", plural(attempts.unsigned_abs().into(), "attempt")),
    };
    let wait = format!("waits ({}){destination}, {}{tries}", event.reason, due(&event.reason, event.due_at));
    let mut lines = vec![paragraph(&head, ""), paragraph(&wait, "  ")];
    if let Some(last) = &event.last_error {
        let at = event.last_error_at.map_or_else(String::new, |at| format!("{}  ", exact_time(at)));
        let code = event.error_code.as_deref().unwrap_or_default();
        lines.push(paragraph(&format!("{at}{}", error(code, "", &short(last))), "  "));
    }
    lines.join("\n")
}

/// When it goes on. The time of a row whose destination is out of reach says nothing: its relay asks the
/// destination now and then, by a clock of its own.
pub(super) fn due(reason: &str, due_at: Option<Timestamp>) -> String {
    match due_at {
        None => "behind an earlier event of its key".to_owned(),
        Some(_) if reason == "outage" => "until its destination answers again".to_owned(),
        Some(at) => format!("due {}", exact_time(at)),
    }
}

async fn causes(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    filter: &DeferredFilter,
    limit: i64,
) -> anyhow::Result<ExitCode> {
    let causes = admin.deferred_causes(filter, limit).await.map_err(|error| explain_act(outbox, error))?;
    if causes.is_empty() {
        check_sink(outbox, admin, filter).await?;
    }
    context.out().data(&json!({ "causes": causes }), || match causes.is_empty() {
        true => "nothing waits".to_owned(),
        false => causes.iter().map(draw_cause).collect::<Vec<_>>().join("\n"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Two lines a cause, and one more for the error.
fn draw_cause(cause: &DeferredCause) -> String {
    let destination = match cause.destination.as_str() {
        "" => String::new(),
        destination => format!("  {destination}"),
    };
    let events = plural(cause.count.unsigned_abs(), "event");
    let head = format!("{events}  {}  {}{destination}", cause.reason, cause.sink);
    let next = match (cause.reason.as_str(), cause.due_at) {
        ("outage", Some(_)) => due("outage", cause.due_at),
        (_, None) => "behind earlier events of their keys".to_owned(),
        (_, Some(at)) => format!("the next is due {}", exact_time(at)),
    };
    let when = format!("the oldest was appended {}; {next}", time(cause.oldest_at));
    let mut lines = vec![paragraph(&head, ""), paragraph(&when, "  ")];
    if let Some(last) = &cause.error {
        let code = cause.error_code.as_deref().unwrap_or_default();
        lines.push(paragraph(&error(code, "", &short(last)), "  "));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::admin::History;

    fn event(reason: &str, due_at: Option<Timestamp>) -> DeferredEvent {
        DeferredEvent {
            sink: "warehouse".to_owned(),
            seq: 123_456_789,
            id: Uuid::nil(),
            topic: "orders.placed".to_owned(),
            key: Some("order-7".to_owned()),
            route: "orders".to_owned(),
            destination: "https://warehouse.example/in".to_owned(),
            reason: reason.to_owned(),
            due_at,
            attempts: 3,
            replays: 0,
            error_code: Some("http.status_503".to_owned()),
            last_error: Some("try again later ".repeat(30)),
            last_error_at: Some(Timestamp(1_700_000_000_123_456)),
            history: History::default(),
            appended_at: Timestamp(1_700_000_000_000_000),
            deferred_at: Timestamp(1_700_000_000_000_000),
        }
    }

    #[test]
    fn what_waits_fits_into_80_columns_and_says_when_it_goes_on() {
        let at = Timestamp(1_700_000_060_500_000);
        for (reason, due_at, expected) in [
            ("retry", Some(at), "due 2023-11-14 22:14:20.500Z"),
            ("outage", Some(at), "until its destination answers again"),
            ("held", None, "behind an earlier event of its key"),
        ] {
            let text = draw(&event(reason, due_at));
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(expected) && flat.contains("http.status_503: try again"), "{text}");
        }
    }

    #[test]
    fn places_and_reasons_are_checked() {
        assert_eq!(place("a/b/7"), Ok(("a/b".to_owned(), 7)));
        assert!(place("nats").is_err() && place("nats/x").is_err());
        assert!(why("outage").is_ok() && why("because").is_err());
    }
}
