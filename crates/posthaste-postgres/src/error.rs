//! From the server's errors to what the caller does next.

use posthaste::store::{StoreCode, StoreError};
use tokio_postgres::error::{DbError, SqlState};

/// Judges an error of a statement that changed nothing if it failed (a read, or a whole transaction
/// that was not being committed).
pub(crate) fn store_error(error: tokio_postgres::Error) -> StoreError {
    judge(error, true)
}

/// Judges an error of a commit, or of a statement that commits by itself: if the connection went away,
/// nobody knows whether it was applied.
pub(crate) fn commit_error(error: tokio_postgres::Error) -> StoreError {
    judge(error, false)
}

fn judge(error: tokio_postgres::Error, outcome_known: bool) -> StoreError {
    let Some(db) = error.as_db_error() else {
        // Connection level: refused, reset, closed, TLS.
        return StoreError::Transient { message: describe(&error), outcome_known };
    };
    match advice(db) {
        Some((code, advice)) => StoreError::fatal(code, format!("{}: {advice}", db.message())),
        // The server answered with an error: the transaction is certainly rolled back.
        None => StoreError::Transient {
            message: format!("{} ({}){}", db.message(), db.code().code(), hint(db)),
            outcome_known: true,
        },
    }
}

/// What an error means that may pass, where the server's words do not say it.
fn hint(db: &DbError) -> &'static str {
    match *db.code() {
        SqlState::READ_ONLY_SQL_TRANSACTION => {
            ": the database is read-only now, as a standby or by default_transaction_read_only"
        }
        _ => "",
    }
}

/// The whole chain of causes in one line: tokio-postgres keeps the interesting part in the source.
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Errors that no retry mends, with what to do about them.
fn advice(db: &DbError) -> Option<(StoreCode, &'static str)> {
    let code = db.code();
    Some(match *code {
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => (
            StoreCode::Login,
            "the database refused the login; check user and password (or password_file). No event is touched",
        ),
        SqlState::INVALID_CATALOG_NAME => (StoreCode::NoDatabase, "there is no such database; check the URL"),
        SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME | SqlState::UNDEFINED_FUNCTION => (
            StoreCode::SchemaMissing,
            "the outbox is not set up here; run `posthaste migrate up`, or check `schema`",
        ),
        SqlState::UNDEFINED_COLUMN => {
            (StoreCode::SchemaOther, "the outbox has another version; run `posthaste migrate status`")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            (StoreCode::Rights, "the role lacks a right; `posthaste migrate sql` prints the grants it needs")
        }
        SqlState::INVALID_SQL_STATEMENT_NAME | SqlState::DUPLICATE_PSTATEMENT => (
            StoreCode::Pooler,
            "named statements do not work here: a pooler in transaction mode? Set `pooled = true`",
        ),
        _ => return None,
    })
}

/// Whether the database will never take these values: wrong for their type or encoding (22), against a
/// constraint (23, 44), too large for an index (54).
pub(crate) fn is_refusal_of_data(error: &tokio_postgres::Error) -> bool {
    let class = error.code().and_then(|code| code.code().get(..2));
    matches!(class, Some("22" | "23" | "44" | "54"))
}

/// Whether an error is this SQLSTATE.
pub(crate) fn is_code(error: &tokio_postgres::Error, code: &SqlState) -> bool {
    error.code() == Some(code)
}
