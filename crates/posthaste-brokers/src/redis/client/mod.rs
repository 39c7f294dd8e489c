//! The way to Redis: connections, logins, TLS, and finding the server by sentinels or in a cluster.
//!
//! A connection is redis-rs' `MultiplexedConnection` over a stream that we have dialled ourselves
//! (`connection`): one connection, many requests at once, replies in the order of the requests. It never
//! reconnects; [`crate::link`] does, and each time with files and passwords that are read anew. A [`Session`]
//! is two connections to one server. `sentinel` and `cluster` find the server or the servers.
//!
//! The crate's own cluster and sentinel clients are not used. They send again by themselves what was refused
//! or lost, after messages that came later, and so they would lose a key's order. Its `ConnectionManager`
//! reconnects by itself, and its own TLS takes the crypto provider from the process.

mod backlog;
mod cluster;
mod connection;
mod life;
mod lone;
mod sentinel;
mod session;
mod topology;

pub(super) use backlog::{BYTES_MIN, SessionConnection};
pub(crate) use lone::{LoneLink, LoneSession, start as start_lone};
pub(crate) use session::EntryPoint;
pub(super) use session::{Broken, OwnConnection, Session};
pub(crate) use topology::Topology;

use super::RedisConfig;
use crate::BuildError;
use ::redis::ServerError;
use cluster::Cluster;
use posthaste::sink::{Failure, Scope};
use session::RedisLink;
use std::sync::Arc;
use std::time::Duration;

/// The server, or the servers.
#[derive(Debug)]
pub(super) enum Servers {
    One(RedisLink),
    Many(Cluster),
}

/// Begins to connect, and connects again whenever a session is lost. A server that is down is no error.
pub(super) fn connect(config: &Arc<RedisConfig>, topology: Topology, name: &str) -> Servers {
    let (config, name) = (Arc::clone(config), Arc::from(name));
    match topology {
        Topology::One(targets) => Servers::One(session::start(config, targets, Scope::Sink, name)),
        Topology::Cluster(seeds) => Servers::Many(Cluster::start(config, seeds, name)),
    }
}

impl Servers {
    /// The scope of one server's failures.
    pub(super) fn reach(&self) -> Scope {
        match self {
            Self::One(_) => Scope::Sink,
            Self::Many(_) => Scope::Destination,
        }
    }

    /// The session for a stream, which may be waited for this long, or why there is none.
    pub(super) async fn session(&self, stream: &str, wait: Duration) -> Result<Arc<Session>, Failure> {
        match self {
            Self::One(link) => link.session(wait).await,
            Self::Many(cluster) => cluster.session(stream, wait).await,
        }
    }

    /// For each server the session with it, or why there is none, as soon as each was tried once.
    pub(super) async fn sessions(&self, wait: Duration) -> Vec<Result<Arc<Session>, Failure>> {
        match self {
            Self::One(link) => vec![link.session_if_any(wait).await],
            Self::Many(cluster) => cluster.sessions(wait).await.unwrap_or_else(|failure| vec![Err(failure)]),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::One(link) => link.close().await,
            Self::Many(cluster) => cluster.close().await,
        }
    }
}

/// An error reply: the word it begins with, and the rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ErrorReply<'a> {
    pub(crate) code: &'a str,
    pub(crate) words: &'a str,
}

impl<'a> ErrorReply<'a> {
    pub(crate) fn of(error: &'a ServerError) -> Self {
        let words = error.details().unwrap_or_default();
        // `EXEC` repeats the reason for which it was refused.
        let inner = words.split_once("because of: ").and_then(|(_, reason)| reason.split_once(' '));
        match (error.code(), inner) {
            ("EXECABORT", Some((code, words))) => Self { code, words },
            (code, _) => Self { code, words },
        }
    }

    /// Where a moved slot is now: its number and `host:port`.
    pub(super) fn moved(self) -> Option<(u16, &'a str)> {
        let (slot, address) = self.words.split_once(' ').filter(|_| self.code == "MOVED")?;
        Some((slot.parse().ok()?, address.trim()))
    }

    /// Whether this connection is of no more use, because another one may lead to the master, or be let in.
    pub(crate) fn ends_session(self) -> bool {
        matches!(self.code, "READONLY" | "NOAUTH" | "WRONGPASS")
    }
}

fn config_failure(error: &BuildError) -> Failure {
    Failure::of_sink("redis.config", error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_moved_slot_is() {
        let moved = |code, words| ErrorReply { code, words }.moved();
        assert_eq!(moved("MOVED", "3999 127.0.0.1:6381"), Some((3999, "127.0.0.1:6381")));
        assert_eq!(moved("MOVED", "3999 :6381"), Some((3999, ":6381")));
        assert_eq!(moved("ASK", "3999 127.0.0.1:6381"), None);
        assert_eq!(moved("MOVED", "x"), None);
    }
}
