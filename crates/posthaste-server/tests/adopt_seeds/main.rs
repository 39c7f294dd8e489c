//! Four services' outbox documents, run as they stand: their tables, plain INSERTs, their own statements in
//! psql, and the broker that each of them names. The relay is the real process.
//!
//! Where a document leaves something open, the choice is written beside the DDL. What is checked is what its
//! owners would check: each column of each row, how the times of attempts follow each other, what arrived at
//! the broker.

#[path = "../main/binary.rs"]
mod binary;
#[path = "../main/daemon.rs"]
mod daemon;
mod ground;
#[path = "../main/subscriber.rs"]
mod subscriber;

mod adr;
#[cfg(feature = "kafka")]
mod outage;
#[cfg(feature = "kafka")]
mod plan;
#[cfg(feature = "kafka")]
mod prisma;
mod stopped;
#[cfg(feature = "kafka")]
mod talkie;
