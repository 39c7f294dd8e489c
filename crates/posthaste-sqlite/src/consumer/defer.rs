//! Setting messages aside: among the deferred, behind a hold, or among the dead. And back.

use super::apply::transact;
use super::row::{self, Waiting, copy, error_text, is_held, mark, order_bytes, promote, remark};
use super::{InboxSetup, LIFE};
use crate::clock::{NEVER, micros, now};
use posthaste::admin::fingerprint;
use posthaste::consumer::store::{
    Burial, DeferOrBury, Deferring, InboxError, MessageOutcome, SetAside, Work,
};
use posthaste::consumer::{FailureKind, headers};
use posthaste::crash_point;
use posthaste::source::Partition;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

pub(super) fn set_aside(
    connection: &mut Connection,
    setup: &InboxSetup,
    key: &[Work],
    how: &DeferOrBury,
) -> Result<Deferring, InboxError> {
    let outcomes = transact(connection, |tx| {
        let outcomes = key.iter().enumerate().map(|(n, work)| one(tx, setup, work, how, n == 0)).collect();
        // CRASH(consume.deferred): nothing is set aside. The messages come again; right behind the commit
        // they are settled by their marks.
        crash_point!("consume.deferred");
        outcomes
    })?;
    if matches!(how, DeferOrBury::Bury(_)) {
        // CRASH(consume.buried): the letter is there, and its event is in the outbox for the relay. The
        // message comes again and is settled by its mark.
        crash_point!("consume.buried");
    }
    Ok(Deferring { witness: LIFE, outcomes })
}

/// One message of a key. What is written for it is seen by the next ones: they are behind it.
fn one(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    work: &Work,
    how: &DeferOrBury,
    is_first: bool,
) -> rusqlite::Result<SetAside> {
    let outcome = if matches!(how, DeferOrBury::Bury(_)) { "x" } else { "w" };
    let held = is_held(tx, setup, work)?;
    let starts = is_first && !matches!(how, DeferOrBury::Behind);
    if !held && !starts {
        let sql = "select exists (select 1 from posthaste_inbox where consumer = ?1 and message_id = ?2)";
        let marked =
            tx.prepare_cached(sql)?.query_row(params![setup.consumer, &*work.id], |row| row.get(0))?;
        return Ok(if marked { SetAside::Settled } else { SetAside::Free });
    }
    if !mark(tx, setup, work, outcome)? {
        return Ok(SetAside::Settled);
    }
    match how {
        DeferOrBury::Defer { delay, failure } if is_first => {
            let due_at = if held { NEVER } else { now().saturating_add(micros(*delay)) };
            let is_away = matches!(failure.kind, FailureKind::Unavailable(_));
            copy(tx, setup, work, due_at, if is_away { "outage" } else { "retry" }, Some(failure), None)?;
        }
        DeferOrBury::Defer { .. } | DeferOrBury::Behind => {
            copy(tx, setup, work, NEVER, "held", None, None)?;
        }
        DeferOrBury::Bury(burial) => {
            let seq = copy(tx, setup, work, NEVER, "dead", None, None)?;
            bury(tx, setup, &Waiting { seq, work: work.clone(), holds: true, repeat: false }, burial)?;
        }
    }
    Ok(SetAside::Kept)
}

/// A deferred message becomes a dead letter under its number, with its event for the dead-letter topic. The
/// attempts are those of the work.
pub(super) fn bury(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    waiting: &Waiting,
    burial: &Burial,
) -> rusqlite::Result<()> {
    let (Waiting { seq, work, repeat, .. }, failure) = (waiting, &burial.failure);
    let (error, stack) = error_text(failure);
    tx.prepare_cached(include_str!("../../sql/consumer/bury.sql"))?.execute(params![
        seq,
        burial.letter.hyphenated().to_string(),
        burial.holds_key,
        work.attempts,
        burial.disposition.as_str(),
        failure.class(),
        &*failure.code,
        error,
        stack,
        work.history.to_json(),
        fingerprint(&setup.consumer, failure.class(), &failure.code, &failure.message),
        now(),
    ])?;
    leave(tx, *seq)?;
    if !repeat {
        remark(tx, setup, &work.id, "x")?;
    }
    if let Some(to) = &setup.dead_letters {
        crate::append::insert(tx, &to.event(&setup.consumer, work, burial))?;
    }
    Ok(())
}

/// A message is among the deferred no more.
pub(super) fn leave(tx: &Transaction<'_>, seq: i64) -> rusqlite::Result<()> {
    tx.prepare_cached("delete from posthaste_inbox_deferred where seq = ?1")?.execute([seq])?;
    Ok(())
}

/// Somebody sent a dead letter back: it waits in its old place, with the bytes that came now. The mark takes
/// their position, or their redelivery would look like another one.
pub(super) fn redrive(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    work: &Work,
) -> rusqlite::Result<MessageOutcome> {
    let open = "select letter from posthaste_inbox_dead_letters where consumer = ?1 and message_id = ?2 and repeat = 0";
    let letter: Option<String> = tx
        .prepare_cached(open)?
        .query_row(params![setup.consumer, &*work.id], |row| row.get(0))
        .optional()?;
    // A copy before it in the batch was quicker.
    let Some(letter) = letter else { return Ok(MessageOutcome::Duplicate) };
    let (delivery, Partition { topic, number }) = (&work.delivery, work.delivery.partition());
    let (message, order_id) = (&delivery.message, order_bytes(work.order_id.as_ref()));
    let Some(old) = revive(tx, setup, &letter, "redriven")? else { return Ok(MessageOutcome::Duplicate) };
    tx.prepare_cached(include_str!("../../sql/consumer/redrive.sql"))?.execute(params![
        old.seq,
        &**topic,
        number,
        delivery.position,
        delivery.address,
        message.key.as_deref(),
        order_id,
        headers::to_json(&message.headers),
        message.payload.as_deref(),
        delivery.published_at.map(|at| at.0),
        now(),
    ])?;
    let params = params![setup.consumer, &*work.id, &**topic, number, delivery.position];
    tx.prepare_cached(include_str!("../../sql/consumer/move_mark.sql"))?.execute(params)?;
    promote(tx, setup, topic, order_id, true)?;
    // Its key may be another one now: what waited behind the letter waits no more.
    let (topic, order_id, _) = old.queue();
    promote(tx, setup, &topic, order_bytes(order_id.as_ref()), true)?;
    let topics = [&*work.delivery.partition().topic];
    let detail = serde_json::json!({ "consumer": setup.consumer, "letter": letter, "topics": topics });
    audit(tx, "consumer", "redrive", "the message was sent back", &detail)?;
    // CRASH(consume.redriven): the letter is as it was. The copy comes again, and is sent back again (G6).
    crash_point!("consume.redriven");
    Ok(MessageOutcome::Redriven)
}

/// A letter is among the deferred again, under its old number. Whoever calls promotes its queue.
pub(super) fn revive(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    letter: &str,
    reason: &str,
) -> rusqlite::Result<Option<Waiting>> {
    let sql = include_str!("../../sql/consumer/revive.sql");
    if tx.prepare_cached(sql)?.execute(params![setup.consumer, letter, reason, now()])? == 0 {
        return Ok(None);
    }
    let revived = row::load(tx, tx.last_insert_rowid())?;
    tx.execute("delete from posthaste_inbox_dead_letters where letter = ?1", [letter])?;
    if let Some(Waiting { work, repeat: false, .. }) = &revived {
        remark(tx, setup, &work.id, "w")?;
    }
    Ok(revived)
}

/// Who did what to letters, and why (G6).
pub(super) fn audit(
    tx: &Transaction<'_>,
    actor: &str,
    action: &str,
    reason: &str,
    detail: &serde_json::Value,
) -> rusqlite::Result<()> {
    let sql = include_str!("../../sql/admin/audit.sql");
    let trace = uuid::Uuid::new_v4().simple().to_string();
    tx.execute(sql, params![now(), actor, action, reason, detail.to_string(), trace, false, "done"])?;
    Ok(())
}
