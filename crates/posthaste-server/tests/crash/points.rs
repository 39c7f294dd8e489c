//! Every `CRASH(name)` note has a crash point under it, and every crash point a test.

use super::POINTS;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a source directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What stands between `open` and the next quote or parenthesis, for each occurrence.
fn names(text: &str, open: &str, close: char) -> BTreeSet<String> {
    text.split(open).skip(1).filter_map(|rest| rest.split(close).next()).map(str::to_owned).collect()
}

#[test]
fn every_crash_note_has_a_point_and_a_test() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates' directory");
    let mut files = Vec::new();
    for name in
        ["posthaste", "posthaste-postgres", "posthaste-sqlite", "posthaste-brokers", "posthaste-server"]
    {
        sources(&crates.join(name).join("src"), &mut files);
    }
    let (mut notes, mut points) = (BTreeSet::new(), BTreeSet::new());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source file");
        notes.extend(names(&text, "// CRASH(", ')'));
        points.extend(names(&text, "crash_point!(\"", '"'));
    }
    let mut tested: BTreeSet<String> = POINTS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    tested.extend(super::adopt::points().chain(super::migrate::points()).map(str::to_owned));
    tested.extend(super::consume_points::POINTS.iter().map(|(name, ..)| (*name).to_owned()));
    tested.extend(super::consume_points::OUTSIDE.map(str::to_owned));
    tested.extend(super::gateway_points::POINTS.iter().map(|(name, _)| (*name).to_owned()));
    tested.extend(super::jobs::points().map(str::to_owned));
    #[cfg(feature = "sqlite")]
    tested.extend(super::jobs::sqlite_points());
    tested.extend(super::topology_points::POINTS.iter().map(|(name, ..)| (*name).to_owned()));
    #[cfg(feature = "sqlite")]
    tested.extend(super::sqlite::points().chain(super::local::points()).map(str::to_owned));
    #[cfg(feature = "sqlite")]
    tested.extend(super::consume::points().map(str::to_owned));
    // A consumer dies at each of its points on both databases.
    let of_consumer: BTreeSet<&str> =
        points.iter().map(String::as_str).filter(|name| name.starts_with("consume.")).collect();
    let on_postgres = super::consume_points::POINTS.iter().map(|(name, ..)| *name).collect();
    assert_eq!(of_consumer, on_postgres, "points of a consumer and tests on PostgreSQL");
    #[cfg(feature = "sqlite")]
    assert_eq!(of_consumer, super::consume::points().collect(), "points of a consumer and tests on SQLite");
    assert!(notes.len() > 5, "the notes are found");
    assert_eq!(notes, points, "notes and points");
    assert_eq!(points, tested, "points and tests");
}
