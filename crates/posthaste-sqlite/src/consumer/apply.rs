//! Handling messages, in one transaction: marks, handlers, and what somebody sent back.

use super::row::{is_held, mark};
use super::{Failed, InboxSetup, LIFE, defer, failure, handler};
use posthaste::consumer::store::{Applying, InboxError, MessageOutcome, Work};
use posthaste::consumer::{FailureKind, Message};
use posthaste::crash_point;
use posthaste::source::Partition;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::collections::BTreeMap;
use std::time::Duration;

/// A transaction that holds the write lock from its beginning.
pub(super) fn begin(connection: &mut Connection) -> Result<Transaction<'_>, InboxError> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failure::of_statement)
}

/// Runs something in a transaction and commits it.
pub(super) fn transact<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> Result<T, InboxError> {
    let tx = begin(connection)?;
    let answer = work(&tx).map_err(failure::of_statement)?;
    tx.commit().map_err(failure::of_statement)?;
    Ok(answer)
}

/// What a message is, before anything ran.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    First,
    Duplicate,
    Held,
    SentBack,
}

pub(super) fn apply(
    connection: &mut Connection,
    setup: &InboxSetup,
    batch: &[Work],
    limit: Duration,
) -> Result<Applying, Failed> {
    let ours = |error| failure::of_nobody(failure::of_store(failure::of_statement(error)));
    let tx = begin(connection).map_err(|error| failure::of_nobody(failure::of_store(error)))?;
    handler::watch_time(&tx).map_err(ours)?;
    let found = look(&tx, setup, batch).map_err(ours)?;
    // CRASH(consume.admitted): the transaction is rolled back with its connection. The messages come again,
    // and are first again (G5).
    crash_point!("consume.admitted");
    let firsts: Vec<usize> = (0..batch.len()).filter(|n| found[*n] == Look::First).collect();
    let mut handler_time = Duration::ZERO;
    for run in firsts.chunk_by(|a, b| handler_of(setup, batch, *a) == handler_of(setup, batch, *b)) {
        let Ran { took, is_inside, answer } = run_handler(&tx, setup, batch, run, limit);
        handler_time += took;
        let Err(Failed { at, mut failure }) = answer else { continue };
        let at = at.or((run.len() == 1).then_some(0)).and_then(|at| run.get(at).copied());
        if !is_inside {
            let left = firsts.iter().filter(|n| **n > at.unwrap_or(run[run.len() - 1]));
            if is_committed(tx, setup, &batch[run[0]], left.map(|n| &batch[*n])).map_err(ours)? {
                failure.kind = FailureKind::Committed;
            }
        }
        return Err(Failed { at, failure });
    }
    let mut outcomes = Vec::with_capacity(batch.len());
    for (work, found) in batch.iter().zip(&found) {
        outcomes.push(match found {
            Look::First => MessageOutcome::Done,
            Look::Duplicate => MessageOutcome::Duplicate,
            Look::Held => MessageOutcome::Held,
            Look::SentBack => defer::redrive(&tx, setup, work).map_err(ours)?,
        });
    }
    // CRASH(consume.before_commit): nothing happened. The messages come again, and are first again. Where the
    // process dies right behind the commit they are duplicates.
    crash_point!("consume.before_commit");
    // With one message there is nobody else whose fault it could be.
    let at = (firsts.len() == 1).then(|| firsts[0]);
    tx.commit().map_err(|error| Failed { at, failure: failure::of_commit(error) })?;
    if let Some(tell) = &setup.on_commit {
        tell(connection, batch, &outcomes);
    }
    Ok(Applying { witness: LIFE, outcomes, handler_time })
}

fn handler_of(setup: &InboxSetup, batch: &[Work], n: usize) -> Option<usize> {
    setup.handler_of(&batch[n].delivery)
}

/// Marks what is new and free. A message that comes twice in the batch meets its own mark.
fn look(tx: &Transaction<'_>, setup: &InboxSetup, batch: &[Work]) -> rusqlite::Result<Vec<Look>> {
    let mut held_keys = BTreeMap::new();
    let mut found = Vec::with_capacity(batch.len());
    for work in batch {
        let key = (&work.delivery.partition().topic, work.order_id);
        let held = match held_keys.get(&key) {
            Some(held) => *held,
            None => *held_keys.entry(key).or_insert(is_held(tx, setup, work)?),
        };
        found.push(if held || !mark(tx, setup, work, "d")? {
            known(tx, setup, work)?.unwrap_or(Look::Held)
        } else {
            Look::First
        });
    }
    Ok(found)
}

/// What the mark of a message says. A dead letter that comes from another place was sent back by somebody's
/// tool: were it a duplicate, the inbox would swallow it.
fn known(tx: &Transaction<'_>, setup: &InboxSetup, work: &Work) -> rusqlite::Result<Option<Look>> {
    let (delivery, Partition { topic, number }) = (&work.delivery, work.delivery.partition());
    let mut statement = tx.prepare_cached(include_str!("../../sql/consumer/marked.sql"))?;
    let read = |row: &rusqlite::Row<'_>| {
        let from: (Option<String>, Option<i32>, Option<i64>) = (row.get(1)?, row.get(2)?, row.get(3)?);
        let is_elsewhere = from != (Some(topic.to_string()), Some(*number), delivery.position);
        let is_dead = row.get::<_, String>(0)? == "x" && row.get(4)?;
        let sent_back = is_dead && is_elsewhere && delivery.position.is_some();
        Ok(if sent_back { Look::SentBack } else { Look::Duplicate })
    };
    statement.query_row(params![setup.consumer, &*work.id], read).optional()
}

/// How a handler ended.
pub(super) struct Ran {
    pub(super) took: Duration,
    /// Whether it stayed inside the transaction that it was given.
    pub(super) is_inside: bool,
    pub(super) answer: Result<(), Failed>,
}

/// Runs messages of one handler.
fn run_handler(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    batch: &[Work],
    run: &[usize],
    limit: Duration,
) -> Ran {
    let Some(handler) = handler_of(setup, batch, run[0]) else {
        let answer = Err(Failed { at: Some(0), failure: failure::unmatched() });
        return Ran { took: Duration::ZERO, is_inside: true, answer };
    };
    let messages: Vec<_> = run.iter().map(|n| Message::new(&setup.consumer, &batch[*n])).collect();
    run_inside(tx, &*setup.handlers[handler].1, &messages, limit)
}

/// Runs a handler, and sees whether it stayed inside the transaction: its savepoint is gone if not.
pub(super) fn run_inside(
    tx: &Transaction<'_>,
    handler: &dyn handler::Handler,
    messages: &[Message<'_>],
    limit: Duration,
) -> Ran {
    if !handler::enter(tx) {
        let away = InboxError::Unavailable("a savepoint could not be set".to_owned());
        let answer = Err(failure::of_nobody(failure::of_store(away)));
        return Ran { took: Duration::ZERO, is_inside: true, answer };
    }
    let (took, mut answer) = handler::run(handler, tx, messages, limit);
    let is_inside = handler::leave(tx);
    if answer.is_ok() && !is_inside {
        answer = Err(failure::of_nobody(failure::ended()));
    }
    Ran { took, is_inside, answer }
}

/// The transaction ended inside a handler. SQLite itself may have rolled it back, and nothing happened. If
/// the handler committed it, marks of messages that never ran are taken away, and the consumer must stop:
/// nobody knows what else is half done.
fn is_committed<'w>(
    tx: Transaction<'_>,
    setup: &InboxSetup,
    ran: &Work,
    left: impl Iterator<Item = &'w Work>,
) -> rusqlite::Result<bool> {
    if !tx.is_autocommit() {
        tx.execute_batch("rollback")?;
    }
    // The mark was ours alone, and is there only if it was committed.
    if known(&tx, setup, ran)?.is_none() {
        return Ok(false);
    }
    for work in left {
        let sql = "delete from posthaste_inbox where consumer = ?1 and message_id = ?2";
        tx.execute(sql, params![setup.consumer, &*work.id])?;
    }
    Ok(true)
}
