//! The relay's side of the log: the store and its leases, a verb a file.
//!
//! `store` is what all verbs share. A relay joins (`join`), calls the roll (`roll`), takes lanes (`take`),
//! and has a lease for each (`lease`): it reads pages (`tail`, `fetch`) and what is due (`due`), and settles
//! (`settle`, `outcome`). `sweep` is retention. The statements are in `sql/log/`.

mod due;
mod fetch;
pub(crate) mod filter;
mod join;
mod lease;
mod outcome;
mod roll;
mod settle;
pub(crate) mod store;
mod sweep;
mod tail;
mod take;
