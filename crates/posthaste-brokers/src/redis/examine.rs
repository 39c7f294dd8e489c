//! What `posthaste doctor` says about a Redis server and the streams behind the destinations.

use super::RedisConfig;
use super::sink::Servers;
use posthaste::sink::Finding;

/// Names of all checks. Each finding bears one of them.
pub const CHECKS: &[&str] = &[];

pub(super) async fn examine(
    _config: &RedisConfig,
    _servers: &Servers,
    _destinations: &[String],
) -> Vec<Finding> {
    Vec::new()
}
