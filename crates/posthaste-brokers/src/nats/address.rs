//! Where servers are.

/// The port of NATS.
const PORT: u16 = 4222;

/// A server of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    /// Asked for by the scheme.
    pub(super) tls: bool,
}

/// Without anything secret: [`Address::parse`] refuses credentials.
impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "tls" } else { "nats" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl Address {
    /// Nobody is between us and this host.
    pub(super) fn is_loopback(&self) -> bool {
        let ip = self.host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        ip || self.host.eq_ignore_ascii_case("localhost")
    }

    /// Reads a URL, or says what is wrong in words that hold nothing of it.
    pub(super) fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "nats" => false,
            "tls" => true,
            _ => return Err("must begin with nats:// or tls:// and name a host"),
        };
        if rest.contains('@') {
            return Err("must not hold credentials; use user with password_file, or token_file");
        }
        let (host, port) = split_port(rest.strip_suffix('/').unwrap_or(rest))?;
        Ok(Self { host: host.to_owned(), port: port.unwrap_or(PORT), tls })
    }
}

fn split_port(server: &str) -> Result<(&str, Option<u16>), &'static str> {
    const SHAPE: &str = "must look like nats://host:4222";
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0).map(Some).ok_or(SHAPE);
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, after)) => (host, port(after.strip_prefix(':').unwrap_or_default())?),
            None => return Err(SHAPE),
        },
        None => match server.split_once(':') {
            Some((host, text)) => (host, port(text)?),
            None => (server, None),
        },
    };
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '#');
    if host.is_empty() || host.contains(odd) { Err(SHAPE) } else { Ok((host, port)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let parse = |url: &str| Address::parse(url).map(|address| address.to_string());
        for (url, shown) in [
            ("nats://h", "nats://h:4222"),
            ("h", "nats://h:4222"),
            ("h:1", "nats://h:1"),
            ("TLS://h:1/", "tls://h:1"),
            ("nats://[::1]:5", "nats://[::1]:5"),
            ("nats://[::1]", "nats://[::1]:4222"),
        ] {
            assert_eq!(parse(url).as_deref(), Ok(shown), "{url}");
        }
        for bad in [
            "",
            "nats://",
            "nats://:1",
            "nats://h:0",
            "nats://h:x",
            "nats://h:70000",
            "http://h",
            "ws://h",
            "nats://h/x",
            "nats://h?x",
            "nats://[::1",
            "nats://::1",
            "nats://a b",
            "nats://u:secret@h",
            "secret@h",
        ] {
            let error = parse(bad).expect_err(bad);
            assert!(!error.contains("secret"), "{bad}");
        }
    }
}
