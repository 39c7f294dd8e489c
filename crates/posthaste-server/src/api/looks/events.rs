//! Events of the log: a page, one with its life, its payload.

use crate::access::{OperatorRole, PayloadRight, masked};
use crate::api::call::{ApiCall, limit, value};
use crate::api::{cursor, door};
use crate::desk::OutboxDesk;
use crate::http::ApiProblem;
use crate::life::{ShownSinkLife, Tried, shown_sinks, tried};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use posthaste::Timestamp;
use posthaste::admin::{
    Acted, Admin, AdminCode, AdminError, DeferredFilter, EventFilter, EventLife, EventName, LogEvent, Where,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// For looking through the log for an id. The store may have looked for three seconds before, and a look
/// has eight.
const SCAN_TIME: Duration = Duration::from_secs(3);
/// Events of one page then.
const SCAN_PAGE: i64 = 1_000;

/// Which events.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    /// Topic pattern, `*` for any run.
    topic: Option<String>,
    /// Of this key.
    key: Option<String>,
    /// Appended at or after.
    since: Option<Timestamp>,
    /// Appended before.
    until: Option<Timestamp>,
    /// From this number on.
    from_seq: Option<i64>,
    /// Up to this number.
    to_seq: Option<i64>,
    /// At most so many, up to 1000; 50 by default.
    limit: Option<i64>,
    /// Go on here.
    cursor: Option<String>,
}

/// A part of the log.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Events {
    /// What matched, by number. A part may hold none and still not be the last one.
    events: Vec<LogEvent>,
    /// What was looked through for it.
    looked: Looked,
    /// The cursor of the next page.
    next: Option<String>,
}

/// How far a search came.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Looked {
    /// Behind this number.
    from: i64,
    /// Up to this one; `null`: to the end.
    to: Option<i64>,
    /// Whether nothing is left.
    complete: bool,
}

pub(crate) async fn events(call: ApiCall, query: EventsQuery) -> Result<Events, ApiProblem> {
    let (desk, limit) = (call.desk()?, limit(query.limit)?);
    check_key(&call, query.key.as_deref())?;
    let after: i64 = call.place("events", desk.name(), query.cursor.as_deref())?.unwrap_or(0);
    let EventsQuery { topic, key, since, until, from_seq, to_seq, .. } = query;
    let filter = EventFilter { topic, key, since, until, from_seq, to_seq };
    let page = desk.look(|admin| async move { admin.events(&filter, after, limit).await }).await?;
    Ok(Events {
        looked: Looked { from: after, to: page.next, complete: page.next.is_none() },
        next: page.next.map(|seq| cursor::write("events", desk.name(), &seq)),
        events: page.events,
    })
}

/// Whoever may not see keys may not guess at them either.
pub(super) fn check_key(call: &ApiCall, key: Option<&str>) -> Result<(), ApiProblem> {
    let may = call.grant.payloads > PayloadRight::Hidden || call.api.config.admin.show_keys;
    match key {
        Some(_) if !may => Err(door::forbidden("this token may not see keys, and so not look for one")),
        _ => Ok(()),
    }
}

/// The same for all that a filter may hold: a text that is not shown is found out by asking for it.
pub(crate) fn check_seen(call: &ApiCall, filter: &Value) -> Result<(), ApiProblem> {
    check_key(call, filter["key"].as_str())?;
    let right = call.grant.payloads;
    if filter["error"].is_string() && right < PayloadRight::Masked {
        return Err(door::forbidden("this token may not see errors, and so not look for their texts"));
    }
    if filter["header_value"].is_string() && right < PayloadRight::Shown {
        return Err(door::forbidden("this token may not see values of headers, and so not look for one"));
    }
    Ok(())
}

/// Where to look for an event by its id: near the time that a UUIDv7 says, unless it is told otherwise.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// When it was appended, about.
    near: Option<Timestamp>,
    /// Look through the log from its beginning, for three seconds at most.
    #[serde(default)]
    scan: bool,
}

/// An event's life.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownLife {
    /// The event.
    event: LogEvent,
    /// Whether the log still holds it, or a copy of it only.
    in_log: bool,
    /// Its life with each sink.
    sinks: Vec<ShownSinkLife>,
    /// What people did with it: the newest of them that name it. Like the audit, for the role `operate`.
    acts: Vec<Acted>,
    /// The payload, where it is text and the token may see it.
    payload: Option<String>,
}

fn name(call: &ApiCall) -> Result<EventName, ApiProblem> {
    let text = call.part("event");
    let number = text.parse().ok().filter(|seq| *seq > 0).map(EventName::Seq);
    number.or_else(|| text.parse().ok().map(EventName::Id)).ok_or_else(|| {
        let why = format!("{text:?} is neither an event's id nor its number");
        ApiProblem::bad("api.bad_path", why, "Give a UUID or a number.")
    })
}

pub(crate) async fn event(call: ApiCall, query: EventQuery) -> Result<ShownLife, ApiProblem> {
    let desk = call.desk()?;
    let (life, tried) = find(&call, &desk, query).await?;
    call.note_payload(desk.name(), &life.event.id.to_string());
    let payload = life.event.payload.clone().and_then(|bytes| String::from_utf8(bytes).ok());
    let sinks = shown_sinks(&desk.outbox, &life.sinks, &seen_by(&call, &life.event), &tried);
    let acts = if call.grant.role >= OperatorRole::Operate { life.acts } else { Vec::new() };
    Ok(ShownLife { event: life.event, in_log: life.in_log, sinks, acts, payload })
}

/// An event, and what was tried.
async fn find(
    call: &ApiCall,
    desk: &OutboxDesk,
    query: EventQuery,
) -> Result<(EventLife, Tried), ApiProblem> {
    let name = name(call)?;
    let look = desk.look(|admin| async move {
        let life = life_of(&*admin, name, &query).await?;
        let tried = tried(&*admin, &life).await?;
        Ok((life, tried))
    });
    look.await.map_err(|problem| match *problem.code == *AdminCode::SearchWider.as_str() {
        true => ApiProblem { advice: WIDER.into(), ..problem },
        false => problem,
    })
}

async fn life_of(admin: &dyn Admin, name: EventName, query: &EventQuery) -> Result<EventLife, AdminError> {
    let place = Where { near: query.near, everywhere: false };
    let found = admin.event(name, place).await;
    match (name, found) {
        (EventName::Id(id), Err(error)) if query.scan && error.code() == AdminCode::SearchWider.as_str() => {
            admin.event(EventName::Seq(scan(admin, id).await?), Where::default()).await
        }
        (_, found) => found,
    }
}

/// The number of an event, by looking at what is set aside and then at the log, page by page: unlike the
/// store's own search, this ends in time wherever it is, and leaves nothing behind that goes on for nobody.
async fn scan(admin: &dyn Admin, id: Uuid) -> Result<i64, AdminError> {
    let begun = Instant::now();
    let aside = DeferredFilter { ids: vec![id], ..DeferredFilter::default() };
    if let Some(event) = admin.deferred_list(&aside, None, 1).await?.first() {
        return Ok(event.seq);
    }
    let (filter, mut after) = (EventFilter::default(), 0);
    while begun.elapsed() < SCAN_TIME {
        let page = admin.events(&filter, after, SCAN_PAGE).await?;
        if let Some(event) = page.events.iter().find(|event| event.id == id) {
            return Ok(event.seq);
        }
        after = page.next.ok_or_else(|| AdminError::unknown_event(EventName::Id(id)))?;
    }
    let why = format!("event {id} is not among those up to number {after}, and {SCAN_TIME:?} were over then");
    Err(AdminError::NotFound { code: AdminCode::SearchWider, message: why })
}

/// What to do about an event that is not where its id says.
const WIDER: &str = "Say when it was appended with `?near=`, or look through the log from its beginning with `?scan=true`; \
                     the list of events finds it by `key` or `topic` with `since`, too.";

/// A destination may be made of the key or of a header: what a token may not see of these it does not see
/// there.
fn seen_by(call: &ApiCall, event: &LogEvent) -> LogEvent {
    let seen = masked(value(event), call.grant.payloads, call.api.config.admin.show_keys);
    let key = event.key.as_ref().and_then(|_| seen["key"].as_str());
    LogEvent {
        key: key.map(str::to_owned),
        headers: event.headers.as_ref().map(|_| seen["headers"].clone()),
        ..event.clone()
    }
}

/// The bytes, as something that no browser opens.
pub(crate) async fn payload(call: ApiCall, query: EventQuery) -> Result<Response, ApiProblem> {
    if call.grant.payloads != PayloadRight::Shown {
        return Err(door::forbidden("this token may not see payloads"));
    }
    let desk = call.desk()?;
    let (life, _) = find(&call, &desk, query).await?;
    call.note_payload(desk.name(), &life.event.id.to_string());
    let mut response = Response::new(Body::from(life.event.payload.unwrap_or_default()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"payload\""));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    Ok(response)
}
