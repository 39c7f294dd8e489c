//! The inbox: `admit` in the transaction of the handler.
