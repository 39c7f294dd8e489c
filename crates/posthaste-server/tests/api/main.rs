//! What the binary serves over HTTP, from outside: sockets, roles, looks and acts.
#![cfg(feature = "sqlite")]

mod acts;
mod alone;
mod asked;
mod away;
#[path = "../main/binary.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod binary;
mod bounds;
mod consumers;
mod cursors;
#[path = "../main/daemon.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod daemon;
mod databases;
mod denied;
mod desk;
mod doors;
mod gateway;
mod hostile;
mod huge;
mod jobs;
mod looks;
mod openapi;
mod rig;
mod slow;
mod stream;
mod tls;
mod tuning;
mod versions;
