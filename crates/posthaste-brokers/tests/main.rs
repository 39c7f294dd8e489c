//! The sinks against real brokers.
//!
//! Every test starts a server of its own and says what a user would see: verdicts, findings, and what is in
//! the stream afterwards, read by another client. A server that is not installed is a counted skip.

#[cfg(feature = "nats")]
mod nats;
