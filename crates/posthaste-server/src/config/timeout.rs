//! The two bounds of a publish call: the sink's `delivery_timeout_ms` and the relay's `publish_timeout_ms`.
//!
//! The sink has to give up first. It knows which messages were sent, and what a silent broker means. A relay
//! that is quicker cuts every call of a slow broker, learns nothing from it, and sends the same events again
//! for ever. So the sink's bound is below the relay's, and a file that says otherwise is refused. What is
//! left out follows what is written: 4 to 5, as the defaults are.

use super::resolve::Review;
use super::section::File;
use super::sink::SinkConfig;
use super::tree::member;
use posthaste::relay::RelaySettings;
use posthaste_brokers::DELIVERY_TIMEOUT;
use serde_json::{Value, json};

/// No kind of sink takes a longer one.
const DELIVERY_MS_MAX: u64 = 600_000;

/// What is wrong with the two, if something is.
pub(crate) fn contradiction(sink: &str, delivery_ms: u64, publish_ms: u64) -> Option<String> {
    (delivery_ms >= publish_ms).then(|| {
        format!(
            "sinks.{sink}.{DELIVERY_TIMEOUT} = {delivery_ms} must be below relay.publish_timeout_ms = {publish_ms}: the \
             relay would cut every call that takes longer and send its events again and again. Lower the one or raise the \
             other; if one of them is left out, it follows the other"
        )
    })
}

/// The relay's bound, where it is left out, is above what the sinks say. The lease, where that is left out
/// too, outlives it.
pub(super) fn follow_sinks(review: &Review<'_>, file: &mut File) {
    let longest = file.sinks.values().filter_map(|sink| sink.get(DELIVERY_TIMEOUT)?.as_u64()).max();
    let (relay, wanted) = (&mut file.relay, longest.unwrap_or(0).min(DELIVERY_MS_MAX) * 5 / 4);
    if wanted <= relay.publish_timeout_ms || review.is_given("relay", "publish_timeout_ms") {
        return;
    }
    relay.publish_timeout_ms = wanted;
    if !review.is_given("relay", "lease_ttl_ms") {
        let trusted = relay.heartbeat_ms.saturating_mul(2).saturating_add(wanted);
        relay.lease_ttl_ms = relay.lease_ttl_ms.max(trusted / 4 * 5 + 5);
    }
}

/// The sink's bound, where it is left out, is below the relay's. Says what is wrong with the sink's own
/// options, and with the two bounds together, and answers with the sink's bound, if it has one.
pub(super) fn check_sink(
    review: &mut Review<'_>,
    relay: &RelaySettings,
    name: &str,
    given: &Value,
    config: &mut SinkConfig,
) -> Option<u64> {
    let path = member("sinks", name);
    let (publish_ms, is_given) = (relay.publish_timeout_ms, given.get(DELIVERY_TIMEOUT).is_some());
    if let Some(delivery_ms) = config.delivery_timeout_ms().filter(|_| !is_given) {
        *delivery_ms = (*delivery_ms).min(publish_ms / 5 * 4);
    }
    let delivery_ms = config.delivery_timeout_ms().copied();
    match config.check() {
        Err(error) if error.option_name() == DELIVERY_TIMEOUT && !is_given => review.problem(
            "relay.publish_timeout_ms",
            format!("relay.publish_timeout_ms = {publish_ms} is too short for sink `{name}`: {path}.{error}, and is below it"),
        ),
        Err(error) => review.problem(&review.blamed(&path, &error.to_string()), format!("{path}.{error}")),
        Ok(()) => {
            if let Some(why) = delivery_ms.and_then(|ms| contradiction(name, ms, publish_ms)) {
                let (own, relays) = (member(&path, DELIVERY_TIMEOUT), "relay.publish_timeout_ms");
                review.problem(if review.is_over_file(relays) { relays } else { &own }, why);
            }
        }
    }
    delivery_ms
}

/// Writes down what holds for a sink.
pub(super) fn note(sink: &mut Value, delivery_ms: Option<u64>) {
    if let (Value::Object(table), Some(delivery_ms)) = (sink, delivery_ms) {
        table.insert(DELIVERY_TIMEOUT.to_owned(), json!(delivery_ms));
    }
}
