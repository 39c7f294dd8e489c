//! The demo for real: it balances, it can be broken, it ends with everything it started, and it can be read
//! on a terminal and without one.

#![cfg(feature = "sqlite")]

mod ending;
mod ground;
mod ledger;
mod screen;
mod story;
mod terminal;
mod web;
