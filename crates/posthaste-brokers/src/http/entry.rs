//! From a message to a request: its headers, and its signature.
//!
//! Signatures are those of [Standard Webhooks](https://www.standardwebhooks.com): `v1,` and the base64 of
//! HMAC-SHA256 over `id.timestamp.body`, one for each secret with a space between. A receiver accepts the
//! request when one of them fits. So a secret is replaced in three steps: add the new one here, change the
//! receiver, take the old one away.
//!
//! Nothing that an event holds can end a line. Names are checked by their parser. Values are printable ASCII,
//! or are encoded until they are.

use super::client::Request;
use super::client::endpoint::Endpoint;
use super::verdict;
use crate::{BuildError, Secret};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::{
    ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use posthaste::sink::{Message, Verdict};
use sha2::Sha256;
use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

/// As many headers as a usual message has, and a few more.
const USUAL_HEADERS: usize = 24;
const AGENT: &str = concat!("posthaste/", env!("CARGO_PKG_VERSION"));

/// Names that every message has. They need not be parsed.
static KNOWN: [HeaderName; 5] = [
    HeaderName::from_static("key"),
    HeaderName::from_static("message-id"),
    HeaderName::from_static("source"),
    HeaderName::from_static("time"),
    HeaderName::from_static("type"),
];
static ENCODED: HeaderName = HeaderName::from_static("posthaste-encoded");
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
static TOMBSTONE: HeaderName = HeaderName::from_static("posthaste-tombstone");
static WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
static WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
static WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");

/// Names that mean something to HTTP, to what stands between us and the receiver, or to the signature. An
/// event's header of such a name could end a request early, start another one, or forge who we are.
const OURS: [&str; 24] = [
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

/// Whether a header of this lower-case name may only be ours.
pub(super) fn is_ours(name: &str) -> bool {
    let is_a_family = name.starts_with("x-forwarded-") || name.starts_with("posthaste-");
    is_a_family || OURS.binary_search(&name).is_ok()
}

/// What requests need besides their messages. Some of it may lie in files.
pub(super) struct Keys {
    pub(super) signer: Signer,
    /// Credentials and fixed headers.
    pub(super) headers: HeaderMap,
    /// Texts that must never be shown, though a receiver may echo them.
    pub(super) hidden: Vec<String>,
}

/// The request of a message, or the verdict if it can have none.
pub(super) fn request(message: &Message, to: &Endpoint, keys: &Keys) -> Result<Request, Verdict> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let headers = headers(message, &to.host, keys, now)?;
    Ok(Request { headers, payload: message.payload.clone().unwrap_or_default() })
}

fn headers(message: &Message, host: &HeaderValue, keys: &Keys, now: u64) -> Result<HeaderMap, Verdict> {
    let mut adding = Adding::new(host, keys);
    let mut bad = None;
    message.each_header(|name, value| {
        if adding.add(name, value.as_bytes()).is_none() {
            bad = Some(name.to_owned());
        }
    });
    match bad {
        Some(name) => Err(verdict::bad_header(&name)),
        None => {
            let done = adding.finish(message.id(), message.payload.as_deref(), &keys.signer, now);
            done.ok_or_else(|| verdict::bad_config("webhook-signature"))
        }
    }
}

/// Headers of a request, while they are put together.
pub(super) struct Adding<'a> {
    map: HeaderMap,
    /// Headers of the configuration, which win.
    fixed: &'a HeaderMap,
    /// Names of the headers whose values are percent-encoded.
    encoded: String,
    has_type: bool,
}

impl<'a> Adding<'a> {
    pub(super) fn new(host: &HeaderValue, keys: &'a Keys) -> Self {
        let mut map = HeaderMap::with_capacity(USUAL_HEADERS);
        map.insert(HOST, host.clone());
        map.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        for (name, value) in &keys.headers {
            map.append(name, value.clone());
        }
        Self { map, fixed: &keys.headers, encoded: String::new(), has_type: false }
    }

    /// Adds one of the message's own. `None`: HTTP cannot carry it.
    pub(super) fn add(&mut self, name: &str, value: &[u8]) -> Option<()> {
        let wanted = if name == "Message-ID" { "message-id" } else { name };
        if let Ok(known) = KNOWN.binary_search_by(|known| known.as_str().cmp(wanted)) {
            return self.put(KNOWN[known].clone(), value);
        }
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        // Two content types would count as none, so the second travels as `x-event-content-type`.
        let is_second = name == CONTENT_TYPE && std::mem::replace(&mut self.has_type, true);
        if is_second || is_ours(name.as_str()) {
            return self.put(HeaderName::try_from(format!("x-event-{name}")).ok()?, value);
        }
        self.put(name, value)
    }

    pub(super) fn put(&mut self, name: HeaderName, value: &[u8]) -> Option<()> {
        if !self.fixed.is_empty() && self.fixed.contains_key(&name) {
            return Some(());
        }
        let value = carried(value);
        if let Cow::Owned(_) = value {
            self.encoded.push_str(if self.encoded.is_empty() { "" } else { ", " });
            self.encoded.push_str(name.as_str());
        }
        self.map.append(name, HeaderValue::from_bytes(&value).ok()?);
        Some(())
    }

    pub(super) fn finish(
        mut self,
        id: String,
        payload: Option<&[u8]>,
        signer: &Signer,
        now: u64,
    ) -> Option<HeaderMap> {
        if !self.map.contains_key(ACCEPT) {
            self.map.insert(ACCEPT, HeaderValue::from_static("*/*"));
        }
        if !self.encoded.is_empty() {
            self.map.insert(ENCODED.clone(), HeaderValue::try_from(self.encoded).ok()?);
        }
        // This header tells a tombstone from an empty payload.
        if payload.is_none() {
            self.map.insert(TOMBSTONE.clone(), HeaderValue::from_static("true"));
        }
        let (timestamp, body) = (now.to_string(), payload.unwrap_or_default());
        if let Some(signature) = signer.sign(&id, &timestamp, body) {
            self.map.insert(WEBHOOK_SIGNATURE.clone(), HeaderValue::try_from(signature).ok()?);
        }
        let id = HeaderValue::try_from(id).ok()?;
        self.map.insert(WEBHOOK_TIMESTAMP.clone(), HeaderValue::from(now));
        self.map.insert(IDEMPOTENCY_KEY.clone(), id.clone());
        self.map.insert(WEBHOOK_ID.clone(), id);
        // The header stands there also without a body, because some servers refuse a POST without it (411).
        self.map.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        Some(self.map)
    }
}

/// The value as HTTP can carry it: as it is, or percent-encoded.
pub(super) fn carried(value: &[u8]) -> Cow<'_, [u8]> {
    let visible = |byte: u8| matches!(byte, 0x20..=0x7e);
    let trimmed = value.starts_with(b" ") || value.ends_with(b" ");
    if !trimmed && value.iter().copied().all(visible) {
        return value.into();
    }
    let last = value.len().saturating_sub(1);
    let mut out = String::with_capacity(value.len() + 16);
    for (at, byte) in value.iter().copied().enumerate() {
        let edge = byte == b' ' && (at == 0 || at == last);
        if visible(byte) && byte != b'%' && !edge {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out.into_bytes().into()
}

/// Shorter keys can be guessed.
const KEY_BYTES_MIN: usize = 16;

/// The secrets, ready for use.
pub(super) struct Signer {
    keys: Vec<Hmac<Sha256>>,
}

impl Signer {
    pub(super) fn new(secrets: &[Secret]) -> Result<Self, BuildError> {
        let keys = secrets.iter().map(key).collect::<Result<_, _>>()?;
        Ok(Self { keys })
    }

    /// The value of `webhook-signature`; `None` without secrets.
    pub(super) fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> Option<String> {
        let mut text = String::with_capacity(self.keys.len() * 48);
        for key in &self.keys {
            let mut mac = key.clone();
            for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
                mac.update(part);
            }
            text.push_str(if text.is_empty() { "v1," } else { " v1," });
            STANDARD.encode_string(mac.finalize().into_bytes(), &mut text);
        }
        (!text.is_empty()).then_some(text)
    }
}

fn key(secret: &Secret) -> Result<Hmac<Sha256>, BuildError> {
    let bad = |why: &str| BuildError::option("secrets", why);
    let text = secret.expose();
    let encoded = text.strip_prefix("whsec_").unwrap_or(text);
    // Not the decoder's own words: they quote the secret.
    let bytes = STANDARD.decode(encoded).map_err(|_| bad("a secret must be whsec_ and base64"))?;
    if bytes.len() < KEY_BYTES_MIN {
        return Err(bad("a secret must have at least 16 bytes, better 24 (openssl rand -base64 24)"));
    }
    Hmac::new_from_slice(&bytes).map_err(|_| bad("a secret cannot be used"))
}

#[cfg(test)]
mod tests;
