//! A sink that gets events only where an acknowledged one is safe.
//!
//! Brokers acknowledge more than they keep: one replica, no sync, a queue that drops. What that is worth is
//! known by looking ([`Sink::examine`]), and a look at the start is not enough: destinations come from
//! templates, brokers are down when a relay starts, and settings change. So each destination is looked at
//! before its first event, and again now and then. One that can lose an acknowledged event is out of reach,
//! with the reason: its events wait and nothing is lost. So does everything while nobody can look.
//!
//! The alternative, refusing at the start alone, is the server's affair and is done there too, because a
//! person is watching then.

use super::{Capabilities, DURABILITY, Failure, Finding, Level, Message, Sink, Verdict, shown};
use crate::task::{Task, spawn};
use async_trait::async_trait;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a good opinion lasts. Whoever takes a replica away notices it in the brokers' own alerts first.
const GOOD_FOR: Duration = Duration::from_secs(600);
/// How long a bad one does: whoever mends a destination wants to see it flow.
const BAD_FOR: Duration = Duration::from_secs(10);
/// A broker that answers does so in much less.
const PATIENCE: Duration = Duration::from_secs(5);
/// Opinions that are remembered at once.
const DESTINATIONS_MAX: usize = 4_096;
/// Looks at once.
const LOOKS_MAX: usize = 16;

/// Wraps a sink.
pub struct Vetted {
    sink: Arc<dyn Sink>,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    opinions: FxHashMap<String, Opinion>,
    /// They end with this, or by themselves.
    looks: Vec<Task<()>>,
}

struct Opinion {
    until: Instant,
    /// Why it gets nothing.
    refusal: Option<Failure>,
    /// Somebody is looking again.
    looking: bool,
}

impl Vetted {
    /// Lets only those events through to `sink` that it can keep.
    #[must_use]
    pub fn new(sink: Arc<dyn Sink>) -> Self {
        Self { sink, book: Arc::default() }
    }

    /// Why a destination gets nothing now. One that nobody has looked at is looked at in the background: a
    /// call that waited for it would be overtaken by the next one (G3), and would hold up the others.
    fn refusal(&self, book: &mut Book, destination: &str) -> Option<Failure> {
        let (known, stale) = match book.opinions.get(destination) {
            Some(opinion) => (opinion.refusal.clone(), !opinion.looking && Instant::now() >= opinion.until),
            None => (Some(unseen(destination, "it is being looked at")), true),
        };
        if stale {
            book.forget_ended();
            if book.looks.len() < LOOKS_MAX {
                book.begin(destination, known.clone());
                book.looks.push(self.look(destination.to_owned()));
            }
        }
        known
    }

    fn look(&self, destination: String) -> Task<()> {
        let (sink, book) = (Arc::clone(&self.sink), Arc::downgrade(&self.book));
        spawn("durability", async move {
            let named = [destination];
            let refusal = match timeout(PATIENCE, sink.examine(&named)).await {
                Ok(findings) => judge(&named[0], &findings),
                Err(_) => Some(unseen(&named[0], "the broker did not answer in time")),
            };
            let [destination] = named;
            if let Some(book) = book.upgrade() {
                lock(&book).learn(destination, refusal);
            }
        })
    }
}

impl Book {
    /// A look that died says nothing: somebody else may look.
    fn forget_ended(&mut self) {
        self.looks.retain(|look| !look.is_finished());
        if self.looks.is_empty() {
            self.opinions.values_mut().for_each(|opinion| opinion.looking = false);
        }
    }

    fn begin(&mut self, destination: &str, refusal: Option<Failure>) {
        self.make_room();
        let opinion = Opinion { until: Instant::now(), refusal, looking: true };
        self.opinions.insert(destination.to_owned(), opinion);
    }

    fn learn(&mut self, destination: String, refusal: Option<Failure>) {
        let lasts = if refusal.is_some() { BAD_FOR } else { GOOD_FOR };
        self.make_room();
        self.opinions.insert(destination, Opinion { until: Instant::now() + lasts, refusal, looking: false });
    }

    fn make_room(&mut self) {
        if self.opinions.len() >= DESTINATIONS_MAX {
            let now = Instant::now();
            self.opinions.retain(|_, opinion| opinion.looking || now < opinion.until);
        }
        if self.opinions.len() >= DESTINATIONS_MAX {
            self.opinions.clear();
        }
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    // Nothing under the lock panics half way.
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a destination gets nothing, by what a look found.
fn judge(destination: &str, findings: &[Finding]) -> Option<Failure> {
    let durability = || findings.iter().filter(|finding| finding.check == DURABILITY);
    let trouble = findings.iter().find(|finding| finding.level == Level::Fail && finding.check != DURABILITY);
    if let Some(bad) = durability().find(|finding| finding.level != Level::Ok) {
        let text = format!(
            "{:?} can lose an acknowledged event, and durability = \"durable\" refuses that: {}",
            shown(destination),
            bad.text
        );
        return Some(Failure::of_destination("durable.refused", text));
    }
    if durability().next().is_some() && trouble.is_none() {
        return None;
    }
    Some(unseen(destination, trouble.map_or("the sink says nothing of it", |finding| &finding.text)))
}

fn unseen(destination: &str, why: &str) -> Failure {
    let text = format!(
        "whether {:?} keeps what it acknowledges could not be seen ({why}); durability = \"durable\" waits until it can",
        shown(destination)
    );
    Failure::of_destination("durable.unseen", text)
}

#[async_trait]
impl Sink for Vetted {
    fn capabilities(&self) -> Capabilities {
        self.sink.capabilities()
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let mut refusals: FxHashMap<&str, Failure> = FxHashMap::default();
        {
            let mut book = lock(&self.book);
            let mut last = None;
            for message in messages {
                let destination = message.destination.as_str();
                if last.replace(destination) != Some(destination)
                    && let Some(refusal) = self.refusal(&mut book, destination)
                {
                    refusals.insert(destination, refusal);
                }
            }
        }
        if refusals.is_empty() {
            return self.sink.publish(messages).await;
        }
        // The others go in the next call: by then the refused ones are put aside with their destination.
        let verdict = |message: &Message| refusals.get(message.destination.as_str()).cloned();
        messages.iter().map(|message| verdict(message).map_or(Verdict::Held, Verdict::Retry)).collect()
    }

    async fn close(&self) {
        self.sink.close().await;
    }

    /// What is found of one destination is remembered.
    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        let findings = self.sink.examine(destinations).await;
        // Of several nobody can tell which finding is whose.
        if let [destination] = destinations {
            lock(&self.book).learn(destination.clone(), judge(destination, &findings));
        }
        findings
    }

    async fn dedup_window(&self, destination: &str) -> Option<Duration> {
        self.sink.dedup_window(destination).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, StoredEvent, Timestamp};
    use crate::sink::Ordering;
    use std::sync::Mutex as Lock;

    /// Looks take a second; a destination's name says what is found there.
    #[derive(Default)]
    struct Place {
        looks: Lock<Vec<String>>,
        published: Lock<Vec<i64>>,
    }

    #[async_trait]
    impl Sink for Place {
        fn capabilities(&self) -> Capabilities {
            Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max: None }
        }

        async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
            self.published.lock().expect("whole").extend(messages.iter().map(|m| m.stored.seq));
            tokio::time::sleep(Duration::from_millis(1)).await; // pace: virtual time
            vec![Verdict::Delivered; messages.len()]
        }

        async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
            self.looks.lock().expect("whole").extend(destinations.iter().cloned());
            tokio::time::sleep(Duration::from_secs(1)).await; // pace: virtual time
            let level = match &*destinations[0] {
                "safe" => Level::Ok,
                "risky" => Level::Warn,
                _ => {
                    return vec![Finding {
                        check: "reachable".into(),
                        level: Level::Fail,
                        text: "down".into(),
                    }];
                }
            };
            vec![Finding { check: DURABILITY.into(), level, text: "one replica".into() }]
        }
    }

    fn message(seq: i64, destination: &str) -> Message {
        let event = Event::new("t", "x").with_key("k");
        Message {
            stored: StoredEvent { seq, slot: 0, appended_at: Timestamp(0), event, defect: None },
            destination: destination.to_owned(),
            payload: None,
            ordered: true,
            source: "s".into(),
            envelope: Default::default(),
            partition_key: None,
        }
    }

    fn code(verdict: &Verdict) -> &str {
        match verdict {
            Verdict::Retry(failure) => &failure.code,
            Verdict::Delivered => "delivered",
            _ => "held",
        }
    }

    /// Asked until nobody is looking any more.
    async fn settled(sink: &Vetted, messages: &[Message]) -> Vec<Verdict> {
        sink.publish(messages).await;
        tokio::time::sleep(Duration::from_secs(2)).await; // pace: virtual time
        sink.publish(messages).await
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_is_safe_goes_through() {
        let place = Arc::new(Place::default());
        let sink = Vetted::new(Arc::clone(&place) as _);
        assert_eq!(
            code(&sink.publish(&[message(0, "safe")]).await[0]),
            "durable.unseen",
            "nobody has looked"
        );
        for (destination, expected) in
            [("safe", "delivered"), ("risky", "durable.refused"), ("gone", "durable.unseen")]
        {
            assert_eq!(code(&settled(&sink, &[message(1, destination)]).await[0]), expected);
        }
        let before = place.published.lock().expect("whole").len();
        let verdicts = sink.publish(&[message(2, "safe"), message(3, "risky"), message(4, "safe")]).await;
        let codes: Vec<&str> = verdicts.iter().map(code).collect();
        assert_eq!(codes, ["held", "durable.refused", "held"]);
        assert_eq!(place.published.lock().expect("whole").len(), before, "nothing of that call was sent");
        tokio::time::advance(GOOD_FOR).await;
        assert_eq!(
            code(&sink.publish(&[message(5, "safe")]).await[0]),
            "delivered",
            "good until the next look"
        );
        assert_eq!(place.looks.lock().expect("whole").iter().filter(|name| *name == "safe").count(), 2);
    }

    /// A look at the start counts.
    #[tokio::test(start_paused = true)]
    async fn what_was_examined_is_known() {
        let sink = Vetted::new(Arc::new(Place::default()));
        sink.examine(&["safe".to_owned()]).await;
        assert_eq!(code(&sink.publish(&[message(1, "safe")]).await[0]), "delivered");
    }

    /// F30: a destination that nobody can look at costs the others no time.
    #[tokio::test(start_paused = true)]
    async fn f30_a_look_holds_nobody_up() {
        let place = Arc::new(Place::default());
        let sink = Vetted::new(Arc::clone(&place) as _);
        sink.examine(&["safe".to_owned()]).await;
        let started = Instant::now();
        sink.publish(&[message(1, "gone")]).await;
        sink.publish(&[message(2, "safe")]).await;
        assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
    }
}
