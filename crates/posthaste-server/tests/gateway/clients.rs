//! Clients that do what the documents tell them: a key with each request, and the same request again until
//! it is answered with 202. And the ledger of what they were answered.

use crate::rig::{Answered, DEADLINE, request_of, try_exchange};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

/// Between two tries of one request.
const PAUSE: Duration = Duration::from_millis(100);
/// What a client may wait for its 202, all of its tries together.
const IN_TIME: Duration = Duration::from_secs(5);

/// Where gateways are: what a balancer knows.
#[derive(Default)]
pub(crate) struct Balancer {
    addresses: RwLock<Vec<String>>,
    next: AtomicUsize,
}

impl Balancer {
    pub(crate) fn of(addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        Self { addresses: RwLock::new(addresses), next: AtomicUsize::new(0) }
    }

    /// Another process has come in the place of one.
    pub(crate) fn replace(&self, place: usize, address: &str) {
        self.addresses.write().expect("no panic")[place] = address.to_owned();
    }

    fn pick(&self) -> String {
        let addresses = self.addresses.read().expect("no panic");
        addresses[self.next.fetch_add(1, Ordering::Relaxed) % addresses.len()].clone()
    }

    /// Asks one of them.
    pub(crate) fn ask(&self, key: &str, head: &[(&str, &str)], body: &[u8]) -> Option<Answered> {
        let authorization = format!("Bearer {key}");
        let head = [&[("authorization", authorization.as_str())], head].concat();
        let address = self.pick();
        try_exchange(&address, &request_of(&address, "POST", "/v1/topics/raw", &head, body)).ok()
    }
}

/// What has become of requests.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Ids that were answered with a 202.
    taken: Mutex<Vec<String>>,
    /// Requests whose first try was answered with 202.
    at_once: AtomicUsize,
    /// Requests that were answered with 202 in time.
    in_time: AtomicUsize,
    /// The longest that one took.
    longest: Mutex<Duration>,
}

impl Ledger {
    /// Hands in one event, again and again until it is taken.
    pub(crate) fn hand_in(&self, balancer: &Balancer, key: &str, name: &str) {
        let begun = Instant::now();
        let head = [("idempotency-key", name), ("event-key", name)];
        let mut tries = 0;
        let id = loop {
            tries += 1;
            let answer = balancer.ask(key, &head, name.as_bytes());
            match answer {
                Some(answer) if answer.status == 202 => {
                    let [id] = answer.ids().try_into().expect("one event, one id");
                    break id;
                }
                // What passes: a place is missing, the limit, another try of it, a database that is away.
                Some(answer) => assert!(
                    matches!(answer.status, 409 | 429 | 503),
                    "{name}: {} {}",
                    answer.status,
                    answer.text
                ),
                None => {}
            }
            assert!(begun.elapsed() < 2 * DEADLINE, "{name}: no 202 after {tries} tries");
            std::thread::sleep(PAUSE); // pace: a client that was refused waits a moment
        };
        let took = begun.elapsed();
        self.taken.lock().expect("no panic").push(id);
        self.at_once.fetch_add(usize::from(tries == 1), Ordering::Relaxed);
        self.in_time.fetch_add(usize::from(took < IN_TIME), Ordering::Relaxed);
        let mut longest = self.longest.lock().expect("no panic");
        *longest = took.max(*longest);
    }

    /// How many requests were answered with 202.
    pub(crate) fn len(&self) -> usize {
        self.taken.lock().expect("no panic").len()
    }

    /// What part of all requests had its 202 in time.
    pub(crate) fn share(&self) -> f64 {
        self.in_time.load(Ordering::Relaxed) as f64 / self.len().max(1) as f64
    }

    /// For people.
    pub(crate) fn in_words(&self) -> String {
        let all = self.len().max(1);
        let single = self.at_once.load(Ordering::Relaxed) as f64 / all as f64;
        format!(
            "gateway: {all} requests; 202 at the first try {:.3} %; 202 in {IN_TIME:?} with retries under one key \
             {:.3} %; the longest after {:?}",
            100.0 * single,
            100.0 * self.share(),
            self.longest.lock().expect("no panic")
        )
    }

    /// Each 202 is one event, and there is no other event.
    #[track_caller]
    pub(crate) fn balances(&self, stored: &[String]) {
        let taken = self.taken.lock().expect("no panic");
        let answered: BTreeSet<&String> = taken.iter().collect();
        let there: BTreeSet<&String> = stored.iter().collect();
        assert_eq!(answered.len(), taken.len(), "two requests were answered with one id");
        assert_eq!(there.len(), stored.len(), "an id is there twice");
        let lost: Vec<_> = answered.difference(&there).collect();
        let more: Vec<_> = there.difference(&answered).collect();
        assert!(lost.is_empty() && more.is_empty(), "lost: {lost:?}; there and never answered: {more:?}");
    }
}

/// Sends at a rate from this many threads, until it is told to stop. No request is left unanswered.
pub(crate) fn keep_sending(per_s: f64, threads: usize, is_over: &AtomicBool, send: &(impl Fn(usize) + Sync)) {
    let (begun, next) = (Instant::now(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let due = Duration::from_secs_f64(number as f64 / per_s);
                    std::thread::sleep(due.saturating_sub(begun.elapsed())); // pace: the rate
                    send(number);
                }
            });
        }
    });
}
