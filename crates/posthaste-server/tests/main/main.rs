//! The binary from outside: a process, its output, its exit code.

mod adopt;
mod adopt_migrate;
mod binary;
#[cfg(feature = "sqlite")]
mod consume;
mod daemon;
mod dead;
#[cfg(feature = "sqlite")]
mod durability;
mod envelope;
mod events;
#[cfg(feature = "sqlite")]
mod example;
mod faults;
mod init;
#[cfg(feature = "sqlite")]
mod jobs;
#[cfg(feature = "sqlite")]
mod local;
mod operate;
mod relay;
#[cfg(feature = "schemas")]
mod schemas;
#[cfg(feature = "sqlite")]
mod sqlite;
mod subscriber;
#[cfg(feature = "sqlite")]
mod terminal;
mod usage;
