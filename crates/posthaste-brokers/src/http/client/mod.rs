//! The HTTP client: which addresses are connected to, connections that are used again, and how many a host
//! gets.
//!
//! It knows requests and responses, and nothing of messages, verdicts or the relay. hyper speaks HTTP/1.1 and
//! HTTP/2. Our part is what a library cannot decide: which addresses are dialled ([`guard`]), through which
//! proxy ([`proxy`]), and how much a host may take of us ([`hosts`], [`pool`]). reqwest and hyper-util's pool
//! were refused, because they hide the address that is connected to, and whether a request has left.

pub(crate) mod connection;
pub(crate) mod dial;
pub(crate) mod endpoint;
pub(crate) mod guard;
pub(crate) mod hosts;
pub(crate) mod pool;
pub(crate) mod proxy;
pub(crate) mod streams;
pub(crate) mod watched;

use crate::BuildError;
use crate::tls::Files;
use bytes::Bytes;
use dial::Dialler;
use guard::Guarded;
use hyper::header::HeaderMap;
use pool::Pool;
use proxy::Proxies;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// The time for name, TCP, proxy and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// A `POST`: all its headers, `Host` included, and its body. The endpoint says where it goes.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

/// Makes connections, and keeps those that wait for their next request.
pub(crate) struct Client {
    pub(crate) dialler: Dialler,
    pub(crate) pool: Arc<Pool>,
}

impl Client {
    /// Reads the files of TLS.
    pub(crate) fn new(
        files: Files<'_>,
        resolver: Guarded,
        proxies: Proxies,
        patience: Duration,
        connections_max: usize,
    ) -> Result<Self, BuildError> {
        let mut tls = files.client_config()?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let patience = CONNECT_TIMEOUT.min(patience / 2);
        let dialler = Dialler { resolver, proxies, tls: Arc::new(tls), patience };
        Ok(Self { dialler, pool: Pool::new(connections_max) })
    }
}
