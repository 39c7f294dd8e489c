//! Configuration: one file, an environment overlay, flags; checked as a whole before anything starts.
//!
//! ```text
//! posthaste.toml ─┐
//! POSTHASTE_…    ─┼─▶ tree (values + where they came from) ─▶ sections (serde) ─▶ resolve ─▶ Config
//! flags          ─┘
//! ```
//!
//! An unknown key is refused, never ignored: a misspelt `retry` that silently falls back to a default is
//! found in production. A ready-made layering crate was refused because none of them keeps lines, and a
//! message without a line is a search.

mod adopt;
mod consumer;
mod env;
mod outbox;
mod problem;
mod resolve;
mod schema;
mod section;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod timeout;
mod tree;

pub(crate) use crate::secret::{scrub, shown_value};
pub(crate) use consumer::{ConsumerOwn, ConsumerSetting, settings_keys};
pub(crate) use env::{Overlay, TOPOLOGY_PREFIX, overlay};
pub(crate) use outbox::{check_url, refuse_plain, url_of};
pub(crate) use problem::{ConfigError, read_whole};
pub(crate) use resolve::{Review, known_names};
pub(crate) use schema::schema;
pub(crate) use section::LogFormat;
pub(crate) use sink::{SinkConfig, sink_checks};
pub(crate) use source::SourceSetting;
pub(crate) use timeout::contradiction;
pub(crate) use tree::{Tree, member};

use crate::access::AdminSetting;
use crate::database::Database;
use crate::gateway::GatewaySetting;
use crate::{schemas, secret};
use posthaste::lifecycle::ClassOverrides;
use posthaste::relay::RelaySettings;
use posthaste::route::RouteTable;
use posthaste::store::StartAt;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tree::ValueOrigin;

/// The file that is read when nothing else is said.
pub(crate) const DEFAULT_FILE: &str = "posthaste.toml";

/// A file with every key, for people. A test keeps it complete.
pub(crate) const EXAMPLE: &str = include_str!("example.toml");

/// What the command line says about configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags {
    /// `--config`.
    pub(crate) config: Option<PathBuf>,
    /// `--url`: one outbox, no file.
    pub(crate) url: Option<String>,
    /// `--schema`.
    pub(crate) schema: Option<String>,
    /// `--sink`, as often as given: `stdout`, `null` or a broker's URL.
    pub(crate) sinks: Vec<String>,
    /// `--start-at`, for those.
    pub(crate) start_at: Option<String>,
    /// `--listen`.
    pub(crate) listen: Option<String>,
}

/// One outbox.
#[derive(Clone)]
pub(crate) struct Outbox {
    pub(crate) name: Arc<str>,
    pub(crate) service: Arc<str>,
    pub(crate) database: Database,
    pub(crate) acting: Option<Database>,
    pub(crate) lanes: Option<u16>,
    /// Whether its log is relayed by this process.
    pub(crate) relays: bool,
    pub(crate) routes: RouteTable,
}

impl Outbox {
    /// The sinks that its routes feed, in the order of the configuration.
    pub(crate) fn sinks<'a>(&self, config: &'a Config) -> Vec<&'a SinkSetting> {
        let feeds = |sink: &&SinkSetting| {
            self.routes.routes().iter().any(|route| route.sinks.iter().any(|name| **name == *sink.name))
        };
        config.sinks.iter().filter(feeds).collect()
    }
}

/// One sink.
#[derive(Clone)]
pub(crate) struct SinkSetting {
    pub(crate) name: Arc<str>,
    pub(crate) config: SinkConfig,
    pub(crate) start_at: StartAt,
    pub(crate) classes: ClassOverrides,
    pub(crate) rate_limit_per_s: Option<f64>,
    /// How long a call may take, where the kind has a bound.
    pub(crate) delivery_timeout_ms: Option<u64>,
    /// Refuses a destination that can lose what it has acknowledged.
    pub(crate) durable: bool,
}

/// Everything, checked. It has no `Debug`: it holds passwords.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) file: Option<PathBuf>,
    pub(crate) relay: RelaySettings,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) admin: AdminSetting,
    pub(crate) log_format: LogFormat,
    pub(crate) log_level: String,
    pub(crate) outboxes: Vec<Outbox>,
    pub(crate) sinks: Vec<SinkSetting>,
    pub(crate) consumers: Vec<ConsumerSetting>,
    /// The door for tenants, if there is one.
    pub(crate) gateway: Option<GatewaySetting>,
    /// Those with a table of their own.
    sources: Vec<(String, SourceSetting)>,
    pub(crate) warnings: Vec<String>,
    /// All keys with their values, defaults included and secrets too: only for comparing.
    pub(crate) effective: Value,
    /// As it was written, for the places in messages.
    tree: Tree,
}

impl Config {
    /// Reads file, environment and flags.
    pub(crate) fn load(flags: &Flags) -> Result<Self, ConfigError> {
        Self::load_with(
            flags,
            std::env::vars_os().filter_map(|(k, v)| k.into_string().ok().zip(v.into_string().ok())),
        )
    }

    /// The same with a given environment.
    pub(crate) fn load_with(
        flags: &Flags,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut tree = match file_of(flags)? {
            Some(path) => Tree::read(&path)?,
            None => Tree::empty(),
        };
        let warnings = env::overlay(&mut tree, env::MAIN, variables)?;
        lay_flags(&mut tree, flags);
        match resolve::resolve(tree) {
            Ok(mut config) => {
                config.warnings.extend(warnings);
                Ok(config)
            }
            // A variable that is not used may be what is missing.
            Err(error) => Err(ConfigError::new([vec![error.to_string()], warnings].concat().join("\n"))),
        }
    }

    /// Reads the text of a file, and nothing else.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        resolve::resolve(Tree::parse(path, text)?)
    }

    /// The effective configuration for people: secrets masked.
    pub(crate) fn shown(&self) -> Value {
        let mut shown = secret::masked(&self.effective);
        schema::add_sink_defaults(&mut shown);
        shown
    }

    /// Reads the files that outboxes, sinks, sources and consumers name.
    pub(crate) fn check_files(&self) -> Result<(), ConfigError> {
        let outboxes = self.outboxes.iter().enumerate().filter_map(|(index, outbox)| {
            let (key, why) = outbox.database.server()?.check_files().err()?;
            Some((format!("outbox[{index}]"), key, why))
        });
        let sinks = self.sinks.iter().filter_map(|sink| {
            let error = sink.config.check_files().err()?;
            Some((tree::member("sinks", &sink.name), error.option_name(), error.to_string()))
        });
        let sources = self.sources.iter().filter_map(|(name, source)| {
            let error = source.check_files().err()?;
            Some((tree::member("sources", name), error.option_name(), error.to_string()))
        });
        let consumers = self.consumers.iter().filter_map(|consumer| {
            // All other files are the outbox's, and looked at above.
            consumer.own.password_file.as_ref()?;
            let found = consumer.database.check_files().err();
            let (key, why) = found.filter(|(key, _)| *key == "password_file")?;
            Some((tree::member("consumers", &consumer.name), key, why))
        });
        let gateway = self.gateway.iter().filter_map(|gateway| {
            let (key, why) = gateway.check_files()?;
            Some(("gateway".to_owned(), key, why))
        });
        let schemas = self.consumers.iter().filter_map(|consumer| {
            let (table, key, why) = schemas::check_files(&consumer.own.schema)?;
            Some((format!("{}.{table}", tree::member("consumers", &consumer.name)), key, why))
        });
        let handlers = self.consumers.iter().flat_map(|consumer| {
            let table = tree::member("consumers", &consumer.name);
            let receivers = consumer.own.handle.iter().enumerate().map(|(at, handle)| (at, &handle.http));
            receivers.filter_map(move |(at, receiver)| {
                let why = receiver.as_ref()?.check_files().err()?;
                Some((format!("{table}.handle[{at}]"), "http", format!("http: {why}")))
            })
        });
        let problem = |(table, key, why): (String, &str, String)| {
            let place = self.tree.place(&tree::member(&table, key));
            format!("{place}: {}.{why}", self.tree.shown(&table))
        };
        let problems: Vec<String> = outboxes
            .chain(sinks)
            .chain(sources)
            .chain(consumers)
            .chain(handlers)
            .chain(schemas)
            .chain(gateway)
            .map(problem)
            .collect();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::new(problems.join("\n"))) }
    }
}

/// `--url` stands for a whole file. A named file must exist; the default one need not.
fn file_of(flags: &Flags) -> Result<Option<PathBuf>, ConfigError> {
    if flags.url.is_some() {
        return Ok(None);
    }
    match &flags.config {
        Some(path) if path.exists() => Ok(Some(path.clone())),
        Some(path) => Err(ConfigError::new(format!("there is no configuration file {}", path.display()))),
        None => Ok(Some(Path::new(DEFAULT_FILE)).filter(|path| path.exists()).map(Path::to_owned)),
    }
}

fn lay_flags(tree: &mut Tree, flags: &Flags) {
    if let Some(url) = &flags.url {
        let mut outbox = json!({ "url": url });
        if let Some(schema) = &flags.schema {
            outbox["schema"] = json!(schema);
        }
        tree.set("outbox", outbox, ValueOrigin::Flag("--url"));
    }
    if !flags.sinks.is_empty() {
        lay_sinks(tree, flags);
    }
    if let Some(listen) = &flags.listen {
        tree.set("http", json!({ "listen": listen }), ValueOrigin::Flag("--listen"));
    }
}

/// `--sink stdout --sink nats://…`: everything goes to each of them.
fn lay_sinks(tree: &mut Tree, flags: &Flags) {
    let mut sinks = serde_json::Map::new();
    for text in &flags.sinks {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        let (kind, mut sink) = match posthaste_brokers::kind_of(text).or(scheme) {
            Some(kind) => (kind, json!({ "type": kind, "url": text })),
            None => (text.as_str(), json!({ "type": text })),
        };
        if let Some(start_at) = &flags.start_at {
            sink["start_at"] = start_at.parse::<i64>().map_or_else(|_| json!(start_at), Value::from);
        }
        sinks.insert(free_name(&sinks, kind), sink);
    }
    let names: Vec<&String> = sinks.keys().collect();
    let route = json!([{ "topics": ["*"], "sinks": names }]);
    tree.set("route", route, ValueOrigin::Flag("--sink"));
    tree.set("sinks", Value::Object(sinks), ValueOrigin::Flag("--sink"));
}

fn free_name(taken: &serde_json::Map<String, Value>, kind: &str) -> String {
    let numbered = (2..).map(|n| format!("{kind}{n}"));
    let mut names = std::iter::once(kind.to_owned()).chain(numbered);
    names.find(|name| !taken.contains_key(name)).unwrap_or_default()
}
