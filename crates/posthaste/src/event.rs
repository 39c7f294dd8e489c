//! The event: what a service appends inside its own transaction.
//!
//! Payload bytes pass through untouched (F86): nothing between append and broker parses, reorders or
//! re-encodes them unless a route asks for an envelope. An absent payload is a tombstone, which is not
//! the same as an empty one.
//!
//! Limits are checked twice: at append, where the caller can still do something about it, and again by
//! the relay, because a plain `INSERT` or `COPY` into the outbox table passes no code of ours.

mod headers;
mod limits;
mod timestamp;

pub use headers::Headers;
pub use limits::{EventError, Limits};
pub(crate) use limits::{is_header_name, is_header_value};
pub use timestamp::Timestamp;

use bytes::Bytes;
use uuid::Uuid;

/// The header that carries the event's type; it defaults to the topic.
pub const TYPE_HEADER: &str = "type";

/// The header that carries the event's id.
pub const MESSAGE_ID_HEADER: &str = "Message-ID";
/// The header that carries the key.
pub const KEY_HEADER: &str = "key";
/// The header that says when the event was appended.
pub const TIME_HEADER: &str = "time";
/// The header that names the service.
pub const SOURCE_HEADER: &str = "source";
/// The header of a tombstone, where a message without a body could be an empty payload as well.
pub const TOMBSTONE_HEADER: &str = "posthaste-tombstone";

/// Names that Posthaste writes itself on the way to a broker. An event may carry `type`; these are refused at
/// append in any case of their letters, so that a consumer can trust them.
pub const RESERVED_HEADERS: [&str; 5] =
    [MESSAGE_ID_HEADER, KEY_HEADER, TIME_HEADER, SOURCE_HEADER, TOMBSTONE_HEADER];

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
        Self::bare(Uuid::now_v7(), topic)
    }

    /// An event of which nothing but its id and topic is known yet.
    #[must_use]
    pub fn bare(id: Uuid, topic: impl Into<String>) -> Self {
        Self {
            id,
            topic: topic.into(),
            key: None,
            headers: Headers::new(),
            content_type: None,
            payload: None,
            deliver_at: None,
            idempotency_key: None,
        }
    }

    /// Sets the key: a text, a number, a UUID, or whatever else can be displayed.
    #[must_use]
    pub fn with_key(mut self, key: impl std::fmt::Display) -> Self {
        self.key = Some(key.to_string());
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
