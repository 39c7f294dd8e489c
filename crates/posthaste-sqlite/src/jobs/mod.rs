//! Jobs: bulk acts that are written down, chunk after chunk.
//!
//! A chunk waits its turn for the write lock, like everybody. In its transaction it looks at the job first:
//! whoever has another epoch, or finds it paused, does nothing. What is done to the letters, the line of the
//! audit and the job's progress commit together.

mod steps;

use crate::admin::{SqliteAdmin, audit, failed};
use crate::clock::{micros, now};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::job::{
    ChunkEnd, JOB_KEPT, JOB_LEASE, JOBS_FORGOTTEN_MAX, JobLease, JobOrder, JobPlan, JobState, JobStatus,
    JobStore, LookBound, NewJob, OPEN_JOBS_MAX, Preview, new_job_detail,
};
use posthaste::admin::{Actor, AdminError, ROWS_MAX};
use posthaste::crash_point;
use posthaste::store::{StoreCode, StoreError};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::json;
use std::collections::BTreeMap;

/// What a chunk did.
#[derive(Debug, Default)]
pub(crate) struct JobStep {
    /// How many were acted on.
    pub(crate) done: u64,
    /// How many were left alone, by code.
    pub(crate) left_alone: BTreeMap<String, u64>,
    /// The last one that it looked at.
    pub(crate) position: Option<String>,
    /// Whether nothing is left.
    pub(crate) last: bool,
}

/// A job that a transaction has in hand.
pub(crate) struct OpenJob {
    pub(crate) status: JobStatus,
    pub(crate) plan: JobPlan,
}

impl OpenJob {
    /// Who asked for it, for the audit of each chunk.
    pub(crate) fn actor(&self) -> Actor {
        let JobStatus { actor, reason, trace_id, verified, .. } = &self.status;
        Actor { verified: *verified, ..Actor::new(actor, reason).traced(trace_id) }
    }
}

/// What a lease finds.
enum Fenced {
    Ours(Box<OpenJob>),
    Not(ChunkEnd),
}

fn lease_until() -> i64 {
    now() + i64::try_from(JOB_LEASE.as_micros()).unwrap_or(i64::MAX)
}

fn find(tx: &Connection, job: i64) -> Result<JobStatus, AdminError> {
    let found = tx.query_row("select * from posthaste_jobs where job = ?1", [job], status).optional();
    found.map_err(failed)?.ok_or_else(|| AdminError::unknown_job(job))
}

fn fenced(tx: &Transaction<'_>, lease: &JobLease) -> Result<Fenced, AdminError> {
    let status = find(tx, lease.job)?;
    if status.state != JobState::Running {
        return Ok(Fenced::Not(ChunkEnd::Stopped(Box::new(status))));
    }
    if status.epoch != lease.epoch {
        return Ok(Fenced::Not(ChunkEnd::LeaseLost));
    }
    let unreadable = |why| StoreError::fatal(StoreCode::Unreadable, format!("job {}: {why}", lease.job));
    let plan = JobPlan::read(&status.plan.to_string()).map_err(unreadable)?;
    Ok(Fenced::Ours(Box::new(OpenJob { status, plan })))
}

/// How far a job is now.
fn progress(
    tx: &Transaction<'_>,
    job: i64,
    step: &JobStep,
    (state, error): (JobState, Option<&str>),
) -> Result<ChunkEnd, AdminError> {
    let mut reasons = find(tx, job)?.reasons;
    for (code, count) in &step.left_alone {
        *reasons.entry(code.clone()).or_default() += count;
    }
    let left: u64 = step.left_alone.values().sum();
    let ended = state.is_over().then(now);
    let sql = include_str!("../../sql/admin/job_progress.sql");
    let params = params![
        job,
        step.position,
        count(step.done),
        count(left),
        json!(reasons).to_string(),
        state.as_str(),
        error,
        lease_until(),
        ended
    ];
    tx.execute(sql, params).map_err(failed)?;
    Ok(ChunkEnd::Committed(Box::new(find(tx, job)?)))
}

fn chunk(tx: &Transaction<'_>, lease: &JobLease, chunk: i64) -> Result<ChunkEnd, AdminError> {
    let job = match fenced(tx, lease)? {
        Fenced::Ours(job) => job,
        Fenced::Not(end) => return Ok(end),
    };
    let step = steps::step(tx, &job, chunk)?;
    let state = if step.last { JobState::Done } else { JobState::Running };
    let end = progress(tx, lease.job, &step, (state, None))?;
    // CRASH(sqlite.job.chunk): nothing of the chunk is written: letters, audit and progress are as they were.
    // The lease ends, and whoever takes the job does the chunk (G6).
    crash_point!("sqlite.job.chunk");
    Ok(end)
}

fn leave(tx: &Transaction<'_>, lease: &JobLease, why: &str) -> Result<ChunkEnd, AdminError> {
    let job = match fenced(tx, lease)? {
        Fenced::Ours(job) => job,
        Fenced::Not(end) => return Ok(end),
    };
    let Some(position) = steps::next(tx, &job)? else {
        return progress(tx, lease.job, &JobStep::default(), (JobState::Done, None));
    };
    let left_alone = BTreeMap::from([(why.to_owned(), 1)]);
    let step = JobStep { position: Some(position), left_alone, ..JobStep::default() };
    progress(tx, lease.job, &step, (JobState::Running, None))
}

fn find_by_key(tx: &Transaction<'_>, key: &str, plan: &str) -> Result<Option<JobStatus>, AdminError> {
    let sql = "select job, plan from posthaste_jobs where idempotency_key = ?1";
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let known: Option<(i64, String)> = tx.query_row(sql, [key], read).optional().map_err(failed)?;
    match known {
        Some((job, known)) if known == plan => find(tx, job).map(Some),
        Some((job, _)) => Err(AdminError::other_job(job)),
        None => Ok(None),
    }
}

fn begin(tx: &Transaction<'_>, new: &NewJob, actor: &Actor) -> Result<JobStatus, AdminError> {
    let plan = new.plan.to_json();
    if let Some(key) = &new.idempotency_key
        && let Some(known) = find_by_key(tx, key, &plan)?
    {
        return Ok(known);
    }
    let open = "select count(*) from posthaste_jobs where state in ('queued', 'running', 'paused')";
    let open: i64 = tx.query_row(open, [], |row| row.get(0)).map_err(failed)?;
    if open >= OPEN_JOBS_MAX {
        return Err(AdminError::too_many_jobs());
    }
    let owned = new.owner.is_some();
    let sql = include_str!("../../sql/admin/job_new.sql");
    let state = if owned { JobState::Running } else { JobState::Queued };
    let params = params![
        new.plan.kind().as_str(),
        new.plan.consumer(),
        plan,
        new.upto,
        new.rate_per_s,
        count(new.total),
        actor.name,
        actor.verified,
        actor.reason,
        actor.trace_id,
        new.idempotency_key,
        new.owner,
        state.as_str(),
        i64::from(owned),
        owned.then(lease_until),
        now(),
        owned.then(now)
    ];
    tx.execute(sql, params).map_err(failed)?;
    let job = tx.last_insert_rowid();
    let forget = include_str!("../../sql/admin/job_forget.sql");
    tx.execute(forget, params![now().saturating_sub(micros(JOB_KEPT)), JOBS_FORGOTTEN_MAX])
        .map_err(failed)?;
    audit(tx, actor, "start job", &new_job_detail(job, new))?;
    find(tx, job)
}

fn take(tx: &Transaction<'_>, owner: &str, job: Option<i64>) -> rusqlite::Result<Option<JobLease>> {
    let sql = include_str!("../../sql/admin/job_take.sql");
    let read = |row: &Row<'_>| Ok(JobLease { job: row.get(0)?, epoch: row.get(1)? });
    tx.query_row(sql, params![owner, job, now(), lease_until()], read).optional()
}

fn order(tx: &Transaction<'_>, job: i64, order: JobOrder, actor: &Actor) -> Result<JobStatus, AdminError> {
    let before = find(tx, job)?;
    let state = order.apply(job, before.state)?;
    if state == before.state {
        return Ok(before);
    }
    let ended = state.is_over().then(now);
    let sql = "update posthaste_jobs set state = ?2, owner = null, ended_at = ?3 where job = ?1";
    tx.execute(sql, params![job, state.as_str(), ended]).map_err(failed)?;
    audit(tx, actor, order.action(), &order.detail(&before))?;
    find(tx, job)
}

#[async_trait]
impl JobStore for SqliteAdmin {
    async fn preview_within(&self, plan: &JobPlan, bound: LookBound) -> Result<Preview, AdminError> {
        plan.check()?;
        let plan = plan.clone();
        self.look(move |tx| steps::look_ahead(tx, &plan, bound)).await
    }

    async fn new_job(&self, new: &NewJob, actor: &Actor) -> Result<JobStatus, AdminError> {
        new.check(actor)?;
        let (new, actor) = (new.clone(), actor.clone());
        self.act(move |tx| begin(tx, &new, &actor)).await
    }

    async fn job_of_key(&self, key: &str, plan: &JobPlan) -> Result<Option<JobStatus>, AdminError> {
        let (key, plan) = (key.to_owned(), plan.to_json());
        self.look(move |tx| find_by_key(tx, &key, &plan)).await
    }

    async fn jobs(&self, before: Option<i64>, open: bool, limit: i64) -> Result<Vec<JobStatus>, AdminError> {
        let (before, limit) = (before.unwrap_or(i64::MAX), limit.clamp(1, ROWS_MAX));
        let sql = include_str!("../../sql/admin/job_list.sql");
        let look = move |tx: &Connection| -> rusqlite::Result<Vec<JobStatus>> {
            tx.prepare(sql)?.query_map(params![before, open, limit], status)?.collect()
        };
        self.look(move |tx| look(tx).map_err(failed)).await
    }

    async fn job(&self, job: i64) -> Result<JobStatus, AdminError> {
        self.look(move |tx| find(tx, job)).await
    }

    async fn order_job(&self, job: i64, what: JobOrder, actor: &Actor) -> Result<JobStatus, AdminError> {
        actor.check()?;
        let actor = actor.clone();
        self.act(move |tx| order(tx, job, what, &actor)).await
    }

    async fn take_job(&self, owner: &str, job: Option<i64>) -> Result<Option<JobLease>, AdminError> {
        let owner = owner.to_owned();
        self.act(move |tx| take(tx, &owner, job).map_err(failed)).await
    }

    async fn run_chunk(&self, lease: &JobLease, size: i64) -> Result<ChunkEnd, AdminError> {
        let lease = lease.clone();
        let end = self.act(move |tx| chunk(tx, &lease, size)).await?;
        // CRASH(sqlite.job.committed): the chunk is done and written down, and this process does not know.
        // Whoever goes on begins behind it: nothing is done twice.
        crash_point!("sqlite.job.committed");
        Ok(end)
    }

    async fn leave_alone(&self, lease: &JobLease, why: &str) -> Result<ChunkEnd, AdminError> {
        let (lease, why) = (lease.clone(), why.to_owned());
        self.act(move |tx| leave(tx, &lease, &why)).await
    }

    async fn fail_job(&self, lease: &JobLease, error: &str) -> Result<ChunkEnd, AdminError> {
        let (lease, error) = (lease.clone(), error.to_owned());
        self.act(move |tx| match fenced(tx, &lease)? {
            Fenced::Not(end) => Ok(end),
            Fenced::Ours(_) => progress(tx, lease.job, &JobStep::default(), (JobState::Failed, Some(&error))),
        })
        .await
    }

    async fn renew_job(&self, lease: &JobLease) -> Result<ChunkEnd, AdminError> {
        let lease = lease.clone();
        self.act(move |tx| match fenced(tx, &lease)? {
            Fenced::Not(end) => Ok(end),
            Fenced::Ours(_) => progress(tx, lease.job, &JobStep::default(), (JobState::Running, None)),
        })
        .await
    }
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn status(row: &Row<'_>) -> rusqlite::Result<JobStatus> {
    let number = |name: &str| row.get::<_, i64>(name).map(i64::unsigned_abs);
    let document = |name: &str| row.get::<_, String>(name).map(|text| serde_json::from_str(&text).ok());
    let time = |name: &str| row.get::<_, Option<i64>>(name).map(|at| at.map(Timestamp));
    let lease: Option<i64> = row.get("lease_until")?;
    Ok(JobStatus {
        job: row.get("job")?,
        kind: row.get("kind")?,
        consumer: row.get("consumer")?,
        plan: document("plan")?.unwrap_or_default(),
        upto: row.get("upto")?,
        position: row.get("position")?,
        rate_per_s: row.get("rate_per_s")?,
        state: JobState::read(&row.get::<_, String>("state")?),
        total: number("total")?,
        done: number("done")?,
        left_alone: number("left_alone")?,
        reasons: document("reasons")?.and_then(|read| serde_json::from_value(read).ok()).unwrap_or_default(),
        error: row.get("error")?,
        actor: row.get("actor")?,
        verified: row.get("verified")?,
        reason: row.get("reason")?,
        trace_id: row.get("trace_id")?,
        owner: row.get("owner")?,
        alive: lease.is_some_and(|until| until > now()),
        epoch: row.get("epoch")?,
        created_at: Timestamp(row.get("created_at")?),
        started_at: time("started_at")?,
        ended_at: time("ended_at")?,
    })
}
