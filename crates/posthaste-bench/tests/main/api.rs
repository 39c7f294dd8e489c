//! The API, small: every kind of request is answered, the jobs do what they say, and nothing is left.

use super::whole::{assert_numbers, measured, product, run};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;

#[tokio::test]
async fn the_api_is_measured_over_a_log_and_its_jobs_deliver() {
    require_service!(product());
    let database = require_service!(TestDatabase::create().await);
    let url = database.url();
    let words =
        ["api", "--store", &url, "--events", "20000", "--rows", "1000", "--causes", "20", "--rate", "40"];
    let short = ["--seconds", "1", "--append-rate", "50", "--idle-seconds", "1", "--payload-bytes", "100"];
    let jobs = ["--job-rate", "50", "--job-seconds", "1", "--json"];
    let report = measured(&[&words[..], &short, &jobs].concat()).await;
    for kind in ["overview", "dead", "deferred", "audit", "causes", "event_id", "event_number", "dry_run"] {
        let names = ["p50_ms", "p99_ms", "tenth_p99_ms", "p99_ratio_to_tenth"];
        assert_numbers(&report, &names.map(|name| format!("{kind}_{name}")).each_ref().map(|name| &**name));
    }
    let names = ["idle_statements_more_per_s", "rss_more_mib", "rss_after_looks_mib", "job_letters_per_s"];
    assert_numbers(&report, &names);
    assert_numbers(&report, &["job_rate_per_s", "job_cancel_ms", "job_delivered_s"]);
    // These hold at every size; times are not judged at this one.
    assert_eq!((&report["events"], &report["job_letters"]), (&20_000.into(), &500.into()), "{report}");
    for name in ["failed_requests", "job_letters_wrong"] {
        assert_eq!((&report[name], &report["targets"][name]["met"]), (&0.0.into(), &true.into()), "{report}");
    }
    let few = run(&["api", "--store", &url, "--events", "1000"]).await;
    assert_eq!(few.status.code(), Some(2), "{few:?}");
}
