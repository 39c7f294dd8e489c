//! From a claimed row to an event.

use crate::row::Micros;
use crate::session::SqlResult;
use bytes::{Bytes, BytesMut};
use posthaste::event::{Defect, EventError, StoredEvent};
use posthaste::{Event, Headers, Limits, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// A moment as the server counts it. It goes back as it came: nothing is rounded, and infinity stays
/// infinity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moment(pub(super) i64);

impl<'a> FromSql<'a> for Moment {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(i64::from_be_bytes(raw.try_into()?)))
    }

    accepts!(TIMESTAMPTZ);
}

impl ToSql for Moment {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

/// The bytes of a payload's column.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        // jsonb has one byte of version, then text.
        let text = if *kind == Type::JSONB { raw.get(1..).unwrap_or_default() } else { raw };
        Ok(Self(text))
    }

    accepts!(BYTEA, TEXT, VARCHAR, BPCHAR, JSON, JSONB);
}

/// What is remembered of a row in hand.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// Its key, as text.
    pub(super) id: String,
    /// The mark it was claimed with.
    pub(super) mark: Option<Moment>,
    /// Its status before.
    pub(super) was: Option<String>,
    /// The mark before.
    pub(super) was_at: Option<Moment>,
    /// Attempts spent. `None` means that the table does not count them.
    pub(super) attempts: Option<u32>,
    /// An attempt was charged when it was taken, and is given back when it returns.
    pub(super) charged: bool,
    /// Its place in the claim.
    pub(super) n: i64,
}

impl Claimed {
    /// What its attempts are set back to.
    pub(super) fn to_restore(&self) -> Option<i32> {
        self.attempts.filter(|_| self.charged).map(|spent| i32::try_from(spent).unwrap_or(i32::MAX))
    }
}

/// What rows of a layout have in common.
pub(super) struct Shape {
    pub(super) content_type: Option<String>,
    /// Names of the headers made of columns, in the order of the statement.
    pub(super) header_names: Vec<String>,
    pub(super) limits: Limits,
}

/// Reads a row, by the places of its columns. If its contents are wrong, that is a defect of the event and
/// not an error.
pub(super) fn read(row: &Row, shape: &Shape, seq: i64) -> SqlResult<(StoredEvent, Claimed)> {
    let (headers, mut defect) = headers(row, shape)?;
    let payload = row.try_get::<_, Option<Raw<'_>>>(4)?.map(|raw| raw.0);
    let left_behind = row.try_get::<_, Option<i32>>(5)?.map(|bytes| bytes.unsigned_abs() as usize);
    let max = shape.limits.payload_bytes_max;
    if let Some(bytes) = left_behind.or(payload.map(<[u8]>::len)).filter(|bytes| *bytes > max) {
        defect = Some(Defect::Limit(EventError::PayloadTooLarge { bytes, max }));
    }
    // An empty key is no key. A column that is NOT NULL DEFAULT '' means the same.
    let key: Option<String> = row.try_get::<_, Option<String>>(3)?.filter(|key| !key.is_empty());
    // Without a topic there is nowhere to go. An empty one is refused by name.
    let topic = row.try_get::<_, Option<String>>(2)?.unwrap_or_default();
    let event = Event {
        key,
        headers,
        content_type: shape.content_type.clone(),
        payload: payload.filter(|payload| payload.len() <= max).map(Bytes::copy_from_slice),
        ..Event::bare(row.try_get(1)?, topic)
    };
    let appended_at = Timestamp(row.try_get::<_, Micros>(8)?.0);
    let claimed = Claimed {
        id: row.try_get(0)?,
        mark: row.try_get(11)?,
        was: row.try_get(12)?,
        was_at: row.try_get(13)?,
        attempts: row.try_get::<_, Option<i32>>(9)?.map(i32::unsigned_abs),
        charged: false,
        n: row.try_get(14)?,
    };
    Ok((StoredEvent { seq, slot: 0, appended_at, event, defect }, claimed))
}

/// Headers of the row's own, of its columns, and of its idempotency key.
fn headers(row: &Row, shape: &Shape) -> SqlResult<(Headers, Option<Defect>)> {
    let mut defect = None;
    let mut headers = match row.try_get::<_, Option<&str>>(6)? {
        None => Headers::new(),
        Some(text) => Headers::from_json(text.as_bytes()).unwrap_or_else(|why| {
            defect = Some(Defect::Row(why));
            Headers::new()
        }),
    };
    if !shape.header_names.is_empty() {
        let extra: Vec<Option<String>> = row.try_get(7)?;
        for (name, value) in shape.header_names.iter().zip(extra) {
            if let Some(value) = value {
                headers.set(name.as_str(), value);
            }
        }
    }
    if let Some(key) = row.try_get::<_, Option<&str>>(10)? {
        headers.set("idempotency-key", key);
    }
    Ok((headers, defect))
}
