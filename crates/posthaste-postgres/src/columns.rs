//! The columns of an event that its author fills, once.
//!
//! Every adapter of `append` binds what this list names, and the role of an application may write it.
//! `row.rs` reads it back, and statements copy it where they say `/*event*/`. Another column is a line here,
//! one in the reader, and a migration.

use Value::{Bytes, Json, Text, Time, Uuid};
use posthaste::Event;

/// How the value of a column is got from an event, by the type it is sent with.
pub(crate) enum Value {
    Uuid(fn(&Event) -> uuid::Uuid),
    Text(fn(&Event) -> Option<&str>),
    /// JSON, sent as text.
    Json(fn(&Event) -> Option<String>),
    Bytes(fn(&Event) -> Option<&[u8]>),
    /// Microseconds since 1970. A double, which `to_timestamp` takes, holds them exactly for 285 years.
    Time(fn(&Event) -> Option<i64>),
}

/// The columns, in the order that an append binds and [`crate::row`] reads.
pub(crate) const WRITTEN: [(&str, Value); 7] = [
    ("id", Uuid(|event| event.id)),
    ("topic", Text(|event| Some(&event.topic))),
    ("key", Text(|event| event.key.as_deref())),
    ("headers", Json(|event| event.headers.to_json())),
    ("content_type", Text(|event| event.content_type.as_deref())),
    ("payload", Bytes(|event| event.payload.as_deref())),
    ("deliver_at", Time(|event| event.deliver_at.map(|at| at.0))),
];

/// A list for a statement, with an entry for each column.
pub(crate) fn list(entry: impl Fn(usize, &str, &Value) -> String) -> String {
    let entries = WRITTEN.iter().enumerate();
    entries.map(|(index, (name, value))| entry(index + 1, name, value)).collect::<Vec<_>>().join(", ")
}

/// The names as a list.
pub(crate) fn names() -> String {
    list(|_, name, _| name.to_owned())
}

impl Value {
    /// The type it is sent with.
    pub(crate) fn sent_as(&self) -> &'static str {
        match self {
            Uuid(_) => "uuid",
            Text(_) | Json(_) => "text",
            Bytes(_) => "bytea",
            Time(_) => "bigint",
        }
    }

    /// What is stored of an expression that was sent.
    pub(crate) fn stored(&self, sent: &str) -> String {
        match self {
            Uuid(_) | Text(_) | Bytes(_) => sent.to_owned(),
            Json(_) => format!("{sent}::jsonb"),
            Time(_) => format!("to_timestamp({sent}::float8 / 1e6)"),
        }
    }
}
