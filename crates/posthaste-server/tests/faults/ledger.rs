//! What arrived, in the order in which it arrived, and what the guarantees say about it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// One delivery.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) id: String,
    pub(crate) key: Option<String>,
    pub(crate) payload: Vec<u8>,
    pub(crate) at: SystemTime,
}

/// Deliveries that a thread collects while a test looks.
#[derive(Clone, Default)]
pub(crate) struct Deliveries(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    all: Vec<Delivery>,
    ids: HashSet<String>,
}

impl Deliveries {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().expect("no test panics under the lock")
    }

    pub(crate) fn push(&self, delivery: Delivery) {
        let mut book = self.book();
        book.ids.insert(delivery.id.clone());
        book.all.push(delivery);
    }

    pub(crate) fn len(&self) -> usize {
        self.book().all.len()
    }

    /// Events that arrived at least once.
    pub(crate) fn distinct(&self) -> usize {
        self.book().ids.len()
    }

    pub(crate) fn all(&self) -> Vec<Delivery> {
        self.book().all.clone()
    }

    pub(crate) fn ids(&self) -> HashSet<String> {
        self.book().ids.clone()
    }

    /// Deliveries beyond the first of each event.
    pub(crate) fn duplicates(&self) -> usize {
        let book = self.book();
        book.all.len() - book.ids.len()
    }

    /// A percentile of append → arrival, of the deliveries from `from` on. The payload is the time of the
    /// append, written by the database on the same machine.
    pub(crate) fn latency_since(&self, from: usize, percent: usize) -> Duration {
        let appended = |payload: &[u8]| std::str::from_utf8(payload).ok()?.parse::<f64>().ok();
        let since_epoch = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let all = self.all();
        let late =
            all[from..].iter().filter_map(|d| Some(since_epoch(d.at).as_secs_f64() - appended(&d.payload)?));
        let mut late: Vec<f64> = late.collect();
        late.sort_by(f64::total_cmp);
        let at = late.len().saturating_sub(1) * percent / 100;
        Duration::from_secs_f64(late.get(at).copied().unwrap_or(0.0).max(0.0))
    }
}

/// What the log holds: id and key, in append order.
pub(crate) type Log = Vec<(String, Option<String>)>;

/// How many events of the log have not arrived.
pub(crate) fn missing(log: &Log, arrived: &Deliveries) -> usize {
    let there = arrived.ids();
    log.iter().filter(|(id, _)| !there.contains(id)).count()
}

/// G3: first deliveries of a key are in append order.
#[track_caller]
pub(crate) fn assert_key_order(log: &Log, arrived: &Deliveries, what: &str) {
    let place: HashMap<&str, usize> = log.iter().enumerate().map(|(at, (id, _))| (id.as_str(), at)).collect();
    let (mut seen, mut last) = (HashSet::new(), HashMap::new());
    for delivery in arrived.all().into_iter().filter(|d| seen.insert(d.id.clone())) {
        let (Some(at), Some(key)) = (place.get(delivery.id.as_str()), delivery.key) else { continue };
        let before = last.insert(key.clone(), *at);
        assert!(before.is_none_or(|before| before < *at), "G3: {key} is out of order: {what}");
    }
}
