//! What a relay tells of itself: to its log, to whoever asks for its health, and in the report that it writes
//! down.
//!
//! Nothing here decides about an event. The lanes note what they see as they go; the supervisor reads it with
//! each heartbeat, and tells the lanes which settings are in force.

pub(crate) mod diary;
pub(crate) mod progress;
pub(crate) mod pulse;
pub(crate) mod report;
pub(crate) mod tuned;
