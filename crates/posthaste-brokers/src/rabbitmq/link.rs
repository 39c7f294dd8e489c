//! One connection at a time.
//!
//! A task dials, and dials again whenever the connection is lost. A [`Session`] is one connection: when it
//! ends, everything that waits on it is told so at once, and nothing of it is ever sent later. Files and
//! passwords are read for each connection, so what was rotated is used at the next one.

use super::greet::{FAREWELL, Refusal, greet};
use super::session::{Session, serve};
use super::transport::Transport;
use super::wire::{self, Heard};
use super::{Address, RabbitmqConfig, verdict};
use posthaste::sink::Failure;
use posthaste::task::{Task, spawn};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// For name, TCP, TLS and login together. With the longest pause between two tries this leaves 5 s for
/// being back after an outage.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(1_500);
/// A session that lasted this long was a real one: the next pause is short again.
const SETTLED: Duration = Duration::from_secs(5);
#[derive(Debug, Clone)]
enum State {
    /// Nothing has been tried yet.
    New,
    Down(Failure),
    Up(Arc<Session>),
    Closed,
}

/// The way to the broker.
#[derive(Debug)]
pub(super) struct Link {
    state: watch::Receiver<State>,
    closing: watch::Sender<bool>,
    _task: Task<()>,
}

impl Link {
    pub(super) fn start(config: RabbitmqConfig, servers: Vec<Address>, name: &str) -> Self {
        let (state_sender, state) = watch::channel(State::New);
        let (closing, closed) = watch::channel(false);
        let dialler =
            Dialler { config, servers, name: name.to_owned(), state: state_sender, closing: closed };
        Self { state, closing, _task: spawn("rabbitmq.link", dialler.run()) }
    }

    /// The open session, waiting for one at most this long; otherwise why there is none.
    pub(super) async fn session(&self, wait: Duration) -> Result<Arc<Session>, Failure> {
        self.session_when(wait, |state| matches!(state, State::Up(_) | State::Closed)).await
    }

    /// The open session or why there is none, as soon as every server was tried once.
    pub(super) async fn session_if_any(&self, wait: Duration) -> Result<Arc<Session>, Failure> {
        self.session_when(wait, |state| !matches!(state, State::New)).await
    }

    async fn session_when(
        &self,
        wait: Duration,
        known: impl FnMut(&State) -> bool,
    ) -> Result<Arc<Session>, Failure> {
        let mut state = self.state.clone();
        // Too late, or the task is gone: then the state says why.
        let _ = timeout(wait, state.wait_for(known)).await;
        match &*state.borrow() {
            State::New => Err(Failure::of_sink("rabbitmq.unreachable", "no server has answered yet")),
            State::Up(session) => Ok(Arc::clone(session)),
            State::Down(failure) => Err(failure.clone()),
            State::Closed => Err(was_closed()),
        }
    }

    /// The open session, if there is one now.
    pub(super) fn current(&self) -> Option<Arc<Session>> {
        if let State::Up(session) = &*self.state.borrow() { Some(Arc::clone(session)) } else { None }
    }

    /// Ends the session and stops dialling.
    pub(super) async fn close(&self) {
        self.closing.send_replace(true);
        let mut state = self.state.clone();
        // An error means that the task has ended already.
        let _ = state.wait_for(|state| matches!(state, State::Closed)).await;
    }
}

struct Dialler {
    config: RabbitmqConfig,
    servers: Vec<Address>,
    name: String,
    state: watch::Sender<State>,
    closing: watch::Receiver<bool>,
}

enum Ended {
    NeverBegan(Failure),
    Lost(Failure),
}

impl Dialler {
    async fn run(self) {
        self.keep_connected().await;
        self.state.send_replace(State::Closed);
    }

    /// What the future gives, unless the sink is closed before.
    async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut closing = self.closing.clone();
        tokio::select! {
            output = future => Some(output),
            () = closed(&mut closing) => None,
        }
    }

    /// Until the sink is closed.
    async fn keep_connected(&self) {
        let mut pause = Duration::ZERO;
        let mut known = None;
        while !*self.closing.borrow() {
            let _ = self.unless_closed(sleep(pause)).await;
            pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            let started = Instant::now();
            let failure = self.try_servers().await;
            if started.elapsed() > SETTLED {
                pause = PAUSE_MIN;
            }
            let was_up = matches!(self.state.send_replace(State::Down(failure.clone())), State::Up(_));
            // An outage is said once, and again when its reason changes.
            if (was_up || known.as_ref() != Some(&failure)) && !*self.closing.borrow() {
                tracing::warn!(sink = self.name, code = %failure.code, "{}", failure.message);
            }
            known = Some(failure);
        }
    }

    /// Lives through one session with the first server that gives one, and says why there is none now.
    async fn try_servers(&self) -> Failure {
        let mut failure = None;
        for server in &self.servers {
            match self.live_through(server).await {
                // Begin again with the first.
                Ended::Lost(why) => return why,
                Ended::NeverBegan(why) => failure = Some(why),
            }
        }
        failure
            .unwrap_or_else(|| Failure::of_sink("rabbitmq.unreachable", "there is no server to connect to"))
    }

    async fn live_through(&self, server: &Address) -> Ended {
        let dialled = self.unless_closed(timeout(CONNECT_TIMEOUT, self.dial(server))).await;
        let (session, mut transport) = match dialled {
            Some(Ok(Ok(opened))) => opened,
            Some(Ok(Err(failure))) => return Ended::NeverBegan(failure),
            Some(Err(_)) => {
                let text = format!("{server}: no connection within {} s", CONNECT_TIMEOUT.as_secs());
                return Ended::NeverBegan(Failure::of_sink("rabbitmq.unreachable", text));
            }
            None => return Ended::NeverBegan(was_closed()),
        };
        let version = &session.terms().server.version;
        tracing::info!(sink = self.name, server = %server, version, "connected");
        self.state.send_replace(State::Up(Arc::clone(&session)));
        let served = self.unless_closed(serve(&session, &mut transport)).await;
        let failure = served.clone().unwrap_or_else(was_closed);
        session.end(&failure.message);
        if served.is_none() {
            say_goodbye(&mut transport).await;
        }
        Ended::Lost(failure)
    }

    async fn dial(&self, server: &Address) -> Result<(Arc<Session>, Transport), Failure> {
        let files = self.config.files_in_words();
        let failure = |error: io::Error| verdict::connect_failure(&error, &server.to_string(), &files);
        let tls = self.tls(server)?;
        let login = self.config.login().map_err(|error| config_failure(&error))?;
        let tcp = TcpStream::connect((server.host.as_str(), server.port)).await.map_err(failure)?;
        tcp.set_nodelay(true).map_err(failure)?;
        let mut transport = Transport::new(tcp, tls);
        transport.shake_hands().await.map_err(failure)?;
        let greeted = greet(&mut transport, server, &login, &format!("posthaste {}", self.name)).await;
        let terms = greeted.map_err(|refusal| match refusal {
            Refusal::Unheard(error) if server.tls => {
                verdict::hung_up_after_tls(&error, &server.to_string(), &files)
            }
            Refusal::Broken(error) | Refusal::Unheard(error) => failure(error),
            Refusal::Closed(close) => {
                verdict::refused_connection(&close, &server.to_string(), &self.config.identity())
            }
            Refusal::Said(code, text) => Failure::of_sink(code, format!("{server}: {text}")),
        })?;
        Ok((Session::new(terms, self.config.identity()), transport))
    }

    fn tls(&self, server: &Address) -> Result<Option<ClientConnection>, Failure> {
        if !server.tls {
            return Ok(None);
        }
        let config = self.config.tls().client_config().map_err(|error| config_failure(&error))?;
        let bad = |why: String| Failure::of_sink("rabbitmq.tls", format!("{server}: {why}"));
        let name = ServerName::try_from(server.host.clone()).map_err(|error| bad(error.to_string()))?;
        ClientConnection::new(Arc::new(config), name).map(Some).map_err(|error| bad(error.to_string()))
    }
}

fn was_closed() -> Failure {
    Failure::of_sink("rabbitmq.closed", "the sink was closed")
}

fn config_failure(error: &crate::BuildError) -> Failure {
    Failure::of_sink("rabbitmq.config", error.to_string())
}

/// Returns when the sink is closed, or gone.
async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

/// So that the broker's log does not complain of a client that vanished.
async fn say_goodbye(transport: &mut Transport) {
    wire::connection_close(&mut transport.out);
    let goodbye = async {
        transport.flush().await?;
        while transport.converse().await?.1 != Heard::ConnectionCloseOk {}
        io::Result::Ok(())
    };
    // A broker that does not answer does not keep us.
    let _ = timeout(FAREWELL, goodbye).await;
}
