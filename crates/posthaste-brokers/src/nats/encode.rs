//! An event's metadata as NATS headers.

use super::verdict;
use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue, NATS_MESSAGE_ID};
use posthaste::sink::{Message, Verdict};

/// What tells a tombstone from an empty payload.
const TOMBSTONE: HeaderName = HeaderName::from_static("Posthaste-Tombstone");

/// The headers of a message, or why it cannot travel.
pub(super) fn headers(message: &Message) -> Result<HeaderMap, Verdict> {
    let mut headers = HeaderMap::new();
    let mut bad = None;
    message.each_header(|name, value| match (header_name(name), value.parse::<HeaderValue>()) {
        (Some(name), Ok(value)) => headers.append(name, value),
        _ => bad = Some(verdict::bad_header(name)),
    });
    if message.payload.is_none() {
        headers.insert(TOMBSTONE, "true");
    }
    // Last, so that no header of the event's own can change the dedup slot.
    headers.insert(NATS_MESSAGE_ID, message.id());
    bad.map_or(Ok(headers), Err)
}

/// The names that every message has are constants: no copy.
fn header_name(name: &str) -> Option<HeaderName> {
    Some(match name {
        "Message-ID" => const { HeaderName::from_static("Message-ID") },
        "type" => const { HeaderName::from_static("type") },
        "key" => const { HeaderName::from_static("key") },
        "time" => const { HeaderName::from_static("time") },
        "source" => const { HeaderName::from_static("source") },
        "content-type" => const { HeaderName::from_static("content-type") },
        other => other.parse().ok()?,
    })
}
