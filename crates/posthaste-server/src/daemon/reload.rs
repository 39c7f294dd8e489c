//! SIGHUP: read the configuration again, apply what can change under a running relay, and say what cannot.
//!
//! Relay settings, retry policies, rate limits, the pace of adopted tables and consumers' settings apply at
//! once. Everything else
//! (databases, sinks, topics of routes, addresses) decides what a cursor means or who is connected; the log
//! says that it takes effect at the next start, and it stays as it is. A configuration that cannot be used
//! changes nothing.
//!
//! `relay.lease_ttl_ms` waits for a restart too: the relay told it to the store when it joined, and a relay
//! that trusts a lease for longer than the store does would be wrong about it. And a
//! `relay.publish_timeout_ms` must be above what the running sinks wait for.

use super::rates::Rates;
use crate::config::{Config, Flags, Outbox, contradiction, scrub, settings_keys, shown_value};
use posthaste::consumer::ConsumerSettings;
use posthaste::relay::RelaySettings;
use posthaste::route::{Route, RouteTable};
use posthaste_postgres::claim::ClaimPace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// A path of the configuration, by its parts: names may hold dots.
type Path = Vec<String>;
/// All plain values of a configuration.
type Flat = BTreeMap<Path, Value>;

/// What running relays listen to.
pub(crate) struct LiveSettings {
    settings: watch::Sender<RelaySettings>,
    rates: watch::Sender<Rates>,
    routes: Vec<(String, watch::Sender<RouteTable>)>,
    /// Of adopted tables, by outbox.
    paces: Vec<(String, Option<watch::Sender<ClaimPace>>)>,
    consumers: Vec<(Arc<str>, watch::Sender<ConsumerSettings>)>,
    /// How long a call of each sink may take.
    delivery_timeouts: Vec<(Arc<str>, u64)>,
    /// The values in force.
    running: Flat,
}

/// One value that is not what it was.
struct Change {
    path: Path,
    from: Value,
    to: Value,
}

impl LiveSettings {
    pub(crate) fn new(config: &Config) -> Self {
        let routes = config.outboxes.iter();
        let routes =
            routes.map(|outbox| (outbox.name.to_string(), watch::Sender::new(outbox.routes.clone())));
        Self {
            settings: watch::Sender::new(config.relay.clone()),
            rates: watch::Sender::new(rates_of(config)),
            routes: routes.collect(),
            paces: config
                .outboxes
                .iter()
                .map(|outbox| (outbox.name.to_string(), pace_of(outbox).map(watch::Sender::new)))
                .collect(),
            consumers: config
                .consumers
                .iter()
                .map(|consumer| (Arc::clone(&consumer.name), watch::Sender::new(consumer.settings.clone())))
                .collect(),
            delivery_timeouts: config
                .sinks
                .iter()
                .filter_map(|sink| Some((Arc::clone(&sink.name), sink.delivery_timeout_ms?)))
                .collect(),
            running: flatten(&config.effective),
        }
    }

    pub(crate) fn settings(&self) -> watch::Receiver<RelaySettings> {
        self.settings.subscribe()
    }

    pub(crate) fn rates(&self) -> watch::Receiver<Rates> {
        self.rates.subscribe()
    }

    pub(crate) fn routes(&self, outbox: usize) -> watch::Receiver<RouteTable> {
        self.routes[outbox].1.subscribe()
    }

    pub(crate) fn pace(&self, outbox: usize) -> Option<watch::Receiver<ClaimPace>> {
        self.paces[outbox].1.as_ref().map(watch::Sender::subscribe)
    }

    pub(crate) fn consumer(&self, index: usize) -> watch::Receiver<ConsumerSettings> {
        self.consumers[index].1.subscribe()
    }

    /// Reads and applies. `None`: nothing was changed.
    pub(crate) fn reload(&mut self, flags: &Flags) -> Option<Config> {
        let config = match Config::load(flags) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!("SIGHUP: the configuration cannot be used, nothing was changed: {error}");
                return None;
            }
        };
        let changes = changes(&self.running, &flatten(&config.effective));
        if changes.is_empty() {
            tracing::info!("SIGHUP: nothing has changed");
            return Some(config);
        }
        let lease_ttl_ms = self.settings.borrow().lease_ttl_ms;
        let settings = RelaySettings { lease_ttl_ms, ..config.relay.clone() };
        if let Err(why) = settings.check() {
            tracing::error!(
                "SIGHUP: with the running lease_ttl_ms of {lease_ttl_ms} nothing was changed: {why}"
            );
            return None;
        }
        let mut running = self.delivery_timeouts.iter();
        let publish_ms = settings.publish_timeout_ms;
        if let Some(why) = running.find_map(|(sink, ms)| contradiction(sink, *ms, publish_ms)) {
            tracing::error!(
                "SIGHUP: with the running sinks nothing was changed: {why}. Sinks take theirs at a restart"
            );
            return None;
        }
        self.settings.send_replace(settings);
        self.rates.send_replace(rates_of(&config));
        self.apply_retries(&config);
        self.apply_paces(&config);
        for (name, sender) in &self.consumers {
            if let Some(new) = config.consumers.iter().find(|consumer| consumer.name == *name) {
                sender.send_replace(new.settings.clone());
            }
        }
        self.say(changes);
        Some(config)
    }

    fn apply_retries(&self, config: &Config) {
        for (name, sender) in &self.routes {
            let Some(outbox) = config.outboxes.iter().find(|outbox| *outbox.name == **name) else { continue };
            sender.send_modify(|table| *table = with_retries(table, &outbox.routes));
        }
    }

    fn apply_paces(&self, config: &Config) {
        for (name, sender) in &self.paces {
            let outbox = config.outboxes.iter().find(|outbox| *outbox.name == **name);
            if let (Some(sender), Some(pace)) = (sender, outbox.and_then(pace_of)) {
                sender.send_replace(pace);
            }
        }
    }

    fn say(&mut self, changes: Vec<Change>) {
        let (live, rest): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(|change| is_live(&change.path));
        for change in &live {
            tracing::info!("SIGHUP: {}", describe(change));
        }
        for change in &rest {
            tracing::warn!("SIGHUP: takes effect at the next start: {}", describe(change));
        }
        self.running.extend(live.into_iter().map(|change| (change.path, change.to)));
    }
}

/// The running routes with the retry policies of the new ones. Nothing else of a route may change: relays
/// with different routes would read different events for the same cursor.
fn with_retries(running: &RouteTable, new: &RouteTable) -> RouteTable {
    let renewed = |route: &std::sync::Arc<Route>| {
        let same = new.routes().iter().find(|candidate| candidate.name == route.name);
        Route { retry: same.map_or(route.retry, |found| found.retry), ..Route::clone(route) }
    };
    RouteTable::new(running.routes().iter().map(renewed).collect())
}

fn pace_of(outbox: &Outbox) -> Option<ClaimPace> {
    outbox.database.layout().map(|(_, layout)| layout.pace())
}

fn rates_of(config: &Config) -> Rates {
    let rate = |sink: &crate::config::SinkSetting| Some((sink.name.to_string(), sink.rate_limit_per_s?));
    config.sinks.iter().filter_map(rate).collect()
}

fn is_live(path: &[String]) -> bool {
    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["relay", key, ..] => *key != "lease_ttl_ms",
        ["consumers", _, key, ..] => settings_keys().iter().any(|live| live == key),
        ["outbox", .., "adopt", "batch" | "poll_min_ms" | "poll_max_ms"] => true,
        ["route", _, "retry", ..] | ["sinks", _, "rate_limit_per_s"] => true,
        ["gateway", "bounds", key] => {
            key.starts_with("body_") || matches!(*key, "batch_events_max" | "inflight_bytes_max")
        }
        ["gateway", "limit", "rate_per_s" | "burst" | "on_loss" | "gateways"] => true,
        ["gateway", "tenants" | "topic", ..] => true,
        _ => false,
    }
}

fn describe(change: &Change) -> String {
    let leaf = change.path.last().map_or("", String::as_str);
    let shown = |value: &Value| match value {
        Value::Null => "not set".to_owned(),
        value => shown_value(leaf, value),
    };
    scrub(&format!("{}: {} → {}", change.path.join("."), shown(&change.from), shown(&change.to)))
}

fn changes(from: &Flat, to: &Flat) -> Vec<Change> {
    let mut paths: Vec<&Path> = from.keys().chain(to.keys()).collect();
    paths.sort();
    paths.dedup();
    let value = |flat: &Flat, path: &Path| flat.get(path).cloned().unwrap_or(Value::Null);
    let change = |path: &Path| Change { path: path.clone(), from: value(from, path), to: value(to, path) };
    paths.into_iter().map(change).filter(|change| change.from != change.to).collect()
}

fn flatten(value: &Value) -> Flat {
    let mut flat = Flat::new();
    flatten_into(&mut flat, &mut Vec::new(), value);
    flat
}

/// Outboxes and routes go by name: a new one in the middle moves no other.
fn flatten_into(flat: &mut Flat, path: &mut Path, value: &Value) {
    let mut step = |flat: &mut Flat, key: String, value: &Value| {
        path.push(key);
        flatten_into(flat, path, value);
        path.pop();
    };
    match value {
        Value::Object(table) => table.iter().for_each(|(key, value)| step(flat, key.clone(), value)),
        Value::Array(items) if items.iter().any(|item| item["name"].is_string()) => {
            for item in items {
                step(flat, item["name"].as_str().unwrap_or_default().to_owned(), item);
            }
        }
        value => {
            flat.insert(path.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(from: Value, to: Value) -> Vec<(String, bool)> {
        let all = changes(&flatten(&from), &flatten(&to));
        all.iter().map(|change| (change.path.join("."), is_live(&change.path))).collect()
    }

    #[test]
    fn what_applies_and_what_waits() {
        let from = json!({
            "outbox": [{ "name": "o", "adopt": { "batch": 50, "lease_ms": 1 } }],
            "relay": { "poll_min_ms": 3, "lease_ttl_ms": 20_000 },
            "sinks": { "nats": { "type": "nats" } },
            "consumers": { "c": { "topics": ["a"], "batch_max": 64, "retry": { "delays_ms": [1] } } },
            "route": [{ "name": "a.b", "topics": ["a"], "retry": { "max_attempts": 5 } }],
        });
        let to = json!({
            "outbox": [{ "name": "o", "adopt": { "batch": 9, "lease_ms": 2, "poll_max_ms": 5 } }],
            "relay": { "poll_min_ms": 10, "lease_ttl_ms": 30_000 },
            "sinks": { "nats": { "type": "nats", "rate_limit_per_s": 5 } },
            "consumers": { "c": { "topics": ["b"], "batch_max": 32, "retry": { "delays_ms": [2] } } },
            "route": [
                { "name": "new", "topics": ["n"] },
                { "name": "a.b", "topics": ["b"], "retry": { "max_attempts": 6 } },
            ],
        });
        let expected = [
            ("consumers.c.batch_max", true),
            ("consumers.c.retry.delays_ms", true),
            ("consumers.c.topics", false),
            ("outbox.o.adopt.batch", true),
            ("outbox.o.adopt.lease_ms", false),
            ("outbox.o.adopt.poll_max_ms", true),
            ("relay.lease_ttl_ms", false),
            ("relay.poll_min_ms", true),
            ("route.a.b.retry.max_attempts", true),
            ("route.a.b.topics", false),
            ("route.new.name", false),
            ("route.new.topics", false),
            ("sinks.nats.rate_limit_per_s", true),
        ];
        assert_eq!(named(from, to), expected.map(|(path, live)| (path.to_owned(), live)));
    }

    #[test]
    fn only_the_policy_of_a_route_changes() {
        let old = Route::everything_to("nats");
        let mut new = old.clone();
        new.retry.max_attempts = 3;
        new.topics.clear();
        let merged = with_retries(&RouteTable::new(vec![old.clone()]), &RouteTable::new(vec![new]));
        assert_eq!(merged.routes()[0].retry.max_attempts, 3);
        assert_eq!(merged.routes()[0].topics, old.topics);
    }

    /// A sink keeps the bound that it was started with.
    #[test]
    #[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
    fn a_relay_that_would_cut_the_running_sinks_calls_stays_as_it_is() {
        let path = std::env::temp_dir().join(format!("posthaste-reload-{}.toml", std::process::id()));
        let write = |relay: &str| {
            let text = format!(
                "[outbox]\nurl = \"postgres://h/d\"\n[sinks.n]\ntype = \"nats\"\nurl = \"nats://h\"\n\
                 [[route]]\ntopics = [\"*\"]\nsinks = [\"n\"]\n[relay]\n{relay}\n"
            );
            std::fs::write(&path, text).expect("the temporary directory can be written to");
        };
        let flags = Flags { config: Some(path.clone()), ..Flags::default() };
        write("");
        let mut live =
            LiveSettings::new(&Config::load(&flags).map_err(|e| e.to_string()).expect("it is read"));
        let settings = live.settings();
        for (relay, publish_ms) in
            [("publish_timeout_ms = 8000", 10_000), ("publish_timeout_ms = 8001", 8_001)]
        {
            write(relay);
            live.reload(&flags);
            assert_eq!(settings.borrow().publish_timeout_ms, publish_ms, "{relay}");
        }
        std::fs::remove_file(&path).expect("it was there");
    }
}
