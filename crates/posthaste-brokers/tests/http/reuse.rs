//! Connections: which are used again, and receivers that close them when they like.

use super::*;
use posthaste::task::{Task, spawn};
use posthaste_testkit::services::Answer;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What is short is read to its end; what is long costs a connection.
#[tokio::test]
async fn a_body_that_is_too_long_costs_its_connection_and_no_more() {
    let receiver = receiver().await;
    let sink = build(near(&receiver)).await;
    receiver.always("/short", Answer::status(200).body(vec![b'x'; 10 << 10]));
    receiver.always("/long", Answer::status(200).body(vec![b'x'; 1 << 20]));
    for (path, connections) in [("short", 1), ("short", 1), ("long", 1), ("long", 2), ("short", 3), ("x", 3)]
    {
        assert_eq!(publish_one(&sink, loose(path)).await, Verdict::Delivered, "{path}");
        assert_eq!(receiver.connections(), connections, "{path}");
    }
}

/// A call that is over leaves its connections to the next one, and a slot is a connection at most.
#[tokio::test]
async fn overlapping_calls_share_connections() {
    let receiver = receiver().await;
    // Three slots for a thousand messages: on a busy machine the last of them wait for long.
    let config = near(&receiver).with(|options| options.delivery_timeout_ms = 60_000);
    let sink = build(HttpConfig { max_in_flight_per_host: 3, ..config }).await;
    let calls: Vec<Vec<Message>> = (0..5).map(|_| many("x", 200)).collect();
    for _ in 0..3 {
        let verdicts = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call))).await;
        assert_delivered(&verdicts.concat());
    }
    assert_eq!(receiver.requests().len(), 3_000);
    assert!(receiver.connections() <= 3, "{} connections", receiver.connections());
}

/// A receiver that closes a connection after some requests, without a word.
struct Fickle {
    addr: SocketAddr,
    book: Arc<Mutex<Vec<Copy>>>,
    connections: Arc<AtomicUsize>,
    _task: Task<()>,
}

impl Fickle {
    async fn start(requests: usize) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let (book, connections) = (Arc::<Mutex<Vec<Copy>>>::default(), Arc::<AtomicUsize>::default());
        let (kept, count) = (Arc::clone(&book), Arc::clone(&connections));
        let task = spawn("fickle", async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                open.spawn(serve(stream, requests, Arc::clone(&kept)));
                while open.try_join_next().is_some() {}
            }
        });
        Self { addr, book, connections, _task: task }
    }

    async fn sink(&self) -> Arc<dyn Sink> {
        let url = format!("http://{}", self.addr);
        build(HttpConfig { allow_private: true, ..HttpConfig::new(&url) }).await
    }
}

async fn serve(mut stream: TcpStream, requests: usize, book: Arc<Mutex<Vec<Copy>>>) {
    let mut buffer = Vec::new();
    for _ in 0..requests {
        let copy = loop {
            if let Some((copy, length)) = parse(&buffer) {
                buffer.drain(..length);
                break copy;
            }
            if !stream.read_buf(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {
                return;
            }
        };
        book.lock().expect("whole").push(copy);
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.is_err() {
            return;
        }
    }
}

fn parse(buffer: &[u8]) -> Option<(Copy, usize)> {
    let end = buffer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&buffer[..end]).expect("ASCII");
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.split_once(": ").filter(|(found, _)| *found == name));
        line.map(|(_, value)| value.to_owned())
    };
    let length: usize = header("content-length").expect("a length").parse().expect("a number");
    let payload = buffer.get(end..end + length)?.to_vec();
    Some((Copy { id: header("webhook-id").expect("an id"), key: header("key"), payload }, end + length))
}

/// At each close a request may be on its way: it is repeated here only if nobody can have seen it, else by
/// the relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_connections_are_closed_after_answers_under_load() {
    let fickle = Fickle::start(7).await;
    let sink = fickle.sink().await;
    let load = Load::start(&sink, "x");
    load.more(2_000).await;
    let account = load.end().await;
    let lost = ("unknown", "http.connection_lost", "Destination");
    assert!(account.codes().iter().all(|code| *code == lost), "{:?}", account.failures);
    assert!(fickle.connections.load(Ordering::SeqCst) > 200, "connections were closed");
    account.assert_all_there_in_order(&fickle.book.lock().expect("whole"));
}

/// A connection that was closed while it had nothing to do is not used: the message goes out once, over a new
/// one.
#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_left_behind() {
    let fickle = Fickle::start(1).await;
    let sink = fickle.sink().await;
    for round in 1..=20 {
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
        assert_eq!(fickle.book.lock().expect("whole").len(), round);
        // The close was before: who can connect has heard of it.
        drop(TcpStream::connect(fickle.addr).await.expect("connected"));
        tokio::task::yield_now().await;
    }
}
