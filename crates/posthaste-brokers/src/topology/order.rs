//! The order of changes: nobody lacks a right in between that he has before and after.
//!
//! Users come before the rights that name them, and topics before whatever uses them. Among rights, what
//! allows more comes before what allows less. Removals are last.

use super::{ChangeAct, Kind, Resource, TopologyChange};
use posthaste::mutation::{Mutation, active};

/// Sorts changes into the order in which they are made.
pub fn in_order(changes: &mut [TopologyChange]) {
    changes.sort_by(|one, other| {
        let place = |change: &TopologyChange| (rank(change), change.resource.kind);
        place(one).cmp(&place(other)).then_with(|| one.resource.name.cmp(&other.resource.name))
    });
}

fn rank(change: &TopologyChange) -> u8 {
    let is_removal = change.act == ChangeAct::Remove;
    match change.resource.kind {
        Kind::Acl if active(Mutation::RightsGoFirst) => 5 - u8::from(is_removal),
        // What is alike is made together, so each of the four has a place of its own.
        Kind::Acl => match (is_removal, denies(&change.resource)) {
            (false, false) => 4,
            (true, true) => 5,
            (false, true) => 6,
            (true, false) => 7,
        },
        _ if is_removal => 8,
        Kind::User => 0,
        Kind::Topic if change.act == ChangeAct::Add => 1,
        Kind::Topic => 2,
        Kind::Stream | Kind::Exchange | Kind::Queue | Kind::Binding => 3,
    }
}

/// Whether a right takes something away.
fn denies(right: &Resource) -> bool {
    right.settings.get("permission").is_some_and(|permission| permission == "DENY")
}
