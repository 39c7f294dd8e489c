//! A broker, a database and a handler, as models, and consumers of the real engine on them.

use bytes::Bytes;
use posthaste::clock::SystemClock;
use posthaste::consumer::store::InboxStore;
use posthaste::consumer::{
    ConsumerHandle, ConsumerPlan, ConsumerSettings, Disposition, Failure, FailureKind, Filter, HandlerError,
    Identity, Message, Order, start,
};
use posthaste::source::{Received, StartFrom};
use posthaste_testkit::broker::{BrokerKind, MemoryBroker};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::faults::Faults;
use posthaste_testkit::inbox::{InboxDatabase, MemoryHandler, MemoryTransaction};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) const NAME: &str = "billing";
pub(crate) const TOPIC: &str = "orders";
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
pub(crate) const STALL: Duration = Duration::from_secs(300);

/// What a handler does with a message, by its id. What is not named succeeds.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) acts: Mutex<BTreeMap<String, Act>>,
    pub(crate) runs: Mutex<Vec<(String, Instant)>>,
}

#[derive(Clone)]
pub(crate) enum Act {
    /// Fails so many times.
    Fail(u32),
    Reject,
    Away,
    Panic,
    /// Its commit hears of an outage, over a connection that lives.
    Outage,
    /// Never ends, and keeps what its transaction has locked.
    Hang,
}

#[async_trait::async_trait]
impl MemoryHandler for Script {
    async fn handle(&self, tx: &mut MemoryTransaction, message: &Message<'_>) -> Result<(), HandlerError> {
        let id = message.id().to_owned();
        self.runs.lock().expect("no panic").push((id.clone(), Instant::now()));
        let act = self.acts.lock().expect("no panic").get(&id).cloned();
        match act {
            Some(Act::Fail(left)) if left > 0 => {
                self.set(&id, Act::Fail(left - 1));
                Err(std::io::Error::other("not yet").into())
            }
            Some(Act::Reject) => Err(HandlerError::reject("test.no", "never")),
            Some(Act::Away) => Err(HandlerError::unavailable("bank", "closed")),
            Some(Act::Panic) => panic!("a bug in the handler"),
            Some(Act::Outage) => {
                tx.refuse_commit(Failure::new(FailureKind::ConnectionLost, "database.outage", "no server"));
                Ok(())
            }
            Some(Act::Hang) => std::future::pending().await,
            Some(Act::Fail(_)) | None => {
                tx.effect(message);
                Ok(())
            }
        }
    }
}

impl Script {
    pub(crate) fn set(&self, id: &str, act: Act) {
        self.acts.lock().expect("no panic").insert(id.to_owned(), act);
    }

    pub(crate) fn clear(&self) {
        self.acts.lock().expect("no panic").clear();
    }

    pub(crate) fn runs_of(&self, id: &str) -> Vec<Instant> {
        let runs = self.runs.lock().expect("no panic");
        runs.iter().filter(|(ran, _)| ran == id).map(|(_, at)| *at).collect()
    }
}

/// A broker, a database, a handler, and what a consumer is started with.
pub(crate) struct Ground {
    pub(crate) broker: MemoryBroker,
    pub(crate) database: InboxDatabase,
    pub(crate) script: Arc<Script>,
    pub(crate) settings: ConsumerSettings,
    pub(crate) order: Order,
    pub(crate) filter: Filter,
    pub(crate) identity: Identity,
    pub(crate) members: Mutex<usize>,
    pub(crate) tunings: Mutex<Vec<watch::Sender<ConsumerSettings>>>,
    pub(crate) deferred: AtomicUsize,
}

impl Ground {
    pub(crate) fn new(partitions: u32) -> Self {
        Self::of(BrokerKind::Log, partitions)
    }

    pub(crate) fn of(kind: BrokerKind, partitions: u32) -> Self {
        let broker = MemoryBroker::new(kind, 100_000);
        broker.declare(TOPIC, partitions);
        Self {
            broker,
            database: InboxDatabase::default(),
            script: Arc::default(),
            settings: ConsumerSettings::default(),
            order: Order::Key,
            filter: Filter::default(),
            identity: Identity::default(),
            members: Mutex::default(),
            tunings: Mutex::default(),
            deferred: AtomicUsize::new(0),
        }
    }

    pub(crate) fn publish(&self, id: &str, key: Option<&str>) {
        self.broker.publish(TOPIC, received(Some(id), key));
    }

    pub(crate) fn start(&self) -> ConsumerHandle {
        self.start_with(Faults::none())
    }

    pub(crate) fn start_with(&self, faults: Faults) -> ConsumerHandle {
        let mut members = self.members.lock().expect("no panic");
        *members += 1;
        let member = format!("member-{members}");
        let source = self.broker.join(NAME, TOPIC, &member, StartFrom::Earliest, STALL);
        let store = self.database.inbox(NAME, self.filter.clone(), Arc::clone(&self.script) as _);
        let store: Arc<dyn InboxStore> = Arc::new(store.with_faults(faults));
        let plan = ConsumerPlan {
            member: member.into(),
            order: self.order,
            identity: self.identity.clone(),
            ..ConsumerPlan::new(NAME, Arc::new(source), store)
        };
        let (tuning, receiver) = watch::channel(self.settings.clone());
        self.tunings.lock().expect("no panic").push(tuning);
        start(plan, receiver, Arc::new(SystemClock))
    }

    pub(crate) fn done(&self) -> Vec<String> {
        self.database.tables().effects.iter().map(|effect| effect.id.clone()).collect()
    }

    pub(crate) fn dead(&self) -> Vec<(String, Disposition)> {
        let tables = self.database.tables();
        let letters = tables.letters_of(NAME);
        letters.iter().map(|letter| (letter.row.work.id.to_string(), letter.burial.disposition)).collect()
    }

    pub(crate) async fn until_done(&self, ids: &[&str]) {
        self.until("the effects", |ground| ids.iter().all(|id| ground.done().iter().any(|done| done == id)))
            .await;
    }

    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        eventually(what, PATIENCE, || async {
            self.deferred.fetch_max(self.database.tables().deferred.len(), SeqCst);
            is_so(self).then_some(())
        })
        .await;
    }

    /// The most messages that were deferred at once, while something was waited for.
    pub(crate) fn most_deferred(&self) -> usize {
        self.deferred.load(SeqCst)
    }
}

pub(crate) fn received(id: Option<&str>, key: Option<&str>) -> Received {
    Received {
        id: id.map(str::to_owned),
        key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        payload: Some(Bytes::from_static(b"{}")),
        ..Received::default()
    }
}
