//! Envelopes: what a route puts around a payload.
//!
//! The default is nothing: bytes pass through untouched and metadata travels in headers. Three others:
//!
//! - `message-id` adds one member to a JSON object.
//! - `cloudevents`: [CloudEvents 1.0](https://github.com/cloudevents/spec) in binary mode. The body stays as
//!   it is, attributes travel in headers, named and encoded as the broker's [`Binding`] asks for: `ce-id`
//!   over NATS and HTTP, `ce_id` over Kafka, `cloudEvents_id` over AMQP.
//! - `cloudevents-json`: structured mode. The body is one JSON object (`application/cloudevents+json`) that
//!   holds the attributes and the payload.
//!
//! | attribute | from |
//! |---|---|
//! | `id` | the event's id |
//! | `source` | the service, as a URI reference |
//! | `type` | the header `type`, or the topic |
//! | `time` | when it was appended |
//! | `subject` | the header `subject`, or the key |
//! | `partitionkey` | the key |
//! | `datacontenttype` | the content type |
//! | extensions | headers whose name is legal: lower-case letters and digits, at most 20 of them |
//!
//! A header with another name stays a header of the message. Renaming it was refused: two names could become
//! one. Ordinary headers travel beside `ce-*` in every mode, so that a route can be changed before its
//! consumers are.
//!
//! A tombstone stays one, in either mode: no body, and its attributes in headers. A body around nothing would
//! be a legal CloudEvent, and a compacting broker would keep the key for ever.

use crate::event::{
    Event, KEY_HEADER, MESSAGE_ID_HEADER, SOURCE_HEADER, StoredEvent, TIME_HEADER, TYPE_HEADER,
};
use crate::sink::{Failure, Message};
use bytes::Bytes;
use std::borrow::Cow;

/// The media type of the structured mode.
pub const CLOUDEVENTS_JSON: &str = "application/cloudevents+json";

/// Longest name of an extension: the specification asks for no more.
const EXTENSION_NAME_MAX: usize = 20;

/// Attributes that we write, and names that the JSON format keeps for itself. `subject` and `dataschema` are
/// not among them: an author may give those.
const OURS: [&str; 7] = ["id", "source", "specversion", TYPE_HEADER, "time", "datacontenttype", "data"];

/// What is put around the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Envelope {
    /// The bytes as they are; metadata travels in headers.
    #[default]
    None,
    /// A JSON object payload gets the event id as its member `messageId`.
    MessageId,
    /// CloudEvents 1.0, binary mode: the bytes as they are, attributes in `ce-*` headers.
    #[serde(rename = "cloudevents")]
    CloudEvents,
    /// CloudEvents 1.0, structured mode: one JSON object with attributes and payload.
    #[serde(rename = "cloudevents-json")]
    CloudEventsJson,
}

impl Envelope {
    /// Whether a message's attributes travel as `ce-*` headers.
    fn in_headers(self, payload: Option<&Bytes>) -> bool {
        self == Self::CloudEvents || (self == Self::CloudEventsJson && payload.is_none())
    }
}

/// How a protocol carries the attributes of a CloudEvent in headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// What stands before an attribute's name.
    pub prefix: &'static str,
    /// Whether values are percent-encoded: where headers are not UTF-8.
    pub percent: bool,
}

/// HTTP and NATS.
pub const HTTP_BINDING: Binding = Binding { prefix: "ce-", percent: true };
/// Kafka: values are UTF-8.
pub const KAFKA_BINDING: Binding = Binding { prefix: "ce_", percent: false };
/// AMQP: `_` because some clients cannot read a `:` in a name; values are UTF-8.
pub const AMQP_BINDING: Binding = Binding { prefix: "cloudEvents_", percent: false };

/// The body of an event in this envelope, or why it can have none. Tombstones have none anyway.
pub(crate) fn body(
    envelope: Envelope,
    bytes: Bytes,
    stored: &StoredEvent,
    source: &str,
) -> Result<Bytes, Failure> {
    match envelope {
        Envelope::None | Envelope::CloudEvents => Ok(bytes),
        Envelope::MessageId => with_message_id(&bytes, stored),
        Envelope::CloudEventsJson => structured(&bytes, stored, source),
    }
}

/// Every header of a message: ours first, then the event's own, then those of the envelope.
pub(crate) fn each_header(message: &Message, binding: Binding, mut header: impl FnMut(&str, &str)) {
    let event = &message.stored.event;
    header(MESSAGE_ID_HEADER, &message.id());
    header(TYPE_HEADER, event.event_type());
    if let Some(key) = &event.key {
        header(KEY_HEADER, key);
    }
    header(TIME_HEADER, &message.stored.appended_at.rfc3339());
    if !message.source.is_empty() {
        header(SOURCE_HEADER, &message.source);
    }
    let wrapped = message.envelope == Envelope::CloudEventsJson && message.payload.is_some();
    match &event.content_type {
        _ if wrapped => header("content-type", CLOUDEVENTS_JSON),
        Some(content_type) => header("content-type", content_type),
        None => {}
    }
    let own = event.headers.iter().filter(|(name, _)| *name != TYPE_HEADER);
    if !message.envelope.in_headers(message.payload.as_ref()) {
        return own.for_each(|(name, value)| header(name, value));
    }
    let attributes = attributes(&message.stored, &message.source);
    // An author's own `CE-Id` would be a second one: names of headers have no case.
    let twice = |name: &str| attributes.iter().any(|(ours, _)| is_ce(name, binding.prefix, ours));
    own.filter(|(name, _)| !twice(name)).for_each(|(name, value)| header(name, value));
    for (name, value) in &attributes {
        let encode = |text| percent(text, |byte| !matches!(byte, b' ' | b'"' | b'%'));
        let value = if binding.percent { encode(value) } else { Cow::Borrowed(&**value) };
        header(&format!("{}{name}", binding.prefix), &value);
    }
}

fn is_ce(header: &str, binding: &str, attribute: &str) -> bool {
    let Some((prefix, rest)) = header.split_at_checked(binding.len()) else { return false };
    prefix.eq_ignore_ascii_case(binding) && rest.eq_ignore_ascii_case(attribute)
}

/// The attributes of an event, required ones first.
fn attributes<'a>(stored: &'a StoredEvent, source: &'a str) -> Vec<(&'a str, Cow<'a, str>)> {
    let event = &stored.event;
    let mut list: Vec<(&str, Cow<'_, str>)> = vec![
        ("specversion", "1.0".into()),
        ("id", event.id.hyphenated().to_string().into()),
        ("source", uri_reference(source)),
        (TYPE_HEADER, event_type(event).into()),
        ("time", stored.appended_at.rfc3339().into()),
    ];
    if let Some(content_type) = &event.content_type {
        list.push(("datacontenttype", content_type.into()));
    }
    if let Some(key) = &event.key {
        if event.headers.get("subject").is_none_or(str::is_empty) {
            list.push(("subject", key.into()));
        }
        list.push(("partitionkey", key.into()));
    }
    for (name, value) in event.headers.iter().filter(|(name, value)| !value.is_empty() && is_extension(name))
    {
        if !list.iter().any(|(there, _)| *there == name) {
            list.push((name, value.into()));
        }
    }
    list
}

/// Whether a header's name is one that an attribute may have, and none of ours.
fn is_extension(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty() && name.len() <= EXTENSION_NAME_MAX && name.bytes().all(legal) && !OURS.contains(&name)
}

/// An attribute may not be empty.
fn event_type(event: &Event) -> &str {
    Some(event.event_type()).filter(|name| !name.is_empty()).unwrap_or(&event.topic)
}

/// A service's name as a URI reference. One that is none (it holds a space, say) is percent-encoded; what is
/// encoded already stays so.
fn uri_reference(source: &str) -> Cow<'_, str> {
    if source.is_empty() {
        return "posthaste".into();
    }
    let text = percent(source, |byte| {
        !matches!(byte, b' ' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
    });
    // `a:b` would be read as the scheme `a`; a path with a dot before it is the same and is none.
    let colon_first = text.split(['/', '?', '#']).next().is_some_and(|first| first.contains(':'));
    let is_scheme = text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
    });
    if colon_first && !is_scheme { format!("./{text}").into() } else { text }
}

/// Percent-encodes what lies outside of printable ASCII, and what `plain` refuses.
fn percent(text: &str, plain: impl Fn(u8) -> bool) -> Cow<'_, str> {
    let plain = |byte: u8| matches!(byte, 0x21..=0x7e | b' ') && plain(byte);
    if text.bytes().all(&plain) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        if plain(byte) { out.push(char::from(byte)) } else { out.push_str(&format!("%{byte:02X}")) }
    }
    out.into()
}

/// The structured mode: attributes, then the payload as its content type says.
fn structured(bytes: &[u8], stored: &StoredEvent, source: &str) -> Result<Bytes, Failure> {
    let mut out = String::with_capacity(bytes.len() + 384);
    for (name, value) in attributes(stored, source) {
        out.push(if out.is_empty() { '{' } else { ',' });
        out.push_str(&format!("\"{name}\":{}", quoted(&value)));
    }
    match form(bytes, stored.event.content_type.as_deref()) {
        Form::Json => {
            check_json(bytes)?;
            out.push_str(",\"data\":");
            // Checked: JSON is UTF-8. Not a byte of it changes.
            out.push_str(&String::from_utf8_lossy(bytes));
        }
        Form::Text(text) => out.push_str(&format!(",\"data\":{}", quoted(text))),
        Form::Binary => out.push_str(&format!(",\"data_base64\":\"{}\"", base64(bytes))),
    }
    out.push('}');
    Ok(out.into())
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// How a payload is written into a JSON object.
#[derive(Debug, PartialEq)]
enum Form<'a> {
    Json,
    Text(&'a str),
    Binary,
}

/// JSON is embedded as it is, text becomes a string, anything else base64. Without a content type the bytes
/// decide between JSON and base64: a consumer takes `data` without one for JSON.
fn form<'a>(bytes: &'a [u8], content_type: Option<&str>) -> Form<'a> {
    let Some(content_type) = content_type else {
        return if check_json(bytes).is_ok() { Form::Json } else { Form::Binary };
    };
    let lower = content_type.to_ascii_lowercase();
    let mut parts = lower.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let (kind, subtype) = media.split_once('/').unwrap_or((media, ""));
    if subtype == "json" || subtype.ends_with("+json") {
        return Form::Json;
    }
    let charset = parts.find_map(|part| part.strip_prefix("charset=")).unwrap_or("utf-8").trim_matches('"');
    let is_text = kind == "text" || subtype == "xml" || subtype.ends_with("+xml");
    match std::str::from_utf8(bytes) {
        Ok(text) if is_text && matches!(charset, "utf-8" | "us-ascii") => Form::Text(text),
        _ => Form::Binary,
    }
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * place) & 63) as usize];
            out.push(if place > chunk.len() { '=' } else { char::from(letter) });
        }
    }
    out
}

pub(crate) fn check_json(bytes: &[u8]) -> Result<(), Failure> {
    let bad = |why: String| Failure::of_event("payload.not_json", format!("the payload is not JSON: {why}"));
    // First: the reader of JSON skips strings without looking at their encoding.
    std::str::from_utf8(bytes).map_err(|error| bad(error.to_string()))?;
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map(|_| ()).map_err(|error| bad(error.to_string()))
}

/// Adds `"messageId"` to a JSON object without touching a byte of the rest. A member of that name that
/// is there already must say the same.
fn with_message_id(bytes: &Bytes, stored: &StoredEvent) -> Result<Bytes, Failure> {
    #[derive(serde::Deserialize)]
    struct Probe<'a> {
        #[serde(rename = "messageId", borrow)]
        message_id: Option<&'a serde_json::value::RawValue>,
    }
    let bad = |why: String| Failure::of_event("payload.not_object", why);
    let probe: Probe<'_> = serde_json::from_slice(bytes)
        .map_err(|error| bad(format!("messageId can only be added to a JSON object: {error}")))?;
    let id = stored.event.id.hyphenated().to_string();
    match probe.message_id.map(serde_json::value::RawValue::get) {
        Some(there) if there == format!("\"{id}\"") => return Ok(bytes.clone()),
        Some(_) => return Err(bad("the payload has another messageId already".to_owned())),
        None => {}
    }
    let open = bytes
        .iter()
        .position(|b| *b == b'{')
        .ok_or_else(|| bad("the payload is no JSON object".to_owned()))?;
    let rest = &bytes[open + 1..];
    let comma = if rest.trim_ascii_start().starts_with(b"}") { "" } else { "," };
    let mut out = Vec::with_capacity(bytes.len() + 56);
    out.extend_from_slice(&bytes[..=open]);
    out.extend_from_slice(format!("\"messageId\":\"{id}\"{comma}").as_bytes());
    out.extend_from_slice(rest);
    Ok(out.into())
}

#[cfg(test)]
mod tests;
