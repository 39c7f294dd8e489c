//! Tables that are met again and again, described once.
//!
//! Four of them come from design documents of real services. Where such a document leaves something open, the
//! choice is written beside it. Every key of a preset can be overridden by the configuration.

use super::layout::{Layout, StatusWords, TableName, TopicSource};
use super::role::Columns;
use posthaste::retry::{Curve, Permanent, RetryPolicy};
use posthaste::route::Envelope;
use std::time::Duration;

/// A layout by name, with the envelope its consumers expect.
#[derive(Debug, Clone)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// The layout.
    pub layout: Layout,
    /// What routes without an envelope of their own put around the payload.
    pub envelope: Envelope,
}

/// Names of all presets.
pub const PRESETS: [&str; 6] =
    ["prisma-outbox", "outbox-events-adr", "outbox-events", "talkie", "debezium-outbox", "open-outbox"];

/// A preset by its name.
#[must_use]
pub fn preset(name: &str) -> Option<Preset> {
    let (name, layout, envelope) = match name {
        "prisma-outbox" => ("prisma-outbox", prisma_outbox(), Envelope::None),
        "outbox-events-adr" => ("outbox-events-adr", outbox_events_adr(), Envelope::None),
        "outbox-events" => ("outbox-events", outbox_events(), Envelope::MessageId),
        "talkie" => ("talkie", talkie(), Envelope::None),
        "debezium-outbox" => ("debezium-outbox", debezium_outbox(), Envelope::None),
        "open-outbox" => ("open-outbox", open_outbox(), Envelope::None),
        _ => return None,
    };
    Some(Preset { name, layout, envelope })
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

fn some(name: &str) -> Option<String> {
    Some(name.to_owned())
}

/// Columns by their roles.
macro_rules! columns {
    ($($role:ident: $column:literal),+ $(,)?) => {
        Columns { $($role: Some($column.to_owned()),)+ ..Columns::default() }
    };
}

fn headers(columns: &[&str]) -> Vec<(String, String)> {
    columns.iter().map(|column| ((*column).to_owned(), (*column).to_owned())).collect()
}

fn column(name: &str) -> TopicSource {
    TopicSource::Column(name.to_owned())
}

/// A Prisma model `Outbox`: camelCase columns, `timestamp(3)` in UTC, an enum for the status.
///
/// Open in the document, chosen here: the names `topic`, `key` and `payload`; a failed row is looked at again
/// in the next turn of the loop, which is 500 ms later.
fn prisma_outbox() -> Layout {
    let status = StatusWords {
        column: "status".to_owned(),
        pending: words(&["PENDING"]),
        claimed: None,
        retry: "PENDING".to_owned(),
        published: "PROCESSED".to_owned(),
        dead: some("FAILED"),
    };
    Layout {
        column: columns! {
            key: "key", attempts: "retries", published_at: "processedAt", created_at: "createdAt",
        },
        status: Some(status),
        order_by: words(&["createdAt"]),
        condition: some("\"retries\" < 5"),
        batch: 20,
        poll_min: Duration::from_millis(500),
        poll_max: Duration::from_millis(500),
        retry: RetryPolicy {
            max_attempts: 5,
            initial_ms: 500,
            curve: Curve::Exponential,
            max_ms: 500,
            jitter: 0.0,
            permanent: Permanent::Retry,
        },
        ..Layout::new(TableName::named("Outbox"), "id", column("topic"), "payload")
    }
}

/// `outbox_events` of an architecture decision record: no status, a row is done when `published_at` is set.
///
/// Open in the document, chosen here: the topic is `event_type` (its example is `governance.changed`), the
/// key is `aggregate_id`; a transient failure is given up after 15 attempts, which is about 13 minutes;
/// columns that the document plans for later (`last_error`, `last_error_at`, `error_class`) are written where
/// the table has them.
fn outbox_events_adr() -> Layout {
    Layout {
        column: columns! {
            key: "aggregate_id", attempts: "retry_count", next_attempt_at: "next_retry_at",
            last_error: "last_error", last_error_at: "last_error_at", error_class: "error_class",
            published_at: "published_at", created_at: "created_at", updated_at: "updated_at",
        },
        header_columns: headers(&["aggregate_type", "aggregate_id", "event_type"]),
        order_by: words(&["next_retry_at", "created_at"]),
        dead_letters: Some(TableName::named("outbox_events_dlq")),
        may_lack: words(&["last_error", "last_error_at", "error_class", "updated_at"]),
        batch: 50,
        poll_min: Duration::from_millis(500),
        poll_max: Duration::from_secs(2),
        retry: RetryPolicy { permanent: Permanent::Dead, ..RetryPolicy::default() },
        ..Layout::new(TableName::named("outbox_events"), "id", column("event_type"), "payload")
    }
}

/// `outbox_events` of an implementation plan: PENDING, PUBLISHED, FAILED, and a backoff of powers of two.
///
/// Open in the document, chosen here: the topic is `{aggregate_type}.{event_type}`, the key is
/// `aggregate_id`.
fn outbox_events() -> Layout {
    let status = StatusWords {
        column: "status".to_owned(),
        pending: words(&["PENDING"]),
        claimed: None,
        retry: "PENDING".to_owned(),
        published: "PUBLISHED".to_owned(),
        dead: some("FAILED"),
    };
    let topic = TopicSource::parse("{aggregate_type}.{event_type}").unwrap_or_else(|_| column("event_type"));
    Layout {
        column: columns! {
            key: "aggregate_id", attempts: "retry_count", next_attempt_at: "next_attempt_at",
            last_error: "last_error", published_at: "processed_at", created_at: "occurred_at",
        },
        header_columns: headers(&["aggregate_type", "aggregate_id", "event_type"]),
        status: Some(status),
        order_by: words(&["next_attempt_at"]),
        batch: 50,
        poll_min: Duration::from_millis(200),
        poll_max: Duration::from_millis(200),
        // After failure n the old count is n - 1: 1, 2, 4, 8, 16 s. "Exceeds 5" is the sixth failure.
        retry: powers_of_two_seconds(),
        ..Layout::new(TableName::named("outbox_events"), "id", topic, "payload")
    }
}

fn powers_of_two_seconds() -> RetryPolicy {
    RetryPolicy {
        max_attempts: 6,
        initial_ms: 1_000,
        curve: Curve::Exponential,
        max_ms: 300_000,
        jitter: 0.0,
        permanent: Permanent::Retry,
    }
}

/// Talkie's `outbox`: rows are claimed by the status `publishing`.
///
/// Open in the document, chosen here: 5 retries, so that the sixth failure is dead-lettered, and "a simple
/// backoff" of 1, 2, 4, 8, 16 s; batches of 50; `publishing` is given up by its relay after 60 s.
fn talkie() -> Layout {
    let status = StatusWords {
        column: "status".to_owned(),
        pending: words(&["pending", "failed"]),
        claimed: some("publishing"),
        retry: "failed".to_owned(),
        published: "published".to_owned(),
        dead: some("dead_lettered"),
    };
    Layout {
        column: columns! {
            key: "key", attempts: "retry_count", next_attempt_at: "next_attempt_at",
            last_error: "last_error", last_attempt_at: "last_attempt_at", published_at: "published_at",
            created_at: "created_at", idempotency_key: "idempotency_key",
        },
        status: Some(status),
        order_by: words(&["next_attempt_at"]),
        poll_min: Duration::from_secs(1),
        poll_max: Duration::from_secs(1),
        retry: powers_of_two_seconds(),
        ..Layout::new(TableName::named("outbox"), "id", column("topic"), "payload_json")
    }
}

/// The table of Debezium's Event Router, with its topics (`outbox.event.<aggregatetype>`), its key and its
/// header `id`. Rows are deleted when they are published. The router never looks at a row twice, and neither
/// must we.
fn debezium_outbox() -> Layout {
    let topic =
        TopicSource::parse("outbox.event.{aggregatetype}").unwrap_or_else(|_| column("aggregatetype"));
    Layout {
        column: columns! { key: "aggregateid" },
        header_columns: headers(&["id"]),
        order_by: words(&["id"]),
        delete_published: true,
        dead_letters: Some(TableName::named("outbox_dead_letters")),
        ..Layout::new(TableName::named("outbox"), "id", topic, "payload")
    }
}

/// The table of the Open Outbox specification, claimed by `DELIVERING`, `locked_by` and `locked_at`.
fn open_outbox() -> Layout {
    let status = StatusWords {
        column: "status".to_owned(),
        pending: words(&["PENDING"]),
        claimed: some("DELIVERING"),
        retry: "PENDING".to_owned(),
        published: "DELIVERED".to_owned(),
        dead: some("DEAD"),
    };
    Layout {
        column: columns! {
            key: "partition_key", headers: "headers", attempts: "attempts",
            next_attempt_at: "available_at", last_error: "last_error", claimed_at: "locked_at",
            claimed_by: "locked_by", published_at: "delivered_at", created_at: "created_at",
        },
        status: Some(status),
        order_by: words(&["available_at"]),
        ..Layout::new(TableName::named("openoutbox_events"), "event_id", column("event_type"), "payload")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Style;

    #[test]
    fn every_preset_is_whole() {
        for name in PRESETS {
            let preset = preset(name).expect("it is listed");
            assert_eq!(preset.name, name);
            preset.layout.check().expect("it checks");
        }
        let style = |name| preset(name).expect("it is there").layout.style();
        assert_eq!(
            PRESETS.map(style),
            [Style::Locked, Style::Locked, Style::Locked, Style::Marked, Style::Locked, Style::Marked]
        );
    }

    #[test]
    fn the_backoffs_are_those_of_the_documents() {
        let retry = |name| preset(name).expect("it is there").layout.retry;
        let seconds: Vec<u64> = (1..=5).map(|n| retry("outbox-events").base(n).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16]);
        assert!(!retry("outbox-events").is_exhausted(5) && retry("outbox-events").is_exhausted(6));
        assert!(!retry("prisma-outbox").is_exhausted(4) && retry("prisma-outbox").is_exhausted(5));
        let adr = retry("outbox-events-adr");
        let millis: Vec<u128> = [1, 2, 3, 4, 14].map(|n| adr.base(n).as_millis()).to_vec();
        assert_eq!(millis, [50, 100, 200, 400, 300_000]);
        assert_eq!(adr.delay(1, 0.999_999).as_millis(), 59);
        let linear = RetryPolicy { curve: Curve::Linear, ..adr };
        assert_eq!([1, 2, 3].map(|n| linear.base(n).as_millis()), [50, 100, 150]);
    }
}
