//! What a client says about an event, beside its payload.
//!
//! The tenant comes from the key. So a client can set neither `tenant_id` nor any header that Posthaste or a
//! participant of a saga reads; names are compared without their case, and with `_` as `-`.

use super::answer::GatewayProblem;
use super::section::{DELIVER_WITHIN_DAYS, KeyBy, OfferedTopic};
use axum::http::{HeaderMap, HeaderName, header};
use posthaste::intake::Idempotency;
use posthaste::{Event, EventError, Headers, Limits, Timestamp};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// The header that names the tenant.
pub(super) const TENANT_HEADER: &str = "tenant_id";

/// What headers of an event are named by in a request.
const EVENT_HEADER: &str = "event-header-";

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// As long as that of an append.
const IDEMPOTENCY_BYTES_MAX: usize = 255;

/// What common readers of JSON stand.
const DEPTH_MAX: usize = 128;

const RESERVED: [&str; 13] = [
    "tenant-id",
    "tenantid",
    "message-id",
    "key",
    "time",
    "source",
    "type",
    "content-type",
    "traceparent",
    "tracestate",
    "cc",
    "bcc",
    "x-delay",
];
/// The last ones are words to brokers: they would empty a stream, hold a message back, or send it elsewhere.
const RESERVED_STARTS: [&str; 7] = ["saga-", "dead-", "posthaste", "ce-", "nats-", "x-death", "x-dedup"];

/// What belongs to one event beside its payload.
#[derive(Default)]
pub(super) struct Label {
    pub(super) kind: Option<String>,
    pub(super) key: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) deliver_at: Option<Timestamp>,
    /// The client's own.
    pub(super) headers: Vec<(String, String)>,
}

/// The trace that a request belongs to.
#[derive(Default)]
pub(super) struct Trace {
    parent: Option<String>,
    state: Option<String>,
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, GatewayProblem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(GatewayProblem::header(format!("The header `{name}` is there twice.")));
    }
    let bytes = value.as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(GatewayProblem::header(format!("The value of the header `{name}` is no UTF-8."))),
    }
}

/// Refuses names that are not the client's to set.
pub(super) fn check_name(name: &str) -> Result<(), GatewayProblem> {
    let plain = name.to_ascii_lowercase().replace(['_', '.', '~'], "-");
    let is_ours =
        RESERVED.contains(&plain.as_str()) || RESERVED_STARTS.iter().any(|start| plain.starts_with(start));
    if is_ours {
        return Err(GatewayProblem::header(format!("The header `{name}` is not for clients to set.")));
    }
    Ok(())
}

impl Label {
    /// Of a request with one event.
    pub(super) fn read(headers: &HeaderMap, now: Timestamp) -> Result<Self, GatewayProblem> {
        let named = |name: &'static str| -> Result<Option<String>, GatewayProblem> {
            Ok(text(headers, &HeaderName::from_static(name))?.map(ToOwned::to_owned))
        };
        let deliver_at = named("event-deliver-at")?;
        let mut own = Vec::new();
        for name in headers.keys() {
            if let Some(plain) = name.as_str().strip_prefix(EVENT_HEADER) {
                check_name(plain)?;
                let value = text(headers, name)?.unwrap_or_default();
                own.push((plain.to_owned(), value.to_owned()));
            }
        }
        own.sort();
        Ok(Self {
            kind: named("event-type")?,
            key: named("event-key")?,
            content_type: text(headers, &header::CONTENT_TYPE)?.map(ToOwned::to_owned),
            deliver_at: deliver_at.map(|text| deliver_at_of(&text, now)).transpose()?,
            headers: own,
        })
    }

    /// The event, with what is ours to say. The error names no payload.
    pub(super) fn into_event(
        self,
        payload: bytes::Bytes,
        tenant: &str,
        topic: &OfferedTopic,
        trace: &Trace,
        limits: &Limits,
    ) -> Result<Event, GatewayProblem> {
        check_content_type(self.content_type.as_deref(), topic)?;
        let kind = self.kind.as_deref().unwrap_or(&topic.topic);
        if !topic.types.is_empty() && !topic.types.iter().any(|allowed| allowed == kind) {
            return Err(GatewayProblem::kind(&topic.types));
        }
        let key = match (topic.key, self.key) {
            (_, Some(key)) if key.is_empty() => return Err(GatewayProblem::header("`Event-Key` is empty.")),
            (KeyBy::Tenant, Some(_)) => {
                let why = "Events of this topic have their tenant as the key: `Event-Key` is not for clients to set.";
                return Err(GatewayProblem::header(why));
            }
            (KeyBy::Client, Some(key)) => format!("{tenant}:{key}"),
            (_, None) => tenant.to_owned(),
        };
        let mut event = Event::new(&*topic.topic, payload).with_key(key);
        let mut headers = Headers::new();
        for (name, value) in self.headers {
            headers.set(name, value);
        }
        if let Some(kind) = self.kind {
            headers.set(posthaste::event::TYPE_HEADER, kind);
        }
        if let Some(parent) = &trace.parent {
            headers.set("traceparent", parent);
        }
        if let Some(state) = &trace.state {
            headers.set("tracestate", state);
        }
        headers.set(TENANT_HEADER, tenant);
        event.headers = headers;
        event.content_type = self.content_type;
        event.deliver_at = self.deliver_at;
        limits.check(&event).map_err(|error| match error {
            EventError::PayloadTooLarge { .. } => GatewayProblem::too_large(format!("The {error}.")),
            EventError::Headers(_) | EventError::KeyTooLong { .. } | EventError::KeyIllegal => {
                GatewayProblem::header(format!("The event is not acceptable: {error}."))
            }
            other => GatewayProblem::malformed(format!("The event is not acceptable: {other}."), "Mend it."),
        })?;
        check_json(&event)?;
        Ok(event)
    }
}

/// At most thirty days ahead: what waits is kept in the log for as long.
pub(super) fn deliver_at_of(text: &str, now: Timestamp) -> Result<Timestamp, GatewayProblem> {
    let Some(at) = Timestamp::parse(text) else {
        return Err(GatewayProblem::header("`Event-Deliver-At` is no time like 2026-11-15T17:00:00Z."));
    };
    if at > now.plus_micros(DELIVER_WITHIN_DAYS * 86_400_000_000) {
        let why = format!("`Event-Deliver-At` is more than {DELIVER_WITHIN_DAYS} days ahead.");
        return Err(GatewayProblem::header(why));
    }
    Ok(at)
}

/// Without its parameters, in small letters.
pub(super) fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn check_content_type(given: Option<&str>, topic: &OfferedTopic) -> Result<(), GatewayProblem> {
    let accepted = &topic.content_types;
    let is_accepted = |given: &str| accepted.contains(&essence(given));
    if accepted.is_empty() || given.is_some_and(is_accepted) {
        return Ok(());
    }
    Err(GatewayProblem::content_type(accepted))
}

/// What says that it is JSON must be JSON.
fn check_json(event: &Event) -> Result<(), GatewayProblem> {
    let kind = event.content_type.as_deref().map(essence).unwrap_or_default();
    if kind != "application/json" && !kind.ends_with("+json") {
        return Ok(());
    }
    let payload = event.payload.as_deref().unwrap_or_default();
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(payload) {
        let place = format!("line {} column {}", error.line(), error.column());
        return Err(GatewayProblem::not_json(format!("The payload is no JSON, at {place}.")));
    }
    if is_deep(payload) {
        let why = format!("The payload is nested more than {DEPTH_MAX} deep.");
        return Err(GatewayProblem::not_json(why));
    }
    Ok(())
}

/// Whether JSON is nested deeper than whoever reads it will stand. Its syntax was checked before, by what
/// does not count.
pub(super) fn is_deep(json: &[u8]) -> bool {
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => depth += 1,
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return true;
        }
    }
    false
}

impl Trace {
    /// Of the request. One that is none is nobody's mistake here: it is left out.
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let one = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_parent = |text: &&str| {
            text.len() == 55 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        };
        let parent = one("traceparent").filter(is_parent).map(ToOwned::to_owned);
        let state = one("tracestate").filter(|text| text.len() <= 512).map(ToOwned::to_owned);
        Self { state: state.filter(|_| parent.is_some()), parent }
    }
}

/// The client's key for this request, quoted or bare.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<Arc<str>>, GatewayProblem> {
    let Some(given) = text(headers, &IDEMPOTENCY_KEY)? else { return Ok(None) };
    let bare = given.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(given);
    if bare.is_empty() || bare.len() > IDEMPOTENCY_BYTES_MAX || bare.chars().any(char::is_control) {
        let why = format!("`Idempotency-Key` must have 1 to {IDEMPOTENCY_BYTES_MAX} bytes of text.");
        return Err(GatewayProblem::header(why));
    }
    Ok(Some(bare.into()))
}

/// What makes two requests the same: all that the client said, but for its trace and its credentials. An
/// honest repetition has another trace.
pub(super) fn idempotency(key: Arc<str>, topic: &str, label: &Label, body: &[u8]) -> Idempotency {
    let mut hash = Sha256::new();
    let mut part = |bytes: Option<&[u8]>| {
        // What is not there differs from what is empty.
        let length = bytes.map_or(u64::MAX, |bytes| bytes.len() as u64);
        hash.update(length.to_be_bytes());
        hash.update(bytes.unwrap_or_default());
    };
    part(Some(topic.as_bytes()));
    for text in [&label.content_type, &label.kind, &label.key] {
        part(text.as_ref().map(String::as_bytes));
    }
    let deliver_at = label.deliver_at.map(|at| at.0.to_be_bytes());
    part(deliver_at.as_ref().map(|bytes| bytes.as_slice()));
    for (name, value) in &label.headers {
        part(Some(name.as_bytes()));
        part(Some(value.as_bytes()));
    }
    part(Some(body));
    Idempotency { key, hash: hash.finalize().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_ours_are_refused_however_they_are_written() {
        for ours in [
            "tenant_id",
            "TENANT-ID",
            "Tenant_Id",
            "message_id",
            "key",
            "Time",
            "source",
            "type",
            "ce-id",
            "CE_type",
            "saga-id",
            "Saga_Reply",
            "dead-letter",
            "posthaste-tombstone",
            "Posthaste",
            "tenantid",
            "tenant.id",
            "Nats-Rollup",
            "nats~msg_id",
            "CC",
            "x-death",
            "X-Delay",
            "traceparent",
        ] {
            assert!(check_name(ours).is_err(), "{ours}");
        }
        for theirs in ["tenant", "x-key", "keys", "my-saga", "deadline", "cents"] {
            assert!(check_name(theirs).is_ok(), "{theirs}");
        }
    }

    #[test]
    fn a_repeated_request_is_the_same_and_no_other_is() {
        let hash = |label: &Label, body: &[u8]| idempotency("k".into(), "t", label, body).hash;
        let label = |kind: Option<&str>, headers: &[(&str, &str)]| Label {
            kind: kind.map(ToOwned::to_owned),
            headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            ..Label::default()
        };
        let first = hash(&label(Some("a"), &[("n", "v")]), b"body");
        assert_eq!(first, hash(&label(Some("a"), &[("n", "v")]), b"body"));
        for other in [
            hash(&label(None, &[("n", "v")]), b"body"),
            hash(&label(Some(""), &[("n", "v")]), b"body"),
            hash(&label(Some("a"), &[("nv", "")]), b"body"),
            hash(&label(Some("a"), &[]), b"body"),
            hash(&label(Some("a"), &[("n", "v")]), b"bod"),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn an_idempotency_key_is_the_same_quoted_and_bare() {
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(IDEMPOTENCY_KEY, value.parse().expect("a value"));
            idempotency_key(&headers).ok().flatten().map(|key| key.to_string())
        };
        assert_eq!(read("\"abc\""), read("abc"));
        assert_eq!(read("abc").as_deref(), Some("abc"));
        assert_eq!(read(""), None);
        assert_eq!(read("\"\""), None);
        assert!(read(&"x".repeat(255)).is_some() && read(&"x".repeat(256)).is_none());
    }
}
