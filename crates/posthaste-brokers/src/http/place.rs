//! A destination, ready to be sent to: what its requests have in common is made once.

use super::address::origin;
use super::dial::Target;
use super::headers::line;
use hyper::Uri;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use std::fmt;
use std::sync::Arc;
use url::Url;

/// Where requests of a destination go.
pub(super) struct Place {
    pub(super) destination: String,
    /// Scheme, name and port.
    pub(super) origin: Arc<str>,
    pub(super) target: Target,
    /// How its requests begin: the request line, and the headers that they all have.
    pub(super) opening: Vec<u8>,
    /// The URL as a whole: what HTTP/2 asks for.
    pub(super) whole: Uri,
    /// Headers that HTTP/2 must not keep in its tables.
    pub(super) sensitive: Vec<HeaderName>,
}

impl fmt::Debug for Place {
    /// Without what it opens with: credentials are in there. Paths may be secret, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Place {
    /// The place of a destination with this URL, or why it has none. `fixed` are the configuration's headers.
    pub(super) fn new(destination: &str, url: &Url, fixed: &HeaderMap) -> Result<Self, &'static str> {
        const ODD: &str = "holds a character that no request can carry";
        let whole: Uri = url.as_str().parse().map_err(|_| ODD)?;
        let is_secret =
            |(name, value): (&HeaderName, &HeaderValue)| value.is_sensitive().then(|| name.clone());
        let sensitive = fixed.iter().filter_map(is_secret).collect();
        Ok(Self {
            destination: destination.to_owned(),
            origin: origin(url).into(),
            target: Target::new(url),
            opening: opening(url, fixed).ok_or(ODD)?,
            whole,
            sensitive,
        })
    }
}

fn opening(url: &Url, fixed: &HeaderMap) -> Option<Vec<u8>> {
    let path = url.query().map_or(url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let name = url.host_str()?;
    // The usual port of a scheme is left out.
    let host = url.port().map_or(name.to_owned(), |port| format!("{name}:{port}"));
    // The URL's parser has encoded everything else. A line of a request must never depend on it.
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain(&path) || !is_plain(&host) {
        return None;
    }
    let mut text = format!("POST {path} HTTP/1.1\r\n").into_bytes();
    line(&mut text, "host", &host);
    line(&mut text, "user-agent", concat!("posthaste/", env!("CARGO_PKG_VERSION")));
    for (name, value) in fixed {
        line(&mut text, name.as_str(), value.to_str().ok()?);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{ACCEPT, AUTHORIZATION};

    #[test]
    fn what_is_asked_for_and_whom() {
        let rows = [
            ("https://h.example/in/a%20b", "/in/a%20b", "h.example"),
            ("https://h.example:443", "/", "h.example"),
            ("http://h.example:8080/?a=%26&b", "/?a=%26&b", "h.example:8080"),
            ("http://[::1]:80/x", "/x", "[::1]"),
            ("https://h.example/x?{\"a\":[1|2]}", "/x?{%22a%22:[1|2]}", "h.example"),
        ];
        for (text, path, host) in rows {
            let url = Url::parse(text).expect("a URL");
            let place = Place::new("d", &url, &HeaderMap::new()).expect(text);
            let expected = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: posthaste/");
            assert!(place.opening.starts_with(expected.as_bytes()), "{text}");
            assert_eq!(place.whole.to_string(), url.as_str());
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let mut secret = HeaderValue::from_static("hunter2");
        secret.set_sensitive(true);
        let fixed =
            HeaderMap::from_iter([(AUTHORIZATION, secret), (ACCEPT, HeaderValue::from_static("*/*"))]);
        let url = Url::parse("https://h.example/path").expect("a URL");
        let place = Place::new("d", &url, &fixed).expect("a place");
        assert_eq!(place.sensitive, [AUTHORIZATION]);
        let shown = format!("{place:?}");
        assert!(!shown.contains("path") && !shown.contains(&format!("{:?}", b"hunter2")[1..20]), "{shown}");
    }
}
