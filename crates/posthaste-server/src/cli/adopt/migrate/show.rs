//! What people read. Pure.

use super::pair::Pair;
use crate::output::{count, thousands};
use posthaste_postgres::claim::{Done, HandoverStatus, Trigger};

/// The next command, and what it does.
pub(super) fn next(standing: &HandoverStatus) -> Vec<String> {
    let lines: &[&str] = match standing.trigger {
        Trigger::Absent if standing.held.is_empty() => &[
            "posthaste adopt migrate start --reason …",
            "makes a trigger: rows go to the log in the transaction that writes them",
        ],
        Trigger::Absent => &[
            "posthaste adopt migrate start --hold --reason …",
            "goes on from where a start ended; `stop` lets the held sinks go instead",
        ],
        Trigger::Other => &[
            "posthaste adopt migrate start --reason …",
            "brings the trigger up to date with the layout, in one transaction",
        ],
        Trigger::Off | Trigger::Disabled => &[
            "posthaste adopt migrate start --reason …",
            "switches the trigger on again; `stop` removes it instead",
        ],
        Trigger::On if standing.is_drained() => &[
            "posthaste adopt migrate finish",
            "lets held sinks go on, and says which lines of the configuration can go",
        ],
        Trigger::On if standing.waiting.count == 0 => &[
            "posthaste run",
            "goes on with the rows whose time has not come; `finish --anyway` does not wait",
        ],
        Trigger::On => &["posthaste run", "goes on with the rows that wait in the table, until none is left"],
    };
    lines.iter().map(|line| (*line).to_owned()).collect()
}

pub(super) fn standing(pair: &Pair<'_>, standing: &HandoverStatus, next: &[String]) -> String {
    let trigger = match standing.trigger {
        Trigger::Absent => "none: rows wait in the table and are claimed",
        Trigger::On => "on: rows go to the log as they are committed",
        Trigger::Other => "on, as another layout or version of posthaste says",
        Trigger::Off => "off: it does nothing any more",
        Trigger::Disabled => "disabled by somebody: rows wait in the table and are claimed",
    };
    let mut lines = vec![
        format!("outbox {}, table {}", pair.adopted.name, standing.table),
        format!("  to       outbox {}, schema {}", pair.log.name, standing.log),
        format!("  trigger  {trigger}"),
        format!(
            "  waiting  {} now, {} for their time or next attempt",
            count(standing.waiting),
            count(standing.later)
        ),
        format!("  dead     {}", count(standing.dead)),
    ];
    if standing.never.count > 0 {
        lines.push(format!(
            "  never    {}: their time is null or infinity, nobody takes them",
            count(standing.never)
        ));
    }
    if !standing.held.is_empty() {
        lines.push(format!("  held     {} of the log, until finish or stop", standing.held.join(", ")));
    }
    lines.push(String::new());
    lines.extend(next.iter().enumerate().map(|(at, line)| match at {
        0 => format!("next: {line}"),
        _ => format!("  {line}"),
    }));
    lines.join("\n")
}

pub(super) fn started(pair: &Pair<'_>, held: &[String]) -> String {
    let held = match held {
        [] => String::new(),
        sinks => format!("\nheld until finish: {} of outbox {}", sinks.join(", "), pair.log.name),
    };
    format!(
        "rows of {} go to the log of outbox {} from now on, as they are committed{held}\n\n\
         While the trigger is there:\n\
         - a transaction that has written rows cannot TRUNCATE or ALTER the table or\n  make an index on it (\"pending trigger events\"): SET CONSTRAINTS ALL IMMEDIATE\n  before it, or another transaction\n\
         - rename neither the table nor a column of the layout: inserts would fail;\n  stop first\n\n\
         next: let `posthaste run` go on with both outboxes; the rows that were there\n  before drain. Then: posthaste adopt migrate finish",
        pair.table(),
        pair.log.name
    )
}

/// What became of the sinks that were held.
pub(super) struct Sinks<'a> {
    pub(super) resumed: &'a [String],
    /// By hand, or for another table.
    pub(super) paused: &'a [String],
}

pub(super) fn finished(
    pair: &Pair<'_>,
    standing: &HandoverStatus,
    sinks: &Sinks<'_>,
    question: &str,
) -> String {
    let (name, table) = (&pair.adopted.name, pair.table());
    let mut lines = vec![match standing.later.count {
        0 => format!("{table} is drained: nothing waits in it, and what is written goes to the log"),
        _ => format!(
            "what is written to {table} goes to the log\nrows in it that wait for their time or next attempt: {}\n  keep outbox {name} until they are gone",
            count(standing.later)
        ),
    }];
    if !sinks.resumed.is_empty() {
        lines.push(format!("sinks of outbox {} go on: {}", pair.log.name, sinks.resumed.join(", ")));
    }
    if !sinks.paused.is_empty() {
        lines.push(format!(
            "still paused, by hand or for another table: {}\n  (posthaste resume --sink … --outbox {})",
            sinks.paused.join(", "),
            pair.log.name
        ));
    }
    if standing.never.count > 0 {
        lines.push(format!(
            "rows in it that nobody takes, because their time is null or infinity: {}",
            count(standing.never)
        ));
    }
    if standing.dead.count > 0 {
        lines.push(format!(
            "{} dead rows are left: replay or discard them before you go on\n  (posthaste dead list --outbox {name})",
            thousands(standing.dead.count)
        ));
    }
    lines.push(
        "\nNow one of these:\n\
         - keep the trigger, and the application as it is. Rows that somebody sets back\n  to waiting by hand, or writes past the trigger (disabled, or with\n  session_replication_role = replica), are not handed over and need the\n  adopted outbox: keep it in the configuration as long as anybody does that\n\
         - change the application to append to the log by itself (docs/append.md); when\n  it is deployed: posthaste adopt migrate stop --reason …"
            .to_owned(),
    );
    lines.push(format!(
        "\nNot needed in the configuration any more, if nobody does:\n  [[outbox]]\n  name = \"{name}\"\n  … with its [outbox.adopt]\n\
         Without it nobody publishes what waits in the table. This tells how much:\n  {question}"
    ));
    if pair.layout.keep_published.is_some() {
        lines.push(format!("Without it nobody deletes old rows of {table}: it has a retention now."));
    }
    lines.join("\n")
}

pub(super) fn stopped(pair: &Pair<'_>, done: Done) -> String {
    let table = pair.table();
    match done {
        Done::Before => format!("{table} has no trigger of ours; nothing was changed"),
        Done::Now => format!(
            "rows of {table} stay in the table again; the trigger is removed\n\n\
             What is in the log stays there and is delivered. If the application still\nwrites to the table, outbox {} must be relayed.",
            pair.adopted.name
        ),
        Done::Off => format!(
            "rows of {table} stay in the table again; the trigger does nothing any more\n\n\
             It could not be removed yet, because the table was busy. Run this again."
        ),
    }
}
