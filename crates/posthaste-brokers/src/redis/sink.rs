//! The sink itself: the servers, the window, the chain, and a publisher for each call.

use super::client::{self, Servers};
use super::publisher::Requests;
use super::{RedisConfig, examine};
use crate::BuildError;
use crate::call::Flight;
use async_trait::async_trait;
use posthaste::sink::chain::Chain;
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Sink, Verdict};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Publishes to Redis Streams.
#[derive(Debug)]
pub struct RedisSink {
    pub(super) config: Arc<RedisConfig>,
    pub(super) servers: Servers,
    chain: Chain,
    window: Semaphore,
}

impl RedisSink {
    /// Checks the configuration and begins to connect. A server that is down is no error.
    pub fn start(config: &RedisConfig, name: &str) -> Result<Self, BuildError> {
        let topology = config.check()?;
        let config = Arc::new(config.clone());
        Ok(Self {
            servers: client::connect(&config, topology, name),
            chain: Chain::default(),
            window: Semaphore::new(config.options.max_in_flight),
            config,
        })
    }
}

#[async_trait]
impl Sink for RedisSink {
    fn capabilities(&self) -> Capabilities {
        let session = if let Servers::One(link) = &self.servers { link.current() } else { None };
        let payload_bytes_max = session.and_then(|session| session.bulk_bytes_max);
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        // This stands before the first wait, so that calls keep the order in which they were begun.
        let flight = Flight::new(messages, self.config.options.delivery_timeout())
            .in_turns(self.chain.enter(messages))
            .in_window(&self.window);
        let mut requests = Requests::new(self, messages, flight.connect_wait());
        flight.run(&mut requests).await
    }

    async fn close(&self) {
        self.servers.close().await;
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(&self.config, &self.servers, destinations).await
    }
}
