//! Writing an outcome: one statement where that is enough, each row for itself where the table refuses.

use super::layout::Style;
use super::lease::{ClaimLease, locked};
use super::line::Line;
use super::settle::Outcome;
use crate::error::{commit_error, describe};
use posthaste::store::StoreError;

/// What became of a settlement.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Rows that were not hit: somebody else has them.
    pub(super) missed: usize,
    /// Keys of rows about which the table takes nothing.
    pub(super) refused: Vec<String>,
}

/// Whether the table said no to what was written: a trigger, a constraint, a type. Locks, deadlocks, a full disk and the
/// end of a connection are none.
fn is_refusal(error: &tokio_postgres::Error) -> bool {
    let class = error.code().and_then(|code| code.code().get(..2));
    matches!(class, Some("09" | "21" | "22" | "23" | "27" | "38" | "39" | "42" | "44" | "P0"))
}

impl ClaimLease {
    /// Writes an outcome. Answers how many rows were not hit, and which could not be written.
    pub(super) async fn write(
        &self,
        slot: &mut Option<Line>,
        outcome: &Outcome,
    ) -> Result<Written, StoreError> {
        let line = self.ready(slot).await?;
        let written = match self.inner.style() {
            Style::Marked => self.write_marked(line, outcome).await,
            Style::Locked => self.write_locked(line, outcome).await,
        };
        match written {
            Ok(written) => Ok(written),
            Err(error) => Err(self.failed(slot, commit_error(error))),
        }
    }

    /// Most settlements are one statement, and that is a transaction by itself.
    async fn write_marked(
        &self,
        line: &mut Line,
        outcome: &Outcome,
    ) -> Result<Written, tokio_postgres::Error> {
        if outcome.kinds() == 1 {
            // CRASH(claim.settle): before this commit the batch is at the broker and nothing is written down: it is
            // published again (G2). After it, nothing of it is.
            posthaste::crash_point!("claim.settle");
            match outcome.write(line, &self.inner.statements, None).await {
                Ok(missed) => return Ok(Written { missed, refused: Vec::new() }),
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(error),
            }
        }
        line.begin().await?;
        let written = self.write_all_or_each(line, outcome).await?;
        posthaste::crash_point!("claim.settle");
        line.commit().await?;
        Ok(written)
    }

    /// The transaction that locks the rows ends with the last of them.
    async fn write_locked(
        &self,
        line: &mut Line,
        outcome: &Outcome,
    ) -> Result<Written, tokio_postgres::Error> {
        let rest = locked(&self.hand).len() > outcome.seqs.len();
        line.begin().await?;
        let written = self.write_all_or_each(line, outcome).await?;
        if !rest {
            posthaste::crash_point!("claim.settle");
            line.commit().await?;
        }
        Ok(written)
    }

    /// All at once; and if the table refuses that, each row for itself, so that one that it does not take holds up
    /// no other.
    async fn write_all_or_each(
        &self,
        line: &mut Line,
        outcome: &Outcome,
    ) -> Result<Written, tokio_postgres::Error> {
        let statements = &self.inner.statements;
        match outcome.write(line, statements, Some("savepoint posthaste")).await {
            Ok(missed) => return Ok(Written { missed, refused: Vec::new() }),
            Err(error) if is_refusal(&error) => {}
            Err(error) => return Err(error),
        }
        let mut written = Written::default();
        for single in outcome.singles() {
            let again = "rollback to savepoint posthaste; savepoint posthaste";
            match single.write(line, statements, Some(again)).await {
                Ok(missed) => {
                    written.missed += missed;
                    line.batch("release savepoint posthaste; savepoint posthaste").await?;
                }
                Err(error) if is_refusal(&error) => {
                    tracing::error!(lane = %self.id, row = single.first(), error = %describe(&error),
                        "the table refuses what became of a row; it is published again after the lease");
                    written.refused.extend(single.first().map(str::to_owned));
                }
                Err(error) => return Err(error),
            }
        }
        if !written.refused.is_empty() {
            line.batch("rollback to savepoint posthaste").await?;
        }
        Ok(written)
    }
}
