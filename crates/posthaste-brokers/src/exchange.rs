//! One question over HTTP: JSON APIs that are asked a few times in a minute.
//!
//! Each question has a connection of its own, so it either was never sent, or was sent once, and the caller
//! knows which. The client of the HTTP sink was refused for this: its pools, its bounds for each host and its
//! guard against private addresses are about endpoints of strangers, and these are the operator's own.

use crate::address::Address;
use crate::dial::{self, tls_error};
use crate::options::Options;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: StatusCode,
    pub(crate) body: Vec<u8>,
}

pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A path behind a host, as the front of others: without its last slash. `None`: it is no path.
pub(crate) fn path_prefix(path: &str) -> Option<String> {
    let prefix = path.trim_end_matches('/');
    let is_path = prefix.is_ascii() && !prefix.contains([' ', '"', '<', '>', '\\', '^', '`', '{', '|', '}']);
    is_path.then(|| if prefix.is_empty() { String::new() } else { format!("/{prefix}") })
}

/// The header of a login.
pub(crate) fn basic_login(user: &str, password: &str) -> Result<HeaderValue, String> {
    let login = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
    let mut login = HeaderValue::try_from(login).map_err(|error| error.to_string())?;
    login.set_sensitive(true);
    Ok(login)
}

/// A connection, with TLS where the address asks for it. Whoever calls this bounds its time.
pub(crate) async fn connect(at: &Address, options: &Options) -> Result<Box<dyn ByteStream>, String> {
    let files = options.tls();
    let broken = |error: io::Error| match tls_error(&error) {
        Some(tls) => format!("{at}: no TLS connection: {tls} ({})", files.in_words()),
        None => format!("{at}: {error}"),
    };
    let tcp = dial::to_host(&at.host, at.port).await.map_err(broken)?;
    if !at.tls {
        return Ok(Box::new(tcp));
    }
    let config = files.client_config().map_err(|error| error.to_string())?;
    let name = ServerName::try_from(at.host.clone()).map_err(|error| format!("{at}: {error}"))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.map_err(broken)?;
    Ok(Box::new(stream))
}

/// Sends a request and reads the whole answer, of so many bytes at most.
pub(crate) async fn exchange(
    stream: Box<dyn ByteStream>,
    request: Request<String>,
    bytes_max: usize,
) -> Result<HttpReply, String> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| in_words(&error))?;
    let mut answer = pin!(async {
        let response = sender.send_request(request).await.map_err(|error| in_words(&error))?;
        let status = response.status();
        Ok(HttpReply { status, body: read(response.into_body(), bytes_max).await? })
    });
    // Whoever waits for the answer drives the connection.
    let mut connection = Some(Box::pin(connection));
    poll_fn(|context| {
        connection.take_if(|connection| connection.as_mut().poll(context).is_ready());
        answer.as_mut().poll(context)
    })
    .await
}

async fn read(mut body: Incoming, bytes_max: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let data = frame.map_err(|error| in_words(&error))?.into_data().unwrap_or_default();
        if bytes.len() + data.len() > bytes_max {
            return Err(format!("an answer of more than {} MiB", bytes_max >> 20));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// hyper's own words leave out the cause.
fn in_words(error: &hyper::Error) -> String {
    let (mut words, mut next) = (error.to_string(), std::error::Error::source(error));
    while let Some(source) = next {
        words = format!("{words}: {source}");
        next = source.source();
    }
    words
}
