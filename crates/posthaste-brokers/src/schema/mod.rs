//! Schemas of payloads: JSON Schema from files, JSON Schema and Avro from a registry.
//!
//! Each is a [`Validator`](posthaste::schema::Validator). A [`JsonSchema`] is compiled once, at the start,
//! and asks nobody: a route can use it. A [`SchemaRegistry`] reads the wire format of Confluent's
//! serializers (`0`, four bytes of an id, the body), fetches the schema of an id when it first meets it, and
//! keeps it.
//!
//! **Schemas and payloads come from others.** A schema never makes us open a file or a connection: a `$ref`
//! that leads out of its document is refused when it is compiled. What a check may take of memory and stack
//! is bounded, by [`PAYLOAD_BYTES_MAX`], by the depth that the reader of JSON allows, and by the walk in
//! `avro`.
//!
//! | code | means |
//! |---|---|
//! | `payload.not_json` | the payload is no JSON |
//! | `schema.invalid` | it breaks its schema; the words say where and why |
//! | `schema.too_large` | it is larger than what is checked |
//! | `schema.wire` | it does not begin with a zero byte and the id of a schema |
//! | `schema.unknown_id` | the registry does not know the id |
//! | `schema.unsupported` | the registry has a schema that nobody here can check with |
//! | `schema.unavailable` | nobody can say, because the registry is away |

mod avro;
mod json;
mod registry;

pub use json::JsonSchema;
pub use registry::{REGISTRY, RegistryConfig, SchemaRegistry};

use posthaste::schema::{Checked, Violation};

/// The largest payload that is checked. Its tree in memory takes some twenty times as much at worst.
pub const PAYLOAD_BYTES_MAX: usize = 8 << 20;
/// The largest schema.
const SCHEMA_BYTES_MAX: usize = 1 << 20;
/// How much is told of where and why.
const WORDS_MAX: usize = 300;

fn poison(code: &'static str, why: &str) -> Checked {
    Checked::Poison(Violation::new(code, bounded(why)))
}

/// Names in a payload may be of any length.
fn bounded(words: &str) -> String {
    match words.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words.to_owned(),
    }
}

/// A payload that is too large to be looked at.
fn too_large(payload: &[u8]) -> Option<Checked> {
    let mib = PAYLOAD_BYTES_MAX >> 20;
    let why = || format!("it has {} bytes, and no more than {mib} MiB are checked", payload.len());
    (payload.len() > PAYLOAD_BYTES_MAX).then(|| poison("schema.too_large", &why()))
}
