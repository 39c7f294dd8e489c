//! RabbitMQ as a source: members that read quorum queues.
//!
//! # How it is built
//!
//! `crate::queue` is the source of all brokers with queues, and has what is in hand. `member` begins to read
//! its queues. `subscription` reads one over a connection of its own, and the `Link` of all brokers dials
//! again. `wire` puts lapin on the sink's way to the broker. `declared` finds out how a queue was declared,
//! and `refusal` says why one is not read. `message` is a delivery of AMQP as a consumer sees it. `examine`
//! looks at queues for `posthaste doctor`.
//!
//! # Order
//!
//! A queue with a single active consumer delivers to one member at a time, in order, and gives everything
//! that was not acknowledged to the next one when that member's connection is gone, in order again. It does
//! not do so for `basic.cancel`: then the next member gets what comes after the messages that the first one
//! still has. So nothing is ever cancelled, nothing is requeued, and a member that leaves cuts its connection
//! (`wire`). Without an order (`order = "none"`) several members take from one queue.
//!
//! Everybody who has subscribed has the queue, in the words of the seam: the broker does not tell a member
//! whether it is the active one. One that waits gets nothing.
//!
//! # Acknowledgements
//!
//! Over the channel that the delivery came by, or not at all: a ticket of an earlier connection is `Revoked`.
//! AMQP does not answer an acknowledgement, so a question behind it is: its answer says that the broker has
//! read both.
//!
//! Refused: lapin's recovery, which subscribes again behind our back and would let old tickets through. One
//! connection for all queues: to let one queue go, all would have to be cut. `basic.nack` with requeue: a
//! quorum queue puts it behind others once it was returned. A publisher by lapin (ADR 7).

mod declared;
mod examine;
mod keys;
mod member;
mod message;
mod refusal;
mod subscription;
mod wire;

pub use examine::CHECKS;
pub(crate) use examine::examine;
pub(crate) use keys::SourceKeys;
pub use member::RabbitmqSource;
