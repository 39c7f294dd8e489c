//! What people do with dead letters and ranges. Whoever calls audits it.

use super::InboxSetup;
use super::defer::revive;
use super::row::{Waiting, copy, mark, order_bytes, promote};
use crate::clock::{NEVER, now};
use posthaste::admin::DeadAct;
use posthaste::consumer::store::Work;
use posthaste::inbox::kept::KeptHeaders;
use rusqlite::{OptionalExtension, Transaction, params};

/// Lets a dead letter be handled again, before everything of its key that waits; or gives it up for good, and
/// what waits behind it goes on. `false`: it is not there.
pub(crate) fn act(
    tx: &Transaction<'_>,
    consumer: &str,
    letter: &str,
    (act, headers): (DeadAct, &KeptHeaders),
) -> rusqlite::Result<bool> {
    let setup = InboxSetup::of_operator(consumer);
    match act {
        DeadAct::Replay => replay(tx, &setup, letter, headers),
        DeadAct::Discard => discard(tx, &setup, letter),
    }
}

/// Copies messages for a range replay: a queue of their own, which holds nobody up. Without `repeat` only
/// what gets its mark now. Never beyond the saved position as it is now: whoever read the range saw an older
/// one, and a seek backwards may have come between.
pub(crate) fn copy_range(
    tx: &Transaction<'_>,
    consumer: &str,
    range: &[Work],
    repeat: bool,
) -> rusqlite::Result<u64> {
    let setup = InboxSetup::of_operator(consumer);
    let waits = "select 1 from posthaste_inbox_deferred where consumer = ?1 and message_id = ?2 and repeat";
    let saved = "select position from posthaste_inbox_partitions where consumer = ?1 and topic = ?2 and partition = ?3";
    let mut copied = 0;
    for work in range {
        let partition = work.delivery.partition();
        let place = params![consumer, &*partition.topic, partition.number];
        let saved: Option<i64> =
            tx.prepare_cached(saved)?.query_row(place, |row| row.get(0)).optional()?.flatten();
        if work.delivery.position.is_none_or(|position| saved.is_none_or(|saved| position >= saved)) {
            continue;
        }
        let is_free = match repeat {
            true => !tx.prepare_cached(waits)?.exists(params![consumer, &*work.id])?,
            false => mark(tx, &setup, work, "w")?,
        };
        if !is_free {
            continue;
        }
        let due_at = if work.order_id.is_some() { NEVER } else { now() };
        copy(tx, &setup, work, due_at, "replayed", None, Some(repeat))?;
        promote(tx, &setup, &work.delivery.partition().topic, order_bytes(work.order_id.as_ref()), false)?;
        copied += 1;
    }
    Ok(copied)
}

fn replay(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    letter: &str,
    headers: &KeptHeaders,
) -> rusqlite::Result<bool> {
    let Some(revived) = revive(tx, setup, letter, "replayed")? else { return Ok(false) };
    let Waiting { seq, holds, ref work, .. } = revived;
    if !headers.is_all() {
        let sql = "select headers from posthaste_inbox_deferred where seq = ?1";
        let stored: String = tx.query_row(sql, [seq], |row| row.get(0))?;
        let sql = "update posthaste_inbox_deferred set headers = ?2 where seq = ?1";
        tx.execute(sql, params![seq, headers.stored(&stored)])?;
    }
    promote(tx, setup, &work.delivery.partition().topic, order_bytes(work.order_id.as_ref()), holds)?;
    Ok(true)
}

/// The mark stays: the message is settled.
fn discard(tx: &Transaction<'_>, setup: &InboxSetup, letter: &str) -> rusqlite::Result<bool> {
    let sql = "delete from posthaste_inbox_dead_letters where consumer = ?1 and letter = ?2 returning topic, order_id";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let gone: Option<(String, Option<Vec<u8>>)> =
        tx.query_row(sql, params![setup.consumer, letter], read).optional()?;
    if let Some((topic, order_id)) = &gone {
        promote(tx, setup, topic, order_id.as_deref(), true)?;
    }
    Ok(gone.is_some())
}
