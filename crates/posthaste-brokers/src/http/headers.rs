//! The headers of a request.

use super::sign::Signer;
use posthaste::sink::Message;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use std::borrow::Cow;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// What tells a tombstone from an empty payload.
const TOMBSTONE: HeaderName = HeaderName::from_static("posthaste-tombstone");
/// Names of the headers whose values are percent-encoded.
const ENCODED: HeaderName = HeaderName::from_static("posthaste-encoded");

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

/// All headers of a message, or the name of the one that cannot travel. `fixed` are those of the
/// configuration, and win.
pub(super) fn headers(
    message: &Message,
    fixed: &HeaderMap,
    signer: &Signer,
    now_seconds: u64,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::with_capacity(16 + fixed.len());
    let (mut encoded, mut bad) = (String::new(), None);
    message.each_header(|name, value| {
        if add(&mut headers, &mut encoded, name, value).is_none() {
            bad = Some(name.to_owned());
        }
    });
    if let Some(name) = bad {
        return Err(name);
    }
    for (name, value) in fixed {
        headers.insert(name, value.clone());
    }
    if !encoded.is_empty() {
        headers.insert(ENCODED, plain(&encoded)?);
    }
    if message.payload.is_none() {
        headers.insert(TOMBSTONE, HeaderValue::from_static("true"));
    }
    // Last, so that no header of the event's own can change who it is.
    let (id, timestamp) = (message.id(), now_seconds.to_string());
    let body = message.payload.as_deref().unwrap_or_default();
    // The client leaves it out where there is no body, and some servers then refuse a POST (411).
    headers.insert(CONTENT_LENGTH, body.len().into());
    if let Some(signature) = signer.sign(&id, &timestamp, body) {
        headers.insert(SIGNATURE, plain(&signature)?);
    }
    headers.insert(TIMESTAMP, plain(&timestamp)?);
    headers.insert(IDEMPOTENCY_KEY, plain(&id)?);
    headers.insert(ID, plain(&id)?);
    Ok(headers)
}

fn plain(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|_| text.to_owned())
}

fn add(headers: &mut HeaderMap, encoded: &mut String, name: &str, value: &str) -> Option<()> {
    let mut name = header_name(name)?;
    // Two content types are none.
    if is_ours(name.as_str()) || (name == CONTENT_TYPE && headers.contains_key(CONTENT_TYPE)) {
        name = HeaderName::from_bytes(format!("x-event-{name}").as_bytes()).ok()?;
    }
    let text = carried(value);
    if let Cow::Owned(_) = text {
        encoded.push_str(if encoded.is_empty() { "" } else { ", " });
        encoded.push_str(name.as_str());
    }
    let value = HeaderValue::from_str(&text).ok()?;
    headers.try_append(name, value).ok().map(drop)
}

/// The names that every message has are constants: no copy.
fn header_name(name: &str) -> Option<HeaderName> {
    Some(match name {
        "Message-ID" => const { HeaderName::from_static("message-id") },
        "type" => const { HeaderName::from_static("type") },
        "key" => const { HeaderName::from_static("key") },
        "time" => const { HeaderName::from_static("time") },
        "source" => const { HeaderName::from_static("source") },
        "content-type" => CONTENT_TYPE,
        other => HeaderName::from_bytes(other.as_bytes()).ok()?,
    })
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
        headers(&message, &fixed, &signer, 1_700_000_000).expect("headers")
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
