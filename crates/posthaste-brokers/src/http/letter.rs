//! A request as the bytes that go to the socket.
//!
//! What all requests of a destination have in common is written once for a call ([`Place::opening`](super::place::Place)),
//! the rest once for each message; nothing is copied again on the way out. A short body lies behind the head in the same
//! piece: one write instead of two. HTTP/2 wants a map of headers, and gets it from here.

use super::headers;
use super::kit::Kit;
use super::parcel::{Flushes, Gone, Parcel};
use super::place::Place;
use super::verdict;
use bytes::Bytes;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use posthaste::sink::{Message, Verdict};
use std::time::{SystemTime, UNIX_EPOCH};

/// Copying more than this costs more than a second piece.
const JOINED_BYTES_MAX: usize = 16 << 10;
/// What the headers of a usual message take.
const USUAL_BYTES: usize = 512;

/// A request.
pub(super) struct Letter {
    /// The head, and the body behind it if it is joined.
    text: Vec<u8>,
    head_bytes: usize,
    pub(super) payload: Bytes,
}

impl Letter {
    /// The request of a message, or the verdict if it can have none.
    pub(super) fn write(kit: &Kit, message: &Message, place: &Place) -> Result<Self, Verdict> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let payload = message.payload.clone().unwrap_or_default();
        let joined: &[u8] = if payload.len() <= JOINED_BYTES_MAX { &payload } else { &[] };
        let mut text = Vec::with_capacity(place.opening.len() + USUAL_BYTES + joined.len());
        text.extend_from_slice(&place.opening);
        headers::write(&mut text, message, &kit.keys.headers, &kit.keys.signer, now)
            .map_err(|name| verdict::bad_header(&name))?;
        text.extend_from_slice(b"\r\n");
        let head_bytes = text.len();
        text.extend_from_slice(joined);
        Ok(Self { text, head_bytes, payload })
    }

    /// What is written, one after the other.
    pub(super) fn pieces(&self) -> [&[u8]; 2] {
        let is_joined = self.text.len() - self.head_bytes == self.payload.len();
        [&self.text, if is_joined { &[] } else { &self.payload }]
    }

    /// The same for HTTP/2, and who hears that its body has left.
    pub(super) fn request(&self, place: &Place, flushes: &Flushes) -> (Request<Parcel>, Option<Gone>) {
        let (parcel, gone) = Parcel::new(self.payload.clone(), flushes);
        let mut request = Request::new(parcel);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = place.whole.clone();
        *request.headers_mut() = map(&self.text[..self.head_bytes]);
        request.headers_mut().remove(HOST);
        for (name, value) in request.headers_mut() {
            value.set_sensitive(place.sensitive.contains(name));
        }
        (request, gone)
    }
}

/// The headers of a head that was written here.
pub(super) fn map(head: &[u8]) -> HeaderMap {
    let lines = head.split(|byte| *byte == b'\n').skip(1).map(<[u8]>::trim_ascii);
    let pair = |line: &[u8]| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        Some((name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(pair) {
        headers.append(name, value);
    }
    headers
}
