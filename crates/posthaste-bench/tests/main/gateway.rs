//! The gateway against its bare handlers, small, on both stores: every side is measured, what was accepted is
//! in the log, and nothing is left.

use super::whole::{assert_numbers, measured, product, run};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Redis, RedisOptions, TestDatabase};

const SHORT: [&str; 7] = ["--clients", "16", "--seconds", "1", "--rounds", "1", "--json"];

#[tokio::test]
async fn the_gateway_is_measured_beside_its_baselines() {
    require_service!(product());
    let database = require_service!(TestDatabase::create().await);
    let redis = require_service!(Redis::start(&RedisOptions::default()).await);
    let (url, redis) = (database.url(), redis.url());
    let few = ["--redis", &redis, "--batch-events", "10", "--idle-seconds", "1", "--known", "1000"];
    let words = [&["gateway", "--store", &url, "--in-flight", "64"][..], &few, &SHORT].concat();
    let report = measured(&words).await;
    let ratios =
        ["requests_ratio_to_baseline", "batch_ratio_to_baseline", "ratio_to_checks_only", "redis_ratio"];
    assert_numbers(&report, &ratios);
    assert_numbers(
        &report,
        &["p50_ms", "p99_ms", "baseline_p99_ms", "p99_ratio_to_baseline", "half_rate_per_s"],
    );
    assert_numbers(&report, &["lone_p50_ms", "baseline_lone_p50_ms", "lone_p50_more_ms", "rss_peak_mb"]);
    assert_numbers(&report, &["innocent_alone_p99_ms", "innocent_p99_ms", "innocent_p99_ratio_to_alone"]);
    assert_numbers(&report, &["idle_statements_per_refresh", "loud_passed_per_s"]);
    assert_eq!(report["judged"], false, "times are not judged at this size: {report}");
    // The loud one was held to its rate, whatever the machine does: at most its burst more in one second.
    assert!(report["loud_passed_per_s"].as_f64().is_some_and(|passed| passed <= 250.0), "{report}");
    let client = database.connect().await.expect("connected");
    let left = "select count(*) from pg_namespace where nspname = 'posthaste_bench'";
    assert_eq!(client.query_one(left, &[]).await.expect("asked").get::<_, i64>(0), 0);
}

#[tokio::test]
async fn on_sqlite_it_is_compared_with_a_handler_over_the_same_writer() {
    require_service!(product());
    let dir = std::env::temp_dir().join(format!("posthaste-bench-gateway-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir(&dir).expect("a directory");
    let store = format!("sqlite:{}", dir.join("outbox.db").display());
    let report = measured(&[&["gateway", "--store", &store][..], &SHORT].concat()).await;
    assert_numbers(&report, &["requests_ratio_to_writer", "requests_per_s", "ratio_to_checks_only"]);
    assert_eq!(std::fs::read_dir(&dir).expect("there").count(), 0, "its files are removed");
    let tiny = run(&["gateway", "--store", &store, "--payload-bytes", "1"]).await;
    assert_eq!(tiny.status.code(), Some(2), "{tiny:?}");
    std::fs::remove_dir_all(&dir).expect("removed");
}
