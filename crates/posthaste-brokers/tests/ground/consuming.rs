//! A consumer on a source, with a database in memory and a handler that stumbles. What happened is in the
//! tables of that database.

use super::DEADLINE;
use async_trait::async_trait;
use posthaste::clock::SystemClock;
use posthaste::consumer::store::InboxStore;
use posthaste::consumer::{
    ConsumerHandle, ConsumerPlan, ConsumerSettings, Filter, HandlerError, Message, start,
};
use posthaste::source::Source;
use posthaste_brokers::GroupMember;
use posthaste_testkit::conformance::source::Publication;
use posthaste_testkit::inbox::{InboxDatabase, MemoryHandler, MemoryTransaction};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

const NAME: &str = "billing";

pub(crate) fn numbered(n: usize, keys: usize) -> Publication {
    let body = n.to_string().into_bytes();
    Publication {
        id: Some(format!("m{n:05}")),
        key: Some(format!("k{}", n % keys)),
        headers: Vec::new(),
        payload: Some(body.into()),
    }
}

pub(crate) fn plan(queue: &str, member: usize) -> GroupMember {
    let mut plan = GroupMember::new(NAME, [queue]);
    plan.member = Some(format!("member-{member}"));
    plan
}

/// Every 50th message fails the first time, and is tried again: some of them in memory, some deferred.
#[derive(Default)]
pub(crate) struct Stumbling(Mutex<BTreeSet<String>>);

#[async_trait]
impl MemoryHandler for Stumbling {
    async fn handle(&self, tx: &mut MemoryTransaction, message: &Message<'_>) -> Result<(), HandlerError> {
        let id = message.id().to_owned();
        let is_bad = id.trim_start_matches('m').parse::<usize>().is_ok_and(|n| n % 50 == 0);
        if is_bad && self.0.lock().expect("no panic").insert(id) {
            return Err(std::io::Error::other("not yet").into());
        }
        tx.effect(message);
        Ok(())
    }
}

pub(crate) fn consumer(
    source: Arc<dyn Source>,
    database: &InboxDatabase,
    handler: &Arc<Stumbling>,
    member: usize,
) -> ConsumerHandle {
    let store: Arc<dyn InboxStore> =
        Arc::new(database.inbox(NAME, Filter::default(), Arc::clone(handler) as _));
    let plan =
        ConsumerPlan { member: format!("member-{member}").into(), ..ConsumerPlan::new(NAME, source, store) };
    let mut settings =
        ConsumerSettings { batch_max: 4, memory_wait_max_ms: 40, ..ConsumerSettings::default() };
    settings.retry.delays_ms = vec![20, 100];
    start(plan, watch::channel(settings).1, Arc::new(SystemClock))
}

/// Ids by key, as their effects happened.
pub(crate) fn effects(database: &InboxDatabase) -> BTreeMap<Vec<u8>, Vec<String>> {
    let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for effect in &database.tables().effects {
        by_key.entry(effect.key.clone().unwrap_or_default().to_vec()).or_default().push(effect.id.clone());
    }
    by_key
}

/// Waits until something is so.
pub(crate) async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let started = std::time::Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < 2 * DEADLINE, "not within {:?}", 2 * DEADLINE);
        tokio::time::sleep(Duration::from_millis(5)).await; // pace
    }
}
