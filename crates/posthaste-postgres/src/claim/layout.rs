//! What an adopted table looks like: one description, from which everything else is made.

use super::role::{ColumnKind, Columns};
use posthaste::retry::RetryPolicy;
use std::time::Duration;

/// A table's name, with its schema if it is not found by the search path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    /// The schema.
    pub schema: Option<String>,
    /// The table, spelled as in the catalog.
    pub name: String,
}

impl TableName {
    /// Reads `table`, `schema.table`, or either with quotes: `"Outbox"`, `app."Outbox"`. Names are taken as
    /// they are written: nothing is folded to lower case.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let (part, after) = match rest.strip_prefix('"') {
                Some(quoted) => {
                    let end =
                        quoted.find('"').ok_or_else(|| format!("{text:?} has a quote that never closes"))?;
                    (&quoted[..end], &quoted[end + 1..])
                }
                None => rest.split_at(rest.find('.').unwrap_or(rest.len())),
            };
            parts.push(part.to_owned());
            match after.strip_prefix('.') {
                Some(next) => rest = next,
                None if after.is_empty() => break,
                None => return Err(format!("{text:?} is not a table's name")),
            }
        }
        let bad = || format!("{text:?} is not a table's name: write table or schema.table");
        if parts.iter().any(String::is_empty) {
            return Err(bad());
        }
        let name = parts.pop().ok_or_else(bad)?;
        let schema = parts.pop();
        if parts.is_empty() { Ok(Self { schema, name }) } else { Err(bad()) }
    }

    /// A table by its bare name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { schema: None, name: name.to_owned() }
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Where a row's topic comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicSource {
    /// A column.
    Column(String),
    /// The same for all rows.
    Fixed(String),
    /// Text and columns, in turn.
    Template(Vec<TopicPiece>),
}

/// A part of a topic's template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicPiece {
    /// As it stands.
    Text(String),
    /// A column's value.
    Column(String),
}

impl TopicSource {
    /// Reads a column's name, or a template with columns in braces: `{aggregate_type}.{event_type}`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.contains(['{', '}']) {
            return if text.is_empty() {
                Err("a topic's column must not be empty".to_owned())
            } else {
                Ok(Self::Column(text.to_owned()))
            };
        }
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some(open) = rest.find(['{', '}']) {
            let close = rest[open..].find('}').filter(|close| rest.as_bytes()[open] == b'{' && *close > 1);
            let Some(close) = close else { return Err(format!("topic {text:?} has a stray brace")) };
            if open > 0 {
                pieces.push(TopicPiece::Text(rest[..open].to_owned()));
            }
            pieces.push(TopicPiece::Column(rest[open + 1..open + close].to_owned()));
            rest = &rest[open + close + 1..];
        }
        if !rest.is_empty() {
            pieces.push(TopicPiece::Text(rest.to_owned()));
        }
        Ok(Self::Template(pieces))
    }

    /// The columns it needs.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        match self {
            Self::Column(name) => vec![name],
            Self::Fixed(_) => Vec::new(),
            Self::Template(pieces) => pieces
                .iter()
                .filter_map(
                    |piece| if let TopicPiece::Column(name) = piece { Some(name.as_str()) } else { None },
                )
                .collect(),
        }
    }
}

/// The status column and its words. A word that is not among them is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusWords {
    /// The column.
    pub column: String,
    /// Words of rows that wait to be published, whether for the first time or again.
    pub pending: Vec<String>,
    /// The word of rows that a relay has in hand. If there is a time beside it, rows are claimed with it.
    pub claimed: Option<String>,
    /// The word after a failed attempt that is tried again.
    pub retry: String,
    /// The word of published rows.
    pub published: String,
    /// The word of rows that were given up. Without it a dead-letter table is needed.
    pub dead: Option<String>,
}

/// How rows are claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// By a status and a time; published outside of a transaction.
    Marked,
    /// By a row lock in an open transaction.
    Locked,
}

/// The whole description.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// The table.
    pub table: TableName,
    /// Its key: one column, unique.
    pub id: String,
    /// The topic.
    pub topic: TopicSource,
    /// The payload: json, jsonb, text or bytea.
    pub payload: String,
    /// Its media type; `application/json` for json and jsonb columns unless it is said.
    pub content_type: Option<String>,
    /// Columns that travel as headers: header, column.
    pub header_columns: Vec<(String, String)>,
    /// The status. Without it a row is done when `published_at` is set, or when it is gone.
    pub status: Option<StatusWords>,
    /// The columns that it may have beside these.
    pub column: Columns,
    /// Rows are claimed in the order of these columns.
    pub order_by: Vec<String>,
    /// A further condition of what is claimed, in SQL.
    pub condition: Option<String>,
    /// Published rows are deleted instead of marked.
    pub delete_published: bool,
    /// Where dead rows are moved.
    pub dead_letters: Option<TableName>,
    /// Whether a topic that the broker does not have is waited for, as in an outage of a destination. If not,
    /// it is a failure of the row and costs an attempt. Most owners of such tables expect that.
    pub waits_for_topics: bool,
    /// Columns of the layout that the table may lack. They are written where they exist.
    pub may_lack: Vec<String>,
    /// Time zone of columns without one.
    pub time_zone: String,
    /// Rows claimed at once, at most.
    pub batch: usize,
    /// Pause after a look that found nothing.
    pub poll_min: Duration,
    /// The longest such pause. It grows to this while nothing is found.
    pub poll_max: Duration,
    /// Age of a mark at which its row belongs to nobody any more.
    pub lease: Duration,
    /// Published rows are deleted after this long; `None`: kept.
    pub keep_published: Option<Duration>,
    /// Dead rows are deleted after this long; `None`: kept.
    pub keep_dead: Option<Duration>,
    /// When to try again, as the table's owners expect it. Routes without a policy of their own take it.
    pub retry: RetryPolicy,
}

/// How much is claimed, and how often. It may change under a running relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimPace {
    /// Rows claimed at once, at most.
    pub batch: usize,
    /// Pause after a look that found nothing.
    pub poll_min: Duration,
    /// The longest such pause.
    pub poll_max: Duration,
}

impl Layout {
    /// The pace that it says.
    #[must_use]
    pub fn pace(&self) -> ClaimPace {
        ClaimPace { batch: self.batch, poll_min: self.poll_min, poll_max: self.poll_max }
    }

    /// The least layout: a table, its key, topic and payload. Everything else is left out.
    #[must_use]
    pub fn new(table: TableName, id: &str, topic: TopicSource, payload: &str) -> Self {
        Self {
            table,
            id: id.to_owned(),
            topic,
            payload: payload.to_owned(),
            content_type: None,
            header_columns: Vec::new(),
            status: None,
            column: Columns::default(),
            order_by: Vec::new(),
            condition: None,
            delete_published: false,
            dead_letters: None,
            waits_for_topics: false,
            may_lack: Vec::new(),
            time_zone: "UTC".to_owned(),
            batch: 50,
            poll_min: Duration::from_millis(500),
            poll_max: Duration::from_millis(500),
            lease: Duration::from_secs(60),
            keep_published: None,
            keep_dead: None,
            retry: RetryPolicy::default(),
        }
    }

    /// The column that holds a claim's mark, which is the time since when a relay has the row.
    #[must_use]
    pub fn mark(&self) -> Option<&str> {
        self.column.claimed_at.as_deref().or(self.column.last_attempt_at.as_deref())
    }

    /// How rows are claimed: marked where there is a word and a time for it.
    #[must_use]
    pub fn style(&self) -> Style {
        let word = self.status.as_ref().is_some_and(|status| status.claimed.is_some());
        if word && self.mark().is_some() { Style::Marked } else { Style::Locked }
    }

    /// Whether nothing in a row tells if it was published before we came. Then its owners have to say where
    /// to begin (F27).
    #[must_use]
    pub fn needs_a_start(&self) -> bool {
        let tells = self.status.is_some()
            || self.column.created_at.is_some()
            || self.column.next_attempt_at.is_some();
        self.delete_published && !tells && self.condition.is_none()
    }

    /// What is wrong with it, as far as that can be told without a database.
    pub fn check(&self) -> Result<(), String> {
        if self.batch == 0 || self.batch > 10_000 {
            return Err("`batch` must be between 1 and 10,000".to_owned());
        }
        if self.poll_min.is_zero() || self.poll_min > self.poll_max {
            return Err("`poll_min_ms` must be at least 1 and not above `poll_max_ms`".to_owned());
        }
        if self.status.is_none() && self.column.published_at.is_none() && !self.delete_published {
            return Err(
                "nothing says that a row is done: name `status`, `published_at`, or set `delete_published`"
                    .to_owned(),
            );
        }
        let dead = self.status.as_ref().is_some_and(|status| status.dead.is_some());
        if !dead && self.dead_letters.is_none() {
            return Err(
                "nothing says that a row is given up: name a dead word of `status`, or a `dead_letter_table`"
                    .to_owned(),
            );
        }
        if let Some(status) = &self.status {
            if status.pending.is_empty() {
                return Err("`status` needs at least one word for rows that wait".to_owned());
            }
            let taken = [Some(&status.published), status.dead.as_ref(), status.claimed.as_ref()];
            if let Some(word) = taken.into_iter().flatten().find(|word| status.pending.contains(word)) {
                return Err(format!("the status {word:?} cannot mean that a row waits and something else"));
            }
            if !status.pending.contains(&status.retry) {
                return Err(format!(
                    "a row that failed would become {:?}, which is not among the words that wait: it would never be tried again",
                    status.retry
                ));
            }
            if status.claimed.is_some() && self.mark().is_none() {
                return Err("a status for claimed rows needs a time beside it (`claimed_at` or `last_attempt_at`): without one, \
                            rows that a crash leaves behind would stay there for ever"
                    .to_owned());
            }
        }
        if self.delete_published && self.keep_published.is_some() {
            return Err("`delete_published` leaves nothing that a retention could delete".to_owned());
        }
        Ok(())
    }

    /// The same layout for a table that lacks these columns.
    #[must_use]
    pub fn without(mut self, lacking: &[String]) -> Self {
        for (_, column) in self.column.roles_mut() {
            column.take_if(|name| lacking.contains(name));
        }
        self.header_columns.retain(|(_, column)| !lacking.contains(column));
        self.order_by.retain(|column| !lacking.contains(column));
        self
    }

    /// Every column it names, with what it is for and what it must be.
    #[must_use]
    pub fn columns(&self) -> Vec<(&'static str, ColumnKind, &str)> {
        let mut columns = vec![("id", ColumnKind::Any, self.id.as_str())];
        columns.extend(self.topic.columns().into_iter().map(|name| ("topic", ColumnKind::Any, name)));
        columns.push(("payload", ColumnKind::Payload, &self.payload));
        let headers = self
            .header_columns
            .iter()
            .map(|(_, column)| ("header_columns", ColumnKind::Any, column.as_str()));
        columns.extend(headers);
        columns.extend(self.status.iter().map(|status| ("status", ColumnKind::Any, status.column.as_str())));
        columns.extend(self.order_by.iter().map(|column| ("order_by", ColumnKind::Any, column.as_str())));
        let roles = self.column.roles().filter_map(|(role, column)| Some((role.name, role.kind, column?)));
        columns.extend(roles);
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_name_in_quotes_is_taken_as_it_is(schema in prop::option::of("[^\"]{1,9}"), name in "[^\"]{1,9}") {
            let text = match &schema {
                Some(schema) => format!("\"{schema}\".\"{name}\""),
                None => format!("\"{name}\""),
            };
            prop_assert_eq!(TableName::parse(&text), Ok(TableName { schema, name }));
        }

        #[test]
        fn any_text_names_a_table_or_is_refused(text in "([\".]{1,2}|\\PC{1,2}){0,6}") {
            if let Ok(TableName { schema, name }) = TableName::parse(&text) {
                prop_assert!(!name.is_empty() && schema.is_none_or(|schema| !schema.is_empty()));
            }
        }

        #[test]
        fn any_text_is_a_topic_or_refused(text in "([{}]{1,2}|\\PC{1,2}){0,6}") {
            if let Ok(topic) = TopicSource::parse(&text) {
                prop_assert!(topic.columns().iter().all(|column| !column.is_empty() && text.contains(column)));
            }
        }
    }

    #[test]
    fn table_names_are_taken_as_they_are_written() {
        let parsed = |text| TableName::parse(text).map(|table| (table.schema, table.name));
        assert_eq!(parsed("outbox"), Ok((None, "outbox".to_owned())));
        assert_eq!(parsed("\"Outbox\""), Ok((None, "Outbox".to_owned())));
        assert_eq!(parsed("app.\"Out.box\""), Ok((Some("app".to_owned()), "Out.box".to_owned())));
        for bad in ["", "a.b.c", "\"open", "a.", ".a", "\"a\"b"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn topics_are_columns_or_templates() {
        assert_eq!(TopicSource::parse("event_type"), Ok(TopicSource::Column("event_type".to_owned())));
        let template = TopicSource::parse("ev.{aggregate_type}.{event_type}").expect("a template");
        assert_eq!(template.columns(), ["aggregate_type", "event_type"]);
        for bad in ["", "{", "a}", "{}", "a.{b"] {
            assert!(TopicSource::parse(bad).is_err(), "{bad}");
        }
    }
}
