//! The limiter that all gateways share: one number a tenant, and one script that takes from it.
//!
//! The script is [`posthaste::gcra::take`] on the server's clock, so a gateway whose clock is an hour off
//! limits nobody otherwise. It is one command: nobody can come between looking and taking, and a request
//! costs one round trip. Refused: counters that each gateway writes behind, because then nobody knows how
//! many passed; and the module `redis-cell`, which managed servers do not have.
//!
//! No request waits longer than `timeout_ms`. Connecting happens beside the requests: while there is no
//! connection the answer is `Lost`, at once. What follows from that is for
//! [`posthaste::intake::GuardedLimiter`].
//!
//! The login needs `+evalsha +eval +script|load +time +get +set ~ph:*`. A restarted server has forgotten
//! everybody: buckets are full again, which is at most one burst more for a tenant.

use super::reply::{self, Bucket};
use crate::options::source_keys;
use crate::redis::{EntryPoint, ErrorReply, LoneLink, LoneSession, RedisConfig, Topology, start_lone};
use crate::{BuildError, Secret, Urls};
use ::redis::{Cmd, RedisError, Value, cmd};
use async_trait::async_trait;
use posthaste::gcra::Rate;
use posthaste::intake::{LimitDecision, Limiter};
use posthaste::sink::Failure;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

source_keys! {
    /// Options of the limiter's server. They are those of a sink that say where it is, and as whom.
    RedisLimiterKeys, keys => RedisConfig: RedisConfig {
        url: keys.url,
        sentinel_master: keys.sentinel_master,
        sentinel_user: keys.sentinel_user,
        sentinel_password: keys.sentinel_password,
        sentinel_password_file: keys.sentinel_password_file,
        ..RedisConfig::new("")
    },
    {
        /// `redis://host:6379/0`, or `rediss://` with TLS: one server, or, with `sentinel_master`, sentinels.
        #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
        url: Urls,
        /// The name under which sentinels know the master; then `url` names the sentinels.
        sentinel_master: Option<String>,
        /// User at the sentinels, where they want one.
        sentinel_user: Option<String>,
        /// Password at the sentinels.
        #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
        sentinel_password: Option<Secret>,
        /// A file with the password at the sentinels.
        sentinel_password_file: Option<PathBuf>,
    }
}

/// What takes. For tests, which run it on a clock of their own.
#[doc(hidden)]
pub const SCRIPT: &str = include_str!("take.lua");

/// Limits tenants on a Redis server.
#[derive(Debug)]
pub struct RedisLimiter {
    link: LoneLink,
    timeout: Duration,
}

impl RedisLimiter {
    /// Checks the configuration and begins to connect. A server that is down is no error. `timeout` bounds
    /// each question.
    pub fn start(config: &RedisConfig, timeout: Duration, name: &str) -> Result<Self, BuildError> {
        config.check()?;
        let targets = check_words(config)?;
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        Ok(Self { link: start_lone(Arc::new(config.clone()), targets, name.into(), load), timeout })
    }

    /// Waits until the server was tried once, at most this long, and says why it is not there.
    pub async fn tried(&self, wait: Duration) -> Result<(), String> {
        self.link.session_if_any(wait).await.map(drop).map_err(told)
    }

    /// Ends the connection.
    pub async fn close(&self) {
        self.link.close().await;
    }
}

/// Checks what can be checked without a server and without the files it names.
pub(super) fn check_words(config: &RedisConfig) -> Result<Vec<EntryPoint>, BuildError> {
    match config.check_words()? {
        Topology::One(targets) => Ok(targets),
        Topology::Cluster(_) => Err(BuildError::option(
            "url",
            "the limiter cannot use a cluster: name one server, or sentinels with sentinel_master",
        )),
    }
}

fn told(failure: Failure) -> String {
    failure.message
}

#[async_trait]
impl Limiter for RedisLimiter {
    async fn take(&self, tenant: &Arc<str>, rate: Rate, events: u32) -> LimitDecision {
        let session = match self.link.session(Duration::ZERO).await {
            Ok(session) => session,
            Err(failure) => return LimitDecision::Lost(told(failure)),
        };
        let key = format!("ph:{tenant}:rate");
        match timeout(self.timeout, ask(&session, &key, rate, events)).await {
            Ok(Ok(reply)) => {
                give_up_if_useless(&session, &reply);
                let bucket = Bucket { server: &session.server, identity: &session.identity, key: &key };
                reply::decision(&reply, bucket)
            }
            Ok(Err(error)) => {
                LimitDecision::Lost(format!("the connection to {} was lost: {error}", session.server))
            }
            Err(_) => {
                let (server, ms) = (&session.server, self.timeout.as_millis());
                LimitDecision::Lost(format!("{server}: no answer within {ms} ms"))
            }
        }
    }
}

/// The script by its hash, and whole where the server has forgotten it.
async fn ask(session: &LoneSession, key: &str, rate: Rate, events: u32) -> Result<Value, RedisError> {
    let with = |mut command: Cmd, script: &[u8]| {
        // Written so that every bit comes back.
        command.arg(script).arg(1).arg(key).arg(rate.interval_us().to_string()).arg(rate.burst).arg(events);
        command
    };
    if let Value::BulkString(hash) = &session.first {
        let reply = session.ask(&with(cmd("EVALSHA"), hash)).await?;
        if !matches!(&reply, Value::ServerError(error) if error.code() == "NOSCRIPT") {
            return Ok(reply);
        }
    }
    session.ask(&with(cmd("EVAL"), SCRIPT.as_bytes())).await
}

/// After a failover another connection leads to the master, and after a rotation another password is right.
fn give_up_if_useless(session: &LoneSession, reply: &Value) {
    if let Value::ServerError(error) = reply
        && let error = ErrorReply::of(error)
        && error.ends_session()
    {
        let text = format!("{}: {} {}", session.server, error.code, error.words);
        let code = if error.code == "READONLY" { "redis.readonly" } else { "redis.auth" };
        session.give_up(Failure::of_sink(code, text));
    }
}
