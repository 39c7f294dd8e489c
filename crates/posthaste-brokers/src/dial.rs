//! Makes TCP connections for every broker whose client leaves that to us.
//!
//! A name may have several addresses, and some of them may be dead (IPv6 that leads nowhere is the usual
//! case). So the two families take turns, and when an address has not answered after a moment, the next one
//! is tried beside it. The first connection wins, as RFC 8305 advises.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::sleep;

/// How long an address is tried alone.
const STAGGER: Duration = Duration::from_millis(250);

/// A connection to a host by its name, or by its address. Whoever calls this bounds its time.
pub(crate) async fn to_host(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await?.map(|address| address.ip()).collect();
    to_any(addresses, port).await
}

/// A connection to one of these addresses. What is written leaves at once, because messages are written in
/// large pieces already.
pub(crate) async fn to_any(addresses: Vec<IpAddr>, port: u16) -> io::Result<TcpStream> {
    let stream = first(in_turns(addresses, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The addresses with the two families in turns, beginning with the resolver's first choice.
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
    let mut last = io::Error::other("the name has no address");
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

/// The error of TLS inside the errors that it is wrapped in.
pub(crate) fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
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

    /// A listener whose backlog is full answers nobody, as an address that leads nowhere.
    #[tokio::test]
    async fn an_address_that_is_silent_gets_company() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let good = listener.local_addr().expect("bound");
        let silent = silent().await;
        let connected = tokio::time::timeout(Duration::from_secs(30), first(vec![silent.1, good])).await;
        let stream = connected.expect("in time").expect("connected");
        assert_eq!(stream.peer_addr().expect("a peer"), good);
    }

    /// A port whose queue of connections is full, and those who fill it.
    async fn silent() -> ((TcpListener, Vec<TcpStream>), SocketAddr) {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        let listener = socket.listen(1).expect("listens");
        let address = listener.local_addr().expect("bound");
        let mut fill = Vec::new();
        while let Ok(Ok(stream)) =
            tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await
        {
            fill.push(stream);
        }
        ((listener, fill), address)
    }
}
