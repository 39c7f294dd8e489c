//! The sinks of a process: built once, shared by its outboxes, closed at the very end.
//!
//! A relay closes its sinks when it has drained. Thirty outboxes may share one connection to a broker, and
//! the first one to finish must not close it under the others: what a relay gets is a share whose `close`
//! does nothing.

use crate::config::{Config, ConfigError};
use async_trait::async_trait;
use posthaste::sink::{Capabilities, Finding, Message, Sink, Verdict, Vetted};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Sinks by name.
pub(crate) struct Sinks(BTreeMap<Arc<str>, Arc<dyn Sink>>);

impl Sinks {
    /// Builds every sink of the configuration. No broker is needed for it.
    pub(crate) async fn build(config: &Config) -> Result<Self, ConfigError> {
        let mut sinks = BTreeMap::new();
        for setting in &config.sinks {
            let name = Arc::clone(&setting.name);
            let sink = setting.config.build(&name).await;
            let sink = sink.map_err(|error| ConfigError::new(format!("sink `{name}`: {error}")))?;
            let sink: Arc<dyn Sink> = if setting.durable { Arc::new(Vetted::new(sink)) } else { sink };
            sinks.insert(name, sink);
        }
        Ok(Self(sinks))
    }

    /// A share of a sink.
    pub(crate) fn share(&self, name: &str) -> Option<Arc<dyn Sink>> {
        let sink = Arc::clone(self.0.get(name)?);
        Some(Arc::new(Share(sink)))
    }

    /// Closes all of them.
    pub(crate) async fn close(&self) {
        for sink in self.0.values() {
            sink.close().await;
        }
    }
}

struct Share(Arc<dyn Sink>);

#[async_trait]
impl Sink for Share {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        self.0.publish(messages).await
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        self.0.examine(destinations).await
    }

    async fn dedup_window(&self, destination: &str) -> Option<Duration> {
        self.0.dedup_window(destination).await
    }
}
