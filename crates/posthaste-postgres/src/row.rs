//! From a row of the log or of the deferred to an event, without a detour through text.

use bytes::Bytes;
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

/// Columns of an event from `at` on: seq, slot, id, topic, key, headers, content_type, payload,
/// deliver_at, appended_at. The payload may be left out by the query when it is large.
pub(crate) fn event(row: &Row, at: usize) -> Result<StoredEvent, tokio_postgres::Error> {
    let mut defect = None;
    let headers = match row.try_get::<_, Option<JsonText<'_>>>(at + 5)? {
        None => Headers::new(),
        Some(JsonText(text)) => Headers::from_json(text).unwrap_or_else(|why| {
            defect = Some(Defect::Row(why));
            Headers::new()
        }),
    };
    let payload: Option<&[u8]> = row.try_get(at + 7)?;
    let deliver_at: Option<Micros> = row.try_get(at + 8)?;
    Ok(StoredEvent {
        seq: row.try_get(at)?,
        slot: row.try_get(at + 1)?,
        appended_at: Timestamp(row.try_get::<_, Micros>(at + 9)?.0),
        event: Event {
            id: row.try_get(at + 2)?,
            topic: row.try_get(at + 3)?,
            key: row.try_get(at + 4)?,
            headers,
            content_type: row.try_get(at + 6)?,
            payload: payload.map(Bytes::copy_from_slice),
            deliver_at: deliver_at.map(|micros| Timestamp(micros.0)),
            idempotency_key: None,
        },
        defect,
    })
}
