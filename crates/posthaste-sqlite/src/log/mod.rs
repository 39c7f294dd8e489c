//! The relay's side of the log: the store and its leases, a verb a file.
//!
//! `store` is what all verbs share. A relay joins (`join`), calls the roll (`roll`), shows that it lives
//! (`heart`), takes lanes (`take`), and has a lease for each (`lease`): it reads pages (`tail`) and what is
//! due (`due`), and settles (`settle`). `sweep` is retention. The statements are in `sql/log/`.

pub(crate) mod due;
pub(crate) mod filter;
pub(crate) mod heart;
pub(crate) mod join;
pub(crate) mod lease;
pub(crate) mod roll;
pub(crate) mod settle;
pub(crate) mod store;
pub(crate) mod sweep;
pub(crate) mod tail;
pub(crate) mod take;
