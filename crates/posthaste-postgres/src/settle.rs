//! Settling: one transaction for a whole batch, the receipt among it.
//!
//! The receipt comes first: if the lane has gone elsewhere, its primary key fails before anything else
//! is written. A settlement without deferred or dead events is a single statement. Repeating one whose
//! outcome is unknown is harmless: the receipt of that number is there already, with our epoch.

use crate::error::{commit_error, is_code, store_error};
use crate::lease::{LogLease, Settled, Tally, tally};
use crate::session::{Param, Session};
use posthaste::crash_point;
use posthaste::cursor::{Mark, Position};
use posthaste::store::{Death, Deferral, Due, Settlement, StoreError};
use std::sync::atomic::Ordering;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// What a receipt says.
struct Receipt {
    n: i64,
    mark: i64,
    position: Position,
    tallies: Vec<Tally>,
}

/// How inserting a receipt ended.
enum Inserted {
    /// It is there; its transaction's id.
    Now(Option<u64>),
    /// It was there already: an earlier try of ours was committed after all.
    Before,
}

impl LogLease {
    pub(crate) async fn write_settlement(&self, settlement: &Settlement) -> Result<(), StoreError> {
        let mut settled = self.settled.lock().await;
        if self.is_settled(settlement) {
            return Ok(());
        }
        let receipt = self.receipt(&settled, settlement);
        let mut session = self.session().await?;
        let changes =
            !settlement.deferred.is_empty() || !settlement.dead.is_empty() || has_outcome(settlement);
        if changes {
            // Before the rows are there: a page that is read from now on must look.
            self.set_holding();
        }
        let inserted = if changes {
            self.in_transaction(&mut session, settlement, &receipt).await?
        } else {
            self.insert_receipt(&mut session, &receipt, true).await?
        };
        if let Inserted::Now(Some(xid)) = inserted {
            self.add_mark(Mark { xid, seq: receipt.mark });
        }
        self.advance(&mut settled, settlement.through, receipt);
        Ok(())
    }

    /// A settlement of pages that are settled already, and nothing else.
    fn is_settled(&self, settlement: &Settlement) -> bool {
        let Some(through) = settlement.through else { return settlement.is_empty() };
        let first = self.steps().front().map(|step| step.number);
        !has_outcome(settlement) && first.is_none_or(|first| first > through)
    }

    fn receipt(&self, settled: &Settled, settlement: &Settlement) -> Receipt {
        let mut receipt = Receipt {
            n: settled.n + 1,
            mark: self.known_seq.load(Ordering::Relaxed),
            position: settled.position.clone(),
            tallies: Vec::new(),
        };
        let Some(through) = settlement.through else { return receipt };
        for step in self.steps().iter().take_while(|step| step.number <= through) {
            receipt.position = step.after.clone();
            for one in &step.tally {
                tally(&mut receipt.tallies, one.segment, one.count, one.sum);
            }
        }
        receipt
    }

    fn advance(&self, settled: &mut Settled, through: Option<u64>, receipt: Receipt) {
        settled.n = receipt.n;
        settled.position = receipt.position;
        let mut steps = self.steps();
        while steps.front().is_some_and(|step| through.is_some_and(|through| step.number <= through)) {
            steps.pop_front();
        }
    }

    async fn in_transaction(
        &self,
        session: &mut Session,
        settlement: &Settlement,
        receipt: &Receipt,
    ) -> Result<Inserted, StoreError> {
        session.begin().await.map_err(store_error)?;
        let written = self.write_all(session, settlement, receipt).await;
        let inserted = match written {
            Ok(Inserted::Before) => {
                session.rollback().await;
                return Ok(Inserted::Before);
            }
            Ok(inserted) => inserted,
            Err(error) => {
                session.rollback().await;
                return Err(error);
            }
        };
        // CRASH(settle.uncommitted): the transaction is rolled back with the connection: nothing is
        // settled, the next owner publishes the batch again (G2).
        crash_point!("settle.uncommitted");
        session.commit().await.map_err(commit_error)?;
        Ok(inserted)
    }

    async fn write_all(
        &self,
        session: &mut Session,
        settlement: &Settlement,
        receipt: &Receipt,
    ) -> Result<Inserted, StoreError> {
        let inserted = self.insert_receipt(session, receipt, false).await?;
        if matches!(inserted, Inserted::Before) {
            return Ok(inserted);
        }
        let mut keys = self.defer(session, settlement).await?;
        self.bury(session, settlement).await?;
        keys.extend(self.leave_deferred(session, settlement).await?);
        self.promote(session, keys).await?;
        Ok(inserted)
    }

    async fn insert_receipt(
        &self,
        session: &mut Session,
        receipt: &Receipt,
        alone: bool,
    ) -> Result<Inserted, StoreError> {
        let sql = self.sql(include_str!("../sql/receipt.sql"));
        let sink: &str = &self.id.sink;
        let position = &receipt.position;
        let target = position.catching_up.as_ref().map(|catch_up| catch_up.target.to_string());
        let late = position.catching_up.as_ref().map(|catch_up| catch_up.late_position);
        let segments: Vec<i16> = receipt.tallies.iter().map(|tally| tally.segment).collect();
        let counts: Vec<i64> = receipt.tallies.iter().map(|tally| tally.count).collect();
        let sums: Vec<i64> = receipt.tallies.iter().map(|tally| tally.sum).collect();
        let snapshot = position.snapshot.to_string();
        let params: [Param<'_>; 12] = [
            (&sink, Type::TEXT),
            (&self.id.lane, Type::INT2),
            (&receipt.n, Type::INT8),
            (&self.epoch, Type::INT8),
            (&receipt.mark, Type::INT8),
            (&position.position, Type::INT8),
            (&snapshot, Type::TEXT),
            (&target, Type::TEXT),
            (&late, Type::INT8),
            (&segments, Type::INT2_ARRAY),
            (&counts, Type::INT8_ARRAY),
            (&sums, Type::INT8_ARRAY),
        ];
        let result =
            if alone { session.query_alone(&sql, &params).await } else { session.query(&sql, &params).await };
        match result {
            Ok(rows) => {
                let Some(row) = rows.first() else { return Err(StoreError::LeaseLost(self.id.clone())) };
                Ok(Inserted::Now(row.get::<_, &str>(0).parse().ok()))
            }
            Err(error) if is_code(&error, &SqlState::UNIQUE_VIOLATION) => {
                // The same connection: waiting for another one while holding this could starve the pool.
                session.rollback().await;
                self.whose(session, receipt.n).await
            }
            // Alone it commits by itself: a lost connection leaves the outcome unknown.
            Err(error) if alone => Err(commit_error(error)),
            Err(error) => Err(store_error(error)),
        }
    }

    /// A receipt of that number is there already: an earlier try of ours, or the new owner's fence.
    async fn whose(&self, session: &mut Session, n: i64) -> Result<Inserted, StoreError> {
        let sql = self.sql("select epoch from posthaste.receipts where sink = $1 and lane = $2 and n = $3");
        let sink: &str = &self.id.sink;
        let params: [Param<'_>; 3] = [(&sink, Type::TEXT), (&self.id.lane, Type::INT2), (&n, Type::INT8)];
        let rows = session.query(&sql, &params).await.map_err(store_error)?;
        match rows.first() {
            Some(row) if row.get::<_, i64>(0) == self.epoch => Ok(Inserted::Before),
            _ => Err(StoreError::LeaseLost(self.id.clone())),
        }
    }

    /// Copies the events that wait. Answers with the keys of those that wait behind another.
    async fn defer(&self, session: &mut Session, settlement: &Settlement) -> Result<Vec<String>, StoreError> {
        if settlement.deferred.is_empty() {
            return Ok(Vec::new());
        }
        let list = &settlement.deferred;
        let column = |pick: fn(&Deferral) -> &str| list.iter().map(|(_, d)| pick(d)).collect::<Vec<&str>>();
        let seqs: Vec<i64> = list.iter().map(|(stored, _)| stored.seq).collect();
        let holds: Vec<bool> = list.iter().map(|(_, d)| d.holds).collect();
        let attempts: Vec<i32> = list.iter().map(|(_, d)| d.attempts as i32).collect();
        let delays: Vec<f64> = list.iter().map(|(_, d)| delay(d)).collect();
        let classes: Vec<Option<&str>> =
            list.iter().map(|(_, d)| d.class.map(|class| class.as_str())).collect();
        let errors: Vec<Option<String>> =
            list.iter().map(|(_, d)| d.error.as_deref().map(storable)).collect();
        let sink: &str = &self.id.sink;
        let sql = self.sql(include_str!("../sql/defer.sql"));
        session
            .query(
                &sql,
                &[
                    (&sink, Type::TEXT),
                    (&seqs, Type::INT8_ARRAY),
                    (&column(|d| &d.route), Type::TEXT_ARRAY),
                    (&column(|d| &d.destination), Type::TEXT_ARRAY),
                    (&column(|d| d.reason.as_str()), Type::TEXT_ARRAY),
                    (&holds, Type::BOOL_ARRAY),
                    (&attempts, Type::INT4_ARRAY),
                    (&column(due_word), Type::TEXT_ARRAY),
                    (&delays, Type::FLOAT8_ARRAY),
                    (&classes, Type::TEXT_ARRAY),
                    (&errors, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(store_error)?;
        let behind = list.iter().filter(|(_, d)| d.due == Due::Behind);
        Ok(behind.filter_map(|(stored, _)| stored.event.key.clone()).collect())
    }

    async fn bury(&self, session: &mut Session, settlement: &Settlement) -> Result<(), StoreError> {
        if settlement.dead.is_empty() {
            return Ok(());
        }
        let list = &settlement.dead;
        let column = |pick: fn(&Death) -> &str| list.iter().map(|(_, d)| pick(d)).collect::<Vec<&str>>();
        let seqs: Vec<i64> = list.iter().map(|(stored, _)| stored.seq).collect();
        let holds: Vec<bool> = list.iter().map(|(_, d)| d.holds).collect();
        let attempts: Vec<i32> = list.iter().map(|(_, d)| d.attempts as i32).collect();
        let codes: Vec<String> = list.iter().map(|(_, d)| storable(&d.code)).collect();
        let errors: Vec<String> = list.iter().map(|(_, d)| storable(&d.error)).collect();
        let sink: &str = &self.id.sink;
        let sql = self.sql(include_str!("../sql/bury.sql"));
        session
            .query(
                &sql,
                &[
                    (&sink, Type::TEXT),
                    (&seqs, Type::INT8_ARRAY),
                    (&column(|d| &d.route), Type::TEXT_ARRAY),
                    (&holds, Type::BOOL_ARRAY),
                    (&attempts, Type::INT4_ARRAY),
                    (&column(|d| d.class.as_str()), Type::TEXT_ARRAY),
                    (&codes, Type::TEXT_ARRAY),
                    (&errors, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(store_error)?;
        Ok(())
    }

    /// What became of deferred events. Answers with the keys whose next event may go.
    async fn leave_deferred(
        &self,
        session: &mut Session,
        settlement: &Settlement,
    ) -> Result<Vec<String>, StoreError> {
        let sink: &str = &self.id.sink;
        let mut keys: Vec<String> = Vec::new();
        if !settlement.delivered.is_empty() {
            let sql = self.sql(include_str!("../sql/delivered.sql"));
            let params: [Param<'_>; 2] = [(&sink, Type::TEXT), (&settlement.delivered, Type::INT8_ARRAY)];
            let rows = session.query(&sql, &params).await.map_err(store_error)?;
            keys.extend(rows.iter().filter_map(|row| row.get::<_, Option<String>>(0)));
        }
        if !settlement.again.is_empty() {
            self.wait_again(session, &settlement.again).await?;
        }
        if !settlement.died.is_empty() {
            keys.extend(self.die(session, &settlement.died).await?);
        }
        Ok(keys)
    }

    async fn wait_again(&self, session: &mut Session, list: &[(i64, Deferral)]) -> Result<(), StoreError> {
        let sink: &str = &self.id.sink;
        let seqs: Vec<i64> = list.iter().map(|(seq, _)| *seq).collect();
        let attempts: Vec<i32> = list.iter().map(|(_, d)| d.attempts as i32).collect();
        let reasons: Vec<&str> = list.iter().map(|(_, d)| d.reason.as_str()).collect();
        let destinations: Vec<&str> = list.iter().map(|(_, d)| d.destination.as_str()).collect();
        let holds: Vec<bool> = list.iter().map(|(_, d)| d.holds).collect();
        let delays: Vec<f64> = list.iter().map(|(_, d)| delay(d)).collect();
        let classes: Vec<Option<&str>> =
            list.iter().map(|(_, d)| d.class.map(|class| class.as_str())).collect();
        let errors: Vec<Option<String>> =
            list.iter().map(|(_, d)| d.error.as_deref().map(storable)).collect();
        let sql = self.sql(include_str!("../sql/again.sql"));
        session
            .query(
                &sql,
                &[
                    (&sink, Type::TEXT),
                    (&seqs, Type::INT8_ARRAY),
                    (&attempts, Type::INT4_ARRAY),
                    (&reasons, Type::TEXT_ARRAY),
                    (&destinations, Type::TEXT_ARRAY),
                    (&holds, Type::BOOL_ARRAY),
                    (&delays, Type::FLOAT8_ARRAY),
                    (&classes, Type::TEXT_ARRAY),
                    (&errors, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(store_error)?;
        Ok(())
    }

    async fn die(&self, session: &mut Session, list: &[(i64, Death)]) -> Result<Vec<String>, StoreError> {
        let sink: &str = &self.id.sink;
        let seqs: Vec<i64> = list.iter().map(|(seq, _)| *seq).collect();
        let holds: Vec<bool> = list.iter().map(|(_, d)| d.holds).collect();
        let attempts: Vec<i32> = list.iter().map(|(_, d)| d.attempts as i32).collect();
        let classes: Vec<&str> = list.iter().map(|(_, d)| d.class.as_str()).collect();
        let codes: Vec<String> = list.iter().map(|(_, d)| storable(&d.code)).collect();
        let errors: Vec<String> = list.iter().map(|(_, d)| storable(&d.error)).collect();
        let sql = self.sql(include_str!("../sql/died.sql"));
        let rows = session
            .query(
                &sql,
                &[
                    (&sink, Type::TEXT),
                    (&seqs, Type::INT8_ARRAY),
                    (&holds, Type::BOOL_ARRAY),
                    (&attempts, Type::INT4_ARRAY),
                    (&classes, Type::TEXT_ARRAY),
                    (&codes, Type::TEXT_ARRAY),
                    (&errors, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(store_error)?;
        Ok(rows.iter().filter_map(|row| row.get(0)).collect())
    }

    async fn promote(&self, session: &mut Session, mut keys: Vec<String>) -> Result<(), StoreError> {
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return Ok(());
        }
        let sink: &str = &self.id.sink;
        let sql = self.sql(include_str!("../sql/promote.sql"));
        let params: [Param<'_>; 2] = [(&sink, Type::TEXT), (&keys, Type::TEXT_ARRAY)];
        session.query(&sql, &params).await.map_err(store_error)?;
        Ok(())
    }
}

/// An error's text as the database takes it: no zero byte, and not without end. It comes from a broker,
/// and must never be the reason why a settlement cannot be written.
fn storable(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(2_000).collect()
}

fn has_outcome(settlement: &Settlement) -> bool {
    !settlement.delivered.is_empty() || !settlement.again.is_empty() || !settlement.died.is_empty()
}

fn due_word(deferral: &Deferral) -> &'static str {
    match deferral.due {
        Due::In(_) => "in",
        Due::AtDelivery => "delivery",
        Due::Behind => "behind",
    }
}

fn delay(deferral: &Deferral) -> f64 {
    match deferral.due {
        Due::In(delay) => delay.as_secs_f64(),
        Due::AtDelivery | Due::Behind => 0.0,
    }
}
