//! The dashboard in a real browser, against the real binary with traffic. The scripts are those of
//! `ui/tests`.
//!
//! Plain `./test` walks the path of an operator once, looks at each page once, and lets things go wrong once.
//! `./test browser` takes pictures of all pages in all widths and themes, measures, and plays the newcomer's
//! demo.
#![cfg(feature = "sqlite")]

#[path = "../main/binary.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod binary;
mod browser;
#[path = "../main/daemon.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod daemon;
mod dialogs;
mod hostile;
mod mishaps;
mod newcomer;
mod operator;
#[path = "../api/rig.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod rig;
mod shown;
mod speed;
mod trouble;
