//! The sink itself: the way to the broker, the window, the chain, and a flight for each call.

use super::flight::Flight;
use super::link::{self, Link};
use super::verdict::Silence;
use super::{NatsConfig, examine};
use crate::BuildError;
use async_trait::async_trait;
use posthaste::sink::chain::Chain;
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Sink, Verdict};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// How long a call waits for a connection before it gives its messages back. Longer than a reconnect
/// takes, short enough for an outage to be noticed.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// The last part of the delivery timeout, spent on finding out whether the server is still there.
const PING_WAIT_MAX: Duration = Duration::from_millis(500);

/// Publishes to NATS JetStream.
#[derive(Debug)]
pub struct NatsSink {
    config: NatsConfig,
    link: Link,
    chain: Chain,
    window: Semaphore,
}

impl NatsSink {
    /// Checks the configuration and begins to connect. A server that is down is no error.
    pub fn start(config: &NatsConfig, name: &str) -> Result<Self, BuildError> {
        let servers = config.check()?;
        Ok(Self {
            link: link::start(config.clone(), servers, name),
            chain: Chain::default(),
            window: Semaphore::new(config.options.max_in_flight),
            config: config.clone(),
        })
    }
}

#[async_trait]
impl Sink for NatsSink {
    fn capabilities(&self) -> Capabilities {
        // The server counts headers too: what is larger than this is refused for certain.
        let payload_bytes_max = self.link.current().and_then(|session| {
            let info = session.info();
            info.bytes_max().filter(|_| !info.is_hearsay)
        });
        Capabilities { ordering: Ordering::Overlap, dedupes: true, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let (started, patience) = (Instant::now(), self.config.options.delivery_timeout());
        // Before the first wait: calls keep the order in which they were begun.
        let call = self.chain.enter(messages);
        let session = match self.link.session(CONNECT_WAIT.min(patience / 2)).await {
            Ok(session) => session,
            Err(failure) => return vec![Verdict::Retry(failure); messages.len()],
        };
        let (last_call, deadline) = (started + patience / 2, started + patience);
        let mut flight = Flight::new(messages, call, session.register(), &self.window, last_call);
        let ping_wait = PING_WAIT_MAX.min(patience / 4);
        for until in [last_call, deadline - ping_wait] {
            // In time or not: what is left says.
            let _ = timeout_at(until, flight.fly()).await;
        }
        if flight.is_open() {
            let session = Arc::clone(flight.session());
            let answers = timeout_at(deadline, flight.fly());
            let (alive, _) = tokio::join!(session.answers_ping(ping_wait), answers);
            flight.read_notes();
            let after_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            flight.give_up(&Silence::Timeout { after_ms, alive });
        }
        flight.verdicts()
    }

    async fn close(&self) {
        self.link.close().await;
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(&self.config, &self.link, destinations).await
    }

    async fn dedup_window(&self, destination: &str) -> Option<Duration> {
        examine::dedup_window(&self.link, destination).await
    }
}
