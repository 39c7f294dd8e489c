//! Makes a connection: by name, address, TCP and TLS, or through a proxy, with TLS inside.
//!
//! The guard admits each address in this file, a moment before it is dialled. Names, and addresses that stand
//! in a URL, come through the same door ([`Guarded::admitted`]). A proxy looks up the name and connects by
//! itself, so there the proxy has to be the guard.

use super::BoxError;
use super::connection::{BoxedTransport, Connection};
use super::guard::{Guarded, literal};
use super::proxy::Proxies;
use crate::dial;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

/// The host that is to be connected to.
#[derive(Debug, Clone)]
pub(crate) struct DialTarget {
    /// Without brackets.
    pub(crate) host: String,
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) tls: bool,
}

impl DialTarget {
    pub(crate) fn new(url: &Url) -> Self {
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
pub(crate) enum Unreached {
    Late,
    Failed(BoxError),
    /// Nobody is reached through this proxy.
    Proxy(String),
}

impl<E: Into<BoxError>> From<E> for Unreached {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Makes connections.
pub(crate) struct Dialler {
    pub(crate) resolver: Guarded,
    pub(crate) proxies: Proxies,
    pub(crate) tls: Arc<ClientConfig>,
    /// For all steps together.
    pub(crate) patience: Duration,
}

impl Dialler {
    pub(crate) async fn dial(&self, target: &DialTarget) -> Result<Connection, Unreached> {
        let dialled = timeout(self.patience, self.connect(target)).await;
        dialled.unwrap_or(Err(Unreached::Late))
    }

    async fn connect(&self, target: &DialTarget) -> Result<Connection, Unreached> {
        let socket = match self.proxies.of(target) {
            Some(proxy) => proxy.connect(&*self.resolver.lookup, target).await?,
            None => {
                let addresses = self.resolver.admitted(&target.host, target.address).await?;
                dial::to_any(addresses, target.port).await?
            }
        };
        if !target.tls {
            return Ok(Connection::http1(Box::new(socket)).await?);
        }
        let name = ServerName::try_from(target.host.clone())?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, socket).await?;
        let has_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream: BoxedTransport = Box::new(stream);
        Ok(if has_http2 { Connection::http2(stream).await? } else { Connection::http1(stream).await? })
    }
}
