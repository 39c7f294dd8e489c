//! Errors of an administrative act.

use crate::code::codes;
use crate::store::StoreError;

codes! {
/// Why an act was refused. Stable: `docs/errors.md` says what to do about each.
AdminCode {
    /// No sink of this name has lanes.
    UnknownSink = "admin.unknown_sink",
    /// No event has this number or id.
    UnknownEvent = "admin.unknown_event",
    /// The event is not where its id says; the rest of the log was not looked through.
    SearchWider = "admin.search_wider",
    /// Somebody else acted on these letters at the same moment.
    Taken = "admin.taken",
    /// No relay serves the sink.
    NotServed = "admin.not_served",
    /// No route takes the topic.
    NoRoute = "admin.no_route",
    /// A rewind that would skip events.
    RewindForward = "admin.rewind_forward",
    /// Nothing was appended since the instant to rewind to.
    NothingSince = "admin.nothing_since",
    /// Nothing is broken.
    NothingToRepair = "admin.nothing_to_repair",
    /// The act is the owner's right.
    OwnerNeeded = "admin.owner_needed",
    /// Who acts, or why, was not said.
    ActorMissing = "admin.actor_missing",
    /// The filter names nothing.
    EmptyFilter = "admin.empty_filter",
    /// The filter names what those have not that it is about, or too many ids.
    BadFilter = "admin.bad_filter",
    /// A number of lanes that cannot be.
    BadLanes = "admin.bad_lanes",
    /// A place in a list that this store did not give.
    BadPlace = "admin.bad_place",
    /// A number that no event has.
    BadSeq = "admin.bad_seq",
    /// A rate that is none.
    BadRate = "admin.bad_rate",
    /// A setting of the relay that cannot be tuned to that.
    BadTuning = "admin.bad_tuning",
    /// An end that lies in the past, or too far away.
    BadEnd = "admin.bad_end",
    /// A job was to end at a place that is none.
    BadUpto = "admin.bad_upto",
    /// A pause and a rate limit that would have to end at different times.
    EndsApart = "admin.ends_apart",
    /// A route has no rate.
    RouteRate = "admin.route_rate",
    /// An adopted table cannot do that.
    Adopted = "admin.adopted",
    /// An adopted table has no audit, and dead rows leave it only with a line in one.
    AuditMissing = "admin.audit_missing",
    /// No job has this number.
    UnknownJob = "admin.unknown_job",
    /// The job has come to its end.
    JobOver = "admin.job_over",
    /// So many jobs are open that one more would only hide.
    TooManyJobs = "admin.too_many_jobs",
    /// The idempotency key belongs to another job.
    OtherJob = "admin.other_job",
}}

/// Errors of an administrative act, by what the caller does next.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// There is no such thing.
    #[error("{message}")]
    NotFound {
        /// What it is.
        code: AdminCode,
        /// The same in words.
        message: String,
    },
    /// Somebody else was quicker, or the state does not allow it.
    #[error("{message}")]
    Conflict {
        /// What it is.
        code: AdminCode,
        /// The same in words.
        message: String,
    },
    /// The request itself is wrong.
    #[error("{message}")]
    Invalid {
        /// What it is.
        code: AdminCode,
        /// The same in words.
        message: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AdminError {
    pub(super) fn not_found(code: AdminCode, message: impl Into<String>) -> Self {
        Self::NotFound { code, message: message.into() }
    }

    pub(super) fn conflict(code: AdminCode, message: impl Into<String>) -> Self {
        Self::Conflict { code, message: message.into() }
    }

    pub(crate) fn invalid(code: AdminCode, message: impl Into<String>) -> Self {
        Self::Invalid { code, message: message.into() }
    }

    /// What it is, for programs. Stable.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { code, .. } | Self::Conflict { code, .. } | Self::Invalid { code, .. } => {
                code.as_str()
            }
            Self::Store(error) => error.code(),
        }
    }
}
