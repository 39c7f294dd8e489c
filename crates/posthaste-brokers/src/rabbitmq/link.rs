//! Dialling, and saying goodbye. A [`Session`] is one connection; [`crate::link`] keeps one at a time.

use super::greet::{FAREWELL, Refusal, greet};
use super::session::{Session, serve};
use super::transport::Transport;
use super::wire::{self, Heard};
use super::{RabbitmqConfig, Server, verdict};
use crate::dial;
use crate::link::{Dial, Ended, Port};
use async_trait::async_trait;
use posthaste::sink::{Failure, Scope};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// For name, TCP, TLS and login together. With the longest pause between two tries this leaves 5 s for
/// being back after an outage.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The way to the broker.
pub(super) type Link = crate::link::Link<Session>;

/// Begins to dial.
pub(super) fn start(config: RabbitmqConfig, servers: Vec<Server>, name: &str) -> Link {
    Link::start("rabbitmq", Scope::Sink, name.into(), Dialler { config, servers })
}

struct Dialler {
    config: RabbitmqConfig,
    servers: Vec<Server>,
}

#[async_trait]
impl Dial for Dialler {
    type Server = Server;
    type Session = Session;

    fn servers(&self) -> &[Server] {
        &self.servers
    }

    async fn live_through(&self, server: &Server, port: &Port<Session>) -> Ended {
        let dialled = port.unless_closed(timeout(CONNECT_TIMEOUT, self.dial(server, port.sink()))).await;
        let (session, mut transport) = match dialled {
            Some(Ok(Ok(opened))) => opened,
            Some(Ok(Err(failure))) => return Ended::NeverBegan(failure),
            Some(Err(_)) => {
                let text = format!("{server}: no connection within {} s", CONNECT_TIMEOUT.as_secs());
                return Ended::NeverBegan(Failure::of_sink("rabbitmq.unreachable", text));
            }
            None => return Ended::NeverBegan(port.closed()),
        };
        let version = &session.terms().server.version;
        tracing::info!(sink = port.sink(), server = %server, version, "connected");
        port.up(&session);
        let served = port.unless_closed(serve(&session, &mut transport)).await;
        let failure = served.clone().unwrap_or_else(|| port.closed());
        session.end(&failure.message);
        if served.is_none() {
            say_goodbye(&mut transport).await;
        }
        Ended::Lost(failure)
    }
}

impl Dialler {
    async fn dial(&self, server: &Server, sink: &str) -> Result<(Arc<Session>, Transport), Failure> {
        let files = self.config.options.tls().in_words();
        let failure = |error: io::Error| verdict::connect_failure(&error, &server.to_string(), &files);
        let tls = self.tls(server)?;
        let login = self.config.login().map_err(|error| config_failure(&error))?;
        let tcp = dial::to_host(&server.address.host, server.address.port).await.map_err(failure)?;
        let mut transport = Transport::new(tcp, tls);
        transport.shake_hands().await.map_err(failure)?;
        let greeted = greet(&mut transport, server, &login, &format!("posthaste {sink}")).await;
        let terms = greeted.map_err(|refusal| match refusal {
            Refusal::Unheard(error) if server.address.tls => {
                verdict::hung_up_after_tls(&error, &server.to_string(), &files)
            }
            Refusal::Broken(error) | Refusal::Unheard(error) => failure(error),
            Refusal::Closed(close) => {
                verdict::refused_connection(&close, &server.to_string(), &self.config.identity())
            }
            Refusal::Said(code, text) => Failure::of_sink(code, format!("{server}: {text}")),
        })?;
        Ok((Session::new(terms, self.config.identity()), transport))
    }

    fn tls(&self, server: &Server) -> Result<Option<ClientConnection>, Failure> {
        if !server.address.tls {
            return Ok(None);
        }
        let config = self.config.options.tls().client_config().map_err(|error| config_failure(&error))?;
        let bad = |why: String| Failure::of_sink("rabbitmq.tls", format!("{server}: {why}"));
        let name =
            ServerName::try_from(server.address.host.clone()).map_err(|error| bad(error.to_string()))?;
        ClientConnection::new(Arc::new(config), name).map(Some).map_err(|error| bad(error.to_string()))
    }
}

fn config_failure(error: &crate::BuildError) -> Failure {
    Failure::of_sink("rabbitmq.config", error.to_string())
}

/// So that the broker's log does not complain of a client that vanished.
async fn say_goodbye(transport: &mut Transport) {
    wire::connection_close(&mut transport.out);
    let goodbye = async {
        transport.flush().await?;
        while transport.converse().await?.1 != Heard::ConnectionCloseOk {}
        io::Result::Ok(())
    };
    // A broker that does not answer does not keep us.
    let _ = timeout(FAREWELL, goodbye).await;
}
