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
        ("POSTHASTE__SERVICE", "shop", "POSTHASTE__SERVICE: unknown key `_service`, did you mean `service`?"),
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

/// A name that lacks only the second underscore is surely a slip. Kubernetes' own names are none.
#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn a_variable_that_lacks_an_underscore_is_told_with_its_right_name() {
    let file = File::new(&FULL.replace("[sinks.out]", "[sinks.my-out]").replace("\"out\"", "\"my-out\""));
    let table = [
        ("POSTHASTE_RELAY_POLL_MIN_MS", "POSTHASTE_RELAY__POLL_MIN_MS"),
        ("POSTHASTE_LOG_LEVEL", "POSTHASTE_LOG__LEVEL"),
        ("POSTHASTE_OUTBOX_URL", "POSTHASTE_OUTBOX__URL"),
        ("POSTHASTE_OUTBOX_1_PASSWORD_FILE", "POSTHASTE_OUTBOX__1__PASSWORD_FILE"),
        ("POSTHASTE_OUTBOX_RETENTION_EVENTS_HOURS", "POSTHASTE_OUTBOX__RETENTION__EVENTS_HOURS"),
        ("POSTHASTE_SINKS_NATS_TOKEN_FILE", "POSTHASTE_SINKS__NATS__TOKEN_FILE"),
        ("POSTHASTE_SINKS_MY_OUT_RATE_LIMIT_PER_S", "POSTHASTE_SINKS__MY_OUT__RATE_LIMIT_PER_S"),
        ("POSTHASTE_ROUTE_0_RETRY_JITTER", "POSTHASTE_ROUTE__0__RETRY__JITTER"),
    ];
    for (name, right) in table {
        let config = file.load(&[(name, "hunter2")]).unwrap_or_else(|error| panic!("{error}"));
        let [warning] = config.warnings.as_slice() else { panic!("{name}: {:?}", config.warnings) };
        assert!(warning.starts_with(&format!("environment variable {name} is not used")), "{warning}");
        assert!(warning.ends_with(&format!("Write {right}")) && !warning.contains("hunter2"), "{warning}");
    }
    for name in
        ["POSTHASTE_SERVICE_HOST", "POSTHASTE_RELAY_SERVICE_PORT", "POSTHASTE_RELAY_PORT", "POSTHASTE_CONFIG"]
    {
        let config = file.load(&[(name, "x")]).unwrap_or_else(|error| panic!("{error}"));
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }
    // It may be the very thing that is missing.
    let nothing = load(&Flags::default(), &[("POSTHASTE_OUTBOX_URL", "postgres://h/d")])
        .map(drop)
        .expect_err("no outbox");
    assert!(
        nothing.contains("no outbox is configured") && nothing.ends_with("Write POSTHASTE_OUTBOX__URL"),
        "{nothing}"
    );
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn what_a_variable_brings_is_never_blamed_on_the_file() {
    let file = File::new(&FULL.replace("poll_min_ms = 7", "poll_min_ms = 7\npublish_timeout_ms = 9000"));
    let table = [
        ("POSTHASTE_RELAY__POLL_MAX_MS", "2"),
        ("POSTHASTE_RELAY__LEASE_TTL_MS", "100"),
        ("POSTHASTE_RELAY__PAGE_EVENTS_MAX", "0"),
        ("POSTHASTE_ROUTE__0__TOPICS", "[\"orders.>\"]"),
        ("POSTHASTE_ROUTE__0__SINKS", "[\"natz\"]"),
        ("POSTHASTE_ROUTE__0__DESTINATION", "a b"),
        ("POSTHASTE_OUTBOX__0__URL_FILE", "/nonexistent"),
        ("POSTHASTE_OUTBOX__0__KEY_FILE", "/nonexistent"),
        ("POSTHASTE_OUTBOX__2__SCHEMA", "s"),
        ("POSTHASTE_SINKS__NATS__KEY_FILE", "/nonexistent"),
        ("POSTHASTE_SINKS__NATS__DELIVERY_TIMEOUT_MS", "9500"),
        ("POSTHASTE_SINKS__OTHER__URL", "nats://h"),
    ];
    for (name, value) in table {
        let error = file.load(&[(name, value)]).map(drop).expect_err(name);
        for line in error.lines() {
            assert!(line.starts_with(&format!("environment variable {name}: ")), "{error}");
        }
    }
    let slow = FULL.replace("token = ", "delivery_timeout_ms = 9000\ntoken = ");
    let error = File::new(&slow)
        .load(&[("POSTHASTE_RELAY__PUBLISH_TIMEOUT_MS", "8500")])
        .map(drop)
        .expect_err("too short");
    assert!(
        error.starts_with("environment variable POSTHASTE_RELAY__PUBLISH_TIMEOUT_MS: sinks.nats."),
        "{error}"
    );
}

#[test]
fn every_top_level_key_is_a_variable() {
    let schema = schema();
    let mut keys: Vec<&String> = schema["properties"].as_object().expect("keys").keys().collect();
    keys.sort();
    let mut known = env::TOP_LEVEL;
    known.sort_unstable();
    assert_eq!(keys, known);
}
