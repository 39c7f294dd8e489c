//! T3 for handlers in another process: claimed, asked, brought in.
//!
//! The rows are claimed by their own time, in a transaction that ends before anybody is asked: for as long as
//! their turn and an answer may take they are not due, and no other member takes them. So a key's next
//! message is not asked about while this one is. Of each key only the first is taken, and it must be one of
//! these: what is behind another kind of handler waits for that one.

use super::columns::Deferred;
use super::due::{Round, keys};
use super::failure::{OwnError, inbox_error};
use super::run::{Ran, RunBounds, Stop, committed};
use super::{End, PostgresInbox, SLACK, settings};
use crate::session::{LentTransaction, params};
use posthaste::consumer::store::{DueHeads, DueOutcome, InboxError, Witness, Work};
use posthaste::consumer::{Failure, FailureKind};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// What came of answers that were to be brought in.
enum BroughtIn {
    All,
    /// Nothing was, because of this one; without a number because of somebody.
    Failed {
        at: Option<usize>,
        failure: Failure,
    },
}

impl PostgresInbox {
    /// Of each key the first decides: is its handler outside, or is it not. Keeps the first of all keys that
    /// are outside, and answers so; where there is none, all rows up to the first of their key that is.
    pub(super) fn keep_one_kind(&self, rows: &mut Vec<Deferred>) -> bool {
        let mut seen = HashSet::new();
        let key =
            |row: &Deferred| Some((Arc::clone(&row.work.delivery.partition().topic), row.work.order_id?));
        let is_first: Vec<bool> =
            rows.iter().map(|row| key(row).is_none_or(|key| seen.insert(key))).collect();
        let is_asked = rows.iter().zip(&is_first).any(|(row, first)| *first && self.is_outside(&row.work));
        let (mut firsts, mut ended) = (is_first.into_iter(), HashSet::new());
        rows.retain(|row| {
            let is_first = firsts.next().unwrap_or(true);
            if is_asked {
                return is_first && self.is_outside(&row.work);
            }
            if self.is_outside(&row.work) {
                ended.extend(key(row));
            }
            key(row).is_none_or(|key| !ended.contains(&key))
        });
        is_asked
    }

    /// Nobody else takes these while their turn and an answer may come. Ends the transaction, and answers in
    /// which life of the database they were claimed.
    pub(super) async fn claim(
        &self,
        mut tx: LentTransaction<'_>,
        rows: &[Deferred],
        timeout: Duration,
    ) -> Result<Witness, InboxError> {
        let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
        // An asking sends for as long as one answer may take, and the last one it sends may take as long.
        let seconds = (timeout * 2 + SLACK).as_secs_f64();
        let params = params![TEXT &*self.consumer, INT8_ARRAY seqs, FLOAT8 seconds];
        let claimed = match tx.query_anew(&self.statements.claim, params).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tx.rollback().await;
                return Err(inbox_error(error));
            }
        };
        tx.commit().await.map_err(inbox_error)?;
        Ok(claimed.first().map(super::witness).unwrap_or_default())
    }

    /// Asks about claimed messages, and brings in what was answered.
    pub(super) async fn round_outside(
        &self,
        rows: Vec<Deferred>,
        life: Witness,
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<Round, InboxError> {
        let works: Vec<&Work> = rows.iter().map(|row| &row.work).collect();
        let asking = self.askings.begin(life, heads.handler_timeout);
        let replies = self.ask_outside(&works, &asking).await;
        let (mut answered, mut refused, mut unasked) = (Vec::new(), Vec::new(), Vec::new());
        for (row, reply) in rows.iter().zip(replies) {
            match reply {
                Some(Ok(())) => answered.push(row),
                Some(Err(failure)) => refused.push((row, failure)),
                None => unasked.push(row),
            }
        }
        // What was answered comes first: a lock that stands in the way of a refused neighbour costs only that
        // one.
        let mut ended = self.bring_in_all(answered, life, heads, due).await;
        for (row, failure) in refused {
            match self.record(row, failure, heads, due).await {
                Ok(()) => self.forget_replies([&row.work]),
                Err(error) => ended = ended.and(Err(error)),
            }
        }
        // Somebody is away or busy: what was claimed with it waits for as long.
        for row in unasked {
            ended = ended.and(self.unclaim(row, heads).await);
        }
        ended.map(|()| Round::Done)
    }

    /// Brings in what was answered. One whose events cannot be appended keeps nobody else back.
    async fn bring_in_all(
        &self,
        answered: Vec<&Deferred>,
        life: Witness,
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<(), InboxError> {
        let mut groups = vec![answered];
        while let Some(mut group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            match self.bring_in(&group, life, heads, due).await? {
                BroughtIn::All => self.forget_replies(group.iter().map(|row| &row.work)),
                BroughtIn::Failed { at: None, .. } if group.len() > 1 => {
                    groups.extend(group.into_iter().map(|row| vec![row]));
                }
                BroughtIn::Failed { at, failure } => {
                    let row = group.remove(at.unwrap_or(0).min(group.len() - 1));
                    self.record(row, failure, heads, due).await?;
                    self.forget_replies([&row.work]);
                    groups.push(group);
                }
            }
        }
        Ok(())
    }

    /// Puts off a message that nobody was asked about. No attempt is counted.
    async fn unclaim(&self, row: &Deferred, heads: &DueHeads) -> Result<(), InboxError> {
        let failure = Failure::new(
            FailureKind::Unavailable("handler".into()),
            "handler.unavailable",
            "not asked: its handler is away, or busy with others",
        );
        self.transact(async |tx| {
            self.lock_key(tx, &row.work.delivery.partition().topic, row.work.order_id).await?;
            let pause = heads.unavailable_pause;
            let written = self.again(tx, row, &failure, row.work.attempts, pause).await?;
            Ok(((), if written { End::Commit } else { End::Rollback }))
        })
        .await
    }

    /// One transaction: events of the answers, and the rows go. What is no longer ours is left.
    async fn bring_in(
        &self,
        answered: &[&Deferred],
        life: Witness,
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<BroughtIn, InboxError> {
        let timeout = heads.handler_timeout;
        let mut session = self.session().await?;
        let mut tx = session.lend(timeout + SLACK).await.map_err(inbox_error)?;
        let claimed = match self.claimed(&mut tx, answered, timeout).await {
            Ok(claimed) => claimed,
            Err(OwnError(error)) => {
                tx.rollback().await;
                return Err(error);
            }
        };
        // In another life what the answers speak of may be gone. The claim ends, and they are asked again.
        if claimed.rows.is_empty() || claimed.life != life {
            tx.rollback().await;
            return Ok(BroughtIn::All);
        }
        let ClaimedRows { rows, xid, .. } = claimed;
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
                Ok(BroughtIn::All)
            }
            Err(Stop::Failed { at, failure }) => match failure.kind {
                FailureKind::Error | FailureKind::Timeout | FailureKind::Panic => {
                    let seq = at.and_then(|at| rows.get(at)).map(|row| row.seq);
                    let at = seq.and_then(|seq| answered.iter().position(|row| row.seq == seq));
                    Ok(BroughtIn::Failed { at, failure })
                }
                FailureKind::Conflict => Err(InboxError::Conflict(failure.message)),
                _ => Err(InboxError::Unavailable(failure.message)),
            },
            Err(Stop::Committed { .. }) => Err(InboxError::Broken(committed().message)),
        }
    }

    /// Claimed rows under the locks of their keys, as far as they are still ours.
    async fn claimed(
        &self,
        tx: &mut LentTransaction<'_>,
        answered: &[&Deferred],
        timeout: Duration,
    ) -> Result<ClaimedRows, OwnError> {
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
        let found = tx.query_anew(&self.statements.claimed, params).await?;
        let xid = found.first().map_or_else(String::new, |row| row.get("xid"));
        let life = found.first().map(super::witness).unwrap_or_default();
        let mut rows = found.iter().map(Deferred::of).collect::<Result<Vec<_>, _>>()?;
        // After deaths an attempt is counted before it is made: the reply was kept under the one before.
        for row in &mut rows {
            let asked = answered.iter().find(|asked| asked.seq == row.seq);
            row.work.attempts = asked.map_or(row.work.attempts, |asked| asked.work.attempts);
        }
        Ok(ClaimedRows { rows, xid, life })
    }
}

/// Rows that are still ours to bring in.
struct ClaimedRows {
    rows: Vec<Deferred>,
    xid: String,
    life: Witness,
}
