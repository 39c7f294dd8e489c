//! From a row of the log, of the deferred or of the dead letters to an event, without a detour through text.
//!
//! Statements say `/*event*/` where the columns of an event are meant. [`with_event`] puts them in, [`event`]
//! reads them.

use crate::columns::{WRITTEN, list};
use bytes::Bytes;
use posthaste::admin::LogEvent;
use posthaste::event::{Defect, StoredEvent};
use posthaste::{Event, Headers, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

/// Microseconds between 1970, where our time begins, and 2000, where the server's does.
const EPOCH_2000: i64 = 946_684_800_000_000;

/// A `timestamptz`, as microseconds.
pub(crate) struct Micros(pub(crate) i64);

impl<'a> FromSql<'a> for Micros {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let since_2000 = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(since_2000.saturating_add(EPOCH_2000)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TIMESTAMPTZ
    }
}

/// The text of a `jsonb`, not parsed.
struct JsonText<'a>(&'a [u8]);

impl<'a> FromSql<'a> for JsonText<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        // One byte of version, then text.
        Ok(Self(raw.get(1..).unwrap_or_default()))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSONB
    }
}

/// Places in [`columns`], and how many there are.
const HEADERS: usize = 5;
const APPENDED_AT: usize = 2 + WRITTEN.len();
pub(crate) const WIDTH: usize = APPENDED_AT + 1;

/// The columns that [`event`] reads, each with this before its name, and the payload as this expression.
pub(crate) fn columns(table: &str, payload: &str) -> String {
    let written = list(|_, name, _| match name {
        "payload" => payload.to_owned(),
        name => format!("{table}{name}"),
    });
    format!("{table}seq, {table}slot, {written}, {table}appended_at")
}

/// Puts the columns of an event into a statement: for `/*event*/`, for `/*o.event*/` (those of table `o`),
/// and for `/*event without payload*/`.
pub(crate) fn with_event(sql: &str) -> String {
    let sql = sql.replace("/*event without payload*/", &columns("", "null::bytea"));
    let (mut text, mut rest) = (String::new(), &*sql);
    while let Some((before, after)) = rest.split_once("event*/") {
        let (before, table) = before.rsplit_once("/*").unwrap_or((before, ""));
        text.push_str(before);
        text.push_str(&columns(table, &format!("{table}payload")));
        rest = after;
    }
    text + rest
}

/// The statement of a file, [`with_event`], made once.
macro_rules! event_sql {
    ($path:literal) => {{
        static TEXT: std::sync::LazyLock<String> =
            std::sync::LazyLock::new(|| crate::row::with_event(include_str!($path)));
        TEXT.as_str()
    }};
}
pub(crate) use event_sql;

/// An event from a row that begins with its columns. A query may leave a large payload out.
pub(crate) fn event(row: &Row) -> Result<StoredEvent, tokio_postgres::Error> {
    let mut defect = None;
    let headers = match row.try_get::<_, Option<JsonText<'_>>>(HEADERS)? {
        None => Headers::new(),
        Some(JsonText(text)) => Headers::from_json(text).unwrap_or_else(|why| {
            defect = Some(Defect::Row(why));
            Headers::new()
        }),
    };
    let payload: Option<&[u8]> = row.try_get(7)?;
    let deliver_at: Option<Micros> = row.try_get(8)?;
    Ok(StoredEvent {
        seq: row.try_get(0)?,
        slot: row.try_get(1)?,
        appended_at: Timestamp(row.try_get::<_, Micros>(APPENDED_AT)?.0),
        event: Event {
            key: row.try_get(4)?,
            headers,
            content_type: row.try_get(6)?,
            payload: payload.map(Bytes::copy_from_slice),
            deliver_at: deliver_at.map(|micros| Timestamp(micros.0)),
            ..Event::bare(row.try_get(2)?, row.try_get::<_, String>(3)?)
        },
        defect,
    })
}

/// The same as people look at it: with its headers as they are stored, and the size of its payload.
pub(crate) fn shown(row: &Row) -> Result<LogEvent, tokio_postgres::Error> {
    let StoredEvent { seq, appended_at, event, .. } = event(row)?;
    Ok(LogEvent {
        seq,
        id: event.id,
        topic: event.topic,
        key: event.key,
        headers: row.try_get(HEADERS)?,
        content_type: event.content_type,
        payload_bytes: row.try_get("payload_bytes")?,
        payload: event.payload.map(Vec::from),
        deliver_at: event.deliver_at,
        appended_at,
    })
}
