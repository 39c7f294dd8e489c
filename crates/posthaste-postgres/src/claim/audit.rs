//! Where acts on dead rows are written down (G6).
//!
//! A line says which actor replayed or discarded what, and why. It is written in the transaction of the act,
//! so neither is there without the other. An adopted table has no place for it and is left as it is. So the
//! line goes into `posthaste_audit` beside it, which its owners make (`posthaste adopt sql` prints it), or
//! into the audit of our own log where that lives in the same database. With neither of them an act is
//! refused.
//!
//! Refused: writing to the log of the command instead, which is on the screen of whoever acted and nowhere
//! else. Also refused: making the table ourselves. Nothing is ever created in a schema that is not ours.

use super::layout::{Layout, TableName};
use super::session::ClaimSession;
use super::statements::{literal, quoted};
use crate::error::store_error;
use crate::session::Param;
use posthaste::admin::{Actor, AdminError};
use posthaste::store::StoreError;
use tokio_postgres::types::Type;

const NAME: &str = "posthaste_audit";

/// The owners' audit table.
pub(super) fn beside(layout: &Layout) -> TableName {
    TableName { schema: layout.table.schema.clone(), name: NAME.to_owned() }
}

/// The CREATE TABLE for it, as our own log has it.
#[must_use]
pub fn audit_table(layout: &Layout) -> String {
    format!(
        "CREATE TABLE {} (\n  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n  at timestamptz NOT NULL DEFAULT clock_timestamp(),\n  \
         actor text NOT NULL,\n  action text NOT NULL,\n  reason text NOT NULL,\n  detail jsonb NOT NULL\n);",
        quoted(&beside(layout))
    )
}

/// The statement that writes a line: `$1` the actor, `$2` the act, `$3` the reason, `$4` the details.
pub(super) fn insert(table: &TableName) -> String {
    format!(
        "insert into {} (actor, action, reason, detail) values ($1, $2, $3, $4::text::jsonb)",
        quoted(table)
    )
}

/// The table that takes the lines: beside the adopted one, or of our own log in `schema`.
pub(super) async fn place(
    session: &mut ClaimSession,
    layout: &Layout,
    schema: &str,
) -> Result<Option<TableName>, StoreError> {
    let ours = TableName { schema: Some(schema.to_owned()), name: "audit".to_owned() };
    for table in [beside(layout), ours] {
        let rows =
            session.query("select to_regclass($1) is not null", &[(&quoted(&table), Type::TEXT)]).await;
        if rows.map_err(store_error)?.first().is_some_and(|row| row.get(0)) {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// A line about what a retention deletes, as a part of its statement; `gone` has their topics. It is empty
/// where the relay may not write one. A retention is declared, and its counter tells of it too.
pub(super) async fn noted(
    session: &mut ClaimSession,
    layout: &Layout,
    schema: &str,
) -> Result<String, StoreError> {
    let Some(table) = place(session, layout, schema).await? else { return Ok(String::new()) };
    let table = quoted(&table);
    // Of our own audit a relay may write some columns only.
    let sql = "select has_any_column_privilege(to_regclass($1), 'INSERT')";
    let rows = session.query(sql, &[(&table, Type::TEXT)]).await.map_err(store_error)?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Ok(String::new());
    }
    let name = literal(&layout.table.to_string());
    Ok(format!(
        ", noted as (insert into {table} (actor, action, reason, detail)
  select 'retention', 'purge', 'declared dead letter retention', jsonb_build_object('table', {name}, 'count', count(*),
         'topics', coalesce(to_jsonb((array_agg(distinct topic) filter (where topic is not null))[1:10]), '[]'))
    from gone having count(*) > 0)"
    ))
}

/// The refusal where there is no table for the audit.
pub(super) fn missing(layout: &Layout) -> String {
    format!(
        "dead rows leave {} only with a line in an audit, and there is no table for it; `posthaste adopt sql` prints the \
         CREATE TABLE {}",
        layout.table,
        quoted(&beside(layout))
    )
}

/// Writes the line of an act. Its trace is in the column of our own audit; the owners' table has none, and
/// there it is among the details.
pub(super) async fn write(
    session: &mut ClaimSession,
    table: &TableName,
    actor: &Actor,
    action: &str,
    detail: &serde_json::Value,
) -> Result<(), AdminError> {
    let column =
        "select exists (select from pg_attribute where attrelid = to_regclass($1) and attname = 'trace_id')";
    let found = session.query(column, &[(&quoted(table), Type::TEXT)]).await.map_err(store_error)?;
    let mut detail = detail.clone();
    let sql = if found.first().is_some_and(|row| row.get(0)) {
        let sql = insert(table).replacen("detail)", "detail, trace_id)", 1);
        sql.replacen("::jsonb)", "::jsonb, $5)", 1)
    } else {
        detail["trace_id"] = actor.trace_id.as_str().into();
        insert(table)
    };
    let detail = detail.to_string();
    let params: [Param<'_>; 5] = [
        (&actor.name, Type::TEXT),
        (&action, Type::TEXT),
        (&actor.reason, Type::TEXT),
        (&detail, Type::TEXT),
        (&actor.trace_id, Type::TEXT),
    ];
    let params = if sql.contains("$5") { &params[..] } else { &params[..4] };
    session.query(&sql, params).await.map_err(store_error)?;
    Ok(())
}
