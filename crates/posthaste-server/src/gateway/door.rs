//! One request: who is it, may they, is there room, what is it, are they within their rate, is it stored.
//!
//! Checks come before work. Nothing of a stranger's body is read; a tenant that is over its limit is answered
//! before its body; a body is read into room that was reserved for it. The limiter is asked when it is clear
//! what the request is, and the schema after it: a body that breaks its schema has been paid for.

use super::answer::{GatewayProblem, LimitState, accepted, closing};
use super::batch;
use super::gauge::Gauges;
use super::request::{Label, Trace, essence, idempotency, idempotency_key};
use super::roll::{KnownTenant, Opened, Roll};
use super::room::{Reserved, Room};
use super::section::{GatewaySetting, OfferedTopic};
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use posthaste::clock::{Clock as _, SystemClock};
use posthaste::gcra::Rate;
use posthaste::intake::{Admitted, GuardedLimiter, IngestRequest, Intake, LimitDecision};
use posthaste::schema::Checked;
use posthaste::{Event, crash_point};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// What is read of a body that was refused, so that the connection can be kept. It is what has come with the
/// head: whoever waited for longer would hold a place for a client that sends nothing. A client that still
/// sends sees its answer all the same, for its connection is ended with a pause.
const DRAINED_BYTES_MAX: usize = 64 << 10;
const DRAINED_WITHIN: Duration = Duration::from_millis(20);

/// What all requests share.
pub(super) struct Door {
    setting: RwLock<Arc<GatewaySetting>>,
    roll: RwLock<Arc<Roll>>,
    room: Room,
    pub(super) intake: Arc<dyn Intake>,
    pub(super) limiter: Arc<GuardedLimiter>,
    pub(super) gauges: Gauges,
}

impl Door {
    pub(super) fn new(
        setting: GatewaySetting,
        intake: Arc<dyn Intake>,
        limiter: Arc<GuardedLimiter>,
    ) -> Self {
        let gauges = Gauges::new(setting.tenants.metrics_max);
        Self {
            setting: RwLock::new(Arc::new(setting)),
            roll: RwLock::new(Arc::new(Roll::empty())),
            room: Room::default(),
            intake,
            limiter,
            gauges,
        }
    }

    pub(super) fn setting(&self) -> Arc<GatewaySetting> {
        Arc::clone(&self.setting.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set(&self, setting: GatewaySetting) {
        self.gauges.name_at_most(setting.tenants.metrics_max);
        *self.setting.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(setting);
    }

    pub(super) fn roll(&self) -> Arc<Roll> {
        Arc::clone(&self.roll.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn enroll(&self, roll: Roll) {
        *self.roll.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(roll);
    }

    /// Whose key it is. Before anybody is known a right key is no wrong one: its client must not give up.
    pub(super) fn open(&self, headers: &HeaderMap) -> Result<Opened, GatewayProblem> {
        let roll = self.roll();
        if !roll.is_believed(Duration::from_millis(self.setting().tenants.refresh_ms)) {
            return Err(GatewayProblem::unknown_tenants());
        }
        let value =
            headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let token = match value.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => "",
        };
        roll.open(token).ok_or_else(GatewayProblem::key)
    }
}

/// `/v1/topics/{topic}`.
pub(super) async fn hand_in(
    State(door): State<Arc<Door>>,
    topic: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let began = Instant::now();
    let setting = door.setting();
    // What is no UTF-8 is no topic.
    let topic = topic.map(|Path(topic)| topic).unwrap_or_default();
    let offered = setting.topics.iter().find(|offered| *offered.topic == *topic);
    let (parts, body) = request.into_parts();
    let mut body = Unread(body);
    let mut asked = Admission { door: &door, setting: &setting, tenant: None, events: 0 };
    let answer = asked.admit(offered, &parts.method, &parts.headers, &mut body).await;
    let (tenant, events) = (asked.tenant, asked.events);
    let response = match answer {
        Ok((admitted, limit)) => {
            if !admitted.replayed {
                door.gauges.stored(tenant.as_deref(), events);
            }
            accepted(&admitted, limit.as_ref())
        }
        Err(refusal) => {
            door.gauges.refused(tenant.as_deref(), refusal.code());
            let response = refusal.into_response();
            // Whoever asked whether to send the body has the answer.
            let is_asking = parts.headers.contains_key(header::EXPECT);
            if !is_asking && body.drain().await { response } else { closing(response) }
        }
    };
    let topic = offered.map_or("none", |offered| &offered.topic);
    door.gauges.answered(topic, response.status(), began.elapsed());
    response
}

/// A body, as far as it was not read.
struct Unread(Body);

impl Unread {
    /// Reads on for a moment, for nobody. Whether that was all of it.
    async fn drain(&mut self) -> bool {
        let mut read = 0;
        let rest = async {
            loop {
                match self.0.frame().await {
                    None => return true,
                    Some(Err(_)) => return false,
                    Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len),
                }
                if read > DRAINED_BYTES_MAX {
                    return false;
                }
            }
        };
        timeout(DRAINED_WITHIN, rest).await.unwrap_or(false)
    }

    /// Reads all of it, into room that is reserved as it comes.
    async fn read(
        &mut self,
        place: &mut Reserved,
        setting: &GatewaySetting,
        told: usize,
    ) -> Result<Bytes, GatewayProblem> {
        let bounds = &setting.bounds;
        let end = Instant::now() + Duration::from_millis(bounds.body_timeout_ms);
        let mut whole = BytesMut::with_capacity(told.min(64 << 10));
        loop {
            let frame = timeout_at(end, self.0.frame()).await.map_err(|_| GatewayProblem::slow())?;
            let Some(frame) = frame else { return Ok(whole.freeze()) };
            let frame = frame.map_err(|_| GatewayProblem::cut())?;
            let Some(data) = frame.data_ref() else { continue };
            if whole.len() + data.len() > bounds.body_bytes_max {
                return Err(too_large(bounds.body_bytes_max));
            }
            if !place.grow(data.len(), bounds) {
                return Err(GatewayProblem::busy());
            }
            whole.extend_from_slice(data);
        }
    }
}

fn too_large(max: usize) -> GatewayProblem {
    GatewayProblem::too_large(format!("The body has more than {max} bytes."))
}

/// What is known of a request so far.
struct Admission<'a> {
    door: &'a Door,
    setting: &'a GatewaySetting,
    tenant: Option<Arc<KnownTenant>>,
    events: u32,
}

impl Admission<'_> {
    async fn admit(
        &mut self,
        topic: Option<&OfferedTopic>,
        method: &Method,
        headers: &HeaderMap,
        body: &mut Unread,
    ) -> Result<(Admitted, Option<LimitState>), GatewayProblem> {
        let Opened { tenant, topics } = self.door.open(headers)?;
        self.tenant = Some(Arc::clone(&tenant));
        if method != Method::POST {
            return Err(GatewayProblem::method("POST"));
        }
        let Some(topic) = topic else { return Err(GatewayProblem::no_topic()) };
        if topics.is_some_and(|topics| !topics.iter().any(|allowed| **allowed == *topic.topic)) {
            return Err(GatewayProblem::topic());
        }
        if tenant.is_paused() {
            return Err(GatewayProblem::paused());
        }
        let told = length(headers, self.setting.bounds.body_bytes_max)?;
        let rate = tenant.rate(self.setting.rate());
        if let Some(LimitDecision::Wait { wait, left, .. }) = self.door.limiter.refused(&tenant.name, rate, 1)
        {
            return Err(GatewayProblem::limited(wait, LimitState { rate, left, full_in: wait }));
        }
        let Some(mut place) = self.door.room.enter(&tenant, &self.setting.bounds) else {
            return Err(GatewayProblem::busy());
        };
        let key = idempotency_key(headers)?;
        if key.is_none() && self.setting.tenants.require_idempotency_key {
            return Err(GatewayProblem::no_idempotency_key());
        }
        let now = SystemClock.now();
        let label = Label::read(headers, now)?;
        let bytes = body.read(&mut place, self.setting, told).await?;
        let idempotency = key.map(|key| idempotency(key, &topic.topic, &label, &bytes));
        let labelled = if label.content_type.as_deref().map(essence).as_deref() == Some(batch::BATCH) {
            if label.kind.is_some()
                || label.key.is_some()
                || label.deliver_at.is_some()
                || !label.headers.is_empty()
            {
                let why =
                    "In a batch each event says its own: `Event-…` headers are for requests with one event.";
                return Err(GatewayProblem::header(why));
            }
            batch::read(&bytes, self.setting.bounds.batch_events_max, now)?
        } else {
            vec![(label, bytes)]
        };
        let trace = Trace::read(headers);
        let event = |(label, payload): (Label, Bytes)| {
            label.into_event(payload, &tenant.name, topic, &trace, &self.setting.limits)
        };
        let events: Vec<Event> = labelled.into_iter().map(event).collect::<Result<_, _>>()?;
        self.events = u32::try_from(events.len()).unwrap_or(u32::MAX);
        let limit = self.take(&tenant.name, rate).await?;
        // CRASH(gateway.taken): a token is gone and nothing is stored. The client repeats, and pays once
        // more. Never is an event stored without a token (W3).
        crash_point!("gateway.taken");
        check_schemas(topic, &events).map_err(|refusal| match limit {
            Some(limit) => refusal.with_limit(limit),
            None => refusal,
        })?;
        let has_key = idempotency.is_some();
        let (tenant, topic) = (Arc::clone(&tenant.name), Arc::clone(&topic.topic));
        let admitted = self.door.intake.append(IngestRequest { tenant, topic, events, idempotency }).await;
        let admitted = admitted.map_err(|error| {
            tell(&error);
            GatewayProblem::intake(&error, has_key)
        })?;
        // CRASH(gateway.stored): stored, and the client never hears of it (W4). With its key it gets the
        // same ids; without one it hands in a second event.
        crash_point!("gateway.stored");
        Ok((admitted, limit))
    }

    /// Takes them from what the tenant may.
    async fn take(&self, tenant: &Arc<str>, rate: Rate) -> Result<Option<LimitState>, GatewayProblem> {
        let events = self.events;
        if events > rate.burst {
            let why = format!("{events} events are more than the {} that may come at once.", rate.burst);
            return Err(GatewayProblem::batch(why));
        }
        match self.door.limiter.take(tenant, rate, events).await {
            LimitDecision::Passed { left, full_in } => Ok(Some(LimitState { rate, left, full_in })),
            LimitDecision::Wait { wait, left, .. } => {
                Err(GatewayProblem::limited(wait, LimitState { rate, left, full_in: wait }))
            }
            LimitDecision::Lost(_) | LimitDecision::Odd(_) => Err(GatewayProblem::limiter()),
        }
    }
}

/// Errors that are the database's or an operator's to mend. No event is quoted.
fn tell(error: &posthaste::intake::IntakeError) {
    use posthaste::intake::IntakeError;
    match error {
        IntakeError::Refused(why) => {
            tracing::warn!(why, "the database refused a request of a tenant; nothing of it was stored");
        }
        IntakeError::OutcomeUnknown(why) => {
            tracing::warn!(why, "a commit was not answered; its clients were told so");
        }
        _ => {}
    }
}

/// The length that was told, if it fits.
fn length(headers: &HeaderMap, max: usize) -> Result<usize, GatewayProblem> {
    let told = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let told = told.unwrap_or(0);
    usize::try_from(told).ok().filter(|told| *told <= max).ok_or_else(|| too_large(max))
}

/// Each event by the schema of its type. The words name a place and a rule, never a value.
fn check_schemas(topic: &OfferedTopic, events: &[Event]) -> Result<(), GatewayProblem> {
    for (index, event) in events.iter().enumerate() {
        let Some(validator) = topic.schema(event.event_type()) else { continue };
        let payload = event.payload.as_deref().unwrap_or_default();
        let why = match validator.check(payload) {
            Checked::Fine => continue,
            Checked::Poison(violation) => violation.message,
            Checked::Unavailable(away) => away.why,
        };
        let place = if events.len() > 1 { format!("events[{index}]: ") } else { String::new() };
        return Err(GatewayProblem::schema(format!("{place}{why}")));
    }
    Ok(())
}
