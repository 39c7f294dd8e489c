//! The file's sections, as they are written. Defaults stand here and nowhere else.
//!
//! These types mirror the file; [`super::resolve`] turns them into what the engine takes. Keeping the two
//! apart keeps serde out of the engine's types and units in the names of the keys.

use super::adopt::AdoptSection;
use crate::access::AdminSection;
use crate::audit::AuditSection;
use crate::gateway::GatewaySection;
use crate::schemas::ValidateSection;
use posthaste::lifecycle::ClassOverrides;
use posthaste::relay::RelaySettings;
use posthaste::retry::RetryPolicy;
use posthaste::route::{Envelope, OnDead, Order};
use posthaste::store::StartAt;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The whole file.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct File {
    /// Label `service` of the metrics and `source` header of every message; the outbox's name by default.
    pub(crate) service: Option<String>,
    /// Refuse every link without TLS: to databases, and to brokers. Files and loopback metrics are none.
    pub(crate) require_tls: bool,
    /// The engine, shared by all outboxes.
    pub(crate) relay: RelaySettings,
    /// Metrics and health.
    pub(crate) http: Http,
    /// The administration's API.
    pub(crate) admin: AdminSection,
    /// Log lines.
    pub(crate) log: Log,
    /// Where the audit goes.
    pub(crate) audit: AuditSection,
    /// The door for tenants.
    #[serde(skip_serializing_if = "GatewaySection::is_shut")]
    pub(crate) gateway: GatewaySection,
    /// One for each database.
    pub(crate) outbox: Vec<OutboxSection>,
    /// Where events go, by name.
    pub(crate) sinks: BTreeMap<String, serde_json::Value>,
    /// Where messages of consumers come from, by name, where no sink's table says it.
    pub(crate) sources: BTreeMap<String, serde_json::Value>,
    /// Who handles messages, by name.
    pub(crate) consumers: BTreeMap<String, serde_json::Value>,
    /// Which topics go to which sinks. Of the routes to a sink, the first that matches applies.
    pub(crate) route: Vec<RouteSection>,
}

/// `[http]`: metrics and health.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// For people, or one JSON object a line.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Human,
    Json,
}

/// `[[outbox]]`.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OutboxSection {
    /// Unique among the outboxes; `--outbox NAME` chooses one.
    pub(crate) name: String,
    /// Overrides the one at the top.
    pub(crate) service: Option<String>,
    /// `postgres://user@host:port/database`, or `host=… dbname=…`, or `sqlite:path/to/file.db`.
    pub(crate) url: Option<String>,
    /// A file that holds the URL, instead of `url`.
    pub(crate) url_file: Option<PathBuf>,
    /// The same database with a login that may act on it, for the API's acts.
    pub(crate) admin_url: Option<String>,
    /// A file that holds that URL.
    pub(crate) admin_url_file: Option<PathBuf>,
    /// A file that holds the password, read again at each connect.
    pub(crate) password_file: Option<PathBuf>,
    /// `verify-full` checks certificate and host name; there is no weaker mode.
    pub(crate) tls: Tls,
    /// Authority of the server's certificate (PEM).
    pub(crate) ca_file: Option<PathBuf>,
    /// Client certificate (PEM).
    pub(crate) cert_file: Option<PathBuf>,
    /// Its key (PEM).
    pub(crate) key_file: Option<PathBuf>,
    /// The database schema where everything of ours lives.
    pub(crate) schema: String,
    /// `false`: its log is relayed elsewhere, or by nobody. Then no sink and no route is asked for.
    pub(crate) relay: bool,
    /// Behind a pooler in transaction mode.
    pub(crate) pooled: bool,
    /// Off for applications that use PREPARE TRANSACTION.
    pub(crate) wakeups: bool,
    /// Connections for reading and settling.
    pub(crate) connections_max: usize,
    /// Give up a connection attempt after this long.
    pub(crate) connect_timeout_ms: u64,
    /// How many to create if there are none yet; afterwards the database's number counts.
    pub(crate) lanes: Option<u16>,
    /// For applications that commit with `synchronous_commit = off`.
    pub(crate) flush_before_publish: bool,
    /// How long things are kept.
    pub(crate) retention: RetentionSection,
    /// What an append accepts.
    pub(crate) limits: LimitsSection,
    /// Database roles that `migrate` grants to.
    pub(crate) roles: RolesSection,
    /// An existing table instead of our own log: docs/adopt.md.
    pub(crate) adopt: Option<AdoptSection>,
}

impl Default for OutboxSection {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            service: None,
            url: None,
            url_file: None,
            admin_url: None,
            admin_url_file: None,
            password_file: None,
            tls: Tls::Disable,
            ca_file: None,
            cert_file: None,
            key_file: None,
            schema: "posthaste".to_owned(),
            relay: true,
            pooled: false,
            wakeups: true,
            connections_max: 8,
            connect_timeout_ms: 5_000,
            lanes: None,
            flush_before_publish: false,
            retention: RetentionSection::default(),
            limits: LimitsSection::default(),
            roles: RolesSection::default(),
            adopt: None,
        }
    }
}

/// TLS towards the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tls {
    Disable,
    VerifyFull,
}

/// How long things are kept. Hours and days may be fractions.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetentionSection {
    /// Events are kept at least this long.
    pub(crate) events_hours: f64,
    /// The current segment is closed when it is this old; a quarter of `events_hours` by default.
    pub(crate) turn_after_hours: Option<f64>,
    /// Or this large.
    pub(crate) turn_mib: u64,
    /// Idempotency keys are remembered at least this long.
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
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsSection {
    /// Longest topic.
    pub(crate) topic_bytes_max: usize,
    /// Longest key.
    pub(crate) key_bytes_max: usize,
    /// Largest payload.
    pub(crate) payload_bytes_max: usize,
    /// All header names and values together.
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
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RolesSection {
    /// May append.
    pub(crate) app: String,
    /// May consume.
    pub(crate) consumer: String,
    /// May relay.
    pub(crate) relay: String,
    /// May look and act.
    pub(crate) admin: String,
    /// May append for tenants.
    pub(crate) gateway: String,
    /// Create them where that is permitted.
    pub(crate) create: bool,
}

impl Default for RolesSection {
    fn default() -> Self {
        Self {
            app: "posthaste_app".to_owned(),
            consumer: "posthaste_consumer".to_owned(),
            relay: "posthaste_relay".to_owned(),
            admin: "posthaste_admin".to_owned(),
            gateway: "posthaste_gateway".to_owned(),
            create: true,
        }
    }
}

/// Our own keys in a sink's table; the rest belongs to the sink.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SinkOwn {
    /// Where a new sink begins: `auto`, `now`, `earliest`, or behind a number of the log.
    #[serde(with = "start_at")]
    #[schemars(schema_with = "start_at::schema")]
    pub(crate) start_at: StartAt,
    /// Classes of error codes, against the sink's own judgement.
    pub(crate) classes: ClassOverrides,
    /// Events a second over all relays. An operator's `posthaste rate` goes before it.
    pub(crate) rate_limit_per_s: Option<f64>,
    /// Whether a destination may lose what it has acknowledged.
    pub(crate) durability: Durability,
}

/// The keys of [`SinkOwn`].
pub(crate) const SINK_OWN: [&str; 4] = ["start_at", "classes", "rate_limit_per_s", "durability"];

/// What is done about a destination that can lose an acknowledged event: one replica, no sync, eviction.
/// `relaxed` warns at each start, `durable` refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    #[default]
    Relaxed,
    Durable,
}

/// `[[route]]`.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RouteSection {
    /// For `pause --route` and messages; its topics by default.
    pub(crate) name: Option<String>,
    /// One pattern.
    pub(crate) topic: Option<String>,
    /// Patterns; `*` stands for any run of characters.
    pub(crate) topics: Vec<String>,
    /// One sink.
    pub(crate) sink: Option<String>,
    /// Names of sinks.
    pub(crate) sinks: Vec<String>,
    /// Address at the broker: text with `{topic}`, `{key}`, `{type}`, `{header:NAME}`.
    pub(crate) destination: String,
    /// What decides about the broker's partition, instead of the key: the same kind of text, for example
    /// `{header:tenant_id}`. An event that lacks it is a dead letter.
    pub(crate) partition_key: Option<String>,
    /// What is put around the payload.
    pub(crate) envelope: Envelope,
    /// What is checked of the payload.
    #[schemars(schema_with = "ValidateSection::schema")]
    pub(crate) validate: ValidateSection,
    /// An event without a key is a dead letter.
    pub(crate) require_key: bool,
    /// Whether events of a key wait for each other.
    pub(crate) order: Order,
    /// What the death of an event means for its key.
    pub(crate) on_dead: OnDead,
    /// When to try again.
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
            partition_key: None,
            envelope: Envelope::default(),
            validate: ValidateSection::default(),
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

    pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [
                { "type": "string", "enum": ["auto", "now", "earliest"] },
                { "type": "integer", "minimum": 0 },
            ]
        })
    }

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
