//! What the cases are made of: a script for handlers, messages, and short ways to ask.

use super::ConsumerFixture;
use crate::spans::{self, SpanFields};
use bytes::Bytes;
use posthaste::admin::history::History;
use posthaste::consumer::identity::order_id;
use posthaste::consumer::store::{
    Burial, DeferOrBury, DueHeads, DueOutcome, InboxStore, MessageOutcome, SetAside, Work,
};
use posthaste::consumer::{
    ConsumerRetry, Disposition, Failure, FailureKind, Filter, HandlerError, Message, Order,
};
use posthaste::event::{TYPE_HEADER, Timestamp};
use posthaste::source::{Delivery, Partition, Received, Ticket};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// The consumer of most cases.
pub(super) const CONSUMER: &str = "billing";

/// Long enough for any handler here.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// What a handler is told to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It fails; another try may help.
    Fail,
    /// It refuses the message for ever.
    Reject,
    /// It misses the dependency `api`.
    Miss,
    /// It panics.
    Panic,
}

/// What the handlers of a fixture do, and what they saw.
#[derive(Debug, Default)]
pub struct Script {
    told: Mutex<BTreeMap<String, VecDeque<Told>>>,
    seen: Mutex<Vec<(Delivery, u32)>>,
    spans: Mutex<Vec<SpanFields>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Script {
    /// The next runs of this message end so; then it succeeds.
    pub fn tell(&self, id: &str, told: &[Told]) {
        lock(&self.told).entry(id.to_owned()).or_default().extend(told);
    }

    /// What a fixture's handler answers with, after it has written its effect.
    pub fn run(&self, message: &Message<'_>) -> Result<(), HandlerError> {
        lock(&self.seen).push(((**message).clone(), message.attempt()));
        lock(&self.spans).push(spans::current());
        let told = lock(&self.told).get_mut(message.id()).and_then(VecDeque::pop_front);
        match told {
            None => Ok(()),
            Some(Told::Fail) => Err(std::io::Error::other("as it was told").into()),
            Some(Told::Reject) => Err(HandlerError::reject("suite.rejected", "as it was told")),
            Some(Told::Miss) => Err(HandlerError::unavailable("api", "as it was told")),
            Some(Told::Panic) => panic!("as it was told"),
        }
    }

    /// What the handlers saw, in order: the message, and which attempt it was.
    pub(super) fn seen(&self) -> Vec<(Delivery, u32)> {
        lock(&self.seen).clone()
    }

    /// The spans that handlers ran in, in order.
    pub(super) fn spans(&self) -> Vec<SpanFields> {
        lock(&self.spans).clone()
    }
}

/// A message of a key, at this position of a topic.
pub(super) fn work_of(topic: &str, position: i64, key: Option<&str>, id: &str) -> Work {
    let message = Received {
        id: Some(id.to_owned()),
        key: key.map(|key| Bytes::from(key.to_owned())),
        headers: vec![(TYPE_HEADER.to_owned(), Bytes::from_static(b"made"))],
        payload: Some(Bytes::from_static(b"{}")),
    };
    let delivery = Delivery {
        ticket: Ticket { partition: Partition::new(topic, 0), epoch: 1, number: position },
        position: Some(position),
        redelivery: None,
        published_at: Some(Timestamp(1_700_000_000_000_000 + position)),
        address: None,
        message,
    };
    let order_id = order_id(Order::Key, &delivery);
    Work { delivery: Arc::new(delivery), id: id.into(), order_id, attempts: 0, history: History::default() }
}

/// A message whose id is its key and its position: `a1`.
pub(super) fn work(key: &str, position: i64) -> Work {
    work_of("orders", position, Some(key), &format!("{key}{position}"))
}

/// The partition of all messages here.
pub(super) fn partition() -> Partition {
    Partition::new("orders", 0)
}

/// A failure that counts.
pub(super) fn failure(code: &'static str) -> Failure {
    Failure::new(FailureKind::Error, code, "it failed")
}

pub(super) fn defer() -> DeferOrBury {
    DeferOrBury::Defer { delay: Duration::from_secs(3600), failure: failure("suite.failed") }
}

pub(super) fn bury(holds_key: bool) -> DeferOrBury {
    let (letter, failure) = (Uuid::now_v7(), failure("suite.dead"));
    DeferOrBury::Bury(Burial { letter, disposition: Disposition::Exhausted, failure, holds_key })
}

/// Two tries, an hour apart; then dead.
pub(super) fn heads() -> DueHeads {
    DueHeads {
        messages_max: 64,
        handler_time_max: PATIENCE,
        handler_timeout: PATIENCE,
        retry: ConsumerRetry { delays_ms: vec![3_600_000], then: None },
        dead_hold: false,
        unavailable_pause: Duration::from_secs(3600),
        careful: false,
        chance: 0.0,
    }
}

/// One member with its script.
pub(super) struct StagedMember<'a, F> {
    pub(super) fixture: &'a F,
    pub(super) script: Arc<Script>,
    pub(super) inbox: Arc<dyn InboxStore>,
}

pub(super) async fn member<F: ConsumerFixture>(fixture: &F) -> StagedMember<'_, F> {
    let script = Arc::new(Script::default());
    let inbox = fixture.inbox(CONSUMER, Filter::default(), &script).await;
    StagedMember { fixture, script, inbox }
}

impl<F: ConsumerFixture> StagedMember<'_, F> {
    /// Applies a batch, again while others are in the way.
    pub(super) async fn apply(&self, batch: &[Work]) -> Vec<MessageOutcome> {
        for _ in 0..100 {
            match self.inbox.apply(None, batch, PATIENCE).await {
                Ok(applying) => return applying.outcomes,
                Err(error) if error.failure.kind == FailureKind::Conflict => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        panic!("a hundred conflicts in a row");
    }

    pub(super) async fn defer(&self, key: &[Work], how: &DeferOrBury) -> Vec<SetAside> {
        self.inbox.defer(None, key, how).await.expect("set aside").outcomes
    }

    /// One look at what is due by now.
    pub(super) async fn due(&self, heads: &DueHeads) -> DueOutcome {
        self.inbox.apply_deferred(heads).await.expect("a look")
    }

    /// Makes everything due that has a time, and looks until nothing is left to do.
    pub(super) async fn work_off(&self, heads: &DueHeads) -> DueOutcome {
        self.fixture.make_due(CONSUMER).await;
        let mut all = DueOutcome::default();
        for _ in 0..100 {
            let one = self.due(heads).await;
            let moved = one.moved() + one.failed.len();
            all.steps.extend(one.steps);
            all.failed.extend(one.failed);
            all.next_due = one.next_due;
            if moved == 0 {
                return all;
            }
        }
        panic!("there is always something left to do");
    }

    pub(super) async fn effects(&self) -> Vec<String> {
        self.fixture.effects(CONSUMER).await
    }

    /// The marks as one text: `a1=d a2=w`.
    pub(super) async fn marks(&self) -> String {
        let marks = self.fixture.marks(CONSUMER).await;
        marks.iter().map(|(id, outcome)| format!("{id}={outcome}")).collect::<Vec<_>>().join(" ")
    }

    /// The ids of the deferred messages, those behind another in brackets: `a1 (a2)`.
    pub(super) async fn waiting(&self) -> String {
        let rows = self.fixture.deferred(CONSUMER).await;
        let one = |row: &super::DeferredView| match row.is_behind {
            true => format!("({})", row.id),
            false => row.id.clone(),
        };
        rows.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    /// The only dead letter.
    pub(super) async fn letter(&self) -> super::LetterView {
        let letters = self.fixture.letters(CONSUMER).await;
        assert_eq!(letters.len(), 1, "{letters:?}");
        letters.into_iter().next().expect("one")
    }
}
