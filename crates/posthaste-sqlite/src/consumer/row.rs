//! A message as the tables keep it, and back.

use super::InboxSetup;
use crate::clock::{NEVER, now};
use bytes::Bytes;
use posthaste::Timestamp;
use posthaste::admin::history::History;
use posthaste::consumer::store::Work;
use posthaste::consumer::{Failure, headers};
use posthaste::event::MESSAGE_ID_HEADER;
use posthaste::source::{Delivery, Partition, Received, Ticket};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::sync::Arc;
use uuid::Uuid;

/// Bytes of an error and of a stack that are kept. They come from anywhere.
const ERROR_BYTES_MAX: usize = 8 << 10;
const STACK_BYTES_MAX: usize = 64 << 10;

/// A deferred message.
pub(super) struct Waiting {
    pub(super) seq: i64,
    pub(super) work: Work,
    pub(super) holds: bool,
    pub(super) repeat: bool,
}

/// What is kept in order: a topic, an order id, and which of the key's two queues.
pub(super) type Queue = (Arc<str>, Option<Uuid>, bool);

impl Waiting {
    pub(super) fn queue(&self) -> Queue {
        (Arc::clone(&self.work.delivery.partition().topic), self.work.order_id, self.holds)
    }
}

pub(super) fn order_bytes(order_id: Option<&Uuid>) -> Option<&[u8]> {
    order_id.map(|id| id.as_bytes().as_slice())
}

/// Whether something of its key is in a message's way.
pub(super) fn is_held(tx: &Transaction<'_>, setup: &InboxSetup, work: &Work) -> rusqlite::Result<bool> {
    let Some(order_id) = &work.order_id else { return Ok(false) };
    let topic = &work.delivery.partition().topic;
    let sql = include_str!("../../sql/consumer/held.sql");
    tx.prepare_cached(sql)?
        .query_row(params![setup.consumer, &**topic, order_id.as_bytes()], |row| row.get(0))
}

/// Marks a message. `false`: it has its mark.
pub(super) fn mark(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    work: &Work,
    outcome: &str,
) -> rusqlite::Result<bool> {
    let (delivery, Partition { topic, number }) = (&work.delivery, work.delivery.partition());
    let params = params![setup.consumer, &*work.id, &**topic, number, delivery.position, now(), outcome];
    Ok(tx.prepare_cached(include_str!("../../sql/consumer/mark.sql"))?.execute(params)? > 0)
}

/// Changes the mark of a message that waits, or was dead.
pub(super) fn remark(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    id: &str,
    outcome: &str,
) -> rusqlite::Result<()> {
    let sql =
        "update posthaste_inbox set outcome = ?3, processed_at = ?4 where consumer = ?1 and message_id = ?2";
    tx.prepare_cached(sql)?.execute(params![setup.consumer, id, outcome, now()])?;
    Ok(())
}

/// Writes the copy of a message, and answers with its number. One of a range holds nobody up, and may be a
/// repeat.
pub(super) fn copy(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    work: &Work,
    due_at: i64,
    reason: &str,
    failure: Option<&Failure>,
    of_range: Option<bool>,
) -> rusqlite::Result<i64> {
    let Delivery { position, published_at, address, message, .. } = &*work.delivery;
    let Partition { topic, number } = work.delivery.partition();
    tx.prepare_cached(include_str!("../../sql/consumer/defer.sql"))?.execute(params![
        setup.consumer,
        &*work.id,
        &**topic,
        number,
        position,
        address,
        message.key.as_deref(),
        order_bytes(work.order_id.as_ref()),
        headers::to_json(&message.headers),
        message.payload.as_deref(),
        published_at.map(|at| at.0),
        work.attempts,
        work.history.to_json(),
        reason,
        due_at,
        failure.map(Failure::class),
        failure.map(|failure| &*failure.code),
        failure.map(|failure| cut(&failure.message, ERROR_BYTES_MAX)),
        failure.map(|_| now()),
        now(),
        of_range.is_none(),
        of_range.unwrap_or(false),
    ])?;
    Ok(tx.last_insert_rowid())
}

/// A text that is not without end.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

pub(super) fn error_text(failure: &Failure) -> (&str, Option<&str>) {
    let stack = failure.stack.as_deref().map(|stack| cut(stack, STACK_BYTES_MAX));
    (cut(&failure.message, ERROR_BYTES_MAX), stack)
}

/// Reads a deferred message, if it is still there.
pub(super) fn load(tx: &Transaction<'_>, seq: i64) -> rusqlite::Result<Option<Waiting>> {
    let sql = "select * from posthaste_inbox_deferred where seq = ?1";
    tx.prepare_cached(sql)?.query_row([seq], read).optional()
}

fn read(row: &Row<'_>) -> rusqlite::Result<Waiting> {
    let bytes = |name: &str| row.get::<_, Option<Vec<u8>>>(name).map(|bytes| bytes.map(Bytes::from));
    let (seq, id): (i64, String) = (row.get("seq")?, row.get("message_id")?);
    let partition = Partition::new(row.get::<_, String>("topic")?, row.get("partition")?);
    let mut message = Received {
        id: None,
        key: bytes("key")?,
        headers: headers::from_json(&row.get::<_, String>("headers")?),
        payload: bytes("payload")?,
    };
    message.id = message.header(MESSAGE_ID_HEADER).map_or_else(|| Some(id.clone()), |id| Some(id.to_owned()));
    let history: Option<String> = row.get("history")?;
    let order_id: Option<Vec<u8>> = row.get("order_id")?;
    Ok(Waiting {
        seq,
        holds: row.get("holds")?,
        repeat: row.get("repeat")?,
        work: Work {
            id: id.into(),
            order_id: order_id.and_then(|bytes| Uuid::from_slice(&bytes).ok()),
            attempts: row.get("attempts")?,
            history: history.map(|text| History::from_json(&text)).unwrap_or_default(),
            delivery: Arc::new(Delivery {
                ticket: Ticket { partition, epoch: 0, number: seq },
                position: row.get("position")?,
                redelivery: None,
                published_at: row.get::<_, Option<i64>>("published_at")?.map(Timestamp),
                address: row.get("address")?,
                message,
            }),
        },
    })
}

/// The first of a queue comes due.
pub(super) fn promote(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    topic: &str,
    order_id: Option<&[u8]>,
    holds: bool,
) -> rusqlite::Result<()> {
    let sql = include_str!("../../sql/consumer/promote.sql");
    tx.prepare_cached(sql)?.execute(params![setup.consumer, topic, order_id, holds, now()])?;
    Ok(())
}

/// How long from now an instant is.
pub(super) fn until(at: i64) -> std::time::Duration {
    debug_assert_ne!(at, NEVER);
    std::time::Duration::from_micros((at - now()).max(0).unsigned_abs())
}
