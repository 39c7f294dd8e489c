//! The options of a RabbitMQ source: how to reach the broker, and what its operator vouches for.

use crate::Urls;
use crate::options::source_keys;
use crate::rabbitmq::{RabbitmqConfig, heartbeat_secs};

source_keys! {
    /// Options of a RabbitMQ source. A sink has the same ones, and more.
    SourceKeys, keys => RabbitmqConfig: RabbitmqConfig {
        url: keys.url,
        quorum_queues: keys.quorum_queues,
        heartbeat_secs: keys.heartbeat_secs,
        ..RabbitmqConfig::new("")
    },
    {
        /// One server or several, tried in this order: `amqp://host:5672/vhost`, or `amqps://host:5671/vhost`
        /// with TLS. Without a path the virtual host is `/`.
        #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
        url: Urls,
        /// The operator's word that every queue is a quorum queue, has a single active consumer where `order`
        /// asks for one, and loses nothing by a delivery limit. It counts where the user may not look.
        #[serde(default)]
        quorum_queues: bool,
        /// How often both sides give a sign of life, at least.
        #[serde(default = "heartbeat_secs")]
        heartbeat_secs: u16,
    }
}
