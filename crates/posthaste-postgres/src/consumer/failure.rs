//! Whose fault an error is: by SQLSTATE, and by what became of the connection.
//!
//! | what | is |
//! |---|---|
//! | 40001, 40P01, 55P03; a lock that a handler waits for half-way or at its deadline | a conflict |
//! | 08, 53100, 53300, 57P, 58, 25006 in a statement of ours; no connection | an outage |
//! | the connection lost in a handler, or at the commit | lost there |
//! | 08, 53100, … from a handler whose connection lives | lost there, and most likely another server's |
//! | 57014 (`statement_timeout`), any other error after the handler's deadline | a timeout |
//! | PH001, PH002 | what the handler wants: reject, unavailable |
//! | anything else in a handler | its error |
//! | a missing table or right in a statement of ours | broken |

use crate::append::tokio_postgres::AppendError;
use crate::error::{describe, is_refusal_of_data, store_error};
use posthaste::consumer::failure::{OUTAGE_ELSEWHERE, Wish, chain};
use posthaste::consumer::store::{ApplyError, InboxError, Witness};
use posthaste::consumer::{Disposition, Failure, FailureKind, HandlerError};
use posthaste::store::StoreError;
use std::any::Any;
use std::error::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// The handler wants the message rejected.
const REJECTED: &str = "PH001";
/// A dependency is away; the error's DETAIL names it.
const UNAVAILABLE: &str = "PH002";
/// How the texts of our own SQL functions begin.
const OUR_TEXTS: &str = "posthaste: ";
/// The connection was lost inside a handler.
pub(super) const LOST_CODE: &str = "handler.connection_lost";

/// An error of a statement of ours.
pub(super) struct OwnError(pub(super) InboxError);

impl From<tokio_postgres::Error> for OwnError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self(inbox_error(error))
    }
}

impl From<AppendError> for OwnError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Database(error) => error.into(),
            // The dead-letter topic itself is not acceptable: nothing about the message can mend that.
            AppendError::Event(error) => {
                Self(InboxError::Broken(format!("the event of a dead letter cannot be appended: {error}")))
            }
        }
    }
}

pub(super) fn inbox_error(error: tokio_postgres::Error) -> InboxError {
    match error.code() {
        Some(code) if is_conflict(code) => InboxError::Conflict(describe(&error)),
        // A handler said DEALLOCATE: another session has its statements.
        Some(code) if *code == SqlState::INVALID_SQL_STATEMENT_NAME => {
            InboxError::Unavailable(describe(&error))
        }
        Some(_) if is_refusal_of_data(&error) => InboxError::Broken(describe(&error)),
        _ => store_failed(store_error(error)),
    }
}

pub(super) fn store_failed(error: StoreError) -> InboxError {
    match error {
        StoreError::Transient { message, .. } => InboxError::Unavailable(message),
        other => InboxError::Broken(other.to_string()),
    }
}

/// Our own part of a transaction with handlers failed: nobody alone is to blame.
pub(super) fn apply_error(witness: Option<Witness>, error: InboxError) -> ApplyError {
    let (kind, code, message) = match error {
        InboxError::Conflict(message) => (FailureKind::Conflict, "inbox.conflict", message),
        InboxError::Unavailable(message) => (FailureKind::Outage, "inbox.unavailable", message),
        InboxError::Broken(message) => (FailureKind::Broken, "inbox.broken", message),
    };
    ApplyError { witness, at: None, failure: Failure::new(kind, code, message) }
}

/// Whether a handler failed because of what somebody else did at the same time.
pub(super) fn is_in_conflict(error: &HandlerError) -> bool {
    let behind = error.error.as_deref().map(|behind| behind as &(dyn Error + 'static));
    let code = behind.and_then(database_error).and_then(tokio_postgres::Error::code);
    error.wish == Wish::Retry && code.is_some_and(is_conflict)
}

/// What a commit was refused for: somebody's deferred constraint, if it is not the database itself.
pub(super) fn commit_failure(error: tokio_postgres::Error) -> Failure {
    if error.as_db_error().is_none() {
        return Failure::new(FailureKind::ConnectionLost, "inbox.commit_unknown", describe(&error));
    }
    of_database(&error, Failure::new(FailureKind::Error, "handler.error", describe(&error)))
}

/// What a handler said, read by someone who knows the database. `closed`: its connection is gone.
pub(super) fn of_handler(error: HandlerError, closed: bool) -> Failure {
    if error.wish != Wish::Retry {
        let stack = error.error.as_deref().map(|behind| frames(behind));
        return Failure::of_handler(error).with_stack(stack);
    }
    let behind = error.error.as_deref().map(|behind| behind as &(dyn Error + 'static));
    let stack = behind.map(frames);
    let lost = closed || behind.and_then(database_error).is_some_and(is_lost);
    if lost {
        return Failure::new(FailureKind::ConnectionLost, LOST_CODE, error.message).with_stack(stack);
    }
    let plain = Failure::new(FailureKind::Error, error.code.clone(), error.message.clone()).with_stack(stack);
    match behind.and_then(database_error) {
        Some(found) => of_database(found, plain),
        None => plain,
    }
}

fn of_database(error: &tokio_postgres::Error, plain: Failure) -> Failure {
    let Some(db) = error.as_db_error() else { return plain };
    let code = db.code();
    let (kind, name) = match code.code() {
        REJECTED if db.message().starts_with(OUR_TEXTS) => {
            (FailureKind::Poison(Disposition::Decode), "message.json".to_owned())
        }
        REJECTED => (FailureKind::Poison(Disposition::Rejected), "handler.rejected".to_owned()),
        UNAVAILABLE => {
            let dependency: String = db.detail().unwrap_or("unnamed").trim().chars().take(100).collect();
            (FailureKind::Unavailable(dependency.into()), "handler.unavailable".to_owned())
        }
        _ if *code == SqlState::QUERY_CANCELED => (FailureKind::Timeout, "handler.timeout".to_owned()),
        _ if is_conflict(code) => (FailureKind::Conflict, "handler.conflict".to_owned()),
        // Our own statements work: it may be another server's, and only this message's.
        _ if is_outage(code) => (FailureKind::ConnectionLost, OUTAGE_ELSEWHERE.to_owned()),
        other => (plain.kind.clone(), format!("sqlstate.{other}")),
    };
    Failure { kind, code: name.into(), message: db.message().to_owned(), stack: context(db).or(plain.stack) }
}

/// Where in the database it happened.
fn context(db: &DbError) -> Option<String> {
    db.where_().map(str::to_owned)
}

pub(crate) fn is_conflict(code: &SqlState) -> bool {
    matches!(code.code(), "40001" | "40P01" | "55P03")
}

pub(crate) fn is_outage(code: &SqlState) -> bool {
    let code = code.code();
    matches!(code, "53100" | "53300" | "25006")
        || ["08", "57P", "58"].iter().any(|class| code.starts_with(class))
}

/// Whether the connection is gone with it: closed, or ended by the server.
fn is_lost(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        Some(db) => matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic)),
        None => error.is_closed() || error.source().is_some_and(|cause| cause.is::<std::io::Error>()),
    }
}

/// The database's own error among the causes.
fn database_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a tokio_postgres::Error> {
    causes(error).find_map(|error| error.downcast_ref())
}

pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// An error and its causes, a line each.
fn frames(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// What a panic said.
pub(super) fn of_panic(panic: &(dyn Any + Send)) -> Failure {
    let said = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
    let message = said.unwrap_or_else(|| "the handler panicked".to_owned());
    Failure::new(FailureKind::Panic, "handler.panic", message)
}

/// The time of a handler is over, and it waits for a lock.
pub(super) fn waiting() -> Failure {
    let why = "the handler's time is over while it waits for a lock that somebody else holds";
    Failure::new(FailureKind::Conflict, "handler.conflict", why)
}

pub(super) fn late(error: Option<HandlerError>) -> Failure {
    let said = error.and_then(|error| error.error.map(|error| chain(&*error)));
    let message = said.map_or_else(
        || "the handler took longer than its timeout".to_owned(),
        |said| format!("the handler took longer than its timeout, and then failed: {said}"),
    );
    Failure::new(FailureKind::Timeout, "handler.timeout", message)
}
