//! An event as the client's message.
//!
//! `Nats-Msg-Id` is the id and the subject. A stream that takes several subjects remembers ids for all of them together:
//! with the id alone, an event that goes to two of them, or to another one when its destination was corrected, would be
//! acknowledged as a duplicate there and stored nowhere.
//!
//! It is the first header. A server looks for the first place where `Nats-Msg-Id` stands, and some give up when
//! that place is inside another header's value; and an event's own header of that name is left out, so it can neither
//! take another event's place nor give its own away.
//!
//! The client's map of headers has no order, and costs four allocations a header. So all headers travel in it as the value
//! of the first one, line breaks included: they are checked here, and written as they are to the socket.

use super::verdict;
use async_nats::header::{HeaderMap, HeaderValue, NATS_MESSAGE_ID};
use async_nats::message::OutboundMessage;
use async_nats::subject::Subject;
use bytes::BytesMut;
use posthaste::sink::{Message, Verdict};
use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, Error};
use std::fmt::Write;
use uuid::Uuid;

const MESSAGE_ID: &str = "Nats-Msg-Id";
/// What tells a tombstone from an empty payload.
const TOMBSTONE: &str = "Posthaste-Tombstone";
/// Reply subjects are pieces of larger allocations.
const REPLIES_BYTES: usize = 4_096;

/// Makes the messages of one call.
#[derive(Debug)]
pub(super) struct Writer {
    /// Where answers go, but for the index of the message.
    reply: String,
    replies: BytesMut,
    /// The first header's value, and the lines of the others.
    head: String,
    /// The last subject that was found good: most messages of a call have the same.
    good: Option<Subject>,
}

impl Writer {
    pub(super) fn new(reply: String) -> Self {
        Self { reply, replies: BytesMut::with_capacity(REPLIES_BYTES), head: String::new(), good: None }
    }

    /// The message, and how many bytes of it the server counts; or why it cannot travel.
    pub(super) fn write(
        &mut self,
        message: &Message,
        index: usize,
        bytes_max: usize,
    ) -> Result<(OutboundMessage, usize), Verdict> {
        let subject = self.subject(&message.destination)?;
        self.write_head(message)?;
        let payload = message.payload.clone().unwrap_or_default();
        let bytes = "NATS/1.0\r\n: \r\n\r\n".len() + MESSAGE_ID.len() + self.head.len() + payload.len();
        if bytes > bytes_max {
            return Err(verdict::too_large(bytes, bytes_max));
        }
        let (reply, headers) = (Some(self.reply(index)), Some(headers(&self.head)));
        Ok((OutboundMessage { subject, reply, payload, headers }, bytes))
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

    fn write_head(&mut self, message: &Message) -> Result<(), Verdict> {
        let (head, mut bad) = (&mut self.head, None);
        head.clear();
        let mut id = Uuid::encode_buffer();
        head.push_str(message.stored.event.id.hyphenated().encode_lower(&mut id));
        head.push(':');
        head.push_str(&message.destination);
        let is_tombstone = message.payload.is_none();
        if is_tombstone {
            header(TOMBSTONE, "true", head);
        }
        message.each_header(|name, value| {
            if !can_travel(name, value) {
                bad = Some(verdict::bad_header(name));
            } else if name != MESSAGE_ID && !(is_tombstone && name == TOMBSTONE) {
                header(name, value, head);
            }
        });
        bad.map_or(Ok(()), Err)
    }
}

fn header(name: &str, value: &str, head: &mut String) {
    for part in ["\r\n", name, ": ", value] {
        head.push_str(part);
    }
}

fn can_travel(name: &str, value: &str) -> bool {
    // Without a way out in the middle: so the compiler makes a few wide comparisons of it.
    let bad_name = name.bytes().fold(name.is_empty(), |bad, b| bad | !b.is_ascii_graphic() | (b == b':'));
    let bad_value = value.bytes().fold(false, |bad, b| bad | (b == b'\r') | (b == b'\n'));
    !bad_name && !bad_value
}

/// The client refuses line breaks in values, but for those that it reads by way of serde.
fn headers(head: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    match HeaderValue::deserialize(BorrowedStrDeserializer::<Error>::new(head)) {
        Ok(head) => headers.insert(NATS_MESSAGE_ID, head),
        Err(_) => spread(head, &mut headers),
    }
    headers
}

/// Each header by itself, in any order: for a client that refuses line breaks everywhere.
fn spread(head: &str, headers: &mut HeaderMap) {
    let mut lines = head.split("\r\n");
    headers.insert(NATS_MESSAGE_ID, lines.next().unwrap_or_default());
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        headers.append(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::event::{Event, StoredEvent, Timestamp};

    fn message(event: Event) -> Message {
        let payload = event.payload.clone();
        let appended_at = Timestamp(1_700_000_000_000_000);
        Message {
            stored: StoredEvent { seq: 1, slot: 0, appended_at, event, defect: None },
            destination: "s.x".to_owned(),
            payload,
            ordered: true,
            source: "shop".into(),
            envelope: Default::default(),
            partition_key: None,
        }
    }

    /// The headers in order, as the client writes them, and the payload.
    fn written(message: &Message) -> (Vec<(String, String)>, Vec<u8>) {
        let (sent, bytes) = Writer::new("I.1-".to_owned()).write(message, 0x2f, 1 << 20).expect("written");
        assert_eq!((sent.subject.as_str(), sent.reply.as_deref()), ("s.x", Some("I.1-2f")));
        let headers = sent.headers.expect("headers");
        let all: Vec<_> =
            headers.iter().flat_map(|(name, values)| values.iter().map(move |v| (name, v))).collect();
        let [(name, value)] = all[..] else { panic!("{all:?}") };
        let text = format!("NATS/1.0\r\n{name}: {value}\r\n\r\n");
        assert_eq!(text.len() + sent.payload.len(), bytes, "as the server counts");
        let pair =
            |line: &str| line.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a pair");
        let lines = text.strip_prefix("NATS/1.0\r\n").and_then(|text| text.strip_suffix("\r\n\r\n"));
        (lines.expect("headers").split("\r\n").map(pair).collect(), sent.payload.to_vec())
    }

    #[test]
    fn the_id_is_first_and_alone_whatever_the_event_says() {
        let event = Event::new("orders.placed", "body").with_key("k: \t\u{1f600}");
        let event = event.with_header("Nats-Msg-Id", "theirs").with_header("x", "a Nats-Msg-Id: b");
        let (headers, payload) = written(&message(event.clone()));
        assert_eq!(headers[0], ("Nats-Msg-Id".to_owned(), format!("{}:s.x", event.id)));
        assert_eq!(headers[1], ("Message-ID".to_owned(), event.id.to_string()));
        assert_eq!(headers.iter().filter(|(name, _)| name == "Nats-Msg-Id").count(), 1);
        let of = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
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
        let code = |message: &Message, most: usize| match Writer::new(String::new())
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
        let (mut writer, message) = (Writer::new("I.1-".to_owned()), message(Event::new("t", "")));
        for index in [0, 1, 15, 16, 4_096, usize::MAX] {
            let (sent, _) = writer.write(&message, index, 1 << 20).expect("written");
            assert_eq!(sent.reply.as_deref(), Some(format!("I.1-{index:x}").as_str()));
        }
    }

    #[test]
    fn a_strict_client_gets_header_by_header() {
        let mut headers = HeaderMap::new();
        spread("1:s\r\na: b: c\r\na: d", &mut headers);
        let all = |name: &str| headers.get_all(name).map(|value| value.to_string()).collect::<Vec<_>>();
        assert_eq!(
            (all("Nats-Msg-Id"), all("a")),
            (vec!["1:s".to_owned()], vec!["b: c".to_owned(), "d".to_owned()])
        );
    }
}
