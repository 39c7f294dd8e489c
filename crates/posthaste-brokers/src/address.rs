//! Where servers are: one parser for the addresses of all brokers.
//!
//! `scheme://host:port/path`. An IPv6 address stands in brackets. Credentials are refused, because an address
//! is printed in logs, findings and errors. Port 0, parameters, and a path where the broker has none are
//! refused, too.

use std::fmt;

/// A scheme, whether it means TLS, and its usual port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub(crate) name: &'static str,
    pub(crate) tls: bool,
    pub(crate) port: u16,
}

/// How a broker's addresses look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// An address without a scheme means the first one, if that is allowed.
    pub(crate) schemes: &'static [Scheme],
    pub(crate) needs_scheme: bool,
    pub(crate) has_path: bool,
    /// An address as people write it.
    pub(crate) example: &'static str,
    /// Where credentials belong instead.
    pub(crate) credentials: &'static str,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) scheme: &'static str,
    pub(crate) tls: bool,
    /// Without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Holds nothing secret: [`Shape::parse`] refuses credentials.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "{}://[{}]:{}", self.scheme, self.host, self.port),
            false => write!(f, "{}://{}:{}", self.scheme, self.host, self.port),
        }
    }
}

impl Address {
    /// Whether this host is our own machine, so that nobody listens in between.
    pub(crate) fn is_loopback(&self) -> bool {
        let ip = self.host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        ip || self.host.eq_ignore_ascii_case("localhost")
    }

    /// Another server that is reached in the same way.
    pub(crate) fn sibling(&self, host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port, ..self.clone() }
    }

    /// `host:port`, as clients want it.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl Shape {
    /// Reads an address and the path behind it, or says what is wrong in words that hold nothing of it.
    pub(crate) fn parse<'a>(&self, url: &'a str) -> Result<(Address, &'a str), String> {
        let (scheme, rest) = self.scheme(url)?;
        if rest.contains('@') {
            return Err(format!("must not hold credentials; use {}", self.credentials));
        }
        if rest.contains(['?', '#']) {
            return Err(format!("must look like {}; everything else has an option of its own", self.example));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() && !self.has_path {
            return Err(self.looks());
        }
        let (host, port) = split_port(authority).ok_or_else(|| self.looks())?;
        let port = port.unwrap_or(scheme.port);
        Ok((Address { scheme: scheme.name, tls: scheme.tls, host: host.to_owned(), port }, path))
    }

    fn scheme<'a>(&self, url: &'a str) -> Result<(Scheme, &'a str), String> {
        let found = match url.split_once("://") {
            Some((name, rest)) => {
                let known = |scheme: &&Scheme| scheme.name.eq_ignore_ascii_case(name);
                self.schemes.iter().find(known).map(|scheme| (*scheme, rest))
            }
            None if self.needs_scheme => None,
            None => self.schemes.first().map(|scheme| (*scheme, url)),
        };
        let names = || self.schemes.iter().map(|scheme| format!("{}://", scheme.name)).collect::<Vec<_>>();
        found.ok_or_else(|| format!("must begin with {}", names().join(" or ")))
    }

    fn looks(&self) -> String {
        format!("must look like {}", self.example)
    }
}

/// `host`, `host:port`, `[::1]` or `[::1]:port`.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, tail) = rest.split_once(']')?;
            (host, if tail.is_empty() { None } else { Some(tail.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port: Option<u16> = port.map(str::parse).transpose().ok()?;
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '[' | ']');
    (!host.is_empty() && !host.contains(is_odd) && port != Some(0)).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STRICT: Shape = Shape {
        schemes: &[
            Scheme { name: "amqp", tls: false, port: 5672 },
            Scheme { name: "amqps", tls: true, port: 5671 },
        ],
        needs_scheme: true,
        has_path: true,
        example: "amqp://host:5672/vhost",
        credentials: "user with password_file",
    };
    const LOOSE: Shape = Shape { needs_scheme: false, has_path: false, ..STRICT };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// What is printed of an address means the same one, and never holds credentials.
        #[test]
        fn any_text_is_an_address_or_refused(
            url in "(amqps?://)?(\\[{0,2}[a9.:]{0,3}\\]{0,2}[:/?#@, ]{0,2}[0-9]{0,5}|\\PC{0,20})",
        ) {
            for shape in [STRICT, LOOSE] {
                if let Ok((address, _)) = shape.parse(&url) {
                    let shown = address.to_string();
                    prop_assert!(!shown.contains('@'));
                    prop_assert_eq!(STRICT.parse(&shown), Ok((address, "")));
                }
            }
        }
    }

    #[test]
    fn what_an_address_may_look_like() {
        let shown = |shape: Shape, url| shape.parse(url).map(|(address, path)| (address.to_string(), path));
        for (url, address, path) in [
            ("amqp://h", "amqp://h:5672", ""),
            ("amqps://h/", "amqps://h:5671", ""),
            ("AMQP://h:1/shop", "amqp://h:1", "shop"),
            ("amqp://[::1]:7/a%20b", "amqp://[::1]:7", "a%20b"),
            ("amqp://[::1]", "amqp://[::1]:5672", ""),
        ] {
            assert_eq!(shown(STRICT, url), Ok((address.to_owned(), path)));
        }
        assert_eq!(shown(LOOSE, "h:9"), Ok(("amqp://h:9".to_owned(), "")));
        assert_eq!(shown(LOOSE, "amqps://h/"), Ok(("amqps://h:5671".to_owned(), "")));
    }

    #[test]
    fn what_it_may_not() {
        for bad in [
            "",
            "h",
            "http://h",
            "amqp://",
            "amqp://:1",
            "amqp://h:0",
            "amqp://h:x",
            "amqp://h:70000",
            "amqp://u:secret@h",
            "amqp://h?x=1",
            "amqp://h#x",
            "amqp://[::1",
            "amqp://[::1]x",
            "amqp://[[h]",
            "amqp://::1",
            "amqp://a b",
            "amqp://a,b",
            "unix:///s",
        ] {
            assert!(STRICT.parse(bad).is_err(), "{bad}");
        }
        assert!(LOOSE.parse("h/path").is_err());
        let why = STRICT.parse("amqp://u:secret@h").expect_err("credentials");
        assert_eq!(why, "must not hold credentials; use user with password_file");
        assert_eq!(STRICT.parse("x://h").expect_err("scheme"), "must begin with amqp:// or amqps://");
    }

    #[test]
    fn a_host_on_this_machine() {
        let loopback = |url| LOOSE.parse(url).expect(url).0.is_loopback();
        assert!(["127.0.0.1", "[::1]:1", "LOCALHOST"].into_iter().all(loopback));
        assert!(!["10.0.0.1", "localhost.example"].into_iter().any(loopback));
    }
}
