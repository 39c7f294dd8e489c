//! The event: what a service appends inside its own transaction.
//!
//! Payload bytes pass through untouched (F86): nothing between append and broker parses, reorders or
//! re-encodes them unless a route asks for an envelope. An absent payload is a tombstone, which is not
//! the same as an empty one.
//!
//! Limits are checked twice: at append, where the caller can still do something about it, and again by
//! the relay, because a plain `INSERT` or `COPY` into the outbox table passes no code of ours.

use bytes::Bytes;
use serde::de::{MapAccess, Visitor};
use uuid::Uuid;

/// Microseconds since the Unix epoch, UTC. The only time type in stored and public data.
///
/// Serialized it is a text, RFC 3339: a bare number would not say its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&self.rfc3339())
    }
}

impl Timestamp {
    /// This instant plus a number of microseconds, saturating.
    #[must_use]
    pub fn plus_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// RFC 3339 text in UTC with microseconds, as headers carry it.
    #[must_use]
    pub fn rfc3339(self) -> String {
        let (days, micros) = (self.0.div_euclid(86_400_000_000), self.0.rem_euclid(86_400_000_000));
        let (year, month, day) = civil(days);
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        if !(0..=9999).contains(&year) {
            return format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z");
        }
        // By hand: every message carries one, and the formatting machinery costs several times as much.
        let mut text = String::with_capacity(27);
        for (number, digits, after) in [
            (year, 4, '-'),
            (month, 2, '-'),
            (day, 2, 'T'),
            (hour, 2, ':'),
            (minute, 2, ':'),
            (second, 2, '.'),
            (fraction, 6, 'Z'),
        ] {
            for place in (0..digits).rev() {
                let digit = (number / 10_i64.pow(place) % 10) as u8;
                text.push(char::from(b'0' + digit));
            }
            text.push(after);
        }
        text
    }

    /// Seconds from `earlier` to `self`; negative when `earlier` is later.
    #[must_use]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        (self.0 - earlier.0) as f64 / 1e6
    }
}

/// Year, month and day of a number of days since 1970-01-01, in the proleptic Gregorian calendar: years
/// are counted from March, so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The header that carries the event's type; it defaults to the topic.
pub const TYPE_HEADER: &str = "type";

/// Names that Posthaste writes itself on the way to a broker. An event may carry `type`; the others
/// are refused at append, so that a consumer can trust them.
pub const RESERVED_HEADERS: [&str; 5] = ["message-id", "key", "time", "source", "posthaste-tombstone"];

/// Header names and values, in the order they were given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a header, replacing one of the same name.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some(slot) => slot.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Name and value pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The stored form: a JSON object of strings, or `None` when there are no headers.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let map: serde_json::Map<String, serde_json::Value> =
            self.0.iter().map(|(n, v)| (n.clone(), v.clone().into())).collect();
        Some(serde_json::Value::Object(map).to_string())
    }

    /// Reads the stored form. Anything but an object of strings is a defect of that event, told in words.
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Headers;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object whose values are strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
                let mut headers = Headers::new();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    headers.set(name, value);
                }
                Ok(headers)
            }
        }
        let mut reader = serde_json::Deserializer::from_slice(text);
        serde::Deserializer::deserialize_map(&mut reader, Pairs)
            .map_err(|error| format!("headers are not an object of strings: {error}"))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut headers = Self::new();
        for (name, value) in pairs {
            headers.set(name, value);
        }
        headers
    }
}

/// An event as its author makes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Identity, unique for ever: the broker's dedup slot and the consumer's inbox key.
    pub id: Uuid,
    /// The address that routes match on.
    pub topic: String,
    /// The unit of order. Events without a key have no order among each other.
    pub key: Option<String>,
    /// Metadata, `traceparent` among it.
    pub headers: Headers,
    /// Media type of the payload, as the author declares it.
    pub content_type: Option<String>,
    /// The bytes, untouched. `None` is a tombstone.
    pub payload: Option<Bytes>,
    /// Not before this instant. `None`: as soon as possible.
    pub deliver_at: Option<Timestamp>,
    /// Makes a second append of the same `(topic, idempotency_key)` a no-op for a declared time.
    pub idempotency_key: Option<String>,
}

impl Event {
    /// An event with a fresh UUIDv7 and these payload bytes.
    #[must_use]
    pub fn new(topic: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { payload: Some(payload.into()), ..Self::tombstone(topic) }
    }

    /// An event with a JSON payload: the content type is set to `application/json`.
    pub fn json<T: serde::Serialize>(topic: impl Into<String>, value: &T) -> Result<Self, serde_json::Error> {
        let mut event = Self::new(topic, serde_json::to_vec(value)?);
        event.content_type = Some("application/json".to_owned());
        Ok(event)
    }

    /// An event without a payload, which tells a compacting broker to forget the key.
    #[must_use]
    pub fn tombstone(topic: impl Into<String>) -> Self {
        Self {
            id: Uuid::now_v7(),
            topic: topic.into(),
            key: None,
            headers: Headers::new(),
            content_type: None,
            payload: None,
            deliver_at: None,
            idempotency_key: None,
        }
    }

    /// Sets the key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: Uuid) -> Self {
        self.id = id;
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.set(name, value);
        self
    }

    /// Sets the content type.
    #[must_use]
    pub fn with_content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Sets the idempotency key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Holds the event back until this instant, by the database's clock.
    #[must_use]
    pub fn deliver_at(mut self, at: Timestamp) -> Self {
        self.deliver_at = Some(at);
        self
    }

    /// The event's type: the `type` header, or the topic.
    #[must_use]
    pub fn event_type(&self) -> &str {
        self.headers.get(TYPE_HEADER).unwrap_or(&self.topic)
    }
}

/// What an append accepts. The same limits stand in the SQL function and are checked again by the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest topic, in bytes. 255 fits every broker's address.
    pub topic_bytes_max: usize,
    /// Longest key, in bytes. Room for composite keys; far below any broker's record limit.
    pub key_bytes_max: usize,
    /// Largest payload, in bytes. 1 MiB is the default limit of Kafka and NATS too.
    pub payload_bytes_max: usize,
    /// All header names and values together, in bytes.
    pub header_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            topic_bytes_max: 255,
            key_bytes_max: 1024,
            payload_bytes_max: 1 << 20,
            header_bytes_max: 16 << 10,
        }
    }
}

/// Why an event was refused. The text names the field and the limit, never the payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The topic is the empty string.
    #[error("topic is empty")]
    TopicEmpty,
    /// The topic is too long.
    #[error("topic has {bytes} bytes, at most {max} are allowed")]
    TopicTooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The topic holds a control character or white space, which no broker's address takes.
    #[error("topic holds white space or a control character")]
    TopicIllegal,
    /// The key is the empty string: leave it out instead.
    #[error("key is empty; leave it out for an event without a key")]
    KeyEmpty,
    /// The key is too long.
    #[error("key has {bytes} bytes, at most {max} are allowed")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The key holds a line break or a zero byte, which cannot travel in a header.
    #[error("key holds a line break or a zero byte")]
    KeyIllegal,
    /// The content type cannot travel in a header.
    #[error("content type must have 1 to 255 bytes without line breaks")]
    ContentType,
    /// The payload is too large.
    #[error("payload has {bytes} bytes, at most {max} are allowed")]
    PayloadTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A header cannot travel.
    #[error("invalid headers: {0}")]
    Headers(String),
    /// The idempotency key is empty or too long.
    #[error("idempotency key must have 1 to 255 bytes")]
    IdempotencyKey,
}

impl Limits {
    /// Checks an event against the limits.
    pub fn check(&self, event: &Event) -> Result<(), EventError> {
        self.check_topic(&event.topic)?;
        if let Some(key) = &event.key {
            self.check_key(key)?;
        }
        if let Some(payload) = &event.payload
            && payload.len() > self.payload_bytes_max
        {
            return Err(EventError::PayloadTooLarge { bytes: payload.len(), max: self.payload_bytes_max });
        }
        let unfit = |text: &String| text.is_empty() || text.len() > 255 || text.contains(['\r', '\n', '\0']);
        if event.content_type.as_ref().is_some_and(unfit) {
            return Err(EventError::ContentType);
        }
        if event.idempotency_key.as_ref().is_some_and(|key| key.is_empty() || key.len() > 255) {
            return Err(EventError::IdempotencyKey);
        }
        if event.headers.is_empty() { Ok(()) } else { self.check_headers(&event.headers) }
    }

    fn check_topic(&self, topic: &str) -> Result<(), EventError> {
        if topic.is_empty() {
            return Err(EventError::TopicEmpty);
        }
        if topic.len() > self.topic_bytes_max {
            return Err(EventError::TopicTooLong { bytes: topic.len(), max: self.topic_bytes_max });
        }
        // ASCII first: it is the usual case and costs one comparison a byte.
        let illegal = |c: char| c.is_control() || c.is_whitespace();
        if topic.bytes().any(|b| b <= b' ' || b >= 0x7f) && topic.chars().any(illegal) {
            return Err(EventError::TopicIllegal);
        }
        Ok(())
    }

    fn check_key(&self, key: &str) -> Result<(), EventError> {
        if key.is_empty() {
            return Err(EventError::KeyEmpty);
        }
        if key.len() > self.key_bytes_max {
            return Err(EventError::KeyTooLong { bytes: key.len(), max: self.key_bytes_max });
        }
        if key.bytes().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
            return Err(EventError::KeyIllegal);
        }
        Ok(())
    }

    fn check_headers(&self, headers: &Headers) -> Result<(), EventError> {
        let mut bytes = 0;
        for (name, value) in headers.iter() {
            bytes += name.len() + value.len();
            if !is_header_name(name) {
                return Err(EventError::Headers(format!(
                    "name {name:?} must be made of letters, digits and -_.~ and be at most 128 bytes long"
                )));
            }
            if RESERVED_HEADERS.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
                return Err(EventError::Headers(format!("name {name:?} is written by Posthaste itself")));
            }
            if value.contains(['\r', '\n', '\0']) {
                return Err(EventError::Headers(format!(
                    "value of {name:?} holds a line break or a zero byte"
                )));
            }
        }
        if bytes > self.header_bytes_max {
            return Err(EventError::Headers(format!(
                "{bytes} bytes in all, at most {} are allowed",
                self.header_bytes_max
            )));
        }
        Ok(())
    }
}

fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~'))
}

/// An event as a store hands it to the relay: committed, numbered, and possibly defective.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    /// Its number in the log. Order within a key is the order of these.
    pub seq: i64,
    /// The hash slot of its key, fixed at append.
    pub slot: i16,
    /// When it was appended, by the database's clock.
    pub appended_at: Timestamp,
    /// The event.
    pub event: Event,
    /// What is wrong with it beyond repair. Such an event goes to the dead letters; it never stops the
    /// lane.
    pub defect: Option<Defect>,
}

/// What a store found wrong with a row before anybody looked at the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Defect {
    /// The row cannot be an event: headers that are no object of strings. In words.
    Row(String),
    /// It is above a limit, so far that it was not even loaded.
    Limit(EventError),
}

impl StoredEvent {
    /// Bytes this event holds in memory, roughly: what the relay's byte bounds count.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let event = &self.event;
        event.payload.as_ref().map_or(0, Bytes::len)
            + event.topic.len()
            + event.key.as_ref().map_or(0, String::len)
            + event.headers.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>()
            + 200
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(event: &Event) -> Result<(), EventError> {
        Limits::default().check(event)
    }

    #[test]
    fn a_plain_event_passes_and_its_type_is_the_topic() {
        let event = Event::new("orders.placed", "x").with_key("42");
        assert_eq!(check(&event), Ok(()));
        assert_eq!(event.event_type(), "orders.placed");
        assert_eq!(event.with_header("type", "OrderPlaced").event_type(), "OrderPlaced");
    }

    #[test]
    fn timestamps_print_as_rfc3339() {
        assert_eq!(Timestamp(0).rfc3339(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(Timestamp(1_709_210_096_000_001).rfc3339(), "2024-02-29T12:34:56.000001Z");
        assert_eq!(Timestamp(-1).rfc3339(), "1969-12-31T23:59:59.999999Z");
    }

    #[test]
    fn each_limit_has_its_own_error() {
        assert_eq!(check(&Event::new("", "x")), Err(EventError::TopicEmpty));
        assert_eq!(check(&Event::new("a b", "x")), Err(EventError::TopicIllegal));
        assert_eq!(check(&Event::new("a\u{a0}b", "x")), Err(EventError::TopicIllegal));
        assert_eq!(check(&Event::new("grün", "x")), Ok(()));
        assert!(matches!(check(&Event::new("t".repeat(256), "x")), Err(EventError::TopicTooLong { .. })));
        assert_eq!(check(&Event::new("t", "x").with_key("")), Err(EventError::KeyEmpty));
        assert_eq!(check(&Event::new("t", "x").with_key("a\nb")), Err(EventError::KeyIllegal));
        assert_eq!(check(&Event::new("t", "x").with_content_type("a\nb")), Err(EventError::ContentType));
        assert!(matches!(
            check(&Event::new("t", vec![0; (1 << 20) + 1])),
            Err(EventError::PayloadTooLarge { .. })
        ));
        assert!(matches!(check(&Event::new("t", "x").with_header("a b", "c")), Err(EventError::Headers(_))));
        assert!(matches!(
            check(&Event::new("t", "x").with_header("Message-ID", "c")),
            Err(EventError::Headers(_))
        ));
        assert!(matches!(check(&Event::new("t", "x").with_header("a", "b\nc")), Err(EventError::Headers(_))));
        assert_eq!(check(&Event::new("t", "x").with_idempotency_key("")), Err(EventError::IdempotencyKey));
    }

    #[test]
    fn headers_survive_their_stored_form_and_refuse_anything_else() {
        let headers: Headers = [("traceparent", "00-ab"), ("x", "\"q\"")].into_iter().collect();
        let json = headers.to_json().unwrap_or_default();
        assert_eq!(Headers::from_json(json.as_bytes()), Ok(headers));
        for bad in ["[1]", "3", "{\"a\":1}", "{", "\"s\""] {
            assert!(Headers::from_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
