//! An event as a record.

use super::producers::Record;
use posthaste::envelope;
use posthaste::sink::Message;
use rdkafka::message::{Header, OwnedHeaders};

/// Headers of a message without any of its own.
const HEADERS: usize = 6;

/// What a message looks like to a producer.
pub(super) fn record(message: &Message) -> Record<'_> {
    Record {
        topic: &message.destination,
        key: message.partition_key(),
        payload: message.payload.as_deref(),
        headers: headers(message),
    }
}

fn headers(message: &Message) -> OwnedHeaders {
    let capacity = HEADERS + message.stored.event.headers.len();
    let mut headers = Some(OwnedHeaders::new_with_capacity(capacity));
    message.each_header_for(envelope::KAFKA_BINDING, |key, value| {
        headers = headers.take().map(|headers| headers.insert(Header { key, value: Some(value) }));
    });
    headers.unwrap_or_default()
}
