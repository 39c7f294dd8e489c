//! One session with one server at a time.
//!
//! A task dials, and dials again whenever the session is lost; before each try it asks where the server is, so that a
//! failover is followed. A [`Session`] is two connections: one for ordinary pipelines, and the *fence*, which runs go
//! through ([`super`] says why). It lives as long as both do: when it ends, everything that waits on it is told so at
//! once, and nothing of it is ever sent later.

use super::address::Address;
use super::dial::{self, Wanted, Wire};
use super::sentinel;
use super::verdict::{Refusal, Silence};
use super::{RedisConfig, Way};
use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, Value, cmd};
use posthaste::sink::{Failure, Scope};
use posthaste::task::{Task, spawn};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};

const PAUSE_MIN: Duration = Duration::from_millis(50);
/// With the time of one try this makes sure that delivery goes on within 5 s of the server's return.
const PAUSE_MAX: Duration = Duration::from_millis(1_500);
/// A session that lasted this long was a real one: the next pause is short again.
const SETTLED: Duration = Duration::from_secs(5);
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// A silent session lasts 4 to 6 s, less than the delivery timeout. Shorter would end one over a slow disk.
const PING_WAIT: Duration = Duration::from_secs(4);
/// For answers that are under way when a session is given up by ourselves.
const GRACE: Duration = Duration::from_millis(200);

/// What leads to a server.
#[derive(Debug, Clone)]
pub(super) enum Target {
    Server { address: Address, database: u32 },
    Sentinels { sentinels: Vec<Address>, master: String, database: u32 },
}

#[derive(Debug, Clone)]
enum State {
    /// Nothing has been tried yet.
    New,
    Down(Failure),
    Up(Arc<Session>),
    Closed,
}

/// The way to one server.
#[derive(Debug)]
pub(super) struct Link {
    state: watch::Receiver<State>,
    closing: watch::Sender<bool>,
    reach: Scope,
    _task: Task<()>,
}

impl Link {
    /// `reach` is the scope of this server's failures.
    pub(super) fn start(config: Arc<RedisConfig>, target: Target, reach: Scope, name: Arc<str>) -> Self {
        let (state_sender, state) = watch::channel(State::New);
        let (closing, closed) = watch::channel(false);
        let dialler = Dialler { config, target, reach, name, state: state_sender };
        Self { state, closing, reach, _task: spawn("redis.link", dialler.run(closed)) }
    }

    /// The open session, waiting for one at most this long; otherwise why there is none.
    pub(super) async fn session(&self, wait: Duration) -> Result<Arc<Session>, Failure> {
        self.session_when(wait, |state| matches!(state, State::Up(_) | State::Closed)).await
    }

    /// The open session or why there is none, as soon as the server was tried once.
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
        let failure = match &*state.borrow() {
            State::New => Failure::of_sink("redis.unreachable", "no server has answered yet"),
            State::Up(session) => return Ok(Arc::clone(session)),
            State::Down(failure) => failure.clone(),
            State::Closed => return Err(closed()),
        };
        Err(Failure { scope: self.reach, ..failure })
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

pub(super) fn closed() -> Failure {
    Failure::of_sink("redis.closed", "the sink was closed")
}

impl Target {
    /// The one server, or those who know it. A cluster has many of these.
    pub(super) fn of(way: &Way, database: u32) -> Option<Self> {
        match way {
            Way::Server(address) => Some(Self::Server { address: address.clone(), database }),
            Way::Sentinels(sentinels, master) => {
                Some(Self::Sentinels { sentinels: sentinels.clone(), master: master.clone(), database })
            }
            Way::Cluster(_) => None,
        }
    }

    async fn find(&self, config: &RedisConfig, name: &str) -> Result<(Address, u32), Failure> {
        match self {
            Self::Server { address, database } => Ok((address.clone(), *database)),
            Self::Sentinels { sentinels, master, database } => {
                Ok((sentinel::master(config, sentinels, master, name).await?, *database))
            }
        }
    }
}

struct Dialler {
    config: Arc<RedisConfig>,
    target: Target,
    reach: Scope,
    name: Arc<str>,
    state: watch::Sender<State>,
}

impl Dialler {
    async fn run(self, mut closing: watch::Receiver<bool>) {
        tokio::select! {
            () = self.keep_connected() => {}
            // An error means that the sink itself is gone.
            _ = closing.wait_for(|closing| *closing) => {}
        }
        self.state.send_replace(State::Closed);
    }

    async fn keep_connected(&self) {
        let mut pause = Duration::ZERO;
        let mut known = None;
        loop {
            sleep(pause).await;
            pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            let started = Instant::now();
            let (failure, was_up) = self.live_through().await;
            if started.elapsed() > SETTLED {
                pause = PAUSE_MIN;
            }
            self.state.send_replace(State::Down(failure.clone()));
            // An outage is said once, and again when its reason changes.
            if was_up || known.as_ref() != Some(&failure) {
                tracing::warn!(sink = &*self.name, code = %failure.code, "{}", failure.message);
            }
            known = Some(failure);
        }
    }

    /// Lives through one session, if there is one to be had, and says why there is none now.
    async fn live_through(&self) -> (Failure, bool) {
        let dialled = async {
            let (address, database) = self.target.find(&self.config, &self.name).await?;
            Session::dial(&self.config, &address, database, self.reach, &self.name).await
        };
        let (session, mut drivers) = match dialled.await {
            Ok(opened) => opened,
            Err(failure) => return (failure, false),
        };
        tracing::info!(sink = &*self.name, server = session.server, "connected");
        self.state.send_replace(State::Up(Arc::clone(&session)));
        let failure = session.serve(&mut drivers).await;
        self.state.send_replace(State::Down(failure.clone()));
        if session.unfit.borrow().is_some() {
            sleep(GRACE).await;
        }
        (failure, true)
    }
}

/// The tasks that carry a session's two connections. Dropping them ends it.
pub(super) struct Drivers {
    plain: Task<()>,
    fence: Task<()>,
}

/// Why a request has no replies.
#[derive(Debug)]
pub(super) enum Broken {
    /// It never left.
    Unsent(Failure),
    /// It may have.
    Lost(Silence),
}

/// Two connections to one server.
#[derive(Debug)]
pub(super) struct Session {
    plain: MultiplexedConnection,
    fence: Mutex<Fence>,
    pub(super) server: String,
    pub(super) loopback: bool,
    /// As whom we are connected, in words.
    pub(super) identity: String,
    pub(super) reach: Scope,
    /// The longest string that the server takes, if we may know.
    pub(super) bulk_bytes_max: Option<usize>,
    unfit: watch::Sender<Option<Failure>>,
}

/// A connection inside a transaction that has no commands yet.
#[derive(Debug)]
struct Fence {
    connection: MultiplexedConnection,
    /// Confirmed by the server. Not so while a run is on its way, or after its call was dropped.
    open: bool,
}

impl Session {
    async fn dial(
        config: &RedisConfig,
        address: &Address,
        database: u32,
        reach: Scope,
        name: &str,
    ) -> Result<(Arc<Self>, Drivers), Failure> {
        let Wire { connection: mut plain, driver: plain_driver } =
            open(config, address, database, name).await?;
        let Wire { connection: fence, driver: fence_driver } = open(config, address, database, name).await?;
        let bulk_bytes_max = bulk_bytes_max(&mut plain).await;
        let session = Self {
            plain,
            fence: Mutex::new(Fence { connection: fence, open: false }),
            server: address.to_string(),
            loopback: is_loopback(&address.host),
            identity: config.identity(),
            reach,
            bulk_bytes_max,
            unfit: watch::Sender::new(None),
        };
        let opened = timeout(PING_WAIT, async { session.fence.lock().await.open(&session).await }).await;
        opened.unwrap_or_else(|_| Err(dial::unreachable(address, "no answer in time")))?;
        Ok((Arc::new(session), Drivers { plain: plain_driver, fence: fence_driver }))
    }

    /// A connection for questions, beside the events.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.plain.clone()
    }

    /// Commands that have nothing to do with each other; one reply for each.
    pub(super) async fn send_each(&self, commands: &Pipeline) -> Result<Vec<Value>, Broken> {
        let sent = self.plain.clone().send_packed_commands(commands, 0, commands.len()).await;
        sent.map_err(|error| Broken::Lost(Silence::of(&error, &self.server)))
    }

    /// Commands that are all done or none of them, but for those whose reply in the last list is an error. The
    /// replies are one for each command, and then the one of `EXEC`.
    pub(super) async fn send_together(&self, mut commands: Pipeline) -> Result<Vec<Value>, Broken> {
        commands.cmd("EXEC").cmd("MULTI");
        let mut fence = self.fence.lock().await;
        if !fence.open {
            fence.open(self).await.map_err(Broken::Unsent)?;
        }
        // Should this future be dropped below, nobody knows how far the server came.
        fence.open = false;
        let sent = fence.connection.send_packed_commands(&commands, 0, commands.len()).await;
        let mut replies = sent.map_err(|error| Broken::Lost(Silence::of(&error, &self.server)))?;
        fence.open = replies.pop() == Some(Value::Okay);
        Ok(replies)
    }

    /// Gives the session up: another one may be better.
    pub(super) fn give_up(&self, failure: Failure) {
        self.unfit.send_if_modified(|unfit| {
            let first = unfit.is_none();
            if first {
                *unfit = Some(failure);
            }
            first
        });
    }

    async fn serve(&self, drivers: &mut Drivers) -> Failure {
        let mut unfit = self.unfit.subscribe();
        let lost = || self.unreachable("the connection was lost");
        tokio::select! {
            _ = &mut drivers.plain => lost(),
            _ = &mut drivers.fence => lost(),
            failure = self.keep_alive() => failure,
            found = unfit.wait_for(Option::is_some) => {
                found.ok().and_then(|unfit| unfit.clone()).unwrap_or_else(lost)
            }
        }
    }

    async fn keep_alive(&self) -> Failure {
        loop {
            sleep(PING_INTERVAL).await;
            match timeout(PING_WAIT, self.ping()).await {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => return failure,
                Err(_) => {
                    let seconds = PING_WAIT.as_secs();
                    return self.unreachable(&format!("the server has not answered for {seconds} s"));
                }
            }
        }
    }

    async fn ping(&self) -> Result<(), Failure> {
        let answer = self.plain.clone().send_packed_command(&cmd("PING")).await;
        if let Value::ServerError(error) = answer.map_err(|error| self.unreachable(&error.to_string()))?
            && Refusal::of(&error).ends_session()
        {
            let text = format!("{} refuses {}: {error}", self.server, self.identity);
            return Err(Failure::of_sink("redis.auth", text));
        }
        // A run that is on its way has its own time limit.
        if let Ok(mut fence) = self.fence.try_lock() {
            fence.open(self).await?;
        }
        Ok(())
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::of_sink("redis.unreachable", format!("{}: {why}", self.server))
    }
}

impl Fence {
    /// Leaves the transaction, if there is one, and begins a new one. An error means that there is none.
    async fn open(&mut self, session: &Session) -> Result<(), Failure> {
        self.open = false;
        let mut commands = Pipeline::new();
        commands.cmd("DISCARD").cmd("MULTI");
        let sent = self.connection.send_packed_commands(&commands, 0, 2).await;
        let replies = sent.map_err(|error| session.unreachable(&error.to_string()))?;
        self.open = replies.last() == Some(&Value::Okay);
        if self.open {
            return Ok(());
        }
        let words = match replies.last() {
            Some(Value::ServerError(error)) => error.to_string(),
            _ => "it does not say why".to_owned(),
        };
        let text = format!(
            "{} lets {} begin no transaction: {words}; grant +multi +exec +discard",
            session.server, session.identity
        );
        Err(Failure::of_sink("redis.denied", text))
    }
}

async fn open(config: &RedisConfig, address: &Address, database: u32, name: &str) -> Result<Wire, Failure> {
    let login = config.login(database);
    let login = login.map_err(|error| Failure::of_sink("redis.config", error.to_string()))?;
    dial::open(config, address, login, name, Wanted::Master).await
}

/// The longest string that the server takes. A user with no more rights than delivery needs may not ask.
async fn bulk_bytes_max(connection: &mut MultiplexedConnection) -> Option<usize> {
    let mut question = cmd("CONFIG");
    question.arg("GET").arg("proto-max-bulk-len");
    let answer = timeout(PING_WAIT, connection.send_packed_command(&question)).await;
    let Ok(Ok(Value::Array(pair))) = answer else { return None };
    let Some(Value::BulkString(number)) = pair.get(1) else { return None };
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}
