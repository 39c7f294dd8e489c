//! Redis Streams.
