//! The options of a Redis source: how to reach the servers, and nothing else.

use crate::redis::RedisConfig;
use crate::{Secret, Urls};
use serde::Deserialize;
use std::path::PathBuf;

/// Options of a Redis source. A sink has the same ones, and more.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct RedisSourceKeys {
    /// `redis://host:6379/0`, or `rediss://` with TLS. Several are nodes of a cluster, or, with
    /// `sentinel_master`, sentinels.
    #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
    url: Urls,
    /// The servers are a cluster. Several URLs say the same.
    #[serde(default)]
    cluster: bool,
    /// The name under which sentinels know the master; then `url` names the sentinels.
    sentinel_master: Option<String>,
    /// User at the sentinels, where they want one.
    sentinel_user: Option<String>,
    /// Password at the sentinels.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    sentinel_password: Option<Secret>,
    /// A file with the password at the sentinels.
    sentinel_password_file: Option<PathBuf>,
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

impl From<RedisSourceKeys> for RedisConfig {
    fn from(keys: RedisSourceKeys) -> Self {
        let mut config = Self::new("");
        (config.url, config.cluster, config.sentinel_master) = (keys.url, keys.cluster, keys.sentinel_master);
        (config.sentinel_user, config.sentinel_password) = (keys.sentinel_user, keys.sentinel_password);
        config.sentinel_password_file = keys.sentinel_password_file;
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
