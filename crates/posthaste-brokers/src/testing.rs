//! For unit tests: a message, and a verdict in short.

use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Message, Scope, Verdict};

/// A message as the relay makes it.
pub(crate) fn message(destination: &str, event: Event) -> Message {
    let (payload, appended_at) = (event.payload.clone(), Timestamp(1_700_000_000_000_000));
    Message {
        stored: StoredEvent { seq: 1, slot: 0, appended_at, event, defect: None },
        destination: destination.to_owned(),
        payload,
        ordered: true,
        source: "shop".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

/// What a verdict says of a message that was not delivered.
pub(crate) fn seen(verdict: &Verdict) -> (&'static str, String, Scope) {
    let (name, failure) = match verdict {
        Verdict::Retry(failure) => ("retry", failure),
        Verdict::Rejected(failure) => ("rejected", failure),
        Verdict::Unknown(failure) => ("unknown", failure),
        other => panic!("{other:?} has no failure"),
    };
    (name, failure.code.to_string(), failure.scope)
}
