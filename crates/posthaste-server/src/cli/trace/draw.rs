//! The picture for people: a tree of messages, each under the one that caused it, in 80 columns.

use super::{FoundIn, Step, appended};
use crate::cli::life::headline;
use crate::config::Config;
use crate::life::{Way, way};
use crate::output::{columns, escape, plural, time, wrap};
use posthaste::admin::{EventLife, Progress, SinkLife};
use posthaste::consumer::admin::MessageTrace;

/// Labels, and the lines that go on behind one.
const LABEL: usize = 10;
/// Deeper levels are drawn as deep as this one: a line needs its room.
const LEVELS_MAX: usize = 8;

/// All of it.
pub(super) fn picture(config: &Config, steps: &[Step]) -> String {
    let mut canvas = Canvas { config, steps, width: usize::from(columns()).max(80), lines: Vec::new() };
    if let Some(first) = steps.first() {
        canvas.step(first);
    }
    canvas.lines.join("\n")
}

struct Canvas<'a> {
    config: &'a Config,
    steps: &'a [Step],
    width: usize,
    lines: Vec<String>,
}

impl Canvas<'_> {
    /// A message, and under it what it caused.
    fn step(&mut self, step: &Step) {
        let level = step.depth.min(LEVELS_MAX);
        let id = escape::line(&step.id);
        self.lines.push(match &step.by {
            None => id.into_owned(),
            Some(by) => format!("{}└─ {id}, by {}", "   ".repeat(level - 1), escape::line(by)),
        });
        let indent = "   ".repeat(level);
        let facts = step.outboxes.iter().flat_map(|found| self.facts(found)).collect::<Vec<_>>();
        for (label, fact) in facts {
            self.fact(&indent, label, &fact);
        }
        let steps = self.steps;
        for caused in steps.iter().filter(|other| other.cause.as_ref() == Some(&step.id)) {
            self.step(caused);
        }
        let is_drawn = |id: &str| steps.iter().any(|step| step.id == id);
        let left: Vec<_> =
            appended(&step.outboxes).filter(|(.., event)| !is_drawn(&event.id.to_string())).collect();
        if let [(.., first), ..] = left.as_slice() {
            let more = plural(left.len() as u64, "event");
            let fact = format!("{more} not followed here, the first is {}", first.id);
            self.fact(&indent, "caused", &fact);
        }
    }

    /// A label, and a text behind it, in as many lines as it needs.
    fn fact(&mut self, indent: &str, label: &str, text: &str) {
        let taken = indent.chars().count() + 2 + LABEL;
        for (index, line) in wrap(&escape::line(text), self.width - taken).into_iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.lines.push(format!("{indent}  {label:<LABEL$}{line}"));
        }
    }

    fn facts(&self, found: &FoundIn) -> Vec<(&'static str, String)> {
        let mut facts = Vec::new();
        if let Some(life) = &found.event {
            let (event, outbox) = (&life.event, &found.outbox);
            let copy = if life.in_log { "" } else { ", of which a copy is left" };
            let number = format!("number {}{copy}", event.seq);
            facts.push((
                "appended",
                format!("outbox {outbox}, {}, topic {}, {number}", time(event.appended_at), event.topic),
            ));
            facts.extend(life.sinks.iter().map(|sink| ("sink", self.sink(&found.outbox, sink, life))));
        }
        facts.extend(found.consumers.iter().map(|trace| ("consumer", consumer(&found.outbox, trace))));
        facts
    }

    fn sink(&self, outbox: &str, sink: &SinkLife, life: &EventLife) -> String {
        let mut parts = vec![format!("{}: {}", sink.sink, headline(sink, life))];
        let outbox = self.config.outboxes.iter().find(|known| *known.name == *outbox);
        let is_on_its_way = !matches!(sink.progress, Progress::NotRouted | Progress::BeforeStart);
        if let Some(Way { destination, .. }) =
            outbox.filter(|_| is_on_its_way).and_then(|outbox| way(outbox, sink, &life.event))
        {
            parts.push(format!("destination {destination}"));
        }
        if let Some(passed) = &sink.passed {
            parts.push(format!("{}, receipt {}", time(passed.settled_at), passed.receipt));
        }
        if let Some(dead) = &sink.dead {
            parts.push(format!("{} ({})", dead.error, dead.error_code));
        }
        parts.join(", ")
    }
}

/// What a consumer knows of a message.
fn consumer(outbox: &str, trace: &MessageTrace) -> String {
    let outcome = match trace.outcome.as_deref() {
        Some("d") => "done",
        Some("w") => "deferred",
        Some("x") => "dead",
        _ => "no mark",
    };
    let at = trace.marked_at.map_or_else(String::new, |at| format!(" {}", time(at)));
    let mut parts = vec![format!("{}: {outcome}{at}, in outbox {outbox}", trace.consumer)];
    parts.extend(trace.place.as_ref().map(|place| format!("from {place}")));
    parts.extend(trace.xid.as_ref().map(|xid| format!("transaction {xid}")));
    if let Some(deferred) = &trace.deferred {
        let until = match deferred.due_at {
            Some(at) => format!("until {}", time(at)),
            None => "behind another of its key".to_owned(),
        };
        let error = deferred.last_error.as_deref().map_or_else(String::new, |error| format!(": {error}"));
        parts.push(format!("waits {until} ({}){error}", deferred.reason));
    }
    parts.extend(trace.letters.iter().map(|letter| format!("letter {letter}")));
    parts.join(", ")
}
