//! Apache Kafka.
//!
//! An event becomes a record of the topic that its route names. The record's key is what the route names as
//! partition key, or the event's own key; murmur2 puts it where the Java client would (F34). Without a key
//! records are spread. A tombstone is a record without a value. Headers are Kafka's own; the event's key
//! travels in the header `key` too.
//!
//! # How it is built
//!
//! `client` is the connection: addresses, login, TLS, changed certificates, and what can be asked over it.
//! `config` has the options and what they make of a producer's; `order` decides which message may go to which
//! producer, and when, and knows which topics work; `producers` has one producer with the thread that reads
//! its reports, and keeps and replaces them; `entry` makes a record of an event; `sink` hands records over in
//! a call (`call.rs`); `verdict` is the table below in code; `cause` finds out why nobody answered;
//! `examine` looks at the brokers for `posthaste doctor`. `source` reads topics, as a member of a group.
//!
//! The client is librdkafka, by its plain producer with a number in the delivery report's opaque. The future
//! that the crate offers for each message costs twice the CPU.
//!
//! # Order: the problem
//!
//! A message must never be in flight while an earlier one of its key could still fail alone (G3). One in
//! flight for each key, as the other sinks have it, is right and slow: a round trip takes milliseconds, and
//! with 1,000 keys of a Zipf distribution the hottest has 13 % of the events, so that a few hundred round
//! trips a second carry everything. Kafka can do better: an idempotent producer numbers the batches of a
//! partition, and a broker appends a batch only if it has the one before it. But librdkafka gives up by
//! itself. A record that times out in its queue, or that a broker refuses for good, leaves a gap; the client
//! bumps the producer's epoch, numbers anew, and the records behind the gap go on. So pipelining is only
//! right if nothing fails alone.
//!
//! # Order: the argument
//!
//! There are two producers. The *main line* has `enable.gapless.guarantee`, no message timeout and no limit
//! of retries. The *trial line* has a timeout, and one record in each request; nothing on it goes behind an
//! unanswered message of its key. On the main line a message goes behind unanswered ones of its key under
//! three conditions: they are on the same line; they have the same topic and partition key, hence the same
//! partition; and the line has delivered one message of the key since the key came into the table. Then:
//!
//! 1. *Nothing is given up in the queue.* There is no timeout, and retries have no end: a record stays until
//!    it is answered, or until we end the line.
//! 2. *A refusal ends the line.* With the gapless guarantee a permanent error of a batch is fatal: from that
//!    moment the client sends nothing and takes nothing. What is queued is purged.
//! 3. *What was under way behind it is refused too.* A broker appends a batch only in sequence. It makes one
//!    exception: for a producer that it does not know in this partition it takes any number. Hence the third
//!    condition: with one record delivered, the broker knows us there. It forgets after a day of silence
//!    (`producer.id.expiration.ms`); a key leaves our table seconds after its last message, and is cold
//!    again. The same exception has a worse side: where a broker does not know us, it may refuse a first
//!    request for a moment (too few replicas, a leader that is new) and take the one behind it, and then the
//!    client takes the first for acknowledged as well. The record is nowhere, and would be called delivered
//!    (seen on a real cluster). So there is one request under way to a broker at a time: none is behind an
//!    unanswered one. A request holds a whole batch, so this costs little.
//! 4. *We end a line as a whole.* When the time of a call is up, the line that has its messages is retired:
//!    it takes nothing more, has half a second for the answers that are on their way, and then everything on
//!    it is given up. New messages go to a new line, and those of a key only when the old line has told the
//!    fate of all of that key.
//!
//! So if a message fails on the main line, nothing behind it in its partition is appended, whichever call it
//! came with. Messages of its key that waited are `Held`, and the key stays closed until the failed message's
//! call is back. The one way around is a topic that vanishes and comes back within the half millisecond in
//! which a report is read; the client asks about a topic again after 100 ms at the earliest.
//!
//! Order costs nothing that is seen beside the noise. On two cores with the broker, 1,000 Zipf keys went at
//! 129,000 to 270,000 events/s, without order at 169,000 to 200,000, the bare client at 111,000 to 125,000.
//!
//! An unclean election may forget us with the rest (`doctor` warns); adding partitions moves keys (F35).
//!
//! Refused: waiting for each answer (above). A train of a key's messages at each acknowledgement: a train can
//! be cut into two requests, and fail in its middle. Falling back to one at a time only after trouble:
//! trouble is when it is too late. Transactions: they cost a coordinator's round trip for each batch, and
//! what they add nobody may rely on (F37).
//!
//! # Topics that do not work
//!
//! A refusal ends the main line, so the main line gets only topics that work. A topic begins on trial with
//! one message; when that is delivered the topic is proven and the rest follows. A proven topic that fails is
//! on trial again until a message is delivered; if it was an event's fault (too large for the topic, say),
//! for 5 s at least, and twice as long each time. One denied topic, or a partition without a leader, thus
//! costs the others at most one change of lines, in which nothing of theirs is lost or sent twice (F30).
//!
//! Only the trial judges events. On the main line a batch fails as a whole, and its records are `Held`: they
//! are sent again, each alone, and get a verdict of their own. A topic whose `max.message.bytes` is below our
//! `batch_bytes` is slow that way, and `doctor` says so.
//!
//! # What an acknowledgement is worth
//!
//! `acks=all`: every replica in sync has the record, in its memory. No broker syncs its disk first (F32).
//! With 3 replicas, `min.insync.replicas = 2` and no unclean election, an acknowledged event survives the
//! loss of any one broker. The client's own retries create no duplicates; a message that is published again
//! by the relay does, and its id is in the header `Message-ID`.
//!
//! # Verdicts
//!
//! | what happened | verdict | scope | code |
//! |---|---|---|---|
//! | acknowledged by all replicas in sync | `Delivered` | | |
//! | topic or partition does not exist | `Retry` | destination | `kafka.no_topic` |
//! | not allowed to write to the topic, or to any | `Retry` | destination | `kafka.denied` |
//! | larger than `message_bytes_max`, or than the topic takes | `Rejected` | event | `kafka.too_large` |
//! | not taken by the topic: no key in a compacted one | `Rejected` | event | `kafka.bad_record` |
//! | a name that no topic can have, or the broker's own topics | `Rejected` | event | `kafka.bad_topic` |
//! | too few replicas in sync for the whole time | `Unknown` | destination | `kafka.not_enough_replicas` |
//! | partitions without a leader for the whole time | `Unknown` | destination | `kafka.no_leader` |
//! | a quota is used up | `Retry` | destination | `kafka.quota` |
//! | the broker cannot store it, or take our compression | `Retry` | destination | `kafka.unavailable` |
//! | brokers too old for an idempotent producer | `Retry` | sink | `kafka.unsupported` |
//! | any other error for one record | `Unknown` | event | `kafka.error` |
//! | no answer in time, the brokers answer otherwise | `Unknown` | destination | `kafka.timeout` |
//! | nobody answers: sent / not sent | `Unknown` / `Retry` | sink | `kafka.unreachable` |
//! | TLS refused: authority, name, expiry, client certificate | the same | sink | `kafka.tls` |
//! | user or password refused | the same | sink | `kafka.auth` |
//! | the producer ended for another message's sake | `Held` | | |
//! | failed in a batch, and is to be judged alone | `Held` | | |
//! | not sent in time: its turn or room did not come | `Held` | | |
//! | the sink was closed | `Retry` | sink | `kafka.closed` |
//!
//! What is `Held` by the first two of these rows may have been sent, and is sent again.

mod client;
mod config;
mod entry;
mod examine;
mod order;
mod producers;
mod sink;
mod source;
pub(crate) mod topology;
mod verdict;

pub use config::{Compression, KafkaConfig, SaslMechanism};
pub use examine::CHECKS;
pub use sink::KafkaSink;
pub use source::{CHECKS as SOURCE_CHECKS, GroupProtocol, KafkaReader, KafkaSource, KafkaSourceConfig};
pub(crate) use source::{SourceKeys, examine as examine_source};
use verdict::cause;
pub(crate) use verdict::check_name;
