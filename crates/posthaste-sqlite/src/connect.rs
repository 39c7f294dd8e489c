//! Connections: what every one of ours is set up with.
//!
//! WAL mode, because readers and the writer must not wait for each other. `synchronous = FULL`, because in
//! WAL mode `NORMAL` syncs at checkpoints only: after a power cut the last commits may be gone (F48). A
//! reader never writes, and cannot (`query_only`). Nobody ever sees SQLITE_BUSY: a busy handler waits with
//! small steps up to a bound.

use crate::error::store_error;
use posthaste::store::{StoreCode, StoreError};
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How safe a commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// Every commit is on the disk before it is answered. The default.
    #[default]
    Full,
    /// Commits reach the disk at the next checkpoint. Several times as many small transactions a second, and
    /// a power cut or a crash of the system may undo the last of them: a settlement that is undone is
    /// published again, an event that was appended (and perhaps published) may never have been. A crash of
    /// the process alone undoes nothing.
    Normal,
}

/// Step of a wait for the write lock: short at first, so that a turn is not missed, then longer. SQLite's own
/// handler ends at 100 ms, which loses against anybody who asks more often.
const BUSY_STEPS_SHORT: i32 = 20;

/// Steps of 5 ms after that: ten seconds in all. Longer than any sane transaction, shorter than a person's
/// patience.
const BUSY_STEPS_MAX: i32 = 2_000;

fn wait_a_little(asked: i32) -> bool {
    let pause = if asked < BUSY_STEPS_SHORT { 1 } else { 5 };
    // pace: the lock belongs to another process, which cannot signal us.
    std::thread::sleep(Duration::from_millis(pause));
    asked < BUSY_STEPS_MAX
}

/// Pages that a reader keeps, in KiB with a minus, as SQLite has it. Pages of the log are read once, in
/// order: keeping them would only cost memory, four times.
const READER_CACHE: i32 = -512;

/// Slots of the key hash; lanes are ranges of them.
pub(crate) const SLOTS: i32 = 1024;

/// The slot of an event: a hash of its key, or its number where there is none. FNV-1a, written out here
/// because it must never change: a key that moved to another lane would lose its order.
pub(crate) fn slot(key: Option<&[u8]>, seq: i64) -> i16 {
    let Some(key) = key else { return (seq.rem_euclid(i64::from(SLOTS))) as i16 };
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    ((hash ^ (hash >> 32)) % SLOTS as u64) as i16
}

/// Opens the writer's connection. The file must be there: a wrong path must not become an empty database.
pub(crate) fn open_writer(path: &Path, synchronous: Synchronous) -> Result<Connection, StoreError> {
    open(path, OpenFlags::SQLITE_OPEN_READ_WRITE, synchronous)
}

/// Opens a connection that only reads. It is not opened read-only: in WAL mode a reader takes locks in shared
/// memory.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE, Synchronous::Full)?;
    connection.pragma_update(None, "query_only", true).map_err(store_error)?;
    connection.pragma_update(None, "cache_size", READER_CACHE).map_err(store_error)?;
    Ok(connection)
}

/// Opens a connection, making the file where there is none. Only for setting up.
pub(crate) fn open_or_create(path: &Path, synchronous: Synchronous) -> Result<Connection, StoreError> {
    open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE, synchronous)
}

fn open(path: &Path, flags: OpenFlags, synchronous: Synchronous) -> Result<Connection, StoreError> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let at = |error| store_error(error).at(&path.display().to_string());
    let connection = Connection::open_with_flags(path, flags).map_err(at)?;
    set_up(&connection, synchronous).map_err(at)?;
    Ok(connection)
}

fn set_up(connection: &Connection, synchronous: Synchronous) -> rusqlite::Result<()> {
    connection.busy_handler(Some(wait_a_little))?;
    // The first statement that reads the file: "not a database" shows here.
    let _: i64 = connection.query_row("pragma schema_version", [], |row| row.get(0))?;
    let word = match synchronous {
        Synchronous::Full => "full",
        Synchronous::Normal => "normal",
    };
    connection.pragma_update(None, "synchronous", word)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.set_prepared_statement_cache_capacity(64);
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("posthaste_slot", 2, flags, |context| {
        let key = context.get_raw(0);
        let key = match key {
            rusqlite::types::ValueRef::Text(bytes) | rusqlite::types::ValueRef::Blob(bytes) => Some(bytes),
            _ => None,
        };
        Ok(slot(key, context.get::<i64>(1)?))
    })?;
    // Text that plain SQL left in the log may be no valid UTF-8. Copies hold it as far as it is: they are
    // read by people, and must never be the reason why a settlement or a list fails (F49).
    connection.create_scalar_function("posthaste_text", 1, flags, |context| {
        Ok(match context.get_raw(0) {
            rusqlite::types::ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        })
    })
}

/// Switches a file to WAL mode, for good. The switch wants the file for itself, and of two that want it at
/// once SQLite refuses one without asking its busy handler: each might wait for the other.
pub(crate) fn switch_to_wal(connection: &Connection) -> rusqlite::Result<()> {
    let switch = || connection.query_row("pragma journal_mode = wal", [], |row| row.get::<_, String>(0));
    let is_busy = |error: &rusqlite::Error| error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
    let mut asked = 0;
    loop {
        match switch() {
            Err(error) if is_busy(&error) && wait_a_little(asked) => asked += 1,
            done => return done.map(drop),
        }
    }
}

/// Refuses a database that is not in WAL mode: readers and writers would wait for each other, and a busy
/// reader could keep appends out.
pub(crate) fn check_wal(connection: &Connection) -> Result<(), StoreError> {
    let mode: String =
        connection.query_row("pragma journal_mode", [], |row| row.get(0)).map_err(store_error)?;
    if mode.eq_ignore_ascii_case("wal") {
        return Ok(());
    }
    Err(StoreError::fatal(
        StoreCode::Wal,
        format!(
            "the database is in journal mode {mode}, and the relay needs WAL; run `posthaste migrate up`, which switches it. \
             No event is touched"
        ),
    ))
}

/// The path by which all processes mean the same file.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The file of a connection, as SQLite resolved it.
pub(crate) fn file_of(connection: &Connection) -> PathBuf {
    connection.path().map(PathBuf::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written down: if these change, keys change their lanes.
    #[test]
    fn slots_never_change() {
        assert_eq!(
            [slot(Some(b""), 9), slot(Some(b"a"), 9), slot(Some(b"order-42"), 9), slot(None, 1_025)],
            [961, 192, 338, 1]
        );
        let used: std::collections::BTreeSet<i16> =
            (0..20_000).map(|n| slot(Some(format!("key-{n}").as_bytes()), 0)).collect();
        assert_eq!(used.len(), 1024, "every slot is used");
    }
}
