//! Queues as a source, whatever their broker is: members that share them, and acknowledge each message by
//! itself.
//!
//! `shelf` is what a member has in hand, behind one lock. `member` is the
//! [`Source`](posthaste::source::Source), which waits for what the broker's module puts on the shelves and
//! takes from them. That module reads queues ([`ReadQueues`]). `keeper` begins again whenever a reading ends,
//! and `held` has what its messages are acknowledged with, for brokers whose connection is not the unit of
//! giving back. `reader` says that a queue is no log.
//!
//! What was given back waits on the shelf, never at the broker. A queue has no positions: what it delivers
//! again may come behind newer messages, so tickets count deliveries.

mod held;
mod keeper;
mod member;
mod reader;
mod shelf;

pub(crate) use held::HeldMessages;
pub(crate) use keeper::{LeavingSign, QueueKeepers, QueueReading, QueueWay, ReadingEnd, of};
pub(crate) use member::{QueueMember, QueueSource, ReadQueues};
pub(crate) use reader::QueueReader;
pub(crate) use shelf::Acks;
