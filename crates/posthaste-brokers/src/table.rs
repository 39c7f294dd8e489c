//! A sink's table: which kind it is, and the rest of it.
//!
//! The kind is read where it stands, so that an error of it names the key `type`. The rest is kept as it is,
//! for the module of that kind.

use crate::kinds::built_in;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::fmt;

/// Kinds that have no broker.
const WITHOUT_BROKER: [&str; 2] = ["null", "stdout"];

pub(crate) struct SinkTable {
    pub(crate) kind: &'static str,
    pub(crate) rest: Map<String, Value>,
}

impl<'de> Deserialize<'de> for SinkTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SinkTableVisitor)
    }
}

struct SinkTableVisitor;

impl<'de> Visitor<'de> for SinkTableVisitor {
    type Value = SinkTable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table with a type")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SinkTable, A::Error> {
        let (mut kind, mut rest) = (None, Map::new());
        while let Some(key) = map.next_key::<String>()? {
            if key == "type" {
                kind = Some(map.next_value::<KindName>()?.0);
            } else {
                rest.insert(key, map.next_value()?);
            }
        }
        Ok(SinkTable { kind: kind.ok_or_else(|| A::Error::missing_field("type"))?, rest })
    }
}

/// A kind that this build has.
struct KindName(&'static str);

impl<'de> Deserialize<'de> for KindName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = || WITHOUT_BROKER.into_iter().chain(built_in());
        known().find(|kind| *kind == name).map(Self).ok_or_else(|| {
            let known = known().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", ");
            D::Error::custom(format_args!("unknown variant `{name}`, expected one of {known}"))
        })
    }
}
