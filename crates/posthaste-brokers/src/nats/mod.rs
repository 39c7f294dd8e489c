//! NATS JetStream.
//!
//! An event becomes a message on the subject that its route names, with `Nats-Msg-Id` = the event's id.
//! A stream must listen on that subject: JetStream's acknowledgement is the only thing that is called
//! `Delivered`. A core publish "succeeds" without anybody storing it (F40), so a subject without a stream
//! is an outage of that destination until somebody makes the stream.
//!
//! NATS has no null, so a tombstone is an empty payload with the header `Posthaste-Tombstone: true`.
//!
//! # How it is built
//!
//! [`link`] keeps one connection at a time and reads the acknowledgements; [`sink`] publishes a call's
//! messages, one in flight for each key, and collects their answers; [`verdict`] is the table below in
//! code; [`examine`] looks at the broker for `posthaste doctor`.
//!
//! The acknowledgements come to an inbox of our own, where the reply subject says which message of which
//! call is meant. The client's own `publish` makes a channel, a permit and a timer for each message and
//! keeps the ones that are never answered for ever; this way there is nothing to keep.
//!
//! # What an acknowledgement is worth
//!
//! JetStream answers when the message is written, and syncs its files every two minutes unless
//! `sync_interval: always` is set: a power cut can take what was acknowledged before (F38). Replicas on
//! other machines cover that. `Nats-Msg-Id` suppresses duplicates within the stream's duplicate window,
//! two minutes by default: an event that is sent again after a longer outage may be there twice (F39).
//!
//! # Verdicts
//!
//! | what happened | verdict | scope | code |
//! |---|---|---|---|
//! | acknowledged, also as a duplicate | `Delivered` | | |
//! | nobody listens on the subject, stream not found | `Retry` | destination | `nats.no_stream` |
//! | larger than the server or the stream takes | `Rejected` | event | `nats.too_large` |
//! | the stream is full and discards new messages | `Retry` | destination | `nats.stream_full` |
//! | memory, storage or account limits; too many requests | `Retry` | destination | `nats.resources` |
//! | the stream could not write | `Retry` | destination | `nats.store_failed` |
//! | no leader, stream offline, JetStream off | `Retry` | destination | `nats.unavailable` |
//! | the stream is sealed | `Rejected` | destination | `nats.sealed` |
//! | a `Nats-Expected-…` header does not hold | `Rejected` | event | `nats.expectation` |
//! | a `Nats-…` header that this stream does not take | `Rejected` | event | `nats.bad_header` |
//! | a header that cannot travel (line break in the key) | `Rejected` | event | `nats.bad_header` |
//! | the first copy of this event is still being written | `Retry` | event | `nats.in_process` |
//! | any other error of the API | `Retry` | event, from 500 on destination | `nats.api_error` |
//! | not allowed to publish there | `Retry` | destination | `nats.denied` |
//! | not allowed to hear the answers | `Retry` | sink | `nats.denied` |
//! | empty, with spaces, wildcards or empty parts; `$JS.`, `$SYS.` | `Rejected` | event | `nats.bad_subject` |
//! | connection lost after sending / before | `Unknown` / `Retry` | sink | `nats.connection_lost` |
//! | no answer in time, the server answers otherwise | `Unknown` | destination | `nats.ack_timeout` |
//! | no answer in time, the server is silent | `Unknown` | sink | `nats.ack_timeout` |
//! | not sent in time | `Retry` | as above | `nats.ack_timeout` |
//! | no connection | `Retry` | sink | `nats.unreachable` |
//! | TLS refused: authority, name, expiry, client certificate | `Retry` | sink | `nats.tls` |
//! | user, password, token or key refused | `Retry` | sink | `nats.auth` |
//! | the sink was closed | `Retry` | sink | `nats.closed` |

mod config;
mod encode;
mod examine;
mod link;
mod session;
mod sink;
mod verdict;

pub use config::{NatsConfig, Servers};
pub use sink::NatsSink;
