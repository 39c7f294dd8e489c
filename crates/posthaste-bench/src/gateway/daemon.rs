//! The gateway that is measured: `posthaste run` with `[gateway]`, its tenants and their keys.

use super::Site;
use super::client::{ClientLine, request};
use crate::child::{Relay, Setup, put, put_all, show};
use crate::load::TOPIC;
use anyhow::{Context as _, bail};
use posthaste::route::Order;
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use toml::{Table, Value};

/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Where events are handed in.
pub(super) const PATH: &str = "/v1/topics/";

/// What differs between the gateways of a measurement.
#[derive(Clone, Copy, Default)]
pub(super) struct Door<'a> {
    /// The Redis that it counts in.
    pub(super) redis: Option<&'a str>,
    /// The database, if it is not the measurement's own address of it.
    pub(super) database: Option<&'a str>,
}

/// Nobody is held to a limit that has not one of their own: the largest that there are.
const RATE_PER_S: f64 = 100_000.0;
const BURST: i64 = 1_000_000;

impl Door<'_> {
    /// Writes its configuration, and lets the binary check it. Nothing is relayed: what it is compared with
    /// relays nothing either.
    pub(super) async fn write(&self, site: &Site<'_>, name: &str) -> anyhow::Result<PathBuf> {
        let setup = Setup { sink: "bench", target: "null", options: None, order: Order::Key };
        let mut root: Table = setup.text(site.common)?.parse()?;
        let text = |text: &str| Value::String(text.to_owned());
        put(&mut root, "outbox.relay", Value::Boolean(false))?;
        put(&mut root, "admin.listen", text("off"))?;
        if let Some(database) = self.database {
            put(&mut root, "outbox.url", text(database))?;
        }
        put(&mut root, "gateway.listen", text("127.0.0.1:0"))?;
        put(&mut root, "gateway.limit.rate_per_s", Value::Float(RATE_PER_S))?;
        put(&mut root, "gateway.limit.burst", Value::Integer(BURST))?;
        if let Some(redis) = self.redis {
            put(&mut root, "gateway.limit.redis.url", text(redis))?;
        }
        let mut topic = Table::new();
        put(&mut topic, "topic", text(TOPIC))?;
        put(&mut root, "gateway.topic", Value::Array(vec![Value::Table(topic)]))?;
        let own: Vec<String> = site.args.gateway_set.iter().map(|set| format!("gateway.{set}")).collect();
        put_all(&mut root, &own)?;
        let text = toml::to_string(&root)?;
        let path = site.scratch.write(name, &text)?;
        site.product.ask(&["config", "check"], Some(&path)).await?;
        show(&text);
        Ok(path)
    }

    /// Starts one, and waits until it takes events of whoever has this key. That took one event.
    pub(super) async fn open(&self, site: &Site<'_>, name: &str, key: &str) -> anyhow::Result<Gateway> {
        let path = self.write(site, name).await?;
        let (mut relay, _) = Relay::start(site.product, &path, false)?;
        let deadline = Instant::now() + PATIENCE;
        let probe = request(&format!("{PATH}{TOPIC}"), key, "application/json", b"{}");
        loop {
            relay.check()?;
            if let Some(address) = address(&relay.words()) {
                // It refuses everybody until it has looked.
                if ClientLine::open(address).await?.ask(&probe).await? == 202 {
                    return Ok(Gateway { relay, address });
                }
            }
            if Instant::now() > deadline {
                bail!("the gateway takes no event:\n{}", relay.last_words());
            }
            tokio::time::sleep(BETWEEN_LOOKS).await; // pace
        }
    }
}

/// A running one.
pub(super) struct Gateway {
    pub(super) relay: Relay,
    pub(super) address: SocketAddr,
}

impl Gateway {
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.relay.check()?;
        self.relay.stop().await
    }
}

/// Where it says that it is.
fn address(words: &str) -> Option<SocketAddr> {
    let from = words.find("gateway http://")? + "gateway http://".len();
    words[from..].split_once(';')?.0.trim().parse().ok()
}

/// A key of a tenant, who is made with the first one.
pub(super) async fn new_key(site: &Site<'_>, config: &Path, tenant: &str) -> anyhow::Result<String> {
    let made = site.product.ask(&["gateway", "keys", "new", tenant, "--json"], Some(config)).await?;
    let made: Json = serde_json::from_str(&made)?;
    Ok(made["key"].as_str().context("a new key without a key")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_out_of_the_first_line() {
        let line = "posthaste 0.1.0: gateway http://127.0.0.1:7; metrics and health off\n";
        assert_eq!(address(line), "127.0.0.1:7".parse().ok());
        assert_eq!(address("posthaste 0.1.0: metrics and health off\n"), None);
    }
}
