//! One event's life: the event, then a paragraph for each sink, then what people did with it.

use crate::cli::{Context, event_name, explain_act, time};
use crate::config::Outbox;
use crate::output::escape::line;
use crate::output::{base16, fields, payload_field, plural, time as shown_time};
use clap::Args;
use posthaste::admin::{Admin, EventLife, EventName, LogEvent, Progress, SinkLife, Waiting, Where};
use posthaste::event::StoredEvent;
use posthaste::route::UNROUTED;
use posthaste::{Event, Headers, Timestamp};
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Event id, or number
    #[arg(value_name = "ID|SEQ", value_parser = event_name)]
    event: EventName,
    /// When it was appended, about: RFC 3339, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = time::earlier)]
    near: Option<Timestamp>,
    /// Look through all of the log, however long that takes
    #[arg(long)]
    scan: bool,
    /// Write the payload's bytes and nothing else
    #[arg(long)]
    raw: bool,
}

pub(super) async fn run(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    args: ShowArgs,
) -> anyhow::Result<ExitCode> {
    let place = Where { near: args.near, everywhere: args.scan };
    let life = admin.event(args.event, place).await.map_err(|error| explain_act(outbox, error))?;
    if args.raw {
        context.out().bytes(life.event.payload.as_deref().unwrap_or_default())?;
        return Ok(ExitCode::SUCCESS);
    }
    let value = whole(outbox, &life)?;
    context.out().data(&value, || draw(outbox, &life))?;
    Ok(ExitCode::SUCCESS)
}

/// Everything as JSON: payload and destinations too.
fn whole(outbox: &Outbox, life: &EventLife) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(life)?;
    match life.event.payload.as_deref().map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        Some((_, Ok(text))) => value["event"]["payload"] = text.into(),
        Some((bytes, Err(_))) => value["event"]["payload_base16"] = base16(bytes).into(),
        None => value["event"]["payload"] = Value::Null,
    }
    for (index, sink) in life.sinks.iter().enumerate() {
        value["sinks"][index]["way"] = match way(outbox, sink, &life.event) {
            Some((route, destination)) => json!({ "route": route, "destination": destination }),
            None => Value::Null,
        };
    }
    Ok(value)
}

/// Route and destination: as they are written with an event that waits, else by the routes configured here.
pub(in crate::cli) fn way(outbox: &Outbox, sink: &SinkLife, event: &LogEvent) -> Option<(String, String)> {
    let written = sink.waiting.as_ref().filter(|waiting| !waiting.destination.is_empty());
    if let Some(waiting) = written {
        return Some((waiting.route.clone(), waiting.destination.clone()));
    }
    let route = outbox.routes.find(&sink.sink, &event.topic)?;
    let destination = route.destination.fill(&stored(event)).unwrap_or_else(|why| format!("none: {why}"));
    Some((route.name.to_string(), destination))
}

fn stored(event: &LogEvent) -> StoredEvent {
    let headers =
        event.headers.as_ref().and_then(|value| Headers::from_json(value.to_string().as_bytes()).ok());
    let mut made = Event::tombstone(event.topic.as_str()).with_id(event.id);
    made.key.clone_from(&event.key);
    made.headers = headers.unwrap_or_default();
    StoredEvent { seq: event.seq, slot: 0, appended_at: event.appended_at, event: made, defect: None }
}

fn draw(outbox: &Outbox, life: &EventLife) -> String {
    let mut text = draw_event(life);
    if life.sinks.is_empty() {
        text.push_str("\n\nno relay has run on this outbox yet: it waits in the log");
    }
    for sink in &life.sinks {
        text.push_str(&format!("\n\n{}", draw_sink(outbox, sink, life)));
    }
    if !life.acts.is_empty() {
        text.push_str("\n\nwhat people did with it");
    }
    for act in &life.acts {
        let (who, action, why) = (line(&act.actor), line(&act.action), line(&act.reason));
        text.push_str(&format!("\n  {}  {who}  {action}: {why}", shown_time(act.at)));
    }
    text
}

fn draw_event(life: &EventLife) -> String {
    let event = &life.event;
    let none = || "none".to_owned();
    let log = if life.in_log { "" } else { " (its time in the log is over; this is a copy)" };
    let mut lines = vec![
        ("event", event.id.to_string()),
        ("seq", format!("{}{log}", event.seq)),
        ("topic", event.topic.clone()),
        ("key", event.key.clone().unwrap_or_else(none)),
        ("appended", shown_time(event.appended_at)),
    ];
    if let Some(at) = event.deliver_at {
        lines.push(("not before", shown_time(at)));
    }
    lines.extend([
        ("content type", event.content_type.clone().unwrap_or_else(none)),
        ("headers", event.headers.as_ref().map_or_else(none, Value::to_string)),
    ]);
    format!("{}\n{}", fields(&lines, ""), payload_field(event.payload.as_deref(), event.payload_bytes))
}

fn draw_sink(outbox: &Outbox, sink: &SinkLife, life: &EventLife) -> String {
    let retired = if sink.retired { " (retired: no relay serves it)" } else { "" };
    let mut lines = Vec::new();
    if let Some(passed) = &sink.passed {
        let (at, receipt) = (shown_time(passed.settled_at), passed.receipt);
        lines.push((
            "passed",
            format!("{at}, lane {}, receipt {receipt}, epoch {}", passed.lane, passed.epoch),
        ));
    }
    if sink.progress == Progress::Ahead {
        lines.push(("cursor", format!("at {}", sink.position)));
    }
    if let Some(waiting) = &sink.waiting {
        lines.extend(why_it_waits(waiting));
    }
    if let Some(dead) = &sink.dead {
        lines.push(("died", format!("{} after {}", shown_time(dead.dead_at), attempts(dead.attempts))));
        lines.push(("error", format!("{} ({}): {}", dead.error_code, dead.error_class, dead.error)));
    }
    if let Some(seq) = sink.behind {
        lines.push(("waits for", format!("event {seq} of its key")));
    }
    if sink.holds_back > 0 {
        lines.push(("holds back", format!("{} of its key", plural(sink.holds_back, "later event"))));
    }
    if !matches!(sink.progress, Progress::NotRouted | Progress::BeforeStart)
        && let Some((route, destination)) = way(outbox, sink, &life.event)
    {
        let went = if sink.progress == Progress::Passed { "went to" } else { "would go to" };
        lines.push((went, format!("{destination} (route {route})")));
    }
    let head = format!("{}: {}{retired}", line(&sink.sink), line(&headline(sink, life)));
    if lines.is_empty() { head } else { format!("{head}\n{}", fields(&lines, "  ")) }
}

pub(in crate::cli) fn headline(sink: &SinkLife, life: &EventLife) -> String {
    match (sink.progress, &sink.waiting) {
        (Progress::Passed, _) if sink.sink == UNROUTED => left_unrouted(life),
        (Progress::Ahead, _) => "not read yet".to_owned(),
        (Progress::Passed, _) => "delivered".to_owned(),
        (Progress::Dead, _) => "dead; see `posthaste dead replay --help`".to_owned(),
        (Progress::NotRouted, _) => "no route of this sink takes its topic".to_owned(),
        (Progress::BeforeStart, _) => "not read: the sink began behind it".to_owned(),
        (Progress::Deferred, Some(Waiting { due_at: Some(at), reason, .. })) => {
            format!("waits ({reason}), due {}", shown_time(*at))
        }
        (Progress::Deferred, _) => "waits behind an earlier event of its key".to_owned(),
    }
}

/// Nothing is delivered by the sink of events without a route: this one was a dead letter there, and left it.
fn left_unrouted(life: &EventLife) -> String {
    let takes = |sink: &&SinkLife| {
        sink.sink != UNROUTED && !matches!(sink.progress, Progress::NotRouted | Progress::BeforeStart)
    };
    let others: Vec<&str> = life.sinks.iter().filter(takes).map(|sink| sink.sink.as_str()).collect();
    match life.acts.last().map(|act| act.action.as_str()) {
        Some("discard") => "no route took its topic; discarded".to_owned(),
        Some("replay") if !others.is_empty() => {
            format!("no route took its topic; replayed to {}", others.join(", "))
        }
        Some("replay") => "no route took its topic; replayed".to_owned(),
        _ => "no route took its topic; its dead letter is gone".to_owned(),
    }
}

fn why_it_waits(waiting: &Waiting) -> Vec<(&'static str, String)> {
    let before = match waiting.replays {
        0 => String::new(),
        replays => {
            format!(
                ", {} before; replayed {}",
                waiting.earlier_attempts,
                plural(replays.unsigned_abs().into(), "time")
            )
        }
    };
    let mut lines = vec![("attempts", format!("{}{before}", waiting.attempts))];
    if let Some(error) = &waiting.last_error {
        let class = waiting.error_class.as_deref().unwrap_or("unknown");
        let at = waiting.last_error_at.map_or_else(String::new, |at| format!(" at {}", shown_time(at)));
        lines.push(("error", format!("({class}{at}) {error}")));
    }
    lines
}

fn attempts(number: i32) -> String {
    plural(u64::from(number.unsigned_abs()), "attempt")
}
