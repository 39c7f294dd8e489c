//! A job on letters in memory, for the tests of runs and runners.

use super::{
    ChunkEnd, JobLease, JobOrder, JobPlan, JobState, JobStatus, JobStore, LookBound, NewJob, Preview,
};
use crate::admin::{Actor, AdminError};
use crate::event::Timestamp;
use crate::store::StoreError;
use async_trait::async_trait;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

/// Letters in memory, some of which are refused.
pub(super) struct Letters {
    bad: fn(u64) -> bool,
    total: u64,
    seen: Mutex<Seen>,
}

/// What has become of them, and what becomes of the next.
#[derive(Default)]
pub(super) struct Seen {
    position: u64,
    pub(super) done: u64,
    left_alone: u64,
    pub(super) failed: bool,
    pub(super) outages: u32,
    pub(super) paused_at: Option<u64>,
    /// From here on nothing answers.
    pub(super) silent_at: Option<u64>,
    /// A chunk takes so long.
    pub(super) slow: Option<Duration>,
    pub(super) largest: i64,
    /// What somebody made of the job; `None`: it runs.
    pub(super) state: Option<JobState>,
    pub(super) rate_per_s: Option<f64>,
    pub(super) plan: Value,
    /// How often somebody took it.
    pub(super) taken: u32,
}

impl Letters {
    pub(super) fn new(total: u64, bad: fn(u64) -> bool) -> Self {
        let plan = json!({ "kind": "dead.replay", "filter": { "all": true } });
        Self { bad, total, seen: Mutex::new(Seen { plan, ..Seen::default() }) }
    }

    /// The same, and nobody runs the job.
    pub(super) fn waiting(self) -> Self {
        self.seen().state = Some(JobState::Queued);
        self
    }

    pub(super) fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self, seen: &Seen) -> JobStatus {
        let state = match () {
            () if seen.failed => JobState::Failed,
            () if seen.state.is_some() => seen.state.unwrap_or(JobState::Running),
            () if seen.position >= self.total => JobState::Done,
            () => JobState::Running,
        };
        JobStatus {
            job: 1,
            kind: String::new(),
            consumer: None,
            plan: seen.plan.clone(),
            upto: String::new(),
            position: None,
            rate_per_s: seen.rate_per_s,
            state,
            total: self.total,
            done: seen.done,
            left_alone: seen.left_alone,
            reasons: BTreeMap::new(),
            error: None,
            actor: String::new(),
            verified: false,
            reason: String::new(),
            trace_id: String::new(),
            owner: None,
            alive: true,
            epoch: 1,
            created_at: Timestamp(0),
            started_at: None,
            ended_at: None,
        }
    }
}

#[async_trait]
impl JobStore for Letters {
    async fn run_chunk(&self, _: &JobLease, chunk: i64) -> Result<ChunkEnd, AdminError> {
        let (slow, is_silent) = {
            let seen = self.seen();
            (seen.slow, seen.silent_at.is_some_and(|at| seen.position >= at))
        };
        if is_silent {
            std::future::pending::<()>().await;
        }
        if let Some(slow) = slow {
            sleep(slow).await;
        }
        let mut seen = self.seen();
        seen.largest = seen.largest.max(chunk);
        if seen.outages > 0 {
            seen.outages -= 1;
            let gone = StoreError::Transient { message: "gone".to_owned(), outcome_known: false };
            return Err(gone.into());
        }
        if seen.paused_at.is_some_and(|at| seen.position >= at) {
            seen.state = Some(JobState::Paused);
        }
        if seen.state.is_some() {
            return Ok(ChunkEnd::Stopped(Box::new(self.status(&seen))));
        }
        let end = (seen.position + chunk.unsigned_abs()).min(self.total);
        if (seen.position..end).any(self.bad) {
            return Err(AdminError::no_route("t"));
        }
        seen.done += end - seen.position;
        seen.position = end;
        Ok(ChunkEnd::Committed(Box::new(self.status(&seen))))
    }

    async fn leave_alone(&self, _: &JobLease, why: &str) -> Result<ChunkEnd, AdminError> {
        assert_eq!(why, "admin.no_route");
        let mut seen = self.seen();
        seen.position += 1;
        seen.left_alone += 1;
        Ok(ChunkEnd::Committed(Box::new(self.status(&seen))))
    }

    async fn fail_job(&self, _: &JobLease, _: &str) -> Result<ChunkEnd, AdminError> {
        self.seen().failed = true;
        Ok(ChunkEnd::Committed(Box::new(self.status(&self.seen()))))
    }

    async fn renew_job(&self, _: &JobLease) -> Result<ChunkEnd, AdminError> {
        Ok(ChunkEnd::Committed(Box::new(self.status(&self.seen()))))
    }

    async fn preview_within(&self, _: &JobPlan, _: LookBound) -> Result<Preview, AdminError> {
        unreachable!("a run does not look")
    }
    async fn new_job(&self, _: &NewJob, _: &Actor) -> Result<JobStatus, AdminError> {
        unreachable!("a run makes no job")
    }
    async fn job_of_key(&self, _: &str, _: &JobPlan) -> Result<Option<JobStatus>, AdminError> {
        unreachable!("a run has no key")
    }

    async fn jobs(&self, _: Option<i64>, open: bool, _: i64) -> Result<Vec<JobStatus>, AdminError> {
        let job = self.status(&self.seen());
        Ok(if open && job.state.is_over() { Vec::new() } else { vec![job] })
    }

    async fn job(&self, _: i64) -> Result<JobStatus, AdminError> {
        unreachable!("a run looks at no other")
    }
    async fn order_job(&self, _: i64, _: JobOrder, _: &Actor) -> Result<JobStatus, AdminError> {
        unreachable!("a run orders nothing")
    }

    async fn take_job(&self, _: &str, _: Option<i64>) -> Result<Option<JobLease>, AdminError> {
        let mut seen = self.seen();
        if seen.state != Some(JobState::Queued) {
            return Ok(None);
        }
        (seen.state, seen.taken) = (None, seen.taken + 1);
        Ok(Some(JobLease { job: 1, epoch: 1 }))
    }
}
