//! An HTTP server for webhooks: answers what a test tells it to, and remembers who came.
//!
//! It runs in the test's own process and speaks HTTP/1.1 by hand, because half of what a test wants is what a
//! framework spares its users: an answer that breaks off in the middle, a request that is never read, a
//! connection that stays open without a word. HTTP/2 is offered over TLS where a test asks for it, by the
//! `h2` crate.

mod wire;

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use posthaste::task::{Task, spawn};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::services::{Pair, Port, ServiceError};

/// Ends a hang; nothing is timed by it.
const DEADLINE: Duration = Duration::from_secs(60);

/// What becomes of a request after its head was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It is read and answered.
    Whole,
    /// It is read, and the answer breaks off in the middle of its body.
    HalfBody,
    /// The connection ends before the body was read.
    CloseUnread,
    /// It is read, and the connection ends without an answer.
    CloseUnanswered,
    /// It is read, and nothing ever comes.
    Silent,
    /// It is read, and what comes is not HTTP.
    Garbage,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
    delay: Duration,
    manner: Manner,
}

impl Answer {
    /// This status, without a body.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new(), delay: Duration::ZERO, manner: Manner::Whole }
    }

    /// 200 in this manner.
    #[must_use]
    pub fn in_manner(manner: Manner) -> Self {
        Self { manner, ..Self::status(200).body("a body that may break off") }
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Not before this long after the request was read.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers in their order. Names as they came.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Bytes,
    /// Which connection it came over, counted from 1.
    pub connection: usize,
    /// `HTTP/1.1` or `HTTP/2`.
    pub version: &'static str,
    /// The certificate that the client showed (DER).
    pub client: Option<Bytes>,
}

impl Recorded {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// What a test wants otherwise than the defaults: HTTP/1.1 without TLS.
#[derive(Clone, Debug, Default)]
pub struct ReceiverOptions {
    tls: Option<(Pair, Option<PathBuf>)>,
    http2: bool,
}

impl ReceiverOptions {
    /// TLS, with this certificate.
    #[must_use]
    pub fn tls(mut self, server: &Pair) -> Self {
        self.tls = Some((server.clone(), None));
        self
    }

    /// TLS, and of each client a certificate that `client_ca` signed.
    #[must_use]
    pub fn mutual_tls(mut self, server: &Pair, client_ca: &Path) -> Self {
        self.tls = Some((server.clone(), Some(client_ca.to_owned())));
        self
    }

    /// Offers HTTP/2 where TLS is used.
    #[must_use]
    pub fn http2(mut self) -> Self {
        self.http2 = true;
        self
    }

    fn acceptor(&self) -> io::Result<Option<TlsAcceptor>> {
        let Some((server, client_ca)) = &self.tls else { return Ok(None) };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(certificates(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(io::Error::other)?)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&server.key).map_err(io::Error::other)?;
        let chain = certificates(&server.certificate)?;
        let mut config = builder.with_single_cert(chain, key).map_err(io::Error::other)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if self.http2 {
            config.alpn_protocols.insert(0, b"h2".to_vec());
        }
        Ok(Some(TlsAcceptor::from(Arc::new(config))))
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(io::Error::other)
}

/// What the connections share.
struct Desk {
    state: Mutex<ReceiverState>,
    /// Requests so far.
    count: watch::Sender<usize>,
    tls: watch::Sender<Option<TlsAcceptor>>,
}

#[derive(Default)]
struct ReceiverState {
    requests: Vec<Recorded>,
    /// By path: those that are given once, in their order, and the one for all others.
    scripts: HashMap<String, (VecDeque<Answer>, Option<Answer>)>,
    connections: usize,
    at_once: usize,
    most_at_once: usize,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, ReceiverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a request for this path. 200 where nobody said anything.
    fn answer(&self, path: &str) -> Answer {
        let mut state = self.state();
        let script = state.scripts.get_mut(path);
        let answer = script.and_then(|(once, always)| once.pop_front().or_else(|| always.clone()));
        answer.unwrap_or_else(|| Answer::status(200))
    }

    fn record(&self, request: Recorded) {
        self.state().requests.push(request);
        self.count.send_modify(|count| *count += 1);
    }

    /// Counts a request as being handled as long as the answer lives.
    fn enter(self: &Arc<Self>) -> Entered {
        let mut state = self.state();
        state.at_once += 1;
        state.most_at_once = state.most_at_once.max(state.at_once);
        Entered(Arc::clone(self))
    }
}

struct Entered(Arc<Desk>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.state().at_once -= 1;
    }
}

/// A running server. Dropping it ends it with all its connections.
pub struct Receiver {
    port: Port,
    scheme: &'static str,
    options: Mutex<ReceiverOptions>,
    desk: Arc<Desk>,
    _task: Task<()>,
}

impl Receiver {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// `Failed` if there is no port, or the certificate cannot be used.
    pub async fn start(options: &ReceiverOptions) -> Result<Self, ServiceError> {
        let failed = |error: io::Error| ServiceError::failed("HTTP receiver", error);
        let tls = options.acceptor().map_err(failed)?;
        let port = Port::claim().map_err(failed)?;
        let listener = TcpListener::bind(port.addr()).await.map_err(failed)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let desk = Arc::new(Desk {
            state: Mutex::default(),
            count: watch::Sender::new(0),
            tls: watch::Sender::new(tls),
        });
        let task = spawn("receiver", accept(listener, Arc::clone(&desk)));
        Ok(Self { port, scheme, options: Mutex::new(options.clone()), desk, _task: task })
    }

    /// `http://` or `https://` and the loopback address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.port.addr())
    }

    /// The loopback address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Answers every request for this path so.
    pub fn always(&self, path: &str, answer: Answer) {
        self.desk.state().scripts.entry(path.to_owned()).or_default().1 = Some(answer);
    }

    /// Answers the next requests for this path so, before anything else.
    pub fn next(&self, path: &str, answers: impl IntoIterator<Item = Answer>) {
        self.desk.state().scripts.entry(path.to_owned()).or_default().0.extend(answers);
    }

    /// Everything that came, in the order in which it was read.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.desk.state().requests.clone()
    }

    /// What came for this path.
    #[must_use]
    pub fn requests_for(&self, path: &str) -> Vec<Recorded> {
        self.desk.state().requests.iter().filter(|request| request.path == path).cloned().collect()
    }

    /// Waits until so many requests have come.
    ///
    /// # Panics
    ///
    /// When they have not after half a minute.
    pub async fn until(&self, requests: usize) {
        let mut count = self.desk.count.subscribe();
        let came = tokio::time::timeout(DEADLINE, count.wait_for(|count| *count >= requests)).await;
        assert!(came.is_ok(), "{} requests instead of {requests}", self.requests().len());
    }

    /// Connections that were accepted, TLS included or not.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.desk.state().connections
    }

    /// The most requests that were being handled at one moment.
    #[must_use]
    pub fn most_at_once(&self) -> usize {
        self.desk.state().most_at_once
    }

    /// Shows another certificate to new connections.
    ///
    /// # Panics
    ///
    /// When it cannot be used.
    pub fn show_certificate(&self, server: &Pair) {
        let mut options = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((pair, _)) = &mut options.tls {
            *pair = server.clone();
        }
        self.desk.tls.send_replace(options.acceptor().expect("a certificate"));
    }
}

async fn accept(listener: TcpListener, desk: Arc<Desk>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let number = {
            let mut state = desk.state();
            state.connections += 1;
            state.connections
        };
        let (desk, tls) = (Arc::clone(&desk), desk.tls.borrow().clone());
        connections.spawn(async move {
            // How a connection ends is the client's affair to judge.
            let _ = wire::serve(stream, tls, number, desk).await;
        });
        while connections.try_join_next().is_some() {}
    }
}
