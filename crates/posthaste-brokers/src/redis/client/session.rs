//! A session with a server.
//!
//! [`crate::link`] keeps one at a time; before each try we ask where the server is, so that a failover is followed. A
//! [`Session`] is two connections: one for ordinary pipelines, and the *fence*, which transactions go through
//! ([`crate::redis`] says why). It lives as long as both do: when it ends, everything that waits on it is told so at
//! once, and nothing of it is ever sent later.

use super::connection::{self, Connection, Driver, Wanted};
use super::{Refusal, config_failure, sentinel};
use crate::address::Address;
use crate::link::{Dial, Ended, Port};
use crate::redis::RedisConfig;
use ::redis::{Pipeline, RedisError, Value, cmd};
use async_trait::async_trait;
use posthaste::sink::{Failure, Scope};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

const PING_INTERVAL: Duration = Duration::from_secs(2);
/// A silent session lasts 4 to 6 s, less than the delivery timeout. Shorter would end one over a slow disk.
const PING_WAIT: Duration = Duration::from_secs(4);
/// For answers that are under way when a session is given up by ourselves.
const GRACE: Duration = Duration::from_millis(200);

/// What leads to a server.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Server { address: Address, database: u32 },
    Sentinels { sentinels: Vec<Address>, master: String, database: u32 },
}

/// The way to one server.
pub(crate) type Link = crate::link::Link<Session>;

/// Begins to dial. `reach` is the scope of this server's failures.
pub(crate) fn start(config: Arc<RedisConfig>, target: Target, reach: Scope, name: Arc<str>) -> Link {
    Link::start("redis", reach, name, Dialler { config, target, reach })
}

pub(crate) fn closed() -> Failure {
    Failure::of_sink("redis.closed", "the sink was closed")
}

impl Target {
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
}

#[async_trait]
impl Dial for Dialler {
    type Server = Target;
    type Session = Session;

    fn servers(&self) -> &[Target] {
        std::slice::from_ref(&self.target)
    }

    async fn live_through(&self, target: &Target, port: &Port<Session>) -> Ended {
        let dialled = port.unless_closed(async {
            let (address, database) = target.find(&self.config, port.sink()).await?;
            Session::dial(&self.config, &address, database, self.reach, port.sink()).await
        });
        let (session, mut drivers) = match dialled.await {
            Some(Ok(opened)) => opened,
            Some(Err(failure)) => return Ended::NeverBegan(self.config.options.tls().name_in(failure)),
            None => return Ended::NeverBegan(port.closed()),
        };
        tracing::info!(sink = port.sink(), server = session.server, "connected");
        port.up(&session);
        let served = port.unless_closed(session.serve(&mut drivers)).await;
        let failure = served.unwrap_or_else(|| port.closed());
        port.down(&failure);
        if session.unfit.borrow().is_some() {
            sleep(GRACE).await;
        }
        Ended::Lost(failure)
    }
}

/// The tasks that carry a session's two connections. Dropping them ends it.
struct Drivers {
    plain: Driver,
    fence: Driver,
}

/// Why a request has no replies.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Its time was over before its turn came: it never left.
    Late,
    /// It never left.
    Unsent(Failure),
    /// It may have.
    Lost(RedisError),
}

/// Two connections to one server.
#[derive(Debug)]
pub(crate) struct Session {
    plain: Connection,
    fence: Mutex<Fence>,
    pub(crate) server: String,
    pub(crate) loopback: bool,
    /// As whom we are connected, in words.
    pub(crate) identity: String,
    pub(crate) reach: Scope,
    /// The longest string that the server takes, if we may know.
    pub(crate) bulk_bytes_max: Option<usize>,
    unfit: watch::Sender<Option<Failure>>,
}

/// A connection inside a transaction that has no commands yet.
#[derive(Debug)]
struct Fence {
    connection: Connection,
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
        let (plain, plain_driver) = open(config, address, database, name).await?;
        let (fence, fence_driver) = open(config, address, database, name).await?;
        let bulk_bytes_max = bulk_bytes_max(&plain).await;
        let session = Self {
            plain,
            fence: Mutex::new(Fence { connection: fence, open: false }),
            server: address.to_string(),
            loopback: address.is_loopback(),
            identity: config.identity(),
            reach,
            bulk_bytes_max,
            unfit: watch::Sender::new(None),
        };
        let opened = timeout(PING_WAIT, async { session.fence.lock().await.open(&session).await }).await;
        opened.unwrap_or_else(|_| Err(connection::unreachable(address, "no answer in time")))?;
        Ok((Arc::new(session), Drivers { plain: plain_driver, fence: fence_driver }))
    }

    /// Commands that have nothing to do with each other; one reply for each.
    pub(crate) async fn send_each(&self, commands: &Pipeline) -> Result<Vec<Value>, Broken> {
        self.plain.ask(commands).await.map_err(Broken::Lost)
    }

    /// Commands that are all done or none of them, but for those whose reply in the last list is an error. The
    /// replies are one for each command, and then the one of `EXEC`. Nothing leaves after `until`.
    pub(crate) async fn send_together(
        &self,
        mut commands: Pipeline,
        until: Instant,
    ) -> Result<Vec<Value>, Broken> {
        commands.cmd("EXEC").cmd("MULTI");
        let mut fence = timeout_at(until, self.fence.lock()).await.map_err(|_| Broken::Late)?;
        if !fence.open {
            let opened = timeout_at(until, fence.open(self)).await.map_err(|_| Broken::Late)?;
            opened.map_err(|failure| Broken::Unsent(Failure { scope: self.reach, ..failure }))?;
        }
        if Instant::now() >= until {
            return Err(Broken::Late);
        }
        // Should this future be dropped below, nobody knows how far the server came.
        fence.open = false;
        let mut replies = fence.connection.ask(&commands).await.map_err(Broken::Lost)?;
        fence.open = replies.pop() == Some(Value::Okay);
        Ok(replies)
    }

    /// Questions beside the events; a reply for each.
    pub(crate) async fn ask(&self, questions: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.plain.ask(questions).await
    }

    /// Whether the server answers anything at all.
    pub(crate) async fn is_there(&self, within: Duration) -> bool {
        timeout(within, self.plain.ask_one(&cmd("PING"))).await.is_ok_and(|answer| answer.is_ok())
    }

    /// Gives the session up: another one may be better.
    pub(crate) fn give_up(&self, failure: Failure) {
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
        let answer = self.plain.ask_one(&cmd("PING")).await;
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
        let sent = self.connection.ask(&commands).await;
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

async fn open(
    config: &RedisConfig,
    address: &Address,
    database: u32,
    name: &str,
) -> Result<(Connection, Driver), Failure> {
    let login = config.login(database).map_err(|error| config_failure(&error))?;
    connection::open(config, address, login, name, Wanted::Master).await
}

/// The longest string that the server takes. A user with no more rights than delivery needs may not ask.
async fn bulk_bytes_max(connection: &Connection) -> Option<usize> {
    let mut question = cmd("CONFIG");
    question.arg("GET").arg("proto-max-bulk-len");
    let answer = timeout(PING_WAIT, connection.ask_one(&question)).await;
    let Ok(Ok(Value::Array(pair))) = answer else { return None };
    let Some(Value::BulkString(number)) = pair.get(1) else { return None };
    std::str::from_utf8(number).ok()?.parse().ok()
}
