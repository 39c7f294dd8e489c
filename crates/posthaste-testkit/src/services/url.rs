//! Small surgery on service URLs: the same server by way of a proxy, another database, another user.
//!
//! Done on the text, because neither `tokio_postgres::Config` nor a broker's client can write a URL back, and
//! these URLs are our own: `scheme://[user[:password]@]host:port[/database][?options]`.

use std::net::SocketAddr;

/// A URL cut at the places where we change it.
struct Parts<'a> {
    scheme: &'a str,
    user: Option<&'a str>,
    host: &'a str,
    path: Option<&'a str>,
    query: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (rest, query) = split_optional(rest, '?');
        let (authority, path) = split_optional(rest, '/');
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        Self { scheme, user, host, path, query }
    }

    fn join(&self) -> String {
        let part = |before: &str, part: Option<&str>, after: &str| {
            part.map(|text| format!("{before}{text}{after}")).unwrap_or_default()
        };
        format!(
            "{}://{}{}{}{}",
            self.scheme,
            part("", self.user, "@"),
            self.host,
            part("/", self.path, ""),
            part("?", self.query, "")
        )
    }
}

fn split_optional(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

/// `url` with another host and port: how a client is sent through a [`Proxy`](super::Proxy).
pub fn with_addr(url: &str, addr: SocketAddr) -> String {
    Parts { host: &addr.to_string(), ..Parts::of(url) }.join()
}

/// `url` with another database.
pub fn with_database(url: &str, database: &str) -> String {
    Parts { path: Some(database), ..Parts::of(url) }.join()
}

/// `url` with another user (`name` or `name:password`).
pub fn with_user(url: &str, user: &str) -> String {
    Parts { user: Some(user), ..Parts::of(url) }.join()
}

/// `host:port` of `url`.
pub(crate) fn host_and_port(url: &str) -> &str {
    Parts::of(url).host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_replaced_alone() {
        let url = "postgres://me:secret@10.0.0.1:5432/app?sslmode=disable";
        let addr = SocketAddr::from(([127, 0, 0, 1], 99));
        assert_eq!(with_addr(url, addr), "postgres://me:secret@127.0.0.1:99/app?sslmode=disable");
        assert_eq!(with_database(url, "other"), "postgres://me:secret@10.0.0.1:5432/other?sslmode=disable");
        assert_eq!(with_user(url, "you"), "postgres://you@10.0.0.1:5432/app?sslmode=disable");
        assert_eq!(host_and_port(url), "10.0.0.1:5432");
    }

    #[test]
    fn absent_parts_stay_absent_or_are_added() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 99));
        assert_eq!(with_addr("nats://127.0.0.1:4222", addr), "nats://127.0.0.1:99");
        assert_eq!(with_database("postgres://h:1", "db"), "postgres://h:1/db");
        assert_eq!(with_user("postgres://h:1/db", "me"), "postgres://me@h:1/db");
    }
}
