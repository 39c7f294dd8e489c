//! The consumer: messages from a broker, their effects once and in order in the service's database.
//!
//! ```text
//! broker ─► Source.next ─► key queues ─► batch ─► ONE transaction ─► save the position ─► Source.ack
//!                             │ fails              mark, handler,       in the database     a courtesy
//!                             │                    outgoing events
//!                             ├─ waits in memory, other keys go on
//!                             ├─ deferred: mark and copy in one transaction; the position goes on
//!                             └─ dead letter: mark, row and event in one transaction
//! ```
//!
//! Everything unsafe at the broker is only a repetition; safety is in the database. A message's **mark**
//! commits with its effects, with its deferred copy, or with its dead letter. Whatever comes twice, by a
//! crash, a rebalance, a zombie or a producer, meets the mark. So owning a partition only saves work.
//!
//! The **database's position is the position**: everything before it was decided there. Reading starts there,
//! whatever the broker remembers. The broker's own position is written for tools that show lag.

mod all_failing;
mod dispatch;
mod engine;
mod errands;
mod handle;
mod intake;
mod meter;
mod outcome;
mod saving;
mod watchdog;

// What is in hand.
use crate::window::{dependencies, failing, partition, queue, share, transaction};

// What the database's side of a consumer is made of. It lives with the inbox.
use crate::inbox::begin;
pub use crate::inbox::{
    admin, failure, filter, headers, identity, letter, message, policy, range, settings, store,
};

pub use failure::{Disposition, Failure, FailureKind, HandlerError};
pub use filter::Filter;
pub use handle::{ConsumerEnd, ConsumerHandle, ConsumerHealth, ConsumerPlan, start};
pub use identity::{Identity, IdentityFrom, IdentityScope, Order};
pub use letter::DeadLetterTopic;
pub use message::Message;
pub use policy::ConsumerRetry;
pub use settings::{AllFailing, ConsumerSettings, OnDead, Unmatched};
pub use store::InboxStore;
