//! The options of a NATS source: how to reach the servers, and nothing else.

use crate::nats::NatsConfig;
use crate::{Secret, Urls};
use serde::Deserialize;
use std::path::PathBuf;

/// Options of a NATS source. A sink has the same ones, and more.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct NatsSourceKeys {
    /// One server or several, tried in this order: `nats://host:4222`, or `tls://` where TLS is required;
    /// `ws://` and `wss://` for a WebSocket.
    #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
    url: Urls,
    /// User name.
    user: Option<String>,
    /// The user's password.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    password: Option<Secret>,
    /// A file with the user's password. It is read anew for each connection.
    password_file: Option<PathBuf>,
    /// A token.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    token: Option<Secret>,
    /// A file with a token.
    token_file: Option<PathBuf>,
    /// A `.creds` file: JWT and key.
    creds_file: Option<PathBuf>,
    /// A file with an NKey seed.
    nkey_file: Option<PathBuf>,
    /// First part of the subjects that messages and answers come to; the user must be allowed to subscribe to
    /// `PREFIX.>`.
    inbox_prefix: Option<String>,
    /// Begin with TLS, before the server has said anything.
    #[serde(default)]
    tls_first: bool,
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

impl From<NatsSourceKeys> for NatsConfig {
    fn from(keys: NatsSourceKeys) -> Self {
        let mut config = Self::new("");
        (config.url, config.token, config.token_file) = (keys.url, keys.token, keys.token_file);
        (config.creds_file, config.nkey_file) = (keys.creds_file, keys.nkey_file);
        config.tls_first = keys.tls_first;
        config.inbox_prefix = keys.inbox_prefix.unwrap_or(config.inbox_prefix);
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
