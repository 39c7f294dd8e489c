//! What handlers need from outside, by name: a breaker each, and who says what of it.
//!
//! A handler that finds a dependency away opens its breaker, and the message's partition is paused. Probes go
//! round the heads that need it. Whether a message needs a dependency is known by its kind, topic and type:
//! messages of a kind that failed by it need it. So a message that says "unavailable" while another one of
//! its kind succeeds after that is contradicted, and what it says counts as its own failure.

use super::failing::HANDLER;
use crate::breaker::{Breaker, Passage, Pauses};
use crate::inbox::failure::Failure;
use crate::source::Delivery;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// Kinds of messages that are remembered, at most: a stranger names them.
const KINDS_MAX: usize = 1_000;

/// Names that are remembered when they are back, at most: a handler's text may be one.
const NAMES_MAX: usize = 100;

/// Topic and type.
type Kind = (Arc<str>, String);

#[derive(Debug)]
pub(crate) struct Dependency {
    breaker: Breaker,
    failed_at: Instant,
    /// What was said of it last.
    why: String,
    /// Kinds of messages that need it.
    kinds: FxHashSet<Kind>,
}

impl Dependency {
    /// It is probed no sooner than this long from now.
    pub(crate) fn wait_at_least(&mut self, now: Instant, wait: std::time::Duration) {
        self.breaker.wait_at_least(now, wait);
    }
}

/// All dependencies that were ever away.
#[derive(Debug, Default)]
pub(crate) struct Dependencies {
    all: BTreeMap<Arc<str>, Dependency>,
    /// When the latest transaction began in which a message of this kind succeeded.
    successes: FxHashMap<Kind, Instant>,
}

fn kind(delivery: &Delivery) -> Kind {
    (Arc::clone(&delivery.partition().topic), delivery.message.event_type().unwrap_or_default().to_owned())
}

impl Dependencies {
    /// A message says that a dependency is away. `false`: another one of its kind succeeded since it said so
    /// before, and nobody has said so since, so this is its own failure.
    pub(crate) fn fails(
        &mut self,
        name: &Arc<str>,
        failure: &Failure,
        delivery: &Delivery,
        said_before: Option<Instant>,
        now: Instant,
        pauses: Pauses,
    ) -> bool {
        let kind = kind(delivery);
        if let (Some(said), Some(success)) = (said_before, self.successes.get(&kind))
            && *success > said
            && self.all.get(name).is_none_or(|dependency| dependency.failed_at < *success)
        {
            return false;
        }
        if self.all.len() >= NAMES_MAX && !self.all.contains_key(name) {
            self.all.retain(|_, dependency| !dependency.breaker.is_closed());
        }
        let why = format!("{}: {}", failure.code, failure.message);
        let has_room = self.successes.len() < KINDS_MAX;
        let dependency = self.open(name, why, now, pauses);
        dependency.failed_at = now;
        if has_room && dependency.kinds.insert(kind.clone()) {
            // From now on successes of this kind are noted.
            self.successes.entry(kind).or_insert(now);
        }
        true
    }

    /// A dependency is away, whoever needs it.
    pub(crate) fn open(
        &mut self,
        name: &Arc<str>,
        why: String,
        now: Instant,
        pauses: Pauses,
    ) -> &mut Dependency {
        let dependency = self.all.entry(Arc::clone(name)).or_insert_with(|| Dependency {
            breaker: Breaker::new(),
            failed_at: now,
            why: String::new(),
            kinds: FxHashSet::default(),
        });
        if dependency.breaker.is_closed() {
            tracing::warn!(dependency = %name, why, "a dependency is away: the partitions that need it are paused");
        }
        dependency.breaker.fail(now, pauses);
        dependency.why = why;
        dependency
    }

    /// The dependency is back, whoever needs it.
    pub(crate) fn recover(&mut self, name: &str) {
        if let Some(dependency) = self.all.get_mut(name).filter(|dependency| !dependency.breaker.is_closed())
        {
            tracing::info!(dependency = %name, "the dependency is back");
            dependency.breaker.succeed();
        }
    }

    /// Whether it is away.
    pub(crate) fn is_away(&self, name: &str) -> bool {
        self.all.get(name).is_some_and(|dependency| !dependency.breaker.is_closed())
    }

    /// Notes that messages succeeded in a transaction that began then. Answers which dependencies are back.
    pub(crate) fn succeeded<'a>(
        &mut self,
        deliveries: impl Iterator<Item = &'a Delivery>,
        began: Instant,
    ) -> Vec<Arc<str>> {
        if self.successes.is_empty() {
            return Vec::new();
        }
        let mut back = Vec::new();
        for delivery in deliveries {
            let kind = kind(delivery);
            let Some(latest) = self.successes.get_mut(&kind) else { continue };
            *latest = (*latest).max(began);
            for (name, dependency) in &mut self.all {
                if !dependency.breaker.is_closed()
                    && dependency.kinds.contains(&kind)
                    && dependency.failed_at < began
                {
                    tracing::info!(dependency = %name, "the dependency is back");
                    dependency.breaker.succeed();
                    back.push(Arc::clone(name));
                }
            }
        }
        back
    }

    /// Dependencies that one message may probe now.
    pub(crate) fn probes(&self, now: Instant) -> Vec<Arc<str>> {
        let due = self.all.iter().filter(|(_, dependency)| dependency.breaker.passage(now) == Passage::Probe);
        due.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Whether this message needs the dependency. All need their handler.
    pub(crate) fn needs(&self, name: &str, delivery: &Delivery) -> bool {
        name == HANDLER
            || self.all.get(name).is_some_and(|dependency| dependency.kinds.contains(&kind(delivery)))
    }

    pub(crate) fn probe(&mut self, name: &str) {
        if let Some(dependency) = self.all.get_mut(name) {
            dependency.breaker.probe();
        }
    }

    /// A probe came back without an answer about its dependency: another one is due.
    pub(crate) fn unprobed(&mut self, name: &str, now: Instant, pauses: Pauses) {
        if let Some(dependency) = self.all.get_mut(name)
            && dependency.breaker.is_probing()
        {
            dependency.breaker.fail(now, pauses);
        }
    }

    /// Nobody waits for it any more.
    pub(crate) fn forget(&mut self, name: &str) {
        self.all.remove(name);
    }

    /// Those that are away, and what was said of them last.
    pub(crate) fn away(&self) -> impl Iterator<Item = (&Arc<str>, &str)> {
        let away = self.all.iter().filter(|(_, dependency)| !dependency.breaker.is_closed());
        away.map(|(name, dependency)| (name, &*dependency.why))
    }

    /// Each dependency and the state of its breaker, for the gauge.
    pub(crate) fn levels(&self) -> impl Iterator<Item = (&Arc<str>, f64)> {
        self.all.iter().map(|(name, dependency)| (name, dependency.breaker.level()))
    }

    /// When the next probe is due.
    pub(crate) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        self.all.values().filter_map(|dependency| dependency.breaker.wakes_at()).filter(|at| *at > now).min()
    }
}
