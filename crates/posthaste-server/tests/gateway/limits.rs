//! Each within its rate.

use crate::rig::Rig;
use std::time::{Duration, Instant};

/// 003 §5.3: above the rate it is 429, nothing is stored, and a client that obeys passes.
#[test]
fn w3_above_the_rate_it_is_429_and_nothing_is_stored() {
    let rig = Rig::start("limit = { rate_per_s = 5, burst = 10 }\n");
    let (key, other) = (rig.key("acme", &[]), rig.key("other", &[]));
    let begun = Instant::now();
    let answers: Vec<_> = (0..40).map(|n| rig.post("raw", &key, &n.to_string())).collect();
    let took = begun.elapsed().as_secs_f64();
    let taken = answers.iter().filter(|answer| answer.status == 202).count();
    let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 429).collect();
    assert_eq!(taken + refused.len(), 40);
    assert!(taken as f64 <= 10.0 + 5.0 * took + 1.0 && taken >= 10, "{taken} in {took} s");
    assert_eq!(rig.events().len(), taken, "a row for each 202 and no other");
    let last = refused.last().expect("some were refused");
    assert_eq!(last.code(), "gateway.limited");
    assert!(last.text.contains("quota-exceeded"), "{}", last.text);
    assert_eq!(last.field("ratelimit-policy"), Some("\"tenant\";q=10;w=2"));
    let wait: u64 = last.field("retry-after").and_then(|text| text.parse().ok()).expect("seconds");
    assert_eq!(rig.post("raw", &other, "1").status, 202, "an innocent one is not held up");
    std::thread::sleep(Duration::from_secs(wait)); // pace: as long as Retry-After says
    assert_eq!(rig.post("raw", &key, "1").status, 202, "a client that obeys passes");
}

#[test]
fn a_limit_is_changed_while_it_runs_and_a_batch_beyond_the_burst_never_passes() {
    let rig = Rig::start("limit = { rate_per_s = 0.001, burst = 2 }\n");
    let key = rig.key("acme", &[]);
    let batch = |count: usize| {
        let events = vec!["{\"payload\": 1}"; count].join(", ");
        let body = format!("{{\"events\": [{events}]}}");
        rig.post_with(
            "raw",
            &key,
            &[("content-type", "application/vnd.posthaste.batch+json")],
            body.as_bytes(),
        )
    };
    let answer = batch(3);
    assert_eq!((answer.status, answer.code().as_str()), (413, "gateway.batch"));
    assert_eq!(batch(2).ids().len(), 2);
    assert_eq!(rig.post("raw", &key, "1").status, 429);
    rig.cli(&["gateway", "tenants", "set", "acme", "--rate", "1000/s", "--burst", "50"]).ok();
    rig.until("the limit is another one", || rig.post("raw", &key, "1").status == 202);
    assert_eq!(batch(3).ids().len(), 3);
}
