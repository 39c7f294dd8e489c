//! Redis Streams.
//!
//! An event becomes an entry of the stream that its route names: one `XADD`, with the fields that `entry`
//! lists. A stream that does not exist is made by its first entry, as always with Redis.
//!
//! # How it is built
//!
//! Here are the options. `client` is the way to a server, to the one that sentinels name, or to those of a
//! cluster. `entry` turns an event into a command. `sink` holds it all together. `publisher` carries one
//! call's messages to their servers, and `answer` reads the replies. `verdict` is the table below in code.
//! `examine` looks at the servers for `posthaste doctor`.
//!
//! # Order
//!
//! Redis answers each command of a pipeline by itself, and any of them can fail alone: memory runs out
//! between two of them and is free again at the third, a right is taken and given back. So two messages of
//! one key must not stand in one pipeline. One at a time for each key is what NATS gets, and is too slow
//! here: a reply comes only after all that was sent before, so the most frequent of 1,000 Zipf keys, with an
//! eighth of all messages, would wait through thousands of others each time.
//!
//! So the messages of one key in a call that go to the same stream travel in a transaction, `MULTI` … `EXEC`:
//! a *run*. A refusal for a reason outside of the data (memory, rights, a replica, a moved slot) comes when a
//! command is queued, and then the whole transaction is discarded. A refusal at `EXEC` for a reason of the
//! data (the key holds no stream) is the same for every command of the run, because nobody can come between
//! them and they go to the same stream. So no message of a run can fail while a later one gets in. That is
//! what `Ordering::Overlap` asks for. A run waits until earlier calls have settled their messages of its key
//! (`Chain`). Keys with one message in a call need no transaction and go in an ordinary pipeline.
//!
//! One hole had to be closed: a user whose right to `MULTI` was taken away a moment ago. Then the commands
//! behind it would run one by one. So a run is only ever sent into a transaction that the server has
//! confirmed to be open. Runs have a connection of their own (the *fence*). Each run ends with `EXEC` and the
//! `MULTI` of the next, and the next run leaves when that `MULTI` was answered. To the client these are plain
//! commands, and not its `atomic` pipelines, which send `MULTI` and all the rest at once. One at a time costs
//! little, because a request holds runs of many keys, up to 256 messages. A Lua script for each run would be
//! one command and would need no such care. But it was measured at 1.5 times the server's CPU time for each
//! entry (7.0 against 4.7 µs), where a transaction costs nothing that could be measured (4.4 to 4.8).
//!
//! The server is one busy thread, so more connections than these two bring nothing. `docs/benchmarks.md` has
//! the figures.
//!
//! # What an acknowledgement is worth
//!
//! Redis answers when the entry is in memory. It is on the disk before the answer only with `appendonly yes`
//! and `appendfsync always`; by default up to a second is lost at a power cut. Replicas get it after the
//! answer: a failover can lose entries that were acknowledged, and `WAIT` narrows that gap without closing it
//! (F42). Eviction (`maxmemory-policy allkeys-…`) drops whole streams, and `MAXLEN` drops entries that nobody
//! has read. This sink trims only when `maxlen` is set. `XADD` knows no duplicates. An event that is sent
//! twice is there twice, with the same `id`, and the consumer's inbox drops the second.
//!
//! # Verdicts
//!
//! *Server* is the scope `sink`, and in a cluster `destination`: other servers go on.
//!
//! | what happened | verdict | scope | code |
//! |---|---|---|---|
//! | the id of the new entry | `Delivered` | | |
//! | the key holds something else than a stream (`WRONGTYPE`) | `Retry` | destination | `redis.wrong_type` |
//! | no memory, and nothing may be evicted (`OOM`) | `Retry` | server | `redis.oom` |
//! | a replica, after a failover (`READONLY`): connect anew | `Retry` | server | `redis.readonly` |
//! | it cannot write its files (`MISCONF`) | `Retry` | server | `redis.misconf` |
//! | too few replicas (`NOREPLICAS`) | `Retry` | server | `redis.no_replicas` |
//! | starting (`LOADING`), replica without master (`MASTERDOWN`) | `Retry` | server | `redis.loading` |
//! | a script blocks it (`BUSY`) | `Retry` | server | `redis.busy` |
//! | the slot has moved (`MOVED`): followed up to three times | `Retry` | destination | `redis.moved` |
//! | the slot is being moved (`ASK`, `TRYAGAIN`) | `Retry` | destination | `redis.migrating` |
//! | the cluster does not serve the slot (`CLUSTERDOWN`) | `Retry` | destination | `redis.cluster_down` |
//! | no node of the configuration is in a cluster | `Retry` | sink | `redis.cluster_down` |
//! | not allowed to write to this key (`NOPERM`) | `Retry` | destination | `redis.denied` |
//! | not allowed to use the command (`NOPERM`) | `Retry` | server | `redis.denied` |
//! | the stream has no ids left | `Retry` | destination | `redis.stream_full` |
//! | the server does not know the command | `Retry` | server | `redis.unsupported` |
//! | larger than the server takes | `Rejected` | event | `redis.too_large` |
//! | an empty name of a stream | `Rejected` | event | `redis.bad_stream` |
//! | any other error | `Retry` | event | `redis.error` |
//! | behind a message of its key that was refused | `Held` | | |
//! | connection lost after sending / before | `Unknown` / `Retry` | server | `redis.connection_lost` |
//! | the same, under more than 1 MiB, limit unknown | `Unknown` | event | `redis.connection_lost` |
//! | no answer in time | `Unknown` | server | `redis.timeout` |
//! | not sent in time, and the server is silent / answers | `Retry` / `Held` | server | `redis.timeout` |
//! | no connection, no sentinel, no node of the cluster | `Retry` | server | `redis.unreachable` |
//! | no sentinel knows the master | `Retry` | sink | `redis.sentinel` |
//! | TLS refused: authority, name, expiry, client certificate | `Retry` | server | `redis.tls` |
//! | user or password refused (`WRONGPASS`, `NOAUTH`) | `Retry` | server | `redis.auth` |
//! | a file of the configuration can no longer be read | `Retry` | server | `redis.config` |
//! | the sink was closed | `Retry` | sink | `redis.closed` |

mod answer;
mod client;
mod entry;
mod examine;
mod publisher;
mod sink;
mod source;
mod verdict;

pub use examine::CHECKS;
pub use sink::RedisSink;
pub use source::{CHECKS as SOURCE_CHECKS, RedisLog, RedisQueue};
pub(crate) use source::{RedisSourceKeys, examine as examine_source, start as start_source};

use crate::options::{Options, has_options};
use crate::{BuildError, Secret, Urls};
pub(crate) use client::{EntryPoint, ErrorReply, LoneLink, LoneSession, Topology, start_lone};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Enough for several calls of the relay at once. More would only wait in the server's queue.
const MAX_IN_FLIGHT: usize = 8_192;
const MAX_IN_FLIGHT_LIMIT: usize = 65_536;
/// Longer than any pause of a member that lives.
const CLAIM_AFTER_MS: u64 = 30_000;

/// Options of a Redis sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::options::with_default::<MAX_IN_FLIGHT>))]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// `redis://host:6379/0`, or `rediss://` with TLS. Several are nodes of a cluster, or, with
    /// `sentinel_master`, sentinels.
    #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
    pub url: Urls,
    /// The servers are a cluster. Several URLs say the same.
    #[serde(default)]
    pub cluster: bool,
    /// The name under which sentinels know the master; then `url` names the sentinels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel_master: Option<String>,
    /// Trim streams to this many entries, read or unread. Without it nothing is trimmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxlen: Option<u64>,
    /// Trim to exactly `maxlen`, instead of to about as many, which costs less.
    #[serde(default)]
    pub maxlen_exact: bool,
    /// User at the sentinels, where they want one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel_user: Option<String>,
    /// Password at the sentinels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub sentinel_password: Option<Secret>,
    /// A file with the password at the sentinels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel_password_file: Option<PathBuf>,
    /// For a source without order: how long an entry is idle with a member before others claim it. A sink has
    /// no such key.
    #[serde(skip, default = "claim_after_ms")]
    pub claim_after_ms: u64,
    /// What every broker has: delivery timeout, window, login and TLS.
    #[serde(flatten, skip_deserializing, default = "options")]
    #[cfg_attr(feature = "schema", schemars(flatten, !skip_deserializing))]
    pub options: Options,
}

fn options() -> Options {
    Options::new(MAX_IN_FLIGHT)
}

fn claim_after_ms() -> u64 {
    CLAIM_AFTER_MS
}

/// How streams are cut.
#[derive(Debug, Clone, Copy)]
struct Trim {
    entries: u64,
    exact: bool,
}

has_options!(RedisConfig);

impl RedisConfig {
    /// A sink for this server, or these, separated by commas, with every default.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: Urls::new(url),
            options: options(),
            cluster: false,
            sentinel_master: None,
            maxlen: None,
            maxlen_exact: false,
            sentinel_user: None,
            sentinel_password: None,
            sentinel_password_file: None,
            claim_after_ms: CLAIM_AFTER_MS,
        }
    }

    /// Checks what can be checked without a server.
    pub(crate) fn check(&self) -> Result<Topology, BuildError> {
        let topology = self.check_words()?;
        self.options.check_files()?;
        self.sentinel_login()?;
        Ok(topology)
    }

    /// Checks what can be checked without a server and without the files it names.
    pub(crate) fn check_words(&self) -> Result<Topology, BuildError> {
        self.options.check_words(MAX_IN_FLIGHT_LIMIT)?;
        // Redis reads it as a signed number.
        if self.maxlen.is_some_and(|most| most == 0 || i64::try_from(most).is_err()) {
            return Err(BuildError::option("maxlen", "must be at least 1; leave it out to trim nothing"));
        }
        if self.maxlen_exact && self.maxlen.is_none() {
            return Err(BuildError::option("maxlen_exact", "needs maxlen"));
        }
        if !(1_000..=3_600_000).contains(&self.claim_after_ms) {
            return Err(BuildError::option("claim_after_ms", "must be 1000 to 3600000"));
        }
        self.check_logins()?;
        self.topology()
    }

    fn trim(&self) -> Option<Trim> {
        self.maxlen.map(|entries| Trim { entries, exact: self.maxlen_exact })
    }
}
