//! Where servers are: the URLs of the configuration, and what clusters and sentinels name.

/// A server, or a sentinel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "rediss" } else { "redis" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl Address {
    /// Reads a URL and the number of the database in it, or says what is wrong in words that hold nothing of it.
    pub(super) fn parse(url: &str, default_port: u16) -> Result<(Self, u32), &'static str> {
        let (tls, rest) = match url.split_once("://") {
            Some(("redis", rest)) => (false, rest),
            Some(("rediss", rest)) => (true, rest),
            _ => return Err("must begin with redis:// or rediss://"),
        };
        if rest.contains('@') {
            return Err("must not hold credentials; use user with password_file");
        }
        if rest.contains(['?', '#']) {
            return Err("must look like redis://host:6379/0; everything else has an option of its own");
        }
        let (server, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = match database {
            "" => 0,
            number => number.parse().map_err(|_| "must end with the number of a database, as in /0")?,
        };
        let (host, port) = split_port(server)?;
        Ok((Self { host: host.to_owned(), port: port.unwrap_or(default_port), tls }, database))
    }

    /// Reads `host:port` as a cluster writes it, without brackets around an IPv6 address.
    pub(super) fn named(text: &str, like: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        // A node that does not know its own name means "where you asked me".
        let host = if host.is_empty() || host == "?" { &like.host } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()?, tls: like.tls })
    }
}

fn split_port(server: &str) -> Result<(&str, Option<u16>), &'static str> {
    let port = |text: &str| text.parse().map(Some).map_err(|_| "must have a port between 1 and 65535");
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, after)) => (host, port(after.strip_prefix(':').unwrap_or_default())?),
            None => return Err("must close the bracket around an IPv6 address"),
        },
        None => match server.split_once(':') {
            Some((host, text)) => (host, port(text)?),
            None => (server, None),
        },
    };
    if host.is_empty() || port == Some(0) { Err("must name a host") } else { Ok((host, port)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let parse =
            |url: &str| Address::parse(url, 6379).map(|(address, database)| (address.to_string(), database));
        assert_eq!(parse("redis://h"), Ok(("redis://h:6379".to_owned(), 0)));
        assert_eq!(parse("rediss://h:1/7"), Ok(("rediss://h:1".to_owned(), 7)));
        assert_eq!(parse("redis://[::1]:5/"), Ok(("redis://[::1]:5".to_owned(), 0)));
        for bad in [
            "",
            "h:1",
            "http://h",
            "redis://",
            "redis://:1",
            "redis://h:0",
            "redis://h:x",
            "redis://h:70000",
            "redis://h/x",
            "redis://u:secret@h",
            "redis://h?protocol=3",
            "redis://[::1",
            "redis://::1",
            "unix:///s",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(!parse("redis://u:secret@h").expect_err("refused").contains("secret"));
    }

    #[test]
    fn a_node_without_a_name_is_where_it_was_asked() {
        let like = Address { host: "seed".into(), port: 1, tls: true };
        assert_eq!(
            Address::named("10.0.0.1:7", &like).map(|a| a.to_string()),
            Some("rediss://10.0.0.1:7".into())
        );
        assert_eq!(Address::named(":7", &like).map(|a| a.to_string()), Some("rediss://seed:7".into()));
        assert_eq!(Address::named("::1:7", &like).map(|a| a.to_string()), Some("rediss://[::1]:7".into()));
        assert_eq!(Address::named("x", &like), None);
    }
}
