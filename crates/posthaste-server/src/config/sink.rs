//! A sink as the file describes it: one of the brokers', or the local broker in a file.
//!
//! The brokers' crate knows its own kinds and does not know SQLite; the local broker lives with the SQLite
//! store. This is the one place that knows both.

use super::problem::{self, ConfigError};
use super::tree::{Tree, member};
use posthaste::sink::Sink;
use posthaste_brokers::{BuildError, SinkConfig as BrokerSink, left_out, missing};
#[cfg(feature = "sqlite")]
use posthaste_sqlite::broker::{Broker, LocalConfig, LocalSink};
use serde_json::Value;
use std::sync::Arc;

/// The word of the local broker.
#[cfg(feature = "sqlite")]
pub(super) const LOCAL: &str = "local";

/// What kind of sink, with its options.
#[derive(Clone)]
pub(crate) enum SinkConfig {
    /// One of the brokers'.
    Broker(BrokerSink),
    /// The local broker.
    #[cfg(feature = "sqlite")]
    Local(LocalConfig),
}

/// Names of the checks that `doctor` makes of sinks, by their type.
pub(crate) fn sink_checks() -> Vec<(&'static str, &'static [&'static str])> {
    #[allow(unused_mut)]
    let mut checks = posthaste_brokers::checks();
    #[cfg(feature = "sqlite")]
    checks.push((LOCAL, posthaste_sqlite::broker::CHECKS));
    checks
}

impl SinkConfig {
    /// Reads a sink's table, without the keys of ours in it.
    pub(crate) fn read(tree: &Tree, path: &str, value: Value, own: &[&str]) -> Result<Self, ConfigError> {
        #[cfg(feature = "sqlite")]
        if value.get("type").and_then(Value::as_str) == Some(LOCAL) {
            let mut value = value;
            if let Value::Object(table) = &mut value {
                table.remove("type");
            }
            let siblings: Vec<&str> = own.iter().copied().chain(["type"]).collect();
            return problem::read(tree, path, value, &siblings).map(Self::Local);
        }
        let kind = value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let place = tree.place(&member(path, "type"));
        if let Some(words) = missing(&kind) {
            return Err(ConfigError::new(format!("{place}: {words}")));
        }
        problem::read(tree, path, value, own).map(Self::Broker).map_err(|error| {
            // A slip of the finger in the name of a kind that this binary does not know.
            match problem::nearest(&kind, &left_out().collect::<Vec<_>>())
                .and_then(|near| Some((near, missing(near)?)))
            {
                Some((near, words)) => ConfigError::new(format!(
                    "{place}: `{}` cannot be `{kind}`, did you mean `{near}`? But {words}",
                    tree.shown(&member(path, "type"))
                )),
                None => error,
            }
        })
    }

    /// How long a call may take, where the kind has a bound.
    pub(super) fn delivery_timeout_ms(&mut self) -> Option<&mut u64> {
        match self {
            Self::Broker(config) => config.delivery_timeout_ms(),
            #[cfg(feature = "sqlite")]
            Self::Local(_) => None,
        }
    }

    /// How to make its broker remember the ids of messages for so long, where that can be set.
    pub(crate) fn longer_dedup(&self, seconds: u64) -> Option<String> {
        match self {
            Self::Broker(config) => config.longer_dedup(seconds),
            #[cfg(feature = "sqlite")]
            Self::Local(_) => None,
        }
    }

    /// Checks the words alone: no broker, no file that they name.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        match self {
            Self::Broker(config) => config.check(),
            #[cfg(feature = "sqlite")]
            Self::Local(config) => local(config).map(drop),
        }
    }

    /// Whether a message can ever go to this destination; if not, why, and what to write instead.
    pub(super) fn check_destination(&self, destination: &str) -> Result<(), String> {
        match self {
            Self::Broker(config) => config.check_destination(destination),
            #[cfg(feature = "sqlite")]
            Self::Local(_) => LocalSink::check_topic(destination),
        }
    }

    /// The same, and the files that the words name.
    pub(crate) fn check_files(&self) -> Result<(), BuildError> {
        match self {
            Self::Broker(config) => config.check_files(),
            // Its file may be made later: what is wrong with it is an outage, and `doctor` says so.
            #[cfg(feature = "sqlite")]
            Self::Local(config) => local(config).map(drop),
        }
    }

    /// Makes the sink.
    pub(crate) async fn build(&self, name: &str) -> Result<Arc<dyn Sink>, BuildError> {
        match self {
            Self::Broker(config) => config.build(name).await,
            #[cfg(feature = "sqlite")]
            Self::Local(config) => Ok(Arc::new(LocalSink::new(Broker::lazy(local(config)?)))),
        }
    }
}

#[cfg(feature = "sqlite")]
fn local(config: &LocalConfig) -> Result<posthaste_sqlite::broker::BrokerConfig, BuildError> {
    config.broker().map_err(|(option, why)| BuildError::Option { option, why })
}
