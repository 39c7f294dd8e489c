//! JSON Schema, drafts 4 to 2020-12, by `jsonschema`.
//!
//! The crate is built without its readers of files and addresses, and is told to stay offline besides:
//! another crate in the same build could switch those readers on. It guards itself against schemas that lead
//! back to themselves. Patterns run with a bound on how often they try again, so that none runs for ever.

use super::{SCHEMA_BYTES_MAX, bounded, poison, too_large};
use crate::BuildError;
use async_trait::async_trait;
use jsonschema::PatternOptions;
use posthaste::schema::{Checked, Validator};
use serde_json::Value;
use std::path::Path;

/// How often a pattern may try again: some milliseconds. Without look-around none ever does.
const BACKTRACKS_MAX: usize = 100_000;

/// How many parts a schema may have, with its references written out, for a violation to be looked for at any
/// depth.
const PARTS_MAX: usize = 20_000;
/// How deep a schema may be then, and how deep its references may lead.
const PARTS_DEPTH_MAX: usize = 200;
/// How deep a payload may be whose violation is looked for with a schema that leads back to itself.
const LOOK_DEPTH_MAX: usize = 6;

/// A compiled schema.
#[derive(Debug)]
pub struct JsonSchema {
    validator: jsonschema::Validator,
    /// It leads back to itself, or has as many ways as if it did. `jsonschema` remembers what it found when
    /// it only says yes or no. When it looks for the place, it goes every way, and their number doubles with
    /// each level of a payload.
    recurses: bool,
}

impl JsonSchema {
    /// Reads and compiles the file that the option `json_schema` names.
    pub fn read(path: &Path) -> Result<Self, BuildError> {
        let wrong = |why: String| BuildError::File { option: "json_schema", path: path.to_owned(), why };
        let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(wrong)
    }

    /// Compiles the text of a schema.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(format!("it is larger than {} MiB", SCHEMA_BYTES_MAX >> 20));
        }
        let schema = serde_json::from_slice(text).map_err(|error| format!("it is no JSON: {error}"))?;
        Self::compile(&schema)
    }

    pub(super) fn compile(schema: &Value) -> Result<Self, String> {
        if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
            return Err("a JSON Schema is an object, or true or false".to_owned());
        }
        let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS_MAX);
        let options = jsonschema::options().offline().with_pattern_options(patterns);
        let validator = options.build(schema).map_err(|error| {
            let at = error.instance_path().to_string();
            let at = if at.is_empty() { String::new() } else { format!("{at}: ") };
            bounded(&format!("it is no JSON Schema that can be used here: {at}{error}"))
        })?;
        let recurses = !unfolds(schema, schema, &mut PARTS_MAX.clone(), 0);
        Ok(Self { validator, recurses })
    }

    /// Where a payload breaks the schema, and why.
    fn violation(&self, value: &Value) -> String {
        if self.recurses && !is_within(value, LOOK_DEPTH_MAX) {
            return "the payload breaks the schema, which recurses: too deep to say where".to_owned();
        }
        let Err(error) = self.validator.validate(value) else {
            return "the payload breaks the schema".to_owned();
        };
        let path = error.instance_path().to_string();
        let at = if path.is_empty() { "the payload" } else { &path };
        format!("{at}: {}", error.masked())
    }
}

#[async_trait]
impl Validator for JsonSchema {
    fn check(&self, payload: &[u8]) -> Checked {
        if let Some(refused) = too_large(payload) {
            return refused;
        }
        let value: Value = match serde_json::from_slice(payload) {
            Ok(value) => value,
            Err(error) => return poison("payload.not_json", &format!("the payload is not JSON: {error}")),
        };
        match self.validator.is_valid(&value) {
            true => Checked::Fine,
            false => poison("schema.invalid", &self.violation(&value)),
        }
    }
}

/// Whether a schema ends, and soon, when each of its references is written out in its place.
fn unfolds(root: &Value, part: &Value, left: &mut usize, depth: usize) -> bool {
    if *left == 0 || depth == PARTS_DEPTH_MAX {
        return false;
    }
    *left -= 1;
    match part {
        Value::Object(members) => members.iter().all(|(name, member)| match member {
            Value::String(target) if matches!(&**name, "$ref" | "$dynamicRef" | "$recursiveRef") => {
                let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
                target.is_some_and(|target| unfolds(root, target, left, depth + 1))
            }
            _ => unfolds(root, member, left, depth + 1),
        }),
        Value::Array(members) => members.iter().all(|member| unfolds(root, member, left, depth + 1)),
        _ => true,
    }
}

/// Whether a value is no deeper than this.
fn is_within(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(members) => depth > 0 && members.iter().all(|member| is_within(member, depth - 1)),
        Value::Object(members) => depth > 0 && members.values().all(|member| is_within(member, depth - 1)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema(schema: Value) -> JsonSchema {
        JsonSchema::parse(schema.to_string().as_bytes()).expect("a schema")
    }

    fn why(schema: &JsonSchema, payload: impl AsRef<[u8]>) -> Option<(String, String)> {
        match schema.check(payload.as_ref()) {
            Checked::Fine => None,
            Checked::Poison(violation) => Some((violation.code.into_owned(), violation.message)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_violation_says_where_and_why_and_holds_no_value() {
        let items = json!({ "type": "array", "items": { "properties": { "price": { "type": "integer", "maximum": 9 } } } });
        let orders = schema(
            json!({ "required": ["id"], "properties": { "items": items }, "additionalProperties": false,
                                    "patternProperties": { "^id$": { "type": "string" } } }),
        );
        assert_eq!(why(&orders, r#"{"id":"a","items":[{"price":3}]}"#), None);
        for (payload, expected) in [
            (
                r#"{"id":"a","items":[{"price":"secret"}]}"#,
                "/items/0/price: value is not of type \"integer\"",
            ),
            (
                r#"{"id":"a","items":[{},{"price":10}]}"#,
                "/items/1/price: value is greater than the maximum of 9",
            ),
            (r#"{}"#, "the payload: \"id\" is a required property"),
        ] {
            let invalid = ("schema.invalid".to_owned(), expected.to_owned());
            assert_eq!(why(&orders, payload), Some(invalid), "{payload}");
        }
        let long = format!(r#"{{"id":"a","{}":"secret"}}"#, "n\u{e4}me".repeat(1_000));
        let (_, words) = why(&orders, long).expect("one member too many");
        assert!(words.chars().count() <= 301 && words.ends_with('…') && !words.contains("secret"), "{words}");
    }

    #[test]
    fn what_is_no_json_or_too_much_is_poison() {
        let any = schema(json!(true));
        let code = |payload: &[u8]| why(&any, payload).map(|(code, _)| code);
        for bad in [&b""[..], b"{", b"{} {}", b"\xff", b"\"\xff\"", b"NaN", b"[1,]", b"\0\0\0\0\x01{}"] {
            assert_eq!(code(bad).as_deref(), Some("payload.not_json"), "{bad:?}");
        }
        let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat();
        assert_eq!(code(nested(100).as_bytes()), None);
        assert_eq!(code(nested(1_000_000).as_bytes()).as_deref(), Some("payload.not_json"), "too deep");
        let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        assert_eq!(code(text(super::super::PAYLOAD_BYTES_MAX).as_bytes()), None);
        let (code, words) = why(&any, text(super::super::PAYLOAD_BYTES_MAX + 1)).expect("huge");
        assert_eq!((code.as_str(), words.contains("8388609 bytes")), ("schema.too_large", true), "{words}");
    }

    #[test]
    fn a_schema_never_leads_outside() {
        for reference in
            ["https://example.com/a.json", "http://127.0.0.1/a.json", "file:///etc/passwd", "other.json"]
        {
            let error = JsonSchema::compile(&json!({ "$ref": reference })).expect_err(reference);
            assert!(error.contains("no JSON Schema that can be used here") && error.len() < 600, "{error}");
        }
        let inside = schema(json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "string" } } }));
        assert!(why(&inside, "1").is_some() && why(&inside, "\"a\"").is_none());
        for bad in
            ["", "[]", "3", "{\"type\": \"strnig\"}", "{\"pattern\": \"(\"}", "{\"$ref\": \"#/$defs/none\"}"]
        {
            JsonSchema::parse(bad.as_bytes()).expect_err(bad);
        }
    }

    /// On a thread with the stack that a runtime's threads have.
    #[test]
    fn f49_a_schema_that_recurses_is_harmless() {
        let small = || {
            let endless = [
                json!({ "$ref": "#" }),
                json!({ "allOf": [{ "$ref": "#" }] }),
                json!({ "anyOf": [{ "$ref": "#/$defs/a" }], "$defs": { "a": { "not": { "$ref": "#" } } } }),
                json!({ "$dynamicAnchor": "a", "unevaluatedProperties": false, "allOf": [{ "$dynamicRef": "#a" }] }),
            ];
            for schema in &endless {
                // Whether it can be compiled or not, and what it says: it ends.
                if let Ok(schema) = JsonSchema::compile(schema) {
                    let _ = why(&schema, r#"{"a":{"a":{}}}"#);
                }
            }
            // As deep as a schema and a payload can be, each level of the one at each of the other.
            let mut deep = json!({ "items": { "$ref": "#" } });
            for _ in 0..50 {
                deep = json!({ "allOf": [deep] });
            }
            let nested = ["[".repeat(120), "]".repeat(120)].concat();
            assert_eq!(why(&schema(deep), nested), None);
            // Two ways at each level: whoever goes them all needs 2^100 steps.
            let forks = schema(json!({ "$defs": { "a": { "anyOf": [
                { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/a" } },
                { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/a" }, "maxItems": 5 } ] } }, "$ref": "#/$defs/a" }));
            let (_, words) = why(&forks, ["[".repeat(100), "]".repeat(100)].concat()).expect("poison");
            assert!(words.contains("too deep to say where"), "{words}");
            let (_, words) = why(&forks, "[[1]]").expect("poison");
            assert!(words.starts_with("the payload: "), "{words}");
        };
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(small).expect("a thread");
        thread.join().expect("it ends");
    }

    #[test]
    fn a_pattern_that_tries_again_and_again_is_given_up() {
        let pattern = schema(json!({ "pattern": "^(?!x)(a|aa)+(?<=a)b$" }));
        let began = std::time::Instant::now();
        assert!(why(&pattern, format!("\"{}\"", "a".repeat(5_000))).is_some());
        assert!(began.elapsed().as_secs() < 20, "it was not given up");
    }
}
