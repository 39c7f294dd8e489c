//! From a destination to the URL that its requests go to.
//!
//! Destinations may hold what a stranger wrote (`{header:x}` in a template). Below a base URL they are only
//! ever path segments. Each segment is encoded by the parser that will read it again, and the result is
//! compared with the base at the end. So a surprise of that parser is a rejection, and not a request
//! elsewhere.

use super::dial::DialTarget;
use crate::{BuildError, Urls};
use hyper::Uri;
use hyper::header::HeaderValue;
use std::fmt;
use std::sync::Arc;
use url::Url;

/// Longer URLs are refused by most servers anyway.
const URL_BYTES_MAX: usize = 8_192;

/// How destinations become URLs.
#[derive(Debug)]
pub(crate) struct Addresses {
    base: Option<Url>,
    wants_tls: bool,
}

impl Addresses {
    pub(crate) fn new(url: Option<&Urls>, wants_tls: bool) -> Result<Self, BuildError> {
        let base = url.map(|url| base(url, wants_tls)).transpose()?;
        Ok(Self { base, wants_tls })
    }

    /// The URL that all destinations are below, if there is one.
    pub(crate) fn base(&self) -> Option<&Url> {
        self.base.as_ref()
    }

    /// The URL of a destination, or why there is none. The words never repeat the destination.
    pub(crate) fn find(&self, destination: &str) -> Result<Url, &'static str> {
        if destination.len() > URL_BYTES_MAX {
            return Err("is longer than 8192 bytes");
        }
        // The parser drops some of them silently: `ht\ntp:` would be a scheme.
        if destination.chars().any(char::is_control) {
            return Err("holds a control character");
        }
        match &self.base {
            Some(base) => below(base, destination),
            None => whole(destination, self.wants_tls),
        }
    }
}

/// Scheme, host and port of the server that answers.
pub(crate) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn base(url: &Urls, wants_tls: bool) -> Result<Url, BuildError> {
    let bad = |why: &str| BuildError::option("url", why);
    let mut given = url.iter();
    let (Some(text), None) = (given.next(), given.next()) else { return Err(bad("must be one URL")) };
    let url = whole(text, wants_tls).map_err(bad)?;
    if url.query().is_some() {
        return Err(bad("must not have a query: what is secret in it belongs into headers or token_file"));
    }
    Endpoint::new("/", &url).map_err(bad)?;
    Ok(url)
}

fn whole(text: &str, wants_tls: bool) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "is no URL: it must look like https://host/path")?;
    match url.scheme() {
        "https" => {}
        "http" if !wants_tls => {}
        "http" => return Err("must begin with https://: TLS is required"),
        _ => return Err("must begin with https:// or http://"),
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("names no host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold credentials; use user with password_file, or token_file");
    }
    if url.fragment().is_some() {
        return Err("must not have a fragment");
    }
    Ok(url)
}

fn below(base: &Url, destination: &str) -> Result<Url, &'static str> {
    let path = destination.strip_prefix('/').unwrap_or(destination);
    if path.is_empty() {
        return Ok(base.clone());
    }
    let mut url = base.clone();
    {
        let mut segments = url.path_segments_mut().map_err(|()| "cannot be put below the URL")?;
        segments.pop_if_empty();
        for segment in path.split('/') {
            // Some servers take `..;x` for `..` with a parameter.
            let name = segment.split(';').next().unwrap_or_default();
            if segment.is_empty() || matches!(name, "." | "..") {
                return Err("has an empty part, \".\" or \"..\" in its path");
            }
            segments.push(segment);
        }
    }
    let kept = origin(&url) == origin(base)
        && url.path().starts_with(base.path().trim_end_matches('/'))
        && url.query().is_none()
        && url.fragment().is_none();
    if kept { Ok(url) } else { Err("leaves the URL of the sink") }
}

/// A destination, ready to be sent to. Its parts are made once for all requests of a call.
pub(crate) struct Endpoint {
    pub(crate) destination: String,
    /// Scheme, name and port.
    pub(crate) origin: Arc<str>,
    pub(crate) target: DialTarget,
    /// Name and port, as the header `Host` has them.
    pub(crate) host: HeaderValue,
    /// What HTTP/1.1 asks for.
    pub(crate) path: Uri,
    /// What HTTP/2 asks for: the URL as a whole.
    pub(crate) whole: Uri,
}

impl fmt::Debug for Endpoint {
    /// Without the path, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// The endpoint of a destination with this URL, or why it has none.
    pub(crate) fn new(destination: &str, url: &Url) -> Result<Self, &'static str> {
        const ODD: &str = "holds a character that no request can carry";
        let whole: Uri = url.as_str().parse().map_err(|_| ODD)?;
        let path = whole.path_and_query().map_or("/", |path| path.as_str());
        let name = url.host_str().ok_or(ODD)?;
        // The usual port of a scheme is left out.
        let host = url.port().map_or(name.to_owned(), |port| format!("{name}:{port}"));
        // The URL's parser has encoded everything else, but a line of a request must not depend on that.
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_plain(path) || !is_plain(&host) {
            return Err(ODD);
        }
        Ok(Self {
            destination: destination.to_owned(),
            origin: origin(url).into(),
            target: DialTarget::new(url),
            path: path.parse().map_err(|_| ODD)?,
            host: host.try_into().map_err(|_| ODD)?,
            whole,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let endpoint = Endpoint::new("d", &url).expect(text);
            assert_eq!(
                (endpoint.path.to_string().as_str(), endpoint.host.as_bytes()),
                (path, host.as_bytes())
            );
            assert_eq!(endpoint.whole.to_string(), url.as_str());
            assert!(!format!("{endpoint:?}").contains("in/a"), "paths may be secret");
        }
    }

    fn below(base: &str, destination: &str) -> Result<String, &'static str> {
        let addresses = Addresses::new(Some(&Urls::new(base)), false).expect("a base");
        addresses.find(destination).map(String::from)
    }

    fn whole(destination: &str, wants_tls: bool) -> Result<String, &'static str> {
        Addresses::new(None, wants_tls).expect("no base").find(destination).map(String::from)
    }

    #[test]
    fn destinations_are_paths_below_the_url() {
        let rows = [
            ("https://h", "orders.placed", "https://h/orders.placed"),
            ("https://h/in", "orders.placed", "https://h/in/orders.placed"),
            ("https://h/in/", "/a/b", "https://h/in/a/b"),
            ("https://h/in", "/", "https://h/in"),
            ("https://h:8443/", "a b", "https://h:8443/a%20b"),
            ("http://h/in", "grün", "http://h/in/gr%C3%BCn"),
            ("https://h/in", "a?b#c", "https://h/in/a%3Fb%23c"),
            ("https://h/in", "100%", "https://h/in/100%25"),
        ];
        for (base, destination, url) in rows {
            assert_eq!(below(base, destination).as_deref(), Ok(url), "{destination}");
        }
    }

    /// Whatever the text is, the host stays.
    #[test]
    fn f47_no_destination_leaves_the_url() {
        let hostile = [
            "https://evil.example/x",
            "//evil.example/x",
            "@evil.example",
            ":80@evil.example/",
            "\\\\evil.example\\x",
            "/\\evil.example",
            "..%2f..%2fadmin",
            "%2e%2e/%2e%2e/admin",
            "a\\..\\..\\admin",
            "?x=1",
            "#x",
            ".%00",
        ];
        for text in hostile {
            if let Ok(url) = below("https://h.example/in", text) {
                assert!(url.starts_with("https://h.example/in/"), "{text} became {url}");
                assert!(url.split('/').all(|part| part != ".."), "{text} became {url}");
            }
        }
        for text in [
            "..",
            "../admin",
            "a/../../admin",
            "..;/admin",
            "..;x=1/admin",
            "a//b",
            "a/",
            ".",
            "a\nb",
            "a\tb",
            "a\0",
        ] {
            assert!(below("https://h.example/in", text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn whole_urls() {
        assert_eq!(whole("https://h.example/x?y=1", true).as_deref(), Ok("https://h.example/x?y=1"));
        assert_eq!(whole("http://h.example", false).as_deref(), Ok("http://h.example/"));
        // Other spellings of one address are seen by the guard as that address.
        assert_eq!(whole("http://0x7f.1/", false).as_deref(), Ok("http://127.0.0.1/"));
        for bad in [
            "",
            "orders.placed",
            "/x",
            "ftp://h/x",
            "file:///etc/passwd",
            "https://",
            "https://u:p@h/",
            "https://u@h/",
            "https://h/#f",
            "javascript:alert(1)",
            "ht\ntps://h/",
            "http://256.1.1.1/",
        ] {
            assert!(whole(bad, false).is_err(), "{bad:?}");
        }
        assert!(whole("http://h.example/", true).is_err(), "TLS is required");
        assert!(whole(&format!("https://h/{}", "x".repeat(9_000)), false).is_err());
    }

    #[test]
    fn bases_that_are_refused() {
        for bad in
            ["", "h", "ftp://h", "https://u:p@h", "https://h?x=1", "https://h#x", "https://a,https://b"]
        {
            let error = Addresses::new(Some(&Urls::new(bad)), false).expect_err(bad);
            assert_eq!(error.option_name(), "url");
        }
        assert!(Addresses::new(Some(&Urls::new("http://h")), true).is_err(), "TLS is required");
    }
}
