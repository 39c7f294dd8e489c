//! A topology against bare requests, small: everything is made, the plan is empty, and nothing is left.

use super::kafka::shared;
use super::whole::{assert_numbers, measured, product, run};
use posthaste_testkit::require_service;

#[tokio::test(flavor = "multi_thread")]
async fn a_topology_is_measured_and_leaves_nothing() {
    require_service!(product());
    let kafka = require_service!(shared().await);
    let brokers = format!("kafka://{}", kafka.bootstrap());
    let short = ["--topics", "6", "--acls", "40", "--replicas", "1", "--rounds", "1", "--json"];
    let report = measured(&[&["topology", "--brokers", &brokers][..], &short].concat()).await;
    assert_eq!((&report["topics"], &report["acls"]), (&6.into(), &40.into()), "{report}");
    assert_numbers(&report, &["look_ms", "plan_ms", "bare_apply_ms", "apply_ms", "plan_s", "rss_peak_mb"]);
    assert_numbers(&report, &["plan_ratio_to_look", "apply_ratio_to_bare"]);
    let rights = kafka.rights().await.expect("rights");
    assert!(!rights.iter().any(|right| right.contains("bench.")), "{rights:#?}");
    let wrong = run(&["topology", "--brokers", "nats://127.0.0.1:1"]).await;
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}
