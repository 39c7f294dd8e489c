//! A session of one connection, for questions that have nothing to do with events.
//!
//! It needs no transaction, and so no fence and no right to one. A node of a cluster is refused: there a
//! connection reaches a part of the keys only.

use super::connection::{self, Connection, Driver, Wanted};
use super::session::{EntryPoint, PING_INTERVAL, PING_WAIT};
use super::{ErrorReply, config_failure};
use crate::address::Address;
use crate::link::{Dial, Ended, Link, Port};
use crate::redis::RedisConfig;
use ::redis::{Cmd, Pipeline, RedisError, Value, cmd};
use async_trait::async_trait;
use posthaste::sink::{Failure, Scope};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// For an answer of a server that has just let us in.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);
const CLUSTER_ENABLED: &[u8] = b"cluster_enabled:1";

/// The way to the server of lone sessions.
pub(crate) type LoneLink = Link<LoneSession>;

/// Begins to dial. The first entry point that leads to a master is used. A new session asks `first`, and
/// keeps the answer.
pub(crate) fn start(
    config: Arc<RedisConfig>,
    targets: Vec<EntryPoint>,
    name: Arc<str>,
    first: Cmd,
) -> LoneLink {
    Link::start("redis", Scope::Sink, name, LoneDialler { config, targets, first })
}

/// One connection to one server.
#[derive(Debug)]
pub(crate) struct LoneSession {
    connection: Connection,
    pub(crate) server: String,
    pub(crate) identity: String,
    /// What the server said to the first question.
    pub(crate) first: Value,
    unfit: watch::Sender<Option<Failure>>,
}

impl LoneSession {
    /// Errors of the server are an answer, too.
    pub(crate) async fn ask(&self, question: &Cmd) -> Result<Value, RedisError> {
        self.connection.ask_one(question).await
    }

    /// Gives the session up, because another one may be better.
    pub(crate) fn give_up(&self, failure: Failure) {
        self.unfit.send_if_modified(|unfit| {
            let is_first = unfit.is_none();
            unfit.get_or_insert(failure);
            is_first
        });
    }

    async fn serve(&self, driver: &mut Driver) -> Failure {
        let mut unfit = self.unfit.subscribe();
        let lost = || self.unreachable("the connection was lost");
        tokio::select! {
            _ = driver => lost(),
            failure = self.keep_alive() => failure,
            found = unfit.wait_for(Option::is_some) => {
                found.ok().and_then(|unfit| unfit.clone()).unwrap_or_else(lost)
            }
        }
    }

    async fn keep_alive(&self) -> Failure {
        loop {
            sleep(PING_INTERVAL).await;
            let question = cmd("PING");
            let answer = tokio::select! {
                answer = self.ask(&question) => answer,
                () = self.connection.life.silence(PING_WAIT) => {
                    let seconds = PING_WAIT.as_secs();
                    return self.unreachable(&format!("the server has not answered for {seconds} s"));
                }
            };
            match answer {
                Ok(Value::ServerError(error)) if ErrorReply::of(&error).ends_session() => {
                    let text = format!("{} refuses {}: {error}", self.server, self.identity);
                    return Failure::of_sink("redis.auth", text);
                }
                Ok(_) => {}
                Err(error) => return self.unreachable(&error.to_string()),
            }
        }
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::of_sink("redis.unreachable", format!("{}: {why}", self.server))
    }
}

struct LoneDialler {
    config: Arc<RedisConfig>,
    targets: Vec<EntryPoint>,
    first: Cmd,
}

impl LoneDialler {
    async fn dial(&self, target: &EntryPoint, name: &str) -> Result<(Arc<LoneSession>, Driver), Failure> {
        let (address, database) = target.find(&self.config, name).await?;
        let login = self.config.login(database).map_err(|error| config_failure(&error))?;
        let (connection, driver) =
            connection::open(&self.config, &address, login, name, Wanted::Master).await?;
        let first = ask_first(&connection, &address, &self.first).await?;
        let session = LoneSession {
            connection,
            server: address.to_string(),
            identity: self.config.identity(),
            first,
            unfit: watch::Sender::new(None),
        };
        Ok((Arc::new(session), driver))
    }
}

/// Whether this is a single server, and the first question.
async fn ask_first(connection: &Connection, address: &Address, first: &Cmd) -> Result<Value, Failure> {
    let mut questions = Pipeline::new();
    questions.cmd("INFO").arg("cluster").add_command(first.clone());
    let replies = timeout(FIRST_TIMEOUT, connection.ask(&questions)).await;
    let replies = replies.map_err(|_| connection::unreachable(address, "no answer in time"))?;
    let mut replies = replies.map_err(|error| connection::lost(address, &error))?;
    let first = replies.pop().unwrap_or(Value::Nil);
    // Whoever may not ask learns it from the first key that is elsewhere.
    if let Some(Value::BulkString(info)) = replies.pop()
        && info.windows(CLUSTER_ENABLED.len()).any(|words| words == CLUSTER_ENABLED)
    {
        let text = format!(
            "{address} is a node of a cluster: name a single server, or sentinels with sentinel_master"
        );
        return Err(Failure::of_sink("redis.unsupported", text));
    }
    Ok(first)
}

#[async_trait]
impl Dial for LoneDialler {
    type Server = EntryPoint;
    type Session = LoneSession;

    fn servers(&self) -> &[EntryPoint] {
        &self.targets
    }

    async fn live_through(&self, target: &EntryPoint, port: &Port<LoneSession>) -> Ended {
        let (session, mut driver) = match port.unless_closed(self.dial(target, port.sink())).await {
            Some(Ok(opened)) => opened,
            Some(Err(failure)) => return Ended::NeverBegan(self.config.options.tls().name_in(failure)),
            None => return Ended::NeverBegan(port.closed()),
        };
        tracing::info!(sink = port.sink(), server = session.server, "connected");
        port.up(&session);
        let served = port.unless_closed(session.serve(&mut driver)).await;
        Ended::Lost(served.unwrap_or_else(|| port.closed()))
    }
}
