//! The file's sections, as they are written. Defaults stand here and nowhere else.
//!
//! These types mirror the file; [`super::resolve`] turns them into what the engine takes. Keeping the two
//! apart keeps serde out of the engine's types and units in the names of the keys.

use posthaste::lifecycle::ClassOverrides;
use posthaste::relay::RelaySettings;
use posthaste::retry::RetryPolicy;
use posthaste::route::{Envelope, OnDead, Order, Validate};
use posthaste::store::StartAt;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The whole file.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) service: Option<String>,
    pub(crate) relay: RelaySettings,
    pub(crate) http: Http,
    pub(crate) log: Log,
    pub(crate) outbox: Vec<OutboxSection>,
    pub(crate) sinks: BTreeMap<String, serde_json::Value>,
    pub(crate) route: Vec<RouteSection>,
}

/// `[http]`: metrics and health.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Http {
    /// Address, or `off`. Loopback by default: the metrics tell names of topics and hosts.
    pub(crate) listen: String,
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: "127.0.0.1:7678".to_owned() }
    }
}

/// `[log]`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    /// A level, or directives as `RUST_LOG` takes them.
    pub(crate) level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Human, level: "info".to_owned() }
    }
}

/// How log lines look: for people, or one JSON object a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Human,
    Json,
}

/// `[[outbox]]`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OutboxSection {
    pub(crate) name: String,
    pub(crate) service: Option<String>,
    pub(crate) url: Option<String>,
    pub(crate) url_file: Option<PathBuf>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) tls: Tls,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) cert_file: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
    pub(crate) schema: String,
    pub(crate) pooled: bool,
    pub(crate) wakeups: bool,
    pub(crate) connections_max: usize,
    pub(crate) connect_timeout_ms: u64,
    pub(crate) lanes: Option<u16>,
    pub(crate) flush_before_publish: bool,
    pub(crate) retention: RetentionSection,
    pub(crate) limits: LimitsSection,
    pub(crate) roles: RolesSection,
}

impl Default for OutboxSection {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            service: None,
            url: None,
            url_file: None,
            password_file: None,
            tls: Tls::Disable,
            ca_file: None,
            cert_file: None,
            key_file: None,
            schema: "posthaste".to_owned(),
            pooled: false,
            wakeups: true,
            connections_max: 8,
            connect_timeout_ms: 5_000,
            lanes: None,
            flush_before_publish: false,
            retention: RetentionSection::default(),
            limits: LimitsSection::default(),
            roles: RolesSection::default(),
        }
    }
}

/// TLS towards the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tls {
    Disable,
    VerifyFull,
}

/// How long things are kept. Hours and days may be fractions.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetentionSection {
    pub(crate) events_hours: f64,
    pub(crate) turn_after_hours: Option<f64>,
    pub(crate) turn_mib: u64,
    pub(crate) idempotency_hours: f64,
    /// 0 keeps dead letters for ever.
    pub(crate) dead_letter_days: f64,
}

impl Default for RetentionSection {
    fn default() -> Self {
        Self {
            events_hours: 72.0,
            turn_after_hours: None,
            turn_mib: 4_096,
            idempotency_hours: 168.0,
            dead_letter_days: 0.0,
        }
    }
}

/// What an append accepts.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsSection {
    pub(crate) topic_bytes_max: usize,
    pub(crate) key_bytes_max: usize,
    pub(crate) payload_bytes_max: usize,
    pub(crate) header_bytes_max: usize,
}

impl Default for LimitsSection {
    fn default() -> Self {
        let limits = posthaste::Limits::default();
        Self {
            topic_bytes_max: limits.topic_bytes_max,
            key_bytes_max: limits.key_bytes_max,
            payload_bytes_max: limits.payload_bytes_max,
            header_bytes_max: limits.header_bytes_max,
        }
    }
}

/// Names of the database roles that `migrate` grants to.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RolesSection {
    pub(crate) app: String,
    pub(crate) relay: String,
    pub(crate) admin: String,
    /// Create them where that is permitted.
    pub(crate) create: bool,
}

impl Default for RolesSection {
    fn default() -> Self {
        Self {
            app: "posthaste_app".to_owned(),
            relay: "posthaste_relay".to_owned(),
            admin: "posthaste_admin".to_owned(),
            create: true,
        }
    }
}

/// Our own keys in a sink's table; the rest belongs to the sink.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SinkOwn {
    #[serde(with = "start_at")]
    pub(crate) start_at: StartAt,
    pub(crate) classes: ClassOverrides,
    /// Events a second over all relays. An operator's `posthaste rate` goes before it.
    pub(crate) rate_limit_per_s: Option<f64>,
}

/// The keys of [`SinkOwn`].
pub(crate) const SINK_OWN: [&str; 3] = ["start_at", "classes", "rate_limit_per_s"];

/// `[[route]]`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RouteSection {
    pub(crate) name: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) topics: Vec<String>,
    pub(crate) sink: Option<String>,
    pub(crate) sinks: Vec<String>,
    pub(crate) destination: String,
    pub(crate) envelope: Envelope,
    pub(crate) validate: Validate,
    pub(crate) require_key: bool,
    pub(crate) order: Order,
    pub(crate) on_dead: OnDead,
    pub(crate) retry: RetryPolicy,
    /// Outboxes it applies to; none named: all of them.
    pub(crate) outboxes: Vec<String>,
}

impl Default for RouteSection {
    fn default() -> Self {
        Self {
            name: None,
            topic: None,
            topics: Vec::new(),
            sink: None,
            sinks: Vec::new(),
            destination: "{topic}".to_owned(),
            envelope: Envelope::default(),
            validate: Validate::default(),
            require_key: false,
            order: Order::default(),
            on_dead: OnDead::default(),
            retry: RetryPolicy::default(),
            outboxes: Vec::new(),
        }
    }
}

/// `"auto"`, `"now"`, `"earliest"` or a number of the log.
mod start_at {
    use super::*;

    pub(super) fn serialize<S: Serializer>(start: &StartAt, out: S) -> Result<S::Ok, S::Error> {
        match start {
            StartAt::Auto => out.serialize_str("auto"),
            StartAt::Now => out.serialize_str("now"),
            StartAt::Earliest => out.serialize_str("earliest"),
            StartAt::Seq(seq) => out.serialize_i64(*seq),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<StartAt, D::Error> {
        let value = serde_json::Value::deserialize(input)?;
        match (value.as_str(), value.as_i64()) {
            (Some("auto"), _) => Ok(StartAt::Auto),
            (Some("now"), _) => Ok(StartAt::Now),
            (Some("earliest"), _) => Ok(StartAt::Earliest),
            (_, Some(seq)) if seq >= 0 => Ok(StartAt::Seq(seq)),
            _ => Err(D::Error::custom("must be \"auto\", \"now\", \"earliest\" or a number of the log")),
        }
    }
}
