//! docs/api.md, made from the table of routes: paths, what a query and a body hold, the kinds of jobs.

use super::openapi::{query, role};
use super::routes::routes;
use posthaste::admin::job::JobPlan;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;

const HEAD: &str = "\
# The API

<!-- Made from the table of routes; a test compares, and writes it with POSTHASTE_WRITE=1. -->

JSON over HTTP for people who look and act: programs, dashboards, scripts. It has the words, filters and units of the
command line's `--json`. `GET /api/v1/openapi.json` is the same as this page for programs, with the members of answers:
all of them, but for consumers and the configuration, which it knows as JSON and no more.

It is served on `[admin] listen` by `posthaste run`, if `[admin]` has a `tokens_file` or a `listen`, and by `posthaste ui`
without a relay: [how to set it up](operations.md#the-api). Send `Authorization: Bearer pht_…`; `posthaste token new` makes
a token, and the file of tokens says what it may. [security.md](security.md) says who sees what.

A list has a `next`: pass it on as `cursor` for the next page. What goes wrong is `application/problem+json` with `code`,
`detail`, `events` (what it means for them), `do` (what to do) and `type`, its place in [errors.md](errors.md). Acts are
audited with the token's name; they need `admin_url` in the outbox's table.

Paths are below `/api/v1`. `{o}` is an outbox, `{c}` a consumer, `{s}` a sink, `{r}` a route.

| method and path | role | what |
|---|---|---|
";

const FILTERS: &str = "
## Filters

What a query may hold. What it does not know is refused.

| path | key | |
|---|---|---|
";

const BODIES: &str = "
## Bodies

What a body may hold: JSON, `application/json`. What it does not know is refused. Members in bold must be there; times are
texts in RFC 3339. The types that are no JSON's own stand [below](#types).

| path | member | type | |
|---|---|---|---|
";

const KINDS: &str = "
## Kinds of jobs

`kind` in the body of `POST /outboxes/{o}/jobs`, and what stands beside it. A filter without any member is refused: `all`
says it out loud.

| kind | members | |
|---|---|---|
";

const TYPES: &str = "
## Types

| type | member | type | |
|---|---|---|---|
";

/// One member of an object.
struct BodyMember {
    name: String,
    kind: String,
    is_needed: bool,
    sentence: String,
}

/// Schemas as a page shows them, and the names of those that it has to explain.
struct Types {
    generator: SchemaGenerator,
    named: BTreeSet<String>,
}

impl Types {
    /// A schema itself, where it is known by a name.
    fn whole(&self, schema: &Value) -> Value {
        let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        name.and_then(|name| self.generator.definitions().get(name).cloned())
            .unwrap_or_else(|| schema.clone())
    }

    /// In one word or a few.
    fn kind(&mut self, schema: &Value) -> String {
        if let Some(path) = schema["$ref"].as_str() {
            let name = path.rsplit('/').next().unwrap_or_default();
            let whole = self.whole(schema);
            if whole["properties"].is_null() {
                return self.kind(&whole);
            }
            self.named.insert(name.to_owned());
            return format!("`{name}`");
        }
        for choice in ["anyOf", "oneOf", "allOf"] {
            let some = schema[choice].as_array().into_iter().flatten().filter(|one| one["type"] != "null");
            let kinds: Vec<String> = some.map(|one| self.kind(one)).collect();
            if !kinds.is_empty() {
                return kinds.join(" or ");
            }
        }
        if let Some(only) = schema["const"].as_str() {
            return format!("`\"{only}\"`");
        }
        if let Some(words) = schema["enum"].as_array() {
            let words = words.iter().filter_map(Value::as_str).map(|word| format!("`\"{word}\"`"));
            return words.collect::<Vec<_>>().join(", ");
        }
        let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
        let kind = kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("JSON");
        match kind {
            "array" => format!("list of {}", self.kind(&schema["items"])),
            "object" => match schema["additionalProperties"].as_object() {
                Some(_) => format!("object of {}", self.kind(&schema["additionalProperties"])),
                None => "object".to_owned(),
            },
            other => other.to_owned(),
        }
    }

    fn members(&mut self, schema: &Value) -> Vec<BodyMember> {
        let whole = self.whole(schema);
        let needed = |name: &str| {
            whole["required"].as_array().into_iter().flatten().any(|one| one.as_str() == Some(name))
        };
        let all = whole["properties"].as_object().cloned().unwrap_or_default();
        all.into_iter()
            .map(|(name, schema)| BodyMember {
                kind: self.kind(&schema),
                is_needed: needed(&name),
                sentence: schema["description"].as_str().unwrap_or_default().replace('\n', " "),
                name,
            })
            .collect()
    }
}

impl BodyMember {
    fn shown(&self) -> String {
        match self.is_needed {
            true => format!("**`{}`**", self.name),
            false => format!("`{}`", self.name),
        }
    }
}

/// The page. A text takes everything that is written to it.
fn page() -> String {
    let mut types =
        Types { generator: SchemaSettings::draft2020_12().into_generator(), named: BTreeSet::new() };
    let mut text = String::from(HEAD);
    for spec in routes() {
        let _ = writeln!(text, "| {} `{}` | {} | {} |", spec.method, spec.path, role(&spec), spec.sentence);
    }
    text.push_str(FILTERS);
    for spec in routes() {
        for (key, _, sentence) in query(&spec, &mut types.generator) {
            let _ = writeln!(text, "| `{}` | `{key}` | {sentence} |", spec.path);
        }
    }
    text.push_str(BODIES);
    for spec in routes() {
        let Some(body) = spec.body else { continue };
        let schema = body(&mut types.generator).to_value();
        let is_job = !types.whole(&schema)["oneOf"].is_null();
        if is_job {
            let _ = writeln!(
                text,
                "| {} `{}` | **`kind`** | [kind](#kinds-of-jobs) | What is done; its members stand beside it. |",
                spec.method, spec.path
            );
        }
        for member in types.members(&schema) {
            let (name, kind) = (member.shown(), &member.kind);
            let _ =
                writeln!(text, "| {} `{}` | {name} | {kind} | {} |", spec.method, spec.path, member.sentence);
        }
    }
    text.push_str(KINDS);
    let plan = types.generator.subschema_for::<JobPlan>().to_value();
    for kind in types.whole(&plan)["oneOf"].as_array().cloned().unwrap_or_default() {
        let beside = types.members(&kind).into_iter().filter(|member| member.name != "kind");
        let beside: Vec<String> = beside.map(|one| format!("{}: {}", one.shown(), one.kind)).collect();
        let name = kind["properties"]["kind"]["const"].as_str().unwrap_or_default();
        let sentence = kind["description"].as_str().unwrap_or_default();
        let _ = writeln!(text, "| `{name}` | {} | {sentence} |", beside.join(", "));
    }
    text.push_str(TYPES);
    let mut shown = BTreeSet::new();
    while let Some(name) = types.named.iter().find(|name| !shown.contains(*name)).cloned() {
        let schema = types.generator.definitions().get(&name).cloned().unwrap_or_default();
        for member in types.members(&schema) {
            let (member_name, kind) = (member.shown(), &member.kind);
            let _ = writeln!(text, "| `{name}` | {member_name} | {kind} | {} |", member.sentence);
        }
        shown.insert(name);
    }
    text
}

#[test]
fn the_reference_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
    if std::env::var_os("POSTHASTE_WRITE").is_some() {
        std::fs::write(path, page()).expect("docs can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == page(), "docs/api.md is not what the table says: POSTHASTE_WRITE=1 writes it");
}

/// What a body holds is where the refusal of one says that it is.
#[test]
fn the_reference_says_what_each_body_holds() {
    let page = page();
    for words in ["**`reason`**", "`dry_run`", "`rate_per_s`", "`to_seq`", "**`values`**", "`DeadFilter`"] {
        assert!(page.contains(words), "{words} is missing");
    }
    for kind in ["dead.replay", "dead.discard", "deferred.retry", "events.replay", "consumer.replay"] {
        assert!(page.contains(&format!("| `{kind}` | ")), "{kind} is missing");
    }
    for spec in routes().into_iter().filter(|spec| spec.body.is_some()) {
        assert!(
            page.contains(&format!("| {} `{}` | `", spec.method, spec.path))
                || page.contains(&format!("| {} `{}` | **`", spec.method, spec.path)),
            "{}",
            spec.path
        );
    }
}
