//! NATS JetStream.
//!
//! An event becomes a message on the subject that its route names, with the event's id as
//! `Message-ID`, and `Nats-Msg-Id` = the id and the subject.
//! A stream must listen on that subject: JetStream's acknowledgement is the only thing that is called
//! `Delivered`. A core publish "succeeds" without anybody storing it (F40), so a subject without a stream
//! is an outage of that destination until somebody makes the stream.
//!
//! NATS has no null, so a tombstone is an empty payload with the header `Posthaste-Tombstone: true`. Its
//! clients trim header values, so white space around a key is lost in the header `key`.
//!
//! # How it is built
//!
//! Here are the options. `link` keeps one connection at a time; `dial` opens it and `login` says who we are. `wire`
//! carries it: `entry` writes messages into the `outbox`, `frame` reads what comes, `ack` knows an acknowledgement when
//! it sees one, and `session` gives it to whom it is for. `flight` publishes a call's messages, one in flight for each
//! key, and collects their answers; `sink` starts flights. `verdict` is the table below in code. `examine` looks at the
//! broker for `posthaste doctor`, by way of `streams`.
//!
//! The connection is our own, and not the client crate's: docs/adr/0011 says why.
//!
//! The acknowledgements come to an inbox of our own, where the reply subject says which message of which
//! call is meant. So there is nothing to keep for a message that is never answered.
//!
//! # What an acknowledgement is worth
//!
//! JetStream answers when the message is written, and syncs its files every two minutes unless
//! `sync_interval: always` is set: a power cut can take what was acknowledged before (F38). Replicas on
//! other machines cover that. `Nats-Msg-Id` suppresses duplicates within the stream's duplicate window,
//! two minutes by default: an event that is sent again after a longer outage may be there twice (F39).
//!
//! # Verdicts
//!
//! | what happened | verdict | scope | code |
//! |---|---|---|---|
//! | acknowledged, also as a duplicate | `Delivered` | | |
//! | nobody listens on the subject, stream not found | `Retry` | destination | `nats.no_stream` |
//! | larger than the server or the stream takes | `Rejected` | event | `nats.too_large` |
//! | larger by a word of the server that came before TLS, and by no other | `Retry` | event | `nats.too_large` |
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
//! | empty, with spaces, wildcards or empty parts; `$JS.`, `$SYS.` | `Rejected` | event | `nats.bad_subject` |
//! | connection lost after sending / before | `Unknown` / `Retry` | sink | `nats.connection_lost` |
//! | no answer in time, the server answers otherwise | `Unknown` | destination | `nats.ack_timeout` |
//! | no answer in time, the server is silent | `Unknown` | sink | `nats.ack_timeout` |
//! | not sent in the first half of the time, the server answers: the window was full, or its key had many | `Held` | | |
//! | not sent, the server is about to stop | `Held` | | |
//! | not sent in time, the server is silent | `Retry` | sink | `nats.ack_timeout` |
//! | no connection | `Retry` | sink | `nats.unreachable` |
//! | TLS refused: authority, name, expiry, client certificate | `Retry` | sink | `nats.tls` |
//! | user, password, token or key refused | `Retry` | sink | `nats.auth` |
//! | a file of the configuration can no longer be read | `Retry` | sink | `nats.config` |
//! | the sink was closed | `Retry` | sink | `nats.closed` |

mod ack;
mod address;
mod dial;
mod entry;
mod examine;
mod flight;
mod frame;
mod link;
mod login;
mod outbox;
mod session;
mod sink;
mod streams;
mod verdict;
mod wire;

pub use examine::CHECKS;
pub use sink::NatsSink;

use crate::tls::Files;
use crate::{BuildError, Secret, Urls};
use address::Address;
use login::Login;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Shorter than the relay's own bound of 10 s for a publish, so that it is the sink that says what a
/// silent broker means.
const DELIVERY_TIMEOUT_MS: u64 = 8_000;
/// Enough for full throughput (measured: 256 reach half of it), and below the 5,000 at which other
/// clients of JetStream stop by themselves.
const MAX_IN_FLIGHT: usize = 4_096;
/// Far more than helps; a server has queues of its own that overflow.
const MAX_IN_FLIGHT_LIMIT: usize = 32_768;

/// Options of a NATS sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NatsConfig {
    /// One server or several, tried in this order: `nats://host:4222`, or `tls://` where TLS is required.
    #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
    pub url: Urls,
    /// How long a message may take from the call to the acknowledgement.
    #[serde(default = "delivery_timeout_ms")]
    pub delivery_timeout_ms: u64,
    /// Messages of all calls together that wait for their acknowledgement.
    #[serde(default = "max_in_flight")]
    pub max_in_flight: usize,
    /// User name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub password: Option<Secret>,
    /// A file with the user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
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
    /// The authority that signed the servers' certificates, instead of those of the system (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Our own certificate (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// Its key (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Refuse servers without TLS. Naming one of the three files says the same.
    #[serde(default)]
    pub require_tls: bool,
    /// First part of the subjects that acknowledgements come to; the user must be allowed to subscribe
    /// to `PREFIX.>`.
    #[serde(default = "inbox_prefix")]
    pub inbox_prefix: String,
}

fn delivery_timeout_ms() -> u64 {
    DELIVERY_TIMEOUT_MS
}

fn max_in_flight() -> usize {
    MAX_IN_FLIGHT
}

fn inbox_prefix() -> String {
    "_INBOX".to_owned()
}

impl NatsConfig {
    /// A sink for this server, or these, separated by commas, with every default.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: Urls::new(url),
            delivery_timeout_ms: DELIVERY_TIMEOUT_MS,
            max_in_flight: MAX_IN_FLIGHT,
            user: None,
            password: None,
            password_file: None,
            token: None,
            token_file: None,
            creds_file: None,
            nkey_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            require_tls: false,
            inbox_prefix: inbox_prefix(),
        }
    }

    /// Checks what can be checked without a server.
    pub(crate) fn check(&self) -> Result<Vec<Address>, BuildError> {
        let addresses = self.check_words()?;
        self.tls().client_config()?;
        Login::read(self)?;
        Ok(addresses)
    }

    /// Checks what can be checked without a server and without the files it names.
    pub(crate) fn check_words(&self) -> Result<Vec<Address>, BuildError> {
        if !(100..=600_000).contains(&self.delivery_timeout_ms) {
            return Err(BuildError::option("delivery_timeout_ms", "must be between 100 and 600000"));
        }
        if !(1..=MAX_IN_FLIGHT_LIMIT).contains(&self.max_in_flight) {
            let why = format!("must be between 1 and {MAX_IN_FLIGHT_LIMIT}");
            return Err(BuildError::option("max_in_flight", why));
        }
        if let Err(why) = verdict::check_subject(&self.inbox_prefix) {
            return Err(BuildError::option("inbox_prefix", why));
        }
        // A server keeps these for replies of its own, and drops a message that names one.
        if let Some("_R_" | "_GR_") = self.inbox_prefix.split('.').next() {
            return Err(BuildError::option("inbox_prefix", "belongs to the server itself"));
        }
        self.addresses()
    }

    fn addresses(&self) -> Result<Vec<Address>, BuildError> {
        let bad = |why: &str| BuildError::option("url", why);
        let addresses: Vec<_> =
            self.url.iter().map(|url| Address::parse(url).map_err(bad)).collect::<Result<_, _>>()?;
        if addresses.is_empty() { Err(bad("there is no server")) } else { Ok(addresses) }
    }

    /// As whom we log in, in words that hold no secret.
    fn identity(&self) -> String {
        let file = |what: &str, path: &PathBuf| format!("{what} {}", path.display());
        if let Some(user) = &self.user {
            return match &self.password_file {
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
        let certificate = ("the certificate", &self.cert_file);
        let known =
            files.into_iter().chain([certificate]).find_map(|(what, path)| Some(file(what, path.as_ref()?)));
        known.unwrap_or_else(|| "a client without credentials".to_owned())
    }

    /// Whether a secret goes over the wire as it is.
    fn sends_secret(&self) -> bool {
        self.password.is_some()
            || self.password_file.is_some()
            || self.token.is_some()
            || self.token_file.is_some()
    }

    fn wants_tls(&self) -> bool {
        self.require_tls || self.tls().any()
    }

    fn tls(&self) -> Files<'_> {
        Files { ca: self.ca_file.as_ref(), certificate: self.cert_file.as_ref(), key: self.key_file.as_ref() }
    }

    fn delivery_timeout(&self) -> Duration {
        Duration::from_millis(self.delivery_timeout_ms)
    }
}
