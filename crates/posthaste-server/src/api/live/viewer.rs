//! One page that watches: what its token may see, and only what is new to it.
//!
//! It asks for a sight of each of its outboxes once a second. One that is slow or away delays its own answer
//! and nobody else's. Before anything is sent, the token is looked up again: what was taken from it since is
//! not shown, and a token that is gone ends the stream.

use super::feed::{Feed, ReaderGone};
use super::sight::Sight;
use super::{StreamPlace, StreamQuery};
use crate::access::{Grant, masked};
use crate::api::Api;
use crate::api::call::{ApiCall, value};
use crate::desk::OutboxDesk;
use axum::body::Body;
use posthaste::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

/// Between two sights of one outbox.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// An outbox that has not answered by then is shown without an answer.
const FIRST_SIGHT: Duration = Duration::from_secs(2);
/// What changes with every look and says nothing by itself. It is sent with what does, and now and then.
const RESTLESS: [&str; 4] = ["now", "seen_at", "lease_ms", "settled_seconds_ago"];
const NOW_AND_THEN: Duration = Duration::from_secs(10);
/// A stream that nothing else bounds.
const LIFE: Duration = Duration::from_secs(60);
/// Before the end of its connection a stream ends by itself, so that its reader sees an end and no cut.
const FAREWELL: Duration = Duration::from_secs(2);

pub(crate) struct Viewer {
    api: Arc<Api>,
    bearer: String,
    desks: Vec<Arc<OutboxDesk>>,
    /// What was seen of each, as it comes.
    seen: Vec<Option<Arc<Sight>>>,
    /// The one that the page shows.
    shown: Option<usize>,
    /// The place of the last event that was sent, if the page follows the log.
    tail: Option<Option<u64>>,
    begun: Instant,
    /// What was sent last, by the event's name: when, and what it was.
    sent: HashMap<&'static str, (Instant, u64)>,
    _place: StreamPlace,
}

/// Something that a task of a viewer brings.
enum Brought {
    Sight(usize, Arc<Sight>),
    Tail(Vec<Value>, u64),
}

impl Viewer {
    /// Begins to watch. The answer is a body that is written for as long as it is read.
    pub(crate) fn start(
        call: ApiCall,
        shown: Option<Arc<OutboxDesk>>,
        query: StreamQuery,
        place: StreamPlace,
    ) -> Body {
        let desks = call.desks();
        let shown = shown.and_then(|shown| desks.iter().position(|desk| desk.name() == shown.name()));
        let now = Instant::now();
        let ends = call.ends.unwrap_or(now + LIFE).max(now + 2 * FAREWELL) - FAREWELL;
        let viewer = Self {
            seen: desks.iter().map(|_| None).collect(),
            desks,
            shown,
            tail: query.tail.then_some(query.tail_after),
            begun: now,
            sent: HashMap::new(),
            api: call.api,
            bearer: call.bearer,
            _place: place,
        };
        Feed::body(move |feed| async move {
            // Whoever does not read any more needs no word of farewell, and at the end nobody does.
            let _ = tokio::time::timeout_at(ends, viewer.run(&feed, query.since)).await;
        })
    }

    async fn run(mut self, feed: &Feed, since: Option<Timestamp>) -> Result<(), ReaderGone> {
        if let Some(shown) = self.shown {
            let series = self.api.live.series.of(self.desks[shown].name(), since);
            feed.event("series", &value(&series).to_string()).await?;
        }
        let mut tasks = JoinSet::new();
        for at in 0..self.desks.len() {
            self.look(&mut tasks, at, Duration::ZERO);
        }
        self.follow(&mut tasks, Duration::ZERO);
        let mut heartbeat = interval(HEARTBEAT);
        loop {
            tokio::select! {
                Some(brought) = tasks.join_next() => {
                    let Some(grant) = self.grant() else { return Ok(()) };
                    match brought {
                        Ok(Brought::Sight(at, sight)) => {
                            self.seen[at] = Some(sight);
                            self.tell(feed, &grant, at).await?;
                            self.look(&mut tasks, at, PAUSE);
                        }
                        Ok(Brought::Tail(events, last)) => {
                            let is_news = self.tail != Some(Some(last));
                            self.tail = self.tail.map(|_| Some(last));
                            for event in events {
                                feed.event("tail", &self.shown_to(&grant, event).to_string()).await?;
                            }
                            if is_news {
                                feed.event("tail_at", &last.to_string()).await?;
                            }
                            self.follow(&mut tasks, PAUSE);
                        }
                        // A look that panicked: the page asks again with a new stream.
                        Err(_) => return Ok(()),
                    }
                }
                _ = heartbeat.tick() => {
                    if self.grant().is_none() {
                        return Ok(());
                    }
                    feed.heartbeat().await?;
                }
            }
        }
    }

    /// What the token gives now, as long as it is for the outbox that is watched. Watching is no request of
    /// its session.
    fn grant(&self) -> Option<Arc<Grant>> {
        let api = &self.api;
        let grant = api.tokens.find(&self.bearer).or_else(|| api.sessions.peek(&self.bearer, &api.tokens))?;
        let is_for = |at: usize| grant.has_outbox(self.desks[at].name());
        self.shown.is_none_or(is_for).then_some(grant)
    }

    fn look(&self, tasks: &mut JoinSet<Brought>, at: usize, pause: Duration) {
        let (api, desk) = (Arc::clone(&self.api), Arc::clone(&self.desks[at]));
        tasks.spawn(async move {
            sleep(pause).await; // pace
            Brought::Sight(at, api.live.sights.see(&desk, &api.live.series).await)
        });
    }

    fn follow(&self, tasks: &mut JoinSet<Brought>, pause: Duration) {
        let (Some(behind), Some(shown)) = (self.tail, self.shown) else { return };
        let (api, desk) = (Arc::clone(&self.api), Arc::clone(&self.desks[shown]));
        tasks.spawn(async move {
            sleep(pause).await; // pace
            let (events, last) = api.live.sights.tail(&desk, behind).await;
            Brought::Tail(events.iter().map(value).collect(), last)
        });
    }

    /// Sends what is new, now that an outbox was seen.
    async fn tell(&mut self, feed: &Feed, grant: &Grant, at: usize) -> Result<(), ReaderGone> {
        if self.seen.iter().all(Option::is_some) || self.begun.elapsed() >= FIRST_SIGHT {
            let outboxes = self.outboxes(grant);
            self.send(feed, grant, "outboxes", outboxes).await?;
            let consumers = self.consumers(grant);
            self.send(feed, grant, "consumers", consumers).await?;
        }
        let Some(sight) = self.seen[at].clone().filter(|_| self.shown == Some(at)) else { return Ok(()) };
        if !grant.has_outbox(self.desks[at].name()) {
            return Ok(());
        }
        if !sight.outbox.is_null() {
            self.send(feed, grant, "outbox", sight.outbox.clone()).await?;
            let mine = |name: &String| grant.has_consumer(name);
            let jobs = sight.jobs.iter().filter(|job| job.consumer.as_ref().is_none_or(mine));
            let jobs: Vec<Value> = jobs.map(value).collect();
            self.send(feed, grant, "jobs", json!({ "jobs": jobs, "next": null })).await?;
        }
        if let Some(point) = &sight.point {
            self.send(feed, grant, "point", value(point)).await?;
        }
        Ok(())
    }

    /// As `GET /outboxes` answers.
    fn outboxes(&self, grant: &Grant) -> Value {
        let silent = |desk: &OutboxDesk| {
            value(&crate::picture::named(&desk.outbox, Err("it has not answered yet".to_owned())))
        };
        let mine = self.desks.iter().zip(&self.seen).filter(|(desk, _)| grant.has_outbox(desk.name()));
        let named =
            mine.map(|(desk, seen)| seen.as_ref().map_or_else(|| silent(desk), |seen| seen.named.clone()));
        json!({ "outboxes": named.collect::<Vec<_>>() })
    }

    /// As `GET /consumers` answers.
    fn consumers(&self, grant: &Grant) -> Value {
        let mut all: Vec<Value> = Vec::new();
        let mut unreachable = Map::new();
        for (desk, sight) in self.desks.iter().zip(&self.seen) {
            let Some(sight) = sight.as_ref().filter(|_| grant.has_outbox(desk.name())) else { continue };
            let is_mine =
                |one: &&Value| one["consumer"].as_str().is_some_and(|name| grant.has_consumer(name));
            all.extend(sight.consumers.iter().filter(is_mine).cloned());
            if let Some(why) = &sight.unreachable {
                unreachable.insert(desk.name().to_owned(), why.as_str().into());
            }
        }
        all.sort_by_key(|consumer| consumer["consumer"].to_string());
        json!({ "consumers": all, "unreachable": unreachable })
    }

    /// Sends what differs from what was sent last.
    async fn send(
        &mut self,
        feed: &Feed,
        grant: &Grant,
        name: &'static str,
        what: Value,
    ) -> Result<(), ReaderGone> {
        let shown = self.shown_to(grant, what);
        let mut hasher = DefaultHasher::new();
        hash(&shown, &mut hasher);
        let hash = hasher.finish();
        if let Some((at, last)) = self.sent.get(name)
            && *last == hash
            && (at.elapsed() < NOW_AND_THEN || name == "point")
        {
            return Ok(());
        }
        self.sent.insert(name, (Instant::now(), hash));
        feed.event(name, &shown.to_string()).await
    }

    fn shown_to(&self, grant: &Grant, what: Value) -> Value {
        masked(what, grant.payloads, self.api.config.admin.show_keys)
    }
}

/// Of everything but what changes by itself.
fn hash(value: &Value, into: &mut DefaultHasher) {
    match value {
        Value::Array(items) => {
            items.len().hash(into);
            items.iter().for_each(|item| hash(item, into));
        }
        Value::Object(members) => {
            for (name, value) in members.iter().filter(|(name, _)| !RESTLESS.contains(&name.as_str())) {
                name.hash(into);
                hash(value, into);
            }
        }
        other => other.to_string().hash(into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(value: &Value) -> u64 {
        let mut hasher = DefaultHasher::new();
        hash(value, &mut hasher);
        hasher.finish()
    }

    #[test]
    fn a_clock_that_ticks_is_nothing_new() {
        let one = json!({ "now": "a", "sinks": [{ "backlog": 1, "lanes": [{ "lease_ms": 5 }] }] });
        let two = json!({ "now": "b", "sinks": [{ "backlog": 1, "lanes": [{ "lease_ms": 4 }] }] });
        let three = json!({ "now": "a", "sinks": [{ "backlog": 2, "lanes": [{ "lease_ms": 5 }] }] });
        assert_eq!(hash_of(&one), hash_of(&two));
        assert_ne!(hash_of(&one), hash_of(&three));
        assert_ne!(hash_of(&json!([[1], [2]])), hash_of(&json!([[1, 2], []])));
    }
}
