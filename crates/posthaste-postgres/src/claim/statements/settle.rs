//! Settling: what is written about rows in hand.

use super::{Sets, Statements, literal, of, quoted};
use crate::claim::layout::{Style, TableName};
use crate::session::quote;
use std::fmt::Write as _;

impl Statements {
    /// Which rows a settlement is about: `u` has their keys, and their marks where rows are marked.
    fn fence(&self) -> String {
        let layout = &self.layout;
        let mut text = format!("{} = u.id::{}", of(&layout.id), self.type_of(&layout.id));
        if let Some((status, claimed, mark)) = self.marking() {
            let _ = write!(
                text,
                " and {} = {} and {} = u.mark::{}",
                of(&status),
                literal(&claimed),
                of(&mark),
                self.type_of(&mark)
            );
        }
        text
    }

    /// Columns that say which relay has a row. They are empty once it is settled.
    fn unclaimed(&self, sets: &mut Sets) {
        sets.put(self.layout.column.claimed_at.as_ref(), "null");
        sets.put(self.layout.column.claimed_by.as_ref(), "null");
        if self.layout.style() == Style::Locked {
            sets.put(self.layout.column.last_attempt_at.as_ref(), "clock_timestamp()");
        }
        sets.put(self.layout.column.updated_at.as_ref(), "clock_timestamp()");
    }

    fn put_error(&self, sets: &mut Sets) {
        let layout = &self.layout;
        sets.put(layout.column.attempts.as_ref(), "u.attempts");
        sets.put(layout.column.last_error.as_ref(), &self.error_text());
        sets.put(layout.column.last_error_at.as_ref(), "clock_timestamp()");
        sets.put(layout.column.error_class.as_ref(), "u.class");
    }

    /// The error, no longer than its column takes.
    fn error_text(&self) -> String {
        let kind = self.layout.column.last_error.as_ref().map_or("text", |name| self.type_of(name));
        let length = kind.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')?.parse::<u32>().ok());
        length.map_or_else(|| "u.error".to_owned(), |length| format!("left(u.error, {length})"))
    }

    /// Marks rows as published, or deletes them. `$1` keys, `$2` marks.
    #[must_use]
    pub fn delivered(&self) -> String {
        let (table, fence) = (self.table(), self.fence());
        let rows = "unnest($1::text[], $2::timestamptz[]) as u (id, mark)";
        if self.layout.delete_published {
            return format!("delete from {table} as t using {rows}\n where {fence}");
        }
        format!("update {table} as t set {}\n  from {rows}\n where {fence}", self.published().text())
    }

    /// The same for rows of which some were charged with an attempt while they were in hand. `$3` are
    /// attempts as they were, null for the others. `None` means that there is nothing to give back.
    #[must_use]
    pub fn cleared(&self) -> Option<String> {
        let attempts = self.layout.column.attempts.as_ref().filter(|_| !self.layout.delete_published)?;
        self.marking()?;
        let mut sets = self.published();
        sets.put(Some(attempts), &format!("coalesce(u.attempts, {})", of(attempts)));
        Some(format!(
            "update {} as t set {}\n  from unnest($1::text[], $2::timestamptz[], $3::int4[]) as u (id, mark, attempts)\n where {}",
            self.table(),
            sets.text(),
            self.fence()
        ))
    }

    fn published(&self) -> Sets {
        let mut sets = Sets::default();
        if let Some(status) = &self.layout.status {
            sets.put(Some(&status.column), &literal(&status.published));
        }
        sets.put(self.layout.column.published_at.as_ref(), "clock_timestamp()");
        self.unclaimed(&mut sets);
        sets
    }

    /// Writes failed attempts down. `$1` keys, `$2` marks, `$3` attempts, `$4` seconds until the next one,
    /// `$5` errors, `$6` classes. `None` means that the table has no column to write anything to.
    #[must_use]
    pub fn failed(&self) -> Option<String> {
        let layout = &self.layout;
        let mut sets = Sets::default();
        if let Some(status) = &layout.status {
            sets.put(Some(&status.column), &literal(&status.retry));
        }
        sets.put(layout.column.next_attempt_at.as_ref(), "clock_timestamp() + u.delay * interval '1 second'");
        self.put_error(&mut sets);
        self.unclaimed(&mut sets);
        (!sets.is_empty()).then(|| {
            format!(
                "update {} as t set {}\n  from unnest($1::text[], $2::timestamptz[], $3::int4[], $4::float8[], $5::text[], $6::text[]) as u (id, mark, attempts, delay, error, class)\n where {}",
                self.table(),
                sets.text(),
                self.fence(),
            )
        })
    }

    /// Gives rows up: by a status, or by moving them. `$1` keys, `$2` marks, `$3` attempts, `$4` errors, `$5`
    /// classes.
    #[must_use]
    pub fn dead(&self) -> String {
        let layout = &self.layout;
        let rows = "unnest($1::text[], $2::timestamptz[], $3::int4[], $4::text[], $5::text[]) as u (id, mark, attempts, error, class)";
        let (table, fence) = (self.table(), self.fence());
        if let Some(dead_letters) = &layout.dead_letters {
            return self.buried(dead_letters, rows);
        }
        let mut sets = Sets::default();
        let status = layout.status.as_ref();
        if let Some((status, dead)) = status.and_then(|status| Some((status, status.dead.as_ref()?))) {
            sets.put(Some(&status.column), &literal(dead));
        }
        self.put_error(&mut sets);
        self.unclaimed(&mut sets);
        format!("update {table} as t set {}\n  from {rows}\n where {fence}", sets.text())
    }

    /// Moves rows into the dead-letter table: every column that both tables have, and what is known of the
    /// death.
    fn buried(&self, dead_letters: &TableName, rows: &str) -> String {
        let layout = &self.layout;
        let error = self.error_text();
        let known = [
            (layout.column.attempts.as_deref().unwrap_or("attempts"), "gone.dead_attempts"),
            (layout.column.last_error.as_deref().unwrap_or("last_error"), "gone.dead_error"),
            (layout.column.error_class.as_deref().unwrap_or("error_class"), "gone.dead_class"),
            (layout.column.last_error_at.as_deref().unwrap_or("last_error_at"), "clock_timestamp()"),
            ("dead_at", "clock_timestamp()"),
        ];
        let source = |column: &String| match known.iter().find(|(name, _)| name == column) {
            Some((_, value)) => Some((*value).to_owned()),
            None => self.types.contains_key(column).then(|| format!("gone.{}", quote(column))),
        };
        let pairs: Vec<(String, String)> = self
            .dead_columns
            .iter()
            .filter_map(|(column, _)| Some((quote(column), source(column)?)))
            .collect();
        let (into, from): (Vec<String>, Vec<String>) = pairs.into_iter().unzip();
        format!(
            "with gone as (\n  delete from {} as t using {rows}\n   where {}\n  returning t.*, u.attempts as dead_attempts, {error} as dead_error, u.class as dead_class\n)\ninsert into {} ({})\nselect {} from gone",
            self.table(),
            self.fence(),
            quoted(dead_letters),
            into.join(", "),
            from.join(", "),
        )
    }

    /// Gives rows back as they were before the claim. `$1` keys, `$2` marks, `$3` former words, `$4` former
    /// times, `$5` attempts of those that were charged with one, null for the others. `None` means that they
    /// were only locked.
    #[must_use]
    pub fn given_back(&self) -> Option<String> {
        let (status, _, mark) = self.marking()?;
        let layout = &self.layout;
        let mut sets = Sets::default();
        sets.put(Some(&status), &format!("u.was::{}", self.type_of(&status)));
        for column in [&layout.column.claimed_at, &layout.column.last_attempt_at].into_iter().flatten() {
            let value =
                if *column == mark { format!("u.was_at::{}", self.type_of(column)) } else { of(column) };
            sets.put(Some(column), &value);
        }
        sets.put(layout.column.claimed_by.as_ref(), "null");
        sets.put(layout.column.updated_at.as_ref(), "clock_timestamp()");
        if let Some(attempts) = &layout.column.attempts {
            sets.put(Some(attempts), &format!("coalesce(u.attempts, {})", of(attempts)));
        }
        Some(format!(
            "update {} as t set {}\n  from unnest($1::text[], $2::timestamptz[], $3::text[], $4::timestamptz[], $5::int4[]) as u (id, mark, was, was_at, attempts)\n where {}",
            self.table(),
            sets.text(),
            self.fence(),
        ))
    }

    /// Renews marks of rows that nobody has locked. `$1` keys, `$2` marks. All get the same mark, because
    /// rows that share a mark were in the same hand. `None` means that locks need no renewal.
    #[must_use]
    pub fn renewed(&self) -> Option<String> {
        let (_, _, mark) = self.marking()?;
        let (table, fence, id) = (self.table(), self.fence(), of(&self.layout.id));
        Some(format!(
            "with free as materialized (\n  select {id} as id, u.mark from unnest($1::text[], $2::timestamptz[]) as u (id, mark)\n    join {table} as t on {fence}\n     for update of t skip locked\n)\nupdate {table} as t set {} = now()\n  from free as u\n where {fence}\nreturning {id}::text, {}::timestamptz",
            quote(&mark),
            of(&mark)
        ))
    }

    /// Which of these rows are still ours. `$1` keys, `$2` marks.
    #[must_use]
    pub fn ours(&self) -> String {
        format!(
            "select {}::text from unnest($1::text[], $2::timestamptz[]) as u (id, mark)\n  join {} as t on {}",
            of(&self.layout.id),
            self.table(),
            self.fence()
        )
    }

    /// The same for rows that nobody else has locked. They are locked now. The application may hold a row for
    /// as long as it likes, and the others do not wait for it.
    #[must_use]
    pub fn free(&self) -> String {
        format!("{}\n   for update of t skip locked", self.ours())
    }
}
