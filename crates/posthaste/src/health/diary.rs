//! What the log is told once, and not by every lane.
//!
//! A database that is down fails every call of every lane, many times a second. An operator needs three lines
//! of it: down, with the reason; still down, each minute; back. And a thousand events that die of one cause
//! are one story: a few lines a second name them, a number stands for the rest. So the lanes of an outbox
//! share a diary.
//!
//! Refused: a limit on all log lines. It would drop the one line that matters among those that do not.

use crate::event::Event;
use crate::store::{Death, LaneId};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// An outage that lasts is mentioned this often.
const REMINDER: Duration = Duration::from_secs(60);

/// Dead letters that are named in a second.
const NAMED_MAX: u32 = 5;
const NAMED_IN: Duration = Duration::from_secs(1);

/// Down once, a reminder each minute, back once.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<Since>,
}

#[derive(Debug)]
struct Since {
    began: Instant,
    told: Instant,
    failed: Instant,
}

/// What the log is to hear of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// It begins.
    Down,
    /// It lasts, for this long.
    StillDown(Duration),
    /// Nothing new.
    Known,
}

impl Outage {
    /// A failure.
    pub fn failed(&mut self, now: Instant) -> News {
        let Some(since) = &mut self.since else {
            self.since = Some(Since { began: now, told: now, failed: now });
            return News::Down;
        };
        since.failed = now;
        if now.duration_since(since.told) < REMINDER {
            return News::Known;
        }
        since.told = now;
        News::StillDown(now.duration_since(since.began))
    }

    /// A success of something that was begun at that time. Answers how long the outage took, if this ends
    /// one: what was begun before the last failure says nothing.
    pub fn succeeded(&mut self, begun: Instant, now: Instant) -> Option<Duration> {
        let since = self.since.take_if(|since| begun >= since.failed)?;
        Some(now.duration_since(since.began))
    }
}

/// Named and unnamed dead letters of the second that runs.
#[derive(Debug, Default)]
struct Obituaries {
    since: Option<Instant>,
    named: u32,
    unnamed: u64,
}

impl Obituaries {
    /// Whether one more may be named; and how many were not, if their second is over.
    fn one_more(&mut self, now: Instant) -> (bool, u64) {
        let rest = self.rest(now);
        self.since.get_or_insert(now);
        let named = self.named < NAMED_MAX;
        if named {
            self.named += 1;
        } else {
            self.unnamed += 1;
        }
        (named, rest)
    }

    fn rest(&mut self, now: Instant) -> u64 {
        if self.since.is_none_or(|since| now.duration_since(since) < NAMED_IN) {
            return 0;
        }
        std::mem::take(self).unnamed
    }
}

/// The diary of one outbox.
#[derive(Debug)]
pub(crate) struct Diary {
    outbox: Arc<str>,
    database: Mutex<Outage>,
    dead: Mutex<Obituaries>,
}

impl Diary {
    pub(crate) fn new(outbox: Arc<str>) -> Self {
        Self { outbox, database: Mutex::default(), dead: Mutex::default() }
    }

    /// A call to the database failed in a way that passes.
    pub(crate) fn database_failed(&self, what: &str, error: &dyn Display) {
        let outbox = &self.outbox;
        match locked(&self.database).failed(Instant::now()) {
            News::Down => tracing::warn!(%outbox, failed = what, %error,
                "the database is out of reach; events wait in it and it is tried again"),
            News::StillDown(long) => tracing::warn!(%outbox, failed = what, seconds = long.as_secs(), %error,
                "the database is still out of reach; events wait in it and it is tried again"),
            News::Known => tracing::debug!(%outbox, %error, "{what} failed; it is tried again"),
        }
    }

    /// A heartbeat went well. Only a heartbeat ends an outage: were it any call, a database that takes reads
    /// and no writes would be down and back many times a second.
    pub(crate) fn database_answered(&self, begun: Instant) {
        let ended = locked(&self.database).succeeded(begun, Instant::now());
        if let Some(long) = ended {
            tracing::info!(outbox = %self.outbox, seconds = long.as_secs(), "the database is back");
        }
    }

    /// An event became a dead letter.
    pub(crate) fn died(&self, lane: &LaneId, event: &Event, death: &Death) {
        let (named, rest) = locked(&self.dead).one_more(Instant::now());
        self.tell_rest(rest);
        if named {
            tracing::warn!(
                outbox = %self.outbox, %lane, id = %event.id, topic = %event.topic, code = %death.code,
                attempts = death.attempts, "event is dead"
            );
        }
    }

    /// The number of those that were not named, when their second is over.
    pub(crate) fn catch_up(&self) {
        let rest = locked(&self.dead).rest(Instant::now());
        self.tell_rest(rest);
    }

    /// The same at the end, whatever the time.
    pub(crate) fn close(&self) {
        let rest = std::mem::take(&mut *locked(&self.dead)).unnamed;
        self.tell_rest(rest);
    }

    fn tell_rest(&self, rest: u64) {
        if rest > 0 {
            tracing::warn!(outbox = %self.outbox, more = rest,
                "more events are dead than are named here; `posthaste dead list` has them all");
        }
    }
}

/// A lock that a panic left behind guards nothing that could be half done.
fn locked<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_told_once_then_each_minute_and_ends_once() {
        let (start, mut outage) = (Instant::now(), Outage::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outage.succeeded(at(0), at(0)), None, "there was none");
        assert_eq!(outage.failed(at(1)), News::Down);
        let told: Vec<u64> = (2..=130).filter(|n| outage.failed(at(*n)) != News::Known).collect();
        assert_eq!(told, [61, 121]);
        assert_eq!(outage.succeeded(at(129), at(131)), None, "begun before the last failure");
        assert_eq!(outage.succeeded(at(131), at(131)), Some(Duration::from_secs(130)));
        assert_eq!(outage.succeeded(at(132), at(132)), None, "once");
        assert_eq!(outage.failed(at(140)), News::Down, "the next one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_dead_letters_a_second_are_named_and_the_rest_is_counted() {
        let (start, mut dead) = (Instant::now(), Obituaries::default());
        let named = (0..100).filter(|_| dead.one_more(start).0).count();
        assert_eq!(named, NAMED_MAX as usize);
        assert_eq!(dead.rest(start + NAMED_IN / 2), 0, "the second is not over");
        let (named, rest) = dead.one_more(start + NAMED_IN);
        assert!(named, "a new second");
        assert_eq!(rest, 95);
        assert_eq!(dead.rest(start + NAMED_IN * 3), 0, "told already");
    }
}
