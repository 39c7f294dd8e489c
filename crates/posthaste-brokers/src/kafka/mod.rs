//! Apache Kafka.

mod admin;
mod cause;
mod config;
mod examine;
mod fleet;
mod line;
mod order;
mod sink;
mod topics;
mod verdict;
mod watch;

pub use config::{Compression, KafkaConfig, SaslMechanism};
pub use examine::CHECKS;
pub use sink::KafkaSink;
