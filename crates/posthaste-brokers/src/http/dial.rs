//! Making a connection: name, address, TCP, TLS.
//!
//! Whatever is dialled was admitted by the guard a moment before, in this file, and by nothing else: names and addresses
//! that stand in a URL come through the same door ([`Guarded::admitted`]).
//!
//! A host may have several addresses, and some of them may be dead (IPv6 that leads nowhere is the usual case). So the
//! families take turns, and an address that has not answered after a moment gets company: the first connection wins, as
//! RFC 8305 advises.

use super::guard::{Guarded, literal};
use super::link::{Link, Stream};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use url::Url;

/// How long an address is tried alone.
const STAGGER: Duration = Duration::from_millis(250);

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
        let socket = first(in_turns(addresses, target.port)).await?;
        // A request is written in one piece: waiting for more of it would only be waiting.
        socket.set_nodelay(true)?;
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

/// The addresses, families in turns, beginning with the resolver's first choice.
fn in_turns(addresses: Vec<IpAddr>, port: u16) -> Vec<SocketAddr> {
    let first_is_v4 = addresses.first().is_some_and(IpAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv4() == first_is_v4);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut turns = Vec::new();
    loop {
        let before = turns.len();
        turns.extend(first.next().into_iter().chain(second.next()).map(|ip| SocketAddr::new(ip, port)));
        if turns.len() == before {
            return turns;
        }
    }
}

/// The first connection that is made.
async fn first(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let (mut waiting, mut tries) = (addresses.into_iter(), FuturesUnordered::new());
    let mut last = io::Error::other("there is no address");
    loop {
        match waiting.next() {
            Some(address) => tries.push(TcpStream::connect(address)),
            None if tries.is_empty() => return Err(last),
            None => {}
        }
        tokio::select! {
            Some(tried) = tries.next() => match tried {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            },
            () = sleep(STAGGER), if waiting.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn families_take_turns() {
        let addresses = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1"].map(ip).to_vec();
        let expected =
            ["[2001:db8::1]:1", "192.0.2.1:1", "[2001:db8::2]:1", "[2001:db8::3]:1"].map(|a| a.parse());
        assert_eq!(in_turns(addresses, 1), expected.map(|address| address.expect("an address")));
        assert!(in_turns(Vec::new(), 1).is_empty());
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_passed_over() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (good, closed) = (listener.local_addr().expect("bound"), TcpListener::bind("127.0.0.1:0").await);
        let bad = closed.and_then(|listener| listener.local_addr()).expect("a port that is closed again");
        assert_eq!(first(vec![bad, good]).await.expect("connected").peer_addr().expect("a peer"), good);
        let refused = first(vec![bad]).await.expect_err("nobody there");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
