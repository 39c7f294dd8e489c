//! What a consumer says to a source, whatever its broker is; and which brokers can be read.
//!
//! A [`SourceConfig`] is read from its own table, or made of a sink that can be read: it is that broker from
//! the other side.

use crate::table::SinkTable;
use crate::{BuildError, SinkConfig};
use posthaste::consumer::Order;
use posthaste::sink::Finding;
use posthaste::source::leased::{LeasedConfig, Leases};
use posthaste::source::log::LogReader;
use posthaste::source::{Source, StartFrom};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// A member of a consumer group, whatever the broker is.
#[derive(Debug, Clone)]
pub struct GroupMember {
    /// The group. Its members share the partitions; each group gets every message.
    pub group: String,
    /// The topics, by their exact names. One that does not exist yet is waited for.
    pub topics: Vec<String>,
    /// What the broker shows of this member.
    pub member: Option<String>,
    /// What must stay in order. A broker with two ways to be read goes by it.
    pub order: Order,
    /// Where the group begins in a partition that it has never read.
    pub start_from: StartFrom,
    /// How long `next` may not be called before the partitions go to others. Longer than any handler should
    /// take.
    pub stall_limit: Duration,
    /// Most deliveries in hand, with those that are acknowledged ahead of an open one.
    pub in_hand_max: usize,
    /// How long a partition that goes to another member waits for what is in hand.
    pub handover_wait: Duration,
}

impl GroupMember {
    /// Defaults for a group and its topics.
    #[must_use]
    pub fn new(group: impl Into<String>, topics: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            member: None,
            order: Order::Key,
            start_from: StartFrom::Earliest,
            stall_limit: Duration::from_secs(300),
            in_hand_max: 8_192,
            handover_wait: Duration::from_secs(5),
        }
    }

    // Each broker with a source uses it.
    #[cfg_attr(not(feature = "broker"), allow(dead_code))]
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let wrong = match () {
            () if self.group.is_empty() => ("group", "must not be empty"),
            () if self.topics.is_empty() => ("topics", "must name one topic at least"),
            () if self.in_hand_max == 0 => ("in_hand_max", "must be 1 at least"),
            () => return Ok(()),
        };
        Err(BuildError::option(wrong.0, wrong.1))
    }

    /// The same for a plain log, whose topics have one partition each.
    // Each plain log uses it.
    #[cfg_attr(not(any(feature = "nats", feature = "redis")), allow(dead_code))]
    pub(crate) fn leased(&self) -> Result<LeasedConfig, BuildError> {
        self.check()?;
        let made_up = || format!("{}-{}", self.group, uuid::Uuid::new_v4().simple());
        let topics = self.topics.iter().map(String::as_str);
        Ok(LeasedConfig {
            stall_limit: self.stall_limit,
            in_hand_max: self.in_hand_max,
            handover_wait: self.handover_wait,
            ..LeasedConfig::new(self.member.clone().unwrap_or_else(made_up), topics)
        })
    }
}

/// A source as configuration describes it: `type` names the broker, the rest is how to reach it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SourceConfig {
    /// Apache Kafka.
    #[cfg(feature = "kafka")]
    Kafka(Box<crate::kafka::KafkaSourceConfig>),
    /// RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq(Box<crate::rabbitmq::RabbitmqConfig>),
    /// NATS JetStream.
    #[cfg(feature = "nats")]
    Nats(Box<crate::nats::NatsConfig>),
    /// Redis Streams.
    #[cfg(feature = "redis")]
    Redis(Box<crate::redis::RedisConfig>),
}

impl<'de> Deserialize<'de> for SourceConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let SinkTable { kind, rest } = SinkTable::deserialize(deserializer)?;
        Self::read(kind, rest).map_err(D::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for SourceConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SourceConfig".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        SourceTable::json_schema(generator)
    }
}

/// The words of a source's table.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[allow(dead_code)] // only its schema is used
enum SourceTable {
    /// Apache Kafka.
    #[cfg(feature = "kafka")]
    Kafka(crate::kafka::SourceKeys),
    /// RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq(crate::rabbitmq::SourceKeys),
    /// NATS JetStream.
    #[cfg(feature = "nats")]
    Nats(crate::nats::NatsSourceKeys),
    /// Redis Streams.
    #[cfg(feature = "redis")]
    Redis(crate::redis::RedisSourceKeys),
}

impl SourceConfig {
    #[cfg_attr(not(any(feature = "kafka", feature = "nats", feature = "redis")), allow(unused_variables))]
    fn read(kind: &str, table: Map<String, Value>) -> Result<Self, serde_json::Error> {
        match kind {
            #[cfg(feature = "kafka")]
            "kafka" => {
                let keys: crate::kafka::SourceKeys = serde_json::from_value(Value::Object(table))?;
                Ok(Self::Kafka(Box::new(keys.into())))
            }
            #[cfg(feature = "rabbitmq")]
            "rabbitmq" => {
                let keys: crate::rabbitmq::SourceKeys = serde_json::from_value(Value::Object(table))?;
                Ok(Self::Rabbitmq(Box::new(keys.into())))
            }
            #[cfg(feature = "nats")]
            "nats" => {
                let keys: crate::nats::NatsSourceKeys = serde_json::from_value(Value::Object(table))?;
                Ok(Self::Nats(Box::new(keys.into())))
            }
            #[cfg(feature = "redis")]
            "redis" => {
                let keys: crate::redis::RedisSourceKeys = serde_json::from_value(Value::Object(table))?;
                Ok(Self::Redis(Box::new(keys.into())))
            }
            other => Err(serde::de::Error::custom(format_args!("a broker of type `{other}` cannot be read"))),
        }
    }

    /// Whether its messages may have addresses: subjects, routing keys.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        match self {
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(_) => true,
            #[cfg(feature = "nats")]
            Self::Nats(_) => true,
            #[allow(unreachable_patterns)] // where these are all that there is
            _ => false,
        }
    }

    /// The same broker as a source, if it can be one.
    #[must_use]
    pub fn of_sink(sink: &SinkConfig) -> Option<Self> {
        match sink {
            #[cfg(feature = "kafka")]
            SinkConfig::Kafka(config) => Some(Self::Kafka(Box::new((**config).clone().into()))),
            #[cfg(feature = "rabbitmq")]
            SinkConfig::Rabbitmq(config) => Some(Self::Rabbitmq(config.clone())),
            #[cfg(feature = "nats")]
            SinkConfig::Nats(config) => Some(Self::Nats(config.clone())),
            #[cfg(feature = "redis")]
            SinkConfig::Redis(config) => Some(Self::Redis(config.clone())),
            _ => None,
        }
    }

    /// Checks the options alone, without a broker and without the files that they name.
    pub fn check(&self) -> Result<(), BuildError> {
        match *self {
            #[cfg(feature = "kafka")]
            Self::Kafka(ref config) => config.check_words(),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(ref config) => config.check_words().map(drop),
            #[cfg(feature = "nats")]
            Self::Nats(ref config) => config.check_words().map(drop),
            #[cfg(feature = "redis")]
            Self::Redis(ref config) => config.check_words().map(drop),
        }
    }

    /// Checks the options, and the files that they name.
    pub fn check_files(&self) -> Result<(), BuildError> {
        match *self {
            #[cfg(feature = "kafka")]
            Self::Kafka(ref config) => config.check(),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(ref config) => config.check().map(drop),
            #[cfg(feature = "nats")]
            Self::Nats(ref config) => config.check().map(drop),
            #[cfg(feature = "redis")]
            Self::Redis(ref config) => config.check().map(drop),
        }
    }

    /// Begins to join the group. A broker that keeps no group in order has its leases elsewhere: in the
    /// database of the inbox. Needs a runtime to be called in.
    #[allow(unused_variables)] // not every broker needs both
    pub fn build(
        &self,
        member: &GroupMember,
        leases: Arc<dyn Leases>,
    ) -> Result<Arc<dyn Source>, BuildError> {
        match *self {
            #[cfg(feature = "kafka")]
            Self::Kafka(ref config) => Ok(Arc::new(crate::kafka::KafkaSource::start(config, member)?)),
            #[cfg(feature = "nats")]
            Self::Nats(ref config) => crate::nats::start_source(config, member, leases),
            #[cfg(feature = "redis")]
            Self::Redis(ref config) => crate::redis::start_source(config, member, leases),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(ref config) => {
                Ok(Arc::new(crate::rabbitmq::RabbitmqSource::start(config, member)?))
            }
        }
    }

    /// How its group is joined, in words; `None` where there is but one way.
    #[must_use]
    pub fn joins(&self) -> Option<String> {
        match *self {
            #[cfg(feature = "kafka")]
            Self::Kafka(ref config) => Some(config.words()),
            #[allow(unreachable_patterns)] // where Kafka is the only one
            _ => None,
        }
    }

    /// Whether members of one group with these sources would be one static member twice.
    #[must_use]
    pub fn is_twin_of(&self, other: &Self) -> bool {
        match (self, other) {
            #[cfg(feature = "kafka")]
            (Self::Kafka(one), Self::Kafka(other)) => {
                one.instance.is_some()
                    && one.instance == other.instance
                    && one.connection.url == other.connection.url
            }
            #[allow(unreachable_patterns)] // where Kafka is the only one
            _ => false,
        }
    }

    /// Reads topics without joining the group. A broker that is down is no error yet. What a consumer without
    /// order reads may be a queue, which has no positions.
    #[allow(unused_variables)] // not every broker needs all of it
    pub fn reader(&self, group: &str, order: Order) -> Result<Arc<dyn LogReader>, BuildError> {
        match *self {
            #[cfg(feature = "kafka")]
            Self::Kafka(ref config) => {
                Ok(Arc::new(crate::kafka::KafkaReader::new(&config.connection, group)?))
            }
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(_) => Ok(Arc::new(crate::queue::QueueReader)),
            #[cfg(feature = "nats")]
            Self::Nats(_) if order == Order::None => Ok(Arc::new(crate::queue::QueueReader)),
            #[cfg(feature = "nats")]
            Self::Nats(ref config) => Ok(Arc::new(crate::nats::NatsLog::new(config)?)),
            #[cfg(feature = "redis")]
            Self::Redis(_) if order == Order::None => Ok(Arc::new(crate::queue::QueueReader)),
            #[cfg(feature = "redis")]
            Self::Redis(ref config) => Ok(Arc::new(crate::redis::RedisLog::new(config)?)),
        }
    }

    /// What `posthaste doctor` says about this source and the group, whose consumer keeps its marks for so
    /// long, or for ever. Nobody joins it.
    #[allow(unused_variables)] // not every broker needs all of it
    pub async fn examine(&self, member: &GroupMember, marks: Option<Duration>) -> Vec<Finding> {
        match *self {
            #[cfg(feature = "kafka")]
            Self::Kafka(ref config) => crate::kafka::examine_source(config, member, marks).await,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(ref config) => crate::rabbitmq::examine_source(config, member).await,
            #[cfg(feature = "nats")]
            Self::Nats(ref config) => crate::nats::examine_source(config, member, marks).await,
            #[cfg(feature = "redis")]
            Self::Redis(ref config) => crate::redis::examine_source(config, member, marks).await,
        }
    }
}

/// Names of the checks that `posthaste doctor` makes of sources, by their type.
#[must_use]
pub fn source_checks() -> Vec<(&'static str, &'static [&'static str])> {
    vec![
        #[cfg(feature = "kafka")]
        ("kafka", crate::kafka::SOURCE_CHECKS),
        #[cfg(feature = "rabbitmq")]
        ("rabbitmq", crate::rabbitmq::SOURCE_CHECKS),
        #[cfg(feature = "nats")]
        ("nats", crate::nats::SOURCE_CHECKS),
        #[cfg(feature = "redis")]
        ("redis", crate::redis::SOURCE_CHECKS),
    ]
}

#[cfg(all(test, feature = "kafka"))]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_the_keys_of_a_connection_and_no_more() {
        let read = |text| serde_json::from_str::<SourceConfig>(text).map_err(|error| error.to_string());
        let source =
            read(r#"{"type":"kafka","url":["a:1","b:2"],"user":"u","password":"p","require_tls":true}"#);
        let sink: SinkConfig = serde_json::from_str(
            r#"{"type":"kafka","url":["a:1","b:2"],"user":"u","password":"p","require_tls":true}"#,
        )
        .expect("valid");
        assert_eq!(SourceConfig::of_sink(&sink), source.clone().ok());
        source.expect("valid").check().expect("valid");
        let unknown = read(r#"{"type":"kafka","url":"a:1","linger_ms":1}"#).expect_err("a sink's");
        assert!(unknown.contains("`linger_ms`") && unknown.contains("`ca_file`"), "{unknown}");
        let joined = read(r#"{"type":"kafka","url":"a:1","protocol":"consumer","instance":"billing-0"}"#);
        let joined = joined.expect("valid");
        assert_eq!(joined.joins().as_deref(), Some("protocol consumer, instance billing-0"));
        let classic = SourceConfig::of_sink(&sink).expect("can be read");
        assert_eq!(classic.joins().as_deref(), Some("protocol classic"));
        assert!(joined.is_twin_of(&joined) && !joined.is_twin_of(&classic) && !classic.is_twin_of(&classic));
        let wrong = read(r#"{"type":"kafka","url":"a:1","protocol":"eager"}"#).expect_err("no such one");
        assert!(wrong.contains("`classic`") && wrong.contains("`consumer`"), "{wrong}");
        let null = read(r#"{"type":"null"}"#).expect_err("nothing to read");
        assert!(null.contains("cannot be read"), "{null}");
        assert!(read(r#"{"type":"kafka","url":"a:1","user":"u"}"#).expect("words").check().is_err());
        let null = SinkConfig::Null {};
        assert_eq!(SourceConfig::of_sink(&null), None);
    }
}
