//! A connection to RabbitMQ by AMQP 0-9-1, as far as a publisher needs it. It knows nothing of events and
//! verdicts.
//!
//! [`connect`] dials, logs in and gives a [`Connection`]. Whoever asked for it polls
//! [`serve`](Connection::serve) and decides what comes after its end, because a connection never dials again
//! by itself. Calls use its [`Session`].
//!
//! `address` is where a broker is; `transport` the socket and TLS; `frames` the syntax of AMQP; `handshake`
//! how a connection begins; `connection` the task that reads and writes; `session` what calls see of it;
//! `table` and `channel` what is under way on it; `answer` and `failure` what comes of that.
//!
//! # Why it is our own
//!
//! The usual client, lapin, gives a returned message to whichever confirmation comes next. With two messages
//! in flight the lost one counts as delivered, and the one that arrived counts as lost. A test fails when
//! this is no longer true. lapin also writes returned messages with their payload to the log, does not show
//! the server's version, and cannot take back what a blocked connection holds.
//!
//! Its codec alone, the crate amq-protocol, was refused too. It brings 40 crates that this sink does not need
//! (it has 63), among them a TCP connector and a URL parser with Unicode's tables, in place of the 450 lines
//! of `frames`. It also copies every text and every returned body, where a publisher wants two numbers of a
//! confirmation. The parser in `frames` is tested by properties and with garbage.

mod address;
mod answer;
mod channel;
mod connection;
mod failure;
mod frames;
mod handshake;
mod session;
mod table;
mod transport;

pub(crate) use address::Server;
pub(crate) use answer::{
    ACCESS_REFUSED, CONTENT_TOO_LARGE, Close, NOT_FOUND, Note, PRECONDITION_FAILED, PublishOutcome,
};
pub(crate) use connection::Connection;
pub(crate) use frames::{Properties, SHORT_MAX, header_frame_size, put_field};
pub(crate) use session::{Registration, Session};
pub(crate) use table::{Publish, Question};

use crate::dial;
use crate::options::Options;
pub(crate) use handshake::SaslLogin;
use handshake::{HandshakeError, identity, shake_hands};
use posthaste::sink::Failure;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
pub(crate) use transport::ByteStream;
use transport::{Tls, Transport};

/// The time for name, TCP, TLS and login together. With the longest pause between two tries we are back 5 s
/// after an outage.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Our side of a connection: login, TLS and what we ask of the broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectOptions<'a> {
    /// Login and TLS. Their files are read for each connection.
    pub(crate) options: &'a Options,
    pub(crate) heartbeat_secs: u16,
    /// Our name in the broker's list of connections.
    pub(crate) name: &'a str,
}

/// Opens a connection, or says why there is none.
pub(crate) async fn connect(server: &Server, client: ConnectOptions<'_>) -> Result<Connection, Failure> {
    let in_time = timeout(CONNECT_TIMEOUT, open(server, client)).await;
    in_time.unwrap_or_else(|_| {
        let seconds = CONNECT_TIMEOUT.as_secs();
        Err(failure::unreachable(format!("{server}: no connection within {seconds} s")))
    })
}

async fn open(server: &Server, client: ConnectOptions<'_>) -> Result<Connection, Failure> {
    let (name, files) = (server.to_string(), client.options.tls().in_words());
    let broken = |error: io::Error| failure::connect(&error, &name, &files);
    let tls = tls(server, client.options)?;
    let login = SaslLogin::read(client.options).map_err(|error| failure::config(&error))?;
    let tcp = dial::to_host(&server.address.host, server.address.port).await.map_err(broken)?;
    let mut transport = Transport::open(tcp, tls).await.map_err(broken)?;
    let identity = identity(client.options);
    let agreed = shake_hands(&mut transport, &server.vhost, &login, client).await;
    let terms = agreed.map_err(|refusal| match refusal {
        HandshakeError::Unheard(error) if server.address.tls => {
            failure::hung_up_after_tls(&error, &name, &files)
        }
        HandshakeError::Broken(error) | HandshakeError::Unheard(error) => broken(error),
        HandshakeError::Closed(close) => failure::refused(&close, &name, &identity),
        HandshakeError::Said(code, text) => Failure::of_sink(code, format!("{server}: {text}")),
    })?;
    Ok(Connection::new(Session::new(terms, identity), transport))
}

/// The bytes of a connection, for a client that speaks AMQP itself.
pub(crate) async fn dial(server: &Server, options: &Options) -> Result<Box<dyn ByteStream>, Failure> {
    let broken = |error: io::Error| failure::connect(&error, &server.to_string(), &options.tls().in_words());
    let tls = tls(server, options)?;
    let tcp = dial::to_host(&server.address.host, server.address.port).await.map_err(broken)?;
    transport::secure(tcp, tls).await.map_err(broken)
}

fn tls(server: &Server, options: &Options) -> Result<Option<Tls>, Failure> {
    if !server.address.tls {
        return Ok(None);
    }
    let config = options.tls().client_config().map_err(|error| failure::config(&error))?;
    let name = ServerName::try_from(server.address.host.clone());
    let name = name.map_err(|error| failure::tls(format!("{server}: {error}")))?;
    Ok(Some(Tls { config: Arc::new(config), name }))
}
