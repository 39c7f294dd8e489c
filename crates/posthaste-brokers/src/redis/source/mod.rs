//! Redis Streams as a source: a stream is a plain log, or a queue where no order is asked for (`group`).
//!
//! A "topic" is the key of a stream, and it has one partition. Of a log
//! [`posthaste::source::leased`] keeps leases in the database of the inbox.
//! `place` makes positions of the ids of entries, `log` says what there is of a stream, `tail` reads it, and
//! `record` makes deliveries of its entries. `examine` looks at the streams for `posthaste doctor`, and
//! `keys` are the options.
//!
//! Redis' own groups were refused where order is asked for: one member gets the sixth entry while another
//! still has the fifth.
//!
//! # Connections
//!
//! `XREAD` waits at the server, and whatever is sent behind it on the same connection waits too. So each tail
//! has a connection of its own, and everything else goes over the session.
//!
//! # What is lost
//!
//! Ids are times, so a gap between two of them says nothing, and trimming leaves no trace but in two numbers:
//! how many entries were ever added (since 7.0), and how many there are. While a reading goes on, they say
//! exactly how many are missing. At its beginning they cannot: if entries were removed and the first one is
//! behind the position, as many as were ever removed may be missing, and that is what is reported.
//!
//! A stream has no identity. One that was deleted and made again goes on with higher ids, for they are times;
//! one that ends before the position has lost its end, in a failover (F42).

mod examine;
mod group;
mod keys;
mod log;
mod place;
mod record;
mod tail;

pub use examine::CHECKS;
pub(crate) use examine::examine;
pub use group::RedisQueue;
pub(crate) use keys::RedisSourceKeys;
pub use log::RedisLog;

use super::RedisConfig;
use crate::{BuildError, GroupMember};
use posthaste::consumer::Order;
use posthaste::source::Source;
use posthaste::source::leased::{LeasedSource, Leases};
use std::sync::Arc;

/// Begins to share the streams.
pub(crate) fn start(
    config: &RedisConfig,
    member: &GroupMember,
    leases: Arc<dyn Leases>,
) -> Result<Arc<dyn Source>, BuildError> {
    if member.order == Order::None {
        return Ok(Arc::new(RedisQueue::start(config, member)?));
    }
    let plan = member.leased()?;
    Ok(Arc::new(LeasedSource::start(Arc::new(RedisLog::new(config)?), leases, plan)))
}
