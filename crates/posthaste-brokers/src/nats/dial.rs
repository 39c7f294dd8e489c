//! One connection: name, TCP, the server's greeting, TLS, login, inbox, and the first answer.
//!
//! Everything that can be wrong with it is known before the first event: the files (read anew each time), the
//! certificate, the login, the right to hear answers. The server speaks first, in the clear, and says whether it wants
//! TLS; then TLS begins on the same connection. What it sent before that and we have not read is somebody else's: it is
//! refused, not taken for the server's word under TLS.
//!
//! Login, subscription and a ping leave together. A server that refuses one of them says so before it answers the ping.

use super::NatsConfig;
use super::frame::{Frame, Reader};
use super::login::Login;
use super::session::Session;
use super::wire::Carrier;
use crate::address::Address;
use posthaste::sink::Failure;
use serde::Deserialize;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use uuid::Uuid;

/// For TCP, TLS and login together, for each address of a name. With the longest pause between two tries this leaves
/// 5 s for being back after an outage.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For the name and all of its addresses.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, with or without TLS.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// What a server says of itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Info {
    pub(super) server_name: String,
    pub(super) version: String,
    pub(super) client_ip: String,
    pub(super) jetstream: bool,
    pub(super) tls_required: bool,
    tls_available: bool,
    headers: bool,
    nonce: String,
    max_payload: i64,
    /// It is about to stop, and asks its clients to go.
    #[serde(rename = "ldm")]
    pub(super) lame_duck: bool,
    /// Said before TLS, so perhaps by somebody in between.
    #[serde(skip)]
    pub(super) is_hearsay: bool,
}

impl Info {
    pub(super) fn read(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// Headers and payload of a message together, if the server has a limit.
    pub(super) fn bytes_max(&self) -> Option<usize> {
        usize::try_from(self.max_payload).ok().filter(|bytes| *bytes > 0)
    }
}

/// Opens a session with a server, or says why there is none.
pub(super) async fn open(
    config: &NatsConfig,
    server: &Address,
    sink: &str,
) -> Result<(Arc<Session>, Carrier), Failure> {
    let unreadable = |error: crate::BuildError| Failure::of_sink("nats.config", error.to_string());
    let login = Login::read(config).map_err(unreadable)?;
    let tls = Arc::new(config.options.tls().client_config().map_err(unreadable)?);
    let call = DialledBy { config, server, login: &login, tls, name: format!("posthaste {sink}") };
    let end = Instant::now() + DIAL_TIMEOUT;
    let Ok(found) = timeout_at(end, lookup_host((server.host.as_str(), server.port))).await else {
        return Err(call.unreachable("no address in time"));
    };
    call.try_addresses(found.map_err(|error| call.unreachable(error))?, end).await
}

struct DialledBy<'a> {
    config: &'a NatsConfig,
    server: &'a Address,
    login: &'a Login,
    tls: Arc<ClientConfig>,
    name: String,
}

impl DialledBy<'_> {
    /// A name may stand for several servers, and one of them may have an old certificate or an old list of users.
    async fn try_addresses(
        &self,
        addresses: impl Iterator<Item = SocketAddr>,
        end: Instant,
    ) -> Result<(Arc<Session>, Carrier), Failure> {
        let mut failure = self.unreachable("the name has no address");
        for address in addresses {
            let begun = Instant::now();
            let why = match timeout_at(end.min(begun + CONNECT_TIMEOUT), self.connect(address)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(why)) => why,
                Err(_) => self.unreachable("no connection in time"),
            };
            // A refusal says more than silence.
            if failure.code == "nats.unreachable" {
                failure = why;
            }
            if Instant::now() >= end {
                break;
            }
        }
        Err(failure)
    }

    async fn connect(&self, address: SocketAddr) -> Result<(Arc<Session>, Carrier), Failure> {
        let mut tcp = TcpStream::connect(address).await.map_err(|error| self.unreachable(error))?;
        tcp.set_nodelay(true).map_err(|error| self.unreachable(error))?;
        let mut reader = Reader::default();
        let info = self.hear(&mut tcp, &mut reader, |frame| self.greeting(&frame)).await??;
        if !info.headers {
            return Err(
                self.unreachable("messages have no headers there; NATS 2.2 is the oldest that knows them")
            );
        }
        if !self.wants_tls() && !info.tls_required {
            return self.log_in(Box::new(tcp), reader, info).await;
        }
        if !info.tls_required && !info.tls_available {
            return Err(self.no_tls("the server offers none"));
        }
        if !reader.is_empty() {
            return Err(self.no_tls("the server talks on before the handshake"));
        }
        let server = ServerName::try_from(self.server.host.clone()).map_err(|error| self.no_tls(error))?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(server, tcp).await;
        let stream = stream.map_err(|error| self.no_tls(tls_words(&error).unwrap_or(error.to_string())))?;
        self.log_in(Box::new(stream), reader, Info { is_hearsay: true, ..info }).await
    }

    fn wants_tls(&self) -> bool {
        self.server.tls || self.config.options.wants_tls()
    }

    async fn log_in(
        &self,
        mut stream: Box<dyn Transport>,
        mut reader: Reader,
        info: Info,
    ) -> Result<(Arc<Session>, Carrier), Failure> {
        let inbox = format!("{}.{}.", self.config.inbox_prefix, &Uuid::now_v7().simple().to_string()[16..]);
        let mut bytes = Vec::new();
        let written = self.login.write_connect(&self.name, &info.nonce, self.wants_tls(), &mut bytes);
        written.map_err(|why| self.refused(&why))?;
        bytes.extend_from_slice(format!("SUB {inbox}* 1\r\nPING\r\n").as_bytes());
        // A server that does not like us may have hung up; what it said before is still to be read.
        let written = stream.write_all(&bytes).await;
        let written = if written.is_ok() { stream.flush().await } else { written };
        let session = Session::new(inbox, self.config.identity(), info);
        let judged = self.hear(&mut stream, &mut reader, |frame| self.judgement(&frame, &session)).await;
        judged??;
        written.map_err(|error| self.broken(&error))?;
        if session.info().lame_duck {
            return Err(self.unreachable("the server is about to stop (lame duck mode)"));
        }
        let carrier = Carrier::new(Arc::clone(&session), stream, reader, self.server.to_string());
        Ok((session, carrier))
    }

    /// Reads until a frame says something.
    async fn hear<T>(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        reader: &mut Reader,
        mut listen: impl FnMut(Frame<'_>) -> Option<T>,
    ) -> Result<T, Failure> {
        loop {
            while let Some(frame) = reader.next().map_err(|strange| self.unreachable(strange))? {
                if let Some(heard) = listen(frame) {
                    return Ok(heard);
                }
            }
            match stream.read(reader.room()).await.map_err(|error| self.broken(&error))? {
                0 => return Err(self.unreachable("the server closed the connection")),
                bytes => reader.filled(bytes),
            }
        }
    }

    fn greeting(&self, frame: &Frame<'_>) -> Option<Result<Info, Failure>> {
        match frame {
            Frame::Info(json) => Some(Info::read(json).ok_or_else(|| self.unreachable("a strange greeting"))),
            Frame::Error(words) => Some(Err(self.complaint(words))),
            _ => Some(Err(self.unreachable("this is no NATS server"))),
        }
    }

    fn judgement(&self, frame: &Frame<'_>, session: &Session) -> Option<Result<(), Failure>> {
        match frame {
            Frame::Pong => Some(Ok(())),
            Frame::Error(words) => {
                Some(Err(session.complain(words).unwrap_or_else(|| self.complaint(words))))
            }
            Frame::Info(json) => {
                Info::read(json).into_iter().for_each(|info| session.learn(info));
                None
            }
            _ => None,
        }
    }

    fn complaint(&self, words: &str) -> Failure {
        if is_refusal(words) {
            return self.refused(words);
        }
        if words.contains("TLS") { self.no_tls(words) } else { self.unreachable(words) }
    }

    fn refused(&self, words: &str) -> Failure {
        Failure::of_sink("nats.auth", format!("{} refuses {}: {words}", self.server, self.config.identity()))
    }

    fn broken(&self, error: &io::Error) -> Failure {
        match tls_words(error) {
            Some(words) => self.no_tls(words),
            None => self.unreachable(error),
        }
    }

    fn no_tls(&self, why: impl std::fmt::Display) -> Failure {
        Failure::of_sink("nats.tls", format!("{}: no TLS connection: {why}", self.server))
    }

    fn unreachable(&self, why: impl std::fmt::Display) -> Failure {
        Failure::of_sink("nats.unreachable", format!("{}: {why}", self.server))
    }
}

/// Whether the server's words are about who we are. Only their beginning counts: others quote a subject, which may hold
/// any word.
pub(super) fn is_refusal(words: &str) -> bool {
    const BEGINNINGS: [&str; 4] =
        ["authorization violation", "authentication ", "user authentication ", "account authentication "];
    let words = words.to_ascii_lowercase();
    BEGINNINGS.iter().any(|beginning| words.starts_with(beginning))
}

/// What TLS says, out of the errors that it is wrapped in.
fn tls_words(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls.to_string());
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

#[cfg(test)]
mod tests;
