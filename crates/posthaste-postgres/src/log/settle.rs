//! Settling: one transaction for a whole batch, the receipt among it.
//!
//! The receipt comes first: if the lane has gone elsewhere, its primary key fails before anything else
//! is written. A settlement without deferred or dead events is a single statement. Repeating one whose
//! outcome is unknown is harmless: the receipt of that number is there already, with our epoch.
//!
//! What the database refuses for its data, no repetition mends: the same transaction is written once more,
//! part by part, and the offending event alone is given up (`outcome.rs`).

use crate::error::{commit_error, is_code, store_error};
use crate::log::lease::{LogLease, Settled, Tally, tally};
use crate::log::outcome::{OutcomeWriter, Rows, WriteError};
use crate::session::{Param, Session};
use posthaste::crash_point;
use posthaste::cursor::{Mark, Position};
use posthaste::store::{Settlement, StoreError};
use std::sync::atomic::Ordering;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// What a receipt says.
struct Receipt {
    n: i64,
    mark: i64,
    position: Position,
    tallies: Vec<Tally>,
    delivered: i64,
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
        if changes {
            // And once more now that they are: a look at the deferred in between did not see them, and may
            // have said that nothing is held.
            self.set_holding();
        }
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
            delivered: 0,
        };
        let Some(through) = settlement.through else {
            receipt.delivered = settlement.delivered_of(0);
            return receipt;
        };
        for step in self.steps().iter().take_while(|step| step.number <= through) {
            receipt.position = step.after.clone();
            for one in &step.tally {
                tally(&mut receipt.tallies, one.segment, one.count, one.sum);
            }
        }
        let on_pages = receipt.tallies.iter().map(|tally| tally.count).sum();
        receipt.delivered = settlement.delivered_of(on_pages);
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

    /// The whole settlement. If the database refuses its data, once more, carefully.
    async fn in_transaction(
        &self,
        session: &mut Session,
        settlement: &Settlement,
        receipt: &Receipt,
    ) -> Result<Inserted, StoreError> {
        match self.attempt(session, settlement, receipt, false).await {
            Err(WriteError::ForItsData(error)) => {
                tracing::warn!(lane = %self.id, "the database refuses a settlement for its data, looking for the event: {error}");
                let again = self.attempt(session, settlement, receipt, true).await;
                again.map_err(StoreError::from)
            }
            attempted => attempted.map_err(StoreError::from),
        }
    }

    async fn attempt(
        &self,
        session: &mut Session,
        settlement: &Settlement,
        receipt: &Receipt,
        carefully: bool,
    ) -> Result<Inserted, WriteError> {
        session.begin().await.map_err(store_error)?;
        let written = self.write_all(session, settlement, receipt, carefully).await;
        let (inserted, given_up) = match written {
            Ok((Inserted::Before, _)) => {
                session.rollback().await;
                return Ok(Inserted::Before);
            }
            Ok(written) => written,
            Err(error) => {
                session.rollback().await;
                return Err(error);
            }
        };
        // CRASH(settle.uncommitted): the transaction is rolled back with the connection: nothing is
        // settled, the next owner publishes the batch again (G2).
        crash_point!("settle.uncommitted");
        session.commit().await.map_err(commit_error)?;
        self.given_up.fetch_add(given_up, Ordering::Relaxed);
        Ok(inserted)
    }

    /// Answers with how many events were given up for their data, too.
    async fn write_all(
        &self,
        session: &mut Session,
        settlement: &Settlement,
        receipt: &Receipt,
        carefully: bool,
    ) -> Result<(Inserted, u64), WriteError> {
        let inserted = self.insert_receipt(session, receipt, false).await?;
        if matches!(inserted, Inserted::Before) {
            return Ok((inserted, 0));
        }
        let mut writer = OutcomeWriter::new(self, session, carefully);
        writer.write(Rows::Deferred(&settlement.deferred)).await?;
        writer.write(Rows::Dead(&settlement.dead)).await?;
        writer.forget_delivered(&settlement.delivered).await?;
        writer.write(Rows::Again(&settlement.again)).await?;
        writer.write(Rows::Died(&settlement.died)).await?;
        let given_up = writer.promote().await?;
        Ok((inserted, given_up))
    }

    async fn insert_receipt(
        &self,
        session: &mut Session,
        receipt: &Receipt,
        alone: bool,
    ) -> Result<Inserted, StoreError> {
        let sql = self.sql(include_str!("../../sql/log/receipt.sql"));
        let sink: &str = &self.id.sink;
        let position = &receipt.position;
        let target = position.catching_up.as_ref().map(|catch_up| catch_up.target.to_string());
        let late = position.catching_up.as_ref().map(|catch_up| catch_up.late_position);
        let segments: Vec<i16> = receipt.tallies.iter().map(|tally| tally.segment).collect();
        let counts: Vec<i64> = receipt.tallies.iter().map(|tally| tally.count).collect();
        let sums: Vec<i64> = receipt.tallies.iter().map(|tally| tally.sum).collect();
        let snapshot = position.snapshot.to_string();
        let params: [Param<'_>; 13] = [
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
            (&receipt.delivered, Type::INT8),
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
}

fn has_outcome(settlement: &Settlement) -> bool {
    !settlement.delivered.is_empty() || !settlement.again.is_empty() || !settlement.died.is_empty()
}
