//! `posthaste doctor`, check by check: something breaks just that, and the command says its name and ends
//! with 1. Before it was broken it ended with 0, so it is that thing and nothing else.

#[path = "../main/binary.rs"]
mod binary;
mod broker;
mod ground;
mod proxy;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;

use crate::binary::run;

/// A check without a test that breaks it could be one that never finds anything.
#[test]
fn every_check_is_broken_by_a_test() {
    let listed = run(&["doctor", "--list", "--json"]).ok().json();
    let names: Vec<&str> =
        listed.as_array().into_iter().flatten().filter_map(|l| l["check"].as_str()).collect();
    assert!(names.len() > 45, "{names:?}");
    let sources = [include_str!("store.rs"), include_str!("broker.rs"), include_str!("sqlite.rs")].concat();
    let text: String = sources.chars().filter(|c| !c.is_whitespace()).collect();
    // The first value of a row of a table, or the first argument of `only`.
    let untested: Vec<&&str> = names.iter().filter(|name| !text.contains(&format!("(\"{name}\","))).collect();
    assert!(untested.is_empty(), "no test breaks {untested:?}");
}
