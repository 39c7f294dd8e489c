//! The rehearsal: every statement once, on one row, in a transaction that is rolled back.
//!
//! It finds a trigger that raises, a CHECK that refuses our words or a missing right while everything is
//! still as it was. An empty table is rehearsed too, on no row. Then what only a row can provoke is found at
//! the first claim.

use super::row::Moment;
use super::session::ClaimSession;
use super::statements::Statements;
use crate::error::{describe, store_error};
use crate::session::Param;
use posthaste::route::Filter;
use posthaste::store::{StoreCode, StoreError};
use tokio_postgres::types::Type;

/// The row that plays all parts, as the arrays that statements take. They are empty for an empty table.
#[derive(Default)]
struct Extra {
    ids: Vec<String>,
    marks: Vec<Option<Moment>>,
    was: Vec<Option<String>>,
    was_at: Vec<Option<Moment>>,
    attempts: Vec<i32>,
    delays: Vec<f64>,
    errors: Vec<&'static str>,
    classes: Vec<&'static str>,
}

impl Extra {
    fn key(&self) -> Vec<Param<'_>> {
        vec![(&self.ids, Type::TEXT_ARRAY), (&self.marks, Type::TIMESTAMPTZ_ARRAY)]
    }

    /// Parameters of a settlement, with what comes behind the key.
    fn with<'a>(&'a self, more: impl IntoIterator<Item = Param<'a>>) -> Vec<Param<'a>> {
        self.key().into_iter().chain(more).collect()
    }

    fn error(&self) -> [Param<'_>; 2] {
        [(&self.errors, Type::TEXT_ARRAY), (&self.classes, Type::TEXT_ARRAY)]
    }
}

/// One part: what it is, its statement, its parameters.
type Part<'a> = (&'static str, String, Vec<Param<'a>>);

/// Runs every statement once on one row, and takes it all back.
pub(super) async fn rehearse(session: &mut ClaimSession, statements: &Statements) -> Result<(), StoreError> {
    session.begin().await.map_err(store_error)?;
    let extra = claim_one(session, statements).await?;
    for (what, sql, params) in parts(statements, &extra) {
        session.batch("savepoint rehearsal").await.map_err(store_error)?;
        session.query(&sql, &params).await.map_err(|error| refused(statements, what, error))?;
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

async fn claim_one(session: &mut ClaimSession, statements: &Statements) -> Result<Extra, StoreError> {
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
    let mut extra = Extra::default();
    for row in &rows {
        extra.ids.push(row.get("id"));
        extra.marks.push(row.get("mark"));
        extra.was.push(row.get("was"));
        extra.was_at.push(row.get("was_at"));
        extra.attempts.push(1);
        extra.delays.push(1.0);
        extra.errors.push("rehearsal");
        extra.classes.push("transient");
    }
    Ok(extra)
}

fn parts<'a>(statements: &Statements, extra: &'a Extra) -> Vec<Part<'a>> {
    let attempts: Param<'a> = (&extra.attempts, Type::INT4_ARRAY);
    let mut parts = vec![("that a row is marked as published", statements.delivered(), extra.key())];
    if let Some(sql) = statements.failed() {
        let more =
            [attempts.clone(), (&extra.delays as _, Type::FLOAT8_ARRAY)].into_iter().chain(extra.error());
        parts.push(("that a failed attempt is written down", sql, extra.with(more)));
    }
    if let Some(sql) = statements.cleared() {
        parts.push(("that a row is marked as published", sql, extra.with([attempts.clone()])));
    }
    let more = [attempts.clone()].into_iter().chain(extra.error());
    parts.push(("that a row is given up", statements.dead(), extra.with(more)));
    if let Some(sql) = statements.given_back() {
        let more = [
            (&extra.was as _, Type::TEXT_ARRAY),
            (&extra.was_at as _, Type::TIMESTAMPTZ_ARRAY),
            attempts.clone(),
        ];
        parts.push(("that a row is given back", sql, extra.with(more)));
    }
    if let Some(sql) = statements.renewed() {
        parts.push(("that a claim is renewed", sql, extra.key()));
    }
    parts
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
