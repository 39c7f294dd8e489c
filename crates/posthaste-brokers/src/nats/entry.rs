//! An event as the client's message.
//!
//! `Nats-Msg-Id` is the id and the subject. A stream that takes several subjects remembers ids for all of
//! them together. An event may go to two of these subjects, or to another one when its destination was
//! corrected. With the id alone it would be acknowledged there as a duplicate, and stored nowhere. An event's
//! own header of that name is left out, so that it cannot take another event's place.
//!
//! The client's headers have no order. Some servers look for the first place where `Nats-Msg-Id` stands, and
//! give up when that is inside another header's value. So an event with such a value may be stored twice when
//! it is sent twice.

use super::verdict;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::message::OutboundMessage;
use async_nats::subject::Subject;
use bytes::BytesMut;
use posthaste::sink::{Message, Verdict};
use std::fmt::Write;

/// The header that tells a tombstone from an empty payload.
const TOMBSTONE: HeaderName = HeaderName::from_static("Posthaste-Tombstone");
/// The bytes around the headers: the version and the empty line.
const AROUND_BYTES: usize = "NATS/1.0\r\n\r\n".len();
/// Reply subjects are pieces of larger allocations.
const REPLIES_BYTES: usize = 4_096;

/// Makes the messages of one call.
#[derive(Debug)]
pub(super) struct MessageWriter {
    /// The reply subject, but for the index of the message.
    reply: String,
    replies: BytesMut,
    /// The last subject that was found good. Most messages of a call have the same.
    good: Option<Subject>,
}

impl MessageWriter {
    pub(super) fn new(reply: String) -> Self {
        Self { reply, replies: BytesMut::with_capacity(REPLIES_BYTES), good: None }
    }

    /// The message with the number of bytes that the server counts, or why it cannot travel.
    pub(super) fn write(
        &mut self,
        message: &Message,
        index: usize,
        bytes_max: usize,
    ) -> Result<(OutboundMessage, usize), Verdict> {
        let subject = self.subject(&message.destination)?;
        let headers = headers(message)?;
        let payload = message.payload.clone().unwrap_or_default();
        let bytes = size(&headers) + payload.len();
        if bytes > bytes_max {
            return Err(verdict::too_large(bytes, bytes_max));
        }
        let reply = Some(self.reply(index));
        Ok((OutboundMessage { subject, reply, payload, headers: Some(headers) }, bytes))
    }

    fn subject(&mut self, name: &str) -> Result<Subject, Verdict> {
        if let Some(good) = self.good.as_ref().filter(|good| good.as_str() == name) {
            return Ok(good.clone());
        }
        verdict::check_subject(name).map_err(|why| verdict::bad_subject(name, why))?;
        Ok(self.good.insert(Subject::from(name)).clone())
    }

    fn reply(&mut self, index: usize) -> Subject {
        self.replies.extend_from_slice(self.reply.as_bytes());
        // Writing to a buffer that grows cannot fail.
        let _ = write!(self.replies, "{index:x}");
        Subject::from_utf8(self.replies.split().freeze()).expect("made of text")
    }
}

/// The headers of a message, or why it cannot travel.
fn headers(message: &Message) -> Result<HeaderMap, Verdict> {
    let mut headers = HeaderMap::new();
    let mut bad = None;
    message.each_header(|name, value| match (header_name(name), value.parse::<HeaderValue>()) {
        (Some(known), Ok(value)) if can_travel(name, value.as_str()) => headers.append(known, value),
        _ => bad = Some(verdict::bad_header(name)),
    });
    if message.payload.is_none() {
        headers.insert(TOMBSTONE, "true");
    }
    // It is inserted last, so that it replaces an event's own header of that name.
    headers.insert(NATS_MESSAGE_ID, format!("{}:{}", message.stored.event.id, message.destination));
    bad.map_or(Ok(headers), Err)
}

/// The names that every message has are constants, and need no copy.
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

/// Whether a header can travel. The client takes some that the protocol does not.
fn can_travel(name: &str, value: &str) -> bool {
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    is_name && !value.contains(['\r', '\n'])
}

/// The size of headers as the server counts it, with a line for each value.
fn size(headers: &HeaderMap) -> usize {
    let line = |name: &HeaderName, value: &HeaderValue| {
        AsRef::<[u8]>::as_ref(name).len() + ": ".len() + value.as_str().len() + "\r\n".len()
    };
    let lines = headers.iter().flat_map(|(name, values)| values.iter().map(move |value| line(name, value)));
    AROUND_BYTES + lines.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::event::Event;

    fn message(event: Event) -> Message {
        crate::testing::message("s.x", event)
    }

    /// The headers and the payload.
    fn written(message: &Message) -> (Vec<(String, String)>, Vec<u8>) {
        let (sent, bytes) =
            MessageWriter::new("I.1-".to_owned()).write(message, 0x2f, 1 << 20).expect("written");
        assert_eq!((sent.subject.as_str(), sent.reply.as_deref()), ("s.x", Some("I.1-2f")));
        let headers = sent.headers.expect("headers");
        let pairs = headers.iter().flat_map(|(name, values)| {
            values.iter().map(move |value| (name.to_string(), value.as_str().to_owned()))
        });
        let pairs: Vec<_> = pairs.collect();
        let lines: String = pairs.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        assert_eq!(format!("NATS/1.0\r\n{lines}\r\n").len() + sent.payload.len(), bytes, "as it is counted");
        (pairs, sent.payload.to_vec())
    }

    #[test]
    fn the_id_is_ours_whatever_the_event_says() {
        let event = Event::new("orders.placed", "body").with_key("k: \t\u{1f600}");
        let event = event.with_header("Nats-Msg-Id", "theirs").with_header("x", "a Nats-Msg-Id: b");
        let (headers, payload) = written(&message(event.clone()));
        assert_eq!(headers.iter().filter(|(name, _)| name == "Nats-Msg-Id").count(), 1);
        let of = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert_eq!(of("Nats-Msg-Id"), Some(format!("{}:s.x", event.id).as_str()));
        assert_eq!(of("Message-ID"), Some(event.id.to_string().as_str()));
        assert_eq!(of("key"), Some("k: \t\u{1f600}"));
        assert_eq!(of("x"), Some("a Nats-Msg-Id: b"));
        assert_eq!((of("Posthaste-Tombstone"), payload.as_slice()), (None, b"body".as_slice()));
    }

    #[test]
    fn a_tombstone_says_so_once() {
        let event = Event::tombstone("orders.placed").with_header("Posthaste-Tombstone", "no");
        let (headers, payload) = written(&message(event));
        let said: Vec<_> = headers.iter().filter(|(name, _)| name == "Posthaste-Tombstone").collect();
        assert_eq!((said.len(), said[0].1.as_str(), payload.len()), (1, "true", 0));
    }

    #[test]
    fn what_cannot_travel_is_the_events_own_fault() {
        let code = |message: &Message, most: usize| match MessageWriter::new(String::new())
            .write(message, 0, most)
            .map(drop)
            .expect_err("refused")
        {
            Verdict::Rejected(failure) => failure.code.to_string(),
            other => panic!("{other:?}"),
        };
        let plain = || Event::new("orders.placed", "body");
        for (name, value) in [("a b", "x"), ("a:b", "x"), ("ä", "x"), ("", "x"), ("a", "x\ny"), ("a", "\r")]
        {
            let message = message(plain().with_header(name, value));
            assert_eq!(code(&message, 9_999), "nats.bad_header", "{name:?} {value:?}");
        }
        assert_eq!(code(&message(plain().with_key("k\r\nNats-Msg-Id: x")), 9_999), "nats.bad_header");
        assert_eq!(code(&message(plain()), 20), "nats.too_large");
        let to = |subject: &str| Message { destination: subject.to_owned(), ..message(plain()) };
        for subject in ["", "a b", "a..b", "$JS.API.X", "a\r\nPUB x 0"] {
            assert_eq!(code(&to(subject), 9_999), "nats.bad_subject", "{subject:?}");
        }
    }

    #[test]
    fn replies_are_told_apart() {
        let (mut writer, message) = (MessageWriter::new("I.1-".to_owned()), message(Event::new("t", "")));
        for index in [0, 1, 15, 16, 4_096, usize::MAX] {
            let (sent, _) = writer.write(&message, index, 1 << 20).expect("written");
            assert_eq!(sent.reply.as_deref(), Some(format!("I.1-{index:x}").as_str()));
        }
    }
}
