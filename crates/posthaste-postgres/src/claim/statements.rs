//! Every statement that an adopted table sees, made from its layout: here and nowhere else.
//!
//! This is pure: a layout and the types of its columns go in, text comes out. `posthaste adopt sql` prints
//! what stands here. Identifiers are always quoted, words of a status are literals, everything that comes
//! from rows is a parameter.
//!
//! Why they are safe beside each other and beside the application:
//!
//! - A claim locks rows with `SKIP LOCKED`: what the application or another relay has locked is passed over,
//!   not waited for, and two relays never get the same row. READ COMMITTED looks at the condition again once
//!   it has the lock.
//! - A settlement touches rows by their key. Under [`Style::Marked`] it also names the mark it was claimed
//!   with: a row that somebody else has claimed since is not hit (G4). Under [`Style::Locked`] the lock is
//!   the fence.
//! - No statement waits for a lock longer than the session's `lock_timeout`.

mod admin;
mod claim;
pub(super) mod handover;
mod settle;
mod sweep;
#[cfg(test)]
mod tests;

use super::layout::{Layout, Style, TableName};
use crate::session::quote;
use posthaste::route::Filter;
use std::collections::BTreeMap;

/// Types of a table's columns as the catalog prints them, by name.
pub type Types = BTreeMap<String, String>;

/// The statements of one layout.
#[derive(Debug, Clone)]
pub struct Statements {
    layout: Layout,
    types: Types,
    dead_columns: Vec<(String, String)>,
}

/// A text as a literal. Backslashes mean themselves: `standard_conforming_strings` is set by our sessions.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub(crate) fn quoted(table: &TableName) -> String {
    match &table.schema {
        Some(schema) => format!("{}.{}", quote(schema), quote(&table.name)),
        None => quote(&table.name),
    }
}

fn of(column: &str) -> String {
    format!("t.{}", quote(column))
}

impl Statements {
    /// Makes them. `dead_columns` are those of the dead-letter table with their types, where there is one.
    #[must_use]
    pub fn new(layout: Layout, types: Types, dead_columns: Vec<(String, String)>) -> Self {
        Self { layout, types, dead_columns }
    }

    /// The layout they were made from.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn table(&self) -> String {
        quoted(&self.layout.table)
    }

    fn type_of(&self, column: &str) -> &str {
        self.types.get(column).map_or("text", String::as_str)
    }

    fn marking(&self) -> Option<(String, String, String)> {
        let (status, mark) = (self.layout.status.as_ref()?, self.layout.mark()?);
        let claimed = status.claimed.clone()?;
        (self.layout.style() == Style::Marked).then(|| (status.column.clone(), claimed, mark.to_owned()))
    }

    /// All of them, with what each is for.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![("claim", self.claim(self.layout.batch, &Filter::Everything))];
        all.push(("settle: published", self.delivered()));
        all.extend(self.failed().map(|sql| ("settle: failed, tried again later", sql)));
        all.push(("settle: given up", self.dead()));
        all.extend(self.given_back().map(|sql| ("settle: given back, no attempt counted", sql)));
        all.extend(self.renewed().map(|sql| ("renew what is in hand", sql)));
        all.extend(
            self.taken_over(&Filter::Everything).map(|sql| ("take over what a dead relay had in hand", sql)),
        );
        all.extend(self.cleared().map(|sql| ("settle: published, after it was taken over", sql)));
        let keep = |wanted: bool, sql: Option<String>| sql.filter(|_| wanted);
        all.extend(
            keep(self.layout.keep_published.is_some(), self.swept())
                .map(|sql| ("retention of published rows", sql)),
        );
        all.extend(
            keep(self.layout.keep_dead.is_some(), self.dead_swept())
                .map(|sql| ("retention of dead rows", sql)),
        );
        all
    }
}

/// The assignments of an UPDATE.
#[derive(Default)]
struct Sets(Vec<String>);

impl Sets {
    fn put(&mut self, column: Option<&String>, value: &str) {
        if let Some(column) = column {
            self.0.push(format!("{} = {value}", quote(column)));
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn text(&self) -> String {
        self.0.join(", ")
    }
}
