//! The relay engine.
