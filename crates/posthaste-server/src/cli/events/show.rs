//! One event's life: the event, then a paragraph for each sink, then what people did with it.
//!
//! Times have milliseconds here: what happened to one event is a matter of them.

use crate::cli::letters::draw;
use crate::cli::life::{headline, settled, why_it_waits};
use crate::cli::{Context, event_name, explain_act, time};
use crate::config::Outbox;
use crate::life::{Tried, Way, shown_sinks, tried, way};
use crate::output::{base16, exact_time, fields, paragraph, payload_field, plural};
use clap::Args;
use posthaste::Timestamp;
use posthaste::admin::{Admin, EventLife, EventName, History, Progress, SinkLife, Where};
use serde_json::Value;
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
    let tried = tried(admin, &life).await.map_err(|error| explain_act(outbox, error))?;
    let value = whole(outbox, &life, &tried)?;
    context.out().data(&value, || draw_life(outbox, &life, &tried))?;
    Ok(ExitCode::SUCCESS)
}

/// Everything as JSON: payload, destinations and attempts too.
fn whole(outbox: &Outbox, life: &EventLife, tried: &Tried) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(life)?;
    match life.event.payload.as_deref().map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        Some((_, Ok(text))) => value["event"]["payload"] = text.into(),
        Some((bytes, Err(_))) => value["event"]["payload_base16"] = base16(bytes).into(),
        None => value["event"]["payload"] = Value::Null,
    }
    value["sinks"] = serde_json::to_value(shown_sinks(outbox, &life.sinks, &life.event, tried))?;
    Ok(value)
}

fn draw_life(outbox: &Outbox, life: &EventLife, tried: &Tried) -> String {
    let mut text = draw_event(life);
    if life.sinks.is_empty() {
        text.push_str("\n\nno relay has run on this outbox yet: it waits in the log");
    }
    for sink in &life.sinks {
        text.push_str(&format!("\n\n{}", draw_sink(outbox, sink, life, tried.get(&sink.sink))));
    }
    if !life.acts.is_empty() {
        text.push_str("\n\nwhat people did with it");
    }
    for act in &life.acts {
        let act = format!("{}  {}  {}: {}", exact_time(act.at), act.actor, act.action, act.reason);
        text.push_str(&format!("\n{}", paragraph(&act, "  ")));
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
        ("appended", exact_time(event.appended_at)),
    ];
    if let Some(at) = event.deliver_at {
        lines.push(("deliver at", format!("{}, not before", exact_time(at))));
    }
    lines.extend([
        ("content type", event.content_type.clone().unwrap_or_else(none)),
        ("headers", event.headers.as_ref().map_or_else(none, Value::to_string)),
    ]);
    format!("{}\n{}", fields(&lines, ""), payload_field(event.payload.as_deref(), event.payload_bytes))
}

fn draw_sink(outbox: &Outbox, sink: &SinkLife, life: &EventLife, tried: Option<&History>) -> String {
    let retired = if sink.retired { " (retired: no relay serves it)" } else { "" };
    let mut lines = Vec::new();
    lines.extend(settled(sink, &life.event));
    if sink.progress == Progress::Ahead {
        lines.push(("cursor", format!("at {}", sink.position)));
    }
    if let Some(waiting) = &sink.waiting {
        lines.extend(why_it_waits(waiting));
        lines.extend(tried.into_iter().flat_map(draw::attempts));
    }
    if let Some(dead) = &sink.dead {
        lines.push(("died", format!("{} after {}", exact_time(dead.dead_at), attempts(dead.attempts))));
        lines.push(("error", draw::error(&dead.error_code, &dead.error_class, &dead.error)));
        lines.extend(draw::attempts(&dead.history));
    }
    if let Some(seq) = sink.behind {
        lines.push(("waits for", format!("event {seq} of its key")));
    }
    if sink.holds_back > 0 {
        lines.push(("holds back", format!("{} of its key", plural(sink.holds_back, "later event"))));
    }
    if !matches!(sink.progress, Progress::NotRouted | Progress::BeforeStart)
        && let Some(Way { route, destination }) = way(outbox, sink, &life.event)
    {
        let went = if sink.progress == Progress::Passed { "went to" } else { "would go to" };
        lines.push((went, format!("{destination} (route {route})")));
    }
    let head = paragraph(&format!("{}: {}{retired}", sink.sink, headline(sink, life)), "");
    if lines.is_empty() { head } else { format!("{head}\n{}", fields(&lines, "  ")) }
}

fn attempts(number: i32) -> String {
    plural(u64::from(number.unsigned_abs()), "attempt")
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::admin::{LogEvent, PassedAt, Waiting};
    use posthaste::route::UNROUTED;
    use serde_json::json;

    const PASSED: Timestamp = Timestamp(1_700_000_000_123_456);

    fn event(deliver_at: Option<Timestamp>) -> LogEvent {
        LogEvent {
            seq: 7,
            id: uuid::Uuid::nil(),
            topic: "orders.placed".to_owned(),
            key: Some("k".repeat(100)),
            headers: Some(json!({ "traceparent": "x".repeat(100) })),
            content_type: None,
            payload_bytes: Some(200),
            payload: Some("p".repeat(200).into_bytes()),
            deliver_at,
            appended_at: PASSED,
        }
    }

    fn sink(name: &str, progress: Progress, waiting: Option<Waiting>) -> SinkLife {
        let passed = PassedAt { lane: 0, receipt: 7, epoch: 2, settled_at: PASSED };
        SinkLife {
            sink: name.to_owned(),
            retired: false,
            progress,
            position: 9,
            passed: Some(passed),
            waiting,
            dead: None,
            behind: None,
            holds_back: 0,
        }
    }

    fn waiting(reason: &str) -> Waiting {
        Waiting {
            reason: reason.to_owned(),
            attempts: 2,
            earlier_attempts: 0,
            replays: 0,
            due_at: Some(Timestamp(1_700_000_060_500_000)),
            route: "all".to_owned(),
            destination: "mail.sent".to_owned(),
            error_class: Some("transient".to_owned()),
            last_error: Some("the mailbox is full ".repeat(20)),
            last_error_at: Some(PASSED),
        }
    }

    fn text(life: &SinkLife, deliver_at: Option<Timestamp>) -> String {
        let config =
            crate::config::Config::parse(std::path::Path::new("t"), "outbox.url = \"postgres://h/d\"");
        let config = config.map_err(|error| error.to_string()).expect("an outbox");
        let mut history = History::default();
        history.push(PASSED, "transient", "smtp.full", "the mailbox is full");
        let tried = Tried::from([("out".to_owned(), history)]);
        let sinks = vec![life.clone()];
        let whole = EventLife { event: event(deliver_at), in_log: true, sinks, acts: Vec::new() };
        let text = draw_life(&config.outboxes[0], &whole, &tried);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_waiting_event_is_put_aside_and_a_delivered_one_settled() {
        let waits = text(&sink("out", Progress::Deferred, Some(waiting("retry"))), None);
        assert!(waits.contains("out: waits (retry), due 2023-11-14 22:14:20.500Z"), "{waits}");
        assert!(waits.contains("put aside 2023-11-14 22:13:20.123Z, lane 0"), "{waits}");
        assert!(
            waits.contains("tried 2023-11-14 22:13:20.123Z smtp.full (transient): the mailbox"),
            "{waits}"
        );
        assert!(!waits.contains("passed") && !waits.contains("settled"), "{waits}");
        let outage = text(&sink("out", Progress::Deferred, Some(waiting("outage"))), None);
        assert!(outage.contains("out: waits (outage), until its destination answers again"), "{outage}");
        let done = text(&sink("out", Progress::Passed, None), None);
        assert!(done.contains("out: delivered settled 2023-11-14 22:13:20.123Z"), "{done}");
    }

    #[test]
    fn a_delivery_time_is_shown_and_is_not_the_time_of_the_cursor() {
        let late = Timestamp(PASSED.0 + 3_600_000_000);
        let done = text(&sink("out", Progress::Passed, None), Some(late));
        assert!(done.contains("deliver at 2023-11-14 23:13:20.123Z, not before"), "{done}");
        assert!(done.contains("put aside 2023-11-14 22:13:20.123Z") && !done.contains("settled"), "{done}");
    }

    #[test]
    fn a_topic_that_has_a_route_is_not_said_to_have_none() {
        let routed = text(&sink(UNROUTED, Progress::NotRouted, None), None);
        assert!(routed.contains("unrouted: a route takes its topic"), "{routed}");
        let other = text(&sink("out", Progress::NotRouted, None), None);
        assert!(other.contains("out: no route of this sink takes its topic"), "{other}");
    }
}
