//! `/metrics`, `/livez` and `/readyz`: what machines see of a running relay.
//!
//! `/livez` says that the event loop turns. `/readyz` says that every outbox makes progress or has nothing
//! to do (F85): an idle relay is ready, a stalled one is not. A report that nobody has renewed for a while
//! counts as stalled, so that a frozen task cannot stay green.

use crate::daemon::Board;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;

/// All three pages, and the two that a full house still answers.
pub(crate) fn pages(metrics: PrometheusHandle, board: Arc<Board>) -> (Router, Router) {
    let render = move || async move { text("text/plain; version=0.0.4", metrics.render()) };
    let all = probes(&board).route("/metrics", get(render)).fallback(nothing);
    let few =
        probes(&board).fallback(|| async { (StatusCode::SERVICE_UNAVAILABLE, "too many connections\n") });
    (closed(all), closed(few))
}

fn probes(board: &Arc<Board>) -> Router {
    let board = Arc::clone(board);
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(move || async move { ready(&board) }))
}

/// No page takes anything but GET and HEAD.
fn closed(pages: Router) -> Router {
    pages.method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n"))
}

async fn nothing(method: axum::http::Method) -> Response {
    match method.as_str() {
        "GET" | "HEAD" => (StatusCode::NOT_FOUND, "there are /metrics, /livez and /readyz\n").into_response(),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n").into_response(),
    }
}

fn ready(board: &Board) -> Response {
    let report = board.report();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::to_string(&report).unwrap_or_default();
    (status, text("application/json", format!("{body}\n"))).into_response()
}

fn text(kind: &'static str, body: String) -> Response {
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}
