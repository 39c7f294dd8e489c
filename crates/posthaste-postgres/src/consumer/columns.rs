//! Messages as the columns of a statement, and back from a row.

use crate::row::Micros;
use bytes::Bytes;
use posthaste::admin::history::History;
use posthaste::consumer::headers;
use posthaste::consumer::store::Work;
use posthaste::event::{MESSAGE_ID_HEADER, Timestamp};
use posthaste::source::{Delivery, Partition, Received, Ticket};
use std::sync::Arc;
use tokio_postgres::Row;
use uuid::Uuid;

/// Longest text of an error, and of a stack, in a row.
pub(crate) const ERROR_BYTES_MAX: usize = 8 << 10;
pub(crate) const STACK_BYTES_MAX: usize = 64 << 10;

/// Where messages come from: a list for each column.
pub(crate) struct Places<'a> {
    pub(crate) ids: Vec<&'a str>,
    pub(crate) topics: Vec<&'a str>,
    pub(crate) order_ids: Vec<Option<Uuid>>,
    pub(crate) partitions: Vec<i32>,
    pub(crate) positions: Vec<Option<i64>>,
}

impl<'a> Places<'a> {
    pub(crate) fn of(works: impl IntoIterator<Item = &'a Work>) -> Self {
        let (ids, topics, order_ids, partitions, positions) = Default::default();
        let mut places = Self { ids, topics, order_ids, partitions, positions };
        for work in works {
            places.ids.push(&work.id);
            places.topics.push(&work.delivery.partition().topic);
            places.order_ids.push(work.order_id);
            places.partitions.push(work.delivery.partition().number);
            places.positions.push(work.delivery.position);
        }
        places
    }
}

/// The rest of one message, for its copy.
pub(crate) struct Copy<'a> {
    pub(crate) address: Option<String>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) headers: String,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) published_at: Option<i64>,
    pub(crate) attempts: i32,
    pub(crate) history: Option<String>,
}

impl<'a> Copy<'a> {
    pub(crate) fn of(work: &'a Work) -> Self {
        let (delivery, message) = (&work.delivery, &work.delivery.message);
        Self {
            address: delivery.address.as_deref().map(|address| text(address, usize::MAX)),
            key: message.key.as_deref(),
            headers: headers::to_json(&message.headers),
            payload: message.payload.as_deref(),
            published_at: delivery.published_at.map(|at| at.0),
            attempts: count(work.attempts),
            history: work.history.to_json(),
        }
    }
}

/// A deferred message as its row has it.
pub(crate) struct Deferred {
    pub(crate) seq: i64,
    pub(crate) work: Work,
    /// Attempts as the row has them: one that is under way may be counted already.
    pub(crate) attempts: i32,
    /// When the row was read, by the database's clock.
    pub(crate) read_at: Timestamp,
}

impl Deferred {
    pub(crate) fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let position: Option<i64> = row.try_get("position")?;
        let bytes =
            |name| row.try_get::<_, Option<&[u8]>>(name).map(|bytes| bytes.map(Bytes::copy_from_slice));
        let time = |name| row.try_get::<_, Option<Micros>>(name).map(|at| at.map(|at| Timestamp(at.0)));
        let mut message = Received {
            headers: headers::from_json(row.try_get("headers")?),
            key: bytes("key")?,
            payload: bytes("payload")?,
            ..Received::default()
        };
        let partition = Partition::new(row.try_get::<_, String>("topic")?, row.try_get("partition")?);
        let id: Arc<str> = row.try_get::<_, &str>("message_id")?.into();
        message.id = Some(message.header(MESSAGE_ID_HEADER).unwrap_or(&id).to_owned());
        let delivery = Delivery {
            ticket: Ticket { partition, epoch: 0, number: position.unwrap_or(0) },
            position,
            redelivery: None,
            published_at: time("published_at")?,
            address: row.try_get("address")?,
            message,
        };
        let history: Option<&str> = row.try_get("history")?;
        let attempts: i32 = row.try_get("attempts")?;
        let work = Work {
            delivery: Arc::new(delivery),
            id,
            order_id: row.try_get("order_id")?,
            attempts: attempts.unsigned_abs(),
            history: history.map(History::from_json).unwrap_or_default(),
        };
        let read_at = time("now")?.unwrap_or_default();
        Ok(Self { seq: row.try_get("seq")?, work, attempts, read_at })
    }
}

/// A number that a column can hold.
pub(crate) fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A text that PostgreSQL can keep: without zero bytes, and not without end.
pub(crate) fn text(text: &str, bytes_max: usize) -> String {
    let mut kept = text.replace('\0', "\u{fffd}");
    kept.truncate(kept.floor_char_boundary(bytes_max));
    kept
}

pub(crate) fn error_text(error: &str) -> String {
    text(error, ERROR_BYTES_MAX)
}

pub(crate) fn stack_text(stack: Option<&str>) -> Option<String> {
    stack.map(|stack| text(stack, STACK_BYTES_MAX))
}
