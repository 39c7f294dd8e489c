//! The way to a server: one session at a time.
//!
//! A task dials, and dials again whenever the session is lost. A session is what a broker's module makes of a
//! connection. When it ends, whoever waits on it is told so at once, and nothing of it is ever sent later.
//! Files and passwords are read for each session, so what was rotated is used at the next one. Several
//! servers are tried in their order, each time beginning with the first.
//!
//! This is for the clients that leave reconnecting to us. Kafka's client keeps its own connections, and HTTP
//! has none to keep.

use async_trait::async_trait;
use posthaste::sink::{Failure, Scope};
use posthaste::task::{Task, spawn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Together with the time of one try this leaves 5 s for going on after the broker's return.
const PAUSE_MAX: Duration = Duration::from_millis(1_500);
/// A session that lasted this long was a real one, so the next pause is short again.
const SETTLED: Duration = Duration::from_secs(5);

/// How a broker's module opens a session and keeps it.
#[async_trait]
pub(crate) trait Dial: Send + Sync + 'static {
    /// Where to dial.
    type Server: Send + Sync;
    /// What comes of it.
    type Session: Send + Sync + 'static;

    /// The servers, in the order in which they are tried.
    fn servers(&self) -> &[Self::Server];

    /// Opens a session with this server, keeps it to its end, and says how it ended.
    async fn live_through(&self, server: &Self::Server, port: &Port<Self::Session>) -> Ended;
}

/// How a try ended.
pub(crate) enum Ended {
    NeverBegan(Failure),
    Lost(Failure),
}

#[derive(Debug)]
enum LinkState<S> {
    /// Nothing has been tried yet.
    New,
    Down(Failure),
    Up(Arc<S>),
    Closed,
}

/// The sink's end of the link.
#[derive(Debug)]
pub(crate) struct Link<S> {
    /// The first part of the codes.
    kind: &'static str,
    /// The scope of this server's failures.
    reach: Scope,
    state: watch::Receiver<LinkState<S>>,
    closing: watch::Sender<bool>,
    _task: Task<()>,
}

/// The dialling task's end of the link.
#[derive(Debug)]
pub(crate) struct Port<S> {
    kind: &'static str,
    sink: Arc<str>,
    state: watch::Sender<LinkState<S>>,
    closing: watch::Receiver<bool>,
    was_up: AtomicBool,
}

impl<S: Send + Sync + 'static> Link<S> {
    /// Begins to dial. `sink` is the sink's name, for the log.
    pub(crate) fn start(
        kind: &'static str,
        reach: Scope,
        sink: Arc<str>,
        dial: impl Dial<Session = S>,
    ) -> Self {
        let (state_sender, state) = watch::channel(LinkState::New);
        let (closing, closed) = watch::channel(false);
        let port = Port { kind, sink, state: state_sender, closing: closed, was_up: AtomicBool::new(false) };
        Self { kind, reach, state, closing, _task: spawn("link", async move { port.keep(&dial).await }) }
    }

    /// The open session, which may be waited for this long, or why there is none.
    pub(crate) async fn session(&self, wait: Duration) -> Result<Arc<S>, Failure> {
        self.session_when(wait, |state| matches!(state, LinkState::Up(_) | LinkState::Closed)).await
    }

    /// The open session or why there is none, as soon as every server was tried once.
    pub(crate) async fn session_if_any(&self, wait: Duration) -> Result<Arc<S>, Failure> {
        self.session_when(wait, |state| !matches!(state, LinkState::New)).await
    }

    async fn session_when(
        &self,
        wait: Duration,
        known: impl FnMut(&LinkState<S>) -> bool,
    ) -> Result<Arc<S>, Failure> {
        let mut state = self.state.clone();
        // If it is too late, or the task is gone, the state says why.
        let _ = timeout(wait, state.wait_for(known)).await;
        let failure = match &*state.borrow() {
            LinkState::New => unreachable(self.kind, "no server has answered yet"),
            LinkState::Up(session) => return Ok(Arc::clone(session)),
            LinkState::Down(failure) => failure.clone(),
            LinkState::Closed => return Err(closed(self.kind)),
        };
        Err(Failure { scope: self.reach, ..failure })
    }

    /// The open session, if there is one now.
    pub(crate) fn current(&self) -> Option<Arc<S>> {
        if let LinkState::Up(session) = &*self.state.borrow() { Some(Arc::clone(session)) } else { None }
    }

    /// Ends the session and stops dialling.
    pub(crate) async fn close(&self) {
        self.closing.send_replace(true);
        let mut state = self.state.clone();
        // An error means that the task has ended already.
        let _ = state.wait_for(|state| matches!(state, LinkState::Closed)).await;
    }
}

impl<S> Port<S> {
    /// The sink's name.
    pub(crate) fn sink(&self) -> &str {
        &self.sink
    }

    /// There is a session.
    pub(crate) fn up(&self, session: &Arc<S>) {
        self.was_up.store(true, Ordering::SeqCst);
        self.state.send_replace(LinkState::Up(Arc::clone(session)));
    }

    /// There is no session any more, although [`Dial::live_through`] has not returned yet.
    pub(crate) fn down(&self, failure: &Failure) {
        self.state.send_replace(LinkState::Down(failure.clone()));
    }

    /// The future's output, unless the sink is closed or gone before.
    pub(crate) async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut closing = self.closing.clone();
        tokio::select! {
            output = future => Some(output),
            _ = closing.wait_for(|closing| *closing) => None,
        }
    }

    /// The failure that says that the sink was closed.
    pub(crate) fn closed(&self) -> Failure {
        closed(self.kind)
    }

    /// Whether the sink was closed, or is gone.
    fn is_closing(&self) -> bool {
        *self.closing.borrow() || self.closing.has_changed().is_err()
    }

    async fn keep(&self, dial: &impl Dial<Session = S>) {
        let (mut pause, mut known) = (Duration::ZERO, None);
        while !self.is_closing() {
            let _ = self.unless_closed(sleep(pause)).await;
            pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            let started = Instant::now();
            let failure = self.try_servers(dial).await;
            if started.elapsed() > SETTLED {
                pause = PAUSE_MIN;
            }
            self.down(&failure);
            // An outage is logged once, and again when its reason changes.
            let was_up = self.was_up.swap(false, Ordering::SeqCst);
            if (was_up || known.as_ref() != Some(&failure)) && !self.is_closing() {
                tracing::warn!(sink = &*self.sink, code = %failure.code, "{}", failure.message);
            }
            known = Some(failure);
        }
        self.state.send_replace(LinkState::Closed);
    }

    /// Lives through one session with the first server that gives one, and says why there is none now.
    async fn try_servers(&self, dial: &impl Dial<Session = S>) -> Failure {
        let mut failure = None;
        for server in dial.servers() {
            match dial.live_through(server, self).await {
                // Begin again with the first.
                Ended::Lost(why) => return why,
                Ended::NeverBegan(why) => failure = Some(why),
            }
            if self.is_closing() {
                break;
            }
        }
        failure.unwrap_or_else(|| unreachable(self.kind, "there is no server to connect to"))
    }
}

fn unreachable(kind: &str, why: &str) -> Failure {
    Failure::of_sink(format!("{kind}.unreachable"), why)
}

fn closed(kind: &str) -> Failure {
    Failure::of_sink(format!("{kind}.closed"), "the sink was closed")
}
