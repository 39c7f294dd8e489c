//! Retention, and words that nobody mapped.

use super::{Statements, literal, of, quoted};
use crate::session::quote;

impl Statements {
    /// Deletes a chunk of published rows that are older than `$1` seconds. `None` means that nothing says
    /// when a row was published.
    #[must_use]
    pub fn swept(&self) -> Option<String> {
        let layout = &self.layout;
        let published = layout.column.published_at.as_ref().filter(|_| !layout.delete_published)?;
        let done = match &layout.status {
            Some(status) => format!("{} = {}", of(&status.column), literal(&status.published)),
            None => format!("{} is not null", of(published)),
        };
        Some(self.sweep_of(&self.table(), &layout.id, &done, published))
    }

    /// Deletes a chunk of dead rows that are older than `$1` seconds, where the table says when they died.
    #[must_use]
    pub fn dead_swept(&self) -> Option<String> {
        let layout = &self.layout;
        if let Some(dead_letters) = &layout.dead_letters {
            let when = ["dead_at", layout.column.last_error_at.as_deref().unwrap_or("last_error_at")];
            let when =
                when.into_iter().find(|name| self.dead_columns.iter().any(|(column, _)| column == name))?;
            return Some(self.sweep_of(&quoted(dead_letters), &layout.id, "true", when));
        }
        let status = layout.status.as_ref()?;
        let done = format!("{} = {}", of(&status.column), literal(status.dead.as_ref()?));
        let when = [&layout.column.last_error_at, &layout.column.updated_at, &layout.column.last_attempt_at];
        let when = when.into_iter().flatten().next()?;
        Some(self.sweep_of(&self.table(), &layout.id, &done, when))
    }

    /// The topic of a dead row. Of a dead-letter table that has not all of its columns nobody knows it.
    #[must_use]
    pub fn dead_topic(&self) -> String {
        let knows = |column: &str| self.dead_columns.iter().any(|(name, _)| name == column);
        let is_known =
            self.layout.dead_letters.is_none() || self.layout.topic.columns().into_iter().all(knows);
        if is_known { self.topic() } else { "null::text".to_owned() }
    }

    fn sweep_of(&self, table: &str, id: &str, done: &str, when: &str) -> String {
        let (id, when) = (of(id), of(when));
        format!(
            "delete from {table} as t\n where {id} in (\n  select {id} from {table} as t\n   where {done} and {when} < now() - $1 * interval '1 second'\n   limit 500 for update of t skip locked)"
        )
    }

    /// Rows whose status nobody mapped, by word. Bounded: it looks at no more than a hundred thousand rows.
    #[must_use]
    pub fn unmapped(&self) -> Option<String> {
        let status = self.layout.status.as_ref()?;
        let words = status
            .pending
            .iter()
            .chain([&status.published, &status.retry])
            .chain(&status.dead)
            .chain(&status.claimed);
        let words: Vec<String> = words.map(|word| literal(word)).collect();
        let column = quote(&status.column);
        Some(format!(
            "select word, count(*) from (select {column}::text as word from {} where {column} is null or {column}::text not in ({}) limit 100000) as rest group by word order by 2 desc limit 10",
            self.table(),
            words.join(", ")
        ))
    }
}
