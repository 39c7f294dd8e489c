//! What is checked of payloads: `validate` of a route, `schema` of a consumer.
//!
//! Schemas are read and compiled with the configuration, so that one that cannot be used is told with its
//! file and the line that names it, before anything starts. In a build without the feature `schemas` the
//! keys are known and refused: whoever wrote them must not believe that something is checked.

use posthaste::consumer::{ConsumerSettings, Filter};
use posthaste::route::Validate;
use posthaste::schema::{SchemaChecks, SharedValidator, Validator};
#[cfg(feature = "schemas")]
use posthaste_brokers::schema::{JsonSchema as CompiledSchema, RegistryConfig, SchemaRegistry};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a problem is told: the key, from the table on that is looked at, and the words.
pub(crate) type Tell<'a> = &'a mut dyn FnMut(&str, String);

/// `validate` of a route: a word, or a table that names a schema.
#[derive(Clone, Default, PartialEq)]
pub(crate) enum ValidateSection {
    #[default]
    None,
    Json,
    Schema(SchemaFile),
}

/// A schema in a file.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SchemaFile {
    /// A file with a JSON Schema.
    pub(crate) json_schema: PathBuf,
}

const WORDS: &[&str] = &["none", "json"];

impl Serialize for ValidateSection {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => out.serialize_str(WORDS[0]),
            Self::Json => out.serialize_str(WORDS[1]),
            Self::Schema(file) => file.serialize(out),
        }
    }
}

impl<'de> Deserialize<'de> for ValidateSection {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct WordOrTable;

        impl<'de> Visitor<'de> for WordOrTable {
            type Value = ValidateSection;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", \"json\" or { json_schema = \"FILE\" }")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<ValidateSection, E> {
                match word {
                    "none" => Ok(ValidateSection::None),
                    "json" => Ok(ValidateSection::Json),
                    other => Err(E::unknown_variant(other, WORDS)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<ValidateSection, A::Error> {
                SchemaFile::deserialize(MapAccessDeserializer::new(table)).map(ValidateSection::Schema)
            }
        }
        input.deserialize_any(WordOrTable)
    }
}

impl ValidateSection {
    /// For editors.
    pub(crate) fn schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let file = generator.subschema_for::<SchemaFile>();
        schemars::json_schema!({ "anyOf": [{ "type": "string", "enum": WORDS }, file] })
    }

    /// The check itself. What is wrong with a schema is a problem of the file, and then there is none.
    pub(crate) fn resolve(&self, tell: Tell<'_>) -> Validate {
        match self {
            Self::None => Validate::None,
            Self::Json => Validate::Json,
            Self::Schema(file) => match compile(&file.json_schema) {
                Ok(schema) => Validate::Schema(SharedValidator(schema)),
                Err(why) => {
                    tell("validate.json_schema", why);
                    Validate::None
                }
            },
        }
    }
}

/// One entry of a consumer's `schema`. Lists that are empty take everything; the first entry that takes a
/// message applies.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SchemaSection {
    /// Topics, exact or with a last `*`.
    pub(crate) topics: Vec<String>,
    /// Addresses (subjects, routing keys), in the same way.
    pub(crate) addresses: Vec<String>,
    /// Types of messages, in the same way.
    pub(crate) types: Vec<String>,
    /// A file with a JSON Schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) json_schema: Option<PathBuf>,
    /// The registry that has the schemas: payloads name theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) registry: Option<RegistryTable>,
}

#[cfg(feature = "schemas")]
pub(crate) type RegistryTable = RegistryConfig;
/// It is refused, whatever stands in it.
#[cfg(not(feature = "schemas"))]
pub(crate) type RegistryTable = serde_json::Value;

/// The checks of a consumer.
pub(crate) fn checks(
    sections: &[SchemaSection],
    settings: &ConsumerSettings,
    require_tls: bool,
    tell: Tell<'_>,
) -> SchemaChecks {
    let mut schemas = Vec::new();
    for (index, section) in sections.iter().enumerate() {
        let SchemaSection { topics, addresses, types, json_schema, registry } = section.clone();
        let made = match (&json_schema, &registry) {
            (Some(file), None) => compile(file).map_err(|why| (".json_schema".to_owned(), why)),
            (None, Some(table)) => ask(table, settings, require_tls)
                .map_err(|(key, why)| (format!(".registry.{key}"), format!("registry.{why}"))),
            _ => {
                let why = "a schema is a `json_schema` or a `registry`: write one of them";
                Err((String::new(), why.to_owned()))
            }
        };
        match made {
            Ok(validator) => schemas.push((Filter { topics, addresses, types }, validator)),
            Err((key, why)) => tell(&format!("schema[{index}]{key}"), why),
        }
    }
    SchemaChecks::new(schemas)
}

#[cfg(feature = "schemas")]
pub(crate) fn compile(file: &Path) -> Result<Arc<dyn Validator>, String> {
    let schema = CompiledSchema::read(file).map_err(|error| error.to_string())?;
    Ok(Arc::new(schema))
}

/// The error has the key that is wrong.
#[cfg(feature = "schemas")]
fn ask(
    table: &RegistryTable,
    settings: &ConsumerSettings,
    require_tls: bool,
) -> Result<Arc<dyn Validator>, (&'static str, String)> {
    let config = RegistryConfig { require_tls: table.require_tls || require_tls, ..table.clone() };
    let (its, ours) = (config.timeout_ms, settings.handler_timeout_ms);
    if its.saturating_mul(2) > ours {
        let why = "it is asked in the handler's time, and a slow registry would count as a slow handler";
        let most = format!("timeout_ms = {its} must be at most half of handler_timeout_ms = {ours}: {why}");
        return Err(("timeout_ms", most));
    }
    let registry = SchemaRegistry::new(&config).map_err(|error| (error.option_name(), error.to_string()))?;
    Ok(Arc::new(registry))
}

/// What is said about a schema in a build that has none.
#[cfg(not(feature = "schemas"))]
const LEFT_OUT: &str = "this binary was built without `schemas`, and nothing would be checked: build it with \
                        `--features schemas`, or with `--features full`";

#[cfg(not(feature = "schemas"))]
pub(crate) fn compile(_: &Path) -> Result<Arc<dyn Validator>, String> {
    Err(LEFT_OUT.to_owned())
}

#[cfg(not(feature = "schemas"))]
fn ask(
    _: &RegistryTable,
    _: &ConsumerSettings,
    _: bool,
) -> Result<Arc<dyn Validator>, (&'static str, String)> {
    Err(("url", LEFT_OUT.to_owned()))
}

/// The first file that cannot be used, of those that registries name: its place, its key, and why.
#[cfg(feature = "schemas")]
pub(crate) fn check_files(sections: &[SchemaSection]) -> Option<(String, &'static str, String)> {
    sections.iter().enumerate().find_map(|(index, section)| {
        let error = section.registry.as_ref()?.check_files().err()?;
        Some((format!("schema[{index}].registry"), error.option_name(), error.to_string()))
    })
}

#[cfg(not(feature = "schemas"))]
pub(crate) fn check_files(_: &[SchemaSection]) -> Option<(String, &'static str, String)> {
    None
}
