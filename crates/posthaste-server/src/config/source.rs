//! Where consumers' messages come from: a `[sources.NAME]`, or a `[sinks.NAME]` that can be read.
//!
//! A source is a sink's broker from the other side, with the same connection. So a sink's table is enough,
//! and `[sources.NAME]` is for a login of its own.

use super::SinkSetting;
use super::problem::{self, ConfigError};
use super::resolve::{NAME_BYTES_MAX, Review, check_name, demand_tls};
use super::section::File;
#[cfg(feature = "sqlite")]
use super::sink::LOCAL;
use super::sink::SinkConfig;
use super::tree::{Tree, member};
use posthaste_brokers::{BuildError, SourceConfig as BrokerSource, built_in, missing};
#[cfg(feature = "sqlite")]
use posthaste_sqlite::broker::LocalConfig;
use serde_json::Value;
use std::collections::BTreeMap;

/// Types of sinks behind which there is no broker.
const WITHOUT_BROKER: [&str; 2] = ["null", "stdout"];

/// What is said of a type that has no source.
pub(super) const UNREADABLE: &str = "nothing can be read from a broker of that type";

/// The broker of a source, with its options.
#[derive(Clone)]
pub(crate) enum SourceSetting {
    /// One of the brokers'.
    Broker(BrokerSource),
    /// The local broker.
    #[cfg(feature = "sqlite")]
    Local(LocalConfig),
}

/// Sources by name; `None` for a sink that cannot be read. What could not be understood is left out: it is a
/// problem already.
pub(super) type Sources = BTreeMap<String, Option<SourceSetting>>;

/// Everything that a consumer may name.
pub(super) fn sources(review: &mut Review<'_>, file: &File, sinks: &[SinkSetting]) -> Sources {
    let of_sink = |sink: &SinkSetting| (sink.name.to_string(), SourceSetting::of_sink(&sink.config));
    let mut sources: Sources = sinks.iter().map(of_sink).collect();
    for (name, value) in &file.sources {
        let path = member("sources", name);
        check_name(review, &path, name, NAME_BYTES_MAX);
        if file.sinks.contains_key(name) {
            let why = "is both a source and a sink: a consumer could not say which. Give one another name";
            review.problem(&path, format!("`{name}` {why}"));
        }
        match SourceSetting::read(review, file, &path, value.clone()) {
            Ok(source) => drop(sources.insert(name.clone(), Some(source))),
            Err(error) => review.problems.push(error.to_string()),
        }
    }
    sources
}

impl SourceSetting {
    /// A sink's broker from the other side, if it can be read.
    fn of_sink(sink: &SinkConfig) -> Option<Self> {
        match sink {
            SinkConfig::Broker(config) => BrokerSource::of_sink(config).map(Self::Broker),
            #[cfg(feature = "sqlite")]
            SinkConfig::Local(config) => Some(Self::Local(config.clone())),
        }
    }

    /// Whether its messages may have subjects or routing keys.
    pub(super) fn has_addresses(&self) -> bool {
        self.broker().is_some_and(BrokerSource::has_addresses)
    }

    /// Reads a source's table. It has the keys of a sink's connection.
    fn read(review: &mut Review<'_>, file: &File, path: &str, mut value: Value) -> Result<Self, ConfigError> {
        if file.require_tls {
            demand_tls(review, path, &mut value);
        }
        let tree = review.tree;
        let kind = value.get("type").and_then(Value::as_str).unwrap_or_default();
        #[cfg(feature = "sqlite")]
        if kind == LOCAL {
            let sink = SinkConfig::read(tree, path, value, &[])?;
            sink.check().map_err(|error| wrong(review, path, &error))?;
            return Self::of_sink(&sink).ok_or_else(|| unreadable(tree, path));
        }
        if built_in().chain(WITHOUT_BROKER).any(|known| known == kind) && !can_be_read(kind) {
            return Err(unreadable(tree, path));
        }
        if let Some(words) = missing(kind) {
            return Err(ConfigError::new(format!("{}: {words}", tree.place(&member(path, "type")))));
        }
        let source: BrokerSource = problem::read(tree, path, value, &[])?;
        source.check().map_err(|error| wrong(review, path, &error))?;
        Ok(Self::Broker(source))
    }

    /// The broker, if it is not the local one.
    pub(crate) fn broker(&self) -> Option<&BrokerSource> {
        match self {
            Self::Broker(source) => Some(source),
            #[cfg(feature = "sqlite")]
            Self::Local(_) => None,
        }
    }

    /// Checks the files that its options name.
    pub(super) fn check_files(&self) -> Result<(), BuildError> {
        match self {
            Self::Broker(source) => source.check_files(),
            // Its file may be made later, by whoever publishes first.
            #[cfg(feature = "sqlite")]
            Self::Local(_) => Ok(()),
        }
    }
}

/// Whether the brokers' crate has a source of this type.
fn can_be_read(kind: &str) -> bool {
    posthaste_brokers::source_checks().iter().any(|(known, _)| *known == kind)
}

fn unreadable(tree: &Tree, path: &str) -> ConfigError {
    ConfigError::new(format!("{}: `{path}` is no source: {UNREADABLE}", tree.place(&member(path, "type"))))
}

fn wrong(review: &Review<'_>, path: &str, error: &BuildError) -> ConfigError {
    let blamed = review.blamed(path, &error.to_string());
    ConfigError::new(format!("{}: {path}.{error}", review.tree.place(&blamed)))
}
