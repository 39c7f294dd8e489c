//! One connection at a time, and what comes back over it.
//!
//! A task dials, and dials again whenever the connection is lost. The client could do that by itself,
//! but then it says "IO error" where we must say "the certificate has expired", and it keeps what was
//! given to it during an outage and sends it after the reconnect, long after the relay has been told
//! that it failed. So a [`Session`] is one connection: when it ends, everything that waits on it is
//! told so at once, and nothing of it is ever sent later.

use super::config::NatsConfig;
use super::session::{Session, serve};
use super::verdict::connect_failure;
use async_nats::{ConnectOptions, Event, ReconnectToServer, ServerAddr, ServerError};
use posthaste::sink::Failure;
use posthaste::task::{Task, spawn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

/// For the ping that a new session begins with.
const PING_WAIT: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// With the time of one try this makes sure that delivery goes on within 5 s of the broker's return.
const PAUSE_MAX: Duration = Duration::from_millis(1_500);
/// A session that lasted this long was a real one: the next pause is short again.
const SETTLED: Duration = Duration::from_secs(5);
/// The server's complaints that wait to be read. More are dropped: one for each subject is enough.
const COMPLAINTS: usize = 128;

#[derive(Debug, Clone)]
enum State {
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
    pub(super) fn start(config: NatsConfig, servers: Vec<ServerAddr>, name: &str) -> Self {
        let first = Failure::of_sink("nats.unreachable", format!("not connected to {} yet", config.url));
        let (state_sender, state) = watch::channel(State::Down(first));
        let (closing, closed) = watch::channel(false);
        let dialler = Dialler { config, servers, name: name.to_owned(), state: state_sender };
        Self { state, closing, _task: spawn("nats.link", dialler.run(closed)) }
    }

    /// The open session, waiting for one at most this long; otherwise why there is none.
    pub(super) async fn session(&self, wait: Duration) -> Result<Arc<Session>, Failure> {
        let mut state = self.state.clone();
        let known = |state: &State| !matches!(state, State::Down(_));
        // Too late or the task is gone: then the state says why.
        let _ = timeout(wait, state.wait_for(known)).await;
        match &*state.borrow() {
            State::Up(session) => Ok(Arc::clone(session)),
            State::Down(failure) => Err(failure.clone()),
            State::Closed => Err(Failure::of_sink("nats.closed", "the sink was closed")),
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
    config: NatsConfig,
    servers: Vec<ServerAddr>,
    name: String,
    state: watch::Sender<State>,
}

impl Dialler {
    async fn run(self, mut closing: watch::Receiver<bool>) {
        tokio::select! {
            () = self.keep_connected() => {}
            // An error means that the sink itself is gone.
            _ = closing.wait_for(|closing| *closing) => {}
        }
        if let State::Up(session) = self.state.send_replace(State::Closed) {
            session.end("the sink was closed");
        }
    }

    async fn keep_connected(&self) {
        let mut pause = Duration::ZERO;
        loop {
            sleep(pause).await;
            pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            let started = Instant::now();
            let failure = self.try_servers().await;
            tracing::warn!(sink = self.name, code = %failure.code, "{}", failure.message);
            self.state.send_replace(State::Down(failure));
            if started.elapsed() > SETTLED {
                pause = PAUSE_MIN;
            }
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
        failure.unwrap_or_else(|| Failure::of_sink("nats.unreachable", "there is no server to connect to"))
    }

    async fn live_through(&self, server: &ServerAddr) -> Ended {
        let name = display(server);
        let (complain, complaints) = mpsc::channel(COMPLAINTS);
        let options = match self.config.connect_options(&self.name) {
            Ok(options) => hear(single_use(options, server), complain),
            Err(error) => return Ended::NeverBegan(Failure::of_sink("nats.config", error.to_string())),
        };
        let unreachable = |why: &str| Failure::of_sink("nats.unreachable", format!("{name}: {why}"));
        let pool = vec![server.clone(), nowhere()];
        let opened = match options.connect(pool).await {
            Ok(client) => Session::open(client, self.config.identity()).await,
            Err(error) => return Ended::NeverBegan(connect_failure(&error, &name, &self.config.identity())),
        };
        let Some((session, answers)) = opened else {
            return Ended::NeverBegan(unreachable("closed at once"));
        };
        let mut serving = pin!(serve(&session, answers, complaints));
        // A ping before the first message: it shows that answers reach us.
        let alive = tokio::select! {
            failure = &mut serving => return Ended::NeverBegan(failure),
            alive = session.answers_ping(PING_WAIT) => alive,
        };
        if !alive {
            return Ended::NeverBegan(unreachable("the server does not answer"));
        }
        tracing::info!(sink = self.name, server = name, version = session.info().version, "connected");
        self.state.send_replace(State::Up(Arc::clone(&session)));
        let failure = serving.await;
        session.end(&failure.message);
        Ended::Lost(failure)
    }
}

enum Ended {
    NeverBegan(Failure),
    Lost(Failure),
}

/// The address without anything secret: [`NatsConfig::check`] has refused URLs with credentials.
fn display(server: &ServerAddr) -> String {
    format!("{}://{}:{}", server.scheme(), server.host(), server.port())
}

/// Makes a client that lives for one connection. The client cannot be told not to reconnect: the least
/// that it takes is one attempt, which is also the first connection's. So the one attempt that it makes
/// after a loss is led to an address where nobody can listen, and the client ends at once.
fn single_use(options: ConnectOptions, server: &ServerAddr) -> ConnectOptions {
    let (server, used) = (server.clone(), AtomicBool::new(false));
    options.max_reconnects(1).reconnect_to_server_callback(move |_, _| {
        let addr = if used.swap(true, Ordering::Relaxed) { nowhere() } else { server.clone() };
        std::future::ready(Some(ReconnectToServer { addr, delay: Some(Duration::ZERO) }))
    })
}

/// Port 0 can be asked for, but not be connected to.
fn nowhere() -> ServerAddr {
    "nats://127.0.0.1:0".parse().expect("a constant that parses")
}

/// Passes on what the server says beside the messages.
fn hear(options: ConnectOptions, complain: mpsc::Sender<String>) -> ConnectOptions {
    options.event_callback(move |event| -> std::future::Ready<()> {
        if let Event::ServerError(ServerError::Other(text)) = event {
            // Full: see COMPLAINTS.
            let _ = complain.try_send(text);
        }
        std::future::ready(())
    })
}
