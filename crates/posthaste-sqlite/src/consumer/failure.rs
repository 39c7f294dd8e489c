//! Whose fault an error is.

use super::Failed;
use crate::error::judge;
use posthaste::consumer::store::InboxError;
use posthaste::consumer::{Disposition, Failure, FailureKind, HandlerError};
use posthaste::store::StoreError;
use rusqlite::ErrorCode::{ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull, SystemIoFailure};
use std::error::Error;

/// An error of one of our own statements.
pub(super) fn of_statement(error: rusqlite::Error) -> InboxError {
    match (error.sqlite_error_code(), judge(&error, true)) {
        (Some(DatabaseBusy | DatabaseLocked), judged) => InboxError::Conflict(judged.to_string()),
        (_, StoreError::Transient { message, .. }) => InboxError::Unavailable(message),
        (_, judged) => InboxError::Broken(judged.to_string()),
    }
}

/// The same for a batch.
pub(super) fn of_store(error: InboxError) -> Failure {
    match error {
        InboxError::Conflict(why) => Failure::new(FailureKind::Conflict, "inbox.conflict", why),
        InboxError::Unavailable(why) => Failure::new(FailureKind::Outage, "inbox.unavailable", why),
        InboxError::Broken(why) => Failure::new(FailureKind::Broken, "inbox.broken", why),
    }
}

/// What an engine does about a failure that is not a message's.
pub(super) fn to_store(failure: &Failure) -> Option<InboxError> {
    match failure.kind {
        FailureKind::Conflict => Some(InboxError::Conflict(failure.message.clone())),
        FailureKind::Outage => Some(InboxError::Unavailable(failure.message.clone())),
        FailureKind::Committed | FailureKind::Broken => Some(InboxError::Broken(failure.message.clone())),
        _ => None,
    }
}

/// A commit that was refused for what handlers did is theirs: a deferred constraint.
pub(super) fn of_commit(error: rusqlite::Error) -> Failure {
    if error.sqlite_error_code() == Some(ConstraintViolation) {
        let why = format!("what the handlers did was refused at the commit: {error}");
        return Failure::new(FailureKind::Error, "handler.commit", why);
    }
    of_store(of_statement(error))
}

/// What a handler said. An error of the database that is nobody's fault is found wherever it is in the chain.
pub(super) fn of_handler(error: HandlerError) -> Failure {
    let mut cause: Option<&(dyn Error + 'static)> = error.error.as_deref().map(|error| error as _);
    while let Some(one) = cause {
        let code = one.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error_code);
        let kind = match code {
            Some(DatabaseBusy | DatabaseLocked) => Some(FailureKind::Conflict),
            // It may be another file's. Where it is ours, our own statements say so too.
            Some(DiskFull | SystemIoFailure) => Some(FailureKind::ConnectionLost),
            _ => None,
        };
        if let Some(kind) = kind {
            return Failure::new(kind, error.code, error.message);
        }
        cause = one.source();
    }
    let stack = error.error.as_ref().map(|error| format!("{error:?}"));
    Failure::of_handler(error).with_stack(stack)
}

/// A handler ended the transaction that it was given, one way or the other.
pub(super) fn ended() -> Failure {
    let why = "the handler ended the transaction that it was given; it must neither commit nor roll back";
    Failure::new(FailureKind::Error, "handler.ended", why)
}

/// No handler takes a message.
pub(super) fn unmatched() -> Failure {
    let kind = FailureKind::Poison(Disposition::Unmatched);
    Failure::new(kind, "consumer.unmatched", "no handler takes the message")
}

/// A batch that failed, by nobody's fault.
pub(super) fn of_nobody(failure: Failure) -> Failed {
    Failed { at: None, failure }
}
