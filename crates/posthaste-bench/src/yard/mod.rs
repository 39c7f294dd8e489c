//! A broker as a measurement sees it: a destination that can be emptied, counted and read by somebody who is
//! not the sink, and the broker's client without Posthaste as the bound of what a relay can reach.
//!
//! There is one of these for each kind of sink. A yard uses none of the sink's code: a witness
//! that shares code with the accused proves little. It measures open servers on loopback, as `./bench` starts
//! them: there is neither TLS nor a login.
//!
//! The client alone is what the field would write by hand: as many messages in flight as the client's own
//! documentation advises, every acknowledgement awaited, the event's id in the broker's dedup slot where it
//! has one, and the headers that the sink sends. What is measured is sending, not making the messages: those
//! come ready.

pub(crate) mod http;
pub(crate) mod kafka;
pub(crate) mod nats;
pub(crate) mod rabbitmq;
mod redis;

use async_trait::async_trait;
use posthaste::sink::Message;
use posthaste::task::Task;
use serde_json::{Map, Value};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// What a yard does, or why it could not.
pub type YardResult<T> = Result<T, YardError>;

/// Why a measurement cannot go on, for the person who started it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct YardError(pub String);

impl YardError {
    /// From anything that says what is wrong.
    pub fn new(what: impl std::fmt::Display) -> Self {
        Self(what.to_string())
    }
}

impl From<std::io::Error> for YardError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<serde_json::Error> for YardError {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// Called with the id of each message and the moment when it was seen.
pub type Arrived = Box<dyn FnMut(Uuid, Instant) + Send>;

/// A broker, with one destination that belongs to the measurement.
#[async_trait]
pub trait Yard: Send {
    /// The sink's options for the relay: `type`, usually `url`, and what else this yard needs.
    fn sink(&self) -> Map<String, Value>;

    /// Makes the destination anew: nothing is in it, and no id of an earlier round is remembered. One of the
    /// same name that a measurement did not make is refused. `window` is how long a broker that drops
    /// duplicates remembers ids; its own default if `None`.
    async fn clear(&mut self, window: Option<Duration>) -> YardResult<()>;

    /// How many messages the destination holds.
    async fn count(&mut self) -> YardResult<u64>;

    /// Reads the whole destination in its order (that of each partition) and tells the id of each message.
    async fn read_all(&mut self, seen: &mut (dyn FnMut(Uuid) + Send)) -> YardResult<()>;

    /// Tells every message that arrives from now on, until the task is dropped.
    async fn follow(self: Box<Self>, arrived: Arrived) -> YardResult<Task<()>>;

    /// The broker's client alone: sends all of these and awaits every acknowledgement. Answers with the time
    /// that took, without that for connecting.
    async fn client_alone(&mut self, messages: &[Message]) -> YardResult<Duration>;

    /// Takes the destination away.
    async fn remove(&mut self) -> YardResult<()>;

    /// How [`read_all`](Self::read_all) knows, for the report: "every message's id read from the stream".
    fn evidence(&self) -> &'static str;
}

/// The yard for a target of a measurement: a URL, or the bare name of a sink that needs none. `None` for one
/// that nobody can look into.
pub async fn yard(target: &str, destination: &str) -> YardResult<Option<Box<dyn Yard>>> {
    let kind = target.split_once("://").map_or(target, |(scheme, _)| scheme);
    match kind {
        "nats" => Ok(Some(nats::open(target, destination).await?)),
        "tls" => Err(YardError::new("a measurement wants a NATS server without TLS: nats://host:port")),
        "http" => Ok(Some(http::open(target, destination).await?)),
        "kafka" => Ok(Some(kafka::open(target, destination).await?)),
        "amqp" => Ok(Some(rabbitmq::open(target, destination).await?)),
        "redis" => Ok(Some(redis::open(target, destination).await?)),
        "rediss" => Err(YardError::new("a measurement wants a Redis server without TLS: redis://host:port")),
        _ => Ok(None),
    }
}
