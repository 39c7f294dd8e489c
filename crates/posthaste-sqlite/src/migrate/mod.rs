//! Migrations: the outbox's tables in a database file, versioned.
//!
//! The SQL is embedded in the binary. Each version is applied in one transaction together with its line in
//! `posthaste_migrations`, so one that dies half-way leaves nothing behind; several may run `up` at once,
//! because SQLite lets one of them write. The file may be the application's own: `up` adds our tables and
//! touches no other. It also switches the file to WAL mode, which stays with the file, and makes a new file
//! shrink when events are removed (`auto_vacuum = incremental` can only be set before the first table: an
//! existing file keeps its size and reuses the room).
//!
//! The application's `user_version` and `application_id` are not ours to use.
//!
//! A relay works on its own version and on newer ones that suit it (F89), as on PostgreSQL.

use crate::clock;
use crate::config::SqliteConfig;
use crate::connect::{check_wal, open_or_create, open_reader, switch_to_wal};
use crate::error::store_error;
use posthaste::Timestamp;
use posthaste::store::{StoreCode, StoreError};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use serde::Serialize;

/// A version of the tables.
struct Migration {
    version: i32,
    name: &'static str,
    text: &'static str,
    /// The lowest version whose binaries can live with this one; written down from version 2 on.
    oldest: Option<i32>,
}

/// All versions, oldest first. A text that was released is never changed.
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "outbox",
        text: include_str!("../../migrations/001_outbox.sql"),
        oldest: None,
    },
    Migration {
        version: 2,
        name: "consumer",
        text: include_str!("../../migrations/002_consumer.sql"),
        oldest: Some(1),
    },
    Migration {
        version: 3,
        name: "operations",
        text: include_str!("../../migrations/003_operations.sql"),
        oldest: Some(2),
    },
    Migration {
        version: 4,
        name: "gateway",
        text: include_str!("../../migrations/004_gateway.sql"),
        oldest: Some(3),
    },
];

const BOOKKEEPING: &str = include_str!("../../migrations/bookkeeping.sql");

/// The version of the tables that this binary writes.
pub const SCHEMA_VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

impl Migration {
    /// FNV-1a of the text. It tells an edited file from the one that was applied.
    fn checksum(&self) -> String {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let bytes = self.text.bytes().filter(|byte| *byte != b'\r');
        format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
    }

    /// The statement that writes down that it is applied at an instant, an expression. The column `oldest` is
    /// as old as version 2.
    fn record(&self, applied_at: &str) -> String {
        let Self { version, name, .. } = self;
        let checksum = self.checksum();
        let (column, oldest) =
            self.oldest.map_or_else(Default::default, |oldest| (", oldest", format!(", {oldest}")));
        let into = format!("insert into posthaste_migrations (version, name, checksum, applied_at{column})");
        format!("{into} values ({version}, '{name}', '{checksum}', {applied_at}{oldest})")
    }
}

/// What `up` did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Versions applied now, with their names.
    pub applied: Vec<(i32, String)>,
    /// Where the audit goes now, if that was another topic before: the one before, and the one now.
    pub audit_topic: Option<(Option<String>, Option<String>)>,
}

/// A version that is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// Its number.
    pub version: i32,
    /// Its name.
    pub name: String,
    /// When.
    pub applied_at: Timestamp,
}

/// What is applied, and what is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The version of the tables; `None` where there is no outbox yet.
    pub current: Option<i32>,
    /// The newest version this binary knows.
    pub latest: i32,
    /// What is applied, oldest first.
    pub applied: Vec<Applied>,
    /// What `up` would apply.
    pub pending: Vec<(i32, String)>,
    /// The topic to which the audit goes, if it goes to one.
    pub audit_topic: Option<String>,
}

/// Makes the file if there is none, and applies what is missing. Harmless when repeated, also by several at
/// once.
pub fn up(config: &SqliteConfig) -> Result<Outcome, StoreError> {
    let mut connection = open_or_create(&config.path, config.synchronous)?;
    prepare_file(&connection).map_err(store_error)?;
    check_wal(&connection)?;
    let mut outcome = Outcome::default();
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(store_error)?;
    tx.execute_batch(BOOKKEEPING).map_err(store_error)?;
    for migration in MIGRATIONS {
        if check_text(&tx, migration)? {
            continue;
        }
        tx.execute_batch(migration.text).map_err(store_error)?;
        tx.execute(&migration.record("?1"), [clock::now()]).map_err(store_error)?;
        outcome.applied.push((migration.version, migration.name.to_owned()));
    }
    outcome.audit_topic = set_audit_topic(&tx, config.audit_topic.as_deref()).map_err(store_error)?;
    // CRASH(sqlite.migrate.before_commit): nothing of the outbox is there. The file is in WAL mode, which is
    // harmless.
    posthaste::crash_point!("sqlite.migrate.before_commit");
    tx.commit().map_err(store_error)?;
    Ok(outcome)
}

/// The topic to which the audit goes.
pub(crate) fn audit_topic(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let sql = include_str!("../../sql/admin/audit_topic.sql");
    connection.query_row(sql, [], |row| row.get(0)).optional()
}

/// Brings the topic in the file up to date. Answers with the one before and the one now, if they differ.
fn set_audit_topic(
    tx: &Connection,
    now: Option<&str>,
) -> rusqlite::Result<Option<(Option<String>, Option<String>)>> {
    let before = audit_topic(tx)?;
    if before.as_deref() == now {
        return Ok(None);
    }
    match now {
        Some(topic) => tx.execute(include_str!("../../sql/admin/set_audit_topic.sql"), [topic])?,
        None => tx.execute(include_str!("../../sql/admin/no_audit_topic.sql"), [])?,
    };
    Ok(Some((before, now.map(str::to_owned))))
}

/// WAL mode, and for a new file the way it shrinks.
fn prepare_file(connection: &Connection) -> rusqlite::Result<()> {
    let pages: i64 = connection.query_row("pragma page_count", [], |row| row.get(0))?;
    if pages == 0 {
        connection.pragma_update(None, "auto_vacuum", "incremental")?;
    }
    switch_to_wal(connection)
}

/// Whether a version is applied. One whose text is another than that which was applied describes another
/// database.
fn check_text(connection: &Connection, migration: &Migration) -> Result<bool, StoreError> {
    let sql = "select checksum from posthaste_migrations where version = ?1";
    let applied: Option<String> =
        connection.query_row(sql, [migration.version], |row| row.get(0)).optional().map_err(store_error)?;
    match applied {
        None => Ok(false),
        Some(applied) if applied == migration.checksum() => Ok(true),
        Some(applied) => {
            Err(StoreError::other_text((migration.version, migration.name), &applied, &migration.checksum()))
        }
    }
}

/// What is applied, and what is missing. Makes no file where there is none.
pub fn status(config: &SqliteConfig) -> Result<Status, StoreError> {
    let (mut applied, mut topic) = (Vec::new(), None);
    if config.path.exists() {
        let connection = open_reader(&config.path)?;
        if is_set_up(&connection)? {
            applied = self::applied(&connection).map_err(store_error)?;
            topic = audit_topic(&connection).map_err(store_error)?;
        }
    }
    let pending = |migration: &&Migration| !applied.iter().any(|one| one.version == migration.version);
    let pending = MIGRATIONS.iter().filter(pending);
    let pending = pending.map(|migration| (migration.version, migration.name.to_owned())).collect();
    let current = applied.last().map(|last| last.version);
    Ok(Status { current, latest: SCHEMA_VERSION, pending, applied, audit_topic: topic })
}

/// Everything as one script, for people who apply it themselves to a file without an outbox.
#[must_use]
pub fn sql() -> String {
    let mut text = format!(
        "-- The outbox of posthaste for SQLite, up to version {SCHEMA_VERSION}.\n\
         pragma journal_mode = wal;\nbegin immediate;\n{BOOKKEEPING}"
    );
    for migration in MIGRATIONS {
        let now = "cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)";
        text.push_str(&format!("\n{}\n{};\n", migration.text, migration.record(now)));
    }
    text.push_str("commit;\n");
    text
}

fn is_set_up(connection: &Connection) -> Result<bool, StoreError> {
    let sql =
        "select exists (select 1 from sqlite_schema where type = 'table' and name = 'posthaste_migrations')";
    connection.query_row(sql, [], |row| row.get(0)).map_err(store_error)
}

fn applied(connection: &Connection) -> rusqlite::Result<Vec<Applied>> {
    let sql = "select version, name, applied_at from posthaste_migrations order by version";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        Ok(Applied { version: row.get(0)?, name: row.get(1)?, applied_at: Timestamp(row.get(2)?) })
    })?;
    rows.collect()
}

/// The version of the tables, if this binary may work on it: its own, or a newer one that suits it.
pub(crate) fn check_version(connection: &Connection) -> Result<i32, StoreError> {
    if !is_set_up(connection)? {
        let why = "there is no outbox in this database; run `posthaste migrate up`, or check the path. Nothing was changed";
        return Err(StoreError::fatal(StoreCode::SchemaMissing, why));
    }
    let sql = "select coalesce(max(version), 0) from posthaste_migrations";
    let current: i32 = connection.query_row(sql, [], |row| row.get(0)).map_err(store_error)?;
    // Where there is a newer version, there is the column too.
    let oldest = if current > SCHEMA_VERSION { oldest(connection).map_err(store_error)? } else { None };
    StoreError::check_schema(current, oldest, SCHEMA_VERSION)?;
    Ok(current)
}

fn oldest(connection: &Connection) -> rusqlite::Result<Option<i32>> {
    let sql = "select oldest from posthaste_migrations order by version desc limit 1";
    connection.query_row(sql, [], |row| row.get(0))
}
