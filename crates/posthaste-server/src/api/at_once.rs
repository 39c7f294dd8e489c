//! Acts on a few named letters, in the request itself, where a store has no place for jobs: an adopted table.
//!
//! A hundred letters are one transaction of a bounded time, with their line in the audit. More of them need
//! something that remembers how far it came, and that is the command line's: it stays with its act until the
//! end. What was done once is not done again by the same request: those letters are not dead any more. So no
//! `Idempotency-Key` is kept.

use super::call::value;
use super::jobs::{JobAnswer, JobRequest};
use posthaste::admin::job::{JobPlan, PREVIEW_SAMPLES, Preview};
use posthaste::admin::{Actor, Admin, AdminCode, AdminError, DeadAct};
use schemars::JsonSchema;
use serde::Serialize;

/// Letters that one request acts on: no more than the audit names, and quick on every table.
const NAMED_MAX: usize = 100;

/// What was done in the request, where there is no place for jobs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DoneAtOnce {
    /// How many letters; those that were not dead any more are none of them.
    done: u64,
    /// The trace of its line in the audit.
    trace_id: String,
}

/// Acts, or says what would happen.
pub(crate) async fn act_at_once(
    admin: &dyn Admin,
    outbox: &str,
    request: &JobRequest,
    actor: &Actor,
) -> Result<JobAnswer, AdminError> {
    let (filter, act) = match &request.plan {
        JobPlan::DeadReplay { filter } => (filter, DeadAct::Replay),
        JobPlan::DeadDiscard { filter } => (filter, DeadAct::Discard),
        JobPlan::DeferredRetry { .. } => return Err(lacks(admin, "deferred")),
        _ => return Err(lacks(admin, "replay")),
    };
    let is_few = (1..=NAMED_MAX).contains(&filter.ids.len());
    let has_end = request.upto.as_ref().is_some_and(|upto| !upto.is_empty());
    if !is_few || has_end || request.rate_per_s.is_some() {
        let why = format!(
            "an adopted table has no place for jobs. Name at most {NAMED_MAX} letters by `ids`, without `upto` and \
             `rate_per_s`; or act at the command line, which goes through all of them in chunks: `posthaste dead {} \
             --outbox {outbox} --reason …`, with the same filter",
            act.action()
        );
        return Err(AdminError::Conflict { code: AdminCode::Adopted, message: why });
    }
    if request.dry_run {
        let samples = admin.dead_newest(filter, None, PREVIEW_SAMPLES).await?;
        let goes = admin.dead_count(filter).await?;
        let samples = samples.iter().map(value).collect();
        return Ok(JobAnswer::Preview(Preview { goes, samples, ..Preview::default() }));
    }
    let done = admin.dead_act(filter, act, actor, NAMED_MAX as i64).await?;
    if done == 0 {
        let why = "nothing matches the filter; nothing was done".to_owned();
        return Err(AdminError::Conflict { code: AdminCode::EmptyFilter, message: why });
    }
    Ok(JobAnswer::AtOnce(DoneAtOnce { done, trace_id: actor.trace_id.clone() }))
}

/// What the store says of something that it has no place for.
fn lacks(admin: &dyn Admin, of: &str) -> AdminError {
    let why = admin.lacks().iter().find(|lack| lack.of == of).map_or("it cannot do that", |lack| lack.why);
    AdminError::Conflict { code: AdminCode::Adopted, message: format!("an adopted table: {why}") }
}
