//! What was denied: told once a minute for a token, a route and an outbox, with a count; in the log, and in
//! the audit of the outbox that it was about.
//!
//! Whoever tries a thousand times a second must not fill a log or a table with it, and must not go unseen.
//! The answer waits for none of it: a line is written by a task of its own, few at a time of an outbox,
//! and one that cannot be written soon is in the log alone. So is one about an outbox that cannot be acted
//! on from here.

use super::Api;
use super::spec::Spec;
use crate::access::Grant;
use crate::desk::OutboxDesk;
use posthaste::admin::Actor;
use posthaste::task::spawn;
use posthaste::telemetry;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// One line in this time.
const EVERY: Duration = Duration::from_secs(60);
/// Pairs of a token and a route that are remembered. Both are from bounded lists.
const PAIRS_MAX: usize = 10_000;
/// For writing one.
const WRITE_TIME: Duration = Duration::from_secs(5);
/// The audit's word.
const ACTION: &str = "request";

/// What was denied lately.
#[derive(Default)]
pub(super) struct Denials(Mutex<HashMap<(String, String), (Instant, u64)>>);

impl Denials {
    /// Notes one. `Some`: so many since the last line, and it is time for one.
    fn note(&self, who: &str, what: &str) -> Option<u64> {
        metrics::counter!(telemetry::api::DENIED).increment(1);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= PAIRS_MAX {
            all.retain(|_, (at, _)| at.elapsed() < EVERY);
        }
        let now = Instant::now();
        match all.get_mut(&(who.to_owned(), what.to_owned())) {
            Some((at, count)) if now.duration_since(*at) < EVERY => {
                *count += 1;
                None
            }
            Some((at, count)) => {
                let told = *count + 1;
                (*at, *count) = (now, 0);
                Some(told)
            }
            None => {
                all.insert((who.to_owned(), what.to_owned()), (now, 0));
                Some(1)
            }
        }
    }
}

/// A request that was turned away, after its token was found.
pub(super) struct Denied<'a> {
    pub(super) spec: &'a Spec,
    pub(super) grant: &'a Grant,
    pub(super) path: &'a [(String, String)],
    pub(super) why: &'a str,
    pub(super) trace_id: Option<&'a str>,
}

impl Denied<'_> {
    /// Tells it, if it is time for a line.
    pub(super) fn tell(&self, api: &Api) {
        let (who, route) = (&self.grant.name, format!("{} {}", self.spec.method, self.spec.path));
        let desk = self.desk(api);
        let outbox = desk.map_or("", |desk| desk.name());
        let Some(count) = api.denials.note(who, &format!("{route} {outbox}")) else { return };
        let why = self.why;
        tracing::warn!(target: "posthaste::audit", who, route, outbox, count, outcome = "denied", "denied: {why}");
        let Some(desk) = desk.filter(|desk| desk.outbox.acting.is_some()) else { return };
        let Ok(place) = Arc::clone(&desk.telling).try_acquire_owned() else { return };
        let actor = Actor { verified: true, ..Actor::new(who, why) };
        let actor = match self.trace_id {
            Some(trace) => actor.traced(trace),
            None => actor,
        };
        let mut detail = json!({ "route": route, "count": count });
        if let Some(consumer) = self.part("c") {
            detail["consumer"] = consumer.into();
        }
        let desk = Arc::clone(desk);
        let line = async move {
            let act = desk.act(|admin| async move { admin.audit_denied(&actor, ACTION, &detail).await });
            // It is in the log already.
            if !matches!(timeout(WRITE_TIME, act).await, Ok(Ok(()))) {
                tracing::debug!(
                    outbox = desk.name(),
                    "a line about what was denied could not be written to the audit"
                );
            }
            drop(place);
        };
        spawn("denied", line).detach();
    }

    fn part(&self, name: &str) -> Option<&str> {
        self.path.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// The outbox that it was about, if it is here. About a consumer that is not configured here: the first
    /// one that can be acted on and that the token is for, so that it is told somewhere.
    fn desk<'a>(&self, api: &'a Api) -> Option<&'a Arc<OutboxDesk>> {
        let named = |name: &str| api.desks.iter().find(|desk| desk.name() == name);
        if let Some(outbox) = self.part("o") {
            return named(outbox);
        }
        let consumer = self.part("c")?;
        let setting = api.config.consumers.iter().find(|setting| *setting.name == *consumer);
        setting.map_or_else(
            || api.acting().find(|desk| self.grant.has_outbox(desk.name())),
            |setting| named(&setting.outbox),
        )
    }
}
