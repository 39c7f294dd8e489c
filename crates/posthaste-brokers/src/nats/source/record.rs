//! A message of a stream as a delivery.
//!
//! It is read as the sink writes it: the id is the header `Message-ID`, the key is the header `key`, and an
//! empty payload with `Posthaste-Tombstone` is none. A foreign message is known by its `Nats-Msg-Id`, which
//! is what the stream drops duplicates by.

use async_nats::header::{HeaderMap, NATS_MESSAGE_ID};
use async_nats::jetstream::Message;
use async_nats::jetstream::message::Info;
use bytes::Bytes;
use posthaste::Timestamp;
use posthaste::source::{Delivery, Partition, Received, Ticket};

/// The header that tells a tombstone from an empty payload.
const TOMBSTONE: &str = "Posthaste-Tombstone";

pub(super) fn delivery(partition: &Partition, message: &Message, info: &Info<'_>) -> Delivery {
    let position = i64::try_from(info.stream_sequence).unwrap_or(i64::MAX);
    let micros = i64::try_from(info.published.unix_timestamp_nanos().div_euclid(1_000)).unwrap_or(i64::MAX);
    Delivery {
        ticket: Ticket { partition: partition.clone(), epoch: 0, number: position },
        position: Some(position),
        redelivery: None,
        published_at: Some(Timestamp(micros).clamp(Timestamp::FIRST, Timestamp::LAST)),
        address: Some(message.subject.to_string()),
        message: received(message.headers.as_ref(), &message.payload),
    }
}

fn received(headers: Option<&HeaderMap>, payload: &Bytes) -> Received {
    let mut message = Received { payload: Some(payload.clone()), ..Received::default() };
    for (name, values) in headers.into_iter().flat_map(HeaderMap::iter) {
        for value in values {
            let value = Bytes::copy_from_slice(value.as_str().as_bytes());
            message.headers.push((name.to_string(), value));
        }
    }
    let is_tombstone = payload.is_empty() && message.header(TOMBSTONE) == Some("true");
    if is_tombstone {
        message.payload = None;
        message.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(TOMBSTONE));
    }
    let dedup: &str = NATS_MESSAGE_ID.as_ref();
    message.id = message.header("Message-ID").or_else(|| message.header(dedup)).map(str::to_owned);
    message.key = message.header("key").map(|key| Bytes::copy_from_slice(key.as_bytes()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)], payload: &'static [u8]) -> Received {
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| map.append(*name, *value));
        received(Some(&map), &Bytes::from_static(payload))
    }

    #[test]
    fn it_is_read_as_the_sink_writes_it() {
        let message =
            read(&[("Message-ID", "e1"), ("Nats-Msg-Id", "e1:s.x"), ("key", "k"), ("type", "T")], b"body");
        assert_eq!((message.id.as_deref(), message.key.as_deref()), (Some("e1"), Some(&b"k"[..])));
        assert_eq!((message.event_type(), message.payload.as_deref()), (Some("T"), Some(&b"body"[..])));
        let tombstone = read(&[("Posthaste-Tombstone", "true"), ("key", "k")], b"");
        assert_eq!((tombstone.payload, tombstone.headers.len()), (None, 1));
        let text = read(&[("Posthaste-Tombstone", "true")], b"x");
        assert_eq!(text.payload.as_deref(), Some(&b"x"[..]), "a payload is a payload");
    }

    #[test]
    fn a_foreign_message_is_known_by_what_its_stream_knows_it_by() {
        assert_eq!(read(&[("Nats-Msg-Id", "order-7")], b"").id.as_deref(), Some("order-7"));
        let bare = received(None, &Bytes::new());
        assert_eq!((bare.id, bare.key, bare.payload.as_deref()), (None, None, Some(&b""[..])));
    }
}
