//! Receivers that answer with something else than HTTP, too much of it, or half of it.
//!
//! By a server that writes bytes: whatever comes, a message has its verdict in time, the memory that an
//! answer can take is bounded, and the next message is delivered.

use super::*;
use posthaste::task::{Task, spawn};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// What comes after the answer's first bytes.
#[derive(Clone, Copy)]
enum Then {
    /// The next request is waited for.
    Keep,
    /// The connection ends.
    Close,
    /// This, again and again, as long as it is read.
    Flood(&'static [u8]),
}

/// Answers the first request as a test wants it, and every other one with 200.
struct Raw {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Bytes that were taken by the other side, or by what lies between.
    written: Arc<AtomicUsize>,
    _task: Task<()>,
}

impl Raw {
    async fn start(first: &'static [u8], then: Then) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let (connections, written) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (count, bytes) = (Arc::clone(&connections), Arc::clone(&written));
        let task = spawn("raw", async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
                let (answer, then) = if is_first { (first, then) } else { (GOOD, Then::Keep) };
                let bytes = Arc::clone(&bytes);
                open.spawn(async move { serve(&mut stream, answer, then, bytes).await });
            }
        });
        Self { addr, connections, written, _task: task }
    }

    async fn sink(&self, delivery_timeout_ms: u64) -> Arc<dyn Sink> {
        let url = format!("http://{}", self.addr);
        build(HttpConfig {
            allow_private: true,
            ..HttpConfig::new(&url).with(|options| options.delivery_timeout_ms = delivery_timeout_ms)
        })
        .await
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve(stream: &mut TcpStream, mut answer: &'static [u8], then: Then, written: Arc<AtomicUsize>) {
    while read_request(stream).await.is_some() {
        if stream.write_all(answer).await.is_err() {
            return;
        }
        match then {
            Then::Keep => answer = GOOD,
            Then::Close => return,
            Then::Flood(more) => {
                while stream.write_all(more).await.is_ok() {
                    written.fetch_add(more.len(), Ordering::SeqCst);
                }
                return;
            }
        }
    }
}

/// Its length with the body, of which the tests here know that it is `{}`.
async fn read_request(stream: &mut TcpStream) -> Option<usize> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n{}") {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    Some(request.len())
}

/// Not HTTP, or broken off: nobody knows what the receiver did with the request.
#[tokio::test]
async fn f28_what_is_no_answer_leaves_the_outcome_unknown() {
    let rows: [(&[u8], Then); 10] = [
        (b"SSH-2.0-hello\r\n", Then::Keep),
        (b"HTTP/1.1 abc OK\r\n\r\n", Then::Keep),
        (b"HTTP/1.1 20 OK\r\n\r\n", Then::Keep),
        (b"HTTP/9.9 200 OK\r\n\r\n", Then::Keep),
        (b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", Then::Close),
        (b"HTTP/1.1 200 O", Then::Close),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n", Then::Close),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", Then::Keep),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", Then::Keep),
        (b"", Then::Close),
    ];
    for (answer, then) in rows {
        let words = String::from_utf8_lossy(answer);
        let raw = Raw::start(answer, then).await;
        let sink = raw.sink(20_000).await;
        let verdict = publish_one(&sink, loose("x")).await;
        assert_seen(&verdict, "unknown", "http.connection_lost", Scope::Destination);
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered, "after {words:?}");
        assert_eq!(raw.connections(), 2, "the old connection is not used after {words:?}");
    }
}

/// A head has a bound, in headers and in bytes; nobody waits for its end.
#[tokio::test]
async fn g7_a_head_without_an_end_is_given_up() {
    let floods: [&[u8]; 2] = [b"x-more: and more and more and more\r\n", b"and more and more and more"];
    for flood in floods {
        let raw = Raw::start(b"HTTP/1.1 200 OK\r\nx-endless: ", Then::Flood(flood)).await;
        let sink = raw.sink(60_000).await;
        let verdict = publish_one(&sink, loose("x")).await;
        assert_seen(&verdict, "unknown", "http.connection_lost", Scope::Destination);
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
    }
}

/// Every part of it is legal, so it is the deadline that ends it, however busy the reader is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g7_hints_without_an_answer_are_a_timeout() {
    let hint = b"HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n";
    let many: &'static [u8] = Vec::leak(hint.repeat((64 << 10) / hint.len()));
    let raw = Raw::start(hint, Then::Flood(many)).await;
    let sink = raw.sink(2_000).await;
    let verdict = tokio::time::timeout(DEADLINE, publish_one(&sink, loose("x"))).await.expect("an end");
    assert_seen(&verdict, "unknown", "http.timeout", Scope::Destination);
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
}

/// The status is the promise. A body without an end is not read to its end, and its connection is not used
/// again.
#[tokio::test]
async fn g7_a_body_without_an_end_changes_nothing() {
    let rows: [(&[u8], Option<&str>); 4] = [
        (b"HTTP/1.1 200 OK\r\n\r\n", None),
        (b"HTTP/1.1 202 OK\r\ncontent-length: 99999999999\r\n\r\n", None),
        (b"HTTP/1.1 422 No\r\ntransfer-encoding: chunked\r\n\r\n", Some("http.422")),
        (b"HTTP/1.0 400 No\r\n\r\n", Some("http.400")),
    ];
    for (head, code) in rows {
        let raw = Raw::start(head, Then::Flood(b"10\r\nand more and more\r\n")).await;
        let sink = raw.sink(60_000).await;
        let verdict = publish_one(&sink, loose("x")).await;
        match code {
            None => assert_eq!(verdict, Verdict::Delivered),
            Some(code) => assert_seen(&verdict, "rejected", code, Scope::Event),
        }
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
        assert_eq!(raw.connections(), 2);
        // What the two sockets' buffers hold, and not what somebody reads.
        assert!(raw.written.load(Ordering::SeqCst) < 32 << 20);
    }
}

#[tokio::test]
async fn a_body_that_is_garbage_or_breaks_off_changes_nothing() {
    let rows: [(&[u8], Then); 4] = [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nwhat?\r\n", Then::Keep),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nx", Then::Keep),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", Then::Close),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", Then::Close),
    ];
    for (answer, then) in rows {
        let raw = Raw::start(answer, then).await;
        let sink = raw.sink(20_000).await;
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
        assert_eq!(raw.connections(), 2, "{:?}", String::from_utf8_lossy(answer));
    }
}

/// Two answers for one request: the second is nobody's, least of all that of the next message.
#[tokio::test]
async fn an_answer_too_many_is_not_taken_for_the_next_one() {
    let twice = b"HTTP/1.1 422 No\r\ncontent-length: 2\r\n\r\nnoHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let raw = Raw::start(twice, Then::Close).await;
    let sink = raw.sink(20_000).await;
    let verdicts = sink.publish(&[keyed("x", "a")]).await;
    assert_seen(&verdicts[0], "rejected", "http.422", Scope::Event);
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
    assert_eq!(raw.connections(), 2);
}

/// A chunked body is read to its end, trailers included, and the connection is used again.
#[tokio::test]
async fn a_chunked_answer_leaves_the_connection_in_order() {
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n";
    let raw = Raw::start(chunked, Then::Keep).await;
    let sink = raw.sink(20_000).await;
    for _ in 0..5 {
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
    }
    assert_eq!(raw.connections(), 1);
}

/// A receiver that refuses a large body says so before its end, and reads no more of it.
#[tokio::test]
async fn f46_an_answer_counts_while_the_request_is_being_written() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let addr = listener.local_addr().expect("bound");
    let _task = spawn("early", async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = Vec::new();
        while !head.windows(4).any(|four| four == b"\r\n\r\n") {
            assert!(stream.read_buf(&mut head).await.is_ok_and(|bytes| bytes > 0));
        }
        let refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(refusal).await.expect("written");
        let (mut other, _) = listener.accept().await.expect("another connection");
        serve(&mut other, GOOD, Then::Keep, Arc::default()).await;
    });
    let config = HttpConfig { allow_private: true, ..HttpConfig::new(&format!("http://{addr}")) };
    let sink = build(config.with(|options| options.delivery_timeout_ms = 60_000)).await;
    let large = message("x", Event::new("orders.placed", vec![b'x'; 64 << 20]));
    assert_seen(&publish_one(&sink, large).await, "rejected", "http.413", Scope::Event);
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered, "over a new connection");
}
