//! What waits and what is dead, by cause.
//!
//! Ten thousand letters are one story if one thing went wrong. People look at causes first, act on a cause,
//! and open single events when they must.

use super::history::History;
use crate::event::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;

/// A cause's number as people and programs see it: 16 hex digits. As a number it would not survive
/// JavaScript.
#[must_use]
pub fn fingerprint_text(fingerprint: i64) -> String {
    format!("{:016x}", fingerprint.cast_unsigned())
}

/// The number of a cause that somebody gave.
#[must_use]
pub fn fingerprint_of_text(text: &str) -> Option<i64> {
    let is_hex = (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
    Some(number.cast_signed())
}

pub(crate) fn hex<S: Serializer>(fingerprint: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&fingerprint_text(*fingerprint))
}

/// The same where there may be none.
pub(crate) mod optional_hex {
    use super::{fingerprint_of_text, fingerprint_text};
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        fingerprint: &Option<i64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        fingerprint.map(fingerprint_text).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<i64>, D::Error> {
        let Some(text) = Option::<String>::deserialize(input)? else { return Ok(None) };
        let number = fingerprint_of_text(&text);
        number.map(Some).ok_or_else(|| D::Error::custom("a fingerprint is 16 hex digits"))
    }
}

/// Dead letters of one cause.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeadCause {
    /// Its number; `None` for letters that an older relay wrote.
    #[serde(serialize_with = "optional_hex::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub fingerprint: Option<i64>,
    /// The sink.
    pub sink: String,
    /// How many.
    pub count: i64,
    /// Class of the error.
    pub error_class: String,
    /// Code of the error.
    pub error_code: String,
    /// The error of the last of them.
    pub error: String,
    /// The first of them.
    pub first_at: Timestamp,
    /// The last of them.
    pub last_at: Timestamp,
    /// How many hold their key.
    pub holding: i64,
    /// Topics of the last of them, a few.
    pub topics: Vec<String>,
    /// The last of them, to look at.
    pub id: Uuid,
}

/// Why letters died.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeadCauses {
    /// The most frequent first.
    pub causes: Vec<DeadCause>,
    /// How many dead rows were looked at, the newest, where causes are found at reading; `None`: all.
    pub looked: Option<u64>,
}

/// Which deferred events. An empty filter is refused for acts: `all` says it out loud.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeferredFilter {
    /// Everything, said out loud.
    pub all: bool,
    /// These ids, at most 1000.
    pub ids: Vec<Uuid>,
    /// Of this sink.
    pub sink: Option<String>,
    /// Topic pattern, `*` for any run.
    pub topic: Option<String>,
    /// Of this key.
    pub key: Option<String>,
    /// For this destination.
    pub destination: Option<String>,
    /// That wait for this reason.
    pub reason: Option<String>,
    /// With this error code.
    pub code: Option<String>,
}

impl DeferredFilter {
    /// Whether it names nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let texts = [&self.sink, &self.topic, &self.key, &self.destination, &self.reason, &self.code];
        !self.all && self.ids.is_empty() && texts.iter().all(|text| text.is_none())
    }
}

/// An event that waits for a sink.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeferredEvent {
    /// The sink.
    pub sink: String,
    /// Its number in the log. With the sink it is its place in the list.
    pub seq: i64,
    /// Event id.
    pub id: Uuid,
    /// Topic.
    pub topic: String,
    /// Key.
    pub key: Option<String>,
    /// Route.
    pub route: String,
    /// Destination, if it was known.
    pub destination: String,
    /// Why it waits: retry, unknown, outage, scheduled, held, replayed, …
    pub reason: String,
    /// When it is due; `None`: behind an earlier event of its key.
    pub due_at: Option<Timestamp>,
    /// Attempts since it was appended or last replayed.
    pub attempts: i32,
    /// How often it was replayed.
    pub replays: i32,
    /// Code of the last error.
    pub error_code: Option<String>,
    /// The last error.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_at: Option<Timestamp>,
    /// The last attempts.
    pub history: History,
    /// When it was appended.
    pub appended_at: Timestamp,
    /// Since when it waits.
    pub deferred_at: Timestamp,
}

/// Events that wait for one thing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeferredCause {
    /// The sink.
    pub sink: String,
    /// Why they wait.
    pub reason: String,
    /// Where they go; empty where nobody knew yet.
    pub destination: String,
    /// Code of the last error.
    pub error_code: Option<String>,
    /// The last error of one of them.
    pub error: Option<String>,
    /// How many.
    pub count: i64,
    /// When the oldest of them was appended.
    pub oldest_at: Timestamp,
    /// When the next of them is due; `None`: behind others of their keys.
    pub due_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_causes_number_is_text_and_comes_back() {
        for number in [0, 1, -1, i64::MIN, i64::MAX] {
            let text = fingerprint_text(number);
            assert_eq!((text.len(), fingerprint_of_text(&text)), (16, Some(number)));
        }
        assert_eq!(fingerprint_of_text("1f"), Some(31), "zeros in front may be left out");
        for wrong in ["", "-1", "+1", "xyz", "1_0", "0123456789abcdef0"] {
            assert_eq!(fingerprint_of_text(wrong), None, "{wrong}");
        }
    }
}
