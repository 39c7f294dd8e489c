//! The fault proxy, against a server that echoes.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use posthaste_testkit::services::{Port, Proxy};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// For what must happen. Generous: only a failing test waits that long.
const SOON: Duration = Duration::from_secs(90);
/// For what must not happen. A loopback round trip takes a hundredth of it.
const WHILE: Duration = Duration::from_millis(150);

/// Echoes, and counts what it was sent.
struct Echo {
    addr: SocketAddr,
    received: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let addr = listener.local_addr().expect("an address");
        let (received, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let echo = Self { addr, received: Arc::clone(&received), ended: Arc::clone(&ended) };
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (received, ended) = (Arc::clone(&received), Arc::clone(&ended));
                tokio::spawn(async move {
                    let mut buffer = vec![0; 64 * 1024];
                    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                        received.fetch_add(n as u64, Ordering::SeqCst);
                        if stream.write_all(&buffer[..n]).await.is_err() {
                            break;
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        echo
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }

    async fn until_received(&self, bytes: u64) {
        until(|| self.received() >= bytes).await;
    }
}

async fn until(mut done: impl FnMut() -> bool) {
    let waited = timeout(SOON, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(2)).await; // pace
        }
    });
    waited.await.expect("in time");
}

async fn set_up() -> (Echo, Proxy) {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.expect("a proxy");
    (echo, proxy)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.addr()).await.expect("the proxy accepts")
}

async fn round_trip(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes).await?;
    let mut answer = vec![0; bytes.len()];
    timeout(SOON, stream.read_exact(&mut answer)).await.expect("an answer in time")?;
    assert_eq!(answer, bytes);
    Ok(())
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(WHILE, stream.read_u8()).await.is_err()
}

async fn is_reset(stream: &mut TcpStream) -> bool {
    let read = timeout(SOON, stream.read_u8()).await.expect("an end in time");
    read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

#[tokio::test]
async fn passes_both_ways_and_passes_the_end_on() {
    let (echo, proxy) = set_up().await;
    let mut stream = connect(&proxy).await;
    let megabyte: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
    let (mut from, mut to) = stream.split();
    let mut answer = Vec::new();
    let sending = async {
        to.write_all(&megabyte).await?;
        to.shutdown().await
    };
    let (sent, read) = tokio::join!(sending, from.read_to_end(&mut answer));
    sent.expect("sent");
    read.expect("read to a clean end");
    assert_eq!(answer, megabyte);
    assert_eq!((echo.received(), proxy.accepted()), (1_000_000, 1));
    drop(stream);
    until(|| proxy.open() == 0).await;
}

#[tokio::test]
async fn refuses_new_connections_and_keeps_open_ones() {
    let (_echo, proxy) = set_up().await;
    let mut open = connect(&proxy).await;
    round_trip(&mut open, b"before").await.expect("passes");
    proxy.refuse().await;
    let refused = TcpStream::connect(proxy.addr()).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    round_trip(&mut open, b"still").await.expect("open connections go on");
    proxy.pass().await;
    round_trip(&mut connect(&proxy).await, b"after").await.expect("accepts again");
}

#[tokio::test]
async fn cuts_every_open_connection_once() {
    let (_echo, proxy) = set_up().await;
    let mut used = connect(&proxy).await;
    round_trip(&mut used, b"x").await.expect("passes");
    let mut fresh = connect(&proxy).await; // perhaps still in the kernel's queue
    proxy.cut().await;
    assert_eq!(proxy.open(), 0);
    assert!(is_reset(&mut used).await);
    assert!(is_reset(&mut fresh).await);
    round_trip(&mut connect(&proxy).await, b"again").await.expect("new connections pass");
}

#[tokio::test]
async fn a_black_hole_swallows_bytes_answers_and_ends() {
    let (echo, proxy) = set_up().await;
    let (mut open, mut leaving) = (connect(&proxy).await, connect(&proxy).await);
    round_trip(&mut open, b"12345").await.expect("passes");
    round_trip(&mut leaving, b"12345").await.expect("passes");

    proxy.black_hole().await;
    open.write_all(b"lost").await.expect("taken");
    assert!(is_silent(&mut open).await);
    let mut new = connect(&proxy).await;
    new.write_all(b"lost").await.expect("taken");
    assert!(is_silent(&mut new).await);
    drop(leaving);
    assert!(is_silent(&mut open).await);
    assert_eq!(echo.received(), 10, "nothing of it arrived");
    assert_eq!(echo.ended.load(Ordering::SeqCst), 0, "the server does not know that a client left");

    proxy.pass().await;
    assert!(is_reset(&mut open).await, "a gap is never healed");
    assert!(is_reset(&mut new).await);
    until(|| echo.ended.load(Ordering::SeqCst) == 2).await;
    round_trip(&mut connect(&proxy).await, b"again").await.expect("new connections pass");
}

#[tokio::test]
async fn a_connection_that_was_idle_in_a_black_hole_goes_on() {
    let (_echo, proxy) = set_up().await;
    let mut idle = connect(&proxy).await;
    round_trip(&mut idle, b"before").await.expect("passes");
    proxy.black_hole().await;
    proxy.pass().await;
    round_trip(&mut idle, b"after").await.expect("nothing was lost");
}

#[tokio::test]
async fn half_open_delivers_and_drops_the_answer() {
    let (echo, proxy) = set_up().await;
    let mut open = connect(&proxy).await;
    round_trip(&mut open, b"12345").await.expect("passes");
    proxy.half_open().await;
    open.write_all(b"12345").await.expect("taken");
    let mut new = connect(&proxy).await;
    new.write_all(b"12345").await.expect("taken");
    echo.until_received(15).await;
    assert!(is_silent(&mut open).await);
    assert!(is_silent(&mut new).await);
    proxy.pass().await;
    assert!(is_reset(&mut open).await);
}

#[tokio::test]
async fn delays_each_way_without_narrowing_the_line() {
    let (_echo, proxy) = set_up().await;
    let mut stream = connect(&proxy).await;
    round_trip(&mut stream, b"before").await.expect("passes");
    proxy.delay(Duration::from_millis(100)).await;
    let start = Instant::now();
    // Fifty writes that the network sees as fifty: one after the other they would take ten seconds.
    stream.set_nodelay(true).expect("an option");
    for _ in 0..50 {
        stream.write_all(b"0123456789").await.expect("taken");
        tokio::task::yield_now().await;
    }
    let mut answer = [0; 500];
    timeout(SOON, stream.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?} for two ways of 100 ms");
    assert!(took < Duration::from_secs(7), "{took:?}: the chunks waited for each other");
    proxy.pass().await;
    round_trip(&mut stream, b"after").await.expect("nothing was lost");
}

#[tokio::test]
async fn cuts_after_exactly_so_many_bytes_and_then_passes() {
    let (echo, proxy) = set_up().await;
    let mut stream = connect(&proxy).await;
    round_trip(&mut stream, b"12345").await.expect("passes");
    proxy.cut_after_bytes(7).await;
    round_trip(&mut stream, b"1234").await.expect("four of seven");
    stream.write_all(b"567 and more").await.expect("taken");
    let mut rest = Vec::new();
    let end = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("an end in time");
    assert_eq!(end.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    echo.until_received(12).await;
    round_trip(&mut connect(&proxy).await, b"again").await.expect("new connections pass");
    assert_eq!(echo.received(), 17, "the bytes above the budget never arrived");
}

#[tokio::test]
async fn cuts_an_answer_to_a_text_that_comes_in_parts() {
    let (echo, proxy) = set_up().await;
    let (mut other, mut stream) = (connect(&proxy).await, connect(&proxy).await);
    round_trip(&mut stream, b"a text").await.expect("nobody asked for it yet");
    proxy.cut_answer("a text", 2).await;
    round_trip(&mut other, b"another one").await.expect("it has another text");
    stream.set_nodelay(true).expect("an option");
    round_trip(&mut stream, b"this is a t").await.expect("a part of it");
    round_trip(&mut stream, b"ext").await.expect("the first answer passes");
    let answers = proxy.answers();
    assert_eq!((proxy.aimed_cuts(), answers), (0, 4));
    round_trip(&mut other, b"a text").await.expect("one connection is cut, and it is another");
    stream.write_all(b"obeyed").await.expect("taken");
    assert!(is_reset(&mut stream).await);
    assert_eq!((proxy.aimed_cuts(), proxy.answers()), (1, answers + 1));
    assert_eq!(echo.received(), 6 + 11 + 11 + 3 + 6 + 6, "all of it arrived");
    round_trip(&mut other, b"again").await.expect("it goes on");
    round_trip(&mut connect(&proxy).await, b"new").await.expect("new connections pass");
}

#[tokio::test]
async fn a_target_that_is_not_there_resets_and_may_come_later() {
    let nobody = Port::claim().expect("a port");
    let (proxy, url) =
        Proxy::start_before(&format!("nats://user@{}/x", nobody.addr())).await.expect("a proxy");
    assert_eq!(url, format!("nats://user@{}/x", proxy.addr()));
    // The reset may be quicker than the word that the connection stands.
    match TcpStream::connect(proxy.addr()).await {
        Ok(mut stream) => assert!(is_reset(&mut stream).await),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    proxy.until_accepted(1).await;
    let listener = TcpListener::bind(nobody.addr()).await.expect("the port is free");
    let _client = connect(&proxy).await;
    timeout(SOON, listener.accept()).await.expect("in time").expect("the proxy connects");
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_in_the_test_does_not_stop_the_proxy() {
    let echo = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let proxy = Proxy::start(echo.local_addr().expect("an address")).await.expect("a proxy");
    proxy.delay(Duration::from_millis(50)).await;
    let mut client = std::net::TcpStream::connect(proxy.addr()).expect("accepts");
    std::io::Write::write_all(&mut client, b"x").expect("taken");
    let (mut server, _) = echo.accept().expect("the proxy connects");
    let mut byte = [0];
    std::io::Read::read_exact(&mut server, &mut byte).expect("delivered while the test blocks its runtime");
    assert_eq!(&byte, b"x");
}
