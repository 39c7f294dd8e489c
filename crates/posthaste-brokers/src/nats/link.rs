//! The way to the broker: one session at a time, kept by [`crate::link`].

use super::NatsConfig;
use super::dial;
use super::session::Session;
use super::wire::End;
use crate::address::Address;
use crate::link::{Dial, Ended, Port};
use async_trait::async_trait;
use posthaste::sink::Scope;
use std::time::Duration;
use tokio::time::timeout;

/// For answers that are under way when a server asks us to go. Calls that come meanwhile wait for the next server, so it is
/// shorter than they do.
const GRACE: Duration = Duration::from_millis(500);

/// The way to the broker.
pub(super) type Link = crate::link::Link<Session>;

/// Begins to dial.
pub(super) fn start(config: NatsConfig, servers: Vec<Address>, name: &str) -> Link {
    Link::start("nats", Scope::Sink, name.into(), Dialler { config, servers })
}

struct Dialler {
    config: NatsConfig,
    servers: Vec<Address>,
}

#[async_trait]
impl Dial for Dialler {
    type Server = Address;
    type Session = Session;

    fn servers(&self) -> &[Address] {
        &self.servers
    }

    async fn live_through(&self, server: &Address, port: &Port<Session>) -> Ended {
        let dialled = port.unless_closed(dial::open(&self.config, server, port.sink())).await;
        let (session, mut carrier) = match dialled {
            Some(Ok(opened)) => opened,
            Some(Err(failure)) => return Ended::NeverBegan(self.config.options.tls().name_in(failure)),
            None => return Ended::NeverBegan(port.closed()),
        };
        let version = &session.info().version;
        tracing::info!(sink = port.sink(), server = %server, version, "connected");
        port.up(&session);
        let failure = match port.unless_closed(carrier.run()).await {
            Some(End::Lost(failure)) => failure,
            Some(End::Leaving(failure)) => {
                // No new call comes here from now on.
                port.down(&failure);
                session.leave();
                let _ = port.unless_closed(timeout(GRACE, carrier.run_until_idle())).await;
                failure
            }
            None => port.closed(),
        };
        session.end(&failure.message);
        Ended::Lost(failure)
    }
}
