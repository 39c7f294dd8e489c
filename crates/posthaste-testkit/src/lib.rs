//! (being written)

pub mod services;
