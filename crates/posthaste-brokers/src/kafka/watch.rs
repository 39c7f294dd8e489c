//! Certificates and passwords that change while the sink runs.
//!
//! The files are read every few seconds; when one has changed, and the new set makes a client, both lines are
//! replaced. Changes are seen by content and not by time stamps, which a mounted secret does not keep.

use super::KafkaConfig;
use super::fleet::Fleet;
use posthaste::task::{Task, spawn};
use std::sync::Arc;
use std::time::Duration;

/// A certificate is changed days before it expires.
const INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Watch {
    _task: Task<()>,
}

impl Watch {
    /// `None`: there is nothing to watch.
    pub(super) fn start(config: &KafkaConfig, fleet: &Arc<Fleet>) -> Option<Self> {
        let known = config.read_files();
        if known.iter().all(Option::is_none) {
            return None;
        }
        let (config, fleet) = (config.clone(), Arc::downgrade(fleet));
        let watching = async move {
            let mut known = known;
            loop {
                tokio::time::sleep(INTERVAL).await;
                let found = config.read_files();
                if found == known {
                    continue;
                }
                let Some(fleet) = fleet.upgrade() else { return };
                // Half of the files are new, or one is away for a moment: look again.
                if config.check().is_ok() {
                    tracing::info!("certificates or passwords have changed: new connections use them");
                    fleet.renew();
                    known = found;
                }
            }
        };
        Some(Self { _task: spawn("kafka.watch", watching) })
    }
}
