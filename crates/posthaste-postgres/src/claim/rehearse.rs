//! The rehearsal: every statement once, on one row, in a transaction that is rolled back.
//!
//! It finds a trigger that raises, a CHECK that refuses our words or a missing right while everything is
//! still as it was. An empty table is rehearsed too, on no row. Then what only a row can provoke is found at
//! the first claim.

use super::session::ClaimSession;
use super::settle::{ArrayMaker, BACK, CLEARED, DEAD, FAILED, RowOutcome, execute};
use super::statements::Statements;
use crate::error::{describe, store_error};
use crate::session::Param;
use posthaste::route::Filter;
use posthaste::store::{StoreCode, StoreError};
use tokio_postgres::types::Type;

/// Runs every statement once on one row, and takes it all back.
pub(super) async fn rehearse(session: &mut ClaimSession, statements: &Statements) -> Result<(), StoreError> {
    session.begin().await.map_err(store_error)?;
    let rows = claim_one(session, statements).await?;
    let parts: [(&str, Option<String>, &[ArrayMaker]); 6] = [
        ("that a row is marked as published", Some(statements.delivered()), &[]),
        ("that a failed attempt is written down", statements.failed(), FAILED),
        ("that a row is marked as published", statements.cleared(), CLEARED),
        ("that a row is given up", Some(statements.dead()), DEAD),
        ("that a row is given back", statements.given_back(), BACK),
        ("that a claim is renewed", statements.renewed(), &[]),
    ];
    for (what, sql, more) in parts {
        let Some(sql) = sql else { continue };
        session.batch("savepoint rehearsal").await.map_err(store_error)?;
        let done = execute(session, None, &sql, &rows, more).await;
        done.map_err(|error| refused(statements, what, error))?;
        session.batch("rollback to savepoint rehearsal").await.map_err(store_error)?;
    }
    session.rollback().await.map_err(store_error)
}

fn refused(statements: &Statements, what: &str, error: tokio_postgres::Error) -> StoreError {
    if error.as_db_error().is_none() {
        return store_error(error);
    }
    StoreError::fatal(
        StoreCode::TableRefuses,
        format!(
            "{} refuses {what}: {}. It was tried on one row in a transaction that was rolled back: nothing was claimed",
            statements.layout().table,
            describe(&error)
        ),
    )
}

/// The row that plays all parts. There is none in an empty table.
async fn claim_one(
    session: &mut ClaimSession,
    statements: &Statements,
) -> Result<Vec<RowOutcome>, StoreError> {
    let (none, only, relay): (Vec<String>, Option<String>, &str) = (Vec::new(), None, "rehearsal");
    let params: [Param<'_>; 6] = [
        (&0_i32, Type::INT4),
        (&none, Type::TEXT_ARRAY),
        (&none, Type::TEXT_ARRAY),
        (&only, Type::TEXT),
        (&relay, Type::TEXT),
        (&1_i64, Type::INT8),
    ];
    let claim = statements.claim(1, &Filter::Everything);
    let rows =
        session.query(&claim, &params).await.map_err(|error| refused(statements, "the claim", error))?;
    Ok(rows.iter().map(RowOutcome::rehearsed).collect())
}

/// Words of the status that nobody mapped, with how many rows bear them. Such rows are left alone.
pub(super) async fn unmapped(
    session: &mut ClaimSession,
    statements: &Statements,
) -> Result<Vec<(String, i64)>, StoreError> {
    let Some(sql) = statements.unmapped() else { return Ok(Vec::new()) };
    let rows = session.query(&sql, &[]).await.map_err(store_error)?;
    let word =
        |row: &tokio_postgres::Row| row.get::<_, Option<String>>(0).unwrap_or_else(|| "NULL".to_owned());
    Ok(rows.iter().map(|row| (word(row), row.get(1))).collect())
}

/// Logs a warning for each such word.
pub(super) async fn tell_unmapped(
    session: &mut ClaimSession,
    statements: &Statements,
) -> Result<(), StoreError> {
    for (word, rows) in unmapped(session, statements).await? {
        tracing::warn!(table = %statements.layout().table, word, rows,
            "rows with a status that is not mapped are left alone");
    }
    Ok(())
}
