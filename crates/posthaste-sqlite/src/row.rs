//! The columns of an event, and from a row of the log, of the deferred or of the dead letters to an event.
//!
//! Another column is a line in [`WRITTEN`], one in [`event`], and a migration.
//!
//! Plain SQL passes no code of ours, so a row may hold what no event may: bytes that are no text, an id that
//! is none. That is a defect of this one event, told in words; it never stops the lane (F49).

use crate::columns::{Column, WRITTEN, list};
use crate::connect::slot;
use Column::{Blob, Integer, Text};
use bytes::{Bytes, BytesMut};
use posthaste::admin::LogEvent;
use posthaste::event::{Defect, StoredEvent};
use posthaste::{Event, EventError, Headers, Timestamp};
use rusqlite::Row;
use rusqlite::types::ValueRef;
use uuid::Uuid;

/// A size for [`columns`] that leaves every payload out.
pub(crate) const NO_PAYLOAD: &str = "-1";
/// A size for [`columns`] that leaves none out.
pub(crate) const ANY_PAYLOAD: &str = "9223372036854775807";

/// Places in [`columns`], and how many there are.
const HEADERS: usize = 4;
const APPENDED_AT: usize = WRITTEN.len() + 1;
const SIZE: usize = APPENDED_AT + 1;
pub(crate) const WIDTH: usize = SIZE + 1;

/// The columns that [`event`] reads, with the payload left out where it is above this size. To a relay such
/// an event is dead whatever its bytes are, and must not be loaded.
pub(crate) fn columns(bytes_max: &str) -> String {
    let written = list(|name, _| match name {
        "payload" => format!("case when octet_length(payload) <= {bytes_max} then payload end"),
        name => name.to_owned(),
    });
    format!("seq, {written}, appended_at, octet_length(payload)")
}

/// Puts the columns of an event into a statement that copies one. `/*event*/` are those of a copy;
/// `/*event of the log*/` is what they are made of where the log's row is copied.
pub(crate) fn with_event(sql: &str) -> String {
    let copied = list(|name, column| match column {
        Text(_) => format!("posthaste_text({name})"),
        Blob(_) | Integer(_) => name.to_owned(),
    });
    let of_the_log = format!("seq, posthaste_slot(key, seq), {copied}, appended_at");
    let names = format!("seq, slot, {}, appended_at", list(|name, _| name.to_owned()));
    sql.replace("/*event of the log*/", &of_the_log).replace("/*event*/", &names)
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

/// Payloads of one page, side by side in a few large pieces of memory. Thousands of small ones, made on
/// whichever thread reads and given back on another, leave holes in the heap that add up to more than they
/// hold. A piece is free when all events in it are settled, and those of one page are settled together.
pub(crate) struct Payloads {
    rest: BytesMut,
    piece_bytes: usize,
}

impl Payloads {
    /// A piece grows with its page up to this size.
    const PIECE_BYTES_MAX: usize = 128 << 10;

    /// For a page.
    pub(crate) fn shared() -> Self {
        Self { rest: BytesMut::new(), piece_bytes: 4 << 10 }
    }

    /// For events that are settled one by one: each has memory of its own.
    pub(crate) fn apart() -> Self {
        Self { rest: BytesMut::new(), piece_bytes: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> Bytes {
        // A large one would leave too much of its piece unused.
        if bytes.len() > self.piece_bytes / 4 {
            return Bytes::copy_from_slice(bytes);
        }
        if self.rest.capacity() < bytes.len() {
            self.rest = BytesMut::with_capacity(self.piece_bytes);
            self.piece_bytes = (self.piece_bytes * 2).min(Self::PIECE_BYTES_MAX);
        }
        self.rest.extend_from_slice(bytes);
        self.rest.split().freeze()
    }
}

/// Reads an event from a row that begins with [`columns`].
pub(crate) fn event(
    row: &Row<'_>,
    payload_bytes_max: usize,
    payloads: &mut Payloads,
) -> rusqlite::Result<StoredEvent> {
    let seq: i64 = row.get(0)?;
    let mut defects = Defects(None);
    let id = defects.id(row.get_ref(1)?);
    let topic = defects.text("topic", row.get_ref(2)?).unwrap_or_default();
    let slot = slot(bytes(row.get_ref(3)?), seq);
    let key = defects.text("key", row.get_ref(3)?);
    let headers = defects.headers(row.get_ref(HEADERS)?);
    let content_type = defects.text("content type", row.get_ref(5)?);
    let size: Option<i64> = row.get(SIZE)?;
    let size = size.map_or(0, |size| usize::try_from(size).unwrap_or(0));
    if size > payload_bytes_max {
        defects.0 = Some(Defect::Limit(EventError::PayloadTooLarge { bytes: size, max: payload_bytes_max }));
    }
    let deliver_at: Option<i64> = row.get(7)?;
    Ok(StoredEvent {
        seq,
        slot,
        appended_at: Timestamp(row.get(APPENDED_AT)?),
        event: Event {
            key,
            headers,
            content_type,
            payload: payload(row.get_ref(6)?, payloads),
            deliver_at: deliver_at.map(Timestamp),
            ..Event::bare(id, topic)
        },
        defect: defects.0,
    })
}

/// The same as people look at it: with its headers as they are stored, and the size of its payload.
pub(crate) fn shown(row: &Row<'_>) -> rusqlite::Result<LogEvent> {
    let StoredEvent { seq, appended_at, event, .. } = event(row, usize::MAX, &mut Payloads::apart())?;
    let headers = bytes(row.get_ref(HEADERS)?).map(String::from_utf8_lossy);
    Ok(LogEvent {
        seq,
        id: event.id,
        topic: event.topic,
        key: event.key,
        // Headers that are no JSON are shown as they are: that is why the event is dead.
        headers: headers.map(|text| serde_json::from_str(&text).unwrap_or_else(|_| text.into())),
        content_type: event.content_type,
        payload_bytes: row.get(SIZE)?,
        payload: event.payload.map(Vec::from),
        deliver_at: event.deliver_at,
        appended_at,
    })
}

/// What is wrong with a row; the first thing found is enough.
struct Defects(Option<Defect>);

impl Defects {
    fn note(&mut self, text: String) {
        self.0.get_or_insert(Defect::Row(text));
    }

    fn id(&mut self, value: ValueRef<'_>) -> Uuid {
        let parsed = bytes(value).and_then(|bytes| Uuid::try_parse_ascii(bytes).ok());
        parsed.unwrap_or_else(|| {
            self.note("the id is no UUID".to_owned());
            Uuid::nil()
        })
    }

    fn text(&mut self, what: &str, value: ValueRef<'_>) -> Option<String> {
        let bytes = bytes(value)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Some(text.to_owned()),
            Err(_) => {
                self.note(format!("the {what} is no valid UTF-8"));
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
        }
    }

    fn headers(&mut self, value: ValueRef<'_>) -> Headers {
        let Some(text) = bytes(value) else { return Headers::new() };
        Headers::from_json(text).unwrap_or_else(|why| {
            self.note(why);
            Headers::new()
        })
    }
}

fn bytes(value: ValueRef<'_>) -> Option<&[u8]> {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes),
        _ => None,
    }
}

/// Bytes as they are; a number, which plain SQL may leave in a column of any type, as its digits.
fn payload(value: ValueRef<'_>, payloads: &mut Payloads) -> Option<Bytes> {
    match value {
        ValueRef::Null => None,
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(payloads.put(bytes)),
        ValueRef::Integer(number) => Some(number.to_string().into()),
        ValueRef::Real(number) => Some(number.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_stay_what_they_are_wherever_they_lie() {
        let sizes = [0, 1, 500, 1_024, 1_025, 40_000, 7, 200_000];
        for mut payloads in [Payloads::shared(), Payloads::apart()] {
            let made: Vec<(Vec<u8>, Bytes)> = (0..2_000usize)
                .map(|n| vec![(n % 251) as u8; sizes[n % sizes.len()]])
                .map(|bytes| (bytes.clone(), payloads.put(&bytes)))
                .collect();
            assert!(made.iter().all(|(bytes, put)| bytes == put));
        }
    }
}
