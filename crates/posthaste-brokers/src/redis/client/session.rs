//! A session with a server.
//!
//! [`crate::link`] keeps one session at a time. Before each try we ask where the server is, so that a
//! failover is followed. A [`Session`] is two connections: one for ordinary pipelines, and the *fence*, which
//! transactions go through ([`crate::redis`] says why). It lives as long as both do. When it ends, whoever
//! waits on it is told so at once, and nothing of it is ever sent later.

use super::backlog::{ReplyBacklog, SessionConnection};
use super::connection::{self, Connection, Driver, Wanted};
use super::life::Life;
use super::{ErrorReply, config_failure, sentinel};
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

pub(super) const PING_INTERVAL: Duration = Duration::from_secs(2);
/// With this a silent session lasts 4 to 6 s, which is less than the delivery timeout. A shorter time would
/// end a session over a slow disk.
pub(super) const PING_WAIT: Duration = Duration::from_secs(4);
/// The time for answers that are under way when we give a session up.
const GRACE: Duration = Duration::from_millis(200);

/// The address of a server, or of a sentinel that knows it.
#[derive(Debug, Clone)]
pub(crate) enum EntryPoint {
    Server { address: Address, database: u32 },
    Sentinel { sentinel: Address, master: String, database: u32 },
}

/// The way to one server.
pub(crate) type RedisLink = crate::link::Link<Session>;

/// Begins to dial. The first entry point that leads to a server is used. `reach` is the scope of this
/// server's failures.
pub(crate) fn start(
    config: Arc<RedisConfig>,
    targets: Vec<EntryPoint>,
    reach: Scope,
    name: Arc<str>,
) -> RedisLink {
    RedisLink::start("redis", reach, name, RedisDialler { config, targets, reach })
}

pub(crate) fn closed() -> Failure {
    Failure::of_sink("redis.closed", "the sink was closed")
}

impl EntryPoint {
    pub(super) async fn find(&self, config: &RedisConfig, name: &str) -> Result<(Address, u32), Failure> {
        match self {
            Self::Server { address, database } => Ok((address.clone(), *database)),
            Self::Sentinel { sentinel, master, database } => {
                Ok((sentinel::master(config, sentinel, master, name).await?, *database))
            }
        }
    }
}

struct RedisDialler {
    config: Arc<RedisConfig>,
    targets: Vec<EntryPoint>,
    reach: Scope,
}

#[async_trait]
impl Dial for RedisDialler {
    type Server = EntryPoint;
    type Session = Session;

    fn servers(&self) -> &[EntryPoint] {
        &self.targets
    }

    async fn live_through(&self, target: &EntryPoint, port: &Port<Session>) -> Ended {
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
        session.backlog.close();
        if session.unfit.borrow().is_some() {
            sleep(GRACE).await;
        }
        Ended::Lost(failure)
    }
}

/// The tasks that carry a session's two connections. Dropping them ends the session.
struct Drivers {
    plain: Driver,
    fence: Driver,
}

/// Why a request has no replies.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Its time was over before its turn came. It never left.
    Late,
    /// It never left.
    Unsent(Failure),
    /// It may have left.
    Lost(RedisError),
}

/// Two connections to one server.
#[derive(Debug)]
pub(crate) struct Session {
    plain: Connection,
    fence: Mutex<Fence>,
    fence_life: Arc<Life>,
    pub(crate) backlog: ReplyBacklog,
    pub(super) address: Address,
    database: u32,
    pub(crate) server: String,
    pub(crate) loopback: bool,
    /// As whom we are connected, in words.
    pub(crate) identity: String,
    pub(crate) reach: Scope,
    /// The longest string that the server takes, if we may know it.
    pub(crate) bulk_bytes_max: Option<usize>,
    unfit: watch::Sender<Option<Failure>>,
}

/// A connection that nobody else uses.
#[derive(Debug)]
pub(crate) struct OwnConnection {
    connection: Connection,
    _driver: Driver,
}

impl OwnConnection {
    /// A reply for each command; errors of the server are among them.
    pub(crate) async fn ask(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.connection.ask(commands).await
    }
}

/// A connection inside a transaction that has no commands yet.
#[derive(Debug)]
struct Fence {
    connection: Connection,
    /// Whether the server has confirmed the transaction. It is false while a run is on its way, and after a
    /// call was dropped meanwhile.
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
            fence_life: Arc::clone(&fence.life),
            fence: Mutex::new(Fence { connection: fence, open: false }),
            backlog: ReplyBacklog::default(),
            address: address.clone(),
            database,
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

    /// Sends commands that have nothing to do with each other, for one reply each. `end` is their end in the
    /// backlog.
    pub(crate) async fn send_each(&self, commands: &Pipeline, end: u64) -> Result<Vec<Value>, Broken> {
        let replies = self.plain.ask(commands).await.map_err(Broken::Lost)?;
        self.backlog.answered(SessionConnection::Plain, end);
        Ok(replies)
    }

    /// Sends commands of which all are done or none, except for those whose result in the list of `EXEC` is
    /// an error. There is one reply for each command, and then that of `EXEC`. Nothing leaves after `until`.
    pub(crate) async fn send_together(
        &self,
        mut commands: Pipeline,
        end: u64,
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
        // If this future is dropped below, nobody knows how far the server came.
        fence.open = false;
        let mut replies = fence.connection.ask(&commands).await.map_err(Broken::Lost)?;
        fence.open = replies.pop() == Some(Value::Okay);
        self.backlog.answered(SessionConnection::Fence, end);
        Ok(replies)
    }

    /// One more connection to the same server, for requests that keep it waiting. It ends when it is dropped.
    pub(crate) async fn another(&self, config: &RedisConfig, name: &str) -> Result<OwnConnection, Failure> {
        let (connection, driver) = open(config, &self.address, self.database, name).await?;
        Ok(OwnConnection { connection, _driver: driver })
    }

    /// Asks questions beside the events, for a reply each.
    pub(crate) async fn ask(&self, questions: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.plain.ask(questions).await
    }

    /// Whether the server answers anything at all, be it this question or what stands before it.
    pub(crate) async fn is_there(&self, within: Duration) -> bool {
        let asked = Instant::now();
        match timeout(within, self.plain.ask_one(&cmd("PING"))).await {
            Ok(answer) => answer.is_ok(),
            Err(_) => self.plain.life.heard() > asked,
        }
    }

    /// Gives the session up, because another one may be better.
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
            failure = self.keep_fence() => failure,
            found = unfit.wait_for(Option::is_some) => {
                found.ok().and_then(|unfit| unfit.clone()).unwrap_or_else(lost)
            }
        }
    }

    async fn keep_alive(&self) -> Failure {
        loop {
            sleep(PING_INTERVAL).await;
            if let Some(failure) = self.unless_silent(self.ping(), &self.plain.life).await {
                return failure;
            }
        }
    }

    /// Watches the fence, which can be gone alone: a gateway may have forgotten one of two connections. The
    /// fence has one user at a time, so this waits behind the runs.
    async fn keep_fence(&self) -> Failure {
        loop {
            sleep(PING_INTERVAL).await;
            let end = self.backlog.end(SessionConnection::Fence);
            let opened = async { self.fence.lock().await.open(self).await };
            if let Some(failure) = self.unless_silent(opened, &self.fence_life).await {
                return failure;
            }
            self.backlog.answered(SessionConnection::Fence, end);
        }
    }

    /// Why the session is over, if it is. A narrow line is not silent, because what it carries is answered
    /// bit by bit.
    async fn unless_silent(
        &self,
        question: impl Future<Output = Result<(), Failure>>,
        life: &Life,
    ) -> Option<Failure> {
        tokio::select! {
            answer = question => answer.err(),
            () = life.silence(PING_WAIT) => {
                let seconds = PING_WAIT.as_secs();
                Some(self.unreachable(&format!("the server has not answered for {seconds} s")))
            }
        }
    }

    async fn ping(&self) -> Result<(), Failure> {
        let end = self.backlog.end(SessionConnection::Plain);
        let answer = self.plain.ask_one(&cmd("PING")).await;
        if let Value::ServerError(error) = answer.map_err(|error| self.unreachable(&error.to_string()))?
            && ErrorReply::of(&error).ends_session()
        {
            let text = format!("{} refuses {}: {error}", self.server, self.identity);
            return Err(Failure::of_sink("redis.auth", text));
        }
        self.backlog.answered(SessionConnection::Plain, end);
        Ok(())
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::of_sink("redis.unreachable", format!("{}: {why}", self.server))
    }
}

impl Fence {
    /// Leaves the transaction, if there is one, and begins a new one. An error means that no transaction is
    /// open.
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

#[cfg(test)]
mod tests {
    use super::super::connection::tests::{commands, connected};
    use super::super::topology;
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    struct Ends {
        plain: DuplexStream,
        fence: DuplexStream,
    }

    /// A session, and the server's ends of its connections.
    async fn session() -> (Arc<Session>, Drivers, Ends) {
        let (plain, plain_driver, plain_end) = connected().await;
        let (fence, fence_driver, fence_end) = connected().await;
        let session = Session {
            plain,
            fence_life: Arc::clone(&fence.life),
            fence: Mutex::new(Fence { connection: fence, open: true }),
            backlog: ReplyBacklog::default(),
            database: 0,
            server: "redis://h:1".to_owned(),
            address: topology::server(topology::SHAPE, "redis://h:1").expect("an address").0,
            loopback: false,
            identity: "a user".to_owned(),
            reach: Scope::Sink,
            bulk_bytes_max: None,
            unfit: watch::Sender::new(None),
        };
        let drivers = Drivers { plain: plain_driver, fence: fence_driver };
        (Arc::new(session), drivers, Ends { plain: plain_end, fence: fence_end })
    }

    /// Answers each line that looks like a command with the same words.
    async fn answer_all(mut end: DuplexStream) {
        let mut taken = [0; 4096];
        while let Ok(bytes @ 1..) = end.read(&mut taken).await {
            for _ in taken[..bytes].iter().filter(|byte| **byte == b'*') {
                end.write_all(b"+OK\r\n").await.expect("somebody reads");
            }
        }
    }

    /// Replies come one by one, and the answer to a ping comes behind them all.
    #[tokio::test(start_paused = true)]
    async fn a_narrow_line_is_not_silent() {
        let (session, mut drivers, Ends { plain: mut end, fence }) = session().await;
        tokio::spawn(answer_all(fence));
        let (request, asked) = (commands(30), Instant::now());
        let slowly = async {
            for _ in 0..30 {
                sleep(Duration::from_secs(1)).await;
                end.write_all(b"+OK\r\n").await.expect("somebody reads");
            }
            end
        };
        let replies = async {
            let bytes = session.backlog.add(SessionConnection::Plain, 100_000);
            session.send_each(&request, bytes).await
        };
        let answered = async { tokio::join!(replies, slowly) };
        tokio::select! {
            failure = session.serve(&mut drivers) => panic!("{failure:?} after {:?}", asked.elapsed()),
            (replies, end) = answered => {
                assert_eq!(replies.expect("all replies").len(), 30);
                drop(end);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_from_which_nothing_comes_is_silent_within_6_s() {
        let (session, mut drivers, ends) = session().await;
        let asked = Instant::now();
        let failure = session.serve(&mut drivers).await;
        assert!(failure.message.contains("not answered"), "{failure:?}");
        assert!(asked.elapsed() <= PING_INTERVAL + PING_WAIT + Duration::from_millis(10));
        drop(ends);
    }

    /// One of the two connections is gone, and the other one answers.
    #[tokio::test(start_paused = true)]
    async fn a_fence_that_does_not_answer_ends_the_session() {
        for is_used in [false, true] {
            let (session, mut drivers, Ends { plain, fence }) = session().await;
            tokio::spawn(answer_all(plain));
            let run = async {
                if is_used {
                    let until = Instant::now() + Duration::from_secs(600);
                    let _ = session.send_together(commands(2), 0, until).await;
                }
                std::future::pending::<()>().await;
            };
            let asked = Instant::now();
            let failure = tokio::select! {
                failure = session.serve(&mut drivers) => failure,
                () = run => unreachable!("it does not end"),
                () = sleep(Duration::from_secs(60)) => panic!("the session goes on ({is_used})"),
            };
            assert!(failure.message.contains("not answered"), "{failure:?}");
            assert!(asked.elapsed() <= PING_INTERVAL + PING_WAIT + Duration::from_millis(10));
            drop(fence);
        }
    }
}
