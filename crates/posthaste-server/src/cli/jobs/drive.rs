//! Runs a job at the command line, with its progress. Ctrl-C pauses it.

use crate::cli::{Context, chunks};
use posthaste::admin::job::{
    JobLease, JobOrder, JobPlan, JobRun, JobStatus, JobStore, NewJob, Preview, RunEnd, run_job,
};
use posthaste::admin::{Actor, AdminError};
use posthaste::store::{StoreCode, StoreError};
use std::time::Duration;

/// For how long the database may be away. The job waits for whoever resumes it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who runs a job: this process.
pub(crate) fn owner() -> String {
    format!("{}:{}", crate::output::host(), std::process::id())
}

/// Writes a job down that this process runs. `None`: the login may not, and the act runs without one.
pub(crate) async fn begin(
    jobs: &dyn JobStore,
    plan: JobPlan,
    seen: &Preview,
    rate: Option<f64>,
    actor: &Actor,
) -> Result<Option<(JobStatus, JobLease)>, AdminError> {
    let new = NewJob {
        plan,
        upto: seen.upto.clone(),
        total: seen.matched(),
        rate_per_s: rate,
        idempotency_key: None,
        owner: Some(owner()),
    };
    match jobs.new_job(&new, actor).await {
        Ok(job) => {
            let lease = JobLease { job: job.job, epoch: job.epoch };
            Ok(Some((job, lease)))
        }
        Err(AdminError::Store(StoreError::Fatal { code: StoreCode::Rights, .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs it until it ends, or until Ctrl-C.
pub(crate) async fn drive(
    context: &Context,
    jobs: &dyn JobStore,
    lease: &JobLease,
    job: &JobStatus,
    (chunk, actor): (i64, &Actor),
) -> Result<JobStatus, AdminError> {
    let bar = chunks::progress(job.total, context.out().json);
    let how = JobRun { rate_per_s: job.rate_per_s, chunk, patience: PATIENCE };
    let interrupted = async { _ = tokio::signal::ctrl_c().await };
    let seen = |job: &JobStatus| bar.set_position(job.done + job.left_alone);
    let end = run_job(jobs, lease, how, interrupted, seen).await;
    bar.finish_and_clear();
    match end? {
        RunEnd::Ended(job) => Ok(*job),
        RunEnd::LeaseLost => jobs.job(lease.job).await,
        RunEnd::Interrupted => jobs.order_job(lease.job, JobOrder::Pause, actor).await,
    }
}
