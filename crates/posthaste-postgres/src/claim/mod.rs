//! The `claim` capture: a relay on an outbox table that somebody else designed.
//!
//! The table stays as it is, and so does the application. One [`Layout`] says which column is what, which
//! words its status knows and how its owners expect to see a failure. Every statement is made from it, in one
//! place (`statements`).
//!
//! To the engine an adopted row is a *deferred event whose time has come*. A lease of this store never has
//! pages: [`due`](posthaste::store::Lease::due) claims rows, and `settle` writes what became of each. So
//! retries, routes, envelopes, breakers and error classes are those of the log, and a failing row stands in
//! nobody's way.
//!
//! There are two ways to claim; what the table has decides ([`Style`]):
//!
//! - **Marked**: the table has a status for it, and a time. Rows are marked and published outside of any
//!   transaction. A relay that dies leaves marked rows behind. Another relay takes them back when their mark
//!   is older than the lease. The mark is also the fence: a settlement names it, and changes nothing once
//!   another relay has claimed the row (G4).
//! - **Locked**: the table has nothing to claim with. Rows stay locked in one open transaction while they are
//!   published, as their owners' own pollers do. The transaction ends with the batch. A death ends it too,
//!   and unlocks everything.
//!
//! Refused: a table of our own beside theirs, for attempts and leases. It would have to be kept in step with
//! rows that others delete, and their dashboards would not show it. What a table cannot hold is kept in
//! memory, and docs/adopt.md says what a restart then forgets.

mod admin;
mod advice;
mod aside;
mod audit;
pub(crate) mod check;
mod doctor;
mod hand;
mod handover;
pub(crate) mod layout;
mod lease;
pub(crate) mod presets;
mod preview;
mod rehearse;
mod role;
mod row;
mod session;
mod settle;
pub(crate) mod statements;
mod store;
mod take;
mod write;

pub use crate::survey::propose::{Proposal, propose};
pub use admin::ClaimAdmin;
pub use advice::{claim_index, dead_letter_table, style_in_words};
pub use audit::audit_table;
pub use check::{CatalogTable, table};
pub use doctor::{CHECKS, examine, missing_audit, missing_index, statements_for};
pub use handover::{Done, Handover, HandoverError, HandoverStatus, PATIENCE, Trigger};
pub use layout::{ClaimPace, Layout, StatusWords, Style, TableName, TopicPiece, TopicSource};
pub use presets::{PRESETS, Preset, preset};
pub use preview::preview;
pub use role::{Access, ColumnKind, Columns, Role};
pub use statements::{Statements, Types};
pub use store::ClaimStore;
