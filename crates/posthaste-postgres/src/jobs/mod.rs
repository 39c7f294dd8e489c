//! Jobs: bulk acts that are written down, chunk after chunk.
//!
//! A chunk's transaction locks the job's row first. Whoever has another epoch, or finds the job paused, does
//! nothing. Then it does what the plan says to the next letters (`steps.rs`), writes the audit, and moves the
//! job's position: all of it commits together, or nothing.

mod steps;

use crate::admin::aside::{maybe, time};
use crate::admin::{PostgresAdmin, finish};
use crate::session::{Session, params};
use async_trait::async_trait;
use posthaste::admin::job::{
    ChunkEnd, JOB_KEPT, JOB_LEASE, JOBS_FORGOTTEN_MAX, JobLease, JobOrder, JobPlan, JobState, JobStatus,
    JobStore, LookBound, NewJob, OPEN_JOBS_MAX, Preview, new_job_detail,
};
use posthaste::admin::{Actor, AdminError, ROWS_MAX};
use posthaste::crash_point;
use posthaste::store::{StoreCode, StoreError};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Row;

/// What everybody sees of a job.
const COLUMNS: &str = "job, kind, consumer, plan, upto, position, rate_per_s, state, total, done, left_alone, reasons, error, \
     actor, verified, reason, trace_id, owner, coalesce(lease_until > clock_timestamp(), false) as alive, epoch, \
     created_at, started_at, ended_at";

macro_rules! sql {
    ($name:literal) => {
        &include_str!(concat!("../../sql/admin/", $name, ".sql")).replace("/*job*/", COLUMNS)
    };
}

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

impl JobStep {
    /// The rows of a chunk, of which some go and the others are left alone.
    pub(crate) fn of(rows: &[Row], chunk: i64, position: impl Fn(&Row) -> String) -> Self {
        let mut step = Self {
            position: rows.last().map(position),
            last: (rows.len() as i64) < chunk,
            ..Self::default()
        };
        for why in rows.iter().filter_map(|row| row.get::<_, Option<String>>("why")) {
            *step.left_alone.entry(why).or_default() += 1;
        }
        step
    }
}

/// A job that a transaction has locked.
pub(crate) struct LockedJob {
    pub(crate) status: JobStatus,
    pub(crate) plan: JobPlan,
}

impl LockedJob {
    /// Who asked for it, for the audit of each chunk.
    pub(crate) fn actor(&self) -> Actor {
        let JobStatus { actor, reason, trace_id, verified, .. } = &self.status;
        Actor { verified: *verified, ..Actor::new(actor, reason).traced(trace_id) }
    }
}

/// What a lease finds.
enum Fenced {
    Ours(Box<LockedJob>),
    Not(ChunkEnd),
}

impl PostgresAdmin {
    async fn lock_job(&self, session: &mut Session, job: i64) -> Result<JobStatus, AdminError> {
        session.batch("set local lock_timeout = '10s'").await.map_err(crate::admin::failed)?;
        let rows = self.query(session, sql!("job_lock"), params![INT8 job]).await?;
        rows.first().map(status).ok_or_else(|| AdminError::unknown_job(job))
    }

    /// The job, if the lease is the right to it.
    async fn fenced(&self, session: &mut Session, lease: &JobLease) -> Result<Fenced, AdminError> {
        let status = self.lock_job(session, lease.job).await?;
        if status.state != JobState::Running {
            return Ok(Fenced::Not(ChunkEnd::Stopped(Box::new(status))));
        }
        if status.epoch != lease.epoch {
            return Ok(Fenced::Not(ChunkEnd::LeaseLost));
        }
        let unreadable = |why| StoreError::fatal(StoreCode::Unreadable, format!("job {}: {why}", lease.job));
        let plan = JobPlan::read(&status.plan.to_string()).map_err(unreadable)?;
        Ok(Fenced::Ours(Box::new(LockedJob { status, plan })))
    }

    async fn progress(
        &self,
        session: &mut Session,
        job: i64,
        step: &JobStep,
        (state, error): (JobState, Option<&str>),
    ) -> Result<ChunkEnd, AdminError> {
        let left: u64 = step.left_alone.values().sum();
        let (done, left) = (count(step.done), count(left));
        let (reasons, lease) = (json!(step.left_alone).to_string(), JOB_LEASE.as_secs_f64());
        let params = params![
            INT8 job, TEXT step.position, INT8 done, INT8 left, TEXT reasons, TEXT state.as_str(), TEXT error,
            FLOAT8 lease,
        ];
        let rows = self.query(session, sql!("job_progress"), params).await?;
        let row = rows.first().ok_or_else(|| AdminError::unknown_job(job))?;
        Ok(ChunkEnd::Committed(Box::new(status(row))))
    }

    async fn chunk(
        &self,
        session: &mut Session,
        lease: &JobLease,
        chunk: i64,
    ) -> Result<ChunkEnd, AdminError> {
        let job = match self.fenced(session, lease).await? {
            Fenced::Ours(job) => job,
            Fenced::Not(end) => return Ok(end),
        };
        let step = self.step(session, &job, chunk).await?;
        let state = if step.last { JobState::Done } else { JobState::Running };
        let end = self.progress(session, lease.job, &step, (state, None)).await?;
        // CRASH(job.chunk): the chunk is rolled back with its connection: letters, audit and progress are as
        // they were. The lease ends, and whoever takes the job does the chunk (G6).
        crash_point!("job.chunk");
        Ok(end)
    }
}

impl PostgresAdmin {
    async fn find_by_key(
        &self,
        session: &mut Session,
        key: Option<&str>,
        plan: &str,
    ) -> Result<Option<JobStatus>, AdminError> {
        let known = self.query(session, sql!("job_of_key"), params![TEXT key, TEXT plan]).await?;
        match known.first() {
            None => Ok(None),
            Some(row) if row.get("same") => Ok(Some(status(row))),
            Some(row) => Err(AdminError::other_job(row.get("job"))),
        }
    }
}

#[async_trait]
impl JobStore for PostgresAdmin {
    fn answer_within(&self, longest: Duration) {
        self.sessions.answer_within(longest);
    }

    async fn preview_within(&self, plan: &JobPlan, bound: LookBound) -> Result<Preview, AdminError> {
        plan.check()?;
        self.look_ahead(plan, bound).await
    }

    async fn new_job(&self, new: &NewJob, actor: &Actor) -> Result<JobStatus, AdminError> {
        new.check(actor)?;
        let mut session = self.begin().await?;
        let (kind, plan, lease) = (new.plan.kind().as_str(), new.plan.to_json(), JOB_LEASE.as_secs_f64());
        let made = async {
            let total = count(new.total);
            let params = params![
                TEXT kind, TEXT new.plan.consumer(), TEXT plan, TEXT new.upto, FLOAT8 new.rate_per_s, INT8 total,
                TEXT actor.name, BOOL actor.verified, TEXT actor.reason, TEXT actor.trace_id,
                TEXT new.idempotency_key, TEXT new.owner, FLOAT8 lease, INT8 OPEN_JOBS_MAX,
            ];
            let rows = self.query(&mut session, sql!("job_new"), params).await?;
            if let Some(row) = rows.first() {
                let made = status(row);
                let params = params![FLOAT8 JOB_KEPT.as_secs_f64(), INT8 JOBS_FORGOTTEN_MAX];
                self.query(&mut session, sql!("job_forget"), params).await?;
                self.audit(&mut session, actor, "start job", &new_job_detail(made.job, new)).await?;
                return Ok(made);
            }
            let known = self.find_by_key(&mut session, new.idempotency_key.as_deref(), &plan).await?;
            known.ok_or_else(AdminError::too_many_jobs)
        };
        let made = made.await;
        finish(&mut session, made).await
    }

    async fn job_of_key(&self, key: &str, plan: &JobPlan) -> Result<Option<JobStatus>, AdminError> {
        let mut session = self.begin().await?;
        let found = self.find_by_key(&mut session, Some(key), &plan.to_json()).await;
        finish(&mut session, found).await
    }

    async fn jobs(&self, before: Option<i64>, open: bool, limit: i64) -> Result<Vec<JobStatus>, AdminError> {
        let limit = limit.clamp(1, ROWS_MAX);
        let rows = self.look_freely(sql!("job_list"), params![INT8 before, BOOL open, INT8 limit]).await?;
        Ok(rows.iter().map(status).collect())
    }

    async fn job(&self, job: i64) -> Result<JobStatus, AdminError> {
        let rows = self.look_freely(sql!("job_show"), params![INT8 job]).await?;
        rows.first().map(status).ok_or_else(|| AdminError::unknown_job(job))
    }

    async fn order_job(&self, job: i64, order: JobOrder, actor: &Actor) -> Result<JobStatus, AdminError> {
        actor.check()?;
        let mut session = self.begin().await?;
        let ordered = async {
            let before = self.lock_job(&mut session, job).await?;
            let state = order.apply(job, before.state)?;
            if state == before.state {
                return Ok(before);
            }
            let params = params![INT8 job, TEXT state.as_str()];
            let rows = self.query(&mut session, sql!("job_order"), params).await?;
            self.audit(&mut session, actor, order.action(), &order.detail(&before)).await?;
            rows.first().map(status).ok_or_else(|| AdminError::unknown_job(job))
        };
        let ordered = ordered.await;
        finish(&mut session, ordered).await
    }

    async fn take_job(&self, owner: &str, job: Option<i64>) -> Result<Option<JobLease>, AdminError> {
        let mut session = self.begin().await?;
        let params = params![TEXT owner, INT8 job, FLOAT8 JOB_LEASE.as_secs_f64()];
        let taken = self.query(&mut session, sql!("job_take"), params).await;
        let taken = taken
            .map(|rows| rows.first().map(|row| JobLease { job: row.get("job"), epoch: row.get("epoch") }));
        finish(&mut session, taken).await
    }

    async fn run_chunk(&self, lease: &JobLease, chunk: i64) -> Result<ChunkEnd, AdminError> {
        let mut session = self.begin_freely().await?;
        let end = self.chunk(&mut session, lease, chunk).await;
        let end = finish(&mut session, end).await?;
        // CRASH(job.committed): the chunk is done and written down, and this process does not know. Whoever
        // goes on begins behind it: nothing is done twice.
        crash_point!("job.committed");
        Ok(end)
    }

    async fn leave_alone(&self, lease: &JobLease, why: &str) -> Result<ChunkEnd, AdminError> {
        let mut session = self.begin_freely().await?;
        let left = async {
            let job = match self.fenced(&mut session, lease).await? {
                Fenced::Ours(job) => job,
                Fenced::Not(end) => return Ok(end),
            };
            let Some(position) = self.next_of(&mut session, &job).await? else {
                let step = JobStep::default();
                return self.progress(&mut session, lease.job, &step, (JobState::Done, None)).await;
            };
            let left_alone = BTreeMap::from([(why.to_owned(), 1)]);
            let step = JobStep { position: Some(position), left_alone, ..JobStep::default() };
            self.progress(&mut session, lease.job, &step, (JobState::Running, None)).await
        };
        let left = left.await;
        finish(&mut session, left).await
    }

    async fn fail_job(&self, lease: &JobLease, error: &str) -> Result<ChunkEnd, AdminError> {
        let mut session = self.begin().await?;
        let failed = async {
            if let Fenced::Not(end) = self.fenced(&mut session, lease).await? {
                return Ok(end);
            }
            self.progress(&mut session, lease.job, &JobStep::default(), (JobState::Failed, Some(error))).await
        };
        let failed = failed.await;
        finish(&mut session, failed).await
    }

    async fn renew_job(&self, lease: &JobLease) -> Result<ChunkEnd, AdminError> {
        let mut session = self.begin().await?;
        let renewed = async {
            if let Fenced::Not(end) = self.fenced(&mut session, lease).await? {
                return Ok(end);
            }
            self.progress(&mut session, lease.job, &JobStep::default(), (JobState::Running, None)).await
        };
        let renewed = renewed.await;
        finish(&mut session, renewed).await
    }
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn status(row: &Row) -> JobStatus {
    let number = |name: &str| row.get::<_, i64>(name).unsigned_abs();
    let reasons: serde_json::Value = row.get("reasons");
    JobStatus {
        job: row.get("job"),
        kind: row.get("kind"),
        consumer: row.get("consumer"),
        plan: row.get("plan"),
        upto: row.get("upto"),
        position: row.get("position"),
        rate_per_s: row.get("rate_per_s"),
        state: JobState::read(row.get("state")),
        total: number("total"),
        done: number("done"),
        left_alone: number("left_alone"),
        reasons: serde_json::from_value(reasons).unwrap_or_default(),
        error: row.get("error"),
        actor: row.get("actor"),
        verified: row.get("verified"),
        reason: row.get("reason"),
        trace_id: row.get("trace_id"),
        owner: row.get("owner"),
        alive: row.get("alive"),
        epoch: row.get("epoch"),
        created_at: time(row, "created_at"),
        started_at: maybe(row, "started_at"),
        ended_at: maybe(row, "ended_at"),
    }
}
