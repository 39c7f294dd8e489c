//! One route of the table: who may, what goes in, what comes out, and the sentence about it.

use super::call::ApiCall;
use crate::access::{OperatorRole, masked};
use crate::http::ApiProblem;
use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::pin::Pin;
use std::sync::Arc;

/// The schema of a type.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;
type Running = Pin<Box<dyn Future<Output = Result<Response, ApiProblem>> + Send>>;

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Everybody: it asks for what it needs itself.
    Nothing,
    /// Whoever has a token.
    Token,
    /// A token of this role or a higher one.
    Role(OperatorRole),
    /// The same, for everything there is.
    Everything(OperatorRole),
}

/// What comes out.
#[derive(Clone, Copy)]
pub(crate) enum Out {
    Json(SchemaOf),
    Other(&'static str),
}

/// One route.
pub(crate) struct Spec {
    pub(crate) method: Method,
    /// Below `/api/v1`, with its variable parts in braces.
    pub(crate) path: &'static str,
    pub(crate) need: Need,
    /// Whether something is changed by it.
    pub(crate) is_act: bool,
    pub(crate) sentence: &'static str,
    pub(crate) query: Option<SchemaOf>,
    pub(crate) body: Option<SchemaOf>,
    pub(crate) out: Out,
    pub(crate) run: Box<dyn Fn(ApiCall) -> Running + Send + Sync>,
}

/// A query that has nothing in it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoQuery {}

/// A body that has nothing in it but why.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reason {
    /// Why, for the audit.
    pub(crate) reason: String,
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A look that answers JSON.
pub(crate) fn look<Q, A, F>(
    path: &'static str,
    need: Need,
    sentence: &'static str,
    run: impl Fn(ApiCall, Q) -> F + Copy + Send + Sync + 'static,
) -> Spec
where
    Q: DeserializeOwned + JsonSchema + Send + 'static,
    A: Serialize + JsonSchema + Send,
    F: Future<Output = Result<A, ApiProblem>> + Send + 'static,
{
    Spec {
        method: Method::GET,
        path,
        need,
        is_act: false,
        sentence,
        query: Some(schema::<Q>),
        body: None,
        out: Out::Json(schema::<A>),
        run: Box::new(move |call| {
            Box::pin(async move {
                let (query, view) = (call.query::<Q>()?, ShownTo::of(&call));
                Ok(view.json(StatusCode::OK, &run(call, query).await?))
            })
        }),
    }
}

/// What changes or costs something, and is said by its path alone.
pub(crate) fn bare<A, F>(
    (method, path): (Method, &'static str),
    need: Need,
    sentence: &'static str,
    run: impl Fn(ApiCall, NoQuery) -> F + Copy + Send + Sync + 'static,
) -> Spec
where
    A: Serialize + JsonSchema + Send,
    F: Future<Output = Result<A, ApiProblem>> + Send + 'static,
{
    Spec { method, is_act: true, ..look(path, need, sentence, run) }
}

/// A look that is the same for all who ask, and not cheap.
pub(crate) fn shared<Q, A, F>(
    path: &'static str,
    need: Need,
    sentence: &'static str,
    run: impl Fn(ApiCall, Q) -> F + Copy + Send + Sync + 'static,
) -> Spec
where
    Q: DeserializeOwned + JsonSchema + Send + 'static,
    A: Serialize + JsonSchema + Send,
    F: Future<Output = Result<A, ApiProblem>> + Send + 'static,
{
    let one = move |call: ApiCall| -> Running {
        Box::pin(async move {
            let (query, view) = (call.query::<Q>()?, ShownTo::of(&call));
            let (api, uri, grant) = (Arc::clone(&call.api), call.uri.clone(), Arc::clone(&call.grant));
            let look = async { run(call, query).await.map(|answer| super::call::value(&answer)) };
            let answer = api.shared.ask((view.right, grant.outboxes()), &uri, look).await?;
            Ok(view.json(StatusCode::OK, &answer))
        })
    };
    Spec { run: Box::new(one), ..look(path, need, sentence, run) }
}

/// A look that answers something else.
pub(crate) fn raw<Q, F>(
    path: &'static str,
    need: Need,
    kind: &'static str,
    sentence: &'static str,
    run: impl Fn(ApiCall, Q) -> F + Copy + Send + Sync + 'static,
) -> Spec
where
    Q: DeserializeOwned + JsonSchema + Send + 'static,
    F: Future<Output = Result<Response, ApiProblem>> + Send + 'static,
{
    Spec {
        method: Method::GET,
        path,
        need,
        is_act: false,
        sentence,
        query: Some(schema::<Q>),
        body: None,
        out: Out::Other(kind),
        run: Box::new(move |call| {
            Box::pin(async move {
                let query = call.query::<Q>()?;
                run(call, query).await
            })
        }),
    }
}

/// An act: a body in, JSON out.
pub(crate) fn act<B, A, F>(
    (method, path): (Method, &'static str),
    need: Need,
    sentence: &'static str,
    run: impl Fn(ApiCall, B) -> F + Copy + Send + Sync + 'static,
) -> Spec
where
    B: DeserializeOwned + JsonSchema + Send + 'static,
    A: Serialize + JsonSchema + Send,
    F: Future<Output = Result<A, ApiProblem>> + Send + 'static,
{
    Spec {
        method,
        path,
        need,
        is_act: true,
        sentence,
        query: None,
        body: Some(schema::<B>),
        out: Out::Json(schema::<A>),
        run: Box::new(move |call| {
            Box::pin(async move {
                let (body, view) = (call.body::<B>()?, ShownTo::of(&call));
                Ok(view.json(StatusCode::OK, &run(call, body).await?))
            })
        }),
    }
}

/// An act that reads its body itself, and tells what it takes.
pub(crate) fn telling<B, A, F>(
    at: (Method, &'static str),
    need: Need,
    sentence: &'static str,
    run: impl Fn(ApiCall, Value) -> F + Copy + Send + Sync + 'static,
) -> Spec
where
    B: JsonSchema,
    A: Serialize + JsonSchema + Send,
    F: Future<Output = Result<A, ApiProblem>> + Send + 'static,
{
    Spec { body: Some(schema::<B>), ..act(at, need, sentence, run) }
}

/// What the token of a call sees of an answer.
struct ShownTo {
    right: crate::access::PayloadRight,
    show_keys: bool,
}

impl ShownTo {
    fn of(call: &ApiCall) -> Self {
        Self { right: call.grant.payloads, show_keys: call.api.config.admin.show_keys }
    }

    fn json(&self, status: StatusCode, answer: &impl Serialize) -> Response {
        let value = masked(super::call::value(answer), self.right, self.show_keys);
        json(status, &value)
    }
}

/// JSON as an answer.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
