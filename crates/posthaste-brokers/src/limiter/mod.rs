//! The limiter that all gateways share, as configuration describes it: `redis` of a gateway's `limit`.

#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod reply;

#[cfg(feature = "redis")]
pub use self::redis::{RedisLimiter, SCRIPT as LIMITER_SCRIPT};

use crate::BuildError;
use posthaste::intake::Limiter;
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Where the limiter's server is, and as whom we log in there.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct LimiterConfig(
    #[cfg(feature = "redis")] Box<crate::redis::RedisConfig>,
    /// A build without Redis understands none of it. It may hold secrets, and so it is not kept.
    #[cfg(not(feature = "redis"))]
    (),
);

#[cfg(feature = "redis")]
impl<'de> Deserialize<'de> for LimiterConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = redis::RedisLimiterKeys::deserialize(deserializer)?;
        Ok(Self(Box::new(keys.into())))
    }
}

#[cfg(not(feature = "redis"))]
impl<'de> Deserialize<'de> for LimiterConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self(()))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for LimiterConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LimiterConfig".into()
    }

    #[cfg(feature = "redis")]
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        redis::RedisLimiterKeys::json_schema(generator)
    }

    #[cfg(not(feature = "redis"))]
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "object" })
    }
}

#[cfg(feature = "redis")]
impl LimiterConfig {
    /// A limiter on this server, with every default.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self(Box::new(crate::redis::RedisConfig::new(url)))
    }

    /// Checks the options alone, without the files that they name.
    pub fn check(&self) -> Result<(), BuildError> {
        redis::check_words(&self.0).map(drop)
    }

    /// Checks the options, and the files that they name.
    pub fn check_files(&self) -> Result<(), BuildError> {
        self.check()?;
        self.0.check().map(drop)
    }

    /// Makes the limiter, and begins to connect. A server that is down is no error. `timeout` bounds each
    /// question; `name` is for logs, and for what the server shows of its clients.
    pub fn build(&self, timeout: Duration, name: &str) -> Result<Arc<dyn Limiter>, BuildError> {
        Ok(Arc::new(RedisLimiter::start(&self.0, timeout, name)?))
    }
}

#[cfg(not(feature = "redis"))]
impl LimiterConfig {
    /// Checks the options alone, without the files that they name.
    pub fn check(&self) -> Result<(), BuildError> {
        let why =
            "this binary is built without Redis: build it with the feature `redis`, or limit in process";
        Err(BuildError::option("redis", why))
    }

    /// Checks the options, and the files that they name.
    pub fn check_files(&self) -> Result<(), BuildError> {
        self.check()
    }

    /// Makes the limiter.
    pub fn build(&self, _: Duration, _: &str) -> Result<Arc<dyn Limiter>, BuildError> {
        self.check().and_then(|()| Err(BuildError::option("redis", "there is no Redis here")))
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<LimiterConfig, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_server_or_sentinels_and_no_cluster() {
        for good in [
            r#"{"url":"redis://h:6379/2"}"#,
            r#"{"url":"rediss://h","user":"gate","password_file":"/run/secrets/redis","ca_file":"ca.pem"}"#,
            r#"{"url":["redis://a","redis://b"],"sentinel_master":"main"}"#,
        ] {
            read(good).expect("read").check().expect(good);
        }
        for (bad, words) in [
            (r#"{"url":["redis://a","redis://b"]}"#, "url: the limiter cannot use a cluster"),
            (r#"{"url":"redis://u:hunter2@h"}"#, "must not hold credentials"),
            (r#"{"url":"redis://h","require_tls":true}"#, "rediss://"),
            (r#"{"url":"redis://h","user":"gate"}"#, "user: needs password"),
        ] {
            let said = read(bad).expect("read").check().expect_err(bad).to_string();
            assert!(said.contains(words) && !said.contains("hunter2"), "{said}");
        }
        let said = read(r#"{"url":"redis://h","maxlen":3}"#).expect_err("a sink's option");
        assert!(said.contains("unknown field `maxlen`") && said.contains("`password_file`"), "{said}");
        let missing = r#"{"url":"redis://h","password_file":"/nonexistent/secret"}"#;
        let said = read(missing).expect("read").check_files().expect_err("no file").to_string();
        assert!(said.starts_with("password_file /nonexistent/secret"), "{said}");
    }

    #[test]
    fn nothing_prints_its_password() {
        let config = read(r#"{"url":"redis://h","password":"hunter2"}"#).expect("read");
        let shown = format!("{config:?} {}", serde_json::to_string(&config).expect("serializes"));
        assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
    }
}
