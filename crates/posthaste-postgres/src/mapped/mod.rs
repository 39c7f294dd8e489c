//! Mapped tables: marks, traces, positions and dead letters in tables that a service has already.
//!
//! A service that was designed before us may have a table for each of these, and people who read them.
//! [`InboxTables`] says which: a preset, or a mapping of one's own. The marks then live **there instead of in
//! `inbox`**. Everything else is written beside our own tables, in the same transactions, and never read back
//! for a decision: a `replay_status` that somebody changes by hand does nothing.
//!
//! A foreign mark has no outcome and no position. Both are found where they are anyway: what waits is among
//! the deferred, what is dead has its letter, all else is done. Whoever looks for a mark looks there too.
//!
//! ```text
//! write.rs    every statement and fragment that names a mapped table
//! check.rs    before anything is taken: tables, columns, types, rights; the same for doctor
//! ddl.rs      the tables and grants as text
//! ```
//!
//! What is written beside our own tables, and when, is in `consumer/trace.rs`.
//!
//! Refused: purging these tables. They belong to the service, and others may have rows there.

mod check;
mod ddl;
mod write;

pub(crate) use check::{Access, open, reserve, too_long};
pub use check::{CHECKS, examine};
pub use ddl::sql;
pub(crate) use write::Mapped;

use serde::de::value::MapAccessDeserializer;
use serde::de::{IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// Longest topic and group that the columns hold, in characters. What is longer is refused, never cut.
pub const NAME_CHARS_MAX: usize = 100;
/// Longest id, in characters. Above it stands `sha256:` and the hash.
const ID_CHARS_MAX: usize = 255;

/// Which tables a consumer writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum InboxTables {
    /// Known by name.
    Preset(TablePreset),
    /// Described.
    Mapping(Box<TableMapping>),
    /// The application marks what it has handled, by `admit` and in whichever database. We only look.
    #[serde(skip)]
    MarkedByApp,
}

/// Tables that are known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TablePreset {
    /// Our own, and no others.
    #[default]
    Native,
    /// `sys.request_keys`, `sys.message_traceability`, `sys.consumer_offsets_log` and `sys.dead_letters`.
    Phoenix,
    /// `processed_event_ids`.
    ProcessedEventIds,
}

/// Tables of a service. Those that are left out are not written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TableMapping {
    /// The marks.
    pub request_keys: RequestKeys,
    /// What became of each message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceability: Option<Traceability>,
    /// Positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offsets: Option<OffsetsLog>,
    /// Dead letters, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<LettersTable>,
}

/// The table with the marks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RequestKeys {
    /// Its name.
    pub table: String,
    /// The column that is unique: text, or uuid.
    pub key: String,
    /// What goes into the key. Without `{consumer}` in it only one consumer may use the table.
    pub value: String,
    /// What goes into other columns: text in which `{consumer}`, `{group}`, `{id}`, `{topic}`, `{partition}`
    /// and `{position}` are filled in, or `{now}`.
    pub columns: BTreeMap<String, String>,
}

impl Default for RequestKeys {
    fn default() -> Self {
        Self {
            table: "sys.request_keys".to_owned(),
            key: "request_key".to_owned(),
            value: "{consumer}:{id}".to_owned(),
            columns: BTreeMap::from([("created_at".to_owned(), "{now}".to_owned())]),
        }
    }
}

/// The table with a row for each message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Traceability {
    /// Its name.
    pub table: String,
    /// Whether ids end with `#CONSUMER`. Without it only one consumer may use the table.
    pub suffix: bool,
}

impl Default for Traceability {
    fn default() -> Self {
        Self { table: "sys.message_traceability".to_owned(), suffix: false }
    }
}

/// The table with the positions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct OffsetsLog {
    /// Its name.
    pub table: String,
}

impl Default for OffsetsLog {
    fn default() -> Self {
        Self { table: "sys.consumer_offsets_log".to_owned() }
    }
}

/// The table with dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct LettersTable {
    /// Its name.
    pub table: String,
}

impl Default for LettersTable {
    fn default() -> Self {
        Self { table: "sys.dead_letters".to_owned() }
    }
}

impl Default for InboxTables {
    fn default() -> Self {
        Self::Preset(TablePreset::Native)
    }
}

impl InboxTables {
    /// The tables, if they are not our own.
    #[must_use]
    pub fn mapping(&self) -> Option<TableMapping> {
        match self {
            Self::Mapping(mapping) => Some((**mapping).clone()),
            Self::Preset(TablePreset::Native) | Self::MarkedByApp => None,
            Self::Preset(TablePreset::Phoenix) => Some(TableMapping {
                request_keys: RequestKeys::default(),
                traceability: Some(Traceability::default()),
                offsets: Some(OffsetsLog::default()),
                dead_letters: Some(LettersTable::default()),
            }),
            Self::Preset(TablePreset::ProcessedEventIds) => {
                let request_keys = RequestKeys {
                    table: "processed_event_ids".to_owned(),
                    key: "event_id".to_owned(),
                    value: "{id}".to_owned(),
                    columns: BTreeMap::new(),
                };
                Some(TableMapping { request_keys, ..TableMapping::default() })
            }
        }
    }
}

impl TableMapping {
    /// Whether topics and groups go into columns that are short.
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.traceability.is_some() || self.offsets.is_some() || self.dead_letters.is_some()
    }
}

/// By hand, for the sake of what is said about a word or a key that is none.
impl<'de> Deserialize<'de> for InboxTables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PresetOrMapping;

        impl<'de> Visitor<'de> for PresetOrMapping {
            type Value = InboxTables;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`native`, `phoenix`, `processed-event-ids`, or a table with `request_keys`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<InboxTables, E> {
                TablePreset::deserialize(text.into_deserializer()).map(InboxTables::Preset)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<InboxTables, A::Error> {
                let mapping = TableMapping::deserialize(MapAccessDeserializer::new(map))?;
                Ok(InboxTables::Mapping(Box::new(mapping)))
            }
        }

        deserializer.deserialize_any(PresetOrMapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_are_a_word_or_a_mapping() {
        let read = |value| serde_json::from_value::<InboxTables>(value);
        let phoenix = read(json!("phoenix")).expect("a preset").mapping().expect("mapped");
        assert_eq!(phoenix.offsets.map(|log| log.table).as_deref(), Some("sys.consumer_offsets_log"));
        assert_eq!(read(json!("native")).expect("a preset").mapping(), None);
        let own = read(json!({ "request_keys": { "table": "keys" }, "traceability": { "suffix": true } }));
        let own = own.expect("a mapping").mapping().expect("mapped");
        assert_eq!((own.request_keys.table.as_str(), own.request_keys.key.as_str()), ("keys", "request_key"));
        assert!(own.traceability.is_some_and(|trace| trace.suffix) && own.dead_letters.is_none());
        for (wrong, said) in [
            (json!("phenix"), "unknown variant `phenix`"),
            (json!({ "request_keyz": {} }), "unknown field `request_keyz`"),
            (json!(5), "or a table with `request_keys`"),
        ] {
            let error = read(wrong).expect_err("refused").to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
