//! The sinks against real brokers.
//!
//! Every test starts a server of its own and says what a user would see: verdicts, findings, and what is in
//! the stream afterwards, read by another client. A server that is not installed is a counted skip.

#[cfg_attr(
    not(all(
        feature = "http",
        feature = "kafka",
        feature = "nats",
        feature = "rabbitmq",
        feature = "redis"
    )),
    allow(dead_code, unused_imports, unused_macros) // each broker uses its part
)]
mod ground;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "schemas")]
mod schema;
