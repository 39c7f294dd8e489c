//! Every metric name: the relay's here, the consumer's in `consumer.rs`. And the span of a handler.
//!
//! Names without the `posthaste_` prefix are fixed by the systems Posthaste replaces; dashboards and
//! alerts that exist go on working. All carry the label `service`; ours carry `outbox` and `sink` too
//! where it makes sense. Handles are made once for each lane: no label lookup in a loop.

pub mod api;
pub mod consumer;
pub mod gateway;

pub use consumer::{ConsumerMetrics, HandledAs, PartitionMetrics, TopicMetrics};

use crate::event::Timestamp;
use crate::store::LaneId;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::sync::Arc;

/// The span that a consumer's handler runs in. It has the fields `consumer` and `topic`, and of a message
/// that is handled by itself `message_id`, `attempt`, `traceparent` and `trace_id`; else `messages`, their
/// number.
pub const HANDLER_SPAN: &str = "handle";
/// Its target, for filters: there is one for each message.
pub const HANDLER_TARGET: &str = "posthaste::handler";

/// Publish attempts.
pub const PUBLISH_ATTEMPTS: &str = "outbox_publish_attempts_total";
/// Events acknowledged by the broker.
pub const PUBLISHED: &str = "outbox_published_total";
/// Attempts that will be repeated.
pub const RETRY: &str = "outbox_retry_total";
/// Events given up.
pub const FAILED_PERMANENT: &str = "outbox_failed_permanent_total";
/// Events that wait in the log.
pub const BACKLOG: &str = "outbox_backlog_gauge";
/// Append to acknowledgement.
pub const PUBLISH_LATENCY: &str = "outbox_publish_latency_seconds";
/// The same number as the backlog, under the name other dashboards use.
pub const PENDING: &str = "outbox_pending_count";
/// Age of the oldest event that waits.
pub const OLDEST_AGE: &str = "outbox_oldest_age_seconds";
/// Average age of the events that wait.
pub const AVERAGE_AGE: &str = "outbox_average_age_seconds";
/// The same as the publish latency, under the name other dashboards use.
pub const PROCESS_LATENCY: &str = "outbox_process_latency";
/// Failed attempts and deaths.
pub const FAILURES: &str = "outbox_failure_count";
/// Dead letters.
pub const DEAD: &str = "outbox_dead_letters";
/// Deferred events.
pub const DEFERRED: &str = "posthaste_deferred_events";
/// Lanes this relay owns.
pub const LANES_OWNED: &str = "posthaste_lanes_owned";
/// Leases lost to somebody else.
pub const LEASES_LOST: &str = "posthaste_leases_lost_total";
/// 0 closed, 1 open, 0.5 probing.
pub const BREAKER: &str = "posthaste_breaker_state";
/// Events in a page.
pub const PAGE_EVENTS: &str = "posthaste_page_events";
/// Time of one read.
pub const READ_SECONDS: &str = "posthaste_read_seconds";
/// Time of one publish call.
pub const PUBLISH_SECONDS: &str = "posthaste_publish_seconds";
/// Time of one settlement.
pub const SETTLE_SECONDS: &str = "posthaste_settle_seconds";
/// Events read and not yet settled.
pub const UNSETTLED: &str = "posthaste_unsettled_events";
/// Segments that a sweep truncated.
pub const SEGMENTS_TRUNCATED: &str = "posthaste_segments_truncated_total";
/// Segments whose double entry did not balance.
pub const AUDIT_FAILURES: &str = "posthaste_audit_failures_total";
/// 1 while the ring cannot turn because the next segment is not empty.
pub const RING_FULL: &str = "posthaste_ring_full";
/// Dead letters that a declared retention deleted.
pub const DEAD_PURGED: &str = "posthaste_dead_letters_purged_total";
/// Errors of the store.
pub const STORE_ERRORS: &str = "posthaste_store_errors_total";

/// What each metric of the relay means, for the exporter's HELP lines.
const DESCRIPTIONS: [(&str, &str); 26] = [
    (PUBLISH_ATTEMPTS, "publish attempts"),
    (PUBLISHED, "events acknowledged by the broker"),
    (RETRY, "failed attempts that will be repeated"),
    (FAILED_PERMANENT, "events given up: now dead letters"),
    (BACKLOG, "events in the log that wait for this sink; exact up to 10,000"),
    (PUBLISH_LATENCY, "seconds from append to acknowledgement"),
    (PENDING, "same as outbox_backlog_gauge"),
    (OLDEST_AGE, "age in seconds of the oldest event that waits"),
    (AVERAGE_AGE, "average age in seconds of the events that wait"),
    (PROCESS_LATENCY, "same as outbox_publish_latency_seconds"),
    (FAILURES, "failed attempts and deaths"),
    (DEAD, "dead letters"),
    (DEFERRED, "events that wait for a retry, their time, or their key"),
    (LANES_OWNED, "lanes this relay owns"),
    (LEASES_LOST, "leases lost to another relay or a server restart"),
    (BREAKER, "0 closed, 0.5 probing, 1 open"),
    (PAGE_EVENTS, "events in a page"),
    (READ_SECONDS, "seconds of one read"),
    (PUBLISH_SECONDS, "seconds of one publish call"),
    (SETTLE_SECONDS, "seconds of one settlement"),
    (UNSETTLED, "events read and not yet settled"),
    (SEGMENTS_TRUNCATED, "segments truncated by retention"),
    (AUDIT_FAILURES, "segments whose receipts do not balance with their rows"),
    (RING_FULL, "1 while the ring of segments cannot turn"),
    (DEAD_PURGED, "dead letters deleted by retention: nobody replayed or discarded them"),
    (STORE_ERRORS, "errors of the store, transient ones included"),
];

/// What each metric means, the consumer's included.
pub fn descriptions() -> impl Iterator<Item = (&'static str, &'static str)> {
    DESCRIPTIONS
        .into_iter()
        .chain(consumer::DESCRIPTIONS)
        .chain(api::DESCRIPTIONS)
        .chain(gateway::DESCRIPTIONS)
}

/// The handles of one lane.
pub(crate) struct LaneMetrics {
    pub(crate) attempts: Counter,
    pub(crate) published: Counter,
    pub(crate) retries: Counter,
    pub(crate) dead: Counter,
    pub(crate) failures: Counter,
    pub(crate) leases_lost: Counter,
    pub(crate) store_errors: Counter,
    pub(crate) latency: Histogram,
    pub(crate) process_latency: Histogram,
    pub(crate) page_events: Histogram,
    pub(crate) read: Histogram,
    pub(crate) publish: Histogram,
    pub(crate) settle: Histogram,
    pub(crate) breaker: Gauge,
    pub(crate) unsettled: Gauge,
}

impl LaneMetrics {
    pub(crate) fn new(service: &Arc<str>, outbox: &Arc<str>, id: &LaneId) -> Self {
        let service = service.to_string();
        let (outbox, sink) = (outbox.to_string(), id.sink.to_string());
        macro_rules! made {
            ($kind:ident, $name:expr) => {
                $kind!($name, "service" => service.clone(), "outbox" => outbox.clone(), "sink" => sink.clone())
            };
        }
        Self {
            attempts: made!(counter, PUBLISH_ATTEMPTS),
            published: made!(counter, PUBLISHED),
            retries: made!(counter, RETRY),
            dead: made!(counter, FAILED_PERMANENT),
            failures: made!(counter, FAILURES),
            leases_lost: made!(counter, LEASES_LOST),
            store_errors: made!(counter, STORE_ERRORS),
            latency: made!(histogram, PUBLISH_LATENCY),
            process_latency: made!(histogram, PROCESS_LATENCY),
            page_events: made!(histogram, PAGE_EVENTS),
            read: made!(histogram, READ_SECONDS),
            publish: made!(histogram, PUBLISH_SECONDS),
            settle: made!(histogram, SETTLE_SECONDS),
            breaker: made!(gauge, BREAKER),
            unsettled: made!(gauge, UNSETTLED),
        }
    }

    /// Records append-to-acknowledgement, by the store's clock as this host sees it.
    pub(crate) fn delivered(&self, now: Timestamp, appended_at: Timestamp) {
        let seconds = now.seconds_since(appended_at).max(0.0);
        self.latency.record(seconds);
        self.process_latency.record(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn file(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
        std::fs::read_to_string(&path).expect("a file of the repository")
    }

    /// Words of a text that look like a metric of ours.
    fn names(text: &str) -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let ours = words.filter(|word| word.starts_with("outbox_") || word.starts_with("posthaste_"));
        // A histogram's buckets are written under a name of their own.
        ours.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
    }

    #[test]
    fn every_metric_is_described_and_documented_and_every_alert_asks_for_one() {
        let described: BTreeSet<String> = descriptions().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(described.len(), descriptions().count(), "each once");
        let documented = names(&file("docs/metrics.md"));
        assert_eq!(described.difference(&documented).count(), 0, "{:?}", described.difference(&documented));
        let rules = file("deploy/prometheus/alerts.yml");
        let asked = names(&rules);
        assert!(asked.len() >= 10, "the expressions are found: {asked:?}");
        assert_eq!(asked.difference(&described).count(), 0, "{:?}", asked.difference(&described));
    }

    /// promtool runs the tests, where it can be had (`./test`). That there are some can be seen everywhere.
    #[test]
    fn every_alert_is_listed_has_a_runbook_and_is_tested_firing_and_silent() {
        let (rules, tests) =
            (file("deploy/prometheus/alerts.yml"), file("deploy/prometheus/alerts_test.yml"));
        let (table, runbooks) = (file("docs/metrics.md"), file("docs/operations.md"));
        let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(alerts.len() >= 20, "the rules are found: {alerts:?}");
        for alert in alerts {
            assert!(table.contains(&format!("| `{alert}` |")), "docs/metrics.md does not list {alert}");
            assert!(
                runbooks.contains(&format!("\n### {alert}\n\n")),
                "docs/operations.md: what about {alert}?"
            );
            let link = format!("runbook: 'docs/operations.md#{}'", alert.to_lowercase());
            assert!(rules.contains(&link), "{alert} has no {link}");
            let silent = format!("alertname: {alert}, exp_alerts: [] }}\n");
            assert!(tests.contains(&silent), "alerts_test.yml: {alert} is never silent");
            let firing = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels:");
            assert!(tests.contains(&firing), "alerts_test.yml: {alert} never fires");
        }
    }
}
