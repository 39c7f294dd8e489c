//! The ground: the database that a simulation stands on, as its actors and its check see it.
//!
//! Two kinds of time. The model lives on tokio's paused clock: minutes pass in milliseconds, and a seed does
//! the same again, to the last word of its history. A real store has threads of its own and the host's clock;
//! a paused clock would jump ahead whenever one of them works, and leases would expire for nothing. So there
//! time is real, and everything is short ([`Tempo`]). A seed then fixes what is thrown (sizes, settings,
//! fates, acts of chaos), not how threads interleave: a red seed may turn green when it is run again. What
//! counts is that it was red.
//!
//! Looks at the end are plain functions, not async: nothing else happens meanwhile in the model, and a real
//! database answers them in a few milliseconds.

use crate::memory::{MemoryDatabase, Tx};
use async_trait::async_trait;
use posthaste::admin::DeadAct;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::store::{Controls, Death, LaneId, LaneView, Store};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// How time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tempo {
    /// Tokio's paused clock, on one thread.
    Virtual,
    /// The machine's. Waits are a fraction of the virtual ones.
    Real,
}

impl Tempo {
    /// A wait of this tempo.
    pub(super) fn wait(self, wait: Duration) -> Duration {
        match self {
            Self::Virtual => wait,
            Self::Real => wait / 8,
        }
    }

    /// A wait inside a transaction. Where writers go one after the other, it makes everybody wait, relays
    /// too: much longer ones would be nothing but expired leases.
    pub(super) fn wait_inside(self, wait: Duration) -> Duration {
        match self {
            Self::Virtual => wait,
            Self::Real => wait / 60,
        }
    }

    /// A writer's rest between two transactions. They are over sooner in real time; chaos needs some time
    /// beside them.
    pub(super) fn rest(self, rest: Duration) -> Duration {
        match self {
            Self::Virtual => rest,
            Self::Real => rest / 2,
        }
    }

    /// How long something that must become true may take beyond its time. A machine may be busy, virtual time
    /// is not.
    pub(super) fn patience(self) -> Duration {
        match self {
            Self::Virtual => Duration::ZERO,
            Self::Real => Duration::from_secs(20),
        }
    }
}

/// A deferred event.
#[derive(Debug, Clone)]
pub struct DeferredEvent {
    /// Its number.
    pub seq: i64,
    /// Its id.
    pub id: Uuid,
    /// Attempts spent.
    pub attempts: u32,
}

/// A dead letter, whatever became of it.
#[derive(Debug, Clone)]
pub struct Burial {
    /// The event's number.
    pub seq: i64,
    /// Its id.
    pub id: Uuid,
    /// Its key.
    pub key: Option<String>,
    /// How it died.
    pub death: Death,
    /// When, by the store's clock.
    pub dead_at: Timestamp,
    /// When it was replayed or discarded.
    pub gone_at: Option<Timestamp>,
}

/// A receipt of a lane.
#[derive(Debug, Clone)]
pub struct LaneReceipt {
    /// Its place in the lane's history.
    pub n: i64,
    /// The epoch it was written under.
    pub epoch: i64,
    /// The highest number that is read.
    pub position: i64,
    /// Events that it settles.
    pub events: u64,
    /// The sum of their numbers, where the store keeps one.
    pub seq_sum: Option<i64>,
}

/// A transaction of the application. Dropping it rolls it back.
#[async_trait]
pub trait Transaction: Send {
    /// Writes something that is no event, where that makes a difference.
    fn touch(&mut self) {}

    /// Appends.
    async fn append(&mut self, event: Event);

    /// Commits; `false`: it turned out to be rolled back.
    async fn commit(self: Box<Self>) -> bool;

    /// Rolls back.
    async fn rollback(self: Box<Self>);
}

/// A database under a simulation.
#[async_trait]
pub trait Ground: Send + Sync {
    /// How time passes here.
    fn tempo(&self) -> Tempo;
    /// The store of one more relay.
    async fn store(&self) -> Arc<dyn Store>;
    /// Begins a transaction of the application. One that is not `synchronous` may be lost in a crash of the
    /// server, where there is one.
    fn begin(&self, synchronous: bool) -> Box<dyn Transaction>;
    /// The process of a relay died: its heart stops.
    fn kill(&self, relay: &str);
    /// The server crashes and is back, where there is a server.
    fn crash(&self, logged_ahead: i64);
    /// How many events that wait behind a due one are handed out with it, where that is a choice.
    fn set_run_max(&self, _run_max: usize) {}
    /// Sets what operators set: these controls and no others.
    async fn set_controls(&self, controls: Controls);
    /// Acts on every dead letter of a sink, and says on how many.
    async fn act_on_dead(&self, sink: &str, act: DeadAct) -> u64;
    /// The store's clock.
    fn now(&self) -> Timestamp;
    /// Committed events, by number.
    fn committed(&self) -> Vec<StoredEvent>;
    /// Deferred events of a sink.
    fn deferred(&self, sink: &str) -> Vec<DeferredEvent>;
    /// Every burial there ever was in a sink.
    fn burials(&self, sink: &str) -> Vec<Burial>;
    /// Every receipt there ever was of a lane, oldest first.
    fn receipts(&self, lane: &LaneId) -> Vec<LaneReceipt>;
    /// Every lane, with its owner if it has a live one.
    fn lanes(&self) -> Vec<LaneView>;
    /// How many owners of a lane left without a word, ever.
    fn deaths(&self, lane: &LaneId) -> u32;
    /// Numbers of committed events that a sink has not settled: not handled by their lane's cursor, or
    /// deferred.
    fn unsettled(&self, sink: &str) -> BTreeSet<i64>;
    /// The lane of an event.
    fn lane_of(&self, stored: &StoredEvent) -> i16;
}

/// A transaction of the model.
struct ModelTransaction(Tx);

#[async_trait]
impl Transaction for ModelTransaction {
    fn touch(&mut self) {
        self.0.touch();
    }

    async fn append(&mut self, event: Event) {
        self.0.append(event);
    }

    async fn commit(self: Box<Self>) -> bool {
        self.0.commit()
    }

    async fn rollback(self: Box<Self>) {
        self.0.rollback();
    }
}

#[async_trait]
impl Ground for MemoryDatabase {
    fn tempo(&self) -> Tempo {
        Tempo::Virtual
    }

    async fn store(&self) -> Arc<dyn Store> {
        Self::store(self)
    }

    fn begin(&self, synchronous: bool) -> Box<dyn Transaction> {
        let tx = Self::begin(self);
        Box::new(ModelTransaction(if synchronous { tx } else { tx.asynchronous() }))
    }

    fn kill(&self, relay: &str) {
        Self::kill(self, relay);
    }

    fn crash(&self, logged_ahead: i64) {
        Self::crash(self, logged_ahead);
    }

    fn set_run_max(&self, run_max: usize) {
        Self::set_run_max(self, run_max);
    }

    async fn set_controls(&self, controls: Controls) {
        Self::set_controls(self, controls);
    }

    async fn act_on_dead(&self, sink: &str, act: DeadAct) -> u64 {
        Self::act_on_dead(self, sink, act)
    }

    fn now(&self) -> Timestamp {
        Self::now(self)
    }

    fn committed(&self) -> Vec<StoredEvent> {
        Self::committed(self)
    }

    fn deferred(&self, sink: &str) -> Vec<DeferredEvent> {
        let waiting = Self::deferred(self, sink).into_iter();
        waiting
            .map(|w| DeferredEvent {
                seq: w.stored.seq,
                id: w.stored.event.id,
                attempts: w.deferral.attempts,
            })
            .collect()
    }

    fn burials(&self, sink: &str) -> Vec<Burial> {
        let letters = Self::burials(self, sink).into_iter();
        letters
            .map(|letter| Burial {
                seq: letter.stored.seq,
                id: letter.stored.event.id,
                key: letter.stored.event.key,
                death: letter.death,
                dead_at: letter.dead_at,
                gone_at: letter.gone_at,
            })
            .collect()
    }

    fn receipts(&self, lane: &LaneId) -> Vec<LaneReceipt> {
        let receipts = Self::receipts(self, lane).into_iter();
        receipts
            .map(|receipt| LaneReceipt {
                n: receipt.n,
                epoch: receipt.epoch,
                position: receipt.position.position,
                events: receipt.events,
                seq_sum: Some(receipt.seq_sum),
            })
            .collect()
    }

    fn lanes(&self) -> Vec<LaneView> {
        Self::lanes(self)
    }

    fn deaths(&self, lane: &LaneId) -> u32 {
        Self::deaths(self, lane)
    }

    fn unsettled(&self, sink: &str) -> BTreeSet<i64> {
        Self::unsettled(self, sink)
    }

    fn lane_of(&self, stored: &StoredEvent) -> i16 {
        Self::lane_of(self, stored)
    }
}
