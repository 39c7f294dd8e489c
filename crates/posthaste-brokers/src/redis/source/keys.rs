//! The options of a Redis source: how to reach the servers, and how long a group waits for a sign of life.

use crate::options::source_keys;
use crate::redis::{RedisConfig, claim_after_ms};
use crate::{Secret, Urls};
use std::path::PathBuf;

source_keys! {
    /// Options of a Redis source. A sink has the same ones but one, and more.
    RedisSourceKeys, keys => RedisConfig: RedisConfig {
        url: keys.url,
        cluster: keys.cluster,
        sentinel_master: keys.sentinel_master,
        sentinel_user: keys.sentinel_user,
        sentinel_password: keys.sentinel_password,
        sentinel_password_file: keys.sentinel_password_file,
        claim_after_ms: keys.claim_after_ms,
        ..RedisConfig::new("")
    },
    {
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
        /// Without order: how long an entry is idle with a member before others claim it.
        #[serde(default = "claim_after_ms")]
        claim_after_ms: u64,
    }
}
