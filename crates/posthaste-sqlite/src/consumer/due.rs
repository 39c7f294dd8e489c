//! Deferred messages whose time has come.
//!
//! The heads of queues that are due, and behind each of them what waits for it, in one transaction. A row
//! leaves before its handler runs, as a mark is made before: whatever a handler does to the transaction, a
//! row that is there has not run. If one fails in company, those before it are done without it; it is the
//! first the next time, and its failure counts.

use super::apply::{begin, run_inside, transact};
use super::defer::{bury, leave};
use super::failure::{self, of_commit, of_statement, to_store};
use super::row::{Waiting, error_text, load, order_bytes, promote, remark, until};
use super::{Failed, InboxSetup, handler};
use crate::clock::{NEVER, micros, now};
use posthaste::Timestamp;
use posthaste::consumer::policy::Consequence;
use posthaste::consumer::store::{Burial, DueHeads, DueOutcome, DueStep, InboxError};
use posthaste::consumer::{Disposition, Failure, FailureKind, Message};
use posthaste::crash_point;
use rusqlite::{Connection, Row, Transaction, params};
use std::collections::BTreeSet;
use std::time::Duration;
use uuid::Uuid;

/// What one transaction came to.
enum Tried {
    Done(DueOutcome),
    /// Nothing happened: of so many messages this one failed, or nobody by itself; then it is the first.
    Failed {
        ran: usize,
        at: Option<usize>,
        waiting: Box<Waiting>,
        failure: Failure,
    },
}

pub(super) fn apply(
    connection: &mut Connection,
    setup: &InboxSetup,
    heads: &DueHeads,
) -> Result<DueOutcome, InboxError> {
    let crashed = if heads.careful { write_down(connection, setup, heads)? } else { None };
    let mut outcome = match crashed {
        Some(outcome) => outcome,
        None => run(connection, setup, heads)?,
    };
    outcome.next_due = next_due(connection, setup).map_err(of_statement)?;
    Ok(outcome)
}

/// Runs as many as go together.
fn run(connection: &mut Connection, setup: &InboxSetup, heads: &DueHeads) -> Result<DueOutcome, InboxError> {
    let mut most = if heads.careful { 1 } else { heads.messages_max.max(1) };
    let mut in_company = DueOutcome::default();
    loop {
        let (ran, at, waiting, failure) = match attempt(connection, setup, heads, most)? {
            Tried::Done(mut outcome) => {
                in_company.steps.append(&mut outcome.steps);
                outcome.steps = in_company.steps;
                return Ok(outcome);
            }
            Tried::Failed { ran, at, waiting, failure } => (ran, at, waiting, failure),
        };
        most = match at {
            Some(at @ 1..) if to_store(&failure).is_none() => at,
            None if ran > 1 && to_store(&failure).is_none() => ran / 2,
            _ => return charge(connection, setup, heads, &waiting, failure, in_company),
        };
        in_company.note(&waiting.work, DueStep::Failed(failure.kind));
    }
}

/// After deaths, the attempt is spent before the handler runs: a message that kills its process would be at
/// its first one for ever (F21). One that has spent them all so is dead.
fn write_down(
    connection: &mut Connection,
    setup: &InboxSetup,
    heads: &DueHeads,
) -> Result<Option<DueOutcome>, InboxError> {
    transact(connection, |tx| {
        let head = pick(tx, setup, 1)?.first().map(|seq| load(tx, *seq)).transpose()?.flatten();
        let Some(waiting) = head else { return Ok(None) };
        let attempts = waiting.work.attempts;
        if attempts == 0 || heads.retry.delay(attempts, 0.0).is_some() {
            let sql = "update posthaste_inbox_deferred set attempts = attempts + 1 where seq = ?1";
            tx.execute(sql, [waiting.seq])?;
            return Ok(None);
        }
        let why = format!("its process died with it in hand, in the last of {attempts} attempts");
        let failure = Failure::new(FailureKind::Error, "consumer.crashed", why);
        end(tx, setup, &waiting, &burial(heads, Disposition::Crashed, failure))?;
        let mut outcome = DueOutcome::default();
        outcome.note(&waiting.work, DueStep::Dead);
        Ok(Some(outcome))
    })
}

/// The message as it was before its attempt was written down.
fn load_for(tx: &Transaction<'_>, heads: &DueHeads, seq: i64) -> rusqlite::Result<Option<Waiting>> {
    let mut waiting = load(tx, seq)?;
    if let Some(waiting) = &mut waiting {
        waiting.work.attempts = waiting.work.attempts.saturating_sub(u32::from(heads.careful));
    }
    Ok(waiting)
}

fn attempt(
    connection: &mut Connection,
    setup: &InboxSetup,
    heads: &DueHeads,
    most: usize,
) -> Result<Tried, InboxError> {
    let tx = begin(connection)?;
    let (ran, first, tried) = run_due(&tx, setup, heads, most).map_err(of_statement)?;
    let Tried::Done(_) = tried else { return Ok(tried) };
    // CRASH(consume.deferred_done): the rows are there and due. They run again.
    crash_point!("consume.deferred_done");
    let failure = match (tx.commit(), first) {
        (Ok(()), _) => return Ok(tried),
        (Err(error), None) => return Err(of_statement(error)),
        (Err(error), Some(waiting)) => Tried::Failed { ran, at: None, waiting, failure: of_commit(error) },
    };
    Ok(failure)
}

/// Runs what is due, without the commit. Answers how many messages were in it, and the first of them.
fn run_due(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    heads: &DueHeads,
    most: usize,
) -> rusqlite::Result<(usize, Option<Box<Waiting>>, Tried)> {
    handler::watch_time(tx)?;
    let (mut touched, mut ran, mut first) = (BTreeSet::new(), 0, None);
    let mut outcome = DueOutcome::default();
    for seq in pick(tx, setup, most)? {
        if ran > 0 && outcome.handler_time >= heads.handler_time_max {
            break;
        }
        let Some(waiting) = load_for(tx, heads, seq)?.map(Box::new) else { continue };
        touched.insert(waiting.queue());
        ran += 1;
        match handle(tx, setup, heads, &waiting, &mut outcome)? {
            Ok(took) => outcome.handler_time += took,
            Err(failure) => {
                return Ok((ran, first, Tried::Failed { ran, at: Some(ran - 1), waiting, failure }));
            }
        }
        first.get_or_insert(waiting);
    }
    for (topic, order_id, holds) in &touched {
        promote(tx, setup, topic, order_bytes(order_id.as_ref()), *holds)?;
    }
    Ok((ran, first, Tried::Done(outcome)))
}

/// Numbers of what may run now, at most so many: heads, each with what waits behind it.
fn pick(tx: &Transaction<'_>, setup: &InboxSetup, most: usize) -> rusqlite::Result<Vec<i64>> {
    let now = now();
    let pair = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let mut heads = tx.prepare_cached(include_str!("../../sql/consumer/heads.sql"))?;
    let mut behind = tx.prepare_cached(include_str!("../../sql/consumer/behind.sql"))?;
    let mut picked = Vec::new();
    for head in heads.query_map(params![setup.consumer, now, most as i64], pair)? {
        let (head, _) = head?;
        picked.push(head);
        for next in behind.query_map(params![head, most as i64], pair)? {
            let (seq, due_at) = next?;
            if due_at != NEVER && due_at > now {
                break;
            }
            picked.push(seq);
        }
        if picked.len() >= most {
            break;
        }
    }
    picked.truncate(most);
    Ok(picked)
}

/// Handles one message. Its row leaves first.
fn handle(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    heads: &DueHeads,
    waiting: &Waiting,
    outcome: &mut DueOutcome,
) -> rusqlite::Result<Result<Duration, Failure>> {
    let Waiting { seq, work, repeat, .. } = waiting;
    let Some(handler) = setup.handler_of(&work.delivery) else {
        // Its mark is ours, so it ends as a dead letter, whatever is done with what never had one (G5).
        bury(tx, setup, waiting, &burial(heads, Disposition::Unmatched, failure::unmatched()))?;
        outcome.note(work, DueStep::Dead);
        return Ok(Ok(Duration::ZERO));
    };
    leave(tx, *seq)?;
    if !repeat {
        remark(tx, setup, &work.id, "d")?;
    }
    let message = [Message::new(&setup.consumer, work)];
    let ran = run_inside(tx, &*setup.handlers[handler].1, &message, heads.handler_timeout);
    let Err(Failed { mut failure, .. }) = ran.answer else {
        outcome.note(work, DueStep::Done);
        return Ok(Ok(ran.took));
    };
    if !ran.is_inside && load(tx, *seq)?.is_none() {
        // The row is gone although the transaction is over: the handler committed it.
        failure.kind = FailureKind::Committed;
    }
    Ok(Err(failure))
}

fn burial(heads: &DueHeads, disposition: Disposition, failure: Failure) -> Burial {
    Burial { letter: Uuid::now_v7(), disposition, failure, holds_key: heads.dead_hold }
}

/// A message is given up, and the next of its queue comes due.
fn end(tx: &Transaction<'_>, setup: &InboxSetup, waiting: &Waiting, burial: &Burial) -> rusqlite::Result<()> {
    bury(tx, setup, waiting, burial)?;
    let (topic, order_id, holds) = waiting.queue();
    promote(tx, setup, &topic, order_bytes(order_id.as_ref()), holds)
}

/// Writes down that a message failed by itself: it waits once more, or is dead. A failure that is everybody's
/// is told, and changes nothing.
fn charge(
    connection: &mut Connection,
    setup: &InboxSetup,
    heads: &DueHeads,
    failed: &Waiting,
    mut failure: Failure,
    mut outcome: DueOutcome,
) -> Result<DueOutcome, InboxError> {
    let everybodys = to_store(&failure);
    if let (Some(error), false) = (&everybodys, heads.careful) {
        return Err(error.clone());
    }
    outcome.note(&failed.work, DueStep::Failed(failure.kind.clone()));
    let followed = transact(connection, |tx| {
        let pause = if everybodys.is_some() { Duration::ZERO } else { heads.unavailable_pause };
        // Gone: another process handled it meanwhile, or its handler committed.
        let waiting = load_for(tx, heads, failed.seq)?;
        waiting.map_or(Ok(None), |waiting| decide(tx, setup, heads, waiting, &mut failure, pause))
    })?;
    if let Some(error) = everybodys {
        return Err(error);
    }
    if followed != Some(DueStep::Dead) {
        outcome.failed.push(failure);
    }
    followed.into_iter().for_each(|step| outcome.note(&failed.work, step));
    Ok(outcome)
}

/// What follows from a failure, and is to be counted.
fn decide(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    heads: &DueHeads,
    mut waiting: Waiting,
    failure: &mut Failure,
    pause: Duration,
) -> rusqlite::Result<Option<DueStep>> {
    let work = &mut waiting.work;
    let consequence = heads.retry.decide_deferred(failure, work, heads.chance);
    let is_counted = matches!(consequence, Consequence::Retry { .. });
    let (spent, delay) = match consequence {
        Consequence::NotCounted => (work.attempts, Ok(pause)),
        Consequence::Retry { attempts, delay } => (attempts, Ok(delay)),
        Consequence::Dead { attempts, disposition } => (attempts, Err(disposition)),
    };
    if spent > work.attempts || failure.kind == FailureKind::ConnectionLost {
        work.history.push(Timestamp(now()), failure.class(), &failure.code, &failure.message);
        work.attempts = spent;
    }
    let delay = match delay {
        Ok(delay) => delay,
        Err(disposition) => {
            end(tx, setup, &waiting, &burial(heads, disposition, failure.clone()))?;
            return Ok(Some(DueStep::Dead));
        }
    };
    tx.prepare_cached(include_str!("../../sql/consumer/again.sql"))?.execute(params![
        waiting.seq,
        work.attempts,
        now().saturating_add(micros(delay)),
        work.history.to_json(),
        failure.class(),
        &*failure.code,
        error_text(failure).0,
        now(),
    ])?;
    Ok(is_counted.then_some(DueStep::Retried))
}

fn next_due(connection: &Connection, setup: &InboxSetup) -> rusqlite::Result<Option<Duration>> {
    let mut statement = connection.prepare_cached(include_str!("../../sql/consumer/heads.sql"))?;
    let mut rows = statement.query(params![setup.consumer, NEVER - 1, 1])?;
    let next: Option<i64> = rows.next()?.map(|row| row.get(1)).transpose()?;
    Ok(next.map(until))
}
