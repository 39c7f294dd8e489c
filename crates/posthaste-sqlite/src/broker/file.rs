//! The broker's file: opening it, and noticing that it is gone.
//!
//! SQLite goes on writing to a file that somebody has removed or moved away, and calls it committed. So every
//! publish looks whether the path still leads to the file that is open, before and after its commit. If not,
//! that is an outage like any other: events wait, and when the path leads to a broker again, it is opened
//! again. A file is made where there is none only when the broker is first opened: one that vanishes under a
//! running relay is not silently replaced by an empty one.

use crate::connect::{Synchronous, canonical, open_or_create, open_reader, open_writer, switch_to_wal};
use crate::error::store_error;
use crate::readers::Readers;
use crate::writer::Writer;
use posthaste::store::{StoreCode, StoreError};
use rusqlite::Connection;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Marks a file as a local broker's: "PHlb".
const APPLICATION_ID: i32 = 0x5048_6c62;

/// The version of the tables.
const VERSION: i32 = 1;

/// How long a file without a table is waited for, and how often it is looked at: whoever makes it needs some
/// milliseconds.
const MAKER_WAIT: Duration = Duration::from_secs(2);
const MAKER_LOOK: Duration = Duration::from_millis(20);

/// Pages of a new file. Partitions grow in the middle of one tree, and a page that is split there is left
/// half empty: with messages of half a kilobyte a page of 4 kB holds too few to share out well. More would
/// make a lone message dear.
const PAGE_BYTES: i32 = 8_192;

/// Pages in the log before they are copied into the file: 16 MB. Each copying syncs twice, and what was
/// written several times since the last one is copied once.
const CHECKPOINT_PAGES: i32 = 2_000;

/// Where the broker is, and how it works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerConfig {
    /// The file. Not the application's database.
    pub path: PathBuf,
    /// How safe a commit is: `Full` makes an acknowledgement durable, `Normal` may lose the last ones at a
    /// power cut.
    pub synchronous: Synchronous,
    /// Partitions of a topic that is made by its first message. A few, so that a few consumers can share it.
    pub partitions: u32,
    /// How long an id is remembered at least. Two minutes, as in JetStream: longer than a relay needs to come
    /// back and send again what it had not settled. What comes later is a duplicate for the inbox.
    pub dedup_window: Duration,
    /// How long messages of a new topic are kept; `None` is for ever.
    pub retention: Option<Duration>,
    /// How large a new topic may grow, in bytes of messages; `None` is without a bound.
    pub retention_bytes: Option<u64>,
    /// How large the file may grow; `None` is as large as the disk allows. Beyond it the broker is full: an
    /// outage, until retention has made room.
    pub file_bytes_max: Option<u64>,
    /// Largest payload. SQLite holds a gigabyte; a row is in memory as a whole.
    pub payload_bytes_max: usize,
    /// Whether to make the file where there is none.
    pub create: bool,
}

impl BrokerConfig {
    /// Defaults for a file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            synchronous: Synchronous::Full,
            partitions: 4,
            dedup_window: Duration::from_secs(120),
            retention: Some(Duration::from_secs(7 * 86_400)),
            retention_bytes: None,
            file_bytes_max: None,
            payload_bytes_max: 16 << 20,
            create: true,
        }
    }
}

/// A local broker, open. Share one for a file and process: it has one writer thread.
pub struct Broker {
    pub(super) config: BrokerConfig,
    link: Mutex<Option<OpenFile>>,
}

/// The open file.
#[derive(Clone)]
pub(super) struct OpenFile {
    pub(super) writer: Writer,
    pub(super) readers: Readers,
    pub(super) path: Arc<Path>,
    /// Device and inode of the file that is open.
    identity: (u64, u64),
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker").field("path", &self.config.path).finish_non_exhaustive()
    }
}

impl Broker {
    /// Opens the broker, and makes it where there is none.
    pub fn open(config: BrokerConfig) -> Result<Arc<Self>, StoreError> {
        let broker = Self::lazy(config);
        broker.link()?;
        Ok(broker)
    }

    /// The same without touching the file yet: it is opened, and if need be made, at first use.
    #[must_use]
    pub fn lazy(config: BrokerConfig) -> Arc<Self> {
        Arc::new(Self { config, link: Mutex::default() })
    }

    /// The open file, if the path still leads to it; opened again, if it leads to another one.
    pub(super) fn link(&self) -> Result<OpenFile, StoreError> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = &*link {
            if open.is_there() {
                return Ok(open.clone());
            }
            if !self.config.path.exists() {
                // Kept open: it may be moved back.
                return Err(gone(&self.config.path));
            }
        }
        let create = self.config.create && link.is_none();
        let opened = OpenFile::open(&self.config, create)?;
        *link = Some(opened.clone());
        Ok(opened)
    }
}

impl OpenFile {
    fn open(config: &BrokerConfig, create: bool) -> Result<Self, StoreError> {
        if create {
            set_up(&config.path)?;
        } else if !config.path.exists() {
            let path = config.path.display();
            let why = format!(
                "{path}: there is no local broker here; the first message that a relay delivers makes it"
            );
            return Err(StoreError::fatal(StoreCode::NoDatabase, why));
        }
        let path = canonical(&config.path);
        check(&open_reader(&path)?, &config.path)?;
        let connection = open_writer(&path, config.synchronous)?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).map_err(store_error)?;
        limit(&connection, config.file_bytes_max).map_err(store_error)?;
        let writer = Writer::on(connection);
        let identity = identity(&path).ok_or_else(|| gone(&config.path))?;
        Ok(Self { writer, readers: Readers::new(path.clone(), 4), path: path.into(), identity })
    }

    /// Whether the path leads to the file that is open.
    pub(super) fn is_there(&self) -> bool {
        identity(&self.path) == Some(self.identity)
    }
}

fn limit(connection: &Connection, bytes: Option<u64>) -> rusqlite::Result<()> {
    let Some(bytes) = bytes else { return Ok(()) };
    let page: i64 = connection.query_row("pragma page_size", [], |row| row.get(0))?;
    let pages = bytes / u64::try_from(page).unwrap_or(4096).max(1);
    connection.query_row(&format!("pragma max_page_count = {pages}"), [], |_| Ok(()))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

pub(super) fn gone(path: &Path) -> StoreError {
    StoreError::Transient {
        message: format!(
            "{}: the local broker's file is gone. Events wait where they are; put the file back, or restart to begin with \
             an empty one",
            path.display()
        ),
        outcome_known: true,
    }
}

/// Makes the tables in a file that is new or empty. Anything else is left as it is.
fn set_up(path: &Path) -> Result<(), StoreError> {
    let mut connection = open_or_create(path, Synchronous::Full)?;
    if number(&connection, "pragma application_id")? == APPLICATION_ID {
        return Ok(());
    }
    // Before the first table: a file shrinks when messages are removed.
    connection.pragma_update(None, "auto_vacuum", "incremental").map_err(store_error)?;
    connection.pragma_update(None, "page_size", PAGE_BYTES).map_err(store_error)?;
    switch_to_wal(&connection).map_err(store_error)?;
    let tx = connection
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(store_error)?;
    // Another process may have been quicker; and an application's database is none of our business.
    let tables = number(&tx, "select count(*) from sqlite_schema")?;
    if tables == 0 {
        tx.execute_batch(include_str!("../../sql/broker/schema.sql")).map_err(store_error)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(store_error)?;
        tx.pragma_update(None, "user_version", VERSION).map_err(store_error)?;
    }
    tx.commit().map_err(store_error)
}

/// A file without any table may be one that another process is making at this moment.
fn await_maker(connection: &Connection) -> Result<(), StoreError> {
    let give_up = Instant::now() + MAKER_WAIT;
    while number(connection, "select count(*) from sqlite_schema")? == 0 && Instant::now() < give_up {
        std::thread::sleep(MAKER_LOOK);
    }
    Ok(())
}

/// Refuses a file that is no broker's, or a newer one's.
fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let path = path.display();
    await_maker(connection)?;
    if number(connection, "pragma application_id")? != APPLICATION_ID {
        let why = format!(
            "{path} is an SQLite database, but no local broker. It was not touched; the broker needs a file of its own"
        );
        return Err(StoreError::fatal(StoreCode::OtherFile, why));
    }
    let version = number(connection, "pragma user_version")?;
    if version != VERSION {
        let why = format!(
            "{path} is a local broker of version {version}, and this binary knows version {VERSION}. It was not touched; \
             use the posthaste that made it"
        );
        return Err(StoreError::fatal(StoreCode::SchemaOther, why));
    }
    Ok(())
}

fn number(connection: &Connection, sql: &str) -> Result<i32, StoreError> {
    connection.query_row(sql, [], |row| row.get(0)).map_err(store_error)
}
