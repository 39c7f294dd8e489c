//! The local broker: topics, consumer groups and committed positions in one SQLite file.
//!
//! For demonstrations, for tests, for one machine that needs no server. It is no toy: a message is
//! acknowledged when it is on the disk, order by key is kept, groups divide partitions under leases with
//! epochs, and all of it is checked by the same conformance suites as any other broker. What it is not:
//! replicated. It lives and dies with its disk.
//!
//! It has a file of its own, apart from the application's database: a relay and its consumers may be
//! different processes, and neither has any business in the other's tables. Several processes on one file are
//! the usual case.
//!
//! - A **topic** is made by the first message or declared ([`Broker::declare`]). It has partitions; a key's
//!   messages go to one of them, chosen as Kafka's Java client does ([`partition_of`]), so that nothing moves
//!   when a service does.
//! - **Positions** are dense in a partition and begin at 0.
//! - **Deduplication**: a second message with the same id is dropped for at least
//!   [`BrokerConfig::dedup_window`], as JetStream does. After that it is the inbox's business.
//! - **Retention** by age and size ([`Broker::purge`]); what a group had not read is reported to it as lost.
//! - **Replay** by position or time ([`Broker::seek`]); a running consumer is fenced and goes on there.
//!
//! Read next: `publish.rs` (writing), `group.rs` (leases and positions), `source/` (consuming), `sink.rs`.

mod config;
mod file;
mod group;
mod look;
mod order;
mod pack;
mod publish;
mod retention;
mod roll;
mod sink;
mod source;
mod watch;

pub use crate::hash::partition_of;
pub use config::{LocalConfig, Misfit, SynchronousWord};
pub use file::{Broker, BrokerConfig};
pub use look::{GroupView, StoredMessage, TopicView};
pub use publish::Outgoing;
pub use sink::{CHECKS, LocalSink};
pub use source::{LocalReader, LocalSource, SourceConfig};
