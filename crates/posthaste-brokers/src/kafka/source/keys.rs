//! The options of a Kafka source: how to reach the brokers, and nothing else.

use crate::kafka::{KafkaConfig, SaslMechanism};
use crate::{Secret, Urls};
use serde::Deserialize;
use std::path::PathBuf;

/// Options of a Kafka source. A sink has the same ones, and more.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceKeys {
    /// Brokers to begin with, one or several: `kafka://host:9092` or `host:9092`; `tls://` where TLS is
    /// required.
    #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
    url: Urls,
    /// How user and password are shown to the broker.
    #[serde(default)]
    sasl_mechanism: SaslMechanism,
    /// User name.
    user: Option<String>,
    /// The user's password.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    password: Option<Secret>,
    /// A file with the user's password. It is read anew when it changes.
    password_file: Option<PathBuf>,
    /// The authority that signed the servers' certificates, instead of those of the system (PEM).
    ca_file: Option<PathBuf>,
    /// Our own certificate (PEM).
    cert_file: Option<PathBuf>,
    /// Its key (PEM, not encrypted).
    key_file: Option<PathBuf>,
    /// Refuse servers without TLS. Naming one of the three files says the same.
    #[serde(default)]
    require_tls: bool,
}

impl From<SourceKeys> for KafkaConfig {
    fn from(keys: SourceKeys) -> Self {
        let config = Self { url: keys.url, sasl_mechanism: keys.sasl_mechanism, ..Self::new("") };
        config.with(|options| {
            options.user = keys.user;
            options.password = keys.password;
            options.password_file = keys.password_file;
            options.ca_file = keys.ca_file;
            options.cert_file = keys.cert_file;
            options.key_file = keys.key_file;
            options.require_tls = keys.require_tls;
        })
    }
}
