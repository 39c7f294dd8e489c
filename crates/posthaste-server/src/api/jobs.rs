//! Bulk acts: a dry run, a job, and what is wanted of it.
//!
//! `dry_run` answers what would happen and `upto`, the last one that was seen; the job takes that and never
//! goes beyond. Discarding is an administrator's, everything else an operator's. A request only writes the
//! job down; whoever serves the API and has the operators' login runs it (`daemon/jobs.rs`), in this process
//! or in another one. Where there is no place for jobs, a few named letters go at once (`at_once.rs`).

use super::at_once::{DoneAtOnce, act_at_once};
use super::call::{ApiCall, limit, next, value};
use super::door::forbidden;
use super::live::take_over;
use super::looks::check_seen;
use super::spec::{NoQuery, Reason};
use crate::access::OperatorRole;
use crate::desk::OutboxDesk;
use crate::http::ApiProblem;
use posthaste::admin::job::{JobOrder, JobPlan, JobStatus, JobStore, NewJob, Preview};
use posthaste::admin::{Actor, Admin, AdminCode, AdminError, DeadFilter};
use posthaste::consumer::admin::ConsumerAdmin;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// What is to be done.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct JobRequest {
    #[serde(flatten)]
    pub(crate) plan: JobPlan,
    /// Only say what would happen.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Never beyond this one: as the dry run said.
    pub(crate) upto: Option<String>,
    /// Why, for the audit. Not needed for a dry run.
    #[serde(default)]
    reason: String,
    /// At most so many a second.
    pub(crate) rate_per_s: Option<f64>,
}

/// What would happen, or the job; or what was done already, where there is no place for jobs.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum JobAnswer {
    Preview(Preview),
    Job(Box<JobStatus>),
    AtOnce(DoneAtOnce),
}

/// Whose jobs.
enum Store {
    Sinks(Arc<dyn Admin>),
    Consumers(Arc<dyn ConsumerAdmin>),
}

impl Store {
    fn jobs(&self) -> Result<&dyn JobStore, AdminError> {
        let jobs = match self {
            Self::Sinks(admin) => admin.jobs(),
            Self::Consumers(admin) => admin.jobs(),
        };
        jobs.ok_or_else(|| AdminError::Conflict {
            code: AdminCode::Adopted,
            message: "it is an adopted table, and has no jobs: what is done there is done at once".to_owned(),
        })
    }
}

pub(crate) async fn new_job(call: ApiCall, body: Value) -> Result<JobAnswer, ApiProblem> {
    let request: JobRequest = serde_json::from_value(body.clone()).map_err(|error| {
        ApiProblem::bad("api.bad_body", format!("the body: {error}"), "docs/api.md shows what it holds.")
    })?;
    check_members(body, &request.plan)?;
    begin(call, request).await
}

/// Seed 001's endpoint: dead letters by filter or ids, in one call.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reprocess {
    /// Which letters.
    #[serde(default)]
    filter: DeadFilter,
    /// Why, for the audit.
    reason: String,
    /// At most so many a second.
    rate_per_s: Option<f64>,
}

pub(crate) async fn reprocess(call: ApiCall, body: Value) -> Result<JobAnswer, ApiProblem> {
    let request: Reprocess = serde_json::from_value(body.clone()).map_err(|error| {
        ApiProblem::bad("api.bad_body", format!("the body: {error}"), "docs/api.md shows what it holds.")
    })?;
    let plan = JobPlan::DeadReplay { filter: request.filter };
    check_members(body, &plan)?;
    let (reason, rate_per_s) = (request.reason, request.rate_per_s);
    begin(call, JobRequest { plan, dry_run: false, upto: None, reason, rate_per_s }).await
}

/// A misspelt member of a filter would make it wider than it is meant. And whoever gives headers for an act
/// that keeps all of them would believe that some are left out.
fn check_members(mut body: Value, plan: &JobPlan) -> Result<(), ApiProblem> {
    let own = ["dry_run", "upto", "reason", "rate_per_s"];
    if let Some(members) = body.as_object_mut() {
        members.retain(|name, _| !own.contains(&name.as_str()));
    }
    plan.strange_member(&body).map_or(Ok(()), |name| {
        let why = format!("`{name}` is not known here, and what is misspelt would mean more than it should");
        Err(ApiProblem::bad("api.bad_body", why, "docs/api.md lists what a filter may hold."))
    })
}

async fn begin(call: ApiCall, request: JobRequest) -> Result<JobAnswer, ApiProblem> {
    let desk = call.desk()?;
    may(&call, &request.plan)?;
    request.plan.check().map_err(|error| desk.failed(error))?;
    check_seen(&call, &value(&request.plan)["filter"])?;
    let actor = match request.dry_run {
        true => Actor::new(call.grant.name.clone(), "dry run"),
        false => call.actor(&request.reason)?,
    };
    // Two tokens that take the same key by chance do not meet.
    let key = call.idempotency_key.as_ref().map(|key| format!("{}:{key}", call.grant.id()));
    let (is_consumers, is_look) = (request.plan.consumer().is_some(), request.dry_run);
    let (bell, outbox) = (desk.bell.clone(), desk.name().to_owned());
    let work = async move |store: Store| {
        if let Store::Sinks(admin) = &store
            && admin.jobs().is_none()
        {
            return act_at_once(&**admin, &outbox, &request, &actor).await;
        }
        let jobs = store.jobs()?;
        if request.dry_run {
            return jobs.preview(&request.plan).await.map(JobAnswer::Preview);
        }
        // First: what the job has done already is not there to be seen.
        if let Some(key) = &key
            && let Some(job) = jobs.job_of_key(key, &request.plan).await?
        {
            bell.ring();
            return Ok(JobAnswer::Job(Box::new(job)));
        }
        let preview = jobs.preview(&request.plan).await?;
        let upto = match &request.upto {
            None => preview.upto.clone(),
            Some(_) if preview.upto.is_empty() => String::new(),
            Some(asked) => request.plan.end(asked, &preview.upto).ok_or_else(|| {
                let why = format!("`upto` {asked:?} is none that a dry run of this kind answers");
                AdminError::Invalid { code: AdminCode::BadUpto, message: why }
            })?,
        };
        let new = NewJob {
            total: preview.matched(),
            upto,
            plan: request.plan,
            rate_per_s: request.rate_per_s,
            idempotency_key: key,
            owner: None,
        };
        if new.upto.is_empty() {
            return Err(AdminError::Conflict {
                code: AdminCode::EmptyFilter,
                message: "nothing matches the filter; nothing was done".to_owned(),
            });
        }
        let job = jobs.new_job(&new, &actor).await?;
        bell.ring();
        Ok(JobAnswer::Job(Box::new(job)))
    };
    match (is_consumers, is_look) {
        (true, false) => call.act_on_consumers(&desk, |admin| work(Store::Consumers(admin))).await,
        (false, false) => call.act(&desk, |admin| work(Store::Sinks(admin))).await,
        (false, true) => desk.look(|admin| work(Store::Sinks(admin))).await,
        (true, true) => {
            let look = desk.look_at_consumers(|admin| work(Store::Consumers(admin)));
            look.await?.ok_or_else(|| desk.failed(AdminError::adopted(desk.name(), "it has no consumers")))
        }
    }
}

/// What the table of routes cannot say: the kind decides about the role, and the plan names a consumer.
fn may(call: &ApiCall, plan: &JobPlan) -> Result<(), ApiProblem> {
    let discards = matches!(plan, JobPlan::DeadDiscard { .. } | JobPlan::ConsumerDiscard { .. });
    if discards && call.grant.role < OperatorRole::Admin {
        return Err(forbidden("discarding needs the role admin"));
    }
    match plan.consumer() {
        Some(consumer) if !call.grant.has_consumer(consumer) => {
            Err(forbidden("the token is not for this consumer"))
        }
        _ => Ok(()),
    }
}

/// Which jobs.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobsQuery {
    /// Only those that are not over.
    #[serde(default)]
    open: bool,
    /// At most so many, up to 1000; 50 by default.
    limit: Option<i64>,
    /// Go on here.
    cursor: Option<String>,
}

/// A page of jobs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Jobs {
    /// Newest first.
    jobs: Vec<JobStatus>,
    /// The cursor of the next page.
    next: Option<String>,
}

pub(crate) async fn jobs(call: ApiCall, query: JobsQuery) -> Result<Jobs, ApiProblem> {
    let (desk, limit) = (call.desk()?, limit(query.limit)?);
    let before: Option<i64> = call.place("jobs", desk.name(), query.cursor.as_deref())?;
    let look = desk.look(|admin| async move {
        match admin.jobs() {
            Some(jobs) => jobs.jobs(before, query.open, limit).await,
            None => Ok(Vec::new()),
        }
    });
    let jobs = look.await?;
    take_over(&desk, &jobs);
    let next = next("jobs", desk.name(), &jobs, limit, |job| job.job.into());
    let is_in_scope =
        |job: &JobStatus| job.consumer.as_ref().is_none_or(|name| call.grant.has_consumer(name));
    Ok(Jobs { jobs: jobs.into_iter().filter(is_in_scope).collect(), next })
}

pub(crate) async fn job(call: ApiCall, _: NoQuery) -> Result<JobStatus, ApiProblem> {
    let (desk, number) = (call.desk()?, call.number("job")?);
    one(&call, &desk, number).await
}

/// A job that the token is for.
async fn one(call: &ApiCall, desk: &OutboxDesk, number: i64) -> Result<JobStatus, ApiProblem> {
    let look = desk.look(|admin| async move { Store::Sinks(admin).jobs()?.job(number).await });
    let job = look.await?;
    take_over(desk, std::slice::from_ref(&job));
    match job.consumer.as_ref().is_none_or(|name| call.grant.has_consumer(name)) {
        true => Ok(job),
        false => Err(desk.failed(AdminError::unknown_job(number))),
    }
}

async fn order(call: ApiCall, body: Reason, order: JobOrder) -> Result<JobStatus, ApiProblem> {
    let (desk, number, actor) = (call.desk()?, call.number("job")?, call.actor(&body.reason)?);
    let before = one(&call, &desk, number).await?;
    let is_discard = before.kind.ends_with(".discard");
    if is_discard && order == JobOrder::Resume && call.grant.role < OperatorRole::Admin {
        return Err(forbidden("discarding needs the role admin"));
    }
    let is_consumers = before.consumer.is_some();
    let bell = desk.bell.clone();
    let work = async move |store: Store| {
        let job = store.jobs()?.order_job(number, order, &actor).await?;
        if order == JobOrder::Resume {
            bell.ring();
        }
        Ok(job)
    };
    match is_consumers {
        true => call.act_on_consumers(&desk, |admin| work(Store::Consumers(admin))).await,
        false => call.act(&desk, |admin| work(Store::Sinks(admin))).await,
    }
}

pub(crate) async fn pause_job(call: ApiCall, body: Reason) -> Result<JobStatus, ApiProblem> {
    order(call, body, JobOrder::Pause).await
}

pub(crate) async fn resume_job(call: ApiCall, body: Reason) -> Result<JobStatus, ApiProblem> {
    order(call, body, JobOrder::Resume).await
}

pub(crate) async fn cancel_job(call: ApiCall, body: Reason) -> Result<JobStatus, ApiProblem> {
    order(call, body, JobOrder::Cancel).await
}
