//! Apache Kafka as a source: a member of a consumer group.
//!
//! # How it is built
//!
//! `assignment` is what the member remembers: its partitions, what is in hand, what was read and waits. It
//! is memory only, behind one lock. `thread` has the consumer of librdkafka and polls it; nobody else does.
//! In `rebalance` it follows the group, in `placing` it moves and pauses partitions. `commit` is a second
//! thread, which writes positions. `client` makes the consumer, hears its callbacks and asks the brokers.
//! `member` is the [`Source`](posthaste::source::Source) itself, and waits for the others. `examine` looks
//! at the brokers for `posthaste doctor`, and `reader` reads topics for people; they join no group.
//!
//! # Positions
//!
//! The client commits and stores nothing by itself, and never chooses where to begin
//! (`auto.offset.reset=error`). A partition begins at the group's committed position. Without one it begins
//! as declared, and that place is committed before the first message goes out: else a death would repeat
//! "latest" and skip what came between (F62). Beside it stands in the commit that it is only declared, and
//! views say so until something is settled there: a consumer may know better. What is committed is the
//! prefix of [`Hand`](posthaste::source::hand::Hand) (F61). One commit is under way at a time, and takes with
//! it all that was acknowledged meanwhile. Its answer does not come over the consumer's queue, which has the
//! prefetch in it: an acknowledgement behind that would wait for a consumer that waits for the
//! acknowledgement.
//!
//! Markers of transactions and aborted records are no messages. So the client's own position is asked for at
//! the end of a partition, by the polling thread, and taken where nothing is in hand before it. The consumer
//! hears of it as `Empty`, for its own position. Without this a partition that ends with a marker would have
//! a lag for ever.
//!
//! # A position that is not there
//!
//! Only the answer to a fetch says so, for a watermark may lag after an election. The client reports it
//! without the partition's name. The fetch of that partition has stopped, and a partition whose fetch has
//! stopped cannot be sought: that is how it is found. Then its bounds are asked for. Below the first
//! position the gap is `Lost`, and reading goes on at the first; above the end it is `Beyond`, and nothing
//! is read before a seek.
//!
//! # Rebalances
//!
//! The assignor is cooperative-sticky: what stays is not touched. Where the broker divides (`protocol =
//! "consumer"`, KIP-848) it is the same: the client's rebalances are incremental by both protocols. Nothing
//! is answered in the callback, and the client waits for it. A new partition is taken when the group's
//! position is known, by that number. A partition that goes is first emptied: nothing more goes out of it,
//! what is in hand has `handover_wait` to be settled, and the prefix is committed. So a clean hand-over
//! repeats nothing. A lost assignment is revoked at once.
//!
//! Where the group has no position, the leader is asked for the bounds of the log, beside the polling thread.
//! Until it answers, the client has the partition paused, and the consumer does not hear of it. So one
//! without a leader keeps nobody but itself waiting (F30). Were it asked before the client is answered, the
//! group could not divide anything meanwhile.
//!
//! Epochs belong to this member. They are times, so that the next owner's are higher too; what fences at the
//! broker is the group's generation. A commit that is refused for its generation is tried again: a member
//! that keeps the partition has the next generation a moment later, and one that lost it hears that.
//!
//! # A client that has ended
//!
//! A fatal error ends a client, and another one takes its place. With `protocol = "consumer"` more of them
//! are fatal: a group that may not be read, a broker that is too old. A poll that came too late (F64) is not,
//! by either protocol: the client leaves the group and joins it again, unless its requests crossed. A static
//! member (`instance`) is ended when another one has its name. Two twins would end each other in turns, so
//! the next client comes after a long pause then, and the member says meanwhile why it rests.
//!
//! # Back-pressure
//!
//! What is read and not yet handed out is bounded, and counts as in hand. A full member does not poll for a
//! second; then it pauses all partitions and polls for events alone, and goes on when half is free. Pausing
//! throws the client's prefetch away, so it is not for short waits (F63).
//!
//! What was given back is read again, from its own position. Keeping a copy of everything in hand for that
//! was refused: it would cost every message something for what a few need.
//!
//! Refused: `split_partition_queue`, which reorders or loses around rebalances. The crate's stream consumer,
//! which has no place for any of this.

mod assignment;
mod client;
mod commit;
mod examine;
mod keys;
mod member;
mod placing;
mod reader;
mod rebalance;
mod thread;

pub use examine::CHECKS;
pub(crate) use examine::examine;
pub(crate) use keys::SourceKeys;
pub use keys::{GroupProtocol, KafkaSourceConfig};
pub use member::KafkaSource;
pub use reader::KafkaReader;
