//! Rows for the rehearsal: one that goes, one that is made to wait again, or one that is made up. All of it
//! is rolled back.

use super::super::{Sets, Statements, literal, of, quoted};
use super::HandoverTarget;
use crate::claim::layout::{TopicPiece, TopicSource};
use crate::session::quote;

/// A column as the catalog describes it, for a row that is made up.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Its type, without length.
    pub(crate) kind: String,
    /// The first word, where it is an enum.
    pub(crate) word: Option<String>,
    /// An insert has to name it.
    pub(crate) required: bool,
}

/// Columns for [`Statements::made_up`]; `$1` is the table.
pub(crate) const COLUMNS: &str = "select a.attname::text, format_type(a.atttypid, null),
       (select e.enumlabel::text from pg_enum e where e.enumtypid = a.atttypid order by e.enumsortorder limit 1),
       a.attnotnull and not a.atthasdef and a.attidentity = '' and a.attgenerated = ''
  from pg_attribute a where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped";

impl TopicPiece {
    fn column(&self) -> Option<&str> {
        match self {
            Self::Column(name) => Some(name),
            Self::Text(_) => None,
        }
    }
}

impl Column {
    /// Something that fits, in SQL.
    fn value(&self) -> Option<String> {
        if let Some(word) = &self.word {
            return Some(literal(word));
        }
        let value = match self.kind.as_str() {
            "text" | "character varying" => "'posthaste rehearsal'",
            "character" => "'p'",
            "uuid" => "gen_random_uuid()",
            "json" | "jsonb" => "'{}'",
            "bytea" => "''",
            "boolean" => "false",
            "smallint" | "integer" | "bigint" | "numeric" | "real" | "double precision" => "-1",
            kind if kind.starts_with("timestamp") || kind == "date" => "now()",
            _ => return None,
        };
        Some(value.to_owned())
    }
}

impl Statements {
    /// Locks a row that would go, and answers its key. What somebody has in hand is passed over.
    pub(crate) fn one_that_goes(&self, place: &HandoverTarget) -> String {
        format!(
            "select {}::text from {} as t where {} limit 1 for update of t skip locked",
            of(&self.layout().id),
            quoted(&place.table),
            self.goes(place)
        )
    }

    /// Makes some row wait again, and answers its key.
    pub(crate) fn set_back(&self, place: &HandoverTarget) -> Option<String> {
        let (layout, table, id) = (self.layout(), quoted(&place.table), of(&self.layout().id));
        let mut sets = Sets::default();
        if let Some(status) = &layout.status {
            sets.put(Some(&status.column), &literal(status.pending.first()?));
        }
        sets.put(layout.column.published_at.as_ref(), "null");
        sets.put(layout.column.next_attempt_at.as_ref(), "now()");
        (!sets.is_empty()).then(|| {
            format!(
                "update {table} as t set {} where {id} = (select {id} from {table} as t limit 1 for update of t skip locked)\n\
                 returning {id}::text",
                sets.text()
            )
        })
    }

    /// Inserts a row that waits, with as little in it as the table allows, and answers its key. `None` means
    /// that a column wants something that nobody can guess.
    pub(crate) fn made_up(&self, place: &HandoverTarget, columns: &[Column]) -> Option<String> {
        let layout = self.layout();
        let mut wanted: Vec<&str> = match &layout.topic {
            TopicSource::Fixed(_) => Vec::new(),
            TopicSource::Column(name) => vec![name],
            TopicSource::Template(pieces) => pieces.iter().filter_map(TopicPiece::column).collect(),
        };
        wanted.push(&layout.payload);
        wanted.extend(layout.column.next_attempt_at.as_deref());
        let status = layout.status.as_ref();
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for column in columns {
            let word = status.filter(|status| status.column == column.name);
            if word.is_none() && !column.required && !wanted.contains(&column.name.as_str()) {
                continue;
            }
            names.push(quote(&column.name));
            values.push(match word {
                Some(status) => literal(status.pending.first()?),
                None => column.value()?,
            });
        }
        Some(format!(
            "insert into {} as t ({}) values ({}) returning {}::text",
            quoted(&place.table),
            names.join(", "),
            values.join(", "),
            of(&layout.id)
        ))
    }
}
