//! T3: deferred messages whose time has come. Any member may run them.
//!
//! Those of many keys run in one transaction. A failure in company counts for nobody: everything is rolled
//! back, and then one by one each shows by itself how it does.

use super::aside::{FailureColumns, unmatched};
use super::columns::{Deferred, count};
use super::failure::{OwnError, commit_failure, inbox_error};
use super::run::{GUARD, Ran, RunBounds, Stop, committed, judge};
use super::trace::TraceStatus;
use super::{End, OURS, OWN_TIME_MAX, PostgresInbox, SLACK, settings, witness};
use crate::session::{LentTransaction, params};
use posthaste::consumer::policy::Consequence;
use posthaste::consumer::store::{Burial, DueHeads, DueOutcome, DueStep, InboxError, Work};
use posthaste::consumer::{Disposition, Failure, FailureKind};
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Bytes of payload in one transaction; one message may exceed it alone.
const BYTES_MAX: i64 = 1 << 20;
/// A message in whose way another transaction was is looked at again after this long, others go first.
const CONFLICT_PAUSE: Duration = Duration::from_secs(1);
/// After so long no other one is begun alone: who calls may be about to end.
const TIME_MAX: Duration = Duration::from_secs(3);
/// When everything that is due is in the hands of others.
const LOCKED_PAUSE: Duration = Duration::from_millis(200);

const CRASHED: &str = "the process died whenever this message ran";

/// What one transaction came to.
pub(super) enum Round {
    /// There was nothing to do.
    Empty,
    Done,
    /// It was rolled back for this one, with so many others before it.
    Failed {
        row: Box<Deferred>,
        others: usize,
        failure: Failure,
    },
}

impl PostgresInbox {
    pub(super) async fn apply_due(&self, heads: &DueHeads) -> Result<DueOutcome, InboxError> {
        let mut due = DueOutcome::default();
        let mut alone = 0;
        // Nothing is due most of the time: one statement says so.
        self.look_ahead(&mut due).await?;
        if due.next_due.is_none_or(|next| !next.is_zero()) {
            return Ok(due);
        }
        // Each round moves something: a message is done, or has another time.
        let mut until = Instant::now() + TIME_MAX;
        for _ in 0..heads.messages_max.max(1) * 2 {
            let messages_max = if alone > 0 || heads.careful { 1 } else { heads.messages_max.max(1) };
            let charged = if heads.careful { self.charge(heads, &mut due).await? } else { None };
            match self.round(heads, messages_max, charged, &mut due).await? {
                Round::Empty => break,
                Round::Done if alone == 0 => break,
                Round::Done => alone -= 1,
                Round::Failed { row, others, failure } if others > 0 => {
                    due.note(&row.work, DueStep::Failed(failure.kind));
                    (alone, until) = (others + 1, Instant::now() + TIME_MAX);
                }
                Round::Failed { row, failure, .. } => {
                    self.record(&row, failure, heads, &mut due).await?;
                    alone = usize::saturating_sub(alone, 1);
                }
            }
            if heads.careful || Instant::now() >= until {
                break;
            }
        }
        self.look_ahead(&mut due).await?;
        let moved = due.moved() + due.failed.len() > 0;
        if !moved {
            due.next_due = due.next_due.map(|next| next.max(LOCKED_PAUSE));
        }
        Ok(due)
    }

    /// When the next message is due.
    async fn look_ahead(&self, due: &mut DueOutcome) -> Result<(), InboxError> {
        let rows = self.look(&self.statements.next_due, params![TEXT & *self.consumer]).await?;
        if let Some(row) = rows.first() {
            due.witness = witness(row);
            let seconds: Option<f64> = row.get("seconds");
            due.next_due = seconds.map(|seconds| Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0)));
        }
        Ok(())
    }

    /// One transaction.
    async fn round(
        &self,
        heads: &DueHeads,
        messages_max: usize,
        charged: Option<i64>,
        due: &mut DueOutcome,
    ) -> Result<Round, InboxError> {
        let mut session = self.session().await?;
        let timeout = heads.handler_timeout;
        let mut tx = session.lend(timeout + SLACK).await.map_err(inbox_error)?;
        let (mut rows, xid) = match self.pick(&mut tx, messages_max, timeout).await {
            Ok(found) => found,
            Err(OwnError(error)) => {
                tx.rollback().await;
                return Err(error);
            }
        };
        if heads.careful {
            // Only what was charged runs; its attempt is not one more.
            rows.retain(|row| Some(row.seq) == charged);
            rows.iter_mut().for_each(|row| row.work.attempts = row.work.attempts.saturating_sub(1));
        }
        if rows.is_empty() {
            tx.rollback().await;
            return Ok(Round::Empty);
        }
        if self.has_outside && self.keep_one_kind(&mut rows) {
            let life = self.claim(tx, &rows, timeout).await?;
            drop(session);
            return self.round_outside(rows, life, heads, due).await;
        }
        let works: Vec<&Work> = rows.iter().map(|row| &row.work).collect();
        let each = match self.due_each.load(Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        };
        let pace = RunBounds { timeout, time_max: Some(heads.handler_time_max), each };
        let Ran { count, begun, stop, time } = self.run(&mut tx, &works, &xid, pace).await;
        let stop = match stop {
            None => self.end_round(tx, &rows[..count], &xid, heads, due).await,
            Some(Stop::Committed { by }) => {
                self.take_out(&mut tx, &rows[..count.max(by + 1)]).await;
                Err(Stop::Committed { by })
            }
            Some(stop) => {
                tx.rollback().await;
                Err(stop)
            }
        };
        let (at, failure) = match stop {
            Ok(()) => {
                due.handler_time += time;
                let each = time.as_nanos() / count.max(1) as u128;
                self.due_each.store(u64::try_from(each).unwrap_or(u64::MAX), Relaxed);
                return Ok(Round::Done);
            }
            Err(Stop::Committed { .. }) => return Err(InboxError::Broken(committed().message)),
            Err(Stop::Failed { at, failure }) => (at, failure),
        };
        // Whoever comes next begins with one message again.
        self.due_each.store(0, Relaxed);
        // Nobody alone: whoever was in it is company for the first.
        let others = at.unwrap_or(begun.saturating_sub(1));
        let row = Box::new(rows.swap_remove(at.unwrap_or(0).min(rows.len() - 1)));
        Ok(Round::Failed { row, others, failure })
    }

    /// After deaths: counts the attempt of the first that is due, and commits that, before its handler runs.
    /// One whose attempts are spent so is given up.
    async fn charge(&self, heads: &DueHeads, due: &mut DueOutcome) -> Result<Option<i64>, InboxError> {
        let (charged, buried) = self
            .transact(async |tx| {
                let (rows, _) = self.pick(tx, 1, OWN_TIME_MAX).await?;
                let Some(row) = rows.first() else { return Ok(((None, None), End::Rollback)) };
                let spent = row.work.attempts;
                if spent > 0 && heads.retry.delay(spent, heads.chance).is_none() {
                    let failure = Failure::new(FailureKind::Error, "consumer.crashed", CRASHED);
                    let buried = self.give_up(tx, row, Disposition::Crashed, failure, spent, heads).await?;
                    self.promote(tx, &keys(&rows)).await?;
                    return Ok(((None, buried.then(|| row.work.clone())), End::Commit));
                }
                let consumer = &*self.consumer;
                let params = params![TEXT consumer, INT8 row.seq, INT4 row.attempts];
                tx.query(&self.statements.charge, params).await?;
                Ok(((Some(row.seq), None), End::Commit))
            })
            .await?;
        if let Some(work) = buried {
            due.note(&work, DueStep::Dead);
        }
        Ok(charged)
    }

    /// What is due, under the locks of its keys.
    async fn pick(
        &self,
        tx: &mut LentTransaction<'_>,
        messages_max: usize,
        timeout: Duration,
    ) -> Result<(Vec<Deferred>, String), OwnError> {
        let consumer = &*self.consumer;
        let sent = tx.send(&settings(timeout)).await?;
        let rows_max = i32::try_from(messages_max).unwrap_or(i32::MAX);
        let heads = tx.query(&self.statements.due, params![TEXT consumer, INT4 rows_max]).await;
        tx.hear_settings(sent).await?;
        let heads = heads?;
        let ours: Vec<i64> = heads.iter().filter(|row| row.get("ours")).map(|row| row.get("seq")).collect();
        if ours.is_empty() {
            return Ok((Vec::new(), String::new()));
        }
        let messages_max = i64::from(rows_max);
        let params = params![TEXT consumer, INT8_ARRAY ours, INT8 messages_max, INT8 BYTES_MAX];
        let rows = tx.query_anew(&self.statements.run, params).await?;
        let xid = rows.first().map_or_else(String::new, |row| row.get("xid"));
        Ok((rows.iter().map(Deferred::of).collect::<Result<_, _>>()?, xid))
    }

    /// Their handlers ran: the rows go, what waits behind them comes due.
    pub(super) async fn end_round(
        &self,
        mut tx: LentTransaction<'_>,
        rows: &[Deferred],
        xid: &str,
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<(), Stop> {
        let guard = async {
            let sent = tx.send(&format!("{OURS}; {GUARD}")).await?;
            tx.answer(sent).await
        };
        if let Err(stop) = judge(guard.await, xid, rows.len()) {
            match stop {
                Stop::Committed { .. } => self.take_out(&mut tx, rows).await,
                Stop::Failed { .. } => tx.rollback().await,
            }
            return Err(stop);
        }
        let (taken, unmatched): (Vec<&Deferred>, Vec<&Deferred>) =
            rows.iter().partition(|row| self.handler(&row.work.delivery).is_some());
        if let Err(OwnError(error)) = self.write_ends(&mut tx, rows, &unmatched, heads).await {
            tx.rollback().await;
            return Err(own_stop(error));
        }
        // CRASH(consume.deferred_done): nothing is durable. The rows are still there and due, and run again
        // (G5).
        posthaste::crash_point!("consume.deferred_done");
        tx.commit().await.map_err(|error| Stop::Failed { at: None, failure: commit_failure(error) })?;
        taken.iter().for_each(|row| due.note(&row.work, DueStep::Done));
        unmatched.iter().for_each(|row| due.note(&row.work, DueStep::Dead));
        Ok(())
    }

    async fn write_ends(
        &self,
        tx: &mut LentTransaction<'_>,
        rows: &[Deferred],
        unmatched_rows: &[&Deferred],
        heads: &DueHeads,
    ) -> Result<(), OwnError> {
        // Its mark is ours, so it ends as a dead letter, whatever is done with what never had one (G5).
        for row in unmatched_rows {
            self.give_up(tx, row, Disposition::Unmatched, unmatched(), row.work.attempts, heads).await?;
        }
        self.take_out_in(tx, rows).await?;
        self.promote(tx, &keys(rows)).await
    }

    /// Rows that are done leave. Those that were given up are gone already.
    async fn take_out_in(&self, tx: &mut LentTransaction<'_>, rows: &[Deferred]) -> Result<(), OwnError> {
        let consumer = &*self.consumer;
        let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
        let done = tx.query(&self.statements.done, params![TEXT consumer, INT8_ARRAY seqs]).await?;
        if self.mapped.is_none() {
            return Ok(());
        }
        let done: HashSet<&str> = done.iter().map(|row| row.get(0)).collect();
        let works = rows.iter().map(|row| &row.work).filter(|work| done.contains(&*work.id));
        self.traced(tx, &works.collect::<Vec<_>>(), TraceStatus::Processed).await?;
        Ok(())
    }

    /// A handler ended the transaction: what ran is done. The connection is not used again.
    async fn take_out(&self, tx: &mut LentTransaction<'_>, rows: &[Deferred]) {
        let _ = tx.tx.batch_execute("commit").await;
        let mut done = self.take_out_in(tx, rows).await;
        if done.is_ok() {
            done = self.promote(tx, &keys(rows)).await;
        }
        if let Err(OwnError(error)) = done {
            tracing::error!(
                consumer = &*self.consumer, %error,
                "a handler ended its transaction, and the deferred messages that it handled could not be taken out: they run \
                 again when the consumer starts"
            );
        }
    }

    /// Writes down how a message failed by itself.
    pub(super) async fn record(
        &self,
        row: &Deferred,
        mut failure: Failure,
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<(), InboxError> {
        let spent = row.work.attempts;
        let mut pause = heads.unavailable_pause;
        match failure.kind {
            FailureKind::Outage => {
                if heads.careful {
                    self.give_back(row, &failure).await;
                }
                return Err(InboxError::Unavailable(failure.message));
            }
            FailureKind::Broken | FailureKind::Committed => return Err(InboxError::Broken(failure.message)),
            FailureKind::Conflict => pause = CONFLICT_PAUSE,
            _ => {}
        }
        due.note(&row.work, DueStep::Failed(failure.kind.clone()));
        let consequence = heads.retry.decide_deferred(&mut failure, &row.work, heads.chance);
        let step = match consequence {
            Consequence::Dead { .. } => Some(DueStep::Dead),
            Consequence::Retry { .. } => Some(DueStep::Retried),
            Consequence::NotCounted => None,
        };
        let written = self
            .transact(async |tx| {
                self.lock_key(tx, &row.work.delivery.partition().topic, row.work.order_id).await?;
                let written = match consequence {
                    Consequence::Dead { attempts, disposition } => {
                        let given_up =
                            self.give_up(tx, row, disposition, failure.clone(), attempts, heads).await?;
                        self.promote(tx, &keys(std::slice::from_ref(row))).await?;
                        given_up
                    }
                    Consequence::Retry { attempts, delay } => {
                        self.again(tx, row, &failure, attempts, delay).await?
                    }
                    Consequence::NotCounted => self.again(tx, row, &failure, spent, pause).await?,
                };
                Ok((written, if written { End::Commit } else { End::Rollback }))
            })
            .await?;
        // Else somebody had it meanwhile.
        if written {
            if step != Some(DueStep::Dead) {
                due.failed.push(failure);
            }
            step.into_iter().for_each(|step| due.note(&row.work, step));
        }
        Ok(())
    }

    /// An outage spends no attempt, and after deaths one was counted before the handler ran (F50). Where the
    /// outage does not let us, it stays spent.
    async fn give_back(&self, row: &Deferred, failure: &Failure) {
        let given_back = self.transact(async |tx| {
            self.lock_key(tx, &row.work.delivery.partition().topic, row.work.order_id).await?;
            let written = self.again(tx, row, failure, row.work.attempts, Duration::ZERO).await?;
            Ok(((), if written { End::Commit } else { End::Rollback }))
        });
        if let Err(error) = given_back.await {
            tracing::debug!(consumer = &*self.consumer, %error, "an attempt that an outage spent stays spent");
        }
    }

    /// `false`: somebody else had it meanwhile.
    pub(super) async fn again(
        &self,
        tx: &mut LentTransaction<'_>,
        row: &Deferred,
        failure: &Failure,
        attempts: u32,
        delay: Duration,
    ) -> Result<bool, OwnError> {
        let consumer = &*self.consumer;
        let columns = FailureColumns::of(consumer, failure);
        let is_noted = attempts > row.work.attempts || failure.kind == FailureKind::ConnectionLost;
        let noted = if is_noted { history(row, failure) } else { row.work.history.to_json() };
        let params = params![
            TEXT consumer, INT8 row.seq, INT4 row.attempts, INT4 count(attempts),
            FLOAT8 delay.as_secs_f64(), TEXT columns.class, TEXT columns.code, TEXT columns.error,
            TEXT noted, TEXT &*row.work.id,
        ];
        Ok(!tx.query(&self.statements.again, params).await?.is_empty())
    }

    /// A deferred message becomes a dead letter. `false`: somebody else had it meanwhile.
    async fn give_up(
        &self,
        tx: &mut LentTransaction<'_>,
        row: &Deferred,
        disposition: Disposition,
        failure: Failure,
        attempts: u32,
        heads: &DueHeads,
    ) -> Result<bool, OwnError> {
        let consumer = &*self.consumer;
        let columns = FailureColumns::of(consumer, &failure);
        let burial = Burial { letter: Uuid::now_v7(), disposition, failure, holds_key: heads.dead_hold };
        let params = params![
            TEXT consumer, INT8 row.seq, INT4 row.attempts, UUID burial.letter, BOOL burial.holds_key,
            INT4 count(attempts), TEXT disposition.as_str(), TEXT columns.class, TEXT columns.code,
            TEXT columns.error, TEXT columns.stack, TEXT history(row, &burial.failure),
            INT8 columns.fingerprint, TEXT &*row.work.id,
        ];
        self.replace_letter(tx, &row.work.id, Some(row.seq)).await?;
        let died = tx.query(&self.statements.died, params).await?;
        let Some(died) = died.first() else { return Ok(false) };
        let work = Work { attempts, ..row.work.clone() };
        self.trace_death(tx, &work, &burial, died.get(0)).await?;
        self.tell(tx, &work, &burial).await?;
        Ok(true)
    }
}

/// The keys of rows, for what waits behind them.
pub(super) fn keys<'a>(rows: impl IntoIterator<Item = &'a Deferred>) -> Vec<(String, Uuid)> {
    let key = |row: &Deferred| Some((row.work.delivery.partition().topic.to_string(), row.work.order_id?));
    let mut keys: Vec<(String, Uuid)> = rows.into_iter().filter_map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The history with this failure.
fn history(row: &Deferred, failure: &Failure) -> Option<String> {
    let mut history = row.work.history.clone();
    history.push(row.read_at, failure.class(), &failure.code, &failure.message);
    history.to_json()
}

/// A statement of ours failed beside handlers.
fn own_stop(error: InboxError) -> Stop {
    let (kind, message) = match error {
        InboxError::Conflict(message) => (FailureKind::Conflict, message),
        InboxError::Unavailable(message) => (FailureKind::Outage, message),
        InboxError::Broken(message) => (FailureKind::Broken, message),
    };
    Stop::Failed { at: None, failure: Failure::new(kind, "inbox", message) }
}
