//! The model as a fixture of the store suite.

use super::{MemoryDatabase, Tx};
use crate::conformance::store::{OpenTransaction, StoreFixture};
use async_trait::async_trait;
use posthaste::admin::{Control, ControlTarget, DeadAct};
use posthaste::event::{Event, Timestamp};
use posthaste::store::{Controls, Store};
use std::sync::{Arc, Mutex, PoisonError};

/// A fresh model database.
pub struct MemoryFixture {
    database: MemoryDatabase,
    controls: Mutex<Controls>,
}

impl MemoryFixture {
    /// For [`store_suite!`](crate::store_suite).
    #[allow(clippy::unused_async)]
    pub async fn make() -> Option<Self> {
        Some(Self { database: MemoryDatabase::new(), controls: Mutex::default() })
    }
}

#[async_trait]
impl OpenTransaction for Tx {
    async fn append(&mut self, event: Event) -> i64 {
        Tx::append(self, event)
    }

    async fn commit(self: Box<Self>) {
        assert!(Tx::commit(*self), "the server crashed under this transaction");
    }

    async fn rollback(self: Box<Self>) {
        Tx::rollback(*self);
    }
}

#[async_trait]
impl StoreFixture for MemoryFixture {
    async fn store(&self) -> Arc<dyn Store> {
        self.database.store()
    }

    async fn begin(&self) -> Box<dyn OpenTransaction> {
        Box::new(self.database.begin())
    }

    async fn now(&self) -> Timestamp {
        self.database.now()
    }

    async fn deferred(&self, sink: &str) -> Vec<i64> {
        self.database.deferred(sink).iter().map(|waiting| waiting.stored.seq).collect()
    }

    async fn dead(&self, sink: &str) -> Vec<i64> {
        self.database.dead(sink).iter().map(|letter| letter.stored.seq).collect()
    }

    async fn act_on_dead(&self, sink: &str, act: DeadAct) {
        self.database.act_on_dead(sink, act);
    }

    async fn control(&self, target: &ControlTarget, control: &Control) {
        let mut controls = self.controls.lock().unwrap_or_else(PoisonError::into_inner);
        match (target, control) {
            (ControlTarget::Sink(sink), Control::Pause) => controls.paused_sinks.push(sink.clone()),
            (ControlTarget::Sink(sink), Control::Resume) => controls.paused_sinks.retain(|s| s != sink),
            (ControlTarget::Route(route), Control::Pause) => controls.paused_routes.push(route.clone()),
            (ControlTarget::Route(route), Control::Resume) => controls.paused_routes.retain(|r| r != route),
            (ControlTarget::Sink(sink), Control::RateLimit(limit)) => {
                controls.rate_limits.retain(|(s, _)| s != sink);
                controls.rate_limits.extend(limit.map(|limit| (sink.clone(), limit)));
            }
            (ControlTarget::Route(_), Control::RateLimit(_)) => panic!("a route has no rate limit"),
            // No relay hears of it.
            (ControlTarget::Consumer(_), _) => {}
        }
        self.database.set_controls(controls.clone());
    }

    async fn kill(&self, relay: &str) {
        self.database.kill(relay);
    }

    async fn crash_server(&self) -> bool {
        self.database.crash(7);
        true
    }
}
