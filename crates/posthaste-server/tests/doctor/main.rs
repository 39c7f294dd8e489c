//! `posthaste doctor`, check by check: something breaks just that, and the command says its name and ends
//! with 1. Before it was broken it ended with 0, so it is that thing and nothing else.

mod adopted;
#[path = "../main/binary.rs"]
mod binary;
mod broker;
#[cfg(feature = "sqlite")]
mod consumer;
mod gateway;
mod ground;
mod proxy;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;

use crate::binary::run;

/// Checks of these are broken beside their sinks and tables, against real servers.
const ELSEWHERE: [(&str, &str); 15] = [
    ("consumer", include_str!("../../../posthaste-postgres/tests/consumer/mapped.rs")),
    ("kafka", include_str!("../../../posthaste-brokers/tests/kafka/examine.rs")),
    ("source kafka", include_str!("../../../posthaste-brokers/tests/kafka/source_own.rs")),
    ("source nats", include_str!("../../../posthaste-brokers/tests/nats/source_own.rs")),
    ("source nats", include_str!("../../../posthaste-brokers/tests/nats/queue_own.rs")),
    ("source redis", include_str!("../../../posthaste-brokers/tests/redis/queue_own.rs")),
    ("source redis", include_str!("../../../posthaste-brokers/tests/redis/source_own.rs")),
    ("redis", include_str!("../../../posthaste-brokers/tests/redis/examine.rs")),
    ("rabbitmq", include_str!("../../../posthaste-brokers/tests/rabbitmq/examine.rs")),
    ("source rabbitmq", include_str!("../../../posthaste-brokers/tests/rabbitmq/source_refused.rs")),
    ("http", include_str!("../../../posthaste-brokers/tests/http/examine.rs")),
    ("redis", include_str!("../../../posthaste-brokers/tests/redis/cluster.rs")),
    ("rabbitmq", include_str!("../../../posthaste-brokers/tests/rabbitmq/outage.rs")),
    ("http", include_str!("../../../posthaste-brokers/tests/http/rotation.rs")),
    ("http", include_str!("../../../posthaste-brokers/tests/http/proxy.rs")),
];

/// A check without a test that breaks it could be one that never finds anything.
#[test]
fn every_check_is_broken_by_a_test() {
    let listed = run(&["doctor", "--list", "--json"]).ok().json();
    let listed = listed.as_array().expect("a list");
    assert!(listed.len() > 45, "{listed:?}");
    let sources = [
        include_str!("adopted.rs"),
        include_str!("store.rs"),
        include_str!("broker.rs"),
        include_str!("consumer.rs"),
        include_str!("gateway.rs"),
        include_str!("sqlite.rs"),
    ]
    .concat();
    let text: String = sources.chars().filter(|c| !c.is_whitespace()).collect();
    let tested = |of: &str, check: &str| {
        let mut elsewhere = ELSEWHERE.iter().filter(|(kind, _)| *kind == of).peekable();
        if elsewhere.peek().is_some() {
            return elsewhere.any(|(_, tests)| tests.contains(&format!("\"{check}\"")));
        }
        // The first value of a row of a table, or the first argument of `only`.
        text.contains(&format!("(\"{check}\","))
    };
    let word = |entry: &serde_json::Value, name: &str| entry[name].as_str().expect("a word").to_owned();
    let pairs = listed.iter().map(|entry| (word(entry, "of"), word(entry, "check")));
    let untested: Vec<_> = pairs.filter(|(of, check)| !tested(of, check)).collect();
    assert!(untested.is_empty(), "no test breaks {untested:?}");
}
