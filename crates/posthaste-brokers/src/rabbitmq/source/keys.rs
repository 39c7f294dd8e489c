//! The options of a RabbitMQ source: how to reach the broker, and what its operator vouches for.

use crate::rabbitmq::{RabbitmqConfig, heartbeat_secs};
use crate::{Secret, Urls};
use serde::Deserialize;
use std::path::PathBuf;

/// Options of a RabbitMQ source. A sink has the same ones, and more.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceKeys {
    /// One server or several, tried in this order: `amqp://host:5672/vhost`, or `amqps://host:5671/vhost`
    /// with TLS. Without a path the virtual host is `/`.
    #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
    url: Urls,
    /// The operator's word that every queue is a quorum queue, has a single active consumer where `order`
    /// asks for one, and loses nothing by a delivery limit. It counts where the user may not look.
    #[serde(default)]
    quorum_queues: bool,
    /// How often both sides give a sign of life, at least.
    #[serde(default = "heartbeat_secs")]
    heartbeat_secs: u16,
    /// User name.
    user: Option<String>,
    /// The user's password.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    password: Option<Secret>,
    /// A file with the user's password. It is read anew for each connection.
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

impl From<SourceKeys> for RabbitmqConfig {
    fn from(keys: SourceKeys) -> Self {
        let config = Self {
            url: keys.url,
            quorum_queues: keys.quorum_queues,
            heartbeat_secs: keys.heartbeat_secs,
            ..Self::new("")
        };
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
