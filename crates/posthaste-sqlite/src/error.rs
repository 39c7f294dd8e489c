//! From SQLite's errors to what the caller does next.
//!
//! Whoever reads one of these messages runs a service with its data in one file. So each says what happened,
//! what it means for the events, and what to do. None of the causes here overwrites anything: a file that
//! cannot be understood is left as it is.

use posthaste::store::{StoreCode, StoreError};
use rusqlite::ErrorCode;

/// Judges an error of a statement or of a whole transaction that was not being committed: nothing was
/// changed.
pub(crate) fn store_error(error: rusqlite::Error) -> StoreError {
    judge(&error, true)
}

/// Judges an error by what the caller does next. `outcome_known` is whether it is certain that nothing was
/// applied.
pub(crate) fn judge(error: &rusqlite::Error, outcome_known: bool) -> StoreError {
    let transient = |message: String| StoreError::Transient { message, outcome_known };
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => transient(
            "the database is busy: another process has held its write lock for longer than we wait. No event is lost; \
             it is tried again. Look for a transaction that stays open"
                .to_owned(),
        ),
        Some(ErrorCode::DiskFull) => transient(format!(
            "the disk is full, or the database has reached its largest size ({error}). Nothing was written, nothing is \
             lost, and appends fail as well; free some space and the relay goes on by itself"
        )),
        Some(ErrorCode::SystemIoFailure) => transient(format!(
            "the file system failed ({error}). What was committed before is safe; it is tried again. Look at the disk"
        )),
        Some(ErrorCode::DatabaseCorrupt) => StoreError::broken(
            StoreCode::Damaged,
            format!(
            "the database file is damaged ({error}). Nothing is published from it and nothing is overwritten. Stop \
             everything that uses it, keep a copy of the file with its -wal, and restore a backup or run \
             `sqlite3 FILE .recover`"
        )),
        Some(ErrorCode::NotADatabase) => StoreError::fatal(
            StoreCode::OtherFile,
            "the file is no SQLite database, or it is encrypted. It was not touched; check the path",
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            StoreError::fatal(
                StoreCode::Rights,
                "the database file or its directory is read-only, so nothing can be settled and nothing is published. \
                 Events in it are safe; give this process the right to write the file, its -wal and its -shm",
            )
        }
        Some(ErrorCode::CannotOpen) => StoreError::fatal(
            StoreCode::NoDatabase,
            format!(
            "the database file cannot be opened ({error}). No event is touched; check the path and the rights of its \
             directory, and run `posthaste migrate up` to make a new one"
        )),
        _ => other(error, transient),
    }
}

fn other(error: &rusqlite::Error, transient: impl Fn(String) -> StoreError) -> StoreError {
    let text = error.to_string();
    if text.contains("no such table: posthaste_") || text.contains("no such view: posthaste_") {
        let why = format!("{text}: the outbox is not set up here; run `posthaste migrate up`");
        return StoreError::fatal(StoreCode::SchemaMissing, why);
    }
    if text.contains("no such column") || text.contains("has no column named") {
        let why = format!("{text}: the outbox has another version; run `posthaste migrate status`");
        return StoreError::fatal(StoreCode::SchemaOther, why);
    }
    transient(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn of(code: i32) -> StoreError {
        judge(&rusqlite::Error::SqliteFailure(ffi::Error::new(code), None), true)
    }

    #[test]
    fn errors_say_what_to_do() {
        for (code, transient) in [
            (ffi::SQLITE_BUSY, true),
            (ffi::SQLITE_FULL, true),
            (ffi::SQLITE_IOERR_FSYNC, true),
            (ffi::SQLITE_CORRUPT, false),
            (ffi::SQLITE_NOTADB, false),
            (ffi::SQLITE_READONLY, false),
            (ffi::SQLITE_CANTOPEN, false),
        ] {
            let error = of(code);
            assert_eq!(error.is_transient(), transient, "{code}: {error}");
            assert!(error.to_string().len() > 60, "{error}");
        }
    }
}
