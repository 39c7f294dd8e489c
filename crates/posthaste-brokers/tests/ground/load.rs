//! A load as the relay would make it, and the account of it that another client's reading is compared with.
//!
//! Calls overlap; each has keys of its own. What was not delivered is published again, in the same order and
//! before anything newer, until it is delivered. So at the end nothing may be missing at the broker, whatever
//! happened in between, and the first deliveries of each key are in order.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
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
/// Ends a hang: a destination may be away for as long as a test waits for each thing that happens meanwhile.
const STANDS_STILL: Duration = Duration::from_secs(600);

/// Events on their way to one destination.
pub(crate) struct Load {
    destination: String,
    ending: Arc<AtomicBool>,
    delivered: Arc<AtomicUsize>,
    latest: Latest,
    calls: JoinSet<Account>,
}

/// The latest failure of a load's own messages.
pub(crate) type Latest = Arc<Mutex<Option<Verdict>>>;

/// What became of them.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Ids of what the sink called delivered.
    pub(crate) delivered: BTreeSet<String>,
    /// Verdict, code and scope of what failed on the way, with the words of the last of them.
    pub(crate) failures: BTreeMap<(&'static str, String, String), String>,
    /// The last of them.
    pub(crate) latest: Latest,
}

/// One record at the broker, as another client has read it.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) id: String,
    /// Without a key it is none of a load's.
    pub(crate) key: Option<String>,
    pub(crate) payload: Vec<u8>,
}

impl Load {
    /// Begins to publish.
    pub(crate) fn start(sink: &Arc<dyn Sink>, destination: &str) -> Self {
        let (ending, delivered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let latest = Latest::default();
        let mut calls = JoinSet::new();
        for call in 0..CALLS {
            let (sink, destination) = (Arc::clone(sink), destination.to_owned());
            let account = Account { latest: Arc::clone(&latest), ..Account::default() };
            let (ending, delivered) = (Arc::clone(&ending), Arc::clone(&delivered));
            calls.spawn(publish(sink, destination, call, account, ending, delivered));
        }
        Self { destination: destination.to_owned(), ending, delivered, latest, calls }
    }

    pub(crate) fn destination(&self) -> String {
        self.destination.clone()
    }

    /// Waits until that many more events are delivered.
    pub(crate) async fn more(&self, events: usize) {
        let (started, goal) = (Instant::now(), self.delivered.load(Ordering::Relaxed) + events);
        while self.delivered.load(Ordering::Relaxed) < goal {
            let delivered = self.delivered.load(Ordering::Relaxed);
            assert!(started.elapsed() < 2 * DEADLINE, "{}: {delivered}, not {goal}", self.destination);
            tokio::time::sleep(Duration::from_millis(5)).await; // pace
        }
    }

    /// What the sink says of the load's own messages from now on. A topic that fails is tried with one
    /// message at a time: while that is one of the load's, nobody else's is judged.
    pub(crate) async fn complaint(&self) -> Verdict {
        self.latest.lock().expect("no panic").take();
        let started = Instant::now();
        loop {
            if let Some(verdict) = self.latest.lock().expect("no panic").take() {
                return verdict;
            }
            assert!(started.elapsed() < DEADLINE, "no complaint about {}", self.destination);
            tokio::time::sleep(Duration::from_millis(5)).await; // pace
        }
    }

    /// Waits until everything that was begun is delivered.
    pub(crate) async fn end(mut self) -> Account {
        self.ending.store(true, Ordering::Relaxed);
        let mut all = Account::default();
        while let Some(account) = self.calls.join_next().await {
            let account = account.expect("no panic");
            all.delivered.extend(account.delivered);
            all.failures.extend(account.failures);
        }
        all
    }
}

async fn publish(
    sink: Arc<dyn Sink>,
    destination: String,
    call: usize,
    mut account: Account,
    ending: Arc<AtomicBool>,
    delivered: Arc<AtomicUsize>,
) -> Account {
    let (mut left, mut number) = (Vec::new(), 0_usize);
    let mut last_progress = Instant::now();
    while !left.is_empty() || !ending.load(Ordering::Relaxed) {
        while left.len() < BATCH && !ending.load(Ordering::Relaxed) {
            // Of its own destination: a key is held back wherever its next event goes.
            left.push(numbered(&destination, &format!("{destination}-{call}-{}", number % KEYS), number));
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
            let still = last_progress.elapsed() >= STANDS_STILL;
            assert!(!still, "{destination} stands still: {:?}", account.failures);
            tokio::time::sleep(PAUSE).await; // pace
        }
    }
    account
}

impl Account {
    /// Codes and scopes of what failed.
    pub(crate) fn codes(&self) -> BTreeSet<(&str, &str, &str)> {
        self.failures.keys().map(|(kind, code, scope)| (*kind, code.as_str(), scope.as_str())).collect()
    }

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
                    *self.latest.lock().expect("no panic") = Some(verdict);
                }
            }
            left.push(message);
        }
        left
    }

    /// Everything delivered is at the broker, and the first deliveries of each key are in order (G2, G3).
    #[track_caller]
    pub(crate) fn assert_all_there_in_order(&self, copies: &[Copy]) {
        let there: BTreeSet<&str> = copies.iter().map(|copy| copy.id.as_str()).collect();
        let lost = self.delivered.iter().filter(|id| !there.contains(id.as_str())).count();
        assert_eq!(lost, 0, "{lost} of {} delivered events are not at the broker", self.delivered.len());
        assert_in_order(copies);
    }
}

/// The first deliveries of each key are in order (G3). A second copy may come anywhere.
#[track_caller]
pub(crate) fn assert_in_order(copies: &[Copy]) {
    let (mut last, mut first_seen) = (BTreeMap::new(), BTreeSet::new());
    for copy in copies {
        let Some(key) = copy.key.as_deref() else { continue };
        if first_seen.insert(&copy.id) {
            let number: usize = String::from_utf8_lossy(&copy.payload).parse().expect("a number");
            let before = last.insert(key, number);
            assert!(before.is_none_or(|before| before < number), "{key}: {number} after {before:?}");
        }
    }
}

/// What the sink says of a destination that does not work. What had to wait for others of the load says
/// nothing.
pub(crate) async fn complaint(sink: &Arc<dyn Sink>, destination: &str) -> Verdict {
    let started = Instant::now();
    loop {
        let verdict = publish_one(sink, loose(destination)).await;
        if !matches!(verdict, Verdict::Held | Verdict::Delivered) {
            return verdict;
        }
        assert!(started.elapsed() < DEADLINE, "no complaint about {destination}, but {verdict:?}");
    }
}
