//! Connections to NATS servers, by way of async-nats.
//!
//! Here a connection is opened, as `login` says. A `session` gives each answer to the call that it is for,
//! and `backlog` counts what the client has not written yet. `link` keeps one session at a time. `streams`
//! asks JetStream about its streams.
//!
//! A client lives for one connection here. It could reconnect by itself. But then it would keep what it was
//! given during an outage and send it later, long after the relay has been told that it failed. Whoever wants
//! another connection dials again. A source has nothing to lose by it, and can let [`login::options`]
//! reconnect.
//!
//! Everything that can be wrong with a connection is told in an operator's words, under the code that says
//! where to look: the files (read anew each time), the network, the certificate, the login.

mod answer;
mod backlog;
pub(super) mod link;
mod login;
pub(super) mod session;
pub(super) mod streams;

pub(super) use answer::{ApiError, PublishReply};
use backlog::WriteBacklog;

use super::NatsConfig;
use crate::address::Address;
use crate::dial::tls_error;
use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ReconnectToServer, ServerAddr, ServerError,
};
use posthaste::sink::Failure;
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The time for the name and all of its addresses, which the client tries one after the other.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for TCP, TLS and login together, for each address of a name. With the longest pause between two
/// tries we are back 5 s after an outage.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);
/// Events of the server beside the messages that nobody has read yet. The client waits with the next one, and
/// drops more.
const EVENTS_MAX: usize = 128;

/// A connection.
pub(super) struct Connection {
    pub(super) client: Client,
    /// What the server says beside the messages: errors, and that it is about to stop.
    pub(super) events: mpsc::Receiver<Event>,
    /// Whether TLS began after the server's greeting. If so, the greeting may be somebody else's word.
    pub(super) is_hearsay: bool,
}

/// Connects, or says why not. The client ends with its connection.
pub(super) async fn connect(
    config: &NatsConfig,
    server: &Address,
    name: &str,
) -> Result<Connection, Failure> {
    let options = login::options(config, name);
    let options = options.map_err(|error| Failure::of_sink("nats.config", error.to_string()))?;
    let failed = |why: &str| Failure::of_sink("nats.unreachable", format!("{server}: {why}"));
    let address = address(server).map_err(|error| failed(&error.to_string()))?;
    let (tell, events) = mpsc::channel(EVENTS_MAX);
    let options = options.connection_timeout(address_timeout(server).await);
    let options = hear(single_use(options, &address), tell);
    // The client's future is large.
    let connecting = Box::pin(options.connect(vec![address, nowhere()]));
    let client = match timeout(DIAL_TIMEOUT, connecting).await {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => {
            let failure = failure(&error, server, &config.identity());
            return Err(config.options.tls().name_in(failure));
        }
        Err(_) => return Err(failed("no connection in time")),
    };
    let info = client.server_info();
    if !info.headers {
        return Err(failed("messages have no headers there; NATS 2.2 is the oldest that knows them"));
    }
    if info.lame_duck_mode {
        return Err(failed("the server is about to stop (lame duck mode)"));
    }
    let has_tls = config.wants_tls() || server.tls || info.tls_required;
    let is_hearsay = has_tls && !config.tls_first && !is_websocket(server);
    Ok(Connection { client, events, is_hearsay })
}

/// How long one address of a name may take, so that the last address has its turn.
async fn address_timeout(server: &Address) -> Duration {
    // If the name cannot be found, the client tells so.
    let found = timeout(DIAL_TIMEOUT / 2, lookup_host((server.host.as_str(), server.port))).await;
    let addresses = found.map_or(1, |found| found.map_or(1, Iterator::count)).max(1);
    ADDRESS_TIMEOUT.min(DIAL_TIMEOUT / 2 / u32::try_from(addresses).unwrap_or(u32::MAX))
}

/// Reads the files of the configuration, and forgets them.
pub(super) fn check(config: &NatsConfig) -> Result<(), crate::BuildError> {
    login::options(config, "").map(drop)
}

/// The server in the client's words.
pub(super) fn address(server: &Address) -> io::Result<ServerAddr> {
    server.to_string().parse()
}

/// Whether the connection is a WebSocket. Then TLS comes before everything else, or not at all.
pub(super) fn is_websocket(server: &Address) -> bool {
    server.scheme.starts_with("ws")
}

/// Makes a client that ends with its connection. A client cannot be told not to reconnect: it makes at least
/// one attempt, because the limit counts for the first connection, too. So the attempt after a loss is led to
/// an address where nobody can listen, and the client ends at once.
fn single_use(options: ConnectOptions, server: &ServerAddr) -> ConnectOptions {
    let (server, is_used) = (server.clone(), AtomicBool::new(false));
    options.max_reconnects(1).reconnect_to_server_callback(move |_, _| {
        let addr = if is_used.swap(true, Ordering::Relaxed) { nowhere() } else { server.clone() };
        std::future::ready(Some(ReconnectToServer { addr, delay: Some(Duration::ZERO) }))
    })
}

/// Port 0 can be asked for, but not be connected to.
fn nowhere() -> ServerAddr {
    "nats://127.0.0.1:0".parse().expect("a constant that parses")
}

/// Passes on what the server says beside the messages.
fn hear(options: ConnectOptions, tell: mpsc::Sender<Event>) -> ConnectOptions {
    options.event_callback(move |event| {
        let tell = tell.clone();
        // An error means that nobody listens any more.
        async move { drop(tell.send(event).await) }
    })
}

/// Why there is no connection, in words that tell an operator where to look.
fn failure(error: &ConnectError, server: &Address, identity: &str) -> Failure {
    let words = words(error);
    let is_login =
        matches!(error.kind(), ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication);
    if is_login || is_refusal(&words) {
        return refused(server, identity, &words);
    }
    // This is the last case, because its words are what a server says of TLS in the clear.
    if error.kind() == ConnectErrorKind::Tls || tls_error(error).is_some() || words.contains("TLS") {
        return Failure::of_sink("nats.tls", format!("{server}: no TLS connection: {words}"));
    }
    Failure::of_sink("nats.unreachable", format!("{server}: {words}"))
}

/// The failure when the server refuses our login, before or after the connection was made.
fn refused(server: &Address, identity: &str, words: &str) -> Failure {
    Failure::of_sink("nats.auth", format!("{server} refuses {identity}: {words}"))
}

/// Whether the server's words are about our login. Only their beginning counts, because other words quote a
/// subject, which may hold anything.
fn is_refusal(words: &str) -> bool {
    const BEGINNINGS: [&str; 4] =
        ["authorization violation", "authentication ", "user authentication ", "account authentication "];
    let words = words.to_ascii_lowercase();
    BEGINNINGS.iter().any(|beginning| words.starts_with(beginning))
}

/// The innermost error that says more than "IO error".
fn words(error: &ConnectError) -> String {
    if let Some(tls) = tls_error(error) {
        return tls.to_string();
    }
    let Some(source) = error.source() else { return error.to_string() };
    if let Some(ServerError::Other(words)) = source.downcast_ref() {
        return words.clone();
    }
    if let Some(ServerError::AuthorizationViolation) = source.downcast_ref() {
        return "Authorization Violation".to_owned();
    }
    match source.downcast_ref::<io::Error>().map(io::Error::kind) {
        // The client's parser says this.
        Some(io::ErrorKind::InvalidInput) => format!("something that is not NATS answers ({source})"),
        _ => source.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_complaint_tells_a_refusal() {
        for words in ["Authorization Violation", "User Authentication Expired", "Authentication Timeout"] {
            assert!(is_refusal(words), "{words}");
        }
        for words in ["Permissions Violation for Publish to \"authentication x\"", "Stale Connection", ""] {
            assert!(!is_refusal(words), "{words}");
        }
    }
}
