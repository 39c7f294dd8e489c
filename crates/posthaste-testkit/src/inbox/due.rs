//! T3 of the model: deferred messages that are due.

use super::store::micros;
use super::tables::{MarkOutcome, SetAsideRow, Tables, burial, mark_of, noted, order_key};
use super::transaction::LockName;
use super::{MemoryInbox, MemoryTransaction};
use posthaste::consumer::policy::Consequence;
use posthaste::consumer::store::{DueHeads, DueOutcome, DueStep, InboxError, Work};
use posthaste::consumer::{Disposition, Failure, FailureKind};
use posthaste::event::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// How long a look that found everything locked is to wait.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// What is done with a failure while due messages run: it is theirs, or everybody's.
fn of_store(failure: &Failure) -> Option<InboxError> {
    let message = failure.message.clone();
    match failure.kind {
        FailureKind::Conflict => Some(InboxError::Conflict(message)),
        FailureKind::Outage => Some(InboxError::Unavailable(message)),
        FailureKind::Committed | FailureKind::Broken => Some(InboxError::Broken(message)),
        _ => None,
    }
}

impl MemoryInbox {
    /// T3: due heads with what follows them, together.
    pub(super) async fn run_due(&self, heads: &DueHeads) -> Result<DueOutcome, InboxError> {
        let consumer = &*self.consumer;
        let now = self.database.now();
        let mut due = DueOutcome { witness: self.begin().witness, ..DueOutcome::default() };
        let found = self.begin().statement(|tables| due_heads(tables, consumer, now)).await?;
        let mut queues: Vec<i64> = found.into_iter().take(heads.messages_max).collect();
        let alone = DueHeads { messages_max: 1, ..heads.clone() };
        let mut heads = heads;
        // Held from the count to the end: of two careful looks only one counts.
        let mut counting = self.begin();
        if heads.careful {
            queues.truncate(1);
            heads = &alone;
            if let Some(seq) = queues.first()
                && !(counting.try_lock(LockName::Attempt(*seq))
                    && self.write_attempt(*seq, heads, &mut due).await?)
            {
                queues.clear();
            }
        }
        match self.run_together(&queues, heads, &mut due).await? {
            None => {}
            Some((row, failure, false)) => self.record(row, failure, heads, &mut due).await?,
            // It failed in company, which counts for nobody: each head alone. Followers come due after
            // theirs.
            Some((row, failure, true)) => {
                due.note(&row.work, DueStep::Failed(failure.kind));
                for seq in queues {
                    if let Some((row, failure, _)) = self.run_together(&[seq], &alone, &mut due).await? {
                        self.record(row, failure, heads, &mut due).await?;
                    }
                }
            }
        }
        let moved = due.moved() + due.failed.len() > 0;
        due.next_due = self.begin().statement(|tables| next_due(tables, consumer, now)).await?;
        if due.next_due.is_some_and(|next| next.is_zero()) && !moved {
            due.next_due = Some(LOCKED_PAUSE);
        }
        Ok(due)
    }

    /// Runs these heads and what is behind them in one transaction. Answers with the failure that undid it:
    /// whose it was, and whether others had run before it.
    async fn run_together(
        &self,
        queues: &[i64],
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<Option<(SetAsideRow, Failure, bool)>, InboxError> {
        let consumer = &*self.consumer;
        let mut tx = self.begin();
        let mut rows: Vec<SetAsideRow> = Vec::new();
        for seq in queues {
            let key = tx.statement(|tables| tables.deferred.get(seq).map(|row| order_key(&row.work))).await?;
            let Some(key) = key else { continue };
            let free = tx.try_lock(LockName::Row(*seq))
                && key.is_none_or(|key| tx.try_lock(LockName::Key(consumer.to_owned(), key)));
            if free {
                let room = heads.messages_max - rows.len();
                let now = self.database.now();
                let found = tx.statement(|tables| run_of(tables, consumer, *seq, room, now)).await?;
                rows.extend(found);
            }
        }
        let began = Instant::now();
        let mut work_done = MemoryTransaction::default();
        let mut ended: Vec<(SetAsideRow, bool)> = Vec::new();
        for row in rows {
            let taken = self.filter.takes_delivery(&row.work.delivery);
            if taken {
                if !ended.is_empty() && began.elapsed() >= heads.handler_time_max {
                    break;
                }
                let handled = self.run(&mut work_done, &row.work, heads.handler_timeout).await;
                tx.statement(|_| ()).await?;
                if let Err(failure) = handled {
                    return Ok(Some((row, failure, !ended.is_empty())));
                }
            }
            ended.push((row, taken));
        }
        if let (Some(failure), Some((row, _))) = (work_done.refused, ended.first()) {
            return Ok(Some((row.clone(), failure, ended.len() > 1)));
        }
        let (now, handler_time) = (self.database.now(), began.elapsed());
        tx.commit(|tables| {
            for (row, taken) in ended.clone() {
                if !taken {
                    let failure = Failure::new(
                        FailureKind::Poison(Disposition::Unmatched),
                        "consumer.unmatched",
                        "no handler takes it",
                    );
                    let burial = burial(&row, Disposition::Unmatched, failure, heads.dead_hold);
                    tables.bury(consumer, row, burial, now);
                    continue;
                }
                tables.deferred.remove(&row.seq);
                if !row.repeat {
                    let mark = mark_of(&row.work.delivery, MarkOutcome::Done, now);
                    tables.set_mark(consumer, &row.work.id, mark);
                }
                tables.promote(consumer, &row.work, now);
            }
            tables.effects.append(&mut work_done.effects);
        })
        .await?;
        due.handler_time += handler_time;
        for (row, taken) in &ended {
            due.note(&row.work, if *taken { DueStep::Done } else { DueStep::Dead });
        }
        Ok(None)
    }

    /// Counts the attempt before it is made. `false`: it was made before, and nobody lived to say how it
    /// ended.
    async fn write_attempt(
        &self,
        seq: i64,
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<bool, InboxError> {
        let (consumer, now) = (&*self.consumer, self.database.now());
        let mut tx = self.begin();
        let key = tx.statement(|tables| tables.deferred.get(&seq).map(|row| order_key(&row.work))).await?;
        let Some(key) = key else { return Ok(false) };
        // The row, too: one without a key may be running at another member.
        let is_free = tx.try_lock(LockName::Row(seq))
            && key.is_none_or(|key| tx.try_lock(LockName::Key(consumer.to_owned(), key)));
        if !is_free {
            return Ok(false);
        }
        let died = tx.commit(|tables| {
            let mut row = tables.deferred.get(&seq).cloned()?;
            let work = row.work.clone();
            let is_over = row.work.attempts > 0 && heads.retry.delay(row.work.attempts, 0.0).is_none();
            if is_over {
                let why = "the process died with it too often";
                let failure =
                    Failure::new(FailureKind::Poison(Disposition::Crashed), "consumer.crashed", why);
                let burial = burial(&row, Disposition::Crashed, failure, heads.dead_hold);
                tables.bury(consumer, row, burial, now);
            } else {
                row.work.attempts += 1;
                tables.deferred.insert(seq, row);
            }
            Some((is_over, work))
        });
        let Some((died, work)) = died.await? else { return Ok(false) };
        if died {
            due.note(&work, DueStep::Dead);
        }
        Ok(!died)
    }

    /// Writes down how a due message failed alone.
    async fn record(
        &self,
        row: SetAsideRow,
        mut failure: Failure,
        heads: &DueHeads,
        due: &mut DueOutcome,
    ) -> Result<(), InboxError> {
        if let Some(error) = of_store(&failure) {
            return Err(error);
        }
        let consumer = &*self.consumer;
        let mut tx = self.begin();
        if let Some(key) = order_key(&row.work) {
            tx.lock(LockName::Key(consumer.to_owned(), key)).await?;
        }
        let now = self.database.now();
        // A careful look has counted this attempt already.
        let spent = row.work.attempts - u32::from(heads.careful);
        let before = Work { attempts: spent, ..row.work.clone() };
        let consequence = heads.retry.decide_deferred(&mut failure, &before, heads.chance);
        let is_counted = matches!(consequence, Consequence::Retry { .. });
        let work = row.work.clone();
        due.note(&row.work, DueStep::Failed(failure.kind.clone()));
        let followed = tx.commit(|tables| {
            // Somebody may have run it, or failed with it, before we had the lock. In another life of the
            // database its number may be another message's.
            let ran = (&row.work.id, row.work.attempts);
            let same = tables.deferred.get(&row.seq).filter(|now| (&now.work.id, now.work.attempts) == ran);
            let mut row = same.cloned()?;
            row.work.attempts = spent;
            let counted = |row: &mut SetAsideRow, attempts| {
                row.work.attempts = attempts;
                row.work.history = noted(&row.work.history, &failure, now);
            };
            match consequence {
                Consequence::Dead { attempts, disposition } => {
                    counted(&mut row, attempts);
                    let burial = burial(&row, disposition, failure.clone(), heads.dead_hold);
                    tables.bury(consumer, row, burial, now);
                    return Some(DueStep::Dead);
                }
                Consequence::Retry { attempts, delay } => {
                    counted(&mut row, attempts);
                    row.due_at = now.plus_micros(micros(delay));
                }
                Consequence::NotCounted => {
                    if failure.kind == FailureKind::ConnectionLost {
                        counted(&mut row, spent);
                    }
                    row.due_at = now.plus_micros(micros(heads.unavailable_pause));
                }
            }
            row.failure = Some(failure.clone());
            tables.deferred.insert(row.seq, row);
            is_counted.then_some(DueStep::Retried)
        });
        let followed = followed.await?;
        if followed != Some(DueStep::Dead) {
            due.failed.push(failure);
        }
        if let Some(step) = followed {
            due.note(&work, step);
        }
        Ok(())
    }
}

/// Heads that are due, the longest due first.
fn due_heads(tables: &Tables, consumer: &str, now: Timestamp) -> Vec<i64> {
    let due = |row: &&SetAsideRow| row.due_at <= now && tables.is_head(consumer, row);
    let mut heads: Vec<(Timestamp, i64)> =
        tables.deferred_of(consumer).filter(due).map(|row| (row.due_at, row.seq)).collect();
    heads.sort_unstable();
    heads.into_iter().map(|(_, seq)| seq).collect()
}

/// A due head and what can follow it, if it still is one.
fn run_of(tables: &Tables, consumer: &str, seq: i64, room: usize, now: Timestamp) -> Vec<SetAsideRow> {
    let Some(head) = tables.deferred.get(&seq) else { return Vec::new() };
    if head.due_at > now || !tables.is_head(consumer, head) {
        return Vec::new();
    }
    let queue = tables.queue(consumer, head).into_iter();
    let goes =
        |row: &&SetAsideRow| (row.seq == seq || row.is_behind()) && !tables.is_behind_a_letter(consumer, row);
    queue.take_while(goes).take(room).cloned().collect()
}

fn next_due(tables: &Tables, consumer: &str, now: Timestamp) -> Option<Duration> {
    let heads = tables.deferred_of(consumer).filter(|row| !row.is_behind() && tables.is_head(consumer, row));
    let next = heads.map(|row| row.due_at).min()?;
    Some(Duration::from_micros(u64::try_from(next.0 - now.0).unwrap_or(0)))
}
