//! Bulk acts as jobs: seen, paced, paused, and finished by somebody else if need be.
//!
//! Nine thousand letters go back in chunks. A job is what is known about that between two chunks, and it is
//! in the database: what is meant, how far it is, who runs it. A chunk is one transaction with what is done
//! to its letters, a line of the audit and the job's progress; so a death between two chunks repeats nothing
//! and counts nothing twice, and whoever takes the job over goes on behind the last chunk.
//!
//! **It acts on what was seen.** A look before ([`JobStore::preview`]) says how many go, how many are left
//! alone and why, and [`Preview::upto`], the last of them. The job never goes beyond: a replayed letter that
//! dies again is a new one, and a job that took it would have no end.
//!
//! **The fence** is the job's row: a chunk locks it first, with the epoch of its owner. An owner that was
//! thought dead and is not finds another epoch, and does nothing.
//!
//! Refused: a job in the memory of the process that was asked. It dies with it, and nobody else sees it.

mod look;
mod plan;
mod run;
mod runner;
#[cfg(test)]
mod tests;

pub use look::{LogLook, LookBound};
pub use plan::{JobKind, JobPlan};
pub use run::{JobRun, RunEnd, run_job};
pub use runner::{JobBell, run_jobs};

use super::Actor;
use super::error::{AdminCode, AdminError};
use crate::event::Timestamp;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Jobs that wait or run at once.
pub const OPEN_JOBS_MAX: i64 = 20;
/// An owner that is silent for so long is taken for dead, by the database's clock. A chunk takes part of a
/// second; a lock may keep it waiting for ten.
pub const JOB_LEASE: Duration = Duration::from_secs(20);
/// An answer of the database that has not come after so long does not come: its connection is given up, and
/// the job is taken again. A chunk takes part of a second and waits ten for a lock, and there are a few
/// locks; a server behind something that acknowledges whatever is sent would be waited for for ever.
pub const JOB_ANSWER_MAX: Duration = Duration::from_secs(60);
/// A job that ended is kept for so long. The audit keeps what was done.
pub const JOB_KEPT: Duration = Duration::from_secs(365 * 86_400);
/// Old jobs that go when one is written down: more than come, and few enough to be cheap.
pub const JOBS_FORGOTTEN_MAX: i64 = 100;
/// Letters that a look shows.
pub const PREVIEW_SAMPLES: i64 = 10;
/// Letters in one transaction, at most.
pub const CHUNK_MAX: i64 = 500;

/// What a job would do.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Preview {
    /// How many go.
    pub goes: u64,
    /// How many are left alone, by the code of the reason.
    pub left_alone: BTreeMap<String, u64>,
    /// Whether all were counted. A log may be longer than a look goes through: then it is at least so many,
    /// and the job does all of them, up to `upto`.
    pub exact: bool,
    /// The last of them: the job never goes beyond. Empty if there is none.
    pub upto: String,
    /// Some of those that go, as they are listed.
    pub samples: Vec<serde_json::Value>,
}

impl Default for Preview {
    fn default() -> Self {
        let (left_alone, upto, samples) = <(BTreeMap<_, _>, String, Vec<_>)>::default();
        Self { goes: 0, left_alone, exact: true, upto, samples }
    }
}

impl Preview {
    /// All that match, of those that were looked at.
    #[must_use]
    pub fn matched(&self) -> u64 {
        self.goes + self.left_alone.values().sum::<u64>()
    }
}

/// A job that somebody asks for.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// What it does, and to what.
    pub plan: JobPlan,
    /// The last one that it may touch: [`Preview::upto`].
    pub upto: String,
    /// How many it will look at, as the look before said; at least so many, where that was not exact.
    pub total: u64,
    /// At most so many a second.
    pub rate_per_s: Option<f64>,
    /// The same key again is the same job again.
    pub idempotency_key: Option<String>,
    /// Who runs it from the start; `None`: whoever runs jobs.
    pub owner: Option<String>,
}

impl NewJob {
    /// Refuses what no store has to be asked for.
    pub fn check(&self, actor: &Actor) -> Result<(), AdminError> {
        actor.check()?;
        self.plan.check()?;
        match self.rate_per_s {
            Some(rate) if !(rate.is_finite() && rate > 0.0) => {
                let why = format!("{rate} a second is no rate; leave it out for none, or cancel the job");
                Err(AdminError::invalid(AdminCode::BadRate, why))
            }
            _ => Ok(()),
        }
    }
}

/// What a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum JobState {
    /// Nobody has begun.
    Queued,
    /// Somebody runs it, or did until they died.
    Running,
    /// Somebody paused it.
    Paused,
    /// Nothing is left.
    Done,
    /// It was given up.
    Failed,
    /// Somebody cancelled it. What is done is done.
    Cancelled,
}

impl JobState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Running, Self::Paused, Self::Done, Self::Failed, Self::Cancelled];

    /// As it is stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// From what is stored; what is none of them failed.
    #[must_use]
    pub fn read(text: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.as_str() == text).unwrap_or(Self::Failed)
    }

    /// Whether it has come to its end.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// A job, as everybody sees it.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobStatus {
    /// Its number.
    pub job: i64,
    /// What it does.
    pub kind: String,
    /// The consumer that it is about, if it is about one.
    pub consumer: Option<String>,
    /// What is meant.
    pub plan: serde_json::Value,
    /// It never goes beyond this one.
    pub upto: String,
    /// The last one that it has looked at.
    pub position: Option<String>,
    /// At most so many a second.
    pub rate_per_s: Option<f64>,
    /// What it is doing.
    pub state: JobState,
    /// How many it will look at, as the look before said. Where that look was not exact, it will be more.
    pub total: u64,
    /// How many are done.
    pub done: u64,
    /// How many it left alone.
    pub left_alone: u64,
    /// Why, by code.
    pub reasons: BTreeMap<String, u64>,
    /// Why it failed.
    pub error: Option<String>,
    /// Who asked for it.
    pub actor: String,
    /// Whether a token said who they are.
    pub verified: bool,
    /// Why.
    pub reason: String,
    /// What it belongs to.
    pub trace_id: String,
    /// Who runs it.
    pub owner: Option<String>,
    /// Whether that one was heard of lately.
    pub alive: bool,
    /// Each owner has a higher one.
    pub epoch: i64,
    /// When somebody asked for it.
    pub created_at: Timestamp,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// The right to run a job.
#[derive(Debug, Clone)]
pub struct JobLease {
    /// Its number.
    pub job: i64,
    /// The owner's epoch.
    pub epoch: i64,
}

/// What somebody wants of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOrder {
    /// Stop for now.
    Pause,
    /// Go on.
    Resume,
    /// Stop for good.
    Cancel,
}

impl JobOrder {
    /// The audit's word.
    #[must_use]
    pub fn action(self) -> &'static str {
        match self {
            Self::Pause => "pause job",
            Self::Resume => "resume job",
            Self::Cancel => "cancel job",
        }
    }

    /// The audit's detail. What concerns a consumer names it: not everybody may see that.
    #[must_use]
    pub fn detail(self, before: &JobStatus) -> serde_json::Value {
        let JobStatus { job, kind, consumer, done, total, .. } = before;
        let mut detail = serde_json::json!({ "job": job, "kind": kind, "done": done, "total": total });
        if let Some(consumer) = consumer {
            detail["consumer"] = consumer.as_str().into();
        }
        detail
    }

    /// The state after it, or why it is refused. The same again changes nothing.
    pub fn apply(self, job: i64, state: JobState) -> Result<JobState, AdminError> {
        let next = match (self, state) {
            (_, over) if over.is_over() => None,
            (Self::Pause, _) => Some(JobState::Paused),
            (Self::Resume, JobState::Paused) => Some(JobState::Queued),
            (Self::Resume, state) => Some(state),
            (Self::Cancel, _) => Some(JobState::Cancelled),
        };
        let same = matches!((self, state), (Self::Cancel, JobState::Cancelled)).then_some(state);
        next.or(same).ok_or_else(|| {
            let why = format!(
                "job {job} is over, {}: what is done stays done, and nothing is left to do",
                state.as_str()
            );
            AdminError::conflict(AdminCode::JobOver, why)
        })
    }
}

/// What one chunk did.
#[derive(Debug, Clone)]
pub enum ChunkEnd {
    /// It is committed, and this is the job now.
    Committed(Box<JobStatus>),
    /// The job is paused, cancelled or over: nothing was done.
    Stopped(Box<JobStatus>),
    /// Somebody else runs it: nothing was done.
    LeaseLost,
}

/// Where jobs are kept, and how their chunks are done.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// From now on no answer is waited for longer than that. A store without a line to it needs no bound.
    fn answer_within(&self, _longest: Duration) {}
    /// What a plan would do, and where it would end.
    async fn preview(&self, plan: &JobPlan) -> Result<Preview, AdminError> {
        self.preview_within(plan, LookBound::default()).await
    }
    /// The same, with a bound for looks at the log.
    async fn preview_within(&self, plan: &JobPlan, bound: LookBound) -> Result<Preview, AdminError>;
    /// Writes a job down, with a line of the audit. With the idempotency key of one that is there, that one
    /// is the answer, and a plan that differs from it is refused.
    async fn new_job(&self, new: &NewJob, actor: &Actor) -> Result<JobStatus, AdminError>;
    /// The job that was begun with this idempotency key; a plan that differs from it is refused. How far it
    /// was meant to go does not matter: whoever asks again has seen what is left of it.
    async fn job_of_key(&self, key: &str, plan: &JobPlan) -> Result<Option<JobStatus>, AdminError>;
    /// Jobs before a number, newest first; without one, the newest. `open`: only those that are not over.
    async fn jobs(&self, before: Option<i64>, open: bool, limit: i64) -> Result<Vec<JobStatus>, AdminError>;
    /// One job.
    async fn job(&self, job: i64) -> Result<JobStatus, AdminError>;
    /// Pauses, resumes or cancels a job, with a line of the audit.
    async fn order_job(&self, job: i64, order: JobOrder, actor: &Actor) -> Result<JobStatus, AdminError>;
    /// Takes a job that nobody runs: this one, or the next. Its owner before is fenced off.
    async fn take_job(&self, owner: &str, job: Option<i64>) -> Result<Option<JobLease>, AdminError>;
    /// Does the next so many of a job in one transaction, and writes down how far it is.
    async fn run_chunk(&self, lease: &JobLease, chunk: i64) -> Result<ChunkEnd, AdminError>;
    /// Passes over the next one of a job, which was refused with this error's code.
    async fn leave_alone(&self, lease: &JobLease, why: &str) -> Result<ChunkEnd, AdminError>;
    /// Ends a job that cannot go on.
    async fn fail_job(&self, lease: &JobLease, error: &str) -> Result<ChunkEnd, AdminError>;
    /// Renews the right to run a job while nothing of it is due.
    async fn renew_job(&self, lease: &JobLease) -> Result<ChunkEnd, AdminError>;
}

/// For how long whoever runs jobs waits for an answer.
fn answer_max() -> Duration {
    crate::failpoint::time("POSTHASTE_JOB_ANSWER_MS", JOB_ANSWER_MAX)
}

impl AdminError {
    /// No job has this number.
    #[must_use]
    pub fn unknown_job(job: i64) -> Self {
        Self::not_found(AdminCode::UnknownJob, format!("there is no job {job}; `posthaste jobs` lists them"))
    }

    /// So many jobs are open that one more would only hide.
    #[must_use]
    pub fn too_many_jobs() -> Self {
        let why =
            format!("{OPEN_JOBS_MAX} jobs are open already; wait for one, or cancel one. Nothing was done");
        Self::conflict(AdminCode::TooManyJobs, why)
    }

    /// One idempotency key for two different jobs.
    #[must_use]
    pub fn other_job(job: i64) -> Self {
        let why = format!("this idempotency key belongs to job {job}, which is about something else");
        Self::conflict(AdminCode::OtherJob, why)
    }
}

/// The detail of the line of the audit that a new job gets.
#[must_use]
pub fn new_job_detail(job: i64, new: &NewJob) -> serde_json::Value {
    serde_json::json!({
        "job": job, "kind": new.plan.kind().as_str(), "plan": new.plan, "upto": new.upto, "total": new.total,
        "rate_per_s": new.rate_per_s,
    })
}
