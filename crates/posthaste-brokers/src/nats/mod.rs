//! NATS JetStream.
//!
//! An event becomes a message on the subject that its route names, with the event's id as `Message-ID`, and
//! `Nats-Msg-Id` = the id and the subject. A stream must listen on that subject, because only JetStream's
//! acknowledgement is called `Delivered`. A core publish "succeeds" without anybody storing it (F40). So a
//! subject without a stream is an outage of that destination until somebody makes the stream.
//!
//! NATS has no null, so a tombstone is an empty payload with the header `Posthaste-Tombstone: true`. Its
//! clients trim header values, so white space around a key is lost in the header `key`.
//!
//! # How it is built
//!
//! Here are the options. `client` has the connections, by way of async-nats, and knows nothing of events.
//! `sink` publishes a call's messages, which `entry` makes of events. `verdict` is the table below in code.
//! `examine` looks at the broker for `posthaste doctor`, and `topology` for its administrator. `source` reads
//! streams.
//!
//! The acknowledgements come to an inbox of our own, where the reply subject says which message of which
//! call is meant. So there is nothing to keep for a message that is never answered.
//!
//! # What an acknowledgement is worth
//!
//! JetStream answers when the message is written, and syncs its files every two minutes unless
//! `sync_interval: always` is set. So a power cut can take what was acknowledged before (F38). Replicas on
//! other machines cover that. `Nats-Msg-Id` suppresses duplicates within the stream's duplicate window, which
//! is two minutes by default. So an event that is sent again after a longer outage may be there twice (F39).
//!
//! # Verdicts
//!
//! | what happened | verdict | scope | code |
//! |---|---|---|---|
//! | acknowledged, also as a duplicate | `Delivered` | | |
//! | nobody listens on the subject, stream not found | `Retry` | destination | `nats.no_stream` |
//! | larger than the server or the stream takes | `Rejected` | event | `nats.too_large` |
//! | the same, by a limit of 30 s ago or from before TLS | `Retry` | event | `nats.too_large` |
//! | the stream is full and discards new messages | `Retry` | destination | `nats.stream_full` |
//! | memory, storage or account limits; too many requests | `Retry` | destination | `nats.resources` |
//! | the stream could not write | `Retry` | destination | `nats.store_failed` |
//! | no leader, stream offline, JetStream off | `Retry` | destination | `nats.unavailable` |
//! | the stream is sealed | `Rejected` | destination | `nats.sealed` |
//! | a `Nats-Expected-…` header does not hold | `Rejected` | event | `nats.expectation` |
//! | a `Nats-…` header that this stream does not take | `Rejected` | event | `nats.bad_header` |
//! | a header that cannot travel (line break in the key) | `Rejected` | event | `nats.bad_header` |
//! | the first copy of this event is still being written | `Retry` | destination | `nats.in_process` |
//! | any other error of the API | `Retry` | event, from 500 on destination | `nats.api_error` |
//! | not allowed to publish there | `Retry` | destination | `nats.denied` |
//! | not allowed to hear the answers, or to ask for them there | `Retry` | sink | `nats.denied` |
//! | empty, spaces, wildcards, empty parts; `$JS.`, `$SYS.` | `Rejected` | event | `nats.bad_subject` |
//! | connection lost after sending / before | `Unknown` / `Retry` | sink | `nats.connection_lost` |
//! | the same, over the largest message that was sent | `Unknown` | event | `nats.connection_lost` |
//! | no answer in time, the server answers otherwise | `Unknown` | destination | `nats.ack_timeout` |
//! | no answer in time, the server is silent | `Unknown` | sink | `nats.ack_timeout` |
//! | not sent in the first half of the time, and the server answers | `Held` | | |
//! | not sent, the server is about to stop | `Held` | | |
//! | not sent in time, the server is silent | `Retry` | sink | `nats.ack_timeout` |
//! | no connection | `Retry` | sink | `nats.unreachable` |
//! | TLS refused: authority, name, expiry, client certificate | `Retry` | sink | `nats.tls` |
//! | user, password, token or key refused | `Retry` | sink | `nats.auth` |
//! | a file of the configuration can no longer be read | `Retry` | sink | `nats.config` |
//! | the sink was closed | `Retry` | sink | `nats.closed` |

mod client;
mod entry;
mod examine;
mod sink;
mod source;
mod topology;
mod verdict;

pub use examine::CHECKS;
pub use sink::NatsSink;
pub use source::{CHECKS as SOURCE_CHECKS, NatsLog, NatsQueue};
pub(crate) use source::{NatsSourceKeys, examine as examine_source, start as start_source};
pub(crate) use topology::NatsAdmin;
pub(crate) use verdict::check_subject;

use crate::address::{Address, Scheme, Shape};
use crate::options::{Options, has_options};
use crate::{BuildError, Secret, Urls};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How addresses look.
const SHAPE: Shape = Shape {
    schemes: &[
        Scheme { name: "nats", tls: false, port: 4222 },
        Scheme { name: "tls", tls: true, port: 4222 },
        Scheme { name: "ws", tls: false, port: 80 },
        Scheme { name: "wss", tls: true, port: 443 },
    ],
    needs_scheme: false,
    has_path: false,
    example: "nats://host:4222",
    credentials: "user with password_file, or token_file",
};
/// Enough for full throughput (measured: 256 reach half of it). Other clients of JetStream stop by themselves
/// at 5,000.
const MAX_IN_FLIGHT: usize = 4_096;
/// Far more than helps. A server has queues of its own that overflow.
const MAX_IN_FLIGHT_LIMIT: usize = 32_768;
/// JetStream's own default.
const ACK_WAIT_MS: u64 = 30_000;

/// Options of a NATS sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::options::with_default::<MAX_IN_FLIGHT>))]
#[serde(deny_unknown_fields)]
pub struct NatsConfig {
    /// One server or several, tried in this order: `nats://host:4222`, or `tls://` where TLS is required;
    /// `ws://` and `wss://` for a WebSocket.
    #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
    pub url: Urls,
    /// A token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub token: Option<Secret>,
    /// A file with a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// A `.creds` file: JWT and key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creds_file: Option<PathBuf>,
    /// A file with an NKey seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nkey_file: Option<PathBuf>,
    /// First part of the subjects that acknowledgements come to; the user must be allowed to subscribe
    /// to `PREFIX.>`.
    #[serde(default = "inbox_prefix")]
    pub inbox_prefix: String,
    /// Begin with TLS, before the server has said anything. The server must be set up for it
    /// (`handshake_first`).
    #[serde(default)]
    pub tls_first: bool,
    /// Use servers that a cluster tells of, when none of `url` answers. Certificates must name them.
    #[serde(default)]
    pub discover_servers: bool,
    /// Try the servers of `url` in an order that is drawn at the start, so that relays spread over a cluster.
    #[serde(default)]
    pub shuffle_servers: bool,
    /// For a source without order: how long a durable consumer that is made waits for a sign of a member. A
    /// sink has no such key.
    #[serde(skip, default = "ack_wait_ms")]
    pub ack_wait_ms: u64,
    /// What every broker has: delivery timeout, window, login and TLS.
    #[serde(flatten, skip_deserializing, default = "options")]
    #[cfg_attr(feature = "schema", schemars(flatten, !skip_deserializing))]
    pub options: Options,
}

fn options() -> Options {
    Options::new(MAX_IN_FLIGHT)
}

fn ack_wait_ms() -> u64 {
    ACK_WAIT_MS
}

fn inbox_prefix() -> String {
    "_INBOX".to_owned()
}

has_options!(NatsConfig);

impl NatsConfig {
    /// A sink for this server, or these, separated by commas, with every default.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: Urls::new(url),
            options: options(),
            token: None,
            token_file: None,
            creds_file: None,
            nkey_file: None,
            inbox_prefix: inbox_prefix(),
            tls_first: false,
            discover_servers: false,
            shuffle_servers: false,
            ack_wait_ms: ACK_WAIT_MS,
        }
    }

    /// Checks what can be checked without a server.
    pub(crate) fn check(&self) -> Result<Vec<Address>, BuildError> {
        let addresses = self.check_words()?;
        client::check(self)?;
        Ok(addresses)
    }

    /// Checks what can be checked without a server and without the files it names.
    pub(crate) fn check_words(&self) -> Result<Vec<Address>, BuildError> {
        self.options.check_words(MAX_IN_FLIGHT_LIMIT)?;
        self.options.check_user()?;
        if let Err(why) = verdict::check_subject(&self.inbox_prefix) {
            return Err(BuildError::option("inbox_prefix", why));
        }
        if !(1_000..=3_600_000).contains(&self.ack_wait_ms) {
            return Err(BuildError::option("ack_wait_ms", "must be 1000 to 3600000"));
        }
        // A server keeps these prefixes for replies of its own, and drops a message that names one.
        if let Some("_R_" | "_GR_") = self.inbox_prefix.split('.').next() {
            return Err(BuildError::option("inbox_prefix", "belongs to the server itself"));
        }
        self.addresses()
    }

    fn addresses(&self) -> Result<Vec<Address>, BuildError> {
        let parse = |url| {
            let (address, _) = SHAPE.parse(url)?;
            client::address(&address).map_err(|error| error.to_string())?;
            // A WebSocket has TLS from the beginning, or none.
            if client::is_websocket(&address) && !address.tls && self.wants_tls() {
                return Err("ws:// has no TLS, and TLS is asked for; use wss://".to_owned());
            }
            Ok(address)
        };
        let addresses: Result<Vec<_>, _> = self.url.iter().map(parse).collect();
        let addresses = addresses.map_err(|why| BuildError::option("url", why))?;
        if addresses.is_empty() {
            Err(BuildError::option("url", "there is no server"))
        } else {
            Ok(addresses)
        }
    }

    /// Whether no server is to be used without TLS, whatever its address says.
    fn wants_tls(&self) -> bool {
        self.options.wants_tls() || self.tls_first
    }

    /// As whom we log in, in words that hold no secret.
    fn identity(&self) -> String {
        let file = |what: &str, path: &PathBuf| format!("{what} {}", path.display());
        if let Some(user) = &self.options.user {
            return match &self.options.password_file {
                Some(path) => format!("user {user:?} with the password in {}", path.display()),
                None => format!("user {user:?}"),
            };
        }
        if let Some(path) = &self.token_file {
            return file("the token in", path);
        }
        if self.token.is_some() {
            return "the configured token".to_owned();
        }
        let files = [("the credentials in", &self.creds_file), ("the key in", &self.nkey_file)];
        let certificate = ("the certificate", &self.options.cert_file);
        let known =
            files.into_iter().chain([certificate]).find_map(|(what, path)| Some(file(what, path.as_ref()?)));
        known.unwrap_or_else(|| "a client without credentials".to_owned())
    }

    /// Whether a secret goes over the wire as it is.
    fn sends_secret(&self) -> bool {
        self.options.has_password() || self.token.is_some() || self.token_file.is_some()
    }
}
