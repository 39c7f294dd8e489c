//! Certificates and passwords that change while the sink runs.
//!
//! The files are read every few seconds. When one has changed, and a client can be made of the new ones, the
//! owner is told. Changes are seen by content and not by time stamps, which a mounted secret does not keep.

use crate::kafka::KafkaConfig;
use posthaste::task::{Task, spawn};
use std::time::Duration;

/// How often the files are read. Certificates are changed days before they expire, so this is often enough.
const INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(in crate::kafka) struct CredentialWatch {
    _task: Task<()>,
}

impl CredentialWatch {
    /// Calls `renew` for each change, until it answers that nobody wants to know any more. The result is
    /// `None` when there is nothing to watch.
    pub(in crate::kafka) fn start(
        config: &KafkaConfig,
        renew: impl Fn() -> bool + Send + 'static,
    ) -> Option<Self> {
        let mut known = config.read_files();
        if known.iter().all(Option::is_none) {
            return None;
        }
        let config = config.clone();
        let watching = async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                let found = config.read_files();
                // If half of the files are new, or one is away for a moment, the next look decides.
                if found == known || config.check().is_err() {
                    continue;
                }
                tracing::info!("certificates or passwords have changed: new connections use them");
                if !renew() {
                    return;
                }
                known = found;
            }
        };
        Some(Self { _task: spawn("kafka.watch", watching) })
    }
}
