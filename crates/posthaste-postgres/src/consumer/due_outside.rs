//! T3 for handlers in another process: claimed, asked, brought in.
//!
//! The rows are claimed by their own time, in a transaction that ends before anybody is asked: for as long as
//! an answer may take they are not due, and no other member takes them. So a key's next message is not asked
//! about while this one is. Of each key only the first is taken.

use super::columns::Deferred;
use super::due::{Round, keys};
use super::failure::{OwnError, inbox_error};
use super::run::{Ran, RunBounds, Stop, committed};
use super::{End, PostgresInbox, SLACK, settings};
use crate::session::{LentTransaction, params};
use posthaste::consumer::store::{DueHeads, DueOutcome, InboxError, Work};
use posthaste::consumer::{Failure, FailureKind};
use std::collections::HashSet;
use std::time::Duration;

impl PostgresInbox {
    /// Nobody else takes these while an answer may come. Ends the transaction.
    pub(super) async fn claim(
        &self,
        mut tx: LentTransaction<'_>,
        rows: &mut Vec<Deferred>,
        timeout: Duration,
    ) -> Result<(), InboxError> {
        let mut seen = HashSet::new();
        rows.retain(|row| {
            let topic = &row.work.delivery.partition().topic;
            row.work.order_id.is_none_or(|order_id| seen.insert((std::sync::Arc::clone(topic), order_id)))
        });
        let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
        let seconds = (timeout + SLACK).as_secs_f64();
        let params = params![TEXT &*self.consumer, INT8_ARRAY seqs, FLOAT8 seconds];
        if let Err(error) = tx.query(&self.statements.claim, params).await {
            tx.rollback().await;
            return Err(inbox_error(error));
        }
        tx.commit().await.map_err(inbox_error)
    }

    /// Asks about claimed messages, and brings in what was answered.
    pub(super) async fn round_outside(
        &self,
        rows: Vec<Deferred>,
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<Round, InboxError> {
        let works: Vec<&Work> = rows.iter().map(|row| &row.work).collect();
        let replies = self.ask_outside(&works, heads.handler_timeout).await;
        let mut answered = Vec::new();
        for (row, reply) in rows.iter().zip(replies) {
            match reply {
                Some(Ok(())) => answered.push(row),
                Some(Err(failure)) => {
                    self.record(row, failure, heads, due).await?;
                    self.forget_replies([&row.work]);
                }
                // Somebody is away: what was claimed with it waits for as long.
                None => self.unclaim(row, heads).await?,
            }
        }
        if !answered.is_empty() {
            self.bring_in(&answered, heads, due).await?;
            self.forget_replies(answered.iter().map(|row| &row.work));
        }
        Ok(Round::Done)
    }

    /// Puts off a message that nobody was asked about. No attempt is counted.
    async fn unclaim(&self, row: &Deferred, heads: &DueHeads) -> Result<(), InboxError> {
        let failure = Failure::new(
            FailureKind::Unavailable("handler".into()),
            "handler.unavailable",
            "not asked: its handler is away",
        );
        self.transact(async |tx| {
            self.lock_key(tx, &row.work.delivery.partition().topic, row.work.order_id).await?;
            let pause = heads.unavailable_pause;
            let written = self.again(tx, row, &failure, row.work.attempts, pause).await?;
            Ok(((), if written { End::Commit } else { End::Rollback }))
        })
        .await
    }

    /// One transaction: events of the answers, and the rows go.
    async fn bring_in(
        &self,
        answered: &[&Deferred],
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<(), InboxError> {
        let timeout = heads.handler_timeout;
        let mut session = self.session().await?;
        let mut tx = session.lend(timeout + SLACK).await.map_err(inbox_error)?;
        let (rows, xid) = match self.claimed(&mut tx, answered, timeout).await {
            Ok(found) => found,
            Err(OwnError(error)) => {
                tx.rollback().await;
                return Err(error);
            }
        };
        let works: Vec<&Work> = rows.iter().map(|row| &row.work).collect();
        let pace = RunBounds { timeout, time_max: None, each: None };
        let Ran { stop, time, .. } = self.run(&mut tx, &works, &xid, pace).await;
        let ended = match stop {
            None => self.end_round(tx, &rows, &xid, heads, due).await,
            Some(stop) => {
                tx.rollback().await;
                Err(stop)
            }
        };
        match ended {
            Ok(()) => {
                due.handler_time += time;
                Ok(())
            }
            // Only our own append ran here: whatever failed is the database's. The replies are kept.
            Err(Stop::Failed { failure, .. }) => Err(InboxError::Unavailable(failure.message)),
            Err(Stop::Committed { .. }) => Err(InboxError::Broken(committed().message)),
        }
    }

    /// Claimed rows under the locks of their keys, as far as they are still ours.
    async fn claimed(
        &self,
        tx: &mut LentTransaction<'_>,
        answered: &[&Deferred],
        timeout: Duration,
    ) -> Result<(Vec<Deferred>, String), OwnError> {
        let consumer = &*self.consumer;
        let sent = tx.send(&settings(timeout)).await?;
        tx.hear_settings(sent).await?;
        let locked = keys(answered.iter().copied());
        let (topics, order_ids): (Vec<&str>, Vec<_>) =
            locked.iter().map(|(topic, order_id)| (&**topic, *order_id)).unzip();
        let params = params![TEXT consumer, TEXT_ARRAY topics, UUID_ARRAY order_ids];
        tx.query(&self.statements.lock_all, params).await?;
        let seqs: Vec<i64> = answered.iter().map(|row| row.seq).collect();
        let ids: Vec<&str> = answered.iter().map(|row| &*row.work.id).collect();
        let attempts: Vec<i32> = answered.iter().map(|row| row.attempts).collect();
        let params = params![TEXT consumer, INT8_ARRAY seqs, TEXT_ARRAY ids, INT4_ARRAY attempts];
        let found = tx.query(&self.statements.claimed, params).await?;
        let xid = found.first().map_or_else(String::new, |row| row.get("xid"));
        let mut rows = found.iter().map(Deferred::of).collect::<Result<Vec<_>, _>>()?;
        // After deaths an attempt is counted before it is made: the reply was kept under the one before.
        for row in &mut rows {
            let asked = answered.iter().find(|asked| asked.seq == row.seq);
            row.work.attempts = asked.map_or(row.work.attempts, |asked| asked.work.attempts);
        }
        Ok((rows, xid))
    }
}
