//! A small relay: events without end, in pages, with calls that overlap, until it is told to stop.
//!
//! What is not delivered is published again, in order. Nothing new begins while a call has failed messages of
//! others before it: that is what the real relay does for the keys that failed.

use super::*;
use crate::ground::load::assert_in_order;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};

const PAGE: usize = 40;
const CALLS: usize = 4;
/// Between two pages of fresh events, while all is well: 8,000 events a second.
const PACE: Duration = Duration::from_millis(5);

pub(super) struct Stream {
    sink: Arc<dyn Sink>,
    topic: String,
    keys: usize,
    stop: AtomicBool,
}

type Page = Vec<(usize, Message)>;

impl Stream {
    pub(super) fn new(sink: &Arc<dyn Sink>, topic: &str, keys: usize) -> Self {
        Self { sink: Arc::clone(sink), topic: topic.to_owned(), keys, stop: AtomicBool::new(false) }
    }

    /// No more fresh events.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn key(&self, number: usize) -> String {
        format!("key-{}", number % self.keys)
    }

    fn fresh(&self, from: usize) -> Page {
        let make = |number| (number, numbered(&self.topic, &self.key(number), number));
        (from..from + PAGE).map(make).collect()
    }

    async fn publish(&self, page: Page) -> (Page, Vec<Verdict>) {
        let (numbers, messages): (Vec<_>, Vec<_>) = page.into_iter().unzip();
        let verdicts = self.sink.publish(&messages).await;
        (numbers.into_iter().zip(messages).collect(), verdicts)
    }

    /// Publishes until it is stopped and everything is delivered. Answers with how many there were.
    pub(super) async fn run(&self) -> usize {
        let mut calls = FuturesUnordered::new();
        let (mut made, mut again) = (0, VecDeque::<(usize, Message)>::new());
        let mut undelivered: Page = Vec::new();
        loop {
            let stopped = self.stop.load(Ordering::Relaxed);
            if calls.is_empty() {
                undelivered.sort_by_key(|(number, _)| *number);
                again.extend(undelivered.drain(..));
                if again.is_empty() && stopped {
                    return made;
                }
            }
            let may_begin = undelivered.is_empty() && calls.len() < CALLS;
            if may_begin && !(again.is_empty() && stopped) {
                let most = again.len().min(PAGE);
                let page = if most > 0 {
                    again.drain(..most).collect()
                } else {
                    made += PAGE;
                    self.fresh(made - PAGE)
                };
                // Calls keep the order of their first polls.
                let mut call = self.publish(page).boxed_local();
                match call.poll_unpin(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(back) => undelivered.extend(failed(back)),
                    Poll::Pending => calls.push(call),
                }
                if most == 0 {
                    tokio::time::sleep(PACE).await; // pace: the load of a busy service
                }
            }
            while let Some(Some(back)) = calls.next().now_or_never() {
                undelivered.extend(failed(back));
            }
            if (!undelivered.is_empty() || calls.len() >= CALLS || (stopped && again.is_empty()))
                && let Some(back) = calls.next().await
            {
                undelivered.extend(failed(back));
            }
        }
    }

    /// Every event is there, and the first copies of a key are in order (G2, G3).
    pub(super) async fn assert_all_in_order(&self, kafka: &Kafka, made: usize) {
        let copies = copies(kafka, &self.topic).await;
        let there: BTreeSet<&str> = copies.iter().map(|copy| copy.id.as_str()).collect();
        assert_eq!(there.len(), made, "nothing is missing");
        assert_in_order(&copies);
    }
}

fn failed((page, verdicts): (Page, Vec<Verdict>)) -> impl Iterator<Item = (usize, Message)> {
    page.into_iter().zip(verdicts).filter_map(|(event, verdict)| match verdict {
        Verdict::Delivered => None,
        Verdict::Retry(_) | Verdict::Unknown(_) | Verdict::Held => Some(event),
        Verdict::Rejected(failure) => panic!("{failure:?}"),
    })
}
