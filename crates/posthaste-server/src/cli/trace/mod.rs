//! `posthaste trace`: one event's way through every configured database.
//!
//! Each database is asked for what it knows of an id: its log for the event and its receipts, its inbox for
//! the marks, what waits and what is dead. What handlers appended because of it is followed in turn,
//! wherever it is handled next. An event that was followed to is looked for in the log that it was found
//! in, and in all inboxes: its number is known there, and a log of another service is not searched for what
//! it never had.
//!
//! A database that does not answer is named and left out from then on; a picture with a hole in it is worth
//! more than none. An id is followed once, so a cycle ends where it began.

mod draw;

use super::{Context, admin, explain, explain_act};
use crate::config::{Config, ConsumerSetting, Outbox, scrub};
use crate::output::{escape, remark};
use clap::Args;
use posthaste::Timestamp;
use posthaste::admin::{Admin, AdminError, EventLife, EventName, Where};
use posthaste::consumer::IdentityScope;
use posthaste::consumer::admin::{CausedEvent, ConsumerAdmin, MessageTrace};
use serde::Serialize;
use serde_json::json;
use std::collections::{HashSet, VecDeque};
use std::process::ExitCode;
use std::time::Duration;

/// Most messages that are followed: a screenful or two, and some thousand statements at most.
const FOLLOWED_MAX: usize = 100;
/// Most handlers between the first message and another: a chain that is longer goes in circles, with new
/// ids.
const DEPTH_MAX: usize = 16;
/// One database has so long for one id. A search of its log ends before that by itself.
const ANSWER_MAX: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  posthaste trace 0192f7a0-5c1e-7a3e-b1f2-000000000001
  posthaste trace order-7-placed --json | jq '.followed[].id'

The id is that of an event (a UUID) or of any message that a consumer marked. For
each outbox it says whether the event is in its log and what its sinks did, and
for each consumer whether the message is done, deferred or dead, where it came
from and in which transaction. Then the same for each event that a handler
appended because of it, whichever configured database handles that, and so on:
100 messages, 16 handlers deep. An event belongs to a message if its header
`causation-id` says so, or if it says nothing and the message was alone in its
transaction. A database that does not answer is named, and the rest is shown.
`events show` says more of an event.";

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
    /// The consumer whose handler appended it.
    by: Option<String>,
    /// How many handlers lie between it and the first.
    depth: usize,
    outboxes: Vec<FoundIn>,
}

#[derive(Serialize)]
struct FoundIn {
    outbox: String,
    event: Option<EventLife>,
    consumers: Vec<MessageTrace>,
}

/// What is still to be looked for.
struct Sought {
    id: String,
    cause: Option<String>,
    by: Option<String>,
    depth: usize,
    /// The outbox that it was appended to, and when, where that is known.
    origin: Option<(String, Timestamp)>,
}

/// One login to a database, and what it is asked for.
struct Lookup<'a> {
    outbox: &'a Outbox,
    view: View<'a>,
}

enum View<'a> {
    Log(Box<dyn Admin>),
    Inbox {
        admin: Box<dyn ConsumerAdmin>,
        /// Topics that are part of a message's name here.
        scopes: Vec<&'a str>,
    },
}

/// A database that did not answer.
#[derive(Serialize, PartialEq)]
struct Away {
    outbox: String,
    why: String,
}

/// What was seen, and what was not.
struct Picture {
    steps: Vec<Step>,
    away: Vec<Away>,
    /// Whether there was more than is followed.
    is_cut: bool,
}

pub(crate) async fn run(context: &Context, args: TraceArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let (mut lookups, mut away, mut failure) = (Vec::new(), Vec::new(), None);
    for outbox in context.outboxes(&config)? {
        for opened in Lookup::open(&config, outbox).await {
            match opened {
                Ok(lookup) => lookups.push(lookup),
                Err(error) => {
                    note(&mut away, outbox, &error);
                    failure = Some(error);
                }
            }
        }
    }
    if let (true, Some(error)) = (lookups.is_empty(), failure) {
        return Err(error);
    }
    let picture = follow(lookups, away, &args.id).await;
    let Some((first, followed)) = picture.steps.split_first() else { return Ok(ExitCode::FAILURE) };
    let is_found = !first.outboxes.is_empty();
    let is_complete = picture.away.is_empty() && !picture.is_cut;
    let answer = json!({
        "id": args.id, "outboxes": first.outboxes, "followed": followed, "not_looked_at": picture.away,
        "complete": is_complete,
    });
    context.out().data(&answer, || match is_found {
        true => draw::picture(&config, &picture.steps),
        false => format!("no trace of {}", escape::line(&args.id)),
    })?;
    if picture.is_cut {
        let most = format!("{FOLLOWED_MAX} messages and {DEPTH_MAX} handlers deep");
        remark(&format!("only {most} are followed: trace one of the last for more"));
    }
    Ok(if is_found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says once that a database did not answer.
fn note(away: &mut Vec<Away>, outbox: &Outbox, error: &anyhow::Error) {
    let one = Away { outbox: outbox.name.to_string(), why: scrub(&error.to_string()) };
    if !away.contains(&one) {
        remark(&format!("not looked at: {}", one.why));
        away.push(one);
    }
}

/// The message, and what it caused: near ones first, each once.
async fn follow(mut lookups: Vec<Lookup<'_>>, mut away: Vec<Away>, id: &str) -> Picture {
    let first = Sought { id: id.to_owned(), cause: None, by: None, depth: 0, origin: None };
    let (mut waiting, mut known) = (VecDeque::from([first]), HashSet::from([id.to_owned()]));
    let (mut steps, mut is_cut) = (Vec::new(), false);
    while let Some(sought) = waiting.pop_front() {
        if steps.len() == FOLLOWED_MAX {
            is_cut = true;
            break;
        }
        let outboxes = find(&mut lookups, &mut away, &sought).await;
        for (found, trace, event) in appended(&outboxes) {
            let caused = event.id.to_string();
            if !known.insert(caused.clone()) {
                continue;
            }
            if sought.depth == DEPTH_MAX {
                is_cut = true;
                continue;
            }
            waiting.push_back(Sought {
                id: caused,
                cause: Some(sought.id.clone()),
                by: Some(trace.consumer.clone()),
                depth: sought.depth + 1,
                origin: Some((found.outbox.clone(), event.appended_at)),
            });
        }
        let Sought { id, cause, by, depth, .. } = sought;
        steps.push(Step { id, cause, by, depth, outboxes });
    }
    Picture { steps, away, is_cut }
}

/// What handlers appended, with whose and where.
fn appended(outboxes: &[FoundIn]) -> impl Iterator<Item = (&FoundIn, &MessageTrace, &CausedEvent)> {
    let traces = outboxes.iter().flat_map(|found| found.consumers.iter().map(move |trace| (found, trace)));
    traces.flat_map(|(found, trace)| trace.appended.iter().map(move |event| (found, trace, event)))
}

/// Asks every database for an id. Whoever fails is asked no more.
async fn find(lookups: &mut Vec<Lookup<'_>>, away: &mut Vec<Away>, sought: &Sought) -> Vec<FoundIn> {
    let (mut found, mut failed) = (Vec::<FoundIn>::new(), Vec::new());
    for (index, lookup) in lookups.iter().enumerate() {
        let asked = tokio::time::timeout(ANSWER_MAX, lookup.find(sought)).await;
        let silent = || anyhow::anyhow!("outbox `{}`: no answer within {ANSWER_MAX:?}", lookup.outbox.name);
        match asked.unwrap_or_else(|_| Err(silent())) {
            Ok(one) => merge(&mut found, one),
            Err(error) => {
                note(away, lookup.outbox, &error);
                failed.push(index);
            }
        }
    }
    for index in failed.into_iter().rev() {
        lookups.remove(index);
    }
    found.retain(|found| found.event.is_some() || !found.consumers.is_empty());
    found
}

/// Several logins may show one database: a consumer's mark is one if consumer, time and transaction are.
fn merge(found: &mut Vec<FoundIn>, one: FoundIn) {
    let Some(same) = found.iter_mut().find(|found| found.outbox == one.outbox) else {
        found.push(one);
        return;
    };
    same.event = same.event.take().or(one.event);
    let is_one = |a: &MessageTrace, b: &MessageTrace| {
        (&a.consumer, a.marked_at, &a.xid) == (&b.consumer, b.marked_at, &b.xid)
    };
    for trace in one.consumers {
        if !same.consumers.iter().any(|known| is_one(known, &trace)) {
            same.consumers.push(trace);
        }
    }
    same.consumers.sort_by(|a, b| a.consumer.cmp(&b.consumer));
}

impl<'a> Lookup<'a> {
    /// The outbox's login for its log, and for its inbox each login that a consumer has there.
    async fn open(config: &'a Config, outbox: &'a Outbox) -> Vec<anyhow::Result<Self>> {
        let mut opened = vec![admin(outbox).await.map(|admin| Self { outbox, view: View::Log(admin) })];
        if !outbox.database.has_consumers() {
            return opened;
        }
        let here = config.consumers.iter().filter(|setting| setting.outbox == outbox.name);
        let mut logins: Vec<Vec<&ConsumerSetting>> = Vec::new();
        for setting in here {
            let login = |setting: &ConsumerSetting| {
                (setting.database.url.clone(), setting.database.password_file.clone())
            };
            match logins.iter_mut().find(|others| login(others[0]) == login(setting)) {
                Some(others) => others.push(setting),
                None => logins.push(vec![setting]),
            }
        }
        if logins.is_empty() {
            logins.push(Vec::new());
        }
        for consumers in logins {
            opened.push(Self::open_inbox(outbox, &consumers).await);
        }
        opened
    }

    async fn open_inbox(outbox: &'a Outbox, consumers: &[&'a ConsumerSetting]) -> anyhow::Result<Self> {
        let login = consumers.first().map(|setting| &setting.database);
        let admin = outbox.database.consumer_admin(login, consumers).await;
        let admin = admin.map_err(|error| explain(outbox, error))?;
        let admin = admin.ok_or_else(|| anyhow::anyhow!("outbox `{}` has no inbox", outbox.name))?;
        let is_scoped =
            |setting: &&&ConsumerSetting| setting.own.identity_scope == Some(IdentityScope::Topic);
        let scoped = consumers.iter().filter(is_scoped);
        let scopes = scoped.flat_map(|setting| &setting.own.topics).map(String::as_str).collect();
        Ok(Self { outbox, view: View::Inbox { admin, scopes } })
    }

    async fn find(&self, sought: &Sought) -> anyhow::Result<FoundIn> {
        let mut found = FoundIn { outbox: self.outbox.name.to_string(), event: None, consumers: Vec::new() };
        match &self.view {
            View::Log(admin) => found.event = self.appended(&**admin, sought).await?,
            View::Inbox { admin, scopes } => {
                let scoped = scopes.iter().map(|topic| format!("{topic}:{}", sought.id));
                for name in std::iter::once(sought.id.clone()).chain(scoped) {
                    let traces = admin.trace(&name).await;
                    found.consumers.extend(traces.map_err(|error| explain_act(self.outbox, error))?);
                }
            }
        }
        Ok(found)
    }

    /// The event's life in the log, if it is there.
    async fn appended(&self, admin: &dyn Admin, sought: &Sought) -> anyhow::Result<Option<EventLife>> {
        let Ok(id) = sought.id.parse() else { return Ok(None) };
        let near = match &sought.origin {
            Some((outbox, _)) if **outbox != *self.outbox.name => return Ok(None),
            origin => origin.as_ref().map(|(_, at)| *at),
        };
        match admin.event(EventName::Id(id), Where { near, ..Where::default() }).await {
            Ok(life) => Ok(Some(life)),
            Err(error @ AdminError::Store(_)) => Err(explain_act(self.outbox, error)),
            // It is not in this log, or not any more.
            Err(_) => Ok(None),
        }
    }
}
