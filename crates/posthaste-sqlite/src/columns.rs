//! The columns of an event that its author fills: all that an application needs to append.

use Column::{Blob, Integer, Text};
use posthaste::Event;
use rusqlite::types::{Null, ToSqlOutput};
use std::borrow::Cow;

/// How the value of a column is got from an event, by what it is stored as.
pub(crate) enum Column {
    Text(fn(&Event) -> Option<Cow<'_, str>>),
    Blob(fn(&Event) -> Option<&[u8]>),
    Integer(fn(&Event) -> Option<i64>),
}

/// The columns of an event that its author fills, in the order that an append writes and the relay reads.
pub(crate) const WRITTEN: [(&str, Column); 7] = [
    ("id", Text(|event| Some(event.id.to_string().into()))),
    ("topic", Text(|event| Some(event.topic.as_str().into()))),
    ("key", Text(|event| event.key.as_deref().map(Cow::from))),
    ("headers", Text(|event| event.headers.to_json().map(Cow::from))),
    ("content_type", Text(|event| event.content_type.as_deref().map(Cow::from))),
    ("payload", Blob(|event| event.payload.as_deref())),
    ("deliver_at", Integer(|event| event.deliver_at.map(|at| at.0))),
];

impl Column {
    /// Its value, for a statement.
    pub(crate) fn of<'e>(&self, event: &'e Event) -> ToSqlOutput<'e> {
        match self {
            Text(of) => match of(event) {
                Some(Cow::Owned(text)) => text.into(),
                Some(Cow::Borrowed(text)) => text.into(),
                None => Null.into(),
            },
            Blob(of) => ToSqlOutput::Borrowed(of(event).into()),
            Integer(of) => of(event).map_or(Null.into(), ToSqlOutput::from),
        }
    }
}

/// A list for a statement, with an entry for each column that an author fills.
pub(crate) fn list(entry: impl Fn(&str, &Column) -> String) -> String {
    WRITTEN.iter().map(|(name, column)| entry(name, column)).collect::<Vec<_>>().join(", ")
}
