//! Answers that come before the end of the request.
//!
//! A refusal counts at once (see `hostile`). A 2xx is worth nothing before the receiver can have the whole
//! request: the rest of it is written first, whatever the receiver does meanwhile.

use super::*;
use bytes::Bytes;
use futures_util::StreamExt;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use posthaste::task::{Task, spawn};
use posthaste_testkit::services::{Answer, Certs, Manner, Pair};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// More than the buffers of two sockets hold.
const LARGE: usize = 32 << 20;

/// The end of it: as much as the sender's kernel takes at once.
const LAST: usize = 1 << 20;

/// Between an answer and what the receiver does next: longer than anybody waits for the body of an answer.
const PAUSE: Duration = Duration::from_millis(600);

fn large() -> Message {
    message("x", Event::new("orders.placed", vec![b'x'; LARGE]))
}

/// What a receiver does between its answer and the body of the request.
#[derive(Clone, Copy, PartialEq)]
enum Meanwhile {
    Nothing,
    /// It says more than anybody wants to know, and reads nothing before all of it is written.
    Talk,
    /// It has more to say when the end of the request lies in the kernel of the other side.
    Remark,
    Close,
}

/// Answers one request after its head. Tells how much of the body it got.
async fn early(listener: TcpListener, meanwhile: Meanwhile) -> usize {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let mut request = Vec::new();
    let head = loop {
        assert!(stream.read_buf(&mut request).await.is_ok_and(|bytes| bytes > 0), "a head");
        if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let words = match meanwhile {
        Meanwhile::Talk => LARGE,
        Meanwhile::Remark => LAST,
        _ => 0,
    };
    let mut got = request.len() - head;
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {words}\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.expect("written");
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Talk => stream.write_all(&vec![b'y'; words]).await.expect("somebody reads it"),
        Meanwhile::Remark => {
            got += rest(&mut stream, LARGE - LAST - got).await;
            // Who has closed meanwhile is seen by what is missing.
            let _ = stream.write_all(&vec![b'y'; words]).await;
            tokio::time::sleep(PAUSE).await; // pace: in which a sender that is wrong would hang up
        }
        Meanwhile::Close => return 0,
    }
    got + rest(&mut stream, LARGE - got).await
}

async fn rest(stream: &mut TcpStream, most: usize) -> usize {
    let (mut buffer, mut got) = (vec![0; 1 << 20], 0);
    while got < most
        && let Ok(bytes @ 1..) = stream.read(&mut buffer[..(most - got).min(1 << 20)]).await
    {
        got += bytes;
    }
    got
}

async fn deliver_early(meanwhile: Meanwhile) -> (Verdict, usize) {
    let socket = TcpSocket::new_v4().expect("a socket");
    // What is not read stays with the one who writes.
    socket.set_recv_buffer_size(64 << 10).expect("small");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let listener = socket.listen(1).expect("a listener");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let task = spawn("early", early(listener, meanwhile));
    let config = HttpConfig { allow_private: true, ..HttpConfig::new(&url) };
    let sink = build(config.with(|options| options.delivery_timeout_ms = 60_000)).await;
    let verdict = publish_one(&sink, large()).await;
    (verdict, task.await.expect("an end"))
}

#[tokio::test]
async fn g2_a_2xx_before_the_end_of_the_request_counts_when_it_is_written() {
    for meanwhile in [Meanwhile::Nothing, Meanwhile::Talk, Meanwhile::Remark] {
        assert_eq!(deliver_early(meanwhile).await, (Verdict::Delivered, LARGE));
    }
}

#[tokio::test]
async fn g2_a_2xx_for_half_of_a_request_is_no_promise() {
    let (verdict, _) = deliver_early(Meanwhile::Close).await;
    assert_seen(&verdict, "unknown", "http.connection_lost", Scope::Destination);
}

/// The whole request lies in the kernel when the answer comes, and the answer is longer than anybody reads:
/// hanging up on it would take back what has not left.
#[tokio::test]
async fn g2_what_is_left_of_a_request_is_written_after_a_long_answer() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(64 << 10).expect("small");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let listener = socket.listen(1).expect("a listener");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let task = spawn("early", async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        // Some of the head; all of it is read later.
        let got = stream.read(&mut [0; 16]).await.expect("a head");
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {LAST}\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.expect("written");
        stream.write_all(&vec![b'y'; LAST]).await.expect("somebody reads it");
        tokio::time::sleep(PAUSE).await; // pace: in which a sender that is wrong would hang up
        got + rest(&mut stream, usize::MAX).await
    });
    let sink = build(HttpConfig { allow_private: true, ..HttpConfig::new(&url) }).await;
    let event = Event::new("orders.placed", vec![b'x'; LAST / 2]);
    assert_eq!(publish_one(&sink, message("x", event)).await, Verdict::Delivered);
    let got = task.await.expect("an end");
    assert!(got > LAST / 2, "{got} bytes of a request with {} and a head", LAST / 2);
}

pub(super) fn acceptor(server: &Pair, protocol: &[u8]) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(&server.certificate).and_then(Iterator::collect);
    let key = PrivateKeyDer::from_pem_file(&server.key).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.expect("versions").with_no_client_auth();
    let mut config = builder.with_single_cert(chain.expect("a chain"), key).expect("a certificate");
    config.alpn_protocols = vec![protocol.to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// TLS keeps back what the kernel does not take. Whatever is where when the answer comes, all of it arrives.
#[tokio::test]
async fn g2_what_tls_keeps_back_is_written_after_an_early_answer() {
    let certs = Certs::make().expect("certificates");
    let deliver = async |length: usize| {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(16 << 10).expect("small");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let listener = socket.listen(1).expect("a listener");
        let url = format!("https://{}", listener.local_addr().expect("bound"));
        let acceptor = acceptor(certs.server(), b"http/1.1");
        let task = spawn("early", async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut stream = acceptor.accept(stream).await.expect("TLS");
            let mut got = stream.read(&mut [0; 16]).await.expect("a head");
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).await.expect("written");
            stream.flush().await.expect("flushed");
            tokio::time::sleep(PAUSE).await; // pace: in which a sender that is wrong would hang up
            let mut buffer = vec![0; 1 << 20];
            while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
                got += bytes;
                if got > length + 4096 {
                    break;
                }
            }
            got
        });
        let ca_file = Some(certs.ca().to_owned());
        let config = HttpConfig { allow_private: true, ..HttpConfig::new(&url) };
        let sink =
            build(config.with(|options| (options.ca_file, options.delivery_timeout_ms) = (ca_file, 60_000)));
        let event = Event::new("orders.placed", vec![b'x'; length]);
        assert_eq!(publish_one(&sink.await, message("x", event)).await, Verdict::Delivered);
        let got = task.await.expect("an end");
        assert!(got > length, "{got} bytes of a request with {length} and a head");
    };
    // From what the kernel takes at once to more than it ever does, in steps below what TLS keeps back.
    let lengths = (20..=136).map(|n| n * (48 << 10));
    futures_util::stream::iter(lengths).map(deliver).buffer_unordered(24).collect::<()>().await;
}

/// What a receiver of HTTP/2 does with each request.
#[derive(Clone, Copy)]
enum Deed {
    /// It answers, reads the whole request, and then ends its answer.
    AnswerFirst,
    /// It answers, and wants no more of the request.
    AnswerOnly,
    /// It says that it has not looked at it.
    Refuse,
}

struct Http2 {
    sink: Arc<dyn Sink>,
    /// The lengths of the bodies that were read.
    bodies: mpsc::UnboundedReceiver<usize>,
    _certs: Certs,
    _task: Task<()>,
}

impl Http2 {
    async fn start(deed: Deed) -> Self {
        let certs = Certs::make().expect("certificates");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let (addr, acceptor) = (listener.local_addr().expect("bound"), acceptor(certs.server(), b"h2"));
        let (tell, bodies) = mpsc::unbounded_channel();
        let task = spawn("early http2", async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, tell) = (acceptor.clone(), tell.clone());
                open.spawn(async move {
                    let stream = acceptor.accept(stream).await.expect("TLS");
                    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                    let mut requests = tokio::task::JoinSet::new();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        requests.spawn(handle(deed, request.into_body(), respond, tell.clone()));
                    }
                });
            }
        });
        let ca_file = Some(certs.ca().to_owned());
        let config = HttpConfig {
            allow_private: true,
            ..HttpConfig::new(&format!("https://{addr}")).with(|options| options.ca_file = ca_file)
        };
        let sink = build(config.with(|options| options.delivery_timeout_ms = 60_000)).await;
        Self { sink, bodies, _certs: certs, _task: task }
    }
}

async fn handle(
    deed: Deed,
    mut body: RecvStream,
    mut respond: SendResponse<Bytes>,
    bodies: mpsc::UnboundedSender<usize>,
) {
    match deed {
        Deed::Refuse => respond.send_reset(Reason::REFUSED_STREAM),
        Deed::AnswerOnly => {
            respond.send_response(Default::default(), true).expect("sent");
            tokio::time::sleep(PAUSE).await; // pace: in which a sender that is wrong would hang up
            respond.send_reset(Reason::NO_ERROR);
        }
        Deed::AnswerFirst => {
            let mut answer = respond.send_response(Default::default(), false).expect("sent");
            tokio::time::sleep(PAUSE).await; // pace: in which a sender that is wrong would hang up
            let mut length = 0;
            while let Some(Ok(part)) = body.data().await {
                length += part.len();
                body.flow_control().release_capacity(part.len()).expect("within the window");
            }
            let _ = (bodies.send(length), answer.send_data(Bytes::from_static(b"ok"), true));
        }
    }
}

/// More than the window of a stream, which the receiver opens after its answer.
#[tokio::test]
async fn g2_a_2xx_over_http2_counts_when_the_request_is_written() {
    let mut http2 = Http2::start(Deed::AnswerFirst).await;
    assert_eq!(publish_one(&http2.sink, large()).await, Verdict::Delivered);
    assert_eq!(http2.bodies.recv().await, Some(LARGE));
    assert_eq!(publish_one(&http2.sink, message("x", Event::tombstone("t"))).await, Verdict::Delivered);
    assert_eq!(http2.bodies.recv().await, Some(0));
}

#[tokio::test]
async fn g2_a_2xx_over_http2_for_half_of_a_request_is_no_promise() {
    let http2 = Http2::start(Deed::AnswerOnly).await;
    let verdict = publish_one(&http2.sink, large()).await;
    assert_seen(&verdict, "unknown", "http.connection_lost", Scope::Destination);
}

/// Sent twice, and certainly seen by nobody.
#[tokio::test]
async fn f28_a_request_that_is_refused_unseen_is_a_retry() {
    let http2 = Http2::start(Deed::Refuse).await;
    let verdict = publish_one(&http2.sink, loose("x")).await;
    assert_seen(&verdict, "retry", "http.unreachable", Scope::Destination);
}

/// A connection over which nothing came may be dead without a word: the next request does not find out once
/// more.
#[tokio::test]
async fn after_a_timeout_nobody_takes_the_same_connection_of_http2() {
    let certs = Certs::make().expect("certificates");
    let options = ReceiverOptions::default().tls(certs.server()).http2();
    let receiver = Receiver::start(&options).await.expect("a receiver");
    let config = near(&receiver).with(|options| options.ca_file = Some(certs.ca().to_owned()));
    let sink = build(config.with(|options| options.delivery_timeout_ms = 3_000)).await;
    receiver.next("/x", [Answer::in_manner(Manner::Silent)]);
    let verdict = publish_one(&sink, loose("x")).await;
    assert_seen(&verdict, "unknown", "http.timeout", Scope::Destination);
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
    assert_eq!(receiver.connections(), 2);
}
