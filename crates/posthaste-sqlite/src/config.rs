//! Where the database is, and how the outbox in it is set up.

use crate::connect::Synchronous;
use posthaste::Limits;
use posthaste::store::{StoreCode, StoreError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One outbox in one file.
#[derive(Debug, Clone)]
pub struct SqliteConfig {
    /// The database file. The application's own: our tables in it begin with `posthaste_`.
    pub path: PathBuf,
    /// How safe a commit of the relay is. See [`Synchronous`] for what `Normal` costs.
    pub synchronous: Synchronous,
    /// Connections for reading, beside the writer's and the watch's. Each holds up to half a megabyte of
    /// pages.
    pub readers_max: usize,
    /// How often to look whether another process has written something, while the relay has nothing to do. A
    /// look takes some microseconds, so 10 ms cost about a thousandth of a core.
    pub watch_interval: Duration,
    /// What the relay accepts.
    pub limits: Limits,
    /// How long things are kept.
    pub retention: Retention,
    /// The topic to which each line of the audit goes as an event; `migrate up` writes it into the file.
    pub audit_topic: Option<String>,
}

/// How long things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Events are kept at least this long after they were appended, and until every sink has handled them.
    pub events: Duration,
    /// Above this size of the file, events that every sink has handled are removed before their time.
    pub file_bytes_max: Option<u64>,
    /// `(topic, idempotency_key)` is remembered at least this long.
    pub idempotency_keys: Duration,
    /// Dead letters are kept this long; `None` is for ever.
    pub dead_letters: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        let day = 86_400;
        Self {
            events: Duration::from_secs(3 * day),
            file_bytes_max: None,
            idempotency_keys: Duration::from_secs(7 * day),
            dead_letters: None,
        }
    }
}

impl SqliteConfig {
    /// Defaults for a file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            synchronous: Synchronous::Full,
            readers_max: 4,
            watch_interval: Duration::from_millis(10),
            limits: Limits::default(),
            retention: Retention::default(),
            audit_topic: None,
        }
    }

    /// Defaults for a URL: `sqlite:path/to/file.db`, `sqlite:///absolute/path.db`. `?synchronous=normal` (or
    /// `full`) may follow.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        let wrong = |why: &str| {
            let why = format!(
                "{url:?} is no SQLite URL: {why}. Write sqlite:path/to/file.db or sqlite:///absolute/path.db"
            );
            StoreError::fatal(StoreCode::Url, why)
        };
        let rest = url.strip_prefix("sqlite:").ok_or_else(|| wrong("it does not begin with sqlite:"))?;
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path == ":memory:" {
            return Err(wrong("it names no file; an outbox in memory would be gone with its process"));
        }
        let mut config = Self::new(Path::new(path));
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            config.synchronous = match pair {
                "synchronous=full" => Synchronous::Full,
                "synchronous=normal" => Synchronous::Normal,
                _ => return Err(wrong("the only option is synchronous=full or synchronous=normal")),
            };
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_file() {
        for (url, path) in [
            ("sqlite:orders.db", "orders.db"),
            ("sqlite:./a/orders.db", "./a/orders.db"),
            ("sqlite:///var/lib/orders.db", "/var/lib/orders.db"),
            ("sqlite:/var/lib/orders.db?synchronous=full", "/var/lib/orders.db"),
        ] {
            let config = SqliteConfig::from_url(url).expect("a valid URL");
            assert_eq!(
                (config.path.as_path(), config.synchronous),
                (Path::new(path), Synchronous::Full),
                "{url}"
            );
        }
        let fast = SqliteConfig::from_url("sqlite:a.db?synchronous=normal").expect("a valid URL");
        assert_eq!(fast.synchronous, Synchronous::Normal);
        for bad in ["sqlite:", "sqlite://", "sqlite::memory:", "postgres://x", "sqlite:a.db?synchronous=off"]
        {
            assert!(SqliteConfig::from_url(bad).is_err(), "{bad}");
        }
    }
}
