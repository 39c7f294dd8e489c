//! The `claim` capture: a relay on an outbox table that somebody else designed.
//!
//! The table stays as it is, and so does the application. One [`Layout`] says which column is what, which words
//! its status knows and how its owners expect to see a failure; every statement is made from it, in one place
//! (`statements`).
//!
//! To the engine an adopted row is a *deferred event whose time has come*. A lease of this store never has pages:
//! [`due`](posthaste::store::Lease::due) claims rows, and `settle` writes what became of each. So retries, routes,
//! envelopes, breakers and error classes are those of the log, and a failing row stands in nobody's way.
//!
//! Two ways to claim, by what the table has ([`Style`]):
//!
//! - **Marked**: the table has a status for it, and a time. Rows are marked and published outside of any transaction. A
//!   relay that dies leaves marked rows behind; whoever finds one whose mark is older than the lease takes it back.
//!   The mark is also the fence: a settlement names it, and hits nothing once somebody else has claimed the row (G4).
//! - **Locked**: the table has nothing to claim with. Rows stay locked in one open transaction while they are
//!   published, as their owners' own pollers do. It ends with the batch; a death ends it too, and unlocks everything.
//!
//! Refused: a table of our own beside theirs, for attempts and leases. It would have to be kept in step with rows that
//! others delete, and their dashboards would not show it. What a table cannot hold is kept in memory, and
//! docs/adopt.md says what a restart then forgets.

mod admin;
mod advice;
mod aside;
mod audit;
mod check;
mod doctor;
mod hand;
mod handover;
mod layout;
mod lease;
mod line;
mod presets;
mod preview;
mod propose;
mod rehearse;
mod role;
mod row;
mod settle;
mod statements;
mod store;
mod take;
mod write;

pub use admin::ClaimAdmin;
pub use advice::{claim_index, dead_letter_table, style_in_words};
pub use audit::audit_table;
pub use check::{Table, table};
pub use doctor::{CHECKS, examine, missing_audit, missing_index, statements_for};
pub use handover::{Done, Handover, HandoverError, PATIENCE, Standing, Trigger};
pub use layout::{Layout, Piece, Status, Style, TableName, Topic};
pub use presets::{PRESETS, Preset, preset};
pub use preview::preview;
pub use propose::{Proposal, propose};
pub use role::{Access, Columns, Kind, Role};
pub use statements::{Statements, Types};
pub use store::ClaimStore;
