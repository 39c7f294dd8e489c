//! The sink itself: the servers, the window, the chain, and a flight for each call.

use super::cluster::Cluster;
use super::flight::{Flight, Streams};
use super::link::{self, Link, Session, Target};
use super::verdict::Silence;
use super::{RedisConfig, Way, examine};
use crate::BuildError;
use async_trait::async_trait;
use posthaste::sink::chain::Chain;
use posthaste::sink::{Capabilities, Failure, Finding, Message, Ordering, Scope, Sink, Verdict};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// How long a call waits for a connection before it gives its messages back. Longer than a reconnect
/// takes, short enough for an outage to be noticed.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// In the last part of the delivery timeout nothing leaves any more: its answer would come too late, and `Unknown` is
/// worse than not sent.
const LAST_PART: u32 = 8;

/// Publishes to Redis Streams.
#[derive(Debug)]
pub struct RedisSink {
    pub(super) config: Arc<RedisConfig>,
    pub(super) way: Servers,
    chain: Chain,
    pub(super) window: Semaphore,
}

/// The server, or the servers.
#[derive(Debug)]
pub(super) enum Servers {
    One(Link),
    Many(Cluster),
}

impl RedisSink {
    /// Checks the configuration and begins to connect. A server that is down is no error.
    pub fn start(config: &RedisConfig, name: &str) -> Result<Self, BuildError> {
        let plan = config.check()?;
        let (config, name) = (Arc::new(config.clone()), Arc::from(name));
        let way = match (Target::of(&plan.way, plan.database), plan.way) {
            (Some(target), _) => Servers::One(link::start(Arc::clone(&config), target, Scope::Sink, name)),
            (None, Way::Cluster(seeds)) => Servers::Many(Cluster::start(Arc::clone(&config), seeds, name)),
            (None, _) => return Err(BuildError::option("url", "there is no server")),
        };
        let window = Semaphore::new(config.options.max_in_flight);
        Ok(Self { config, way, chain: Chain::default(), window })
    }
}

#[async_trait]
impl Sink for RedisSink {
    fn capabilities(&self) -> Capabilities {
        let session = if let Servers::One(link) = &self.way { link.current() } else { None };
        let payload_bytes_max = session.and_then(|session| session.bulk_bytes_max);
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let patience = self.config.options.delivery_timeout();
        let deadline = Instant::now() + patience;
        // Before the first wait: calls keep the order in which they were begun.
        let call = self.chain.enter(messages);
        let streams = Streams::find(&self.way, messages, CONNECT_WAIT.min(patience / 2)).await;
        let mut flight = Flight::new(self, messages, call, streams, deadline - patience / LAST_PART);
        if timeout_at(deadline, flight.fly()).await.is_err() {
            flight.give_up(&Silence::Timeout { after_ms: self.config.options.delivery_timeout_ms });
        }
        flight.verdicts()
    }

    async fn close(&self) {
        match &self.way {
            Servers::One(link) => link.close().await,
            Servers::Many(cluster) => cluster.close().await,
        }
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(&self.config, &self.way, destinations).await
    }
}

impl Servers {
    /// The scope of one server's failures.
    pub(super) fn reach(&self) -> Scope {
        match self {
            Self::One(_) => Scope::Sink,
            Self::Many(_) => Scope::Destination,
        }
    }

    pub(super) async fn session(&self, stream: &str, wait: Duration) -> Result<Arc<Session>, Failure> {
        match self {
            Self::One(link) => link.session(wait).await,
            Self::Many(cluster) => cluster.session(stream, wait).await,
        }
    }
}
