//! The table's own tests.
