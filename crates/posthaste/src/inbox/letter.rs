//! A dead letter as an event for the dead-letter topic. Pure.
//!
//! It carries the original bytes and headers, and `dead-*` headers that say what happened. Those of an
//! earlier round are dropped first, so a message that dies three times does not grow (F60). Whatever a
//! stranger sent, the event can be appended: otherwise the message could not even be given up (F54, F71).
//! What does not fit is left out, and `dead-left-out` says so.

use super::store::{Burial, Work};
use crate::event::{Event, Limits, RESERVED_HEADERS, is_header_name, is_header_value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::HashMap;

const PREFIX: &str = "dead-";
/// Bytes of the stack that the event has. The row has all of it.
const STACK_BYTES_MAX: usize = 4 << 10;
/// Bytes of any other `dead-*` header.
const VALUE_BYTES_MAX: usize = 1 << 10;
/// For `dead-left-out`, with its name.
const LEFT_OUT_BYTES_MAX: usize = 64;

/// Where the events of dead letters go.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeadLetterTopic {
    /// The topic in the outbox; a route takes it from there.
    pub topic: String,
    /// The key, in which `{consumer}`, `{topic}`, `{partition}` and `{key}` are filled in. Without it the
    /// message's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl DeadLetterTopic {
    /// The event of a letter. It passes the default limits.
    #[must_use]
    pub fn event(&self, consumer: &str, work: &Work, burial: &Burial) -> Event {
        let message = &work.delivery.message;
        let mut event = Event::bare(burial.letter, self.topic.as_str());
        event.key = self.key_of(consumer, work);
        event.content_type = message.content_type().map(str::to_owned);
        let mut left_out = Vec::new();
        let mut headers = FittingHeaders::default();
        for (name, value) in dead_headers(consumer, work, burial) {
            let bytes_max = if name == "stack" { STACK_BYTES_MAX } else { VALUE_BYTES_MAX };
            headers.add(format!("{PREFIX}{name}"), one_line(&value, bytes_max));
        }
        for (name, value) in &message.headers {
            let is_ours = name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX));
            if is_ours || is_reserved(name) {
                continue;
            }
            let fits = match std::str::from_utf8(value) {
                Ok(text) if is_header_value(text) => headers.add(name.clone(), text.to_owned()),
                _ => headers.add(format!("{name}-base64"), STANDARD.encode(value)),
            };
            if !fits && left_out.is_empty() {
                left_out.push("headers");
            }
        }
        event.headers = headers.pairs.into_iter().collect();
        if !is_fit(&event) {
            event.content_type = None;
        }
        event.payload.clone_from(&message.payload);
        if !is_fit(&event) {
            event.payload = None;
            left_out.push("payload");
        }
        if left_out.is_empty() { event } else { event.with_header("dead-left-out", left_out.join(", ")) }
    }

    fn key_of(&self, consumer: &str, work: &Work) -> Option<String> {
        let partition = work.delivery.partition();
        let own = work.delivery.message.key.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let filled = match &self.key {
            None => own.into_owned(),
            Some(template) => template
                .replace("{partition}", &partition.number.to_string())
                .replace("{topic}", &partition.topic)
                .replace("{consumer}", consumer)
                .replace("{key}", &own),
        };
        let key = one_line(&filled, Limits::default().key_bytes_max);
        (!key.is_empty()).then_some(key)
    }
}

/// Whether it can be appended.
fn is_fit(event: &Event) -> bool {
    Limits::default().check(event).is_ok()
}

/// Headers that an event can have, with some room left for `dead-left-out`. The transaction of a burial waits
/// for them, and a stranger sends as many as a broker takes: each is looked at once.
#[derive(Default)]
struct FittingHeaders {
    pairs: Vec<(String, String)>,
    /// Bytes of each name with its value.
    sizes: HashMap<String, usize>,
    bytes: usize,
}

impl FittingHeaders {
    /// Adds one, in place of another of its name. `false`: it does not fit.
    fn add(&mut self, name: String, value: String) -> bool {
        let size = name.len() + value.len();
        let former = self.sizes.get(&name).copied().unwrap_or_default();
        let bytes = self.bytes - former + size;
        let fits = bytes <= Limits::default().header_bytes_max - LEFT_OUT_BYTES_MAX
            && is_header_name(&name)
            && is_header_value(&value)
            && !is_reserved(&name);
        if fits {
            self.bytes = bytes;
            self.sizes.insert(name.clone(), size);
            self.pairs.push((name, value));
        }
        fits
    }
}

fn is_reserved(name: &str) -> bool {
    RESERVED_HEADERS.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

fn dead_headers(consumer: &str, work: &Work, burial: &Burial) -> Vec<(&'static str, String)> {
    let (delivery, failure) = (&work.delivery, &burial.failure);
    let key = delivery.message.key.as_deref().map(|key| match std::str::from_utf8(key) {
        Ok(text) if !text.contains(['\r', '\n', '\0']) => ("key", text.to_owned()),
        _ => ("key-base64", STANDARD.encode(key)),
    });
    let mut headers = vec![
        ("letter", burial.letter.to_string()),
        ("id", work.id.to_string()),
        ("topic", delivery.partition().topic.to_string()),
        ("partition", delivery.partition().number.to_string()),
        ("consumer", consumer.to_owned()),
        ("attempts", work.attempts.to_string()),
        ("disposition", burial.disposition.as_str().to_owned()),
        ("class", failure.class().to_owned()),
        ("code", failure.code.to_string()),
        ("error", failure.message.clone()),
    ];
    headers.extend(key);
    headers.extend(delivery.position.map(|position| ("position", position.to_string())));
    headers.extend(delivery.published_at.map(|at| ("time", at.rfc3339())));
    headers.extend(failure.stack.clone().map(|stack| ("stack", stack)));
    headers
}

/// A text that a header can hold: line breaks escaped, and not without end.
fn one_line(text: &str, bytes_max: usize) -> String {
    let mut line = text.replace('\r', "").replace('\n', "\\n").replace('\0', "\u{fffd}");
    line.truncate(line.floor_char_boundary(bytes_max));
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::history::History;
    use crate::consumer::{Disposition, Failure, FailureKind};
    use crate::source::{Delivery, Partition, Received, Ticket};
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::sync::Arc;
    use uuid::Uuid;

    fn work(message: Received) -> Work {
        let delivery = Delivery {
            ticket: Ticket { partition: Partition::new("orders", 3), epoch: 1, number: 7 },
            position: Some(7),
            redelivery: None,
            published_at: None,
            address: None,
            message,
        };
        let id = Arc::from("m-1");
        Work { delivery: Arc::new(delivery), id, order_id: None, attempts: 4, history: History::default() }
    }

    fn burial(stack: &str) -> Burial {
        let failure = Failure::new(FailureKind::Error, "handler.error", "no\nsuch account");
        Burial {
            letter: Uuid::now_v7(),
            disposition: Disposition::Exhausted,
            failure: failure.with_stack(Some(stack.to_owned())),
            holds_key: false,
        }
    }

    fn topic() -> DeadLetterTopic {
        DeadLetterTopic { topic: "sys.deadletter.v1".into(), key: Some("{partition}".into()) }
    }

    #[test]
    fn it_says_what_happened_and_keeps_the_bytes() {
        let headers = vec![("Trace".to_owned(), Bytes::from_static(b"t\xff")), ("a".into(), "b".into())];
        let message = Received { payload: Some("{".into()), key: Some("k".into()), headers, id: None };
        let (work, burial) = (work(message), burial("at a\nat b"));
        let event = topic().event("billing", &work, &burial);
        assert_eq!((event.id, event.key.as_deref()), (burial.letter, Some("3")));
        assert_eq!(event.payload.as_deref(), Some(&b"{"[..]));
        for (name, value) in [
            ("dead-id", "m-1"),
            ("dead-topic", "orders"),
            ("dead-partition", "3"),
            ("dead-position", "7"),
            ("dead-key", "k"),
            ("dead-attempts", "4"),
            ("dead-class", "error"),
            ("dead-error", "no\\nsuch account"),
            ("dead-stack", "at a\\nat b"),
            ("Trace-base64", "dP8="),
            ("a", "b"),
        ] {
            assert_eq!(event.headers.get(name), Some(value), "{name}");
        }
    }

    #[test]
    fn f60_three_rounds_have_the_same_size() {
        let mut message = Received {
            headers: vec![("a".into(), "b".into())],
            payload: Some("x".into()),
            ..Received::default()
        };
        let mut sizes = Vec::new();
        for _ in 0..3 {
            let event = topic().event("billing", &work(message.clone()), &burial("deep"));
            sizes.push(event.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>());
            // A broker on the way may write names in another case.
            let pairs = event.headers.iter();
            message.headers =
                pairs.map(|(name, value)| (name.to_ascii_uppercase(), value.to_owned().into())).collect();
        }
        assert!(sizes.windows(2).all(|pair| pair[0] == pair[1]), "{sizes:?}");
    }

    #[test]
    fn what_is_too_large_is_left_out_and_it_says_so() {
        let payload = Some(Bytes::from(vec![b'x'; (1 << 20) + 1]));
        let headers = vec![("big".to_owned(), Bytes::from(vec![b'h'; 16 << 10]))];
        let event = topic().event(
            "billing",
            &work(Received { payload, headers, ..Received::default() }),
            &burial(""),
        );
        assert_eq!((event.payload.is_none(), event.headers.get("big")), (true, None));
        assert_eq!(event.headers.get("dead-left-out"), Some("headers, payload"));
    }

    /// F86: the clock of the process, for all the strangers' headers are its only work.
    #[test]
    fn f86_a_hundred_thousand_headers_are_looked_at_once() {
        let headers = (0..100_000).map(|n| (format!("h{n}"), Bytes::from_static(b"v"))).collect();
        let began = std::time::Instant::now();
        let event = topic().event("billing", &work(Received { headers, ..Received::default() }), &burial(""));
        assert_eq!(event.headers.get("dead-left-out"), Some("headers"));
        assert!(event.headers.get("h2000").is_some() && Limits::default().check(&event).is_ok());
        assert!(began.elapsed().as_secs() < 20, "it took {:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn f71_whatever_was_sent_the_event_can_be_appended(
            headers in prop::collection::vec((any::<String>(), prop::collection::vec(any::<u8>(), 0..3000)), 0..9),
            key in prop::option::of(prop::collection::vec(any::<u8>(), 0..3000)),
            stack in "\\PC{0,3000}",
            own_key in any::<bool>(),
        ) {
            let headers = headers.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
            let message = Received { headers, key: key.map(Bytes::from), ..Received::default() };
            let to = DeadLetterTopic { key: (!own_key).then(|| "{topic}/{key}".into()), ..topic() };
            let event = to.event("billing", &work(message), &burial(&stack));
            prop_assert_eq!(Limits::default().check(&event), Ok(()));
        }
    }
}
