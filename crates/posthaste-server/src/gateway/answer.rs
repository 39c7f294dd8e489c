//! What a tenant is answered: 202 with the ids, or a problem.

use crate::http::ApiProblem;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use posthaste::gcra::Rate;
use posthaste::intake::{Admitted, IntakeError};
use serde_json::{Value, json};
use std::time::Duration;

const UNSTORED: &str = "Nothing was stored.";

/// Why a request was not taken.
pub(super) struct GatewayProblem {
    problem: Box<ApiProblem>,
    retry_after: Option<Duration>,
    limit: Option<Box<LimitState>>,
    /// Of 405: what is answered instead.
    allow: Option<&'static str>,
}

/// What the fields of the limit say.
#[derive(Clone, Copy)]
pub(super) struct LimitState {
    pub(super) rate: Rate,
    pub(super) left: u32,
    pub(super) full_in: Duration,
}

impl GatewayProblem {
    fn new(status: StatusCode, code: &str, detail: impl Into<String>, advice: &str) -> Self {
        let problem = ApiProblem::new(status, code, detail, advice).meaning(UNSTORED);
        Self { problem: Box::new(problem), retry_after: None, limit: None, allow: None }
    }

    /// For metrics.
    pub(super) fn code(&self) -> &str {
        &self.problem.code
    }

    fn after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// Of the limiter.
    pub(super) fn with_limit(self, limit: LimitState) -> Self {
        Self { limit: Some(Box::new(limit)), ..self }
    }

    pub(super) fn malformed(detail: impl Into<String>, advice: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "gateway.malformed", detail, advice)
    }

    pub(super) fn header(detail: impl Into<String>) -> Self {
        let advice = "Leave this header out, or give it another name or value.";
        Self::new(StatusCode::BAD_REQUEST, "gateway.header", detail, advice)
    }

    pub(super) fn no_idempotency_key() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "gateway.no_idempotency_key",
            "This gateway wants an `Idempotency-Key` with every request, and there is none.",
            "Send a random one with each new request, and the same one when you repeat it.",
        )
    }

    /// One text for all, so that nobody learns which keys there are.
    pub(super) fn key() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "gateway.key",
            "There is no key, or it is unknown, expired or revoked.",
            "Send `Authorization: Bearer phk_…` with a key that whoever runs this gateway has given you.",
        )
    }

    pub(super) fn topic() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "gateway.topic",
            "This key is not for this topic.",
            "Use another key, or ask whoever runs this gateway.",
        )
    }

    pub(super) fn paused() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "gateway.paused",
            "This tenant is paused.",
            "Ask whoever runs this gateway.",
        )
    }

    pub(super) fn no_topic() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "gateway.no_topic",
            "This topic is not offered here.",
            "GET /v1/openapi.json names the topics of your key.",
        )
    }

    pub(super) fn no_page() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "gateway.no_page",
            "There is nothing here.",
            "Events are handed in by POST /v1/topics/TOPIC; GET /v1/openapi.json describes it.",
        )
    }

    pub(super) fn method(allowed: &'static str) -> Self {
        let refusal = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "gateway.method",
            format!("Only {allowed} is answered here."),
            "GET /v1/openapi.json describes what there is.",
        );
        Self { allow: Some(allowed), ..refusal }
    }

    pub(super) fn slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "gateway.slow",
            "The body did not arrive in time.",
            "Send it again, faster.",
        )
    }

    pub(super) fn cut() -> Self {
        Self::malformed("The body ended before its time.", "Send all of it.")
    }

    pub(super) fn content_type(accepted: &[String]) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "gateway.content_type",
            format!("This topic takes: {}.", accepted.join(", ")),
            "Say what the payload is in `Content-Type`.",
        )
    }

    pub(super) fn kind(allowed: &[String]) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "gateway.type",
            format!("This topic takes events of the types: {}.", allowed.join(", ")),
            "Say one of them in `Event-Type`.",
        )
    }

    pub(super) fn too_large(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "gateway.too_large",
            detail,
            "Send less, or keep the bulk elsewhere and send where it is.",
        )
    }

    pub(super) fn batch(detail: impl Into<String>) -> Self {
        let advice = "Send it in several batches: each is stored as a whole or not at all.";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "gateway.batch", detail, advice)
    }

    pub(super) fn not_json(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "gateway.not_json",
            detail,
            "Send JSON, or another content type.",
        )
    }

    pub(super) fn schema(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "gateway.schema",
            detail,
            "Compare the event with the schema of its topic.",
        )
    }

    pub(super) fn limited(wait: Duration, limit: LimitState) -> Self {
        let mut refusal = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "gateway.limited",
            format!(
                "This tenant may hand in {} events a second, and {} at once.",
                limit.rate.per_s, limit.rate.burst
            ),
            "Wait as long as `Retry-After` says, and send it again.",
        );
        refusal.problem.kind = "https://iana.org/assignments/http-problem-types#quota-exceeded".into();
        refusal.after(wait).with_limit(limit)
    }

    pub(super) fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "gateway.busy",
            "As much as may be under way is under way.",
            "Send it again after `Retry-After`.",
        )
        .after(Duration::from_secs(1))
    }

    pub(super) fn limiter() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "gateway.limiter",
            "Nobody can count events now, and this gateway takes none uncounted.",
            "Send it again after `Retry-After`.",
        )
        .after(Duration::from_secs(1))
    }

    pub(super) fn store() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "gateway.store",
            "The database is away.",
            "Send it again after `Retry-After`.",
        )
        .after(Duration::from_secs(1))
    }

    /// Nobody knows yet who there is.
    pub(super) fn unknown_tenants() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "gateway.store",
            "The database has not said yet which keys there are.",
            "Send it again after `Retry-After`.",
        )
        .after(Duration::from_secs(1))
    }

    /// What the intake says.
    pub(super) fn intake(error: &IntakeError, has_key: bool) -> Self {
        match error {
            IntakeError::Busy => Self::busy(),
            IntakeError::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "gateway.key_reused",
                "This `Idempotency-Key` was used for another request.",
                "Send a new key with each new request, and the same one only with the same body and headers.",
            ),
            IntakeError::InFlight => Self::new(
                StatusCode::CONFLICT,
                "gateway.in_flight",
                "Another request with this `Idempotency-Key` is under way, and does not end.",
                "Send it again after a moment, with the same key.",
            )
            .after(Duration::from_secs(1)),
            IntakeError::Refused(_) => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "gateway.refused",
                "The database does not take these events.",
                "Ask whoever runs this gateway: the log has the reason.",
            ),
            IntakeError::Unavailable(_) => Self::store(),
            IntakeError::OutcomeUnknown(_) => Self::unknown(has_key),
        }
    }

    fn unknown(has_key: bool) -> Self {
        let advice = if has_key {
            "Send it again after `Retry-After` with the same `Idempotency-Key`: that finds out, and stores nothing twice."
        } else {
            "Without an `Idempotency-Key` nobody can find out: sent again, it may be stored twice."
        };
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut refusal =
            Self::new(status, "gateway.outcome_unknown", "The database did not answer in time.", advice);
        refusal.problem.events = "They may be stored.".into();
        refusal.after(Duration::from_secs(1))
    }
}

/// Whole seconds, rounded up: whoever obeys is not early.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn put(response: &mut Response, name: &'static str, text: String) {
    // Digits and plain words.
    if let Ok(value) = HeaderValue::try_from(text) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

fn put_limit(response: &mut Response, limit: &LimitState) {
    let LimitState { rate, left, full_in } = limit;
    let window = (f64::from(rate.burst) / rate.per_s).ceil().max(1.0);
    put(response, "ratelimit-policy", format!("\"tenant\";q={};w={window:.0}", rate.burst));
    put(response, "ratelimit", format!("\"tenant\";r={left};t={}", seconds(*full_in)));
}

impl IntoResponse for GatewayProblem {
    fn into_response(self) -> Response {
        let mut response = self.problem.into_response();
        if let Some(wait) = self.retry_after {
            put(&mut response, "retry-after", seconds(wait).max(1).to_string());
        }
        if let Some(limit) = &self.limit {
            put_limit(&mut response, limit);
        }
        if let Some(allowed) = self.allow {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}

/// An answer that is JSON.
pub(super) fn json_answer(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// 202: it is stored.
pub(super) fn accepted(admitted: &Admitted, limit: Option<&LimitState>) -> Response {
    let mut response = json_answer(StatusCode::ACCEPTED, &json!({ "ids": admitted.ids }));
    if admitted.replayed {
        put(&mut response, "idempotency-replayed", "true".to_owned());
    }
    if let Some(limit) = limit {
        put_limit(&mut response, limit);
    }
    response
}

/// The rest of a body that was not read is not read either.
pub(super) fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
