//! Sockets: who is let in, for how long, and what a connection may take (G7).
//!
//! The head of a request has five seconds, an exchange has a bound of its listener, and 256 connections are
//! open at once, or as many as its listener says. When all of them are being answered, eight more get
//! probes only, and one second for their head: an orchestrator that hears nothing from `/livez` kills a
//! relay that is only busy.

use super::crowd::{Answering, Busy, Crowd};
use super::tls::Certificate;
use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use posthaste::task::{Task, spawn};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tower_service::Service as _;

/// Connections at once. Each costs some 20 KiB at most before its request is known.
const CONNECTIONS_MAX: usize = 256;
/// Connections beyond them that get probes only.
const PROBES_MAX: usize = 8;
/// For the head of a request, and for a handshake before it.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// The same for a probe in a full house. A prober sends its few bytes with its connection.
const PROBE_HEAD_TIME: Duration = Duration::from_secs(1);
/// The head of a request: its line and the headers that a scraper or a browser sends fit many times over.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// For the answer that is under way when a connection has lived for long enough.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// Headers of a request.
const HEADERS_MAX: usize = 100;
/// How much is read, and for how long, of a client that still sends when it has its answer. Closed without
/// that, a connection is reset, and the client may never see the answer.
const LINGER_BYTES_MAX: usize = 1 << 20;
const LINGER: Duration = Duration::from_secs(1);

/// When a connection is to end. Each of its requests has it, for answers that would last longer.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionEnd(pub(crate) Instant);

/// How a listener treats its connections.
#[derive(Clone)]
pub(crate) struct Listening {
    /// For messages.
    pub(crate) name: &'static str,
    /// Whether a connection may ask again.
    pub(crate) keeps_alive: bool,
    /// How long a connection may live, answers included: a slow reader must not keep a place.
    pub(crate) life: Duration,
    /// With TLS.
    pub(crate) certificate: Option<Arc<Certificate>>,
    /// How many at once.
    pub(crate) connections_max: usize,
    /// For the head of a request, the pause before it included.
    pub(crate) head_time: Duration,
    /// When it says so, nobody new is let in, and what is being answered is answered. `None`: never.
    pub(crate) stop: Option<watch::Receiver<bool>>,
}

impl Listening {
    /// Of metrics and health: one request a connection.
    pub(crate) fn pages() -> Self {
        Self {
            name: "metrics and health",
            keeps_alive: false,
            life: Duration::from_secs(10),
            certificate: None,
            connections_max: CONNECTIONS_MAX,
            head_time: HEAD_TIME,
            stop: None,
        }
    }

    /// Of the API.
    pub(crate) fn api(certificate: Option<Arc<Certificate>>) -> Self {
        Self {
            name: "the API",
            keeps_alive: true,
            life: Duration::from_secs(60),
            certificate,
            connections_max: CONNECTIONS_MAX,
            head_time: HEAD_TIME,
            stop: None,
        }
    }

    /// Of the gateway. Its clients keep their connections for ten minutes: then a balancer finds new
    /// processes.
    pub(crate) fn gateway(
        certificate: Option<Arc<Certificate>>,
        connections_max: usize,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            name: "the gateway",
            keeps_alive: true,
            life: Duration::from_secs(600),
            certificate,
            connections_max,
            // Longer than pools of clients keep an idle connection. In a full house the silent go first.
            head_time: Duration::from_secs(75),
            stop: Some(stop),
        }
    }

    /// Resolves when nobody new is to be let in.
    async fn stopped(&mut self) {
        match &mut self.stop {
            // A sender that is gone has stopped, too.
            Some(stop) => drop(stop.wait_for(|stop| *stop).await),
            None => std::future::pending().await,
        }
    }
}

/// Takes the address.
pub(crate) async fn bind(address: SocketAddr, what: &str, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot listen on {address} for {what}. Nothing was started. \
             Set another {key}, or switch it off with \"off\""
        )
    })
}

/// Serves until the task is dropped, or until it is told to stop and has answered. `probes` is for those who
/// come when the house is full.
pub(crate) fn serve(
    listener: TcpListener,
    listening: Listening,
    pages: Router,
    probes: Option<Router>,
) -> Task<()> {
    let mut ending = listening.clone();
    spawn(listening.name, async move {
        let mut guests = Crowd::new(listening.connections_max);
        let mut probing = Crowd::new(PROBES_MAX);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = ending.stopped() => {
                    // Nobody waits at a door that nobody opens any more.
                    drop(listener);
                    return guests.gone(LAST_ANSWER).await;
                }
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                // Out of file descriptors, usually: it passes, and a busy loop would not help.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for {}", listening.name);
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            };
            let (crowd, router, head_time) = match (guests.make_room(), &probes) {
                (true, _) => (&mut guests, &pages, listening.head_time),
                (false, Some(probes)) if probing.make_room() => (&mut probing, probes, PROBE_HEAD_TIME),
                // Every place is a request that is being answered: nobody is left to show out.
                _ => continue,
            };
            let busy = Busy::default();
            let one = Connection {
                router: router.clone(),
                listening: listening.clone(),
                head_time,
                busy: busy.clone(),
            };
            crowd.enter(spawn("http-connection", one.serve(stream)), busy);
            // Whoever was let in has a turn before the next one may show them out.
            tokio::task::yield_now().await;
        }
    })
}

struct Connection {
    router: Router,
    listening: Listening,
    head_time: Duration,
    busy: Busy,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        // Answers are small: waiting for more of them would only delay each.
        let _ = stream.set_nodelay(true);
        let Some(certificate) = self.listening.certificate.clone() else { return self.speak(stream).await };
        if let Ok(Ok(stream)) = timeout(self.head_time, certificate.acceptor().accept(stream)).await {
            self.speak(stream).await;
        }
    }

    async fn speak(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let (router, busy) = (self.router, self.busy);
        let end = Instant::now() + self.listening.life;
        let answer = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectionEnd(end));
            let held = busy.hold();
            let answer = router.clone().call(request);
            // Boxed, so that the connection can be taken apart when it has ended.
            Box::pin(async move {
                answer.await.map(|response| response.map(|body| Body::new(SentBody { body, _held: held })))
            })
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.head_time)
            .keep_alive(self.listening.keeps_alive)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX);
        // What a client does wrong is the client's to know, and hyper has told it.
        let mut connection = http.serve_connection(TokioIo::new(stream), answer);
        let mut listening = self.listening;
        let spoken = tokio::select! {
            ended = timeout_at(end, poll_fn(|context| connection.poll_without_shutdown(context))) => ended.is_ok(),
            () = listening.stopped() => false,
        };
        if !spoken {
            // What is being answered is answered.
            Pin::new(&mut connection).graceful_shutdown();
            let last = poll_fn(|context| connection.poll_without_shutdown(context));
            if timeout(LAST_ANSWER, last).await.is_err() {
                return;
            }
        }
        linger(connection.into_parts().io.into_inner()).await;
    }
}

/// Ends our side, and reads on for a moment what the client still sends.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut scrap = vec![0; 16 << 10];
    let mut read = 0;
    let rest = async {
        // A client that is gone has nothing to say.
        if stream.shutdown().await.is_err() {
            return;
        }
        while let Ok(bytes @ 1..) = stream.read(&mut scrap).await {
            read += bytes;
            if read > LINGER_BYTES_MAX {
                return;
            }
        }
    };
    let _ = timeout(LINGER, rest).await;
}

/// A body whose connection is busy until it has been sent.
struct SentBody {
    body: Body,
    _held: Answering,
}

impl hyper::body::Body for SentBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
