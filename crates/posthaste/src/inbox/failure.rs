//! Why a message was not handled, and whose fault that is.
//!
//! A handler says as little as it likes: `?` on any error means "try again". It may say more:
//! [`HandlerError::reject`] for a message that will never be right, [`HandlerError::unavailable`] for
//! something outside that is away. The store turns what it got into a [`Failure`]: only there the database's
//! own errors are known. What a failure leads to is decided in one place, `policy.rs`.

use std::borrow::Cow;
use std::error::Error;
use std::sync::Arc;

/// What a handler answers if it did not do its work.
///
/// It is no `std::error::Error`, so that `?` takes every error that is one.
#[derive(Debug)]
pub struct HandlerError {
    /// What is asked for.
    pub wish: Wish,
    /// Stable code, for metrics and for the cause of a dead letter.
    pub code: Cow<'static, str>,
    /// For people.
    pub message: String,
    /// The error behind it, where there is one. The store looks through its chain for the database's.
    pub error: Option<Box<dyn Error + Send + Sync>>,
}

/// What a handler asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Another try, later.
    Retry,
    /// None: the message will never be right.
    Reject,
    /// None: it breaks its schema.
    Invalid,
    /// Another try when this is back.
    Unavailable(Arc<str>),
}

impl HandlerError {
    /// The message will never be right: it goes to the dead letters at once.
    pub fn reject(code: impl Into<Cow<'static, str>>, why: impl Into<String>) -> Self {
        Self { wish: Wish::Reject, code: code.into(), message: why.into(), error: None }
    }

    /// Something outside is away, and no message is to blame: its breaker opens.
    pub fn unavailable(dependency: impl Into<Arc<str>>, why: impl Into<String>) -> Self {
        let wish = Wish::Unavailable(dependency.into());
        Self { wish, code: "handler.unavailable".into(), message: why.into(), error: None }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let message = chain(&error);
        Self { wish: Wish::Retry, code: "handler.error".into(), message, error: Some(Box::new(error)) }
    }
}

/// An error and its causes in one line.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

/// The code of a [`FailureKind::ConnectionLost`] whose connection lives: a handler heard of an outage, most
/// likely of another server. Nobody else waits for that.
pub const OUTAGE_ELSEWHERE: &str = "database.outage";

/// Why a message, or a whole batch, was not handled. Nothing of it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whose fault it is.
    pub kind: FailureKind,
    /// Stable code.
    pub code: Cow<'static, str>,
    /// For people.
    pub message: String,
    /// The chain of errors, a backtrace, PostgreSQL's CONTEXT: whatever tells where it happened.
    pub stack: Option<String>,
}

/// Whose fault a failure is. The first three spend one of the message's attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureKind {
    /// The handler answered with an error.
    Error,
    /// The handler did not answer in time.
    Timeout,
    /// The handler panicked.
    Panic,
    /// The message will never be right. It is dead at once.
    Poison(Disposition),
    /// Something outside is away, by name.
    Unavailable(Arc<str>),
    /// Another transaction was in the way. Nobody's fault, and never counted.
    Conflict,
    /// The database is out of reach, full, or going down.
    Outage,
    /// The connection was lost while this message's handler ran, or its handler heard of an outage over a
    /// connection that lives: another server's, perhaps. An outage, unless it happens to the same message
    /// again and again while the database works: then it is the message that kills its backend.
    ConnectionLost,
    /// The handler ended the transaction that it was given. The consumer stops: marks without effects may be
    /// committed already.
    Committed,
    /// The database refuses what is ours: a missing table, a missing right. The consumer stops.
    Broken,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { kind, code: code.into(), message: message.into(), stack: None }
    }

    /// With where it happened.
    #[must_use]
    pub fn with_stack(mut self, stack: Option<String>) -> Self {
        self.stack = stack;
        self
    }

    /// What a handler said. The store looks at the error behind it first, for what is the database's.
    #[must_use]
    pub fn of_handler(error: HandlerError) -> Self {
        let kind = match error.wish {
            Wish::Retry => FailureKind::Error,
            Wish::Reject => FailureKind::Poison(Disposition::Rejected),
            Wish::Invalid => FailureKind::Poison(Disposition::Schema),
            Wish::Unavailable(dependency) => FailureKind::Unavailable(dependency),
        };
        Self { kind, code: error.code, message: error.message, stack: None }
    }

    /// The class that a dead letter, a metric and the history show.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match &self.kind {
            FailureKind::Error => "error",
            FailureKind::Timeout => "timeout",
            FailureKind::Panic => "panic",
            FailureKind::Poison(disposition) => disposition.as_str(),
            FailureKind::Unavailable(_) => "unavailable",
            FailureKind::Conflict => "conflict",
            FailureKind::Outage | FailureKind::ConnectionLost => "outage",
            FailureKind::Committed => "committed-by-handler",
            FailureKind::Broken => "broken",
        }
    }
}

/// How a message came to be a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Disposition {
    /// Its bytes are not what they should be.
    Decode,
    /// It breaks its schema.
    Schema,
    /// The handler refused it.
    Rejected,
    /// Its attempts are spent.
    Exhausted,
    /// The last attempt panicked.
    Panic,
    /// The last attempt took too long.
    Timeout,
    /// The process, or its backend, died with it in hand too often.
    Crashed,
    /// It has no identity that could be marked.
    Unfit,
    /// No handler takes it, and that is declared to be a fault.
    Unmatched,
    /// Its handler ended the transaction.
    CommittedByHandler,
    /// An operator's act.
    Operator,
}

impl Disposition {
    /// Every one of them.
    pub const ALL: [Self; 11] = [
        Self::Decode,
        Self::Schema,
        Self::Rejected,
        Self::Exhausted,
        Self::Panic,
        Self::Timeout,
        Self::Crashed,
        Self::Unfit,
        Self::Unmatched,
        Self::CommittedByHandler,
        Self::Operator,
    ];

    /// As tables and people have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Schema => "schema",
            Self::Rejected => "rejected",
            Self::Exhausted => "exhausted",
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::Crashed => "crashed",
            Self::Unfit => "unfit",
            Self::Unmatched => "unmatched",
            Self::CommittedByHandler => "committed-by-handler",
            Self::Operator => "operator",
        }
    }

    /// Reads what a table has.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|disposition| disposition.as_str() == text)
    }
}
