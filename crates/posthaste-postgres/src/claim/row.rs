//! From a claimed row to an event.

use crate::row::Micros;
use bytes::Bytes;
use posthaste::event::{Defect, EventError, StoredEvent};
use posthaste::{Event, Headers, Limits, Timestamp};
use tokio_postgres::Row;

/// What is remembered of a row in hand.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// Its key, as text.
    pub(super) id: String,
    /// The mark it was claimed with.
    pub(super) mark: Option<String>,
    /// Its status before.
    pub(super) was: Option<String>,
    /// The mark before.
    pub(super) was_at: Option<String>,
    /// Attempts spent; `None`: the table does not count them.
    pub(super) attempts: Option<u32>,
    /// Its place in the claim.
    pub(super) n: i64,
}

/// What rows of a layout have in common.
pub(super) struct Shape {
    pub(super) content_type: Option<String>,
    /// Names of the headers made of columns, in the order of the statement.
    pub(super) header_names: Vec<String>,
    pub(super) limits: Limits,
}

/// Reads a row. Whatever is wrong with its contents is a defect of that event, not an error.
pub(super) fn read(
    row: &Row,
    shape: &Shape,
    seq: i64,
) -> Result<(StoredEvent, Claimed), tokio_postgres::Error> {
    let mut defect = None;
    let mut headers = match row.try_get::<_, Option<&str>>("headers")? {
        None => Headers::new(),
        Some(text) => Headers::from_json(text.as_bytes()).unwrap_or_else(|why| {
            defect = Some(Defect::Row(why));
            Headers::new()
        }),
    };
    let extra: Vec<Option<String>> = row.try_get("extra")?;
    for (name, value) in shape.header_names.iter().zip(extra) {
        if let Some(value) = value {
            headers.set(name.as_str(), value);
        }
    }
    let idempotency_key: Option<String> = row.try_get("idempotency_key")?;
    if let Some(key) = &idempotency_key {
        headers.set("idempotency-key", key.as_str());
    }
    let (payload, bytes): (Option<&[u8]>, Option<i32>) = (row.try_get("payload")?, row.try_get("bytes")?);
    if let (None, Some(bytes)) = (payload, bytes) {
        let max = shape.limits.payload_bytes_max;
        defect =
            Some(Defect::Limit(EventError::PayloadTooLarge { bytes: bytes.unsigned_abs() as usize, max }));
    }
    // An empty key is no key: a column that is NOT NULL DEFAULT '' means the same.
    let key: Option<String> = row.try_get::<_, Option<String>>("key")?.filter(|key| !key.is_empty());
    let attempts: Option<i32> = row.try_get("attempts")?;
    let event = Event {
        id: row.try_get("event_id")?,
        // Without a topic there is nowhere to go: an empty one is refused by name.
        topic: row.try_get::<_, Option<String>>("topic")?.unwrap_or_default(),
        key,
        headers,
        content_type: shape.content_type.clone(),
        payload: payload.map(Bytes::copy_from_slice),
        deliver_at: None,
        idempotency_key: None,
    };
    let appended_at = Timestamp(row.try_get::<_, Micros>("created")?.0);
    let claimed = Claimed {
        id: row.try_get("id")?,
        mark: row.try_get("mark")?,
        was: row.try_get("was")?,
        was_at: row.try_get("was_at")?,
        attempts: attempts.map(i32::unsigned_abs),
        n: row.try_get("n")?,
    };
    Ok((StoredEvent { seq, slot: 0, appended_at, event, defect }, claimed))
}
