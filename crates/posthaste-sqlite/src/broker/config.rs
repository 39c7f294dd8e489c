//! Options of the local broker as a configuration file holds them.

use super::file::BrokerConfig;
use crate::config::SqliteConfig;
use crate::connect::Synchronous;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Most hours: a hundred years. Beyond it a retention is for ever.
const HOURS_MAX: u64 = 876_000;

/// Options of a local sink. One of `path` and `url` names the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LocalConfig {
    /// The broker's file. It is made if there is none. Not the application's database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The same as a URL: `sqlite:broker.db`, `sqlite:///var/lib/broker.db`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Whether an acknowledged message is on the disk: `full`, or `normal`, which is faster and may lose the
    /// last ones at a power cut.
    #[serde(default)]
    pub synchronous: SynchronousWord,
    /// Partitions of a topic that is made by its first message.
    #[serde(default = "partitions")]
    pub partitions: u32,
    /// How long a second message with the same id is dropped, at least.
    #[serde(default = "dedup_window_s")]
    pub dedup_window_s: u64,
    /// How long messages of a new topic are kept. 0 is for ever.
    #[serde(default = "retention_hours")]
    pub retention_hours: u64,
    /// How large a new topic may grow, in bytes of messages. 0 is without a bound.
    #[serde(default)]
    pub retention_bytes: u64,
    /// How large the file may grow, in bytes. 0 is as large as the disk allows.
    #[serde(default)]
    pub file_bytes_max: u64,
    /// Largest payload, in bytes.
    #[serde(default = "payload_bytes_max")]
    pub payload_bytes_max: usize,
}

/// How safe a commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SynchronousWord {
    /// On the disk.
    #[default]
    Full,
    /// At the next checkpoint.
    Normal,
}

fn partitions() -> u32 {
    4
}

fn dedup_window_s() -> u64 {
    120
}

fn retention_hours() -> u64 {
    168
}

fn payload_bytes_max() -> usize {
    16 << 20
}

/// What is wrong with the options: which one, and why.
pub type Misfit = (&'static str, String);

impl LocalConfig {
    /// Checks the words alone and turns them into the broker's own.
    pub fn broker(&self) -> Result<BrokerConfig, Misfit> {
        let path = match (&self.path, &self.url) {
            (Some(path), None) if !path.as_os_str().is_empty() => path.clone(),
            (None, Some(url)) => {
                SqliteConfig::from_url(url).map_err(|error| ("url", error.to_string()))?.path
            }
            (Some(_), Some(_)) => {
                return Err(("path", "name the broker's file by path or by url, not by both".to_owned()));
            }
            _ => return Err(("path", "name the broker's file, as in path = \"broker.db\"".to_owned())),
        };
        if self.partitions == 0 || self.partitions > super::publish::PARTITIONS_MAX {
            return Err(("partitions", format!("must be between 1 and {}", super::publish::PARTITIONS_MAX)));
        }
        if self.payload_bytes_max == 0 || self.payload_bytes_max > 512 << 20 {
            return Err(("payload_bytes_max", "must be between 1 and 536870912 (512 MiB)".to_owned()));
        }
        let bound = |bytes: u64| (bytes > 0).then_some(bytes);
        let hours = self.retention_hours;
        Ok(BrokerConfig {
            path,
            synchronous: match self.synchronous {
                SynchronousWord::Full => Synchronous::Full,
                SynchronousWord::Normal => Synchronous::Normal,
            },
            partitions: self.partitions,
            dedup_window: Duration::from_secs(self.dedup_window_s.min(HOURS_MAX * 3_600)),
            retention: (1..=HOURS_MAX).contains(&hours).then(|| Duration::from_secs(hours * 3_600)),
            retention_bytes: bound(self.retention_bytes),
            file_bytes_max: bound(self.file_bytes_max),
            payload_bytes_max: self.payload_bytes_max,
            create: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<BrokerConfig, String> {
        let config: LocalConfig = serde_json::from_str(json).map_err(|error| error.to_string())?;
        config.broker().map_err(|(option, why)| format!("{option}: {why}"))
    }

    #[test]
    fn defaults_are_those_of_the_broker() {
        assert_eq!(read(r#"{"path":"b.db"}"#), Ok(BrokerConfig::new("b.db")));
        assert_eq!(read(r#"{"url":"sqlite:///var/b.db"}"#), Ok(BrokerConfig::new("/var/b.db")));
        let forever = read(r#"{"path":"b.db","retention_hours":0,"synchronous":"normal"}"#).expect("valid");
        assert_eq!((forever.retention, forever.synchronous), (None, Synchronous::Normal));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (json, option) in [
            (r"{}", "path"),
            (r#"{"path":"a","url":"sqlite:b"}"#, "path"),
            (r#"{"url":"postgres://x"}"#, "url"),
            (r#"{"path":"a","partitions":0}"#, "partitions"),
            (r#"{"path":"a","payload_bytes_max":0}"#, "payload_bytes_max"),
            (r#"{"path":"a","nope":0}"#, "unknown field"),
        ] {
            let error = read(json).expect_err(json);
            assert!(error.starts_with(option), "{error}");
        }
    }
}
