//! The gateway from outside: the binary, its listener, a database, and clients that speak HTTP by hand.
#![cfg(feature = "sqlite")]

#[path = "../main/binary.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod binary;
mod clients;
#[path = "../main/daemon.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod daemon;
#[cfg(feature = "failpoints")]
mod deaths;
mod door;
#[cfg(feature = "redis")]
mod fleet;
mod hostile;
mod languages;
mod life;
mod limits;
mod once;
mod openapi;
mod payloads;
#[cfg(feature = "failpoints")]
mod points;
#[cfg(feature = "redis")]
mod redis;
mod reload;
mod rig;
#[cfg(feature = "schemas")]
mod schemas;
#[cfg(feature = "nats")]
mod storm;
mod tls;
