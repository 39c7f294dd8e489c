//! `GET /v1/openapi.json`: what the holder of a key can do here.

use super::answer::json_answer;
use super::batch::BATCH;
use super::door::Door;
use super::section::{GatewaySetting, KeyBy, OfferedTopic};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// With the topics of the key.
pub(super) async fn show(State(door): State<Arc<Door>>, headers: HeaderMap) -> Response {
    let opened = match door.open(&headers) {
        Ok(opened) => opened,
        Err(refusal) => return refusal.into_response(),
    };
    let setting = door.setting();
    let is_open = |topic: &&OfferedTopic| {
        opened.topics.as_ref().is_none_or(|allowed| allowed.iter().any(|allowed| **allowed == *topic.topic))
    };
    let topics: Vec<&OfferedTopic> = setting.topics.iter().filter(is_open).collect();
    json_answer(StatusCode::OK, &document(&setting, &topics))
}

/// Statuses of a refusal, and when they are given.
const REFUSALS: [(&str, &str); 13] = [
    ("400", "the request is malformed, or sets a header that is not the client's"),
    ("401", "no key, or one that is unknown, expired or revoked"),
    ("403", "the topic is not for this key, or the tenant is paused"),
    ("404", "the topic is not offered"),
    ("405", "another method than POST"),
    ("408", "the body did not arrive in time"),
    ("409", "another request with this Idempotency-Key does not end"),
    ("413", "larger than what is taken"),
    ("415", "a content type that the topic does not take"),
    ("422", "no JSON, a broken schema, a type that is not taken, or an Idempotency-Key of another request"),
    ("429", "more than the tenant's rate: nothing is stored"),
    ("431", "the head of the request is too large"),
    ("503", "busy, or the database is away; code gateway.outcome_unknown: it may be stored"),
];

fn document(setting: &GatewaySetting, topics: &[&OfferedTopic]) -> Value {
    let paths = topics.iter().map(|topic| (format!("/v1/topics/{}", topic.topic), path(setting, topic)));
    let mut paths: serde_json::Map<String, Value> = paths.collect();
    paths.insert(
        "/v1/openapi.json".to_owned(),
        json!({ "get": {
            "summary": "This document", "operationId": "openapi",
            "responses": {
                "200": { "description": "this document", "content": { "application/json": { "schema": { "type": "object" } } } },
                "401": refusal("no key, or one that is unknown, expired or revoked"),
                "503": refusal("the gateway has just started, and nobody knows yet which keys there are"),
            },
        } }),
    );
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Posthaste gateway", "version": env!("CARGO_PKG_VERSION"),
            "description": "Events are handed in by POST. 202 means that they are stored and will be delivered. \
                            Every refusal but `gateway.outcome_unknown` means that nothing was stored.",
        },
        "security": [{ "key": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer", "bearerFormat": "phk_…" } },
            "schemas": { "Problem": problem(), "Accepted": {
                "type": "object", "required": ["ids"],
                "properties": { "ids": { "type": "array", "items": { "type": "string", "format": "uuid" } } },
            } },
        },
    })
}

fn problem() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "object", "required": ["type", "status", "code", "detail", "events", "do"],
        "properties": { "type": text, "status": { "type": "integer" }, "code": text, "detail": text, "events": text, "do": text },
    })
}

fn refusal(when: &str) -> Value {
    json!({
        "description": when,
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    })
}

fn path(setting: &GatewaySetting, topic: &OfferedTopic) -> Value {
    let header = |name: &str, about: &str, required: bool| json!({ "name": name, "in": "header", "description": about, "required": required, "schema": { "type": "string" } });
    let needs_key = setting.tenants.require_idempotency_key;
    let mut parameters = vec![
        header("Idempotency-Key", "makes a repetition of this request the same request", needs_key),
        header("Event-Type", "the event's type; the topic by default", false),
        header("Event-Deliver-At", "not before this time, at most 30 days ahead (RFC 3339)", false),
    ];
    if topic.key == KeyBy::Client {
        parameters.push(header("Event-Key", "events of one key keep their order", false));
    }
    let any = ["application/json".to_owned(), "application/octet-stream".to_owned()];
    let kinds = if topic.content_types.is_empty() { &any[..] } else { &topic.content_types[..] };
    let mut content: serde_json::Map<String, Value> =
        kinds.iter().map(|kind| (kind.clone(), json!({ "schema": {} }))).collect();
    content.insert(BATCH.to_owned(), json!({ "schema": batch(setting, topic) }));
    let accepted = json!({
        "description": "stored; with `Idempotency-Replayed: true`, an earlier request with this key stored them",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Accepted" } } },
    });
    let mut responses: serde_json::Map<String, Value> =
        REFUSALS.iter().map(|(status, when)| ((*status).to_owned(), refusal(when))).collect();
    responses.insert("202".to_owned(), accepted);
    json!({ "post": {
        "summary": format!("Hand in events of {}", topic.topic),
        "operationId": format!("hand_in_{}", topic.topic),
        "parameters": parameters,
        "requestBody": { "required": true, "content": content },
        "responses": responses,
    } })
}

fn batch(setting: &GatewaySetting, topic: &OfferedTopic) -> Value {
    let text = json!({ "type": "string" });
    let mut properties = json!({
        "type": text, "headers": { "type": "object", "additionalProperties": text }, "payload": {},
        "payload_base64": text, "content_type": text, "deliver_at": { "type": "string", "format": "date-time" },
    });
    if topic.key == KeyBy::Client {
        properties["key"] = text;
    }
    json!({
        "type": "object", "required": ["events"], "additionalProperties": false,
        "properties": { "events": {
            "type": "array", "minItems": 1, "maxItems": setting.bounds.batch_events_max,
            "items": { "type": "object", "additionalProperties": false, "properties": properties },
        } },
    })
}
