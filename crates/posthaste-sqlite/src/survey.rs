//! A file as it is found: what a tool asks before there is an outbox in it. Nothing is changed.

use crate::error::store_error;
use posthaste::store::StoreError;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Tables of others that look like an outbox, with their columns, for people. At most `max`.
pub fn tables_alike(path: &Path, max: i64) -> Result<Vec<String>, StoreError> {
    let look = || -> rusqlite::Result<_> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let mut statement = connection.prepare(include_str!("../sql/survey/tables_alike.sql"))?;
        statement.query_map([max], |row| row.get(0))?.collect()
    };
    look().map_err(store_error)
}
