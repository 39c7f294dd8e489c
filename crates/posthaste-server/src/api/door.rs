//! The door: what is asked of every request before a route sees it.
//!
//! First `Host`: a page of a stranger that calls itself by a name of its own and points it here (DNS
//! rebinding) is turned away. So is one whose `Origin` says that it comes from elsewhere. Then the token,
//! before anything says which paths there are. Then role and scope, by the table. Then the body: JSON only,
//! so that no form of another page can be one, and at most 1 MiB.

use super::Api;
use super::call::{ApiCall, zero};
use super::denied::Denied;
use super::routes::routes;
use super::spec::{Need, Spec};
use crate::access::Grant;
use crate::dashboard::dashboard;
use crate::http::{ApiProblem, ConnectionEnd};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use posthaste::admin::trace_of;
use posthaste::telemetry::api as metric;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the API is.
pub(crate) const ROOT: &str = "/api/v1";
/// What may come of a body, and in what time.
struct BodyBounds {
    bytes_max: usize,
    time: Duration,
}
/// Of a guest's.
const BODY: BodyBounds = BodyBounds { bytes_max: 1 << 20, time: Duration::from_secs(10) };
/// A stranger sends a one-time code and nothing else. Few of them do at a time, so that bodies that never
/// come do not take the places of all others.
const STRANGERS_BODY: BodyBounds = BodyBounds { bytes_max: 4 << 10, time: Duration::from_secs(2) };
/// Of an `Idempotency-Key`. A UUID has 36.
const KEY_CHARS_MAX: usize = 200;
/// After it a wrong token is answered.
const WRONG_PAUSE: Duration = Duration::from_secs(1);

/// What a token may not.
const FORBIDDEN: &str = "api.forbidden";

/// What every answer says to a browser.
const HEADERS: [(&str, &str); 7] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'",
    ),
];

/// Variable parts of a path, or that they are no text.
type PathParts = Result<RawPathParams, RawPathParamsRejection>;

/// Who asks. Put into the request by the door, read by its route.
#[derive(Clone)]
struct Guest {
    grant: Option<Arc<Grant>>,
    bearer: String,
}

/// The router of the whole table, and the dashboard.
pub(crate) fn router(api: Arc<Api>) -> Router {
    let mut paths: BTreeMap<&'static str, MethodRouter<Arc<Api>>> = BTreeMap::new();
    for spec in routes() {
        let filter = match spec.method {
            Method::POST => MethodFilter::POST,
            Method::PUT => MethodFilter::PUT,
            Method::DELETE => MethodFilter::DELETE,
            _ => MethodFilter::GET,
        };
        let (path, spec) = (spec.path, Arc::new(spec));
        let handler = move |State(api): State<Arc<Api>>, path: PathParts, request: Request| {
            let spec = Arc::clone(&spec);
            async move { enter(&spec, api, path, request).await.unwrap_or_else(IntoResponse::into_response) }
        };
        let paths = paths.entry(path).or_default();
        *paths = std::mem::take(paths).merge(on(filter, handler));
    }
    let mut router = Router::new();
    for (path, methods) in paths {
        router = router.route(&format!("{ROOT}{path}"), methods);
    }
    router
        .fallback(async || {
            ApiProblem::new(StatusCode::NOT_FOUND, "api.no_route", "there is nothing here", LIST)
        })
        .method_not_allowed_fallback(async || {
            ApiProblem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "api.no_method",
                "this path has other methods",
                LIST,
            )
        })
        .layer(from_fn_with_state(Arc::clone(&api), admit))
        .with_state(Arc::clone(&api))
        .merge(dashboard().layer(from_fn_with_state(api, at_home)))
}

const LIST: &str = "docs/api.md and GET /api/v1/openapi.json list what there is.";

/// Around everything: `Host`, the token, the headers of an answer.
async fn admit(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let opens_session = *request.method() == Method::POST && request.uri().path() == "/api/v1/session";
    let response = match guest(&api, request.headers(), opens_session).await {
        Ok(guest) => {
            request.extensions_mut().insert(guest);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    with_headers(response)
}

/// A page that was opened by a name of a stranger is not answered.
async fn at_home(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let response = match check_host(&api, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    with_headers(response)
}

/// What every answer says to a browser, unless it says something else already.
fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        let name = HeaderName::from_static(name);
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

async fn guest(api: &Api, headers: &HeaderMap, opens_session: bool) -> Result<Guest, ApiProblem> {
    check_host(api, headers)?;
    check_origin(api, headers)?;
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // A scheme has no case (RFC 9110, 11.1).
    let bearer = given.and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let bearer = bearer.map_or("", |(_, token)| token).trim().to_owned();
    if bearer.is_empty() && opens_session {
        return Ok(Guest { grant: None, bearer });
    }
    if let Some(grant) = api.tokens.find(&bearer).or_else(|| api.sessions.find(&bearer, &api.tokens)) {
        return Ok(Guest { grant: Some(grant), bearer });
    }
    metrics::counter!(metric::DENIED).increment(1);
    if bearer.is_empty() {
        return Err(unauthorized("there is no token in `Authorization`"));
    }
    Err(wrong(api).await)
}

/// Wrong tokens are answered slowly, a few at a time; the others at once. A right one waits for nobody.
pub(crate) async fn wrong(api: &Api) -> ApiProblem {
    match api.wrong.try_acquire() {
        Ok(_place) => {
            tokio::time::sleep(WRONG_PAUSE).await;
            unauthorized("this token is none, or its time is over")
        }
        Err(_) => too_many_wrong(),
    }
}

fn too_many_wrong() -> ApiProblem {
    ApiProblem::new(
        StatusCode::TOO_MANY_REQUESTS,
        "api.too_many_wrong",
        "many wrong tokens come at this moment, and this one is not looked at longer",
        "Send a right one: it enters at once.",
    )
}

fn unauthorized(why: &str) -> ApiProblem {
    let advice = "Send `Authorization: Bearer pht_…`. `posthaste token new` makes a token.";
    ApiProblem::new(StatusCode::UNAUTHORIZED, "api.unauthorized", why, advice)
}

/// Whether a host, with any port, is a name of this API.
fn is_ours(api: &Api, host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    // An address of version 6 has colons of its own, and brackets around them.
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host.as_str(),
    };
    api.hosts.iter().any(|known| known == name)
}

/// The only header of this name, as a text; empty if there are several.
fn single(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().unwrap_or_default();
    Some(if all.next().is_none() { first } else { "" })
}

fn check_host(api: &Api, headers: &HeaderMap) -> Result<(), ApiProblem> {
    if single(headers, header::HOST).is_some_and(|host| is_ours(api, host)) {
        return Ok(());
    }
    let why = "`Host` is none of the names of this API";
    let advice = "Ask by the address that it listens on, or write the name into [admin] hosts.";
    Err(ApiProblem::new(StatusCode::MISDIRECTED_REQUEST, "api.other_host", why, advice))
}

/// A browser says where a page comes from, and no page can say something else. `null` is a page without a
/// place, as in a frame that is locked up. Who is no browser says nothing.
fn check_origin(api: &Api, headers: &HeaderMap) -> Result<(), ApiProblem> {
    let Some(origin) = single(headers, header::ORIGIN) else { return Ok(()) };
    if origin.split_once("://").is_some_and(|(_, host)| is_ours(api, host)) {
        return Ok(());
    }
    let why = "`Origin` says that a page of another host asks";
    let advice = "Open the page by the address of the API. Behind a proxy, write the name that the browser shows \
                  into [admin] hosts.";
    Err(ApiProblem::new(StatusCode::FORBIDDEN, "api.other_origin", why, advice))
}

/// One route: role, scope, body, and then its handler.
async fn enter(
    spec: &Spec,
    api: Arc<Api>,
    path: PathParts,
    request: Request,
) -> Result<Response, ApiProblem> {
    let begun = Instant::now();
    let answer = admitted(spec, api, path, request).await;
    let status = answer.as_ref().map_or_else(|problem| problem.status, Response::status);
    let code = status.as_u16().to_string();
    metrics::counter!(metric::REQUESTS, "route" => spec.path, "code" => code).increment(1);
    metrics::histogram!(metric::SECONDS, "route" => spec.path).record(begun.elapsed().as_secs_f64());
    answer
}

async fn admitted(
    spec: &Spec,
    api: Arc<Api>,
    path: PathParts,
    request: Request,
) -> Result<Response, ApiProblem> {
    let (head, body) = request.into_parts();
    let path = path.map_err(|error| {
        ApiProblem::bad("api.bad_path", error.body_text(), "Write names in UTF-8, percent-encoded.")
    })?;
    let path: Vec<(String, String)> =
        path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let guest = head.extensions.get::<Guest>().cloned();
    let guest = guest.ok_or_else(|| unauthorized("there is no token in `Authorization`"))?;
    let is_stranger = guest.grant.is_none();
    let grant = match (guest.grant, spec.need) {
        (Some(grant), _) => grant,
        (None, Need::Nothing) => Arc::new(Grant::nobody()),
        (None, _) => return Err(unauthorized("there is no token in `Authorization`")),
    };
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    if path.iter().any(|(_, value)| value.contains('\0')) {
        return Err(zero("api.bad_path", "the path"));
    }
    let trace_id = text("traceparent").and_then(trace_of).map(str::to_owned);
    let answer = async {
        may(spec, &grant, &path).map_err(|why| forbidden(&why))?;
        let body = match is_stranger {
            false => read_body(spec, &head.headers, body, BODY).await?,
            true => {
                // Sixteen at a time, like wrong tokens: slow strangers take no place of anybody else's.
                let _place = api.wrong.try_acquire().map_err(|_| too_many_wrong())?;
                read_body(spec, &head.headers, body, STRANGERS_BODY).await?
            }
        };
        let idempotency_key = job_key(&head.headers)?;
        let (api, grant, path) = (Arc::clone(&api), Arc::clone(&grant), path.clone());
        let (uri, bearer, trace_id) = (head.uri.clone(), guest.bearer, trace_id.clone());
        let ends = head.extensions.get::<ConnectionEnd>().map(|end| end.0);
        let call = ApiCall { api, grant, path, uri, body, trace_id, idempotency_key, bearer, ends };
        (spec.run)(call).await
    };
    let answer = answer.await;
    // Also what only the route itself can know, as that a kind of job needs another role.
    if let Err(ApiProblem { code, detail: why, .. }) = &answer
        && **code == *FORBIDDEN
    {
        Denied { spec, grant: &grant, path: &path, why, trace_id: trace_id.as_deref() }.tell(&api);
    }
    answer
}

/// What makes a request that comes again the same job. One that cannot be kept is refused: whoever sent it
/// relies on it, and without it there would be two jobs.
fn job_key(headers: &HeaderMap) -> Result<Option<String>, ApiProblem> {
    let mut given = headers.get_all("idempotency-key").iter();
    let why = match (given.next().map(HeaderValue::to_str), given.next()) {
        (None, _) => return Ok(None),
        (_, Some(_)) => "`Idempotency-Key` stands there twice",
        (Some(Err(_)), _) => "`Idempotency-Key` holds something else than visible ASCII",
        (Some(Ok(key)), _) if (1..=KEY_CHARS_MAX).contains(&key.len()) => return Ok(Some(key.to_owned())),
        _ => "`Idempotency-Key` must have 1 to 200 characters",
    };
    Err(ApiProblem::bad("api.bad_key", why, "Send one, a UUID for example."))
}

/// Whether a token may use a route, or why not.
fn may(spec: &Spec, grant: &Grant, path: &[(String, String)]) -> Result<(), String> {
    let (role, everything) = match spec.need {
        Need::Nothing | Need::Token => (None, false),
        Need::Role(role) => (Some(role), false),
        Need::Everything(role) => (Some(role), true),
    };
    if let Some(role) = role.filter(|role| grant.role < *role) {
        return Err(
            format!("this needs the role {role:?}, and the token has {:?}", grant.role).to_lowercase()
        );
    }
    if everything && !grant.has_all() {
        return Err("this is about all outboxes and consumers, and the token is for some".to_owned());
    }
    let part = |name: &str| path.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    if part("o").is_some_and(|outbox| !grant.has_outbox(outbox)) {
        return Err("the token is not for this outbox".to_owned());
    }
    if part("c").is_some_and(|consumer| !grant.has_consumer(consumer)) {
        return Err("the token is not for this consumer".to_owned());
    }
    Ok(())
}

/// What a token may not.
pub(crate) fn forbidden(why: &str) -> ApiProblem {
    let advice = "Use a token that may, or ask whoever keeps the file of tokens.";
    ApiProblem::new(StatusCode::FORBIDDEN, FORBIDDEN, why, advice)
}

async fn read_body(
    spec: &Spec,
    headers: &HeaderMap,
    body: Body,
    bounds: BodyBounds,
) -> Result<Bytes, ApiProblem> {
    if spec.body.is_none() {
        return Ok(Bytes::new());
    }
    let BodyBounds { bytes_max, time } = bounds;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let why = "the body is not `application/json`";
        let advice = "Send JSON, and say so in `Content-Type`.";
        return Err(ApiProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "api.not_json", why, advice));
    }
    let too_large = || {
        let why = format!("the body has more than {bytes_max} bytes");
        let advice = "Name a filter instead of many ids.";
        ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "api.too_large", why, advice)
    };
    // Whoever says how much is coming is told before it comes.
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let whole = Limited::new(body, bytes_max).collect();
    match tokio::time::timeout(time, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(ApiProblem::bad("api.bad_body", "the body broke off", "Send it again.")),
        Err(_) => Err(ApiProblem::new(
            StatusCode::REQUEST_TIMEOUT,
            "api.slow_body",
            format!("the body did not come within {} s", time.as_secs()),
            "Send it again.",
        )),
    }
}
