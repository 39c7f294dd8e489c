//! NATS JetStream as a source: a stream is a plain log, or a queue where no order is asked for (`queue`).
//!
//! A "topic" is a stream's name, and it has one partition. As a log the position is the stream's sequence
//! number, and [`posthaste::source::leased`] keeps leases in the database of the
//! inbox. `log` says what there is of a stream, `tail` reads it, `record` makes deliveries of its messages.
//! `examine` looks at the streams for `posthaste doctor`, and `keys` are the options.
//!
//! JetStream's own consumers with acknowledgements were refused where order is asked for: what is not
//! acknowledged in time comes again between newer messages, and a late acknowledgement is taken for the
//! redelivery's. So the stream is read by an ordered consumer, which acknowledges nothing and lives in
//! memory.
//!
//! # What is checked
//!
//! An ordered consumer makes itself anew when its own numbers have a gap. It does so without a look at the
//! stream, and from its beginning if it has delivered nothing yet. So a message of another consumer than the
//! one that was begun with ends the tail: the stream is looked at first. A lost connection ends it as well.
//! The client's pings notice a connection that is silent within six seconds. A consumer that is silent on a
//! good connection is noticed by its heartbeats, and at last by `leased`, which compares what was read with
//! the stream's end.
//!
//! A stream's numbers have gaps, by deleted messages and by `max_msgs_per_subject`. Only what is missing
//! below the stream's first number is reported as lost. The stream's id is the time it was made at: deleted
//! and made again it is another log.
//!
//! A stream that forgets what its consumers have acknowledged (`workqueue`, `interest`) is no log. It is
//! refused, unless it is read as a queue.

mod examine;
mod keys;
mod log;
mod queue;
mod record;
mod tail;

pub use examine::CHECKS;
pub(crate) use examine::examine;
pub(crate) use keys::NatsSourceKeys;
pub use log::NatsLog;
pub use queue::NatsQueue;

use super::NatsConfig;
use crate::{BuildError, GroupMember};
use posthaste::consumer::Order;
use posthaste::source::Source;
use posthaste::source::leased::{LeasedConfig, LeasedSource, Leases};
use std::sync::Arc;

/// Begins to share the streams.
pub(crate) fn start(
    config: &NatsConfig,
    member: &GroupMember,
    leases: Arc<dyn Leases>,
) -> Result<Arc<dyn Source>, BuildError> {
    if member.order == Order::None {
        return Ok(Arc::new(NatsQueue::start(config, member)?));
    }
    let plan = member.leased()?;
    member.topics.iter().try_for_each(|topic| log::check_name(topic))?;
    let log = Arc::new(NatsLog::new(config)?);
    Ok(Arc::new(LeasedSource::start(log, leases, LeasedConfig { ..plan })))
}
