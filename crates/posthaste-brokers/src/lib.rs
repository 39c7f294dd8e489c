//! Posthaste's sinks and sources for real brokers, and the one place that knows their names.
//!
//! The server reads a sink's table from its configuration into a [`SinkConfig`], calls
//! [`build`](SinkConfig::build) and gets a `dyn Sink`. It never learns which brokers there are: a new one is
//! a module here, a cargo feature and a variant below. A registry of boxed constructors was refused. An enum
//! gives serde the field names, so a misspelt option is an error that names its place. A [`SourceConfig`] is
//! read in the same way, or made of a sink that can be read.
//!
//! A module of a broker opens with its configuration and with the table of its verdicts, which says what each
//! answer of the broker means, and under which stable code. Those codes are public: metrics and overrides
//! name them.
//!
//! Building never needs the broker. What is wrong with the configuration itself (a file that cannot be
//! read, a URL that is none) is a [`BuildError`]; a broker that is down is an outage like any other and
//! shows in verdicts and findings.

// A build with some of the brokers does not use everything that they share.
#[cfg(any(feature = "broker", feature = "schemas"))]
#[cfg_attr(not(feature = "all"), allow(dead_code))]
mod address;
#[cfg(feature = "broker")]
#[cfg_attr(not(feature = "all"), allow(dead_code))]
mod call;
#[cfg(feature = "tls")]
#[cfg_attr(not(feature = "all"), allow(dead_code))]
mod dial;
#[cfg(any(feature = "rabbitmq", feature = "schemas"))]
mod exchange;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod findings;
mod handler;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
mod kinds;
mod limiter;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod link;
#[cfg(any(feature = "broker", feature = "schemas"))]
mod lock;
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
#[cfg_attr(not(feature = "all"), allow(dead_code))]
mod mailbox;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(any(feature = "broker", feature = "schemas"))]
#[cfg_attr(not(feature = "all"), allow(dead_code, unused_imports, unused_macros))]
mod options;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
#[cfg_attr(not(feature = "all"), allow(dead_code, unused_imports))]
mod queue;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "schemas")]
pub mod schema;
#[cfg_attr(not(feature = "broker"), allow(dead_code))]
mod secret;
#[cfg(feature = "http")]
mod snippet;
mod source;
mod table;
#[cfg(test)]
mod testing;
#[cfg(feature = "tls")]
#[cfg_attr(not(feature = "all"), allow(dead_code))]
mod tls;
pub mod topology;

pub use handler::HandlerConfig;
pub use kinds::{
    LoginOption, addresses, built_in, kind_of, left_out, login_comment, missing, no_destination, split_login,
};
#[cfg(feature = "redis")]
#[doc(hidden)]
pub use limiter::LIMITER_SCRIPT;
pub use limiter::LimiterConfig;
#[cfg(feature = "redis")]
pub use limiter::RedisLimiter;
#[cfg(any(feature = "broker", feature = "schemas"))]
pub use options::Options;
pub use secret::{Secret, Urls};
pub use source::{GroupMember, SourceConfig, source_checks};

#[cfg(feature = "broker")]
use options::HasOptions;
use posthaste::sink::{NullSink, Sink, StdoutSink};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use table::SinkTable;

/// The option that bounds a call, of every kind of sink that has a broker to wait for.
pub const DELIVERY_TIMEOUT: &str = "delivery_timeout_ms";

/// A sink as configuration describes it: `type` names the broker, the rest are its options.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum SinkConfig {
    /// Takes everything and keeps nothing.
    Null {},
    /// Prints each event as a line of JSON.
    Stdout {},
    /// NATS JetStream.
    #[cfg(feature = "nats")]
    Nats(Box<nats::NatsConfig>),
    /// Apache Kafka.
    #[cfg(feature = "kafka")]
    Kafka(Box<kafka::KafkaConfig>),
    /// Redis Streams.
    #[cfg(feature = "redis")]
    Redis(Box<redis::RedisConfig>),
    /// RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq(Box<rabbitmq::RabbitmqConfig>),
    /// HTTP: webhooks.
    #[cfg(feature = "http")]
    Http(Box<http::HttpConfig>),
}

impl<'de> Deserialize<'de> for SinkConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let SinkTable { kind, rest } = SinkTable::deserialize(deserializer)?;
        Self::read(kind, rest).map_err(D::Error::custom)
    }
}

/// Acts on the broker's own configuration, whichever broker it is.
macro_rules! of_broker {
    ($sink:expr, $config:ident => $act:expr, or $without:expr) => {
        match $sink {
            Self::Null {} | Self::Stdout {} => $without,
            #[cfg(feature = "nats")]
            Self::Nats($config) => $act,
            #[cfg(feature = "kafka")]
            Self::Kafka($config) => $act,
            #[cfg(feature = "redis")]
            Self::Redis($config) => $act,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq($config) => $act,
            #[cfg(feature = "http")]
            Self::Http($config) => $act,
        }
    };
}

impl SinkConfig {
    fn read(kind: &str, table: Map<String, Value>) -> Result<Self, serde_json::Error> {
        /// A sink without options.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        Ok(match kind {
            "null" => serde_json::from_value(Value::Object(table)).map(|Nothing {}| Self::Null {})?,
            "stdout" => serde_json::from_value(Value::Object(table)).map(|Nothing {}| Self::Stdout {})?,
            #[cfg(feature = "nats")]
            "nats" => Self::Nats(Box::new(nats::NatsConfig::read(table)?)),
            #[cfg(feature = "kafka")]
            "kafka" => Self::Kafka(Box::new(kafka::KafkaConfig::read(table)?)),
            #[cfg(feature = "redis")]
            "redis" => Self::Redis(Box::new(redis::RedisConfig::read(table)?)),
            #[cfg(feature = "rabbitmq")]
            "rabbitmq" => Self::Rabbitmq(Box::new(rabbitmq::RabbitmqConfig::read(table)?)),
            #[cfg(feature = "http")]
            "http" => Self::Http(Box::new(http::HttpConfig::read(table)?)),
            other => return Err(serde::de::Error::custom(format_args!("no sink is called `{other}`"))),
        })
    }

    /// Checks the options alone, without a broker and without the files that they name. Whoever only looks at
    /// an outbox need not be able to read its broker's secrets.
    pub fn check(&self) -> Result<(), BuildError> {
        of_broker!(self, config => config.check_words().map(drop), or Ok(()))
    }

    /// Checks the options, and the files that they name.
    pub fn check_files(&self) -> Result<(), BuildError> {
        of_broker!(self, config => config.check().map(drop), or Ok(()))
    }

    /// Whether a message can ever go to this destination, by the same functions that the sinks ask. If it
    /// cannot, the text says why, and what to write instead.
    pub fn check_destination(&self, destination: &str) -> Result<(), String> {
        let (found, instead): (Result<(), &str>, &str) = match (self, destination) {
            (Self::Null {} | Self::Stdout {}, _) => (Ok(()), ""),
            // Every name is one of a stream.
            #[cfg(feature = "redis")]
            (Self::Redis(_), _) => (Ok(()), ""),
            #[cfg(feature = "nats")]
            (Self::Nats(_), subject) => {
                (nats::check_subject(subject), ". Write a subject like orders.placed")
            }
            #[cfg(feature = "kafka")]
            (Self::Kafka(_), topic) => (kafka::check_name(topic), ". Write a topic like orders.placed"),
            #[cfg(feature = "rabbitmq")]
            (Self::Rabbitmq(config), place) => {
                (config.place(place).map(drop), ". Write exchange/routing.key, or the name of a queue")
            }
            #[cfg(feature = "http")]
            (Self::Http(config), url) => (config.check_destination(url), ""),
        };
        found.map_err(|why| format!("{why}{instead}"))
    }

    /// The value of [`DELIVERY_TIMEOUT`]; `None` for a kind without a broker.
    pub fn delivery_timeout_ms(&mut self) -> Option<&mut u64> {
        of_broker!(self, config => Some(&mut config.options.delivery_timeout_ms), or None)
    }

    /// How to make this broker remember the ids of messages for this long. There is an answer where the
    /// broker drops duplicates for a time that can be set.
    #[must_use]
    #[cfg_attr(not(feature = "nats"), expect(unused_variables))]
    pub fn longer_dedup(&self, seconds: u64) -> Option<String> {
        #[cfg(feature = "nats")]
        if let Self::Nats(_) = self {
            return Some(format!("nats stream edit --dupe-window {seconds}s"));
        }
        None
    }

    /// Whether one example of a pattern of topics tells where the others go: a stream of JetStream takes all
    /// subjects of a pattern. A topic or a queue is there by its own name only.
    #[must_use]
    pub fn takes_patterns(&self) -> bool {
        #[cfg(feature = "nats")]
        if let Self::Nats(_) = self {
            return true;
        }
        false
    }

    /// Makes the sink. `name` is the sink's own, for logs and for what the broker shows of its clients.
    #[cfg_attr(not(feature = "broker"), expect(unused_variables))]
    pub async fn build(&self, name: &str) -> Result<Arc<dyn Sink>, BuildError> {
        Ok(match self {
            Self::Null {} => Arc::new(NullSink),
            Self::Stdout {} => Arc::new(StdoutSink),
            #[cfg(feature = "nats")]
            Self::Nats(config) => Arc::new(nats::NatsSink::start(config, name)?),
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => Arc::new(kafka::KafkaSink::start(config, name)?),
            #[cfg(feature = "redis")]
            Self::Redis(config) => Arc::new(redis::RedisSink::start(config, name)?),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(config) => Arc::new(rabbitmq::RabbitmqSink::start(config, name)?),
            #[cfg(feature = "http")]
            Self::Http(config) => Arc::new(http::HttpSink::start(config, name)?),
        })
    }
}

impl topology::BrokerTable {
    /// The broker as its administrator sees it. A broker that is down is no error yet.
    pub fn admin(&self) -> Result<Box<dyn topology::BrokerAdmin>, BuildError> {
        match &self.config {
            #[cfg(feature = "kafka")]
            SinkConfig::Kafka(config) => {
                Ok(Box::new(kafka::topology::KafkaAdmin::start(config, self.sasl_url.as_ref())?))
            }
            #[cfg(feature = "nats")]
            SinkConfig::Nats(config) => Ok(Box::new(nats::NatsAdmin::start(config)?)),
            #[cfg(feature = "rabbitmq")]
            SinkConfig::Rabbitmq(config) => {
                let at = self.management_url.as_deref();
                Ok(Box::new(rabbitmq::RabbitmqAdmin::start(config, at)?))
            }
            _ => Err(BuildError::Option { option: "type", why: topology::needs_nothing(&self.kind) }),
        }
    }
}

/// Names of the checks that `posthaste doctor` makes of brokers, by the type of sink.
#[must_use]
pub fn checks() -> Vec<(&'static str, &'static [&'static str])> {
    vec![
        #[cfg(feature = "nats")]
        ("nats", nats::CHECKS),
        #[cfg(feature = "kafka")]
        ("kafka", kafka::CHECKS),
        #[cfg(feature = "redis")]
        ("redis", redis::CHECKS),
        #[cfg(feature = "rabbitmq")]
        ("rabbitmq", rabbitmq::CHECKS),
        #[cfg(feature = "http")]
        ("http", http::CHECKS),
    ]
}

/// What is wrong with a sink's configuration. The text names the option or the file, never a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A file that an option names cannot be used.
    #[error("{option} {}: {why}", path.display())]
    File {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An option's value, or two options together, make no sense.
    #[error("{option}: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is wrong, and what to write instead.
        why: String,
    },
}

impl BuildError {
    /// Every code, as `docs/errors.md` lists them.
    pub const CODES: [&str; 2] = ["config.file", "config.option"];

    /// What it is, for programs. Stable.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::File { .. } => "config.file",
            Self::Option { .. } => "config.option",
        }
    }

    /// The option that is wrong.
    #[must_use]
    pub fn option_name(&self) -> &'static str {
        match self {
            Self::File { option, .. } | Self::Option { option, .. } => option,
        }
    }
}

#[cfg_attr(not(feature = "broker"), allow(dead_code))]
impl BuildError {
    fn file(option: &'static str, path: &Path, why: impl std::fmt::Display) -> Self {
        Self::File { option, path: path.to_owned(), why: why.to_string() }
    }

    fn option(option: &'static str, why: impl Into<String>) -> Self {
        Self::Option { option, why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let listed = page.lines().filter_map(|line| line.strip_prefix("| `config.")?.split_once('`'));
        let mut listed: Vec<String> = listed.map(|(code, _)| format!("config.{code}")).collect();
        listed.sort();
        assert_eq!(listed, BuildError::CODES);
        let errors = [BuildError::file("f", Path::new("p"), "w"), BuildError::option("o", "w")];
        assert_eq!(errors.map(|error| error.code()), BuildError::CODES);
    }

    #[tokio::test]
    async fn the_type_names_the_sink_and_an_unknown_option_is_refused() {
        for text in [r#"{"type":"null"}"#, r#"{"type":"stdout"}"#] {
            let config: SinkConfig = serde_json::from_str(text).expect("valid");
            assert!(config.build("s").await.is_ok());
            assert_eq!(serde_json::to_string(&config).expect("serializes"), text);
        }
        for bad in [
            r#"{"type":"null","x":1}"#,
            r#"{"type":"nope"}"#,
            r"{}",
            r#"{"type":"nats","url":"h","x":1}"#,
            r#"{"type":"nats"}"#,
        ] {
            assert!(serde_json::from_str::<SinkConfig>(bad).is_err(), "{bad}");
        }
    }
}
