//! Limits: what an append accepts, and why an event is refused.

use super::{Event, Headers, RESERVED_HEADERS};

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
            if !is_header_value(value) {
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

pub(crate) fn is_header_value(value: &str) -> bool {
    !value.contains(['\r', '\n', '\0'])
}

pub(crate) fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~'))
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
}
