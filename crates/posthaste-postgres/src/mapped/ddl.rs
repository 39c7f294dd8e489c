//! Mapped tables and the rights on them as text, for whoever owns the database.

use super::write::table;
use super::{InboxTables, TableMapping};
use crate::claim::statements::quoted;
use crate::migrate::Roles;
use crate::session::quote;
use posthaste::store::StoreError;
use std::collections::BTreeSet;

const TRACEABILITY: &str = include_str!("../../sql/mapped/ddl_traceability.sql");
const OFFSETS: &str = include_str!("../../sql/mapped/ddl_offsets.sql");
const DEAD_LETTERS: &str = include_str!("../../sql/mapped/ddl_dead_letters.sql");

/// The statements that make what is missing and grant what `consumer` and `admin` need. Empty for our own
/// tables.
pub fn sql(tables: &InboxTables, roles: &Roles) -> Result<String, StoreError> {
    let Some(mapping) = tables.mapping() else { return Ok(String::new()) };
    let (consumer, admin) = (quote(&roles.consumer), quote(&roles.admin));
    let mut schemas = BTreeSet::new();
    let (mut made, mut granted) = (Vec::new(), Vec::new());
    for (name, text, to_consumer, to_admin) in parts(&mapping) {
        let name = table(name)?;
        schemas.extend(name.schema.as_deref().map(quote));
        let name = quoted(&name);
        made.push(text.replace(":table", &name));
        granted.push(format!("grant {to_consumer} on {name} to {consumer};"));
        granted.push(format!("grant {to_admin} on {name} to {admin};"));
    }
    let extension =
        mapping.dead_letters.is_some().then(|| "create extension if not exists \"uuid-ossp\";".to_owned());
    let schema = |name: &String| format!("create schema if not exists {name};");
    let usage = |name: &String| format!("grant usage on schema {name} to {consumer}, {admin};");
    let lines = schemas.iter().map(schema).chain(extension).chain(made);
    let lines: Vec<String> = lines.chain(schemas.iter().map(usage)).chain(granted).collect();
    Ok(lines.join("\n") + "\n")
}

/// Each table with its text, and what a consumer and a person may do. A person copies ranges, moves
/// positions, replays and discards letters.
fn parts(mapping: &TableMapping) -> Vec<(&str, String, &'static str, &'static str)> {
    let all = "select, insert, update, delete";
    let keys = &mapping.request_keys;
    let columns = keys.columns.iter().map(|(column, text)| {
        let kind = if text == "{now}" { "timestamptz default now()" } else { "text" };
        format!(",\n    {} {kind}", quote(column))
    });
    let columns = columns.collect::<String>();
    let made = format!(
        "create table if not exists :table (\n    {} varchar(255) primary key{columns}\n);",
        quote(&keys.key)
    );
    let mut parts = vec![(keys.table.as_str(), made, "select, insert, delete", "select, insert")];
    if let Some(trace) = &mapping.traceability {
        parts.push((&trace.table, TRACEABILITY.to_owned(), all, "select"));
    }
    if let Some(offsets) = &mapping.offsets {
        parts.push((&offsets.table, OFFSETS.to_owned(), "select, insert, update", "select, insert, update"));
    }
    if let Some(letters) = &mapping.dead_letters {
        parts.push((&letters.table, DEAD_LETTERS.to_owned(), "select, insert, update", "select, update"));
    }
    parts
}
