//! Pause, resume, rate; rewind and lanes; sessions.

use super::call::ApiCall;
use super::door;
use super::spec::NoQuery;
use crate::again::{AgainTense, say_again};
use crate::http::ApiProblem;
use crate::output::plural;
use axum::http::StatusCode;
use posthaste::Timestamp;
use posthaste::admin::{
    AdminError, Control, ControlTarget, Ends, OutboxStatus, RewindTo, SinkStatus, count_again,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;

/// What is to hold from now on: one of the two. The other stays as it is.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ControlRequest {
    /// Whether it stands still.
    paused: Option<bool>,
    /// At most so many a second; `null` lifts the limit.
    #[serde(default, deserialize_with = "given")]
    #[schemars(with = "Option<f64>")]
    rate_per_s: Option<Option<f64>>,
    /// Ends by itself after so many seconds.
    for_s: Option<u64>,
    /// Ends by itself at this instant.
    until: Option<Timestamp>,
    /// Why, for the audit.
    reason: String,
}

impl ControlRequest {
    /// One act is one transaction, and one that is refused has changed nothing: so there is one in a request.
    fn control(&self) -> Result<Control, ApiProblem> {
        match (self.paused, self.rate_per_s) {
            (Some(true), None) => Ok(Control::Pause),
            (Some(false), None) => Ok(Control::Resume),
            (None, Some(rate)) => Ok(Control::RateLimit(rate)),
            _ => {
                let why = "`paused` or `rate_per_s` must be given, and not both";
                Err(ApiProblem::bad("api.bad_body", why, "Send two requests for both."))
            }
        }
    }

    fn ends(&self) -> Result<Option<Ends>, ApiProblem> {
        match (self.for_s, self.until) {
            (None, None) => Ok(None),
            (Some(seconds), None) => Ok(Some(Ends::In(Duration::from_secs(seconds)))),
            (None, Some(at)) => Ok(Some(Ends::At(at))),
            _ => Err(ApiProblem::bad("api.bad_body", "`for_s` and `until` are two ends", "Give one.")),
        }
    }
}

fn given<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Option<f64>>, D::Error> {
    Option::<f64>::deserialize(input).map(Some)
}

/// That it was done.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Done {
    /// What was done.
    pub(crate) done: String,
    /// The trace of its line in the audit; empty where there is none.
    pub(crate) trace_id: String,
}

async fn control(call: ApiCall, target: ControlTarget, body: ControlRequest) -> Result<Done, ApiProblem> {
    let desk = match &target {
        ControlTarget::Consumer(name) => super::consumers::acting_desk_of(&call, name).await?,
        _ => call.desk()?,
    };
    let actor = call.actor(&body.reason)?;
    let trace_id = actor.trace_id.clone();
    let (control, ends) = (body.control()?, body.ends()?);
    let done = match control {
        Control::Pause => "paused".to_owned(),
        Control::Resume => "resumed".to_owned(),
        Control::RateLimit(Some(rate)) => format!("at most {rate} a second"),
        Control::RateLimit(None) => "no limit of the rate".to_owned(),
    };
    let act =
        call.act(&desk, |admin| async move { admin.control_until(&target, &control, ends, &actor).await });
    act.await?;
    Ok(Done { done, trace_id })
}

pub(crate) async fn sink_control(call: ApiCall, body: ControlRequest) -> Result<Done, ApiProblem> {
    let target = ControlTarget::Sink(call.part("s").to_owned());
    control(call, target, body).await
}

/// Routes live in the configuration only, so a misspelt one would pause nothing, silently.
pub(crate) async fn route_control(call: ApiCall, body: ControlRequest) -> Result<Done, ApiProblem> {
    let (desk, name) = (call.desk()?, call.part("r"));
    let known = desk.outbox.routes.routes();
    if !known.is_empty() && known.iter().all(|route| *route.name != *name) {
        let names: Vec<&str> = known.iter().map(|route| route.name.as_ref()).collect();
        let why = format!("there is no route `{name}`; configured are: {}", names.join(", "));
        return Err(ApiProblem::new(StatusCode::NOT_FOUND, "api.unknown_route", why, "Name one of them."));
    }
    let target = ControlTarget::Route(call.part("r").to_owned());
    control(call, target, body).await
}

pub(crate) async fn consumer_control(call: ApiCall, body: ControlRequest) -> Result<Done, ApiProblem> {
    let target = ControlTarget::Consumer(call.part("c").to_owned());
    control(call, target, body).await
}

/// Where to. One of the three.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewindRequest {
    /// To the oldest event that the log still holds.
    #[serde(default)]
    earliest: bool,
    /// Behind this number.
    to_seq: Option<i64>,
    /// To the first event appended at or after this time.
    to_time: Option<Timestamp>,
    /// Only say how many events would go again.
    #[serde(default)]
    dry_run: bool,
    /// Why, for the audit. Not needed for a dry run.
    #[serde(default)]
    reason: String,
}

/// What goes again, or would.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RewindAnswer {
    /// What was done, or would be, and what a broker makes of it.
    done: String,
    /// How many events go again; `null` where they could not be counted.
    events: Option<u64>,
    /// Whether they were counted one by one.
    exact: bool,
    /// The trace of its line in the audit; `null` for a dry run.
    trace_id: Option<String>,
}

pub(crate) async fn rewind(call: ApiCall, body: RewindRequest) -> Result<RewindAnswer, ApiProblem> {
    let (desk, sink) = (call.desk()?, call.part("s"));
    let to = match (body.earliest, body.to_seq, body.to_time) {
        (true, None, None) => RewindTo::Earliest,
        (false, Some(seq), None) => RewindTo::Seq(seq),
        (false, None, Some(at)) => RewindTo::Time(at),
        _ => {
            let why = "give one of `earliest`, `to_seq` and `to_time`";
            return Err(ApiProblem::bad("api.bad_body", why, "Say where to."));
        }
    };
    let count = desk.look(|admin| async move { count_again(&*admin, sink, to).await });
    let (counted, tense, trace_id) = if body.dry_run {
        (Some(count.await?), AgainTense::WouldBe, None)
    } else {
        let actor = call.actor(&body.reason)?;
        let trace_id = actor.trace_id.clone();
        // Before: afterwards the sink has passed nothing behind that place. What cannot be counted can be
        // rewound all the same.
        let counted = count.await.ok();
        call.act(&desk, |admin| async move { admin.rewind(sink, to, &actor).await }).await?;
        (counted, AgainTense::IsDone, Some(trace_id))
    };
    Ok(RewindAnswer {
        done: say_again(sink, counted, tense).replace('\n', " "),
        events: counted.map(|again| again.count),
        exact: counted.is_some_and(|again| again.exact),
        trace_id,
    })
}

/// How many.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LanesRequest {
    /// Of each sink.
    lanes: u16,
    /// Only say what would change hands.
    #[serde(default)]
    dry_run: bool,
    /// Why, for the audit. Not needed for a dry run.
    #[serde(default)]
    reason: String,
}

pub(crate) async fn lanes(call: ApiCall, body: LanesRequest) -> Result<Done, ApiProblem> {
    let (desk, lanes) = (call.desk()?, body.lanes);
    if body.dry_run {
        AdminError::check_lanes(lanes).map_err(|error| desk.failed(error))?;
        let status = desk.look(|admin| async move { admin.status().await }).await?;
        return Ok(Done { done: say_relaned(&status, lanes), trace_id: String::new() });
    }
    let actor = call.actor(&body.reason)?;
    let (done, trace_id) = (format!("{lanes} lanes"), actor.trace_id.clone());
    call.act(&desk, |admin| async move { admin.set_lanes(lanes, &actor).await }).await?;
    Ok(Done { done, trace_id })
}

/// Whose lanes would change hands.
fn say_relaned(status: &OutboxStatus, lanes: u16) -> String {
    let served = || status.sinks.iter().filter(|sink| !sink.retired);
    if served().all(|sink| sink.lanes.len() == usize::from(lanes)) && served().next().is_some() {
        return format!("each sink has {} already", plural(lanes.into(), "lane"));
    }
    let of = |sink: &SinkStatus| format!("{} ({})", sink.sink, sink.lanes.len());
    let sinks: Vec<String> = served().map(of).collect();
    let owned = served().flat_map(|sink| &sink.lanes).filter(|lane| lane.owner.is_some()).count();
    let now = if sinks.is_empty() { "no sink has any yet".to_owned() } else { sinks.join(", ") };
    format!(
        "each sink would have {}; now: {now}. Relays would let go of {} and share them anew; what they have in hand may \
         be sent twice, and none is skipped",
        plural(lanes.into(), "lane"),
        plural(owned as u64, "lane")
    )
}

/// A one-time code, where there is no token in `Authorization`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionRequest {
    /// The code that a terminal printed.
    code: Option<String>,
}

/// A session.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SessionAnswer {
    /// Send it as `Authorization: Bearer …`. Keep it in memory.
    session: String,
}

pub(crate) async fn open_session(call: ApiCall, body: SessionRequest) -> Result<SessionAnswer, ApiProblem> {
    let api = &call.api;
    let opened = match (&body.code, api.tokens.find(&call.bearer)) {
        (_, Some(grant)) => api.sessions.begin(&grant).map(Some),
        (Some(code), None) => api.sessions.begin_with_code(code),
        (None, None) => Ok(None),
    };
    match opened {
        Ok(Some(session)) => Ok(SessionAnswer { session }),
        Ok(None) => Err(door::wrong(api).await),
        Err(error) => Err(ApiProblem::new(
            axum::http::StatusCode::SERVICE_UNAVAILABLE,
            "api.no_random",
            error.to_string(),
            "Ask again.",
        )),
    }
}

pub(crate) async fn close_session(call: ApiCall, _: NoQuery) -> Result<Done, ApiProblem> {
    call.api.sessions.end(&call.bearer);
    Ok(Done { done: "the session is over".to_owned(), trace_id: String::new() })
}
