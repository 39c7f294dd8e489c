//! The table for programs: an OpenAPI 3.1 document. For people it is docs/api.md (`reference.rs`).

use super::door::ROOT;
use super::routes::routes;
use super::spec::{Need, Out, Spec};
use crate::http::ApiProblem;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema as _, SchemaGenerator};
use serde_json::{Map, Value, json};

/// The document.
pub(crate) fn document() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for spec in routes() {
        let path = paths.entry(format!("{ROOT}{}", spec.path)).or_insert_with(|| json!({}));
        path[spec.method.as_str().to_ascii_lowercase()] = operation(&spec, &mut generator);
    }
    let problem = ApiProblem::json_schema(&mut generator);
    let mut schemas = generator.take_definitions(true);
    schemas.insert("ApiProblem".to_owned(), problem.into());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Posthaste",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Looking at outboxes and consumers, and acting on them.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{ "token": [] }],
    })
}

fn operation(spec: &Spec, generator: &mut SchemaGenerator) -> Value {
    let answer = match spec.out {
        Out::Json(schema) => json!({ "application/json": { "schema": schema(generator) } }),
        Out::Other(kind) => json!({ kind: {} }),
    };
    let problem = json!({
        "description": "Why not: a code, what it means for the events, and what to do.",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/ApiProblem" } } },
    });
    let mut operation = json!({
        "operationId": name(spec),
        "summary": spec.sentence,
        "x-role": role(spec),
        "parameters": parameters(spec, generator),
        "responses": { "200": { "description": spec.sentence, "content": answer }, "default": problem },
    });
    if let Some(body) = spec.body {
        let content = json!({ "application/json": { "schema": body(generator) } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    if spec.need == Need::Nothing {
        operation["security"] = json!([{}, { "token": [] }]);
    }
    operation
}

fn parameters(spec: &Spec, generator: &mut SchemaGenerator) -> Vec<Value> {
    let part =
        |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let mut all: Vec<Value> = parts(spec.path).map(part).collect();
    for (name, schema, _) in query(spec, generator) {
        all.push(json!({ "name": name, "in": "query", "required": false, "schema": schema }));
    }
    if begins_job(spec) {
        let schema = json!({ "type": "string", "minLength": 1, "maxLength": 200 });
        all.push(json!({ "name": "Idempotency-Key", "in": "header", "required": false, "schema": schema }));
    }
    all
}

/// Whether the same `Idempotency-Key` is the same job again.
fn begins_job(spec: &Spec) -> bool {
    spec.is_act && (spec.path.ends_with("/jobs") || spec.path.ends_with("/dead/reprocess"))
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// What a query may hold: name, schema, sentence. A query is a flat table of its own.
pub(super) fn query(spec: &Spec, generator: &mut SchemaGenerator) -> Vec<(String, Value, String)> {
    let Some(schema) = spec.query else { return Vec::new() };
    let schema = schema(generator).to_value();
    let path = schema["$ref"].as_str().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let found = generator.definitions().get(name).cloned().unwrap_or(schema);
    let properties = found["properties"].as_object().cloned().unwrap_or_default();
    let one = |(name, schema): (String, Value)| {
        let sentence = schema["description"].as_str().unwrap_or_default().to_owned();
        (name, schema, sentence)
    };
    properties.into_iter().map(one).collect()
}

fn name(spec: &Spec) -> String {
    let words = spec.path.replace(['/', '.', '{', '}'], "_");
    format!("{}{words}", spec.method.as_str().to_ascii_lowercase()).trim_end_matches('_').replace("__", "_")
}

pub(super) fn role(spec: &Spec) -> String {
    match spec.need {
        Need::Nothing => "none".to_owned(),
        Need::Token => "any".to_owned(),
        Need::Role(role) => format!("{role:?}").to_lowercase(),
        Need::Everything(role) => format!("{role:?}, for everything").to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dashboard's types are made from its own copy.
    #[test]
    fn the_copy_of_the_dashboard_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/ui/openapi.json");
        let mut text = serde_json::to_string_pretty(&document()).expect("JSON");
        text.push('\n');
        if std::env::var_os("POSTHASTE_WRITE").is_some() {
            std::fs::write(path, &text).expect("it can be written");
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        let advice = "POSTHASTE_WRITE=1 writes ui/openapi.json, then `npm run types && npm run build` in ui/";
        assert!(found == text, "ui/openapi.json is not what the table says: {advice}");
    }

    /// Every reference leads somewhere, and every operation has a name of its own.
    #[test]
    fn the_document_is_closed() {
        let document = document();
        let text = document.to_string();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap_or_default();
            assert!(document["components"]["schemas"].get(name).is_some(), "{name} is missing");
        }
        let mut names: Vec<String> = routes().iter().map(name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn what_begins_a_job_takes_a_key() {
        let document = document();
        let has_key = |path: &str| {
            let parameters = document["paths"][format!("{ROOT}{path}")]["post"]["parameters"].as_array();
            parameters.is_some_and(|all| all.iter().any(|one| one["name"] == "Idempotency-Key"))
        };
        for path in ["/outboxes/{o}/jobs", "/outboxes/{o}/dead/reprocess"] {
            assert!(has_key(path), "{path}");
        }
        assert!(!has_key("/outboxes/{o}/sinks/{s}/rewind"));
    }

    #[test]
    fn what_changes_something_is_never_a_get() {
        for spec in routes() {
            assert_eq!(spec.is_act, spec.method != axum::http::Method::GET, "{}", spec.path);
        }
    }
}
