//! (being written)

pub mod broker;
pub mod conformance;
pub mod faults;
pub mod memory;
pub mod services;
pub mod simulation;
