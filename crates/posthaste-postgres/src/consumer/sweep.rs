//! Housekeeping: old marks, dead letters whose declared retention is over, counts.

use super::{End, PostgresInbox, witness};
use crate::session::params;
use posthaste::consumer::store::{ConsumerRetention, InboxError, InboxSwept};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Rows of a chunk. The same number stands in the statements.
const CHUNK: usize = 1_000;
/// A sweep ends after this long; the next one goes on.
const TIME_MAX: Duration = Duration::from_secs(2);

impl PostgresInbox {
    pub(super) async fn clean_up(
        &self,
        retention: ConsumerRetention,
        deferred_max: u64,
    ) -> Result<InboxSwept, InboxError> {
        let until = Instant::now() + TIME_MAX;
        // Mapped ones belong to the service.
        let marks = match self.mapped {
            Some(ref mapped) if !mapped.is_by_app => 0,
            _ => self.purge(&self.statements.purge_marks, retention.marks_days, until).await?,
        };
        let mut letters = 0;
        if retention.dead_letter_days > 0 {
            let days = retention.dead_letter_days;
            letters = self.purge(&self.statements.purge_letters, days, until).await?;
            letters += self.purge_holding(days, until).await?;
        }
        let consumer = &*self.consumer;
        let rows_max = i64::try_from(deferred_max).unwrap_or(i64::MAX);
        self.transact_alone(async |tx| {
            tx.query(&self.statements.forget_processes, params![TEXT consumer]).await?;
            let rows = tx.query(&self.statements.count, params![TEXT consumer, INT8 rows_max]).await?;
            let mut swept = InboxSwept { marks, letters, ..InboxSwept::default() };
            if let Some(row) = rows.first() {
                swept.witness = witness(row);
                swept.deferred = row.get::<_, i64>("deferred").unsigned_abs();
                swept.dead_letters = row.get::<_, i64>("dead_letters").unsigned_abs();
                let age: Option<f64> = row.get("oldest_deferred");
                swept.oldest_deferred = age.map(|age| Duration::from_secs_f64(age.max(0.0)));
            }
            Ok((swept, End::Commit))
        })
        .await
    }

    /// Chunk after chunk, each a transaction of its own.
    async fn purge(&self, sql: &str, days: u32, until: Instant) -> Result<u64, InboxError> {
        let (consumer, days) = (&*self.consumer, i32::try_from(days).unwrap_or(i32::MAX));
        let mut purged = 0;
        loop {
            let params = params![TEXT consumer, INT4 days];
            let gone =
                self.transact_alone(async |tx| Ok((tx.query(sql, params).await?.len(), End::Commit))).await?;
            purged += gone as u64;
            if gone < CHUNK || Instant::now() >= until {
                return Ok(purged);
            }
        }
    }

    /// Letters that hold their key leave one by one, under its lock, and what waited comes due.
    async fn purge_holding(&self, days: u32, until: Instant) -> Result<u64, InboxError> {
        let (consumer, days) = (&*self.consumer, i32::try_from(days).unwrap_or(i32::MAX));
        let found = self.look(&self.statements.holding_letters, params![TEXT consumer, INT4 days]).await?;
        let mut purged = 0;
        for row in found.iter().take_while(|_| Instant::now() < until) {
            let (letter, topic, order_id): (Uuid, String, Option<Uuid>) =
                (row.get(0), row.get(1), row.get(2));
            purged += self
                .transact_alone(async |tx| {
                    self.lock_key(tx, &topic, order_id).await?;
                    let params = params![TEXT consumer, UUID letter];
                    let gone = tx.query(&self.statements.drop_letter, params).await?.len() as u64;
                    let keys: Vec<(String, Uuid)> =
                        order_id.map(|id| (topic.clone(), id)).into_iter().collect();
                    self.promote(tx, &keys).await?;
                    Ok((gone, End::Commit))
                })
                .await?;
        }
        Ok(purged)
    }
}
