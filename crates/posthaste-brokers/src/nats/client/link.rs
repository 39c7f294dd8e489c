//! The way to the broker: one session at a time, kept by [`crate::link`].
//!
//! Servers are tried in the order of the configuration, or in an order that is drawn at the start. If the
//! configuration says so, and none of them answers, the other servers that a cluster has told of are tried.

use super::super::{NatsConfig, SHAPE};
use super::connect;
use super::session::{Session, SessionEnd, SessionInbox};
use crate::address::Address;
use crate::link::{Dial, Ended, Port};
use crate::lock::locked;
use async_trait::async_trait;
use posthaste::sink::{Failure, Scope};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The time for the ping that a new session begins with.
const PING_WAIT: Duration = Duration::from_secs(3);
/// The time for answers that are under way when a server asks us to go. New calls wait for the next server
/// meanwhile, so it is shorter than a call's wait for a connection.
const GRACE: Duration = Duration::from_millis(500);
/// Servers that a cluster may tell of. More of them are not remembered.
const DISCOVERED_MAX: usize = 64;

/// The way to the broker.
pub(in crate::nats) type NatsLink = crate::link::Link<Session>;

/// Begins to dial.
pub(in crate::nats) fn start(config: NatsConfig, mut servers: Vec<Address>, name: &str) -> NatsLink {
    if config.shuffle_servers {
        shuffle(&mut servers);
    }
    NatsLink::start(
        "nats",
        Scope::Sink,
        name.into(),
        NatsDialler { config, servers, discovered: Mutex::default() },
    )
}

/// A random order, so that many relays spread over a cluster.
fn shuffle(servers: &mut [Address]) {
    let random = RandomState::new();
    servers.sort_by_cached_key(|server| random.hash_one(server));
}

struct NatsDialler {
    config: NatsConfig,
    servers: Vec<Address>,
    discovered: Mutex<Vec<Address>>,
}

#[async_trait]
impl Dial for NatsDialler {
    type Server = Address;
    type Session = Session;

    fn servers(&self) -> &[Address] {
        &self.servers
    }

    async fn live_through(&self, server: &Address, port: &Port<Session>) -> Ended {
        let ended = self.live_with(server, port).await;
        if matches!(ended, Ended::Lost(_)) || self.servers.last() != Some(server) {
            return ended;
        }
        for server in self.discovered() {
            if let lost @ Ended::Lost(_) = self.live_with(&server, port).await {
                return lost;
            }
        }
        ended
    }
}

impl NatsDialler {
    async fn live_with(&self, server: &Address, port: &Port<Session>) -> Ended {
        let (session, mut inbox) = match port.unless_closed(self.open(server, port.sink())).await {
            Some(Ok(opened)) => opened,
            Some(Err(failure)) => return Ended::NeverBegan(failure),
            None => return Ended::NeverBegan(port.closed()),
        };
        tracing::info!(sink = port.sink(), server = %server, version = session.info.version, "connected");
        port.up(&session);
        let failure = match port.unless_closed(inbox.serve(&session)).await {
            Some(SessionEnd::Lost(failure)) => failure,
            Some(SessionEnd::Leaving(failure)) => {
                // No new call comes here from now on.
                port.down(&failure);
                session.leave();
                let _ = port.unless_closed(inbox.serve_until_idle(&session, GRACE)).await;
                failure
            }
            None => port.closed(),
        };
        session.end(&failure.message);
        Ended::Lost(failure)
    }

    /// Connects, and sends a ping before the first message. The ping shows that answers reach us.
    async fn open(&self, server: &Address, sink: &str) -> Result<(Arc<Session>, SessionInbox), Failure> {
        let unreachable = |why: &str| Failure::of_sink("nats.unreachable", format!("{server}: {why}"));
        let connection = connect(&self.config, server, sink).await?;
        if self.config.discover_servers {
            self.discover(&connection.client.server_info().connect_urls, server);
        }
        let opened = Session::open(connection, server, self.config.identity()).await;
        let (session, mut inbox) = opened.ok_or_else(|| unreachable("closed at once"))?;
        let answers = tokio::select! {
            SessionEnd::Lost(failure) | SessionEnd::Leaving(failure) = inbox.serve(&session) => return Err(failure),
            answers = session.answers_ping(PING_WAIT) => answers,
        };
        if answers { Ok((session, inbox)) } else { Err(unreachable("the server does not answer")) }
    }

    fn discovered(&self) -> Vec<Address> {
        locked(&self.discovered).clone()
    }

    /// Remembers the servers that `teller` told of. They are reached in the same way as it. What is no
    /// address is passed over.
    fn discover(&self, urls: &[String], teller: &Address) {
        let told = urls.iter().filter_map(|url| SHAPE.parse(url).ok());
        let told = told.map(|(address, _)| teller.sibling(&address.host, address.port));
        let news = told.filter(|address| !self.servers.contains(address)).take(DISCOVERED_MAX).collect();
        *locked(&self.discovered) = news;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(urls: &[&str]) -> Vec<Address> {
        urls.iter().map(|url| SHAPE.parse(url).expect("an address").0).collect()
    }

    #[test]
    fn the_order_is_drawn() {
        let listed = servers(&["nats://a", "nats://b", "nats://c"]);
        let mut first = std::collections::HashSet::new();
        for _ in 0..200 {
            let mut drawn = listed.clone();
            shuffle(&mut drawn);
            assert!(listed.iter().all(|server| drawn.contains(server)));
            first.insert(drawn[0].to_string());
        }
        assert_eq!(first.len(), 3);
    }

    #[test]
    fn g7_what_a_server_tells_is_bounded_and_reached_as_it_is() {
        let listed = servers(&["tls://a:1"]);
        let dialler = NatsDialler {
            config: NatsConfig::new("tls://a:1"),
            servers: listed.clone(),
            discovered: Mutex::default(),
        };
        let told = ["a:1", "b:2", "[::1]:3", "", "x y", "u:p@h:1"].map(str::to_owned);
        dialler.discover(&told, &listed[0]);
        assert_eq!(dialler.discovered(), servers(&["tls://b:2", "tls://[::1]:3"]));
        let many: Vec<_> = (0..1_000).map(|n| format!("h{n}:1")).collect();
        dialler.discover(&many, &listed[0]);
        assert_eq!(dialler.discovered().len(), DISCOVERED_MAX);
    }
}
