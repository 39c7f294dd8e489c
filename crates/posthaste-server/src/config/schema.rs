//! The JSON schema of posthaste.toml, for editors. It comes from the very types that the file is read into,
//! so that it cannot know other keys than they do.
//!
//! Some places are not what their types say, because the file is read in two steps: a single outbox may be
//! a table instead of a list of one, a sink's table belongs half to us and half to its broker, and a
//! consumer's half to us and half to the engine.

use super::consumer::ConsumerOwn;
use super::section::{File, SINK_OWN, SinkOwn};
use posthaste::consumer::ConsumerSettings;
use posthaste_brokers::{SinkConfig, SourceConfig};
#[cfg(feature = "sqlite")]
use posthaste_sqlite::broker::LocalConfig;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The schema of the whole file.
pub(crate) fn schema() -> Value {
    // Inline: a sink's variants get keys of ours, and one definition may not be shared with anything else.
    let settings = || SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let of = |schema: schemars::Schema| schema.to_value();
    let mut file = of(settings().into_generator().into_root_schema_for::<File>());
    let own = of(settings().into_generator().into_root_schema_for::<SinkOwn>());
    let sink = of(settings().into_generator().into_root_schema_for::<SinkConfig>());
    let source = of(settings().into_generator().into_root_schema_for::<SourceConfig>());
    #[cfg(feature = "sqlite")]
    let [sink, source] = [sink, source].map(|kinds| {
        with_local(kinds, of(settings().into_generator().into_root_schema_for::<LocalConfig>()))
    });
    file["title"] = json!("posthaste.toml");
    let outbox = file["properties"]["outbox"]["items"].take();
    let list = json!({ "type": "array", "items": outbox });
    file["properties"]["outbox"] = json!({ "anyOf": [outbox, list] });
    file["properties"]["sources"] =
        json!({ "type": "object", "additionalProperties": { "oneOf": source["oneOf"] } });
    let mut consumer = of(settings().into_generator().into_root_schema_for::<ConsumerOwn>());
    let mut tuned = of(settings().into_generator().into_root_schema_for::<ConsumerSettings>());
    if let (Some(keys), Some(more)) =
        (consumer["properties"].as_object_mut(), tuned["properties"].as_object_mut())
    {
        keys.append(more);
    }
    file["properties"]["consumers"] = json!({ "type": "object", "additionalProperties": consumer });
    file["properties"]["sinks"] = json!({ "type": "object", "additionalProperties": with_own(sink, &own) });
    file
}

/// What holds for a sink's keys that nobody set, as the schema knows it: a sink's table is kept as it was
/// written.
pub(super) fn add_sink_defaults(config: &mut Value) {
    let schema = schema();
    let kinds = schema["properties"]["sinks"]["additionalProperties"]["oneOf"].as_array();
    for sink in config["sinks"].as_object_mut().into_iter().flat_map(|sinks| sinks.values_mut()) {
        let Some(table) = sink.as_object_mut() else { continue };
        let kind = kinds.and_then(|kinds| {
            kinds.iter().find(|kind| Some(&kind["properties"]["type"]["const"]) == table.get("type"))
        });
        let keys = kind.and_then(|kind| kind["properties"].as_object()).into_iter().flatten();
        for (key, default) in keys.filter_map(|(key, about)| Some((key, about.get("default")?))) {
            let is_nothing = default.is_null() || default.as_object().is_some_and(serde_json::Map::is_empty);
            if !is_nothing && !table.contains_key(key) {
                table.insert(key.clone(), default.clone());
            }
        }
    }
}

/// The local broker is one more kind.
#[cfg(feature = "sqlite")]
fn with_local(mut sink: Value, mut local: Value) -> Value {
    local["properties"]["type"] = json!({ "type": "string", "const": super::sink::LOCAL });
    local["required"] = json!(["type"]);
    let mut kinds = sink["oneOf"].as_array().cloned().unwrap_or_default();
    kinds.push(local);
    sink["oneOf"] = json!(kinds);
    sink
}

/// Each kind of sink also takes the keys that all sinks have.
fn with_own(mut sink: Value, own: &Value) -> Value {
    for kind in sink["oneOf"].as_array_mut().into_iter().flatten() {
        kind["properties"]["type"]["description"] = json!("What kind of sink it is.");
        for key in SINK_OWN {
            kind["properties"][key] = own["properties"][key].clone();
        }
    }
    sink["oneOf"].take().as_array().map_or(Value::Null, |kinds| json!({ "oneOf": kinds }))
}
