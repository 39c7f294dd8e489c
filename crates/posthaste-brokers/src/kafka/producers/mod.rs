//! The two producers of a sink, and those that are being emptied.

mod fleet;
mod line;

pub(super) use fleet::Fleet;
pub(super) use line::{LineContext, ProducerLine, Record, SendError};
