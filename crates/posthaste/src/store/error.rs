//! Errors of a store: variants by what the caller does next, codes by what a person does.
//!
//! What several stores say in the same words is made here, so that they go on saying the same.

use super::LaneId;
use crate::code::codes;

codes! {
/// Why a store refused, or stopped. Stable: `docs/errors.md` says what to do about each.
StoreCode {
    /// [`StoreError::LeaseLost`].
    LeaseLost = "store.lease_lost",
    /// [`StoreError::Transient`], and it is certain that nothing was applied.
    Unavailable = "store.unavailable",
    /// [`StoreError::Transient`], and nobody knows whether it was applied.
    Unknown = "store.unknown",
    /// The address is not one.
    Url = "store.url",
    /// A file that the configuration names cannot be read or used.
    File = "store.file",
    /// Options of TLS that do not go together.
    Tls = "store.tls",
    /// The name of the schema cannot be one.
    SchemaName = "store.schema_name",
    /// Limits that the tables cannot keep.
    Limits = "store.limits",
    /// The database refused the login, or asks for a password and has none.
    Login = "store.login",
    /// There is no such database or file.
    NoDatabase = "store.no_database",
    /// The file is something else.
    OtherFile = "store.other_file",
    /// The server cannot carry the log.
    Server = "store.server",
    /// The server is a standby.
    Standby = "store.standby",
    /// A pooler lies between that was not declared.
    Pooler = "store.pooler",
    /// The file is not in WAL mode.
    Wal = "store.wal",
    /// The outbox is not set up.
    SchemaMissing = "store.schema_missing",
    /// The schema is older than this binary needs.
    SchemaOld = "store.schema_old",
    /// The schema is newer than this binary understands.
    SchemaNew = "store.schema_new",
    /// The schema is none that this binary made.
    SchemaOther = "store.schema_other",
    /// A right is missing.
    Rights = "store.rights",
    /// A live relay has other routes or sinks.
    OtherRoutes = "store.other_routes",
    /// The routes changed before the former ones were worked off.
    RoutesChanging = "store.routes_changing",
    /// The relay's plan does not allow it: it has not joined, or does not serve the sink.
    NotJoined = "store.not_joined",
    /// The event cannot be appended as it is.
    Event = "store.event",
    /// An event with this id is there already.
    Duplicate = "store.duplicate",
    /// The description of an adopted table is wrong, or does not fit it.
    Layout = "store.layout",
    /// The adopted table, or its dead-letter table, is not there.
    TableMissing = "store.table_missing",
    /// The adopted table refuses what has to be written to it.
    TableRefuses = "store.table_refuses",
    /// The command is about a log of our own, and this is an adopted table.
    Adopted = "store.adopted",
    /// The database went back in time.
    WentBack = "store.went_back",
    /// A lane has no cursor.
    NoReceipt = "store.no_receipt",
    /// The file is damaged, or rows of ours are gone.
    Damaged = "store.damaged",
    /// Something that we wrote cannot be read.
    Unreadable = "store.unreadable",
    /// The database will never take what was to be written.
    Refused = "store.refused",
    /// A statement that always answers did not.
    NoAnswer = "store.no_answer",
    /// The store was closed.
    Closed = "store.closed",
    /// A task panicked.
    Panicked = "store.panicked",
}}

/// Errors of a store, by what the caller does next.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The lease has another owner, or the server crashed since. Forget the lane and everything read.
    #[error("the lease of {0} is lost: another relay owns it, or the server restarted")]
    LeaseLost(LaneId),
    /// Worth another try after a pause: connection lost, timeout, deadlock, disk full.
    #[error("{message}")]
    Transient {
        /// What happened.
        message: String,
        /// Whether it is certain that nothing was applied.
        outcome_known: bool,
    },
    /// The lane cannot go on without an operator: the database went back in time, or is another one.
    #[error("{message}")]
    Broken {
        /// What it is.
        code: StoreCode,
        /// What happened, what it means for the events, what to do.
        message: String,
    },
    /// A fault that no retry mends: missing schema, missing right, wrong password.
    #[error("{message}")]
    Fatal {
        /// What it is.
        code: StoreCode,
        /// What happened, what it means for the events, what to do.
        message: String,
    },
}

impl StoreError {
    /// The lane cannot go on.
    pub fn broken(code: StoreCode, message: impl Into<String>) -> Self {
        Self::Broken { code, message: message.into() }
    }

    /// No retry mends it.
    pub fn fatal(code: StoreCode, message: impl Into<String>) -> Self {
        Self::Fatal { code, message: message.into() }
    }

    /// What it is, for programs. Stable.
    #[must_use]
    pub fn code(&self) -> &'static str {
        let code = match self {
            Self::LeaseLost(_) => StoreCode::LeaseLost,
            Self::Transient { outcome_known: true, .. } => StoreCode::Unavailable,
            Self::Transient { outcome_known: false, .. } => StoreCode::Unknown,
            Self::Broken { code, .. } | Self::Fatal { code, .. } => *code,
        };
        code.as_str()
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Transient { .. })
    }

    /// Whether it is certain that the call changed nothing.
    #[must_use]
    pub fn is_outcome_known(&self) -> bool {
        !matches!(self, Self::Transient { outcome_known: false, .. })
    }

    /// The same with a place in front: which file, which server.
    #[must_use]
    pub fn at(mut self, place: &str) -> Self {
        match &mut self {
            Self::LeaseLost(_) => {}
            Self::Transient { message, .. } | Self::Broken { message, .. } | Self::Fatal { message, .. } => {
                message.insert_str(0, &format!("{place}: "));
            }
        }
        self
    }

    /// A statement that always answers did not: a defect of ours, or a server that is none.
    #[must_use]
    pub fn no_answer() -> Self {
        Self::broken(StoreCode::NoAnswer, "a statement that always answers did not")
    }

    /// A lane without a cursor.
    #[must_use]
    pub fn no_receipt(lane: &LaneId) -> Self {
        Self::broken(StoreCode::NoReceipt, format!("{lane} has no receipt; run `posthaste lanes repair`"))
    }

    /// Two filters on one cursor would skip each other's events.
    #[must_use]
    pub fn other_routes(relay: &str) -> Self {
        Self::fatal(
            StoreCode::OtherRoutes,
            format!(
                "relay {relay} runs with other routes or sinks on this outbox; stop it first, or start this one with the \
                 same ones. No event is touched"
            ),
        )
    }

    /// A cursor remembers one former filter, not two.
    #[must_use]
    pub fn routes_changing(sink: &str, position: i64, until: i64) -> Self {
        Self::fatal(
            StoreCode::RoutesChanging,
            format!(
                "the routes of {sink} change again before it has read what its former routes took: it stands at \
                 {position}, and must be past {until}. Start with the routes of before until then, or events would be skipped"
            ),
        )
    }

    /// A version whose text is another one than that which was applied describes another database.
    #[must_use]
    pub fn other_text((version, name): (i32, &str), applied: &str, ours: &str) -> Self {
        Self::fatal(
            StoreCode::SchemaOther,
            format!(
                "version {version} ({name}) was applied here with another text than this binary has (checksum {applied}, \
                 now {ours}): it came from another build of posthaste. Nothing was changed; use that build, or compare \
                 with `posthaste migrate sql`"
            ),
        )
    }

    /// Refuses a schema version that this binary cannot live with. It needs its own, and gets along with a
    /// newer one that says so: `oldest` is the lowest version whose binaries can live with the current
    /// schema. One that says nothing suits the binaries of the version before it.
    pub fn check_schema(current: i32, oldest: Option<i32>, known: i32) -> Result<(), Self> {
        if current < known {
            return Err(Self::fatal(
                StoreCode::SchemaOld,
                format!(
                    "the outbox has schema version {current}, and this binary needs {known}: run `posthaste migrate up`. \
                     Events are appended as before and wait in the log"
                ),
            ));
        }
        let oldest = oldest.unwrap_or(current - 1);
        if known < oldest {
            return Err(Self::fatal(
                StoreCode::SchemaNew,
                format!(
                    "the outbox has schema version {current}, which suits binaries that know {oldest} or more; this one \
                     knows {known}: install a newer posthaste. No event is touched"
                ),
            ));
        }
        Ok(())
    }
}
