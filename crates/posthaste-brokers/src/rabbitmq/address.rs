//! The address of a broker: `amqp://host:port/vhost`.

use super::wire::SHORT_MAX;
use crate::BuildError;
use std::fmt;

const PORT: u16 = 5672;
const TLS_PORT: u16 = 5671;
const ROOT: &str = "/";

/// Where a broker is. Shown without anything secret: credentials are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) vhost: String,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, BuildError> {
        let bad = |why: &str| BuildError::option("url", why);
        let shape = || bad("must look like amqp://host:5672/vhost, or amqps://host:5671/vhost");
        let (scheme, rest) = url.split_once("://").ok_or_else(shape)?;
        let tls = match scheme {
            "amqp" => false,
            "amqps" => true,
            _ => return Err(bad("must begin with amqp:// or amqps://")),
        };
        if rest.contains('@') {
            return Err(bad("must not hold credentials; use user with password_file"));
        }
        if rest.contains(['?', '#']) {
            return Err(bad("must not hold parameters; they are options of the sink"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = split_port(authority).ok_or_else(shape)?;
        let vhost = decode(path).ok_or_else(|| bad("holds a percent sign that is no escape"))?;
        if vhost.len() > SHORT_MAX {
            return Err(bad("holds a virtual host of more than 255 bytes"));
        }
        // A slash at the end means the usual virtual host for everybody but the specification.
        let vhost = if vhost.is_empty() { ROOT.to_owned() } else { vhost };
        Ok(Self { tls, host, port: port.unwrap_or(if tls { TLS_PORT } else { PORT }), vhost })
    }
}

/// `host`, `host:port`, `[::1]:port`.
fn split_port(authority: &str) -> Option<(String, Option<u16>)> {
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
    let port = port.map(str::parse).transpose().ok()?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "amqps" } else { "amqp" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        write!(f, "{scheme}://{host}:{}", self.port)?;
        if self.vhost == ROOT { Ok(()) } else { write!(f, " (virtual host {:?})", self.vhost) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let shown = |url: &str| Address::parse(url).expect(url).to_string();
        for (url, text) in [
            ("amqp://h", "amqp://h:5672"),
            ("amqps://h", "amqps://h:5671"),
            ("amqp://h:1/", "amqp://h:1"),
            ("amqp://h/%2f", "amqp://h:5672"),
            ("amqp://h/shop", "amqp://h:5672 (virtual host \"shop\")"),
            ("amqp://[::1]:7/a%20b", "amqp://[::1]:7 (virtual host \"a b\")"),
        ] {
            assert_eq!(shown(url), text);
        }
        for bad in [
            "h",
            "http://h",
            "amqp://",
            "amqp://u@h",
            "amqp://h:x",
            "amqp://h/%zz",
            "amqp://h?heartbeat=1",
            "amqp://[::1",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
