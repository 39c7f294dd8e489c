//! Writing an outcome: one statement where that is enough, and one for each row where the table refuses.

use super::layout::Style;
use super::lease::{ClaimLease, locked};
use super::session::ClaimSession;
use super::settle::RowOutcomes;
use crate::error::{commit_error, describe, is_code};
use crate::session::{Param, SqlResult};
use posthaste::store::{StoreCode, StoreError};
use rustc_hash::FxHashSet;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// What became of a settlement.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Rows that were not hit: somebody else has them.
    pub(super) missed: usize,
    /// Keys of rows about which the table takes nothing.
    pub(super) refused: Vec<String>,
    /// What could not be written yet: somebody else holds these rows.
    pub(super) held: RowOutcomes,
}

/// How many rows that are tried one by one may wait for somebody's lock. Then the rest is not tried at all.
const PATIENT_ROWS: usize = 2;

/// Whether somebody else held the row, or what its triggers need, for longer than we wait.
fn is_held(error: &tokio_postgres::Error) -> bool {
    is_code(error, &SqlState::LOCK_NOT_AVAILABLE) || is_code(error, &SqlState::T_R_DEADLOCK_DETECTED)
}

/// Whether an error is about the table rather than a row: a column, a type or a right is not there any more.
fn is_structural(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("42"))
}

/// Whether the table refused what was written, by a trigger, a constraint or a type. Locks, deadlocks, a full
/// disk and the end of a connection are no refusals.
fn is_refusal(error: &tokio_postgres::Error) -> bool {
    let class = error.code().and_then(|code| code.code().get(..2));
    matches!(class, Some("09" | "21" | "22" | "23" | "27" | "38" | "39" | "42" | "44" | "P0"))
}

impl ClaimLease {
    /// Writes an outcome. Answers how many rows were not hit, and which could not be written.
    pub(super) async fn write(
        &self,
        slot: &mut Option<ClaimSession>,
        outcome: &RowOutcomes,
    ) -> Result<Written, StoreError> {
        let session = self.ready(slot).await?;
        let written = match self.inner.style() {
            Style::Marked => self.write_marked(session, outcome).await,
            Style::Locked => self.write_locked(session, outcome).await,
        };
        match written {
            Ok(written) => {
                self.inner.note_success();
                Ok(written)
            }
            Err(error) if is_structural(&error) => Err(self.table_changed(slot, &error)),
            Err(error) => Err(self.failed(slot, commit_error(error))),
        }
    }

    /// Nothing of a settlement can be written any more. The same rows would be published for ever, so the
    /// lane ends, and the next one rehearses before it claims.
    fn table_changed(&self, slot: &mut Option<ClaimSession>, error: &tokio_postgres::Error) -> StoreError {
        *slot = None;
        self.inner.doubt();
        drop(self.lose());
        StoreError::fatal(
            StoreCode::TableRefuses,
            format!(
                "{} takes nothing of what became of its rows: {}. A column, a type or a right has changed; nothing is \
                 claimed until that is mended",
                self.inner.statements.layout().table,
                describe(error)
            ),
        )
    }

    /// Most settlements are one statement, and that is a transaction by itself.
    async fn write_marked(&self, session: &mut ClaimSession, outcome: &RowOutcomes) -> SqlResult<Written> {
        if outcome.kinds() == 1 {
            // CRASH(claim.settle): before this commit the batch is at the broker and nothing is written down:
            // it is published again (G2). After it, nothing of it is.
            posthaste::crash_point!("claim.settle");
            match outcome.write(session, &self.inner.statements, None).await {
                Ok(missed) => return Ok(Written { missed, ..Written::default() }),
                Err(error) if is_refusal(&error) || is_held(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.write_what_is_free(session, outcome).await
    }

    /// Writes outcomes of rows that nobody else holds, in a transaction. The other rows are told apart: some
    /// are still ours, some are gone.
    pub(super) async fn write_what_is_free(
        &self,
        session: &mut ClaimSession,
        outcome: &RowOutcomes,
    ) -> SqlResult<Written> {
        let statements = &self.inner.statements;
        session.begin().await?;
        let free = keys(session, &statements.free(), outcome).await?;
        let (mine, rest) = outcome.split(&free);
        let mut written = Written::default();
        if !mine.is_empty() {
            written = self.write_all_or_each(session, &mine).await?;
        }
        if !rest.is_empty() {
            let (held, gone) = rest.split(&keys(session, &statements.ours(), &rest).await?);
            written.missed += gone.keys().0.len();
            written.held.append(held);
        }
        posthaste::crash_point!("claim.settle");
        session.commit().await?;
        Ok(written)
    }

    /// The transaction that locks the rows ends with the last of them.
    async fn write_locked(&self, session: &mut ClaimSession, outcome: &RowOutcomes) -> SqlResult<Written> {
        let rest = locked(&self.hand).len() > outcome.seqs.len();
        session.begin().await?;
        let written = self.write_all_or_each(session, outcome).await?;
        if !rest {
            posthaste::crash_point!("claim.settle");
            session.commit().await?;
        }
        Ok(written)
    }

    /// Writes all rows at once. If the table refuses that, each row is written by itself, so that a bad one
    /// holds up no other.
    async fn write_all_or_each(
        &self,
        session: &mut ClaimSession,
        outcome: &RowOutcomes,
    ) -> SqlResult<Written> {
        let statements = &self.inner.statements;
        match outcome.write(session, statements, Some("savepoint posthaste")).await {
            Ok(missed) => return Ok(Written { missed, ..Written::default() }),
            Err(error) if is_refusal(&error) || is_held(&error) => {}
            Err(error) => return Err(error),
        }
        let (mut written, mut structural, mut waited) = (Written::default(), None, 0);
        let singles = outcome.singles();
        let all = singles.len();
        for single in singles {
            if waited >= PATIENT_ROWS {
                self.put_held(&mut written, single);
                continue;
            }
            let again = "rollback to savepoint posthaste; savepoint posthaste";
            match single.write(session, statements, Some(again)).await {
                Ok(missed) => {
                    written.missed += missed;
                    session.batch("release savepoint posthaste; savepoint posthaste").await?;
                }
                Err(error) if is_held(&error) => {
                    waited += 1;
                    self.put_held(&mut written, single);
                }
                Err(error) if is_refusal(&error) => {
                    tracing::error!(lane = %self.id, row = single.first(), error = %describe(&error),
                        "the table refuses what became of a row; it is published again after the lease");
                    written.refused.extend(single.first().map(str::to_owned));
                    structural = is_structural(&error).then_some(error).or(structural);
                }
                Err(error) => return Err(error),
            }
        }
        session.batch("rollback to savepoint posthaste").await?;
        match structural {
            Some(error) if written.refused.len() == all => Err(error),
            _ => Ok(written),
        }
    }

    /// Keeps the outcome of a row that somebody holds. A row that we only locked goes with our transaction,
    /// so there is nothing to keep.
    fn put_held(&self, written: &mut Written, single: RowOutcomes) {
        match self.inner.style() {
            Style::Marked => written.held.append(single),
            Style::Locked => written.refused.extend(single.first().map(str::to_owned)),
        }
    }

    pub(super) fn tell_missed(&self, rows: usize) {
        if rows > 0 {
            self.inner.count_missed(rows as u64);
            tracing::warn!(lane = %self.id, rows,
                "settled rows were taken or changed by somebody else meanwhile; theirs stands, ours is dropped");
        }
    }
}

/// Asks a question about an outcome's rows, and answers the keys.
async fn keys(session: &mut ClaimSession, sql: &str, outcome: &RowOutcomes) -> SqlResult<FxHashSet<String>> {
    let (ids, marks) = outcome.keys();
    let params: [Param<'_>; 2] = [(&ids, Type::TEXT_ARRAY), (&marks, Type::TIMESTAMPTZ_ARRAY)];
    Ok(session.query(sql, &params).await?.iter().map(|row| row.get(0)).collect())
}
