//! One request, after the door: who asks, and for what.

use super::{Api, cursor};
use crate::access::{Grant, PayloadRight};
use crate::desk::OutboxDesk;
use crate::http::ApiProblem;
use axum::body::Bytes;
use axum::extract::Query;
use axum::http::{StatusCode, Uri};
use posthaste::admin::{Actor, Admin, AdminError};
use posthaste::consumer::admin::ConsumerAdmin;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::time::Instant;

/// A request that was let in.
pub(crate) struct ApiCall {
    pub(crate) api: Arc<Api>,
    pub(crate) grant: Arc<Grant>,
    /// Variable parts of the path, by name.
    pub(crate) path: Vec<(String, String)>,
    pub(crate) uri: Uri,
    pub(crate) body: Bytes,
    /// What the act belongs to.
    pub(crate) trace_id: Option<String>,
    pub(crate) idempotency_key: Option<String>,
    /// What came in `Authorization`.
    pub(crate) bearer: String,
    /// When its connection ends.
    pub(crate) ends: Option<Instant>,
}

impl ApiCall {
    /// A variable part of the path.
    pub(crate) fn part(&self, name: &str) -> &str {
        self.path.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str())
    }

    /// The same as a number.
    pub(crate) fn number(&self, name: &str) -> Result<i64, ApiProblem> {
        self.part(name).parse().map_err(|_| {
            ApiProblem::bad("api.bad_path", format!("{:?} is no number", self.part(name)), "Give a number.")
        })
    }

    /// Whoever sees payloads leaves a line for each one in the log.
    pub(crate) fn note_payload(&self, of: &str, what: &str) {
        if self.grant.payloads == PayloadRight::Shown {
            let who = &self.grant.name;
            tracing::info!(target: "posthaste::audit", who, of, what, "a payload was looked at");
        }
    }

    /// The outbox of the path. The door has seen that the token is for it.
    pub(crate) fn desk(&self) -> Result<Arc<OutboxDesk>, ApiProblem> {
        self.desk_named(self.part("o"))
    }

    /// An outbox by name.
    pub(crate) fn desk_named(&self, name: &str) -> Result<Arc<OutboxDesk>, ApiProblem> {
        let desk = self.api.desks.iter().find(|desk| desk.name() == name && self.grant.has_outbox(name));
        desk.cloned().ok_or_else(|| {
            let why = format!("there is no outbox `{name}` here");
            ApiProblem::new(
                StatusCode::NOT_FOUND,
                "api.unknown_outbox",
                why,
                "GET /api/v1/outboxes lists them.",
            )
        })
    }

    /// An act. Once it is done, what was told before it is not told again: whoever acted sees what they did.
    /// What was refused, or only looked, forgets nothing, so that nobody who may not act can make all looks
    /// anew.
    pub(crate) async fn act<T, F>(
        &self,
        desk: &OutboxDesk,
        work: impl FnOnce(Arc<dyn Admin>) -> F,
    ) -> Result<T, ApiProblem>
    where
        F: Future<Output = Result<T, AdminError>>,
    {
        let done = desk.act(work).await?;
        self.api.shared.forget();
        Ok(done)
    }

    /// The same on consumers.
    pub(crate) async fn act_on_consumers<T, F>(
        &self,
        desk: &OutboxDesk,
        work: impl FnOnce(Arc<dyn ConsumerAdmin>) -> F,
    ) -> Result<T, ApiProblem>
    where
        F: Future<Output = Result<T, AdminError>>,
    {
        let done = desk.act_on_consumers(work).await?;
        self.api.shared.forget();
        Ok(done)
    }

    /// The outboxes that the token is for.
    pub(crate) fn desks(&self) -> Vec<Arc<OutboxDesk>> {
        self.api.desks.iter().filter(|desk| self.grant.has_outbox(desk.name())).cloned().collect()
    }

    /// The filters of the query.
    pub(crate) fn query<Q: DeserializeOwned>(&self) -> Result<Q, ApiProblem> {
        if self.uri.query().is_some_and(|query| query.contains("%00")) {
            return Err(zero("api.bad_query", "the query"));
        }
        Query::try_from_uri(&self.uri).map(|Query(query)| query).map_err(|error| {
            ApiProblem::bad("api.bad_query", error.body_text(), "docs/api.md lists what a query may hold.")
        })
    }

    /// The body.
    pub(crate) fn body<B: DeserializeOwned>(&self) -> Result<B, ApiProblem> {
        let refused = |error: serde_json::Error| {
            ApiProblem::bad("api.bad_body", format!("the body: {error}"), "docs/api.md shows what it holds.")
        };
        let body = serde_json::from_slice(&self.body).map_err(refused)?;
        // The escape may stand behind another backslash, so whoever seems to have one is looked at.
        if self.body.windows(6).any(|part| part == b"\\u0000")
            && has_zero(&serde_json::from_slice(&self.body).map_err(refused)?)
        {
            return Err(zero("api.bad_body", "the body"));
        }
        Ok(body)
    }

    /// Who acts, for the audit: what the token says, whatever a body does.
    pub(crate) fn actor(&self, reason: &str) -> Result<Actor, ApiProblem> {
        if reason.trim().is_empty() {
            let why = "`reason` is empty, and it is what the audit remembers of an act";
            return Err(ApiProblem::bad("admin.actor_missing", why, "Say why."));
        }
        let actor = Actor { verified: true, ..Actor::new(self.grant.name.clone(), reason) };
        Ok(match &self.trace_id {
            Some(trace) => actor.traced(trace.clone()),
            None => actor,
        })
    }

    /// The place that a cursor stands for.
    pub(crate) fn place<T: DeserializeOwned>(
        &self,
        list: &str,
        of: &str,
        text: Option<&str>,
    ) -> Result<Option<T>, ApiProblem> {
        text.map(|text| cursor::read(list, of, text)).transpose()
    }
}

/// No text in a database holds a zero byte: asked for one, it would answer with an error of its own.
pub(crate) fn zero(code: &str, what: &str) -> ApiProblem {
    ApiProblem::bad(code, format!("{what} holds a zero byte, and nothing here can"), "Leave it out.")
}

/// Whether a text in it holds a zero byte.
pub(crate) fn has_zero(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => text.contains('\0'),
        serde_json::Value::Array(items) => items.iter().any(has_zero),
        serde_json::Value::Object(members) => {
            members.iter().any(|(name, value)| name.contains('\0') || has_zero(value))
        }
        _ => false,
    }
}

/// The cursor of the next page, if this one was full.
pub(crate) fn next<T>(
    list: &str,
    of: &str,
    page: &[T],
    limit: i64,
    place: impl FnOnce(&T) -> serde_json::Value,
) -> Option<String> {
    let last = page.last().filter(|_| page.len() as i64 >= limit)?;
    Some(cursor::write(list, of, &place(last)))
}

/// How many a page holds: what was asked for, within bounds.
pub(crate) fn limit(asked: Option<i64>) -> Result<i64, ApiProblem> {
    match asked {
        None => Ok(50),
        Some(limit @ 1..=1_000) => Ok(limit),
        Some(other) => {
            let why = format!("limit = {other} must be between 1 and 1000");
            Err(ApiProblem::bad("api.bad_query", why, "Ask for a smaller page, and go on by its cursor."))
        }
    }
}

/// An answer as JSON. What is ours to serialise does not fail.
pub(crate) fn value(answer: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(answer).unwrap_or_default()
}
