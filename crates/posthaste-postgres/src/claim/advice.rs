//! What is proposed to a table's owners. Nothing here is ever run by us.

use super::check::CatalogTable;
use super::layout::{Layout, Style};
use super::statements::{literal, quoted};
use crate::session::quote;

/// A CREATE TABLE for dead letters: the table's own columns, and what is known of the death.
#[must_use]
pub fn dead_letter_table(layout: &Layout, table: &CatalogTable) -> Option<String> {
    let name = layout.dead_letters.as_ref()?;
    let mut columns: Vec<String> =
        table.columns.iter().map(|(column, kind)| format!("  {} {kind}", quote(column))).collect();
    let death = [
        (layout.column.attempts.as_deref().unwrap_or("attempts"), "integer"),
        (layout.column.last_error.as_deref().unwrap_or("last_error"), "text"),
        (layout.column.last_error_at.as_deref().unwrap_or("last_error_at"), "timestamptz"),
        (layout.column.error_class.as_deref().unwrap_or("error_class"), "text"),
        ("dead_at", "timestamptz NOT NULL DEFAULT now()"),
    ];
    let lacking = death.iter().filter(|(column, _)| table.type_of(column).is_none());
    columns.extend(lacking.map(|(column, kind)| format!("  {} {kind}", quote(column))));
    columns.push(format!("  PRIMARY KEY ({})", quote(&layout.id)));
    Some(format!("CREATE TABLE {} (\n{}\n);", quoted(name), columns.join(",\n")))
}

/// The index that the claim needs, as a statement, unless the table has one that begins with the same
/// columns.
#[must_use]
pub fn claim_index(layout: &Layout) -> Option<String> {
    if layout.order_by.is_empty() {
        return None;
    }
    let columns: Vec<String> = layout.order_by.iter().map(|column| quote(column)).collect();
    let condition = match (&layout.status, &layout.column.published_at) {
        (Some(status), _) => {
            let words: Vec<String> = status.pending.iter().map(|word| literal(word)).collect();
            format!(" WHERE {} IN ({})", quote(&status.column), words.join(", "))
        }
        (None, Some(column)) if !layout.delete_published => format!(" WHERE {} IS NULL", quote(column)),
        _ => String::new(),
    };
    Some(format!(
        "CREATE INDEX CONCURRENTLY ON {} ({}){condition};",
        quoted(&layout.table),
        columns.join(", ")
    ))
}

/// How the layout's rows are claimed, in words.
#[must_use]
pub fn style_in_words(layout: &Layout) -> &'static str {
    match layout.style() {
        Style::Marked => "marked by a status and a time, published outside of a transaction",
        Style::Locked => "locked in an open transaction while they are published",
    }
}
