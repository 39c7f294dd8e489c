//! The options of a Kafka source: how to reach the brokers, and how the group is joined.

use crate::kafka::{KafkaConfig, SaslMechanism, check_name};
use crate::options::{Options, source_keys};
use crate::{BuildError, Urls};
use serde::{Deserialize, Serialize};

/// How members share the partitions of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum GroupProtocol {
    /// One of the members divides them. Brokers have it since 2.4.
    #[default]
    Classic,
    /// The broker divides them (KIP-848). Brokers have it since 4.0.
    Consumer,
}

impl GroupProtocol {
    /// Its name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Consumer => "consumer",
        }
    }
}

/// A Kafka source. A sink's broker is one with the defaults.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KafkaSourceConfig {
    /// How to reach the brokers.
    #[serde(flatten)]
    pub connection: KafkaConfig,
    /// How members share the partitions.
    pub protocol: GroupProtocol,
    /// Makes this a static member, with a name that no other member of the group has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

impl From<KafkaConfig> for KafkaSourceConfig {
    fn from(connection: KafkaConfig) -> Self {
        Self { connection, protocol: GroupProtocol::default(), instance: None }
    }
}

impl KafkaSourceConfig {
    fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        self.connection = self.connection.with(change);
        self
    }

    /// How the group is joined, for people.
    pub(crate) fn words(&self) -> String {
        let protocol = format!("protocol {}", self.protocol.name());
        self.instance.as_ref().map_or(protocol.clone(), |name| format!("{protocol}, instance {name}"))
    }

    /// Checks what can be checked without a broker and without the files it names.
    pub(crate) fn check_words(&self) -> Result<(), BuildError> {
        match self.instance.as_deref() {
            Some("") => return Err(BuildError::option("instance", "must not be empty")),
            Some(name) => check_name(name).map_err(|why| BuildError::option("instance", why))?,
            None => {}
        }
        self.connection.check_words()
    }

    /// Checks what can be checked without a broker.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        self.check_words()?;
        self.connection.check()
    }
}

source_keys! {
    /// Options of a Kafka source. But for two of them a sink has the same ones, and more.
    SourceKeys, keys => KafkaSourceConfig: Self {
        connection: KafkaConfig { url: keys.url, sasl_mechanism: keys.sasl_mechanism, ..KafkaConfig::new("") },
        protocol: keys.protocol,
        instance: keys.instance,
    },
    {
        /// Brokers to begin with, one or several: `kafka://host:9092` or `host:9092`; `tls://` where TLS is
        /// required.
        #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
        url: Urls,
        /// How user and password are shown to the broker.
        #[serde(default)]
        sasl_mechanism: SaslMechanism,
        /// How members share the partitions of a group.
        #[serde(default)]
        protocol: GroupProtocol,
        /// Makes this a static member, with a name that no other member of the group has.
        instance: Option<String>,
    }
}
