//! A relay from the outside: what it is started with, how it is, how it ends.

use super::settings::RelaySettings;
use super::supervise::Supervisor;
use crate::admin::RelayReport;
use crate::clock::Clock;
use crate::event::Limits;
use crate::lifecycle::ClassOverrides;
use crate::route::RouteTable;
use crate::sink::Sink;
use crate::store::{StartAt, Store};
use crate::task::{Task, spawn};
use std::sync::Arc;
use tokio::sync::{Mutex, RwLock, watch};

/// A sink of an outbox.
pub struct SinkEntry {
    /// Its name.
    pub name: Arc<str>,
    /// The sink.
    pub sink: Arc<dyn Sink>,
    /// Where it begins if the store has never seen it.
    pub start_at: StartAt,
    /// Error classes set by configuration.
    pub classes: ClassOverrides,
}

/// What one relay does for one outbox.
pub struct RelayPlan {
    /// Name of the outbox.
    pub outbox: Arc<str>,
    /// The service whose events these are.
    pub service: Arc<str>,
    /// Name of this relay, unique among all.
    pub relay: Arc<str>,
    /// The store.
    pub store: Arc<dyn Store>,
    /// Its sinks.
    pub sinks: Vec<SinkEntry>,
    /// Its routes.
    pub routes: RouteTable,
    /// What an event may be.
    pub limits: Limits,
    /// How many lanes, if they are to be created.
    pub lanes: Option<u16>,
    /// The host, as its report names it.
    pub host: Arc<str>,
}

/// How a relay is.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Health {
    /// Whether it makes progress, or has nothing to do.
    pub ready: bool,
    /// In words.
    pub why: String,
    /// Lanes it owns.
    pub lanes_owned: usize,
    /// What it says about its sinks.
    #[serde(skip)]
    pub report: Option<Arc<RelayReport>>,
    /// Another number than before: events were put aside or died, a lane fell behind, or an operator set
    /// something. Figures of the store are out of date then.
    #[serde(skip)]
    pub news: u64,
}

impl Health {
    /// In words, with how many lanes it owns.
    #[must_use]
    pub fn new(ready: bool, why: String, lanes_owned: usize) -> Self {
        Self { ready, why, lanes_owned, report: None, news: 0 }
    }
}

/// How a drained shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOutcome {
    /// No live lease, no unsettled acknowledgement (G8).
    Clean,
    /// The deadline came first: leases expire by themselves, some events may be sent twice.
    Hurried,
}

/// A running relay. Dropping it kills the relay as a crash would.
pub struct RelayHandle {
    stop: watch::Sender<bool>,
    health: watch::Receiver<Health>,
    failed: watch::Receiver<Option<String>>,
    task: Task<DrainOutcome>,
}

impl RelayHandle {
    /// Stops reading, lets what is in flight settle, gives the lanes back.
    pub async fn drain(self) -> DrainOutcome {
        self.stop.send_replace(true);
        let Self { task, .. } = self;
        task.await.unwrap_or(DrainOutcome::Hurried)
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> Health {
        if self.task.is_finished() {
            let why = self.failed.borrow().clone().unwrap_or_else(|| "stopped".to_owned());
            return Health::new(false, why, 0);
        }
        self.health.borrow().clone()
    }

    /// Resolves when the relay cannot go on, with an operator's message.
    pub async fn failed(&mut self) -> String {
        match self.failed.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the relay's task ended".to_owned(),
        }
    }
}

/// What all relays of one process share.
///
/// An event that kills its relay kills the process, whichever outbox it came from. Lanes that go one by one
/// write down what they have in hand, and whatever was in hand is charged with the death (F21). So there is
/// one hand in the whole process: while the killer is in it, no innocent event is.
///
/// The killer may also be in a call of a lane that goes as usual: that lane has left the place where its
/// owners died, or a dead letter was replayed in it. Then whatever is in hand elsewhere is charged with that
/// death. So an event that one more death would end is published **alone**, with no other call of the
/// process: an innocent one comes back, and none becomes a dead letter for another's deed. All of this costs
/// only processes that keep dying, for as long as they do.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// Held while an event is in hand.
    pub(super) one_hand: Arc<Mutex<()>>,
    /// Shared by the calls of lanes that go as usual. An event that must be alone holds it for itself.
    pub(super) company: Arc<RwLock<()>>,
}

/// Starts a relay that has its process for itself.
pub fn start(
    plan: RelayPlan,
    settings: watch::Receiver<RelaySettings>,
    routes: watch::Receiver<RouteTable>,
    clock: Arc<dyn Clock>,
) -> RelayHandle {
    start_in(&Process::default(), plan, settings, routes, clock)
}

/// Starts a relay beside others in one process.
pub fn start_in(
    process: &Process,
    plan: RelayPlan,
    settings: watch::Receiver<RelaySettings>,
    routes: watch::Receiver<RouteTable>,
    clock: Arc<dyn Clock>,
) -> RelayHandle {
    let (stop, stopped) = watch::channel(false);
    let waiting = Health::new(false, "connecting".to_owned(), 0);
    let (health_out, health) = watch::channel(waiting);
    let (failed_out, failed) = watch::channel(None);
    let mut supervisor = Supervisor::new(plan, settings, routes, clock, health_out);
    supervisor.process = process.clone();
    let task = spawn("relay", async move {
        match supervisor.run(stopped).await {
            Ok(outcome) => outcome,
            Err(why) => {
                tracing::error!("{why}");
                failed_out.send_replace(Some(why));
                DrainOutcome::Hurried
            }
        }
    });
    RelayHandle { stop, health, failed, task }
}
