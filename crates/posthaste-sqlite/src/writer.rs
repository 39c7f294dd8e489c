//! The writer: one thread, one connection, many jobs in one transaction.
