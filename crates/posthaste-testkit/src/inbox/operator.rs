//! The operator's side of the model.

use super::InboxDatabase;
use super::tables::{MarkOutcome, NEVER, mark_of, order_key, row};
use super::transaction::LockName;
use posthaste::consumer::store::Work;
use posthaste::source::Partition;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

impl InboxDatabase {
    /// Waits for the key of a dead letter: a hold leaves under the same lock that others go behind it under.
    async fn lock_key(&self, consumer: &str, letter: Uuid) -> Option<OwnedMutexGuard<()>> {
        let lock = {
            let life = self.life();
            let key = order_key(&life.tables.letters.get(&letter)?.row.work)?;
            life.locks.of(LockName::Key(consumer.to_owned(), key))
        };
        Some(lock.lock_owned().await)
    }

    /// Replays a dead letter. `false`: somebody was quicker.
    pub async fn replay(&self, consumer: &str, letter: Uuid) -> bool {
        let _key = self.lock_key(consumer, letter).await;
        let now = self.now();
        self.alter(|tables| tables.replay(consumer, letter, None, now))
    }

    /// Discards a dead letter. Its mark stays: a copy that comes later is not handled.
    pub async fn discard(&self, consumer: &str, letter: Uuid) -> bool {
        let _key = self.lock_key(consumer, letter).await;
        let now = self.now();
        self.alter(|tables| {
            let Some(gone) = tables.letters.remove(&letter) else { return false };
            tables.promote(consumer, &gone.row.work, now);
            true
        })
    }

    /// Moves a partition.
    pub fn seek(&self, consumer: &str, partition: &Partition, to: i64) {
        self.alter(|tables| {
            let row = tables.partitions.entry((consumer.to_owned(), partition.clone())).or_default();
            (row.position, row.position_time, row.seeks) = (Some(to), None, row.seeks + 1);
        });
    }

    /// Copies messages for a range replay: a queue of their own, which holds nobody up. Without `repeat`
    /// what has a mark is left out. With it what is done is done once more. Nothing is copied from beyond the
    /// saved position. Answers how many were copied.
    pub fn copy_range(&self, consumer: &str, range: &[Work], repeat: bool) -> usize {
        let now = self.now();
        self.alter(|tables| {
            let mut copied = 0;
            for work in range {
                let place = (consumer.to_owned(), work.delivery.partition().clone());
                let saved = tables.partitions.get(&place).and_then(|row| row.position);
                if work.delivery.position.is_none() || work.delivery.position >= saved {
                    continue;
                }
                let waits = tables.deferred_of(consumer).any(|row| row.repeat && row.work.id == work.id);
                if if repeat { waits } else { tables.mark(consumer, &work.id).is_some() } {
                    continue;
                }
                if !repeat {
                    let mark = mark_of(&work.delivery, MarkOutcome::Deferred, now);
                    tables.set_mark(consumer, &work.id, mark);
                }
                let seq = tables.draw_seq(consumer);
                let mut row = row(seq, work, NEVER, now);
                (row.holds, row.repeat) = (false, repeat);
                if work.order_id.is_none() {
                    row.due_at = now;
                }
                tables.deferred.insert(seq, row);
                tables.promote(consumer, work, now);
                copied += 1;
            }
            copied
        })
    }

    /// Every deferred message that waits for its time, and not behind another, is due.
    pub fn make_due(&self, consumer: &str) {
        let now = self.now();
        self.alter(|tables| {
            let due: Vec<i64> =
                tables.deferred_of(consumer).filter(|row| !row.is_behind()).map(|row| row.seq).collect();
            for seq in due {
                if let Some(row) = tables.deferred.get_mut(&seq) {
                    row.due_at = row.due_at.min(now);
                }
            }
        });
    }

    /// Makes marks and dead letters older, and the time since partitions were taken longer.
    pub fn age(&self, consumer: &str, by: Duration) {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.alter(|tables| {
            for ((of, _), mark) in &mut tables.marks {
                if of == consumer {
                    mark.at = mark.at.plus_micros(-by);
                }
            }
            for letter in tables.letters.values_mut() {
                letter.dead_at = letter.dead_at.plus_micros(-by);
            }
            for row in tables.partitions.values_mut() {
                row.taken_at = row.taken_at.map(|at| at.plus_micros(-by));
            }
        });
    }
}
