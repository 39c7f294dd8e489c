//! A job on very many letters: its process does not know how many there are.

use crate::acts::over;
use crate::bounds::memory_kib;
use crate::desk::{Desk, Tally};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use serde_json::json;
use std::time::{Duration, Instant};

/// What the process may have had at most, with its own file in it.
const MEMORY_MAX_KIB: u64 = 64 << 10;

/// `./test` plays it small; `POSTHASTE_SOAK=1` plays it at full size.
fn sized<T>(small: T, full: T) -> T {
    let is_soak = std::env::var_os("POSTHASTE_SOAK").is_some_and(|value| !value.is_empty() && value != "0");
    if is_soak { full } else { small }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_on_a_million_letters_takes_64_mb() {
    let letters: i64 = sized(20_000, 1_000_000);
    let database = require_service!(TestDatabase::create().await);
    let desk = Desk::set(&database, &database.url(), letters).await;
    let ui = desk.serve();
    let plan =
        json!({ "kind": "dead.replay", "filter": { "all": true }, "reason": "mended", "dry_run": true });
    let seen = ui.ask("POST", "/outboxes/a/jobs", &plan);
    assert_eq!(
        (&seen["goes"], seen["samples"].as_array().map(Vec::len)),
        (&letters.into(), Some(10)),
        "{seen}"
    );
    let begun = Instant::now();
    let job = ui.replay(None);
    let ended = ui.within(Duration::from_secs(sized(120, 1_800)), &job, over);
    assert_eq!((&ended["state"], &ended["done"]), (&"done".into(), &letters.into()), "{ended}");
    let all = Tally { dead: 0, deferred: letters, done: letters, audited: letters };
    assert_eq!(desk.tally().await, all);
    let (took, most) = (begun.elapsed(), memory_kib(&desk.dir));
    eprintln!("a job: {letters} letters after {took:?}, {} MB at most", most >> 10);
    assert!(most <= MEMORY_MAX_KIB, "G7: memory knows how many letters there are: {most} KiB");
    ui.daemon.stop();
}
