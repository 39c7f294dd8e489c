//! A few settings of `[relay]`, laid over the file's for a while: for all relays of an outbox.

use super::call::ApiCall;
use super::spec::NoQuery;
use crate::http::ApiProblem;
use crate::tuning::{HOUR, ShownTuning, setting};
use posthaste::Timestamp;
use posthaste::admin::{AdminCode, Ends, Tunable, TuneAct};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) async fn tuning(call: ApiCall, _: NoQuery) -> Result<ShownTuning, ApiProblem> {
    let desk = call.desk()?;
    let stored = desk.look(|admin| async move { admin.tuning().await }).await?;
    let file = call.api.relay.borrow().clone();
    Ok(ShownTuning::new(desk.name(), &file, &stored))
}

/// What is to be laid over the file's. What is tuned already and not named stays as it is.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TuningRequest {
    /// Settings and their values, within a tenth and ten times of the file's.
    values: BTreeMap<String, u64>,
    /// Ends after so many seconds; after an hour, unless told otherwise.
    for_s: Option<u64>,
    /// Ends at this time, by the database's clock.
    until: Option<Timestamp>,
    /// Why, for the audit.
    reason: String,
}

/// Which go back to the file's.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UntuneRequest {
    /// These.
    #[serde(default)]
    settings: Vec<String>,
    /// All of them, said out loud; also those of other versions.
    #[serde(default)]
    all: bool,
    /// Why, for the audit.
    reason: String,
}

/// That it was done, as `posthaste tune --json` says it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TuningDone {
    /// The outbox, whose relays go by it within a heartbeat.
    outbox: String,
    /// That it was done.
    done: bool,
    /// When it ends.
    until: Option<Timestamp>,
    /// The trace of its line in the audit.
    trace_id: String,
}

pub(crate) async fn tune(call: ApiCall, body: TuningRequest) -> Result<TuningDone, ApiProblem> {
    let values = body.values.iter().map(|(name, value)| Ok((named(name)?, *value)));
    let values = values.collect::<Result<Vec<_>, ApiProblem>>()?;
    let ends = match (body.for_s, body.until) {
        (None, None) => Ends::In(HOUR),
        (Some(seconds), None) => Ends::In(Duration::from_secs(seconds)),
        (None, Some(until)) => Ends::At(until),
        (Some(_), Some(_)) => {
            let why = "`for_s` and `until` are two ends";
            return Err(ApiProblem::bad("api.bad_body", why, "Give one of them."));
        }
    };
    let file = Box::new(call.api.relay.borrow().clone());
    act(call, TuneAct::Set { values, ends, file }, &body.reason).await
}

pub(crate) async fn untune(call: ApiCall, body: UntuneRequest) -> Result<TuningDone, ApiProblem> {
    if body.all != body.settings.is_empty() {
        let why = "give either `settings` or `\"all\": true`";
        return Err(ApiProblem::bad("api.bad_body", why, "Say which go back to the file's."));
    }
    let settings = body.settings.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>()?;
    act(call, TuneAct::Clear(settings), &body.reason).await
}

async fn act(call: ApiCall, act: TuneAct, reason: &str) -> Result<TuningDone, ApiProblem> {
    let (desk, actor) = (call.desk()?, call.actor(reason)?);
    let (outbox, trace_id) = (desk.name().to_owned(), actor.trace_id.clone());
    let until = call.act(&desk, |admin| async move { admin.tune(&act, &actor).await }).await?;
    Ok(TuningDone { outbox, done: true, until, trace_id })
}

fn named(name: &str) -> Result<Tunable, ApiProblem> {
    let refused = |why| {
        let why = format!("`{name}` {why}");
        ApiProblem::bad(AdminCode::BadTuning.as_str(), why, "GET the tuning lists what can be tuned.")
    };
    setting(name).map_err(refused)
}
