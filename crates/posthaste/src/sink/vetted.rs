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

use super::{Capabilities, DURABILITY, Failure, Finding, Level, Message, Sink, Verdict};
use async_trait::async_trait;
use rustc_hash::FxHashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// How long a good opinion lasts. Whoever takes a replica away notices it in the brokers' own alerts first.
const GOOD_FOR: Duration = Duration::from_secs(600);
/// How long a bad one does: whoever mends a destination wants to see it flow.
const BAD_FOR: Duration = Duration::from_secs(10);
/// Below the relay's own bound for a publish: the reason should arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// Opinions that are remembered at once.
const DESTINATIONS_MAX: usize = 4_096;

/// Wraps a sink.
pub struct Vetted {
    sink: Arc<dyn Sink>,
    /// Held until a call has entered the sink: calls keep the order in which they were begun.
    opinions: Mutex<FxHashMap<String, Opinion>>,
}

struct Opinion {
    until: Instant,
    refusal: Option<Failure>,
}

impl Vetted {
    /// Lets only those events through to `sink` that it can keep.
    #[must_use]
    pub fn new(sink: Arc<dyn Sink>) -> Self {
        Self { sink, opinions: Mutex::default() }
    }

    async fn vet(&self, opinions: &mut FxHashMap<String, Opinion>, messages: &[Message]) {
        let mut last = None;
        for message in messages {
            if last.replace(&message.destination) == Some(&message.destination) {
                continue;
            }
            let now = Instant::now();
            if opinions.get(&message.destination).is_some_and(|opinion| now < opinion.until) {
                continue;
            }
            if opinions.len() >= DESTINATIONS_MAX {
                opinions.retain(|_, opinion| now < opinion.until);
            }
            let opinion = self.look(&message.destination).await;
            opinions.insert(message.destination.clone(), opinion);
        }
    }

    async fn look(&self, destination: &str) -> Opinion {
        let named = [destination.to_owned()];
        let refusal = match timeout(PATIENCE, self.sink.examine(&named)).await {
            Ok(findings) => judge(destination, &findings),
            Err(_) => Some(unseen(destination, "the broker did not answer in time")),
        };
        let lasts = if refusal.is_some() { BAD_FOR } else { GOOD_FOR };
        Opinion { until: Instant::now() + lasts, refusal }
    }
}

/// Why a destination gets nothing, by what a look found.
fn judge(destination: &str, findings: &[Finding]) -> Option<Failure> {
    let durability = || findings.iter().filter(|finding| finding.check == DURABILITY);
    if let Some(bad) = durability().find(|finding| finding.level != Level::Ok) {
        return Some(Failure::of_destination(
            "durable.refused",
            format!(
                "{destination:?} can lose an acknowledged event, and durability = \"durable\" refuses that: {}",
                bad.text
            ),
        ));
    }
    if durability().next().is_some() {
        return None;
    }
    let trouble = findings.iter().find(|finding| finding.level == Level::Fail);
    Some(unseen(destination, trouble.map_or("the sink says nothing of it", |finding| &finding.text)))
}

fn unseen(destination: &str, why: &str) -> Failure {
    Failure::of_destination(
        "durable.unseen",
        format!(
            "whether {destination:?} keeps what it acknowledges could not be seen ({why}); durability = \"durable\" waits until it can"
        ),
    )
}

#[async_trait]
impl Sink for Vetted {
    fn capabilities(&self) -> Capabilities {
        self.sink.capabilities()
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        // Fair: whoever was polled first goes first.
        let mut opinions = self.opinions.lock().await;
        self.vet(&mut opinions, messages).await;
        let refusal = |message: &Message| opinions.get(&message.destination).and_then(|o| o.refusal.clone());
        if messages.iter().any(|message| refusal(message).is_some()) {
            // The others go in the next call: by then the refused ones are put aside with their destination.
            return messages.iter().map(|m| refusal(m).map_or(Verdict::Held, Verdict::Retry)).collect();
        }
        let mut call = self.sink.publish(messages);
        let entered = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        drop(opinions);
        match entered {
            Poll::Ready(verdicts) => verdicts,
            Poll::Pending => call.await,
        }
    }

    async fn close(&self) {
        self.sink.close().await;
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        self.sink.examine(destinations).await
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

    #[tokio::test(start_paused = true)]
    async fn only_what_is_safe_goes_through() {
        let place = Arc::new(Place::default());
        let sink = Vetted::new(Arc::clone(&place) as _);
        for (destination, expected) in
            [("safe", "delivered"), ("risky", "durable.refused"), ("gone", "durable.unseen")]
        {
            assert_eq!(code(&sink.publish(&[message(1, destination)]).await[0]), expected);
        }
        let verdicts = sink.publish(&[message(2, "safe"), message(3, "risky"), message(4, "safe")]).await;
        let codes: Vec<&str> = verdicts.iter().map(code).collect();
        assert_eq!(codes, ["held", "durable.refused", "held"]);
        assert_eq!(*place.published.lock().expect("whole"), [1]);
        tokio::time::advance(GOOD_FOR).await;
        sink.publish(&[message(5, "safe"), message(6, "safe")]).await;
        assert_eq!(place.looks.lock().expect("whole").iter().filter(|name| *name == "safe").count(), 2);
    }

    /// G3: a call that waits for a look is not overtaken by a later one that needs none.
    #[tokio::test(start_paused = true)]
    async fn g3_calls_enter_in_the_order_in_which_they_were_begun() {
        let place = Arc::new(Place::default());
        let sink = Vetted::new(Arc::clone(&place) as _);
        sink.publish(&[message(1, "safe")]).await;
        tokio::time::advance(GOOD_FOR).await;
        let (first, second) = ([message(2, "safe")], [message(3, "safe")]);
        let calls = [sink.publish(&first), sink.publish(&second)];
        futures_util::future::join_all(calls).await;
        assert_eq!(*place.published.lock().expect("whole"), [1, 2, 3]);
    }
}
