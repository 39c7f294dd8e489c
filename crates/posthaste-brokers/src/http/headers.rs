//! The headers of a request.
//!
//! They are written as text. Nothing that an event holds can end a line: names are checked by their parser, and values
//! are printable ASCII, or encoded until they are.

use super::sign::Signer;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName};
use posthaste::sink::Message;
use std::borrow::Cow;

/// Names that mean something to HTTP, to what stands between us and the receiver, or to the signature. An
/// event's header of such a name could end a request early, start another one, or forge who we are.
const OURS: [&str; 26] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "idempotency-key",
    "keep-alive",
    "max-forwards",
    "posthaste-encoded",
    "posthaste-tombstone",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// Whether a header of this lower-case name is nobody's but ours.
pub(super) fn is_ours(name: &str) -> bool {
    OURS.binary_search(&name).is_ok() || name.starts_with("x-forwarded-")
}

/// Writes all headers of a message, or tells the name of the one that cannot travel. `fixed` are those of the
/// configuration, which are written elsewhere, and win.
pub(super) fn write(
    text: &mut Vec<u8>,
    message: &Message,
    fixed: &HeaderMap,
    signer: &Signer,
    now_seconds: u64,
) -> Result<(), String> {
    let mut writing = Writing { text, fixed, encoded: String::new(), has_type: false, has_accept: false };
    let mut bad = None;
    message.each_header(|name, value| {
        if writing.add(name, value).is_none() {
            bad = Some(name.to_owned());
        }
    });
    match bad {
        Some(name) => return Err(name),
        None => writing.finish(message.payload.is_none()),
    }
    let (id, timestamp) = (message.id(), now_seconds.to_string());
    let body = message.payload.as_deref().unwrap_or_default();
    if let Some(signature) = signer.sign(&id, &timestamp, body) {
        line(text, "webhook-signature", &signature);
    }
    line(text, "webhook-timestamp", &timestamp);
    line(text, "idempotency-key", &id);
    line(text, "webhook-id", &id);
    // Also where there is no body: some servers refuse a POST without it (411).
    line(text, "content-length", &body.len().to_string());
    Ok(())
}

/// One header. Name and value have been looked at.
pub(super) fn line(text: &mut Vec<u8>, name: &str, value: &str) {
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b": ");
    text.extend_from_slice(value.as_bytes());
    text.extend_from_slice(b"\r\n");
}

struct Writing<'a> {
    text: &'a mut Vec<u8>,
    fixed: &'a HeaderMap,
    /// Names of the headers whose values are percent-encoded.
    encoded: String,
    has_type: bool,
    has_accept: bool,
}

impl Writing<'_> {
    fn add(&mut self, name: &str, value: &str) -> Option<()> {
        // The names that every message has need no look.
        match name {
            "Message-ID" => self.put("message-id", value),
            "type" | "key" | "time" | "source" => self.put(name, value),
            other => {
                let name = HeaderName::from_bytes(other.as_bytes()).ok()?;
                // Two content types are none.
                let is_second = name == CONTENT_TYPE && std::mem::replace(&mut self.has_type, true);
                if is_second || is_ours(name.as_str()) {
                    self.put(&format!("x-event-{name}"), value);
                } else {
                    self.has_accept |= name == ACCEPT;
                    self.put(name.as_str(), value);
                }
            }
        }
        Some(())
    }

    fn put(&mut self, name: &str, value: &str) {
        if !self.fixed.is_empty() && self.fixed.contains_key(name) {
            return;
        }
        let value = carried(value);
        if let Cow::Owned(_) = value {
            self.encoded.push_str(if self.encoded.is_empty() { "" } else { ", " });
            self.encoded.push_str(name);
        }
        line(self.text, name, &value);
    }

    fn finish(self, is_tombstone: bool) {
        if !self.has_accept && !self.fixed.contains_key(ACCEPT) {
            line(self.text, "accept", "*/*");
        }
        if !self.encoded.is_empty() {
            line(self.text, "posthaste-encoded", &self.encoded);
        }
        // What tells a tombstone from an empty payload.
        if is_tombstone {
            line(self.text, "posthaste-tombstone", "true");
        }
    }
}

/// The value as HTTP can carry it: as it is, or percent-encoded.
fn carried(value: &str) -> Cow<'_, str> {
    let visible = |byte: u8| matches!(byte, 0x20..=0x7e);
    let trimmed = value.starts_with(' ') || value.ends_with(' ');
    if !trimmed && value.bytes().all(visible) {
        return value.into();
    }
    let last = value.len().saturating_sub(1);
    let mut out = String::with_capacity(value.len() + 16);
    for (at, byte) in value.bytes().enumerate() {
        let edge = byte == b' ' && (at == 0 || at == last);
        if visible(byte) && byte != b'%' && !edge {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;
    use posthaste::event::{Event, StoredEvent, Timestamp};

    fn made(event: Event) -> HeaderMap {
        let payload = event.payload.clone();
        let stored = StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(0), event, defect: None };
        let message = Message {
            stored,
            destination: "d".to_owned(),
            payload,
            ordered: true,
            source: "shop".into(),
            envelope: Default::default(),
            partition_key: None,
        };
        let fixed =
            HeaderMap::from_iter([(HeaderName::from_static("x-api-key"), HeaderValue::from_static("ours"))]);
        let signer = Signer::new(&[]).expect("no secrets");
        let mut text = b"POST / HTTP/1.1\r\nx-api-key: ours\r\n".to_vec();
        write(&mut text, &message, &fixed, &signer, 1_700_000_000).expect("headers");
        crate::http::letter::map(&text)
    }

    fn of<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        headers.get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
    }

    #[test]
    fn the_list_is_sorted() {
        assert!(OURS.is_sorted());
    }

    #[test]
    fn values_that_http_cannot_carry_are_encoded_and_named() {
        let headers = made(
            Event::new("t", "x")
                .with_key("ключ 100%")
                .with_header("x-tab", "a\tb")
                .with_header("x-edge", " a ")
                .with_header("x-plain", "100% \"ok\""),
        );
        assert_eq!(of(&headers, "key"), ["%D0%BA%D0%BB%D1%8E%D1%87 100%25"]);
        assert_eq!((of(&headers, "x-tab"), of(&headers, "x-edge")), (vec!["a%09b"], vec!["%20a%20"]));
        assert_eq!(of(&headers, "x-plain"), ["100% \"ok\""]);
        let [names] = of(&headers, "posthaste-encoded")[..] else { panic!("one list") };
        let mut names: Vec<_> = names.split(", ").collect();
        names.sort_unstable();
        assert_eq!(names, ["key", "x-edge", "x-tab"]);
    }

    #[test]
    fn an_event_cannot_pretend_to_be_http() {
        let event = Event::new("t", "x")
            .with_content_type("text/plain")
            .with_header("Host", "evil")
            .with_header("Transfer-Encoding", "chunked")
            .with_header("Content-Length", "0")
            .with_header("webhook-signature", "v1,forged")
            .with_header("Authorization", "Bearer forged")
            .with_header("X-Forwarded-For", "1.2.3.4")
            .with_header("Content-Type", "text/html")
            .with_header("X-Api-Key", "theirs");
        let id = event.id.hyphenated().to_string();
        let headers = made(event);
        for name in ["host", "transfer-encoding", "webhook-signature", "authorization"] {
            assert_eq!(of(&headers, name), [""; 0], "{name}");
        }
        assert_eq!(of(&headers, "content-length"), ["1"]);
        assert_eq!(of(&headers, "x-event-host"), ["evil"]);
        assert_eq!(of(&headers, "x-event-x-forwarded-for"), ["1.2.3.4"]);
        assert_eq!(of(&headers, "content-type"), ["text/plain"]);
        assert_eq!(of(&headers, "x-event-content-type"), ["text/html"]);
        assert_eq!(of(&headers, "x-api-key"), ["ours"]);
        assert_eq!((of(&headers, "webhook-id"), of(&headers, "idempotency-key")), (vec![&*id], vec![&*id]));
        assert_eq!(of(&headers, "webhook-timestamp"), ["1700000000"]);
    }

    #[test]
    fn a_tombstone_is_marked() {
        assert_eq!(of(&made(Event::tombstone("t")), "posthaste-tombstone"), ["true"]);
        assert_eq!(of(&made(Event::new("t", "")), "posthaste-tombstone"), [""; 0]);
    }
}
