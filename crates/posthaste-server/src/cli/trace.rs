//! `posthaste trace`: what every configured database knows of one event or message.

use super::{Context, admin, consumer_admin, explain_act};
use crate::config::{Config, Outbox};
use crate::output::{escape, remark, time};
use clap::Args;
use posthaste::admin::{Admin, AdminError, EventLife, EventName, Where};
use posthaste::consumer::IdentityScope;
use posthaste::consumer::admin::{ConsumerAdmin, MessageTrace};
use serde::Serialize;
use serde_json::json;
use std::collections::VecDeque;
use std::process::ExitCode;

/// Most messages that are followed.
const FOLLOWED_MAX: usize = 100;

const EXAMPLES: &str = "\
Examples:
  posthaste trace 0192f7a0-5c1e-7a3e-b1f2-000000000001
  posthaste trace order-7-placed --json | jq '.followed[].id'

The id is that of an event (a UUID) or of any message that a consumer marked. For
each outbox it says whether the event is in its log and what its sinks did, and
for each consumer whether the message is done, deferred or dead, where it came
from and in which transaction. Then the same for each event that a handler
appended because of it, in every configured outbox, and so on. An event belongs
to a message if its header `causation-id` says so, or if it says nothing and the
message was alone in its transaction. `events show` says more of an event.";

/// Follow an event or a message through outboxes and consumers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TraceArgs {
    /// Id of an event or a message
    id: String,
}

/// Where a message, or one that it caused, was found.
#[derive(Serialize)]
struct Step {
    id: String,
    /// The message that caused it.
    cause: Option<String>,
    outboxes: Vec<FoundIn>,
}

#[derive(Serialize)]
struct FoundIn {
    outbox: String,
    event: Option<EventLife>,
    consumers: Vec<MessageTrace>,
}

/// One database that is looked into.
struct Lookup<'a> {
    outbox: &'a Outbox,
    admin: Box<dyn Admin>,
    consumers: Option<Box<dyn ConsumerAdmin>>,
    /// Topics that are part of a message's name here.
    scopes: Vec<&'a str>,
}

pub(crate) async fn run(context: &Context, args: TraceArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let (mut lookups, mut failure) = (Vec::new(), None);
    for outbox in context.outboxes(&config)? {
        match Lookup::open(&config, outbox).await {
            Ok(lookup) => lookups.push(lookup),
            Err(error) => {
                remark(&format!("not looked at: {error}"));
                failure = Some(error);
            }
        }
    }
    if let (true, Some(error)) = (lookups.is_empty(), failure) {
        return Err(error);
    }
    let steps = follow(&lookups, &args.id).await?;
    let Some((first, followed)) = steps.split_first() else { return Ok(ExitCode::FAILURE) };
    let found = !first.outboxes.is_empty();
    let answer = json!({ "id": args.id, "outboxes": first.outboxes, "followed": followed });
    context.out().data(&answer, || match found {
        true => steps.iter().map(draw_step).collect::<Vec<_>>().join("\n\n"),
        false => format!("no trace of {}", escape::line(&args.id)),
    })?;
    Ok(if found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The message, and what it caused: near ones first, each once.
async fn follow(lookups: &[Lookup<'_>], id: &str) -> anyhow::Result<Vec<Step>> {
    let mut waiting = VecDeque::from([(id.to_owned(), None)]);
    let mut steps: Vec<Step> = Vec::new();
    while let Some((id, cause)) = waiting.pop_front() {
        if steps.len() == FOLLOWED_MAX {
            remark(&format!("only the first {FOLLOWED_MAX} are shown: trace one of them for more"));
            break;
        }
        let mut outboxes = Vec::new();
        for lookup in lookups {
            outboxes.extend(lookup.find(&id).await?);
        }
        for event in outboxes.iter().flat_map(|found| &found.consumers).flat_map(|trace| &trace.appended) {
            let caused = event.id.to_string();
            let known = steps.iter().map(|step| &step.id).chain(waiting.iter().map(|(id, _)| id));
            if caused != id && !known.into_iter().any(|known| *known == caused) {
                waiting.push_back((caused, Some(id.clone())));
            }
        }
        steps.push(Step { id, cause, outboxes });
    }
    Ok(steps)
}

impl<'a> Lookup<'a> {
    async fn open(config: &'a Config, outbox: &'a Outbox) -> anyhow::Result<Self> {
        let consumers = match outbox.database.has_consumers() {
            true => Some(consumer_admin(config, outbox, None).await?),
            false => None,
        };
        let scoped = config.consumers.iter().filter(|setting| {
            setting.outbox == outbox.name && setting.own.identity_scope == Some(IdentityScope::Topic)
        });
        let scopes = scoped.flat_map(|setting| &setting.own.topics).map(String::as_str).collect();
        Ok(Self { outbox, admin: admin(outbox).await?, consumers, scopes })
    }

    async fn find(&self, id: &str) -> anyhow::Result<Option<FoundIn>> {
        let (event, mut consumers) = (self.appended(id).await?, Vec::new());
        if let Some(admin) = &self.consumers {
            let scoped = self.scopes.iter().map(|topic| format!("{topic}:{id}"));
            for name in std::iter::once(id.to_owned()).chain(scoped) {
                let found = admin.trace(&name).await;
                consumers.extend(found.map_err(|error| explain_act(self.outbox, error))?);
            }
        }
        let outbox = self.outbox.name.to_string();
        let is_found = event.is_some() || !consumers.is_empty();
        Ok(is_found.then_some(FoundIn { outbox, event, consumers }))
    }

    /// The event's life in the log, if it is there.
    async fn appended(&self, id: &str) -> anyhow::Result<Option<EventLife>> {
        let Ok(id) = id.parse() else { return Ok(None) };
        match self.admin.event(EventName::Id(id), Where::default()).await {
            Ok(life) => Ok(Some(life)),
            Err(error @ AdminError::Store(_)) => Err(explain_act(self.outbox, error)),
            // It is not in this log, or not any more.
            Err(_) => Ok(None),
        }
    }
}

fn draw_step(step: &Step) -> String {
    let found = step.outboxes.iter().map(|found| draw(&found.outbox, found.event.as_ref(), &found.consumers));
    let found = found.collect::<Vec<_>>().join("\n");
    match &step.cause {
        None => found,
        Some(cause) => format!("{}, caused by {}\n{found}", escape::line(&step.id), escape::line(cause)),
    }
}

fn draw(outbox: &str, event: Option<&EventLife>, traces: &[MessageTrace]) -> String {
    let mut lines = vec![format!("outbox {outbox}")];
    if let Some(EventLife { event, sinks, .. }) = event {
        let topic = escape::line(&event.topic);
        lines.push(format!("  appended  {}  topic {topic}  number {}", time(event.appended_at), event.seq));
        for sink in sinks {
            let progress = serde_json::to_value(sink.progress).unwrap_or_default();
            let progress = progress.as_str().unwrap_or_default().to_owned();
            lines.push(format!("  sink      {}  {progress}", escape::line(&sink.sink)));
        }
    }
    lines.extend(traces.iter().map(|trace| format!("  consumer  {}", draw_trace(trace))));
    lines.join("\n")
}

fn draw_trace(trace: &MessageTrace) -> String {
    let outcome = match trace.outcome.as_deref() {
        Some("d") => "done",
        Some("w") => "deferred",
        Some("x") => "dead",
        _ => "no mark",
    };
    let mut parts = vec![format!("{}  {outcome}", escape::line(&trace.consumer))];
    parts.extend(trace.marked_at.map(time));
    parts.extend(trace.place.as_ref().map(|place| format!("from {}", escape::line(place))));
    parts.extend(trace.xid.as_ref().map(|xid| format!("transaction {xid}")));
    if let Some(deferred) = &trace.deferred {
        let until = deferred
            .due_at
            .map_or_else(|| "behind another of its key".to_owned(), |at| format!("until {}", time(at)));
        let error = deferred
            .last_error
            .as_deref()
            .map_or_else(String::new, |error| format!(": {}", escape::line(error)));
        parts.push(format!("waits {until} ({}){error}", escape::line(&deferred.reason)));
    }
    parts.extend(trace.letters.iter().map(|letter| format!("letter {letter}")));
    let appended = trace.appended.iter();
    parts.extend(appended.map(|event| format!("appended {}  {}", event.id, escape::line(&event.topic))));
    parts.join("\n            ")
}
