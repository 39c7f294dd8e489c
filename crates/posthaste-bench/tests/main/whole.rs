//! The whole program, small, on the `posthaste` that was built beside it: the figures have the names that
//! docs/benchmarks.md and `./bench` know.

use super::DEADLINE;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{ServiceError, TestDatabase};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use tokio::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_posthaste-bench");

/// A build of the whole workspace has it; one of this crate alone has not.
pub(super) fn product() -> Result<PathBuf, ServiceError> {
    let path = Path::new(PROGRAM).with_file_name("posthaste");
    let why = "it is built with the workspace: cargo build -p posthaste-server --all-features".to_owned();
    if path.is_file() {
        Ok(path)
    } else {
        Err(ServiceError::Missing { service: "posthaste".to_owned(), why })
    }
}

pub(super) async fn run(words: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(words).env_remove("POSTHASTE_BENCH_BINARY").kill_on_drop(true);
    tokio::time::timeout(3 * DEADLINE, command.output()).await.expect("it ends").expect("it runs")
}

pub(super) async fn measured(words: &[&str]) -> Value {
    let output = run(words).await;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words:?}: {out}{err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
}

#[track_caller]
pub(super) fn assert_numbers(report: &Value, names: &[&str]) {
    for name in names {
        assert!(report[name].is_number(), "{name}: {report}");
    }
}

#[tokio::test]
async fn a_drain_of_the_log_has_its_baselines_and_the_relays_own_memory() {
    require_service!(product());
    let database = require_service!(TestDatabase::create().await);
    let report = measured(&["drain", "--store", &database.url(), "--events", "3000", "--json"]).await;
    let names = [
        "events_per_s",
        "select_per_s",
        "claim_mark_per_s",
        "ratio_to_select",
        "ratio_to_claim_mark",
        "ratio_to_limit",
        "rss_peak_mb",
        "cpu_us_per_event",
    ];
    assert_numbers(&report, &names);
    assert_eq!((&report["events"], &report["distinct_ids"]), (&3000.into(), &3000.into()), "{report}");
    assert!(report["sink_alone_per_s"].is_null(), "the null sink does nothing: {report}");
    assert_eq!(report["posthaste"], env!("CARGO_PKG_VERSION"));
    // Nothing is left behind.
    let client = database.connect().await.expect("connected");
    let left = "select count(*) from pg_namespace where nspname = 'posthaste_bench'";
    assert_eq!(client.query_one(left, &[]).await.expect("asked").get::<_, i64>(0), 0);
}

#[tokio::test]
async fn http_is_compared_with_its_client_and_its_sink() {
    require_service!(product());
    let database = require_service!(TestDatabase::create().await);
    let words = ["drain", "--sink", "http", "--store", &database.url(), "--events", "2000", "--json"];
    let report = measured(&words).await;
    assert_numbers(&report, &["client_alone_per_s", "sink_alone_per_s", "ratio_to_sink_alone"]);
}

#[tokio::test]
async fn latency_append_and_an_adopted_table_are_measured() {
    require_service!(product());
    let database = require_service!(TestDatabase::create().await);
    let url = database.url();
    let short =
        ["latency", "--store", &url, "--rate", "50", "--seconds", "1", "--idle-seconds", "1", "--json"];
    let names = ["p50_ms", "p99_ms", "relay_cpu_percent", "first_after_idle_ms", "idle_statements_per_s"];
    assert_numbers(&measured(&short).await, &names);
    let few = ["append", "--store", &url, "--events", "20", "--batches", "2", "--json"];
    let names = ["single_ratio_to_plain_insert", "batch_ratio_to_copy", "long_ratio_to_copy"];
    assert_numbers(&measured(&few).await, &names);
    let few = ["adopt", "--store", &url, "--events", "3000", "--json"];
    let names = ["ratio_claim_to_claim_mark", "ratio_log_to_claim", "lease_column_indexes", "rss_peak_mb"];
    assert_numbers(&measured(&few).await, &names);
}

#[tokio::test]
async fn a_file_is_drained_into_the_local_broker() {
    require_service!(product());
    let dir = std::env::temp_dir().join(format!("posthaste-bench-test-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir(&dir).expect("a directory");
    let store = format!("sqlite:{}", dir.join("outbox.db").display());
    let drain = ["drain", "--store", &store, "--sink", "local", "--events", "2000", "--json"];
    let names = ["events_per_s", "insert_per_s", "ratio_to_insert", "rss_peak_mb", "cpu_us_per_event"];
    assert_numbers(&measured(&drain).await, &names);
    let append =
        ["append", "--store", &store, "--sink", "local", "--events", "20", "--batches", "2", "--json"];
    assert_numbers(&measured(&append).await, &["single_ratio_to_plain_insert"]);
    assert_eq!(std::fs::read_dir(&dir).expect("there").count(), 0, "its files are removed");
    std::fs::remove_dir(&dir).expect("removed");
}

#[tokio::test]
async fn what_is_wrong_with_the_words_is_said_before_anything_is_made() {
    let product = require_service!(product());
    let refused = |output: Output| {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words}");
        words
    };
    let nowhere = "postgres://nobody:hunter2@127.0.0.1:1/none";
    // The misspelt key is found by the binary that is measured, without its database.
    let misspelt = ["append", "--store", nowhere, "--config-set", "relay.page_events_maxx=5"];
    let words = refused(run(&misspelt).await);
    assert!(words.contains("page_events_maxx") && !words.contains("hunter2"), "{words}");
    let other = ["append", "--store", nowhere, "--posthaste", "/bin/true"];
    assert!(refused(run(&other).await).contains("/bin/true is no posthaste to measure"));
    let named = ["append", "--store", nowhere, "--posthaste", &product.display().to_string()];
    let reached = run(&named).await;
    assert_eq!(reached.status.code(), Some(1), "the database is what is missing");
}
