//! Messages on their way to the writer, packed: one buffer for all small parts of a call.
//!
//! A message has a topic, an id, a key and some headers. As strings of their own that is a dozen allocations
//! for each, made on one thread and given back on another, and they weigh more than the payload. So they are
//! encoded once, where the call is made, into one buffer; an entry holds places in it. Payloads are shared,
//! not copied.

use super::publish::Outgoing;
use bytes::Bytes;
use posthaste::sink::Message;
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
use uuid::Uuid;

/// Where a part lies in the buffer: from, to.
type ByteRange = (usize, usize);

/// The messages of one call.
#[derive(Debug, Default)]
pub(super) struct Pack {
    buffer: Vec<u8>,
    entries: Vec<PackedEntry>,
}

#[derive(Debug)]
struct PackedEntry {
    topic: ByteRange,
    id: Option<Id>,
    key: Option<ByteRange>,
    headers: Option<ByteRange>,
    payload: Option<Bytes>,
}

/// 16 bytes where an id is a UUID in its usual form, text otherwise. Only the usual form, so that what is
/// read is what was written.
#[derive(Debug)]
enum Id {
    Uuid(Uuid),
    Text(ByteRange),
}

/// A packed message.
pub(super) struct Packed<'a> {
    pub(super) topic: &'a str,
    pub(super) id: Option<IdRef<'a>>,
    pub(super) key: Option<&'a [u8]>,
    /// A JSON array of `[name, value]`.
    pub(super) headers: Option<Text<'a>>,
    pub(super) payload: Option<&'a [u8]>,
}

/// Bytes that are valid UTF-8, bound as text.
#[derive(Clone, Copy)]
pub(super) struct Text<'a>(&'a [u8]);

impl ToSql for Text<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}

/// An id as it is stored.
#[derive(Clone, Copy)]
pub(super) enum IdRef<'a> {
    Uuid(&'a Uuid),
    Text(&'a [u8]),
}

impl ToSql for IdRef<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Uuid(id) => ValueRef::Blob(id.as_bytes()),
            Self::Text(text) => ValueRef::Text(text),
        }))
    }
}

impl IdRef<'_> {
    /// Calls with the id's text.
    pub(super) fn with_text<T>(self, then: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Uuid(id) => then(id.hyphenated().encode_lower(&mut Uuid::encode_buffer()).as_bytes()),
            Self::Text(text) => then(text),
        }
    }
}

impl Pack {
    /// Adds a message of the relay. Id and key have columns of their own.
    pub(super) fn push(&mut self, message: &Message) {
        let topic = self.topic(&message.destination);
        let key = message.stored.event.key.as_ref().map(|key| self.put(key.as_bytes()));
        let mut headers = Headers::begin(&mut self.buffer);
        message.each_header(|name, value| {
            if name != "Message-ID" && name != "key" {
                headers.add(name, value);
            }
        });
        let headers = headers.end();
        let id = Some(Id::Uuid(message.stored.event.id));
        self.entries.push(PackedEntry { topic, id, key, headers, payload: message.payload.clone() });
    }

    /// Adds a message of anybody.
    pub(super) fn push_outgoing(&mut self, message: &Outgoing) {
        let topic = self.topic(&message.topic);
        let id = message.id.as_deref().map(|text| self.id(text));
        let key = message.key.as_ref().map(|key| self.put(key));
        let mut headers = Headers::begin(&mut self.buffer);
        message.headers.iter().for_each(|(name, value)| headers.add(name, value));
        let headers = headers.end();
        self.entries.push(PackedEntry { topic, id, key, headers, payload: message.payload.clone() });
    }

    fn put(&mut self, bytes: &[u8]) -> ByteRange {
        let from = self.buffer.len();
        self.buffer.extend_from_slice(bytes);
        (from, self.buffer.len())
    }

    /// Most calls have one topic: it is there once.
    fn topic(&mut self, topic: &str) -> ByteRange {
        let last = self.entries.last().map(|entry| entry.topic);
        match last.filter(|place| self.part(*place) == topic.as_bytes()) {
            Some(place) => place,
            None => self.put(topic.as_bytes()),
        }
    }

    fn id(&mut self, text: &str) -> Id {
        match Uuid::try_parse(text) {
            Ok(id) if id.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text => Id::Uuid(id),
            _ => Id::Text(self.put(text.as_bytes())),
        }
    }

    fn part(&self, (from, to): ByteRange) -> &[u8] {
        // Places are made by `put` and `Headers` alone, and nothing is ever taken away.
        &self.buffer[from..to]
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Packed<'_>> {
        self.entries.iter().map(|entry| Packed {
            // It was a str when it was put there.
            topic: std::str::from_utf8(self.part(entry.topic)).unwrap_or_default(),
            id: entry.id.as_ref().map(|id| match id {
                Id::Uuid(id) => IdRef::Uuid(id),
                Id::Text(place) => IdRef::Text(self.part(*place)),
            }),
            key: entry.key.map(|place| self.part(place)),
            headers: entry.headers.map(|place| Text(self.part(place))),
            payload: entry.payload.as_deref(),
        })
    }
}

/// Headers that are being written.
struct Headers<'a> {
    buffer: &'a mut Vec<u8>,
    from: usize,
}

impl<'a> Headers<'a> {
    fn begin(buffer: &'a mut Vec<u8>) -> Self {
        let from = buffer.len();
        Self { buffer, from }
    }

    fn add(&mut self, name: &str, value: &str) {
        self.buffer.push(if self.buffer.len() == self.from { b'[' } else { b',' });
        // A pair of texts always serialises, and memory takes every write.
        let _ = serde_json::to_writer(&mut *self.buffer, &(name, value));
    }

    fn end(self) -> Option<ByteRange> {
        if self.buffer.len() == self.from {
            return None;
        }
        self.buffer.push(b']');
        Some((self.from, self.buffer.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_messages_are_read_as_they_were_packed(
            given in prop::collection::vec(
                (
                    "[ab]{0,2}",
                    prop::option::of("\\PC{0,40}"),
                    prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
                    prop::collection::vec(("\\PC{0,9}", "\\PC{0,9}"), 0..4),
                ),
                0..6,
            )
        ) {
            let mut pack = Pack::default();
            for (topic, id, key, headers) in given.clone() {
                let key = key.map(Bytes::from);
                pack.push_outgoing(&Outgoing { topic, id, key, headers, payload: None });
            }
            prop_assert_eq!(pack.len(), given.len());
            for (packed, (topic, id, key, headers)) in pack.iter().zip(&given) {
                let read: Result<Vec<(String, String)>, _> = serde_json::from_slice(packed.headers.map_or(b"[]", |text| text.0));
                prop_assert_eq!((packed.topic, packed.key), (topic.as_str(), key.as_deref()));
                prop_assert_eq!(packed.id.map(|id| id.with_text(<[u8]>::to_vec)), id.clone().map(String::into_bytes));
                prop_assert_eq!(&read.expect("headers are JSON"), headers);
            }
        }
    }

    #[test]
    fn what_is_packed_is_what_is_read() {
        let usual = "018f3c5e-1d2a-7c3b-9e4f-0123456789ab";
        let message = |topic: &str, id: Option<&str>, headers: &[(&str, &str)]| Outgoing {
            topic: topic.to_owned(),
            id: id.map(str::to_owned),
            key: Some(Bytes::from_static(b"k")),
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            payload: Some(Bytes::from_static(b"x")),
        };
        let mut pack = Pack::default();
        pack.push_outgoing(&message("a", Some(usual), &[("n", "\"v\""), ("m", "")]));
        pack.push_outgoing(&message("a", Some(&usual.to_uppercase()), &[]));
        pack.push_outgoing(&message("b", None, &[]));
        let read: Vec<_> = pack
            .iter()
            .map(|packed| {
                let is_uuid = packed.id.map(|id| matches!(id, IdRef::Uuid(_)));
                let headers = packed.headers.map(|text| String::from_utf8_lossy(text.0).into_owned());
                (packed.topic, is_uuid, packed.key, headers, packed.payload)
            })
            .collect();
        let (key, payload) = (Some(&b"k"[..]), Some(&b"x"[..]));
        assert_eq!(
            read,
            [
                ("a", Some(true), key, Some(r#"[["n","\"v\""],["m",""]]"#.to_owned()), payload),
                ("a", Some(false), key, None, payload),
                ("b", None, key, None, payload),
            ]
        );
        let text = pack.iter().next().and_then(|packed| packed.id).map(|id| id.with_text(<[u8]>::to_vec));
        assert_eq!(text.as_deref(), Some(usual.as_bytes()));
    }
}
