//! Running the jobs of an outbox in a process that serves others.
//!
//! Whoever asks for a job over the network does not run it, and whoever ran one may have died. A runner takes
//! what nobody runs: once at its start, and whenever its bell is rung. As long as it knows of a job that is
//! not over it looks again now and then, because the owner of that one may die. When it knows of none it asks
//! the database nothing at all (F83): who looks at the database anyway rings for it ([`OutboxStatus`]).
//!
//! [`OutboxStatus`]: crate::admin::OutboxStatus
//!
//! All of them run at once, each at its own rate: as many as can be open. A slow one holds up no other, and
//! chunks take turns.
//!
//! Refused: a number of jobs at once that is lower than how many can be open. So many slow ones, and the next
//! one waits for hours.

use super::{CHUNK_MAX, JOB_LEASE, JobLease, JobPlan, JobRun, JobState, JobStatus, JobStore, OPEN_JOBS_MAX};
use super::{RunEnd, answer_max, run_job};
use crate::admin::Admin;
use crate::admin::error::AdminError;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

/// For how long the database may be away before a run is given up. The job is taken again at the next look.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rung by whoever has asked for a job, or resumed one. Twice before anybody hears it is once.
#[derive(Debug, Clone, Default)]
pub struct JobBell(Arc<Notify>);

impl JobBell {
    /// There may be something to run.
    pub fn ring(&self) {
        self.0.notify_one();
    }
}

/// Runs the jobs of an outbox that nobody runs, until `stop` ends. Then the chunks that are being done are
/// done to their end, and the jobs are left to whoever comes next. A store without jobs: only waits.
///
/// `owner` is this process, as others see it in the list of jobs: no two runners have the same.
///
/// ```no_run
/// # use posthaste::admin::{Admin, job::{JobBell, run_jobs}};
/// # async fn example(admin: std::sync::Arc<dyn Admin>, terminated: impl Future<Output = ()>) {
/// let bell = JobBell::default();
/// // Whoever writes a job down has a clone, and rings it: `bell.ring()`.
/// run_jobs(&*admin, "host-7:4711", &bell, terminated).await;
/// # }
/// ```
pub async fn run_jobs(admin: &dyn Admin, owner: &str, bell: &JobBell, stop: impl Future<Output = ()>) {
    let Some(store) = admin.jobs() else { return stop.await };
    // A look that never ends would be the last one.
    store.answer_within(answer_max());
    run_all(store, owner, bell, stop).await;
}

async fn run_all(store: &dyn JobStore, owner: &str, bell: &JobBell, stop: impl Future<Output = ()>) {
    tokio::pin!(stop);
    let (stopping, stopped) = watch::channel(false);
    let (mut running, mut ours) = (FuturesUnordered::new(), HashSet::new());
    // A look goes on beside the jobs, never in front of them: it may wait for a connection that one of them
    // has.
    let mut looking = None;
    let (mut is_due, mut is_open) = (true, true);
    loop {
        if is_due && looking.is_none() {
            (is_due, is_open) = (false, false);
            looking = Some(Box::pin(find(store, owner, ours.clone())));
        }
        let looked = async {
            match &mut looking {
                Some(look) => Some(look.await),
                None => None,
            }
        };
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(JobLook { taken, is_open: more }) = looked => {
                looking = None;
                is_open |= more;
                for (job, lease) in taken {
                    ours.insert(job.job);
                    running.push(run_one(store, job, lease, stopped.clone()));
                }
            }
            Some((job, is_over)) = running.next(), if !running.is_empty() => {
                ours.remove(&job);
                // Its lease was lost, the database is away, or somebody stopped it. Whoever resumed it has
                // rung, and was told of nothing while it was ours.
                is_due |= !is_over;
                is_open = true;
            }
            () = bell.0.notified() => is_due = true,
            () = sleep(JOB_LEASE), if is_open => is_due = true,
        }
    }
    // What a look has taken by now is left as by a process that died: its lease ends.
    drop(looking);
    // Whether anybody still listens is the same to us.
    let _ = stopping.send(true);
    while running.next().await.is_some() {}
}

/// What a look found.
#[derive(Default)]
struct JobLook {
    taken: Vec<(JobStatus, JobLease)>,
    /// Whether somebody runs a job, or the answer is not known: then it is looked again.
    is_open: bool,
}

/// Takes what nobody runs.
async fn find(store: &dyn JobStore, owner: &str, ours: HashSet<i64>) -> JobLook {
    let mut found = JobLook::default();
    let looked = look(store, owner, &ours, &mut found).await;
    if let Err(error) = looked {
        found.is_open |= matches!(&error, AdminError::Store(error) if error.is_transient());
        tracing::warn!(error = %error, "jobs that wait could not be looked for; nothing of them is lost");
    }
    found
}

async fn look(
    store: &dyn JobStore,
    owner: &str,
    ours: &HashSet<i64>,
    found: &mut JobLook,
) -> Result<(), AdminError> {
    // Two that were asked for at the same moment may make it a few more.
    let open = store.jobs(None, true, OPEN_JOBS_MAX * 2).await?;
    for job in open.into_iter().rev().filter(|job| !ours.contains(&job.job)) {
        match job.state {
            JobState::Queued => {}
            JobState::Running => found.is_open = true,
            // Whoever resumes it rings, or runs it.
            _ => continue,
        }
        // One of a newer version is left to a newer process.
        let is_known = JobPlan::read(&job.plan.to_string()).is_ok();
        // Resumed, it is nobody's, whatever is left of the lease of before.
        if !is_known || job.state == JobState::Running && job.alive {
            continue;
        }
        if let Some(lease) = store.take_job(owner, Some(job.job)).await? {
            found.taken.push((job, lease));
        }
        found.is_open = true;
    }
    Ok(())
}

/// Runs a job to its end, and answers which it was and whether it is over.
async fn run_one(
    store: &dyn JobStore,
    job: JobStatus,
    lease: JobLease,
    mut stopped: watch::Receiver<bool>,
) -> (i64, bool) {
    let how = JobRun { rate_per_s: job.rate_per_s, chunk: CHUNK_MAX, patience: PATIENCE };
    let told = async move { _ = stopped.wait_for(|stopped| *stopped).await };
    match run_job(store, &lease, how, told, |_| {}).await {
        Ok(RunEnd::Ended(end)) => {
            let (state, done, left_alone) = (end.state.as_str(), end.done, end.left_alone);
            let what = if end.state.is_over() { "a job ended" } else { "a job was stopped" };
            tracing::info!(job = end.job, kind = end.kind, state, done, left_alone, "{what}");
            return (end.job, end.state.is_over());
        }
        Ok(RunEnd::LeaseLost | RunEnd::Interrupted) => {}
        Err(error) => {
            let job = lease.job;
            tracing::warn!(job, error = %error, "a job could not go on; whoever looks next takes it where it is");
        }
    }
    (lease.job, false)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Letters;
    use super::*;
    use tokio::time::Instant;

    /// A job that is resumed before its runner has seen that it was paused.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_is_resumed_at_once_goes_on_at_once() {
        let letters = Letters::new(1_000, |_| false).waiting();
        let (bell, begun) = (JobBell::default(), Instant::now());
        let orders = async {
            sleep(Duration::from_millis(1_100)).await;
            letters.seen().state = Some(JobState::Paused);
            sleep(Duration::from_millis(50)).await;
            letters.seen().state = Some(JobState::Queued);
            bell.ring();
            while letters.seen().taken < 2 {
                sleep(Duration::from_millis(10)).await;
            }
            begun.elapsed()
        };
        // A chunk a second.
        letters.seen().rate_per_s = Some(1.0);
        let took = tokio::select! {
            () = run_all(&letters, "me", &bell, std::future::pending()) => unreachable!("nobody stops it"),
            took = orders => took,
        };
        assert!(took < Duration::from_secs(5), "it waited for the next look: {took:?}");
    }

    /// Only a newer process knows what it means.
    #[tokio::test(start_paused = true)]
    async fn a_plan_of_a_newer_version_is_left_to_a_newer_process() {
        let letters = Letters::new(10, |_| false).waiting();
        letters.seen().plan["filter"]["attempts_over"] = 5.into();
        let bell = JobBell::default();
        let looks = async {
            sleep(JOB_LEASE * 3).await;
            let seen = letters.seen();
            assert_eq!((seen.taken, seen.done, seen.failed), (0, 0, false), "it is as it was");
        };
        tokio::select! {
            () = run_all(&letters, "me", &bell, std::future::pending()) => unreachable!("nobody stops it"),
            () = looks => {}
        }
    }
}
