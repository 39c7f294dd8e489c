//! Real services for tests, started privately.
//!
//! Posthaste's promises are about what real servers do when they are killed, cut off or slow, so the tests
//! run against real servers. Each one here is a child of the test process, listens on a loopback port of its
//! own, keeps its files in a temporary directory of its own, and ends with the test process, also when that
//! one is killed (`guard.rs` says how). A server that was running before is never touched.
//!
//! Containers were the obvious alternative and were refused: they need a daemon, they start slower than a
//! server does (PostgreSQL: 1 s with `initdb`), and a signal to a process inside one is not the signal that
//! an operator's machine would deliver.
//!
//! A server that is not installed is [`ServiceError::Missing`]; [`require`] turns that into a counted, named
//! skip. Everything else that goes wrong is [`ServiceError::Failed`] and fails the test. `scripts/services`
//! installs what is missing.
//!
//! Linux only: process trees are read from `/proc`, ports are claimed in the abstract socket namespace.
//!
//! | variable | meaning |
//! |---|---|
//! | `POSTHASTE_TEST_PG` | URL of the PostgreSQL server that [`shared()`] uses, instead of starting one |
//! | `POSTHASTE_TEST_PG_VERSION` | the major version of PostgreSQL that the run is about; 15 if not set |
//! | `POSTHASTE_SERVICES` | where the private binaries are; `<target>/services` if not set |
//! | `POSTHASTE_SKIPS` | a file that gets one line for each skipped test |

mod certs;
mod dir;
mod guard;
mod kafka;
mod nats;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod rabbitmq;
mod redis;
mod shared;
mod skip;
mod tree;
pub(crate) mod url;

use std::path::{Path, PathBuf};

pub use crate::proxy::Proxy;
pub use crate::receiver::{Answer, Manner, Receiver, ReceiverOptions, Recorded};
pub use certs::{Certs, Pair};
pub use kafka::{
    ForeignRecord, Kafka, KafkaOptions, Node as KafkaNode, PartitionReplicas as KafkaPartition,
    Record as KafkaRecord, Right as KafkaRight, Security as KafkaSecurity, TransactionEnd,
};
pub use nats::{Nats, NatsOptions};
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::{Postgres, PostgresOptions, Version};
pub use rabbitmq::{Rabbitmq, TlsListener, shared_rabbitmq};
pub use redis::{Redis, RedisCluster, RedisOptions, RedisSentinel};
pub use shared::{SharedPostgres, TestDatabase, shared};
pub use skip::{require, skip};
pub use url::{with_addr, with_database, with_user};

/// Why a service is not there. The two variants are what a test does next: skip, or fail.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ServiceError {
    /// It is not installed on this machine. A reason to skip.
    #[error("{service} cannot be had here: {why}")]
    Missing {
        /// The service and its version.
        service: String,
        /// What was looked for, and where.
        why: String,
    },
    /// It is installed and did not do what it was asked. A reason to fail.
    #[error("{service}: {why}")]
    Failed {
        /// The service and its version.
        service: String,
        /// What happened, with the end of the server's log.
        why: String,
    },
}

impl ServiceError {
    pub(crate) fn failed(service: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::Failed { service: service.into(), why: why.to_string() }
    }
}

/// Where `scripts/services` puts what is no Debian package.
pub fn services_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("POSTHASTE_SERVICES") {
        return dir.into();
    }
    // The running test binary lies somewhere below the target directory, wherever CARGO_TARGET_DIR put that;
    // cargo marks its root with CACHEDIR.TAG. The manifest's place serves a binary that was moved away.
    let exe = std::env::current_exe().unwrap_or_default();
    let target = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists());
    match target {
        Some(target) => target.join("services"),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/services"),
    }
}

/// The first of `candidates` that exists, or a `Missing` that names them all.
fn locate(service: &str, candidates: &[PathBuf]) -> Result<PathBuf, ServiceError> {
    candidates.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        let looked: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        ServiceError::Missing {
            service: service.into(),
            why: format!("no {} (scripts/services installs it)", looked.join(", no ")),
        }
    })
}
