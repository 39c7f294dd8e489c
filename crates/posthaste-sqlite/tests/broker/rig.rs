//! A directory that goes away, and a broker in it.

use posthaste_sqlite::broker::{Broker, BrokerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

/// Removed with everything in it when dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn make() -> Self {
        let path = std::env::temp_dir().join(format!("posthaste-broker-{}", Uuid::now_v7()));
        std::fs::create_dir(&path).expect("a directory of the test");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("broker.db")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A broker of its own on the file, as another process would have.
pub(crate) fn open(file: &Path) -> Arc<Broker> {
    Broker::open(BrokerConfig::new(file)).expect("the broker opens")
}
