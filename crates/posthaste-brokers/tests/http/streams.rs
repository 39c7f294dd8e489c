//! Receivers of HTTP/2 that allow few requests at once.

use super::early::acceptor;
use super::*;
use bytes::Bytes;
use h2::server::SendResponse;
use posthaste::task::{Task, spawn};
use posthaste_testkit::services::Certs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::net::TcpListener;

/// What the receiver allows.
const STREAMS: usize = 2;

#[derive(Default)]
struct Seen {
    is_silent: AtomicBool,
    open: AtomicUsize,
    most: AtomicUsize,
}

struct Narrow {
    sink: Arc<dyn Sink>,
    seen: Arc<Seen>,
    _certs: Certs,
    _task: Task<()>,
}

impl Narrow {
    async fn start() -> Self {
        let certs = Certs::make().expect("certificates");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let (addr, acceptor) = (listener.local_addr().expect("bound"), acceptor(certs.server(), b"h2"));
        let seen = Arc::<Seen>::default();
        let shared = Arc::clone(&seen);
        let task = spawn("narrow http2", async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&shared));
                open.spawn(async move {
                    let stream = acceptor.accept(stream).await.expect("TLS");
                    let mut builder = h2::server::Builder::new();
                    builder.max_concurrent_streams(STREAMS as u32);
                    let mut connection = builder.handshake::<_, Bytes>(stream).await.expect("HTTP/2");
                    let mut requests = tokio::task::JoinSet::new();
                    while let Some(Ok((_, respond))) = connection.accept().await {
                        requests.spawn(answer(respond, Arc::clone(&seen)));
                    }
                });
            }
        });
        let ca_file = Some(certs.ca().to_owned());
        let config = HttpConfig {
            allow_private: true,
            ..HttpConfig::new(&format!("https://{addr}")).with(|options| options.ca_file = ca_file)
        };
        let sink = build(config.with(|options| options.delivery_timeout_ms = 4_000)).await;
        // The connection that the others find.
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
        Self { sink, seen, _certs: certs, _task: task }
    }
}

async fn answer(mut respond: SendResponse<Bytes>, seen: Arc<Seen>) {
    let open = seen.open.fetch_add(1, Ordering::SeqCst) + 1;
    seen.most.fetch_max(open, Ordering::SeqCst);
    if seen.is_silent.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
    tokio::task::yield_now().await;
    seen.open.fetch_sub(1, Ordering::SeqCst);
    let _ = respond.send_response(Default::default(), true);
}

/// What waited for a stream was not begun, and nobody is to blame for it.
#[tokio::test]
async fn f28_a_request_without_a_stream_was_not_sent() {
    let narrow = Narrow::start().await;
    narrow.seen.is_silent.store(true, Ordering::SeqCst);
    let messages: Vec<_> = (0..8).map(|_| loose("x")).collect();
    let verdicts = narrow.sink.publish(&messages).await;
    let (held, sent): (Vec<_>, Vec<_>) =
        verdicts.iter().partition(|verdict| matches!(verdict, Verdict::Held));
    assert_eq!((held.len(), sent.len()), (messages.len() - STREAMS, STREAMS), "{verdicts:?}");
    sent.into_iter().for_each(|verdict| assert_seen(verdict, "unknown", "http.timeout", Scope::Destination));
}

#[tokio::test]
async fn streams_are_used_again() {
    let narrow = Narrow::start().await;
    let messages: Vec<_> = (0..200).map(|_| loose("x")).collect();
    assert_delivered(&narrow.sink.publish(&messages).await);
    assert_eq!(narrow.seen.most.load(Ordering::SeqCst), STREAMS);
}
