//! Asking sentinels who the master is.
//!
//! The server that a sentinel names is asked for its role before anything is sent to it. For a moment after a
//! failover, or while it is cut off from the others, a sentinel names the old master. Then the next sentinel
//! is asked.

use super::connection::{self, Wanted};
use super::{cluster, config_failure};
use crate::address::Address;
use crate::redis::RedisConfig;
use ::redis::{Value, cmd};
use posthaste::sink::Failure;
use std::time::Duration;
use tokio::time::timeout;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The master of this name, or why this sentinel does not know it.
pub(super) async fn master(
    config: &RedisConfig,
    sentinel: &Address,
    master: &str,
    name: &str,
) -> Result<Address, Failure> {
    let login = config.sentinel_login().map_err(|error| config_failure(&error))?;
    let (connection, _driver) = connection::open(config, sentinel, login, name, Wanted::Anybody).await?;
    let mut question = cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let answer = timeout(ANSWER_TIMEOUT, connection.ask_one(&question)).await;
    let answer = answer.map_err(|_| connection::unreachable(sentinel, "the sentinel does not answer"))?;
    match answer.map_err(|error| connection::lost(sentinel, &error))? {
        Value::Array(parts) => read(&parts, sentinel).ok_or_else(|| strange(sentinel)),
        Value::Nil => Err(Failure::of_sink(
            "redis.sentinel",
            format!(
                "the sentinel {sentinel} knows no master {master:?}: compare sentinel_master with its `sentinel monitor`"
            ),
        )),
        Value::ServerError(error) => Err(Failure::of_sink(
            "redis.sentinel",
            format!(
                "{sentinel} does not answer as a sentinel: {} {}",
                error.code(),
                error.details().unwrap_or_default()
            ),
        )),
        _ => Err(strange(sentinel)),
    }
}

fn strange(sentinel: &Address) -> Failure {
    Failure::of_sink(
        "redis.sentinel",
        format!("the sentinel {sentinel} answers with something that is no address"),
    )
}

fn read(parts: &[Value], sentinel: &Address) -> Option<Address> {
    let [Value::BulkString(host), Value::BulkString(port)] = parts else { return None };
    let (host, port) = (std::str::from_utf8(host).ok()?, std::str::from_utf8(port).ok()?);
    cluster::named(&format!("{host}:{port}"), sentinel)
}
