//! A batch: many events of one request, stored as a whole or not at all.

use super::answer::GatewayProblem;
use super::request::{Label, check_name, deliver_at_of, is_deep};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use posthaste::Timestamp;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// The content type of a batch.
pub(super) const BATCH: &str = "application/vnd.posthaste.batch+json";

/// More than this is no vector: a body of commas and braces would be a hundred times as large in memory.
const EVENTS_EVER: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody<'a> {
    #[serde(borrow, deserialize_with = "not_too_many")]
    events: Vec<BatchEvent<'a>>,
}

/// Reads a list until it is longer than any may be.
fn not_too_many<'de: 'a, 'a, D: Deserializer<'de>>(input: D) -> Result<Vec<BatchEvent<'a>>, D::Error> {
    struct List<'a>(PhantomData<BatchEvent<'a>>);

    impl<'de: 'a, 'a> Visitor<'de> for List<'a> {
        type Value = Vec<BatchEvent<'a>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of events")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut events = Vec::new();
            while let Some(event) = list.next_element()? {
                if events.len() >= EVENTS_EVER {
                    return Err(A::Error::custom("too many"));
                }
                events.push(event);
            }
            Ok(events)
        }
    }
    input.deserialize_seq(List(PhantomData))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(borrow, default, deserialize_with = "as_written")]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    payload_base64: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    deliver_at: Option<Cow<'a, str>>,
}

/// A payload that is `null` is there.
fn as_written<'de, D: Deserializer<'de>>(input: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

/// Reads it. A JSON payload is kept as it was written, byte for byte (F86).
pub(super) fn read(
    body: &Bytes,
    events_max: usize,
    now: Timestamp,
) -> Result<Vec<(Label, Bytes)>, GatewayProblem> {
    const LIKE: &str = "A batch is {\"events\": [{\"type\": …, \"payload\": …}, …]}.";
    let batch: BatchBody<'_> = serde_json::from_slice(body).map_err(|error| {
        // Its words name fields and places; what was found there is the client's.
        let place = format!("line {} column {}", error.line(), error.column());
        let why = match error.classify() {
            serde_json::error::Category::Data => "is no batch",
            _ => "is no JSON",
        };
        GatewayProblem::malformed(format!("The body {why}, at {place}."), LIKE)
    })?;
    if batch.events.is_empty() {
        return Err(GatewayProblem::malformed("The batch is empty.", LIKE));
    }
    if batch.events.len() > events_max {
        let count = batch.events.len();
        return Err(GatewayProblem::batch(format!(
            "The batch has {count} events, at most {events_max} are taken."
        )));
    }
    let events = batch.events.into_iter().enumerate();
    events.map(|(index, event)| event.take(body, index, now)).collect()
}

impl BatchEvent<'_> {
    fn take(self, body: &Bytes, index: usize, now: Timestamp) -> Result<(Label, Bytes), GatewayProblem> {
        if self.payload.is_some_and(|raw| is_deep(raw.get().as_bytes())) {
            let why = format!("events[{index}].payload is nested too deeply.");
            return Err(GatewayProblem::not_json(why));
        }
        let (payload, assumed) = match (self.payload, self.payload_base64) {
            (Some(raw), None) => (body.slice_ref(raw.get().as_bytes()), "application/json"),
            (None, Some(text)) => {
                let decoded = STANDARD.decode(text.as_bytes()).map_err(|_| {
                    GatewayProblem::malformed(
                        format!("events[{index}].payload_base64 is no base64."),
                        "Mend it.",
                    )
                })?;
                (Bytes::from(decoded), "application/octet-stream")
            }
            _ => {
                let why =
                    format!("events[{index}] needs `payload` or `payload_base64`, and only one of them.");
                return Err(GatewayProblem::malformed(why, "Mend it."));
            }
        };
        for name in self.headers.keys() {
            check_name(name)?;
        }
        let label = Label {
            kind: self.kind.map(Cow::into_owned),
            key: self.key.map(Cow::into_owned),
            content_type: Some(self.content_type.map_or_else(|| assumed.to_owned(), Cow::into_owned)),
            deliver_at: self.deliver_at.map(|text| deliver_at_of(&text, now)).transpose()?,
            headers: self.headers.into_iter().collect(),
        };
        Ok((label, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn payloads(text: &str) -> Option<Vec<Bytes>> {
        let all = read(&Bytes::copy_from_slice(text.as_bytes()), 3, Timestamp(0)).ok()?;
        Some(all.into_iter().map(|(_, payload)| payload).collect())
    }

    #[test]
    fn payloads_are_kept_as_they_were_written() {
        let text = r#"{"events": [{"payload": {"b" :1,  "a":1.50e0} }, {"payload":null}, {"payload_base64":"AP8K"}]}"#;
        let expected: [&[u8]; 3] = [br#"{"b" :1,  "a":1.50e0}"#, b"null", b"\x00\xff\n"];
        assert_eq!(payloads(text).expect("a batch"), expected);
    }

    /// Its list ends where no batch is as long: a megabyte of braces is no hundred megabytes.
    #[test]
    fn a_list_without_an_end_is_not_read_to_its_end() {
        let braces = |count: usize| format!("{{\"events\": [{}]", vec!["{}"; count].join(","));
        // Neither is whole, so both are refused: the long one for its length, before its end is missed.
        let why = |text: &str| {
            let error = serde_json::from_str::<BatchBody<'_>>(text).err().expect("it is none");
            error.to_string()
        };
        assert!(why(&braces(EVENTS_EVER + 1)).contains("too many"), "{}", why(&braces(EVENTS_EVER + 1)));
        assert!(why(&braces(3)).contains("EOF"), "{}", why(&braces(3)));
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        for text in [
            "",
            "{}",
            "[]",
            r#"{"events": []}"#,
            r#"{"events": [{}]}"#,
            r#"{"events": [{"payload": 1, "payload_base64": ""}]}"#,
            r#"{"events": [{"payload": 1, "id": 7}]}"#,
            r#"{"events": [{"payload": 1}], "topic": "x"}"#,
            r#"{"events": [{"payload": 1, "headers": {"tenant_id": "x"}}]}"#,
            r#"{"events": [{"payload_base64": "?"}]}"#,
            r#"{"events": [{"payload": 1}, {"payload": 1}, {"payload": 1}, {"payload": 1}]}"#,
        ] {
            assert_eq!(payloads(text), None, "{text}");
        }
        let deep = format!(r#"{{"events": [{{"payload": {}1{}}}]}}"#, "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(payloads(&deep), None);
    }

    proptest! {
        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&Bytes::from(body), 3, Timestamp(0));
        }
    }
}
