//! The environment over the file.

use super::*;

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn variables_go_over_the_file() {
    let file = File::new(FULL);
    let config = file.load(&[
        ("POSTHASTE_RELAY__POLL_MIN_MS", "11"),
        ("POSTHASTE_OUTBOX__1__URL", "postgres://elsewhere/users"),
        ("POSTHASTE_OUTBOX__1__POOLED", "true"),
        ("POSTHASTE_SINKS__NATS__TOKEN", "12345"),
        ("POSTHASTE_SINKS__OUT__START_AT", "now"),
        ("POSTHASTE_ROUTE__1__TOPICS", "[\"a\", \"b\"]"),
        ("POSTHASTE_ROUTE__0__RETRY__JITTER", "0.5"),
        ("POSTHASTE_SERVICE", "\"2024\""),
        ("POSTHASTE_SERVICE_HOST", "10.0.0.1"),
        ("POSTHASTE_PORT_9187_TCP", "tcp://10.0.0.1:9187"),
        ("OTHER__X", "1"),
    ]);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.relay.poll_min_ms, 11);
    assert_eq!(config.outboxes[1].postgres().url, "postgres://elsewhere/users");
    assert!(config.outboxes[1].postgres().pooled);
    assert_eq!(&*config.outboxes[0].service, "2024");
    assert_eq!(config.sinks[1].start_at, StartAt::Now);
    assert_eq!(config.outboxes[0].routes.routes()[1].topics.len(), 3, "topic and topics add up");
    assert_eq!(config.effective["sinks"]["nats"]["token"], "12345");
}

#[test]
fn a_single_outbox_needs_no_number_and_no_file() {
    let config = load(&Flags { config: None, ..quick(&[]) }, &[("POSTHASTE_RELAY__POLL_MAX_MS", "700")]);
    assert_eq!(config.expect("flags alone").relay.poll_max_ms, 700);
    let file = File::new("[outbox]\nschema = \"s\"\n[sinks.my-sink]\ntype = \"stdout\"");
    let config = file.load(&[
        ("POSTHASTE_OUTBOX__URL", "postgres://h/d"),
        ("POSTHASTE_SINKS__MY_SINK__RATE_LIMIT_PER_S", "5"),
    ]);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        (config.outboxes[0].postgres().url.as_str(), config.outboxes[0].postgres().schema.as_str()),
        ("postgres://h/d", "s")
    );
    assert_eq!(config.sinks[0].rate_limit_per_s, Some(5.0));
}

#[test]
fn wrong_variables_are_named() {
    let file = File::new(FULL);
    let table = [
        ("POSTHASTE_REALY__X", "1", "POSTHASTE_REALY__X: unknown key `realy`, did you mean `relay`?"),
        (
            "POSTHASTE_RELAY__POLL_MIN_SM",
            "1",
            "environment variable POSTHASTE_RELAY__POLL_MIN_SM: unknown key",
        ),
        (
            "POSTHASTE_RELAY__POLL_MIN_MS",
            "soon",
            "environment variable POSTHASTE_RELAY__POLL_MIN_MS: `relay.poll_min_ms`",
        ),
        ("POSTHASTE_OUTBOX__URL", "x", "there are 2 outboxes; say which one"),
        ("POSTHASTE_OUTBOX__7__URL", "x", "7 is not the next number"),
        ("POSTHASTE_SERVICE__X", "1", "is below a plain value"),
        ("POSTHASTE_SINKS__NATS__URL_FILE", "/nonexistent/x", "cannot read /nonexistent/x"),
    ];
    for (name, value, expected) in table {
        let error = file.load(&[(name, value)]).map(|_| ()).expect_err(name);
        assert!(error.contains(expected), "{error}");
    }
}
