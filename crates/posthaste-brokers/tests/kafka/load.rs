//! A load as the relay would make it, and the account of it that another client's reading is compared with.
//!
//! Calls overlap; each has keys of its own. What was not delivered is published again, in the same order and before
//! anything newer, until it is delivered. So at the end nothing may be missing at the broker, whatever happened in
//! between, and the first deliveries of each key are in order.

use super::*;
use posthaste_testkit::services::{Kafka, KafkaRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::task::JoinSet;

/// Calls under way at once.
const CALLS: usize = 3;
/// Events of one call.
const BATCH: usize = 100;
/// Keys of one call.
const KEYS: usize = 10;
/// Between two tries of what failed, as a relay would wait.
const PAUSE: Duration = Duration::from_millis(50);

/// Events on their way to one topic.
pub(super) struct Load {
    topic: String,
    ending: Arc<AtomicBool>,
    delivered: Arc<AtomicUsize>,
    calls: JoinSet<Account>,
}

/// What became of them.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Ids of what the sink called delivered.
    pub(super) delivered: BTreeSet<String>,
    /// Verdict, code and scope of what failed on the way, with the words of the last of them.
    pub(super) failures: BTreeMap<(&'static str, String, String), String>,
}

impl Load {
    /// Begins to publish.
    pub(super) fn start(sink: &Arc<dyn Sink>, topic: &str) -> Self {
        let (ending, delivered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut calls = JoinSet::new();
        for call in 0..CALLS {
            let (sink, topic) = (Arc::clone(sink), topic.to_owned());
            calls.spawn(publish(sink, topic, call, Arc::clone(&ending), Arc::clone(&delivered)));
        }
        Self { topic: topic.to_owned(), ending, delivered, calls }
    }

    /// Waits until that many more events are delivered.
    pub(super) async fn more(&self, events: usize) {
        let (started, goal) = (Instant::now(), self.delivered.load(Ordering::Relaxed) + events);
        while self.delivered.load(Ordering::Relaxed) < goal {
            let delivered = self.delivered.load(Ordering::Relaxed);
            assert!(started.elapsed() < 2 * DEADLINE, "{}: {delivered} delivered, not {goal}", self.topic);
            tokio::time::sleep(Duration::from_millis(5)).await; // pace
        }
    }

    /// Waits until everything that was begun is delivered, and compares it with what is at the broker.
    pub(super) async fn finish(mut self, kafka: &Kafka) -> Account {
        self.ending.store(true, Ordering::Relaxed);
        let mut all = Account::default();
        while let Some(account) = self.calls.join_next().await {
            let account = account.expect("no panic");
            all.delivered.extend(account.delivered);
            all.failures.extend(account.failures);
        }
        check(&kafka.dump(&self.topic).await.expect("read"), &all.delivered);
        all
    }
}

impl Account {
    /// Codes and scopes of what failed.
    pub(super) fn codes(&self) -> BTreeSet<(&str, &str, &str)> {
        self.failures.keys().map(|(kind, code, scope)| (*kind, code.as_str(), scope.as_str())).collect()
    }
}

async fn publish(
    sink: Arc<dyn Sink>,
    topic: String,
    call: usize,
    ending: Arc<AtomicBool>,
    delivered: Arc<AtomicUsize>,
) -> Account {
    let (mut account, mut left, mut number) = (Account::default(), Vec::new(), 0_usize);
    let mut last_progress = Instant::now();
    while !left.is_empty() || !ending.load(Ordering::Relaxed) {
        while left.len() < BATCH && !ending.load(Ordering::Relaxed) {
            // Of its own topic: a key is held back wherever its next event goes.
            let key = format!("{topic}-{call}-{}", number % KEYS);
            left.push(message(&topic, Event::new("orders.placed", number.to_string()).with_key(key)));
            number += 1;
        }
        let verdicts = sink.publish(&left).await;
        let before = left.len();
        left = account.settle(left, verdicts);
        delivered.fetch_add(before - left.len(), Ordering::Relaxed);
        if left.len() < before {
            last_progress = Instant::now();
        }
        if !left.is_empty() {
            assert!(last_progress.elapsed() < 2 * DEADLINE, "{topic} stands still: {:?}", account.failures);
            tokio::time::sleep(PAUSE).await; // pace
        }
    }
    account
}

impl Account {
    /// Gives back what is to be published again.
    fn settle(&mut self, messages: Vec<Message>, verdicts: Vec<Verdict>) -> Vec<Message> {
        assert_eq!(messages.len(), verdicts.len());
        let mut left = Vec::new();
        for (message, verdict) in messages.into_iter().zip(verdicts) {
            match &verdict {
                Verdict::Delivered => {
                    self.delivered.insert(message.id());
                    continue;
                }
                Verdict::Held => {}
                Verdict::Rejected(failure) => panic!("a fault rejects no event: {failure:?}"),
                failed => {
                    let (kind, code, scope, words) = seen(failed);
                    self.failures.insert((kind, code.to_owned(), format!("{scope:?}")), words.to_owned());
                }
            }
            left.push(message);
        }
        left
    }
}

/// What the sink says of a topic that does not work. A message that had to wait for others of the load says nothing.
pub(super) async fn complaint(sink: &Arc<dyn Sink>, topic: &str) -> Verdict {
    let started = Instant::now();
    loop {
        let verdict = publish_one(sink, loose(topic)).await;
        if !matches!(verdict, Verdict::Held | Verdict::Delivered) {
            return verdict;
        }
        assert!(started.elapsed() < DEADLINE, "no complaint about {topic}, but {verdict:?}");
    }
}

/// Everything delivered is there, and the first deliveries of each key are in order (G2, G3).
#[track_caller]
fn check(records: &[KafkaRecord], delivered: &BTreeSet<String>) {
    let id = |record: &KafkaRecord| record.header("Message-ID").expect("an event id");
    let there: BTreeSet<String> = records.iter().map(id).collect();
    let lost = delivered.difference(&there).count();
    assert_eq!(lost, 0, "{lost} of {} delivered events are not at the broker", delivered.len());
    let (mut last, mut first_seen): (BTreeMap<_, usize>, _) = (BTreeMap::new(), BTreeSet::new());
    for record in records {
        // Without a key it is none of ours. A second copy may come anywhere.
        if let Some(key) = record.key.clone()
            && first_seen.insert(id(record))
        {
            let text = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned();
            let number = text.parse().expect("a number");
            let before = last.insert(key, number);
            assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
        }
    }
}
