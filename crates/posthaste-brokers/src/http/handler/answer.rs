//! The body of an answer: events that follow from the message.
//!
//! ```json
//! {"events": [{"topic": "invoices", "key": "42", "headers": {"type": "made"}, "payload": {"id": 7}}]}
//! ```
//!
//! It is looked at only if its type is [`EVENTS_TYPE`]. Anything else is a receiver's small talk. A payload
//! is JSON and stays as it is written, or bytes in base64. Each event carries on the chain, the trace and
//! the saga of its message, as one that a handler in the process makes.

use super::super::client::connection::{Connection, ResponseHead};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::body::Body;
use hyper::header::HeaderValue;
use posthaste::consumer::{Failure, FailureKind, Message};
use posthaste::event::Event;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;

/// The type of a body that has events.
const EVENTS_TYPE: &str = "application/vnd.posthaste.events+json";
/// The largest body. An outbox takes an event of a megabyte at most.
const BODY_BYTES_MAX: usize = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Events {
    events: Vec<EventWords>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventWords {
    topic: String,
    key: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    content_type: Option<String>,
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
}

/// Reads a body to its end. The words of the error are for people.
pub(super) async fn read(connection: &mut Connection, head: &mut ResponseHead) -> Result<Vec<u8>, String> {
    let mut whole = Vec::new();
    while !head.body.is_end_stream() {
        let next = poll_fn(|context| {
            if let Connection::One(one) = &mut *connection {
                one.drive(context);
            }
            Pin::new(&mut head.body).poll_frame(context)
        });
        match next.await {
            Some(Ok(part)) => whole.extend_from_slice(&part.into_data().unwrap_or_default()),
            Some(Err(error)) => return Err(format!("the answer ended half-way: {error}")),
            None => break,
        }
        if whole.len() > BODY_BYTES_MAX {
            return Err(format!("the answer is larger than {BODY_BYTES_MAX} bytes"));
        }
    }
    Ok(whole)
}

/// What follows from the message by a 2xx.
pub(super) fn events(
    message: &Message<'_>,
    content_type: Option<&HeaderValue>,
    body: Result<Vec<u8>, String>,
) -> Result<Vec<Event>, Failure> {
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let has_events = essence.eq_ignore_ascii_case(EVENTS_TYPE);
    // A promise is a promise, whatever becomes of words that nobody wants to read.
    if !has_events {
        return Ok(Vec::new());
    }
    let wrong = |why: String| Failure::new(FailureKind::Error, "handler.answer", why);
    let body = body.map_err(wrong)?;
    let read: Events = serde_json::from_slice(&body)
        .map_err(|error| wrong(format!("the answer is not the events that its type says: {error}")))?;
    read.events.into_iter().map(|words| event(message, words).map_err(wrong)).collect()
}

fn event(message: &Message<'_>, words: EventWords) -> Result<Event, String> {
    let EventWords { topic, key, headers, content_type, payload, payload_base64 } = words;
    let refused = |why: &str| format!("an event of the answer, for {topic:?}, {why}");
    let (payload, usual) = match (payload, payload_base64) {
        (Some(json), None) => (Bytes::from(json.get().to_owned()), Some("application/json")),
        (None, Some(text)) => {
            let bytes =
                STANDARD.decode(text.as_bytes()).map_err(|_| refused("has no base64 in `payload_base64`"))?;
            (Bytes::from(bytes), None)
        }
        (None, None) => return Err(refused("has neither `payload` nor `payload_base64`")),
        (Some(_), Some(_)) => {
            return Err(refused("has `payload` and `payload_base64`: only one can be meant"));
        }
    };
    let mut event = message.event(topic, payload);
    if let Some(key) = key {
        event = event.with_key(key);
    }
    if let Some(content_type) = content_type.as_deref().or(usual) {
        event = event.with_content_type(content_type);
    }
    for (name, value) in headers {
        event = event.with_header(name, value);
    }
    Ok(event)
}
