//! Making a connection: name, address, TCP, TLS.
//!
//! Whatever is dialled was admitted by the guard a moment before, in this file, and by nothing else: names and addresses
//! that stand in a URL come through the same door ([`Guarded::admitted`]).

use super::guard::{Guarded, literal};
use super::link::{Link, Stream};
use crate::dial;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

/// Who is to be connected to.
#[derive(Debug, Clone)]
pub(super) struct Target {
    host: String,
    address: Option<IpAddr>,
    port: u16,
    tls: bool,
}

impl Target {
    pub(super) fn new(url: &Url) -> Self {
        let tls = url.scheme() == "https";
        Self {
            host: url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            address: literal(url),
            port: url.port_or_known_default().unwrap_or(if tls { 443 } else { 80 }),
            tls,
        }
    }
}

/// Why there is no connection. Nothing of a request was sent.
#[derive(Debug)]
pub(super) enum Unreached {
    Late,
    Failed(Box<dyn Error + Send + Sync>),
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Unreached {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Makes connections.
pub(super) struct Dialer {
    pub(super) resolver: Guarded,
    pub(super) tls: Arc<ClientConfig>,
    /// For all steps together.
    pub(super) patience: Duration,
}

impl Dialer {
    pub(super) async fn dial(&self, target: &Target) -> Result<Link, Unreached> {
        let dialled = timeout(self.patience, self.connect(target)).await;
        dialled.unwrap_or(Err(Unreached::Late))
    }

    async fn connect(&self, target: &Target) -> Result<Link, Unreached> {
        let addresses = self.resolver.admitted(&target.host, target.address).await?;
        let socket = dial::to_any(addresses, target.port).await?;
        if !target.tls {
            return Ok(Link::http1(Box::new(socket)));
        }
        let name = ServerName::try_from(target.host.clone())?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, socket).await?;
        let has_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream: Stream = Box::new(stream);
        Ok(if has_http2 { Link::http2(stream).await? } else { Link::http1(stream) })
    }
}
