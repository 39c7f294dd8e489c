//! `posthaste audit`: who did what, when and why.

use super::{Context, admin, explain_act, time};
use crate::output::escape::line;
use crate::output::{paragraph, time as shown_time};
use clap::Args;
use posthaste::Timestamp;
use posthaste::admin::{AuditFilter, AuditLine};
use serde_json::{Value, json};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste audit
  posthaste audit --since 2h --actor bo
  posthaste audit --action discard --limit 10
  posthaste audit --trace 4bf92f3577b34da6a3ce929d0e0e4736 --json

Newest first. Every act is there with who, why, how many and some of the ids;
an act in chunks has a line for each. \"says\" stands where somebody said who
they are, and nobody checked it: at the command line, and in SQL.

An act prints its trace. It is that of TRACEPARENT if that is set, so that what
a script or a pipeline does has one; else it is random.";

/// Show who did what, and why
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AuditArgs {
    // Not --actor: that is who acts, for every command.
    /// With this action: replay, discard, retry, pause, resume, rate, ...
    #[arg(long, value_name = "WORD")]
    action: Option<String>,
    /// At or after this time: RFC 3339, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = time::earlier)]
    since: Option<Timestamp>,
    /// Before this time
    #[arg(long, value_name = "TIME", value_parser = time::earlier)]
    until: Option<Timestamp>,
    /// Of this trace
    #[arg(long, value_name = "ID")]
    trace: Option<String>,
    /// Most lines to print
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,
    /// Go on before this line of a former list
    #[arg(long, value_name = "NUMBER")]
    before: Option<i64>,
}

pub(crate) async fn run(context: &Context, args: AuditArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    let filter = AuditFilter {
        actor: context.named_actor(),
        action: args.action,
        trace_id: args.trace,
        since: args.since,
        until: args.until,
    };
    let lines = admin(outbox).await?.audit_lines(&filter, args.before, args.limit).await;
    let lines = lines.map_err(|error| explain_act(outbox, error))?;
    let next = lines.last().filter(|_| lines.len() as i64 == args.limit).map(|line| line.id);
    context.out().data(&json!({ "audit": lines, "next": next }), || {
        let mut text = lines.iter().map(draw).collect::<Vec<_>>().join("\n");
        match next {
            _ if lines.is_empty() => text.push_str("no line of the audit matches"),
            Some(id) => text.push_str(&format!("\nthere may be more: --before {id}")),
            None => {}
        }
        text
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Three lines: when, who and what; why; what it was about.
fn draw(one: &AuditLine) -> String {
    let claimed = if one.verified { "" } else { "says " };
    let denied = if one.outcome == "done" { String::new() } else { format!("  {}", one.outcome) };
    let trace = one.trace_id.as_ref().map_or_else(String::new, |trace| format!("  trace {trace}"));
    let who = line(&one.actor);
    let head = format!("{}  {claimed}{who}  {}{denied}", shown_time(one.at), one.action);
    let mut lines = vec![paragraph(&head, ""), paragraph(&format!("\"{}\"", one.reason), "  ")];
    let about = format!("{}{trace}", about(&one.detail));
    if !about.is_empty() {
        lines.push(paragraph(about.trim_start(), "  "));
    }
    lines.join("\n")
}

/// What it was about, in a few words. JSON has all of it.
fn about(detail: &Value) -> String {
    let Some(members) = detail.as_object() else { return String::new() };
    let word = |(name, value): (&String, &Value)| match value {
        Value::Null => None,
        Value::Array(items) => Some(format!("{name} {}", plain(items.first()?, items.len()))),
        Value::Object(inner) => {
            let inner = inner.iter().filter(|(_, value)| !is_nothing(value));
            let words: Vec<String> =
                inner.map(|(name, value)| format!("{name} {}", plain(value, 1))).collect();
            (!words.is_empty()).then(|| format!("{name} ({})", words.join(", ")))
        }
        value => Some(format!("{name} {}", plain(value, 1))),
    };
    members.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

fn plain(value: &Value, of: usize) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if of > 1 { format!("{text} and {} more", of - 1) } else { text }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || *value == json!(false) || value.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_what_and_why_within_80_columns() {
        let mut one = AuditLine {
            id: 7,
            at: Timestamp(1_700_000_000_000_000),
            actor: "bo@laptop".to_owned(),
            verified: false,
            action: "replay".to_owned(),
            reason: "the limit was raised ".repeat(9),
            outcome: "done".to_owned(),
            trace_id: Some("4bf92f3577b34da6a3ce929d0e0e4736".to_owned()),
            detail: json!({
                "count": 2, "filter": { "all": false, "ids": [], "sink": "nats", "topic": null }, "ids": ["a", "b"],
                "until": null,
            }),
        };
        let text = draw(&one);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.starts_with("2023-11-14 22:13:20Z says bo@laptop replay \"the limit"), "{text}");
        assert!(flat.contains("count 2, filter (sink nats), ids a and 1 more trace 4bf9"), "{text}");
        (one.verified, one.outcome) = (true, "denied".to_owned());
        assert!(draw(&one).starts_with("2023-11-14 22:13:20Z  bo@laptop  replay  denied"));
    }
}
