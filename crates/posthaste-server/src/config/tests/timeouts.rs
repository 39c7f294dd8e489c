//! The two bounds of a publish call, and the lease around them.

use super::*;

/// A relay and a sink with these keys, and what they come to: the sink's bound, the relay's and the lease.
fn timeouts(relay: &str, sink: &str) -> Result<(Option<u64>, u64, u64), String> {
    let text = format!(
        "[outbox]\nurl = \"postgres://h/d\"\n[relay]\n{relay}\n[sinks.n]\ntype = \"nats\"\nurl = \"nats://h\"\n{sink}\n\
         [[route]]\ntopics = [\"*\"]\nsinks = [\"n\"]\n"
    );
    let config = File::new(&text).load(&[])?;
    // What is shown is what holds.
    let shown = config.shown();
    assert_eq!(shown["sinks"]["n"]["delivery_timeout_ms"].as_u64(), config.sinks[0].delivery_timeout_ms);
    assert_eq!(shown["relay"]["publish_timeout_ms"], config.relay.publish_timeout_ms);
    Ok((config.sinks[0].delivery_timeout_ms, config.relay.publish_timeout_ms, config.relay.lease_ttl_ms))
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn an_option_of_the_wrong_type_is_named_at_its_line() {
    let error = timeouts("", "delivery_timeout_ms = \"8s\"").expect_err("no number");
    assert!(error.contains("line 8: `sinks.n.delivery_timeout_ms` must be a whole number"), "{error}");
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn a_sink_gives_up_before_the_relay_does() {
    let table = [
        ("publish_timeout_ms = 10000", "delivery_timeout_ms = 15000", "line 8", "15000", "10000"),
        ("publish_timeout_ms = 5000", "delivery_timeout_ms = 5000", "line 8", "5000", "5000"),
    ];
    for (relay, sink, place, delivery, publish) in table {
        let error = timeouts(relay, sink).expect_err("refused");
        let words = format!(
            "{place}: sinks.n.delivery_timeout_ms = {delivery} must be below relay.publish_timeout_ms = {publish}:"
        );
        assert!(error.contains(&words), "{error}");
    }
    assert_eq!(
        timeouts("publish_timeout_ms = 5000", "delivery_timeout_ms = 4999"),
        Ok((Some(4_999), 5_000, 20_000))
    );
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn one_bound_of_a_call_follows_the_other() {
    assert_eq!(timeouts("", ""), Ok((Some(8_000), 10_000, 20_000)));
    // Down.
    assert_eq!(timeouts("publish_timeout_ms = 1000", ""), Ok((Some(800), 1_000, 20_000)));
    assert_eq!(timeouts("publish_timeout_ms = 14000", ""), Ok((Some(8_000), 14_000, 20_000)));
    // Up; and the lease must outlive a call.
    assert_eq!(timeouts("", "delivery_timeout_ms = 11000"), Ok((Some(11_000), 13_750, 20_000)));
    let (_, publish, lease) = timeouts("", "delivery_timeout_ms = 600000").expect("it is taken");
    assert!(publish == 750_000 && lease > publish, "{publish} {lease}");
    // What somebody wrote stays as it is.
    let error = timeouts("lease_ttl_ms = 20000", "delivery_timeout_ms = 60000").expect_err("refused");
    assert!(error.contains("lease_ttl_ms"), "{error}");
    // A bound that nobody wrote is not blamed.
    let error = timeouts("publish_timeout_ms = 100", "").expect_err("refused");
    assert!(error.contains("line 4: relay.publish_timeout_ms = 100 is too short for sink `n`"), "{error}");
    let error = timeouts("", "delivery_timeout_ms = 9000000").expect_err("refused");
    assert!(error.contains("line 8: sinks.n.delivery_timeout_ms: must be between"), "{error}");
}
