//! RabbitMQ, by AMQP 0-9-1.
//!
//! An event becomes a persistent, mandatory message, and only the broker's confirmation is called
//! `Delivered`. Without `mandatory` a message that no queue takes is confirmed and gone (F43). Without
//! confirmations nobody knows what a crash took (F44). The event's id is the property `message_id`. RabbitMQ
//! drops no duplicates: a consumer recognises them by that id.
//!
//! AMQP has no null, so a tombstone is an empty body with the header `Posthaste-Tombstone: true`.
//!
//! # Destinations
//!
//! A message goes to an exchange with a routing key, and a route names one destination. Two ways to write it:
//!
//! - With the option `exchange`, every event goes to that exchange, and the whole destination is the routing
//!   key: `exchange = "events"` and the default destination `{topic}` publish `orders.placed` to `events`.
//! - Without it, the destination is `EXCHANGE/ROUTING.KEY`, divided at the first slash, and as both are one
//!   template, the exchange can depend on the event too: `{header:tenant}/{topic}`. A destination without a
//!   slash is the name of a queue, which the default exchange serves.
//!
//! A slash inside a routing key is no riddle: either `exchange` is set, or the first slash ends the
//! exchange's name. A second template, for the routing key alone, was refused. Breakers, metrics and `doctor`
//! speak of destinations, and one destination must have one name.
//!
//! # How it is built
//!
//! Here are the options. `client` is the connection, and knows nothing of events. `entry` makes an event a
//! message. `sink` publishes a call's messages, one in flight for each key. `verdict` is the table below in
//! code. `examine` looks at the broker for `posthaste doctor`, and `topology` for its administrator. The
//! implementation of AMQP is our own, and `client` says why. `source` reads queues, by lapin's consumer: what
//! is wrong with lapin is in its publisher.
//!
//! # What a confirmation is worth
//!
//! A confirmation comes when every queue that the message was routed to has it. A classic durable queue has
//! written it to its disk, and a quorum queue has it on most of its machines. A classic queue lives on one
//! machine. Mirrored classic queues have lost confirmed messages and are gone in RabbitMQ 4 (F45). A client
//! cannot see which kind a queue is, hence the option `quorum_queues`.
//!
//! # Verdicts
//!
//! | what happened | verdict | scope | code |
//! |---|---|---|---|
//! | confirmed | `Delivered` | | |
//! | no queue takes it (`basic.return`) | `Retry` | destination | `rabbitmq.unroutable` |
//! | a queue was full or could not store it (`basic.nack`) | `Retry` | destination | `rabbitmq.nacked` |
//! | there is no such exchange | `Retry` | destination | `rabbitmq.no_exchange` |
//! | not allowed to write there | `Retry` | destination | `rabbitmq.denied` |
//! | larger than `max_message_size`; headers above a frame | `Rejected` | event | `rabbitmq.too_large` |
//! | the broker refuses it for another reason | `Retry` | event | `rabbitmq.refused` |
//! | another message closed its channel | `Unknown` | destination | `rabbitmq.channel_closed` |
//! | the same, and its own exchange is the reason | `Unknown` | destination | as in the exchange's rows |
//! | header name above 255 bytes; `CC`, `BCC` | `Rejected` | event | `rabbitmq.bad_header` |
//! | names above 255 bytes; queue without a name | `Rejected` | event | `rabbitmq.bad_destination` |
//! | connection blocked (memory, disk), sent / not sent | `Unknown` / `Retry` | sink | `rabbitmq.blocked` |
//! | connection lost after sending / before | `Unknown` / `Retry` | sink | `rabbitmq.connection_lost` |
//! | no confirmation in time, the broker answers | `Unknown` | destination | `rabbitmq.confirm_timeout` |
//! | no confirmation in time, the broker is silent | `Unknown` | sink | `rabbitmq.confirm_timeout` |
//! | not sent in time, the broker answers: the window was full of others | `Held` | | |
//! | not sent in time, the broker is silent | `Retry` | sink | `rabbitmq.confirm_timeout` |
//! | no connection | `Retry` | sink | `rabbitmq.unreachable` |
//! | TLS refused: authority, name, expiry, client certificate | `Retry` | sink | `rabbitmq.tls` |
//! | user, password or certificate refused | `Retry` | sink | `rabbitmq.auth` |
//! | no such virtual host, or no right to it | `Retry` | sink | `rabbitmq.vhost` |
//! | a file of the configuration can no longer be read | `Retry` | sink | `rabbitmq.config` |
//! | the sink was closed | `Retry` | sink | `rabbitmq.closed` |

mod client;
mod entry;
mod examine;
mod sink;
mod source;
mod topology;
mod verdict;

pub use examine::CHECKS;
pub use sink::RabbitmqSink;
pub use source::{CHECKS as SOURCE_CHECKS, RabbitmqSource};
pub(crate) use source::{SourceKeys, examine as examine_source};
pub(crate) use topology::RabbitmqAdmin;

use crate::options::{Options, between, has_options};
use crate::{BuildError, Urls};
use client::{SHORT_MAX, Server};
use serde::{Deserialize, Serialize};

/// A broker that syncs its disk in groups wants many; RabbitMQ's own advice is hundreds.
const MAX_IN_FLIGHT: usize = 1_024;
const MAX_IN_FLIGHT_LIMIT: usize = 32_768;
/// RabbitMQ's guide advises this. Less than five seconds take a busy network for a dead one.
const HEARTBEAT_SECS: u16 = 10;
const HEARTBEAT_SECS_MIN: u16 = 5;
const HEARTBEAT_SECS_MAX: u16 = 300;

/// Options of a RabbitMQ sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::options::with_default::<MAX_IN_FLIGHT>))]
#[serde(deny_unknown_fields)]
pub struct RabbitmqConfig {
    /// One server or several, tried in this order: `amqp://host:5672/vhost`, or `amqps://host:5671/vhost`
    /// with TLS. Without a path the virtual host is `/`.
    #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
    pub url: Urls,
    /// The exchange of every event; the destination is the routing key then. `""` is the default exchange,
    /// and the destination the name of a queue. Without it a destination is `EXCHANGE/ROUTING.KEY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// The operator's word that every queue behind the destinations is a quorum queue, or a stream with
    /// replicas. A client cannot see it; without this word `doctor` warns, and a durable set-up is refused.
    #[serde(default)]
    pub quorum_queues: bool,
    /// How often both sides give a sign of life, at least. A broker that is silent for two of these times is
    /// given up; one that leaves a question unanswered too, after one. If the broker asks for less, that
    /// holds.
    #[serde(default = "heartbeat_secs")]
    pub heartbeat_secs: u16,
    /// What every broker has: delivery timeout, window, login and TLS.
    #[serde(flatten, skip_deserializing, default = "options")]
    #[cfg_attr(feature = "schema", schemars(flatten, !skip_deserializing))]
    pub options: Options,
}

fn heartbeat_secs() -> u16 {
    HEARTBEAT_SECS
}

fn options() -> Options {
    Options::new(MAX_IN_FLIGHT)
}

has_options!(RabbitmqConfig);

impl RabbitmqConfig {
    /// A sink for this server, or these, separated by commas, with every default.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: Urls::new(url),
            exchange: None,
            quorum_queues: false,
            heartbeat_secs: HEARTBEAT_SECS,
            options: options(),
        }
    }

    /// Checks what can be checked without a server.
    pub(crate) fn check(&self) -> Result<Vec<Server>, BuildError> {
        let addresses = self.check_words()?;
        self.options.check_files()?;
        Ok(addresses)
    }

    /// Checks what can be checked without a server and without the files it names.
    pub(crate) fn check_words(&self) -> Result<Vec<Server>, BuildError> {
        self.options.check_words(MAX_IN_FLIGHT_LIMIT)?;
        self.options.check_user()?;
        let [heartbeat, least, most] =
            [self.heartbeat_secs, HEARTBEAT_SECS_MIN, HEARTBEAT_SECS_MAX].map(u64::from);
        between("heartbeat_secs", heartbeat, least, most)?;
        if self.exchange.as_ref().is_some_and(|exchange| exchange.len() > SHORT_MAX) {
            return Err(BuildError::option("exchange", "must not have more than 255 bytes"));
        }
        self.addresses()
    }

    fn addresses(&self) -> Result<Vec<Server>, BuildError> {
        let bad = |why: &str| BuildError::option("url", why);
        let addresses: Result<Vec<_>, _> = self.url.iter().map(Server::parse).collect();
        let addresses = addresses.map_err(|why| bad(&why))?;
        if addresses.is_empty() {
            return Err(bad("there is no server"));
        }
        if self.options.wants_tls() && addresses.iter().any(|server| !server.address.tls) {
            return Err(bad(
                "must begin with amqps://, because TLS is required or one of its files is named",
            ));
        }
        Ok(addresses)
    }

    /// Exchange and routing key of a destination, or why it has none.
    pub(crate) fn place<'a>(&'a self, destination: &'a str) -> Result<(&'a str, &'a str), &'static str> {
        let (exchange, routing_key) = match &self.exchange {
            Some(exchange) => (exchange.as_str(), destination),
            None => destination.split_once('/').unwrap_or(("", destination)),
        };
        if exchange.is_empty() && routing_key.is_empty() {
            return Err("names neither an exchange nor a queue");
        }
        if exchange.len() > SHORT_MAX || routing_key.len() > SHORT_MAX {
            return Err("has more than 255 bytes in its exchange or its routing key");
        }
        Ok((exchange, routing_key))
    }

    /// Whether a secret goes over the wire as it is.
    fn sends_secret(&self) -> bool {
        self.options.has_password()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_an_exchange_and_a_routing_key() {
        let free = RabbitmqConfig::new("amqp://h");
        assert_eq!(free.place("events/orders.placed"), Ok(("events", "orders.placed")));
        assert_eq!(free.place("events/a/b"), Ok(("events", "a/b")));
        assert_eq!(free.place("events/"), Ok(("events", "")));
        assert_eq!(free.place("orders"), Ok(("", "orders")));
        assert_eq!(free.place("/orders"), Ok(("", "orders")));
        let fixed = RabbitmqConfig { exchange: Some("events".to_owned()), ..free.clone() };
        assert_eq!(fixed.place("a/b"), Ok(("events", "a/b")));
        for bad in ["", "/", &"x".repeat(256), &format!("e/{}", "x".repeat(256))] {
            assert!(free.place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_that_contradict_each_other_are_refused() {
        let config = RabbitmqConfig::new("amqp://h");
        let user = || Some("shop".to_owned());
        let password = || Some(crate::Secret::new("pw"));
        for (bad, option) in [
            (config.clone().with(|options| options.user = user()), "user"),
            (config.clone().with(|options| options.password = password()), "password"),
            (config.clone().with(|options| options.require_tls = true), "url"),
            (config.clone().with(|options| options.ca_file = Some("ca.pem".into())), "url"),
            (config.clone().with(|options| options.max_in_flight = 0), "max_in_flight"),
            (config.clone().with(|options| options.delivery_timeout_ms = 1), "delivery_timeout_ms"),
            (RabbitmqConfig { url: Urls::new("amqp://u:p@h"), ..config.clone() }, "url"),
            (RabbitmqConfig { heartbeat_secs: 4, ..config.clone() }, "heartbeat_secs"),
            (RabbitmqConfig { heartbeat_secs: 301, ..config.clone() }, "heartbeat_secs"),
        ] {
            assert_eq!(bad.check_words().expect_err(option).option_name(), option);
        }
        assert!(
            config
                .with(|options| {
                    options.user = user();
                    options.password = password();
                })
                .check()
                .is_ok()
        );
    }
}
