//! The sink: its parts, and a call.

use super::config::{HttpConfig, Words};
use super::flight::Flight;
use super::guard::{Guard, Lookup, System};
use super::hosts::Hosts;
use super::kit::Keeper;
use super::verdict::Statuses;
use super::{address, examine};
use crate::BuildError;
use async_trait::async_trait;
use posthaste::sink::chain::Chain;
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Sink, Verdict};
use std::sync::Arc;

/// Posts to webhooks.
#[derive(Debug)]
pub struct HttpSink {
    pub(super) config: HttpConfig,
    pub(super) addresses: address::Addresses,
    pub(super) guard: Arc<Guard>,
    pub(super) keeper: Keeper,
    pub(super) statuses: Arc<Statuses>,
    pub(super) hosts: Hosts,
    chain: Chain,
}

impl HttpSink {
    /// Checks the configuration. Connections are made when there is something to send.
    pub fn start(config: &HttpConfig, name: &str) -> Result<Self, BuildError> {
        Self::with_lookup(config, name, Arc::new(System::default()))
    }

    pub(super) fn with_lookup(
        config: &HttpConfig,
        name: &str,
        lookup: Arc<dyn Lookup>,
    ) -> Result<Self, BuildError> {
        let Words { addresses, guard, statuses } = config.words()?;
        let guard = Arc::new(guard);
        Ok(Self {
            keeper: Keeper::start(config, Arc::clone(&guard), lookup, name)?,
            addresses,
            guard,
            statuses: Arc::new(statuses),
            chain: Chain::default(),
            hosts: Hosts::new(config.max_in_flight_per_host, config.options.max_in_flight),
            config: config.clone(),
        })
    }
}

#[async_trait]
impl Sink for HttpSink {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        // Before the first wait: calls keep the order in which they were begun.
        let call = self.chain.enter(messages);
        let kit = match self.keeper.kit() {
            Ok(kit) => kit,
            Err(verdict) => return vec![verdict; messages.len()],
        };
        let mut flight = Flight::new(self, messages, call, kit);
        flight.fly().await;
        flight.verdicts()
    }

    async fn close(&self) {
        self.keeper.close();
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(self, destinations).await
    }
}

#[cfg(test)]
mod tests;
