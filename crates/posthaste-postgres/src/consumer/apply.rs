//! T1: fresh messages, in one transaction with their marks.

use super::columns::Places;
use super::failure::{apply_error, commit_failure, inbox_error};
use super::outside::Before;
use super::run::{GUARD, Ran, RunBounds, Stop, committed, judge};
use super::trace::{TraceStatus, saga};
use super::{PostgresInbox, SLACK, settings, witness};
use crate::session::{LentTransaction, SqlResult, params};
use posthaste::consumer::store::{ApplyError, Applying, InboxError, MessageOutcome, Witness, Work};
use posthaste::consumer::{Failure, FailureKind};
use std::collections::HashSet;
use std::time::Duration;
use tokio_postgres::Row;
use uuid::Uuid;

/// How often a batch is taken again because one of it was deferred by somebody else meanwhile.
const RETAKES_MAX: usize = 5;

/// What T1 is about to do.
struct Admitted {
    outcomes: Vec<MessageOutcome>,
    /// Dead letters that somebody's tool sent back.
    redriven: Vec<usize>,
    xid: String,
    witness: Witness,
}

impl PostgresInbox {
    pub(super) async fn apply_batch(
        &self,
        asked: Option<Witness>,
        batch: &[Work],
        timeout: Duration,
    ) -> Result<Applying, ApplyError> {
        for _ in 0..RETAKES_MAX {
            let before = if self.has_outside { self.ask_before(asked, batch, timeout).await? } else { None };
            let applied = match &before {
                None => self.try_apply(asked, batch, timeout).await?,
                Some(before) if self.is_marked_by_app() => Some(before.applied()),
                Some(before) => self.try_apply_but(asked, batch, before, timeout).await?,
            };
            if let Some((mut applying, redriven)) = applied {
                let is_settled = |(_, outcome): &(_, &MessageOutcome)| **outcome != MessageOutcome::Again;
                let settled = batch.iter().zip(&applying.outcomes).filter(is_settled);
                self.forget_replies(settled.map(|(work, _)| work));
                for at in redriven {
                    applying.outcomes[at] = self.redrive_or_hold(&batch[at]).await;
                }
                return Ok(applying);
            }
        }
        let why = "messages of this batch were deferred by somebody else again and again".to_owned();
        Err(apply_error(None, InboxError::Conflict(why)))
    }

    /// A letter that somebody's tool sent back. If it fails, the copy is asked about again: a held message
    /// is. Nobody would hear why it is held for ever if the reason were not said here.
    async fn redrive_or_hold(&self, work: &Work) -> MessageOutcome {
        self.redrive(work).await.unwrap_or_else(|error| {
            tracing::warn!(
                consumer = &*self.consumer,
                message = &*work.id,
                error = error.to_string(),
                "a dead letter came back through the broker and could not be put back to its place; it stays dead, and the \
                 message is held and tried again"
            );
            MessageOutcome::Held
        })
    }

    /// Once, without those that come again.
    async fn try_apply_but(
        &self,
        asked: Option<Witness>,
        batch: &[Work],
        before: &Before,
        timeout: Duration,
    ) -> Result<Option<(Applying, Vec<usize>)>, ApplyError> {
        let others = before.in_transaction();
        if others.len() == batch.len() {
            return self.try_apply(asked, batch, timeout).await;
        }
        let (mut applying, mut redriven) = before.applied();
        applying.outcomes.fill(MessageOutcome::Again);
        redriven.clear();
        if others.is_empty() {
            return Ok(Some((applying, redriven)));
        }
        let works: Vec<Work> = others.iter().map(|at| batch[*at].clone()).collect();
        let place = |at: usize| others.get(at).copied();
        let applied = self.try_apply(asked, &works, timeout).await;
        let applied = applied.map_err(|error| ApplyError { at: error.at.and_then(place), ..error })?;
        let Some((applied, back)) = applied else { return Ok(None) };
        for (at, outcome) in others.iter().zip(applied.outcomes) {
            applying.outcomes[*at] = outcome;
        }
        redriven.extend(back.into_iter().filter_map(place));
        (applying.witness, applying.handler_time) = (applied.witness, applied.handler_time);
        Ok(Some((applying, redriven)))
    }

    /// Once. `None`: the second look found that a duplicate was deferred meanwhile.
    async fn try_apply(
        &self,
        asked: Option<Witness>,
        batch: &[Work],
        timeout: Duration,
    ) -> Result<Option<(Applying, Vec<usize>)>, ApplyError> {
        let ours = |error| apply_error(None, inbox_error(error));
        let mut session = self.session().await.map_err(|error| apply_error(None, error))?;
        let mut tx = session.lend(timeout + SLACK).await.map_err(ours)?;
        let admitted = match self.admit(&mut tx, asked, batch, timeout).await {
            Ok(Some(Admitted { witness, .. })) if witness.is_not(asked) => {
                tx.rollback().await;
                return Err(ApplyError::another_life(witness));
            }
            Ok(Some(admitted)) => admitted,
            Ok(None) => {
                tx.rollback().await;
                return Ok(None);
            }
            Err(error) => {
                tx.rollback().await;
                return Err(ours(error));
            }
        };
        let Admitted { outcomes, redriven, xid, witness } = admitted;
        let firsts: Vec<usize> =
            (0..batch.len()).filter(|at| outcomes[*at] == MessageOutcome::Done).collect();
        if let Some(at) = firsts.iter().copied().find(|at| !self.has_reply(&batch[*at])) {
            tx.rollback().await;
            let why = "what was in its way has gone since its handler could have been asked";
            let failure = Failure::new(FailureKind::Conflict, "inbox.conflict", why);
            return Err(ApplyError { witness: Some(witness), at: Some(at), failure });
        }
        // CRASH(consume.admitted): marks are inserted and handlers run. The transaction is rolled back with
        // its connection; the messages come again, and are first (G5).
        posthaste::crash_point!("consume.admitted");
        let works: Vec<&Work> = firsts.iter().map(|at| &batch[*at]).collect();
        let Ran { count, time, stop, .. } =
            self.run(&mut tx, &works, &xid, RunBounds { timeout, time_max: None, each: None }).await;
        let ended = match stop {
            None => commit(tx, &xid, works.len()).await,
            Some(Stop::Committed { by }) => {
                self.take_back(&mut tx, &works[..count], &works[count..]).await;
                Err(Stop::Committed { by })
            }
            Some(stop) => {
                tx.rollback().await;
                Err(stop)
            }
        };
        let (at, failure) = match ended {
            Ok(()) => return Ok(Some((Applying { witness, outcomes, handler_time: time }, redriven))),
            Err(Stop::Committed { by }) => (Some(by), committed()),
            Err(Stop::Failed { at, failure }) => (at, failure),
        };
        // A lone message is the one, wherever it failed.
        let at = at.or((firsts.len() == 1).then_some(0)).and_then(|at| firsts.get(at).copied());
        Err(ApplyError { witness: Some(witness), at, failure })
    }

    /// T1a, and in the life of the database that was asked for the second look.
    async fn admit<'b>(
        &self,
        tx: &mut LentTransaction<'_>,
        asked: Option<Witness>,
        batch: &'b [Work],
        timeout: Duration,
    ) -> SqlResult<Option<Admitted>> {
        let sent = tx.send(&settings(timeout)).await?;
        let rows = self.ask(tx, &self.statements.admit, batch.iter()).await;
        tx.hear_settings(sent).await?;
        let rows = rows?;
        let mut seen: HashSet<&str> = HashSet::new();
        let outcome = |(row, work): (&Row, &'b Work)| match (row.get("held"), row.get("first")) {
            (true, _) => MessageOutcome::Held,
            (false, true) if seen.insert(&*work.id) => MessageOutcome::Done,
            _ => MessageOutcome::Duplicate,
        };
        let outcomes = rows.iter().zip(batch).map(outcome).collect();
        let (xid, witness) = rows.first().map_or_else(Default::default, |row| (row.get("xid"), witness(row)));
        let mut admitted = Admitted { outcomes, redriven: Vec::new(), xid, witness };
        let again = !witness.is_not(asked) && self.look_again(tx, batch, &mut admitted).await?;
        Ok((!again).then_some(admitted))
    }

    /// The second look, at everything that was not first. Answers whether the batch is to be taken again.
    async fn look_again(
        &self,
        tx: &mut LentTransaction<'_>,
        batch: &[Work],
        admitted: &mut Admitted,
    ) -> SqlResult<bool> {
        let outcomes = &mut admitted.outcomes;
        let others: Vec<usize> =
            (0..batch.len()).filter(|at| outcomes[*at] != MessageOutcome::Done).collect();
        if others.is_empty() {
            return Ok(false);
        }
        let rows = self.ask(tx, &self.statements.look, others.iter().map(|at| &batch[*at])).await?;
        let mut copies = Vec::new();
        for (row, at) in rows.iter().zip(others) {
            let key = |at: usize| (&batch[at].delivery.partition().topic, batch[at].order_id);
            let is_overtaken =
                |behind: usize| outcomes[behind] == MessageOutcome::Done && key(behind) == key(at);
            // It may have waited for a transaction that deferred it, and T1a's snapshot is older than that.
            if outcomes[at] == MessageOutcome::Duplicate
                && row.get("held")
                && (at + 1..batch.len()).any(is_overtaken)
            {
                return Ok(true);
            }
            match row.get::<_, Option<&str>>("outcome") {
                Some("x") if row.get("elsewhere") => admitted.redriven.push(at),
                Some(_) => {
                    outcomes[at] = MessageOutcome::Duplicate;
                    copies.extend(row.get::<_, bool>("elsewhere").then_some(&batch[at]));
                }
                None => {}
            }
        }
        self.traced(tx, &copies, TraceStatus::Duplicate).await?;
        Ok(false)
    }

    async fn ask<'a>(
        &self,
        tx: &mut LentTransaction<'_>,
        sql: &str,
        works: impl Iterator<Item = &'a Work> + Clone,
    ) -> SqlResult<Vec<Row>> {
        let (consumer, places) = (&*self.consumer, Places::of(works.clone()));
        let sagas: Vec<Option<Uuid>> =
            if self.mapped.is_some() { works.map(saga).collect() } else { Vec::new() };
        let params = params![
            TEXT consumer, TEXT_ARRAY places.ids, TEXT_ARRAY places.topics, UUID_ARRAY places.order_ids,
            INT4_ARRAY places.partitions, INT8_ARRAY places.positions, UUID_ARRAY sagas,
        ];
        // Our own tables have no column for sagas.
        tx.query(sql, &params[..if self.mapped.is_some() { 7 } else { 6 }]).await
    }

    /// A handler ended the transaction. The marks of what did not run are taken back. What ran has its marks:
    /// a ROLLBACK took them, and what was written after it is committed. The connection is not used again.
    async fn take_back(&self, tx: &mut LentTransaction<'_>, ran: &[&Work], others: &[&Work]) {
        let ids: Vec<&str> = others.iter().map(|work| &*work.id).collect();
        let consumer = &*self.consumer;
        let params = params![TEXT consumer, TEXT_ARRAY ids];
        let ended = tx.tx.batch_execute("commit").await;
        let taken_back = tx.query(&self.statements.unmark, params).await;
        let marked = match taken_back {
            Ok(_) => self.ask(tx, &self.statements.admit, ran.iter().copied()).await,
            failed => failed,
        };
        if let Err(error) = ended.and(marked.map(drop)) {
            tracing::error!(
                consumer,
                messages = ids.join(" "),
                error = crate::error::describe(&error),
                "a handler ended its transaction, and marks of messages that did not run could not be taken back: delete them \
                 from the inbox before the consumer starts again, or their effects are missing. Those that ran may run again"
            );
        }
    }
}

/// Commits what so many handlers did, if it is still ours to commit.
async fn commit(tx: LentTransaction<'_>, xid: &str, handled: usize) -> Result<(), Stop> {
    // CRASH(consume.before_commit): nothing is durable. The messages come again, and are first (G5). If only
    // the answer of the commit is lost, they are duplicates.
    posthaste::crash_point!("consume.before_commit");
    if handled == 0 {
        let failed = |error| Stop::Failed { at: None, failure: commit_failure(error) };
        return tx.commit().await.map_err(failed);
    }
    let (guarded, ended) = tx.commit_after(GUARD).await;
    match judge(guarded, xid, handled) {
        Ok(()) | Err(Stop::Failed { at: Some(_), .. }) if ended.is_err() => {}
        judged => judged?,
    }
    ended.map_err(|error| Stop::Failed { at: None, failure: commit_failure(error) })
}
