//! Whatever stands in a file and in the environment, the answer is a tree or an error.

use super::super::env::{MAIN, overlay};
use super::*;
use proptest::prelude::*;

/// Text that is nearly a configuration.
const FILE: &str = "(\\[?\\[?(outbox|sinks|sinks\\.n|route|relay)\\]?\\]?( = )?([0-9]|\"x\"|\\[\\]|\\{\\}|nan|1979-05-27)?\n|\\PC\n?){0,6}";
const NAME: &str = "POSTHASTE_(OUTBOX|SINKS|ROUTE|RELAY|__|_|[0-9]|URL|N){1,6}";
const VALUE: &str = "[\\[\\]{}\"'=,+-]?\\PC{0,6}|[0-9]{1,24}|true|nan|1979-05-27";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_file_and_any_variables_are_a_tree_or_refused(
        file in FILE,
        variables in prop::collection::vec((NAME, VALUE), 0..4),
    ) {
        let parsed = Tree::parse(Path::new("posthaste.toml"), &file);
        let mut tree = parsed.unwrap_or_else(|_| Tree::empty());
        let names: Vec<String> = variables.iter().map(|(name, _)| name.clone()).collect();
        if overlay(&mut tree, MAIN, variables.into_iter()).is_ok() {
            prop_assert!(tree.value.is_object());
            prop_assert!(names.iter().all(|name| !tree.place(name).is_empty()));
        }
    }
}
