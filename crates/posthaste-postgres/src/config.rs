//! How to reach the database, and how the outbox in it is set up.

use posthaste::Limits;
use std::path::PathBuf;
use std::time::Duration;

/// TLS towards the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Plain text. Meant for loopback and Unix sockets.
    #[default]
    Disable,
    /// Encrypted, the certificate checked against the CA and the host name. There is no weaker mode:
    /// encryption without verification protects from nobody (F29).
    VerifyFull,
}

/// Connection and set-up of one outbox.
#[derive(Clone)]
pub struct PostgresConfig {
    /// `postgres://user@host:port/database` or a key-value string.
    pub url: String,
    /// Read at every connect, so that a rotated password is picked up.
    pub password_file: Option<PathBuf>,
    /// TLS.
    pub tls: TlsMode,
    /// CA certificates in PEM; without it the system's are not used: name one.
    pub ca_file: Option<PathBuf>,
    /// Client certificate in PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key in PEM.
    pub key_file: Option<PathBuf>,
    /// The schema that holds everything of ours.
    pub schema: String,
    /// Behind a pooler in transaction mode: no session locks, no LISTEN, no named statements.
    pub pooled: bool,
    /// Let appends wake a sleeping relay by NOTIFY. Off for applications that use PREPARE TRANSACTION,
    /// which refuses it.
    pub wakeups: bool,
    /// Connections for reading and settling, beside the heart's own.
    pub connections_max: usize,
    /// Give up a connection attempt after this long.
    pub connect_timeout: Duration,
    /// Commit a small flushed transaction before publishing what an asynchronous application wrote (F7).
    pub flush_before_publish: bool,
    /// What the relay accepts.
    pub limits: Limits,
    /// Retention and the ring.
    pub retention: Retention,
    /// The topic to which each line of the audit goes as an event; `migrate up` writes it into the database.
    pub audit_topic: Option<String>,
}

/// How long things are kept, and when the ring turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Events are kept at least this long after they were appended.
    pub events: Duration,
    /// The current segment is closed when it is this old. The default is a quarter of the retention…
    pub turn_after: Duration,
    /// … or this large.
    pub turn_bytes: i64,
    /// `(topic, idempotency_key)` is remembered at least this long.
    pub idempotency_keys: Duration,
    /// Dead letters are kept this long; `None` is for ever.
    pub dead_letters: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        let day = 86_400;
        Self {
            events: Duration::from_secs(3 * day),
            turn_after: Duration::from_secs(3 * day / 4),
            turn_bytes: 4 << 30,
            idempotency_keys: Duration::from_secs(7 * day),
            dead_letters: None,
        }
    }
}

impl std::fmt::Debug for PostgresConfig {
    /// Without the URL: it may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("schema", &self.schema)
            .field("tls", &self.tls)
            .field("pooled", &self.pooled)
            .finish_non_exhaustive()
    }
}

impl PostgresConfig {
    /// Defaults for a URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            password_file: None,
            tls: TlsMode::Disable,
            ca_file: None,
            cert_file: None,
            key_file: None,
            schema: "posthaste".to_owned(),
            pooled: false,
            wakeups: true,
            connections_max: 8,
            connect_timeout: Duration::from_secs(5),
            flush_before_publish: false,
            limits: Limits::default(),
            retention: Retention::default(),
            audit_topic: None,
        }
    }
}
