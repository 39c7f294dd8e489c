//! The tables of `topology.toml`, as they are written.
//!
//! [`super::resolve`] turns them into what is wanted of each broker. Keeping the two apart keeps the words of
//! the file out of the plan: that one knows settings by the broker's own names.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::Secret;

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TopologyFile {
    /// The brokers, by name: the keys of a sink's connection, with rights that a relay must not have.
    pub brokers: BTreeMap<String, Value>,
    /// Settings of every topic that does not say otherwise.
    pub topic_defaults: TopicDefaults,
    /// Topics at Kafka.
    pub topic: Vec<TopicTable>,
    /// Principals at Kafka, and what they may do, in words.
    pub principal: Vec<PrincipalTable>,
    /// Rights at Kafka that have no word.
    pub acl: Vec<AclTable>,
    /// Users with passwords at Kafka.
    pub user: Vec<UserTable>,
    /// Streams at JetStream.
    pub stream: Vec<StreamTable>,
    /// Exchanges at RabbitMQ.
    pub exchange: Vec<ExchangeTable>,
    /// Queues at RabbitMQ.
    pub queue: Vec<QueueTable>,
    /// Bindings of queues to exchanges at RabbitMQ.
    pub binding: Vec<BindingTable>,
}

/// A value, or the word `default`, which removes whatever was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrDefault<T> {
    /// This value.
    Is(T),
    /// The broker's own.
    Default,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for OrDefault<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value == "default" {
            return Ok(Self::Default);
        }
        serde_json::from_value(value).map(Self::Is).map_err(|error| D::Error::custom(error.to_string()))
    }
}

#[cfg(feature = "schema")]
impl<T: schemars::JsonSchema> schemars::JsonSchema for OrDefault<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}OrDefault", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let own = generator.subschema_for::<T>();
        schemars::json_schema!({ "anyOf": [own, { "const": "default" }] })
    }
}

/// A setting under the broker's own name: text, a number, true or false.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "must be a text, a whole number, true or false")]
pub enum SettingValue {
    /// true or false.
    Switch(bool),
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

impl SettingValue {
    /// As the broker writes it; `default` is none.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Switch(on) => Some(on.to_string()),
            Self::Number(number) => Some(number.to_string()),
            Self::Text(text) if text == "default" => None,
            Self::Text(text) => Some(text.clone()),
        }
    }
}

/// The settings of a topic stand in two tables.
macro_rules! topic_tables {
    ($($(#[$about:meta])* $name:ident: $type:ty,)+) => {
        /// `topic_defaults`.
        #[derive(Debug, Clone, Default, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(default, deny_unknown_fields)]
        pub struct TopicDefaults {
            $($(#[$about])* pub $name: Option<$type>,)+
            /// Any other setting, by Kafka's name.
            pub settings: BTreeMap<String, SettingValue>,
        }

        /// `[[topic]]`.
        #[derive(Debug, Clone, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        pub struct TopicTable {
            /// Which broker, where several fit.
            pub broker: Option<String>,
            /// Its name.
            pub name: String,
            $($(#[$about])* pub $name: Option<$type>,)+
            /// Any other setting, by Kafka's name.
            #[serde(default)]
            pub settings: BTreeMap<String, SettingValue>,
        }

        impl TopicTable {
            /// What it does not say itself is taken from there.
            pub(super) fn or(mut self, defaults: &TopicDefaults) -> Self {
                $(self.$name = self.$name.or_else(|| defaults.$name.clone());)+
                for (name, value) in &defaults.settings {
                    self.settings.entry(name.clone()).or_insert_with(|| value.clone());
                }
                self
            }
        }
    };
}

topic_tables! {
    /// How many partitions. More of them move keys, fewer are impossible.
    partitions: u32,
    /// How many brokers have each of them.
    replicas: u16,
    /// How many of those must have a message before it is acknowledged.
    min_insync_replicas: OrDefault<u16>,
    /// How long messages are kept: `7d`, `forever`.
    retention: OrDefault<String>,
    /// How much of a partition is kept: `10GiB`, `forever`.
    retention_size: OrDefault<String>,
    /// `producer`, `none`, `gzip`, `snappy`, `lz4`, `zstd`.
    compression: OrDefault<String>,
    /// `delete`, `compact`, or both with a comma.
    cleanup: OrDefault<String>,
    /// Largest message: `1MiB`.
    max_message_size: OrDefault<String>,
    /// Whether a replica that lacks messages may lead.
    unclean_leader_election: OrDefault<bool>,
}

/// `[[principal]]`: rights in words. A last `*` means all names that begin so; `*` alone means all names.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PrincipalTable {
    /// Which broker, where several fit.
    pub broker: Option<String>,
    /// Its name: `User:` is put before it.
    pub name: String,
    /// Topics that it may read. It needs a group for that, too.
    #[serde(default)]
    pub read: Vec<String>,
    /// Topics that it may write.
    #[serde(default)]
    pub write: Vec<String>,
    /// Topics whose settings it may see.
    #[serde(default)]
    pub describe_configs: Vec<String>,
    /// Consumer groups that it may be a member of.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Transactional ids that it may use.
    #[serde(default)]
    pub transactional_ids: Vec<String>,
    /// It has no other rights: each further one is a difference.
    #[serde(default)]
    pub exclusive: bool,
}

/// `[[acl]]`: rights as Kafka has them.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AclTable {
    /// Which broker, where several fit.
    pub broker: Option<String>,
    /// Whose right.
    pub principal: String,
    /// Whether it is given or taken away.
    #[serde(default)]
    pub permission: Permission,
    /// `READ`, `WRITE`, `CREATE`, `DELETE`, `ALTER`, `DESCRIBE`, `CLUSTER_ACTION`, `DESCRIBE_CONFIGS`,
    /// `ALTER_CONFIGS`, `IDEMPOTENT_WRITE`, `ALL`.
    pub operations: Vec<String>,
    /// Of what.
    pub resource: AclResource,
    /// Its name, with a last `*` for all that begin so. The cluster needs none.
    pub name: Option<String>,
    /// Whether a last `*` in the name is a letter. Kafka's consumer groups may have one.
    pub pattern: Option<AclPattern>,
    /// From which host; from any, if there is none.
    pub host: Option<String>,
}

/// How the name of a right is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AclPattern {
    /// As it stands there.
    Literal,
    /// As the beginning of names.
    Prefixed,
}

/// Whether a right is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// It is given.
    #[default]
    Allow,
    /// It is taken away, whatever else gives it.
    Deny,
}

/// What a right is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AclResource {
    /// Topics.
    Topic,
    /// Consumer groups.
    Group,
    /// The cluster.
    Cluster,
    /// Transactional ids.
    TransactionalId,
}

/// `[[user]]`.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UserTable {
    /// Which broker, where several fit.
    pub broker: Option<String>,
    /// Its name.
    pub name: String,
    /// How its password is kept.
    #[serde(default)]
    pub mechanism: ScramMechanism,
    /// How often it is hashed.
    #[serde(default = "iterations")]
    pub iterations: u32,
    /// The password. A file is better: this one stands in whatever keeps your files.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub password: Option<Secret>,
    /// A file with the password.
    pub password_file: Option<PathBuf>,
}

/// Twice what Kafka asks for at least.
fn iterations() -> u32 {
    8_192
}

/// How a password is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ScramMechanism {
    /// SHA-256.
    #[serde(rename = "scram-sha-256")]
    Sha256,
    /// SHA-512.
    #[default]
    #[serde(rename = "scram-sha-512")]
    Sha512,
}

/// `[[stream]]`.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamTable {
    /// Which broker, where several fit.
    pub broker: Option<String>,
    /// Its name.
    pub name: String,
    /// The subjects that it takes.
    pub subjects: Vec<String>,
    /// `file` or `memory`.
    pub storage: Option<String>,
    /// How many servers have it.
    pub replicas: Option<u16>,
    /// `limits`, `interest` or `workqueue`.
    pub retention: Option<String>,
    /// How long messages are kept: `72h`, `forever`.
    pub max_age: Option<String>,
    /// How much is kept: `10GiB`, `forever`.
    pub max_bytes: Option<String>,
    /// Largest message: `1MiB`, `forever` for no bound.
    pub max_message_bytes: Option<String>,
    /// What a full stream does: `old` or `new`.
    pub discard: Option<String>,
    /// How long ids are remembered: `2m`.
    pub duplicate_window: Option<String>,
    /// Any other setting, by JetStream's name.
    #[serde(default)]
    pub settings: BTreeMap<String, Value>,
}

/// `[[exchange]]`.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExchangeTable {
    /// Which broker, where several fit.
    pub broker: Option<String>,
    /// Its name.
    pub name: String,
    /// `topic`, `direct`, `fanout`, `headers`.
    pub kind: String,
    /// Arguments, as AMQP has them.
    #[serde(default)]
    pub arguments: BTreeMap<String, Value>,
}

/// `[[queue]]`.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QueueTable {
    /// Which broker, where several fit.
    pub broker: Option<String>,
    /// Its name.
    pub name: String,
    /// `quorum`, `classic` or `stream`.
    #[serde(default = "quorum")]
    pub kind: String,
    /// Arguments, as AMQP has them.
    #[serde(default)]
    pub arguments: BTreeMap<String, Value>,
}

/// The kind that survives the loss of a server.
fn quorum() -> String {
    "quorum".to_owned()
}

/// `[[binding]]`.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BindingTable {
    /// Which broker, where several fit.
    pub broker: Option<String>,
    /// From where.
    pub exchange: String,
    /// To where.
    pub queue: String,
    /// For which messages.
    #[serde(default)]
    pub routing_key: String,
    /// Arguments, as AMQP has them.
    #[serde(default)]
    pub arguments: BTreeMap<String, Value>,
}
