//! A consumer from the outside: what it is started with, how it is, how it ends.

use super::engine::Engine;
use super::identity::{Identity, Order};
use super::settings::{ConsumerSettings, Unmatched};
use super::store::InboxStore;
use crate::clock::Clock;
use crate::relay::DrainOutcome;
use crate::source::{Source, StartFrom};
use crate::task::{Task, spawn};
use std::sync::Arc;
use tokio::sync::watch;

/// What one consumer does in one process.
pub struct ConsumerPlan {
    /// Its name in the inbox, for ever.
    pub name: Arc<str>,
    /// The service whose consumer it is.
    pub service: Arc<str>,
    /// This member, unique among all.
    pub member: Arc<str>,
    /// The host it runs on, for people.
    pub host: Arc<str>,
    /// Where messages come from.
    pub source: Arc<dyn Source>,
    /// Where marks, positions and effects go.
    pub store: Arc<dyn InboxStore>,
    /// What messages are known by.
    pub identity: Identity,
    /// What is kept in order.
    pub order: Order,
    /// What becomes of a message that no handler takes.
    pub unmatched: Unmatched,
    /// Where a consumer begins that has no position anywhere.
    pub start_from: StartFrom,
}

impl ConsumerPlan {
    /// A consumer of this name, with the defaults for everything else.
    pub fn new(name: impl Into<Arc<str>>, source: Arc<dyn Source>, store: Arc<dyn InboxStore>) -> Self {
        let name = name.into();
        let member = format!("{name}-{}-{}", std::process::id(), uuid::Uuid::new_v4().simple());
        Self {
            service: Arc::clone(&name),
            name,
            member: member.into(),
            host: "".into(),
            source,
            store,
            identity: Identity::default(),
            order: Order::default(),
            unmatched: Unmatched::default(),
            start_from: StartFrom::default(),
        }
    }
}

/// How a consumer is.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct ConsumerHealth {
    /// Whether it makes progress, or has nothing to do.
    pub ready: bool,
    /// In words of ours: whoever may ask for the health page may see them.
    pub why: String,
    /// What a handler, a broker or the database said of it. It may quote a message, so it is on no page that
    /// anybody may ask for.
    #[serde(skip)]
    pub error: Option<String>,
    /// Partitions it reads.
    pub partitions: usize,
    /// Messages that are in hand.
    pub in_hand: usize,
    /// Partitions that cannot go on without an operator, and why.
    pub stopped: Vec<(String, String)>,
    /// Dependencies that are away.
    pub unavailable: Vec<String>,
}

impl ConsumerHealth {
    /// All of it, for the report and for logs.
    #[must_use]
    pub fn told(&self) -> String {
        self.error.as_ref().map_or_else(|| self.why.clone(), |error| format!("{}: {error}", self.why))
    }
}

/// Why a consumer ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsumerEnd {
    /// It cannot go on. An operator's message.
    Failed(String),
    /// It cannot go on: the database or a handler refused. The words are theirs and may quote a message, so
    /// they are for its operators alone.
    Refused(String),
    /// Its source has delivered nothing for long, although there is lag. Everything was given back: start it
    /// again with a new source. It happens at most every five minutes.
    Stalled(String),
}

impl ConsumerEnd {
    /// In words.
    #[must_use]
    pub fn why(&self) -> &str {
        match self {
            Self::Failed(why) | Self::Refused(why) | Self::Stalled(why) => why,
        }
    }
}

impl From<String> for ConsumerEnd {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// What an answer leaves the engine with: it goes on, or this is its end.
pub(super) type EngineStep = Result<(), ConsumerEnd>;

/// A running consumer. Dropping it kills the consumer as a crash would.
pub struct ConsumerHandle {
    stop: watch::Sender<bool>,
    health: watch::Receiver<ConsumerHealth>,
    ended: watch::Receiver<Option<ConsumerEnd>>,
    task: Task<DrainOutcome>,
}

impl ConsumerHandle {
    /// Begins nothing more, lets open transactions end, saves and gives the partitions back.
    pub async fn drain(self) -> DrainOutcome {
        self.stop.send_replace(true);
        let Self { task, .. } = self;
        task.await.unwrap_or(DrainOutcome::Hurried)
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> ConsumerHealth {
        if self.task.is_finished() {
            let why = self.ended.borrow().as_ref().map_or("stopped", ConsumerEnd::why).to_owned();
            return ConsumerHealth { why, ..ConsumerHealth::default() };
        }
        self.health.borrow().clone()
    }

    /// Resolves when the consumer ended without being drained.
    pub async fn ended(&mut self) -> ConsumerEnd {
        let ended = self.ended.wait_for(Option::is_some).await;
        let ended = ended.ok().and_then(|end| end.clone());
        ended.unwrap_or_else(|| ConsumerEnd::Failed("the consumer's task ended".to_owned()))
    }

    /// The same, in words.
    pub async fn failed(&mut self) -> String {
        self.ended().await.why().to_owned()
    }
}

/// Starts a consumer.
pub fn start(
    plan: ConsumerPlan,
    settings: watch::Receiver<ConsumerSettings>,
    clock: Arc<dyn Clock>,
) -> ConsumerHandle {
    let (stop, stopped) = watch::channel(false);
    let waiting = ConsumerHealth { why: "connecting".to_owned(), ..ConsumerHealth::default() };
    let (health_out, health) = watch::channel(waiting);
    let (ended_out, ended) = watch::channel(None);
    let engine = Engine::new(plan, settings, clock, stopped, health_out);
    let task = spawn("consumer", async move {
        match engine.run().await {
            Ok(outcome) => outcome,
            Err(end) => {
                tracing::error!("{}", end.why());
                ended_out.send_replace(Some(end));
                DrainOutcome::Hurried
            }
        }
    });
    ConsumerHandle { stop, health, ended, task }
}
