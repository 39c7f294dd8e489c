//! A batch of messages on its way through one transaction, and how large the next one may be.

use super::queue::{Entry, QueueKey, Trouble};
use crate::inbox::store::Work;
use crate::source::Partition;
use std::sync::Arc;
use std::time::Duration;

/// Most time of all handlers of one transaction: longer ones hold locks and hands for too long.
const HANDLER_TIME_MAX: Duration = Duration::from_millis(50);
/// So many times the transaction's own time, marks and commit, are never too long for its handlers.
const OWN_TIMES: f64 = 4.0;
/// What the last transaction weighs in an average.
const WEIGHT: f64 = 0.2;

/// A key queue, and the time that its partition was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueuePlace {
    pub(crate) partition: Partition,
    pub(crate) life: u64,
    pub(crate) key: QueueKey,
}

/// What is known of a message beside its work.
#[derive(Debug)]
struct Tag {
    position: i64,
    arrival: u64,
    bytes: usize,
    trouble: Option<Box<Trouble>>,
}

/// Messages of one transaction. Those of a queue are in a row.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    places: Vec<(QueuePlace, usize)>,
    pub(crate) works: Vec<Work>,
    tags: Vec<Tag>,
    pub(crate) bytes: usize,
    /// The dependency that it probes.
    pub(crate) probe: Option<Arc<str>>,
    /// Whether its message has met somebody's lock before.
    pub(crate) is_in_conflict: bool,
}

impl Transaction {
    /// One that probes a dependency.
    pub(crate) fn probe(dependency: Arc<str>) -> Self {
        Self { probe: Some(dependency), ..Self::default() }
    }

    pub(crate) fn add(&mut self, place: QueuePlace, entries: Vec<Entry>) {
        self.places.push((place, entries.len()));
        for Entry { work, position, arrival, bytes, trouble } in entries {
            self.bytes += bytes;
            self.works.push(work);
            self.tags.push(Tag { position, arrival, bytes, trouble });
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.works.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// Places and how many messages each has here.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&QueuePlace, usize)> {
        self.places.iter().map(|(place, count)| (place, *count))
    }

    /// The messages again, queue by queue.
    pub(crate) fn into_groups(self) -> Vec<(QueuePlace, Vec<Entry>)> {
        let mut entries = self.works.into_iter().zip(self.tags).map(|(work, tag)| {
            let Tag { position, arrival, bytes, trouble } = tag;
            Entry { work, position, arrival, bytes, trouble }
        });
        self.places
            .into_iter()
            .map(|(place, count)| (place, entries.by_ref().take(count).collect()))
            .collect()
    }
}

/// How many messages the next transaction may have: fewer after a failure, more after a success, and no more
/// than the handlers can do in the time.
///
/// A handler's time is also the database's: every statement waits for its answer. Where the database is slow,
/// smaller batches do not make a handler faster, they only add marks and commits, which are as slow. So the
/// time that handlers may take grows with what the transaction takes for itself.
#[derive(Debug)]
pub(crate) struct BatchSize {
    limit: usize,
    /// Seconds that a handler takes for one message, smoothed.
    seconds_each: Option<f64>,
    /// Seconds of a transaction without its handlers, smoothed.
    seconds_own: Option<f64>,
}

impl BatchSize {
    pub(crate) fn new() -> Self {
        Self { limit: usize::MAX, seconds_each: None, seconds_own: None }
    }

    pub(crate) fn messages(&self, batch_max: usize) -> usize {
        let own = self.seconds_own.unwrap_or_default();
        let time = HANDLER_TIME_MAX.as_secs_f64().max(own * OWN_TIMES);
        let in_time = (time / self.seconds_each.unwrap_or_default().max(1e-9)) as usize;
        self.limit.min(batch_max).min(in_time).max(1)
    }

    /// So many messages were handled in this time, in a transaction that took so long.
    pub(crate) fn succeeded(&mut self, messages: usize, handler_time: Duration, whole: Duration) {
        if messages > 0 {
            smooth(&mut self.seconds_each, handler_time.as_secs_f64() / messages as f64);
            smooth(&mut self.seconds_own, whole.saturating_sub(handler_time).as_secs_f64());
        }
        self.limit = self.limit.saturating_mul(2);
    }

    /// A batch of so many failed.
    pub(crate) fn failed(&mut self, messages: usize) {
        self.limit = (messages / 2).max(1);
    }
}

fn smooth(average: &mut Option<f64>, seconds: f64) {
    *average = Some(average.map_or(seconds, |before| before + (seconds - before) * WEIGHT));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_halved_by_a_failure_and_bounded_by_the_handlers_time() {
        let mut size = BatchSize::new();
        assert_eq!(size.messages(64), 64);
        size.failed(64);
        assert_eq!(size.messages(64), 32);
        (0..10).for_each(|_| size.failed(size.messages(64)));
        assert_eq!(size.messages(64), 1);
        (0..6).for_each(|_| size.succeeded(1, Duration::ZERO, Duration::ZERO));
        assert_eq!(size.messages(64), 64);
        let ms = Duration::from_millis;
        size.succeeded(10, ms(100), ms(104));
        assert!(size.messages(64) <= 25, "{}", size.messages(64));
        (0..50).for_each(|_| size.succeeded(1, ms(1_000), ms(1_004)));
        assert_eq!(size.messages(64), 1);
    }

    #[test]
    fn a_database_that_is_slow_makes_no_small_batches() {
        let ms = Duration::from_millis;
        // One statement for the whole batch, with marks and commit before and after it, 80 ms each.
        let mut size = BatchSize::new();
        (0..50).for_each(|_| size.succeeded(size.messages(64), ms(80), ms(240)));
        assert_eq!(size.messages(64), 64);
        // A statement for each message: four times as long in handlers as in marks and commit.
        (0..50).for_each(|_| {
            let messages = size.messages(64) as u32;
            size.succeeded(messages as usize, ms(10) * messages, ms(10) * (messages + 2));
        });
        assert!((7..=9).contains(&size.messages(64)), "{}", size.messages(64));
        // The same statements once the database is well again.
        (0..50).for_each(|_| {
            let messages = size.messages(64) as u32;
            size.succeeded(messages as usize, ms(1) * messages / 2, ms(1) * (messages / 2 + 1));
        });
        assert_eq!(size.messages(64), 64);
    }
}
