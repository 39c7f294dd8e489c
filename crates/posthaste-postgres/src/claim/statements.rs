//! Every statement that an adopted table sees, made from its layout: here and nowhere else.
//!
//! Pure: a layout and the types of its columns in, text out. `posthaste adopt sql` prints what stands here. Identifiers
//! are always quoted, words of a status are literals, everything that comes from rows is a parameter.
//!
//! Why they are safe beside each other and beside the application:
//!
//! - A claim locks rows with `SKIP LOCKED`: what the application or another relay has locked is passed over, not waited
//!   for, and two relays never get the same row. READ COMMITTED looks at the condition again once it has the lock.
//! - A settlement touches rows by their key. Under [`Style::Marked`] it also names the mark it was claimed with: a row
//!   that somebody else has claimed since is not hit (G4). Under [`Style::Locked`] the lock is the fence.
//! - No statement waits for a lock longer than the session's `lock_timeout`.

mod admin;
#[cfg(test)]
mod tests;

use super::layout::{Layout, Piece, Style, TableName, Topic};
use crate::session::quote;
use posthaste::route::{Filter, Pattern};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Types of a table's columns as the catalog prints them, by name.
pub type Types = BTreeMap<String, String>;

/// The statements of one layout.
#[derive(Debug, Clone)]
pub struct Statements {
    layout: Layout,
    types: Types,
    dead_columns: Vec<String>,
}

/// A text as a literal. Backslashes mean themselves: `standard_conforming_strings` is set by our sessions.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub(super) fn quoted(table: &TableName) -> String {
    match &table.schema {
        Some(schema) => format!("{}.{}", quote(schema), quote(&table.name)),
        None => quote(&table.name),
    }
}

fn of(column: &str) -> String {
    format!("t.{}", quote(column))
}

impl Statements {
    /// Makes them. `dead_columns` are those of the dead-letter table, where there is one.
    #[must_use]
    pub fn new(layout: Layout, types: Types, dead_columns: Vec<String>) -> Self {
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

    fn topic(&self) -> String {
        match &self.layout.topic {
            Topic::Column(name) => format!("{}::text", of(name)),
            Topic::Fixed(text) => format!("{}::text", literal(text)),
            Topic::Template(pieces) => {
                let parts = pieces.iter().map(|piece| match piece {
                    Piece::Text(text) => literal(text),
                    Piece::Column(name) => format!("{}::text", of(name)),
                });
                format!("({})", parts.collect::<Vec<_>>().join(" || "))
            }
        }
    }

    /// The payload as bytes.
    fn payload(&self) -> String {
        let column = of(&self.layout.payload);
        match self.type_of(&self.layout.payload) {
            "bytea" => column,
            _ => format!("convert_to({column}::text, 'UTF8')"),
        }
    }

    /// The media type of the payload.
    #[must_use]
    pub fn content_type(&self) -> Option<String> {
        let json = matches!(self.type_of(&self.layout.payload), "json" | "jsonb");
        self.layout.content_type.clone().or_else(|| json.then(|| "application/json".to_owned()))
    }

    /// The event's id: the row's own where it is a UUID, otherwise a stable one from the table and the row's key. The
    /// same row has the same one at every delivery.
    fn event_id(&self) -> String {
        let column = of(&self.layout.id);
        if self.type_of(&self.layout.id) == "uuid" {
            return column;
        }
        let seed = literal(&format!("{}:", self.layout.table));
        format!("encode(substr(sha256(convert_to({seed} || {column}::text, 'UTF8')), 1, 16), 'hex')::uuid")
    }

    fn optional(&self, column: Option<&String>, cast: &str) -> String {
        column.map_or_else(|| format!("null::{cast}"), |name| format!("{}::{cast}", of(name)))
    }

    /// What is read of a row, in the order that [`super::row`] expects. `$1` is the largest payload that is loaded.
    fn columns(&self) -> String {
        let layout = &self.layout;
        let (id, event_id) = (format!("{}::text", of(&layout.id)), self.event_id());
        let payload = self.payload();
        let extra: Vec<String> =
            layout.header_columns.iter().map(|(_, name)| format!("{}::text", of(name))).collect();
        let created = match &layout.created_at {
            Some(name) => format!("coalesce({}::timestamptz, now())", of(name)),
            None => "now()".to_owned(),
        };
        let attempts = match &layout.attempts {
            Some(name) => format!("coalesce({}, 0)::int4", of(name)),
            None => "null::int4".to_owned(),
        };
        format!(
            "{id} as id, {event_id} as event_id, {} as topic, {} as key,\n       \
             case when octet_length({payload}) <= $1 then {payload} end as payload, octet_length({payload}) as bytes,\n       \
             {} as headers, array[{}]::text[] as extra, {created} as created, {attempts} as attempts, {} as idempotency_key",
            self.topic(),
            self.optional(layout.key.as_ref(), "text"),
            self.optional(layout.headers.as_ref(), "text"),
            extra.join(", "),
            self.optional(layout.idempotency_key.as_ref(), "text"),
        )
    }

    /// What is due. `$2`: keys that are left out; `$3`: topics that are left out; `$4`: the only topic, or null.
    fn due(&self, filter: &Filter) -> String {
        let (layout, topic) = (&self.layout, self.topic());
        let mut conditions = Vec::new();
        match (&layout.status, &layout.published_at) {
            (Some(status), _) => {
                let words: Vec<String> = status.pending.iter().map(|word| literal(word)).collect();
                conditions.push(format!("{} in ({})", of(&status.column), words.join(", ")));
            }
            (None, Some(name)) if !layout.delete_published => {
                conditions.push(format!("{} is null", of(name)))
            }
            _ => {}
        }
        if let Some(name) = &layout.next_attempt_at {
            conditions.push(format!("{} <= now()", of(name)));
        }
        if let Some(condition) = &layout.condition {
            conditions.push(format!("({condition})"));
        }
        conditions.push(format!("{} <> all ($2::text[]::{}[])", of(&layout.id), self.type_of(&layout.id)));
        conditions.push(format!("coalesce({topic}, '') <> all ($3::text[])"));
        conditions.push(format!("($4::text is null or {topic} = $4)"));
        conditions.extend(filter_condition(filter, &topic));
        conditions.join("\n   and ")
    }

    fn order(&self) -> String {
        let columns: Vec<String> = self.layout.order_by.iter().map(|name| of(name)).collect();
        if columns.is_empty() { String::new() } else { format!(" order by {}", columns.join(", ")) }
    }

    /// Claims rows. Under [`Style::Marked`] `$5` is the relay's name.
    #[must_use]
    pub fn claim(&self, limit: usize, filter: &Filter) -> String {
        let (table, due, order) = (self.table(), self.due(filter), self.order());
        let columns = self.columns();
        let Some((status, claimed, mark)) = self.marking() else {
            return format!(
                "select {columns},\n       null::text as mark, null::text as was, null::text as was_at, 0::int8 as n\n  from {table} as t\n where {due}\n{order}\n limit {limit} for update of t skip locked"
            );
        };
        let id = quote(&self.layout.id);
        format!(
            "with picked as materialized (\n  select t.{id} as picked_id, {status}::text as was, {mark}::text as was_at\n    from {table} as t\n   where {due}\n  {order}\n   limit {limit} for update of t skip locked\n), counted as (\n  select *, row_number() over () as n from picked\n)\nupdate {table} as t set {sets}\n  from counted where t.{id} = counted.picked_id\nreturning {columns},\n       {mark}::text as mark, counted.was, counted.was_at, counted.n",
            status = of(&status),
            mark = of(&mark),
            sets = self.claim_sets(&claimed),
        )
    }

    fn marking(&self) -> Option<(String, String, String)> {
        let (status, mark) = (self.layout.status.as_ref()?, self.layout.mark()?);
        let claimed = status.claimed.clone()?;
        (self.layout.style() == Style::Marked).then(|| (status.column.clone(), claimed, mark.to_owned()))
    }

    fn claim_sets(&self, claimed: &str) -> String {
        let layout = &self.layout;
        let mut sets = Sets::default();
        sets.put(layout.status.as_ref().map(|status| &status.column), &literal(claimed));
        sets.put(layout.claimed_at.as_ref(), "now()");
        sets.put(layout.last_attempt_at.as_ref(), "now()");
        sets.put(layout.claimed_by.as_ref(), "$5::text");
        sets.put(layout.updated_at.as_ref(), "now()");
        sets.text()
    }

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

    /// Columns that say who has a row: empty once it is settled.
    fn unclaimed(&self, sets: &mut Sets) {
        sets.put(self.layout.claimed_at.as_ref(), "null");
        sets.put(self.layout.claimed_by.as_ref(), "null");
        if self.layout.style() == Style::Locked {
            sets.put(self.layout.last_attempt_at.as_ref(), "clock_timestamp()");
        }
        sets.put(self.layout.updated_at.as_ref(), "clock_timestamp()");
    }

    fn put_error(&self, sets: &mut Sets) {
        let layout = &self.layout;
        sets.put(layout.attempts.as_ref(), "u.attempts");
        sets.put(layout.last_error.as_ref(), &self.error_text());
        sets.put(layout.last_error_at.as_ref(), "clock_timestamp()");
        sets.put(layout.error_class.as_ref(), "u.class");
    }

    /// The error, no longer than its column takes.
    fn error_text(&self) -> String {
        let kind = self.layout.last_error.as_ref().map_or("text", |name| self.type_of(name));
        let length = kind.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')?.parse::<u32>().ok());
        length.map_or_else(|| "u.error".to_owned(), |length| format!("left(u.error, {length})"))
    }

    /// Marks rows as published, or deletes them. `$1` keys, `$2` marks.
    #[must_use]
    pub fn delivered(&self) -> String {
        let (table, fence, id) = (self.table(), self.fence(), of(&self.layout.id));
        let rows = "unnest($1::text[], $2::text[]) as u (id, mark)";
        if self.layout.delete_published {
            return format!("delete from {table} as t using {rows}\n where {fence}\nreturning {id}::text");
        }
        let mut sets = Sets::default();
        if let Some(status) = &self.layout.status {
            sets.put(Some(&status.column), &literal(&status.published));
        }
        sets.put(self.layout.published_at.as_ref(), "clock_timestamp()");
        self.unclaimed(&mut sets);
        format!(
            "update {table} as t set {}\n  from {rows}\n where {fence}\nreturning {id}::text",
            sets.text()
        )
    }

    /// Writes failed attempts down. `$1` keys, `$2` marks, `$3` attempts, `$4` seconds until the next one, `$5` errors,
    /// `$6` classes. `None`: the table has no column to write anything to.
    #[must_use]
    pub fn failed(&self) -> Option<String> {
        let layout = &self.layout;
        let mut sets = Sets::default();
        if let Some(status) = &layout.status {
            sets.put(Some(&status.column), &literal(&status.retry));
        }
        sets.put(layout.next_attempt_at.as_ref(), "clock_timestamp() + u.delay * interval '1 second'");
        self.put_error(&mut sets);
        self.unclaimed(&mut sets);
        (!sets.is_empty()).then(|| {
            format!(
                "update {} as t set {}\n  from unnest($1::text[], $2::text[], $3::int4[], $4::float8[], $5::text[], $6::text[]) as u (id, mark, attempts, delay, error, class)\n where {}\nreturning {}::text",
                self.table(),
                sets.text(),
                self.fence(),
                of(&layout.id)
            )
        })
    }

    /// Gives rows up: by a status, or by moving them. `$1` keys, `$2` marks, `$3` attempts, `$4` errors, `$5` classes.
    #[must_use]
    pub fn dead(&self) -> String {
        let layout = &self.layout;
        let rows = "unnest($1::text[], $2::text[], $3::int4[], $4::text[], $5::text[]) as u (id, mark, attempts, error, class)";
        let (table, fence, id) = (self.table(), self.fence(), of(&layout.id));
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
        format!(
            "update {table} as t set {}\n  from {rows}\n where {fence}\nreturning {id}::text",
            sets.text()
        )
    }

    /// Moves rows into the dead-letter table: every column that both tables have, and what is known of the death.
    fn buried(&self, dead_letters: &TableName, rows: &str) -> String {
        let layout = &self.layout;
        let error = self.error_text();
        let known = [
            (layout.attempts.as_deref().unwrap_or("attempts"), "gone.dead_attempts"),
            (layout.last_error.as_deref().unwrap_or("last_error"), "gone.dead_error"),
            (layout.error_class.as_deref().unwrap_or("error_class"), "gone.dead_class"),
            (layout.last_error_at.as_deref().unwrap_or("last_error_at"), "clock_timestamp()"),
            ("dead_at", "clock_timestamp()"),
        ];
        let source = |column: &String| match known.iter().find(|(name, _)| name == column) {
            Some((_, value)) => Some((*value).to_owned()),
            None => self.types.contains_key(column).then(|| format!("gone.{}", quote(column))),
        };
        let pairs: Vec<(String, String)> =
            self.dead_columns.iter().filter_map(|column| Some((quote(column), source(column)?))).collect();
        let (into, from): (Vec<String>, Vec<String>) = pairs.into_iter().unzip();
        format!(
            "with gone as (\n  delete from {} as t using {rows}\n   where {}\n  returning t.*, u.attempts as dead_attempts, {error} as dead_error, u.class as dead_class\n)\ninsert into {} ({})\nselect {} from gone\nreturning {}::text",
            self.table(),
            self.fence(),
            quoted(dead_letters),
            into.join(", "),
            from.join(", "),
            quote(&layout.id),
        )
    }

    /// Gives rows back as they were before the claim. `$1` keys, `$2` marks, `$3` former words, `$4` former times.
    /// `None`: they were only locked.
    #[must_use]
    pub fn given_back(&self) -> Option<String> {
        let (status, _, mark) = self.marking()?;
        let layout = &self.layout;
        let mut sets = Sets::default();
        sets.put(Some(&status), &format!("u.was::{}", self.type_of(&status)));
        for column in [&layout.claimed_at, &layout.last_attempt_at].into_iter().flatten() {
            let value =
                if *column == mark { format!("u.was_at::{}", self.type_of(column)) } else { of(column) };
            sets.put(Some(column), &value);
        }
        sets.put(layout.claimed_by.as_ref(), "null");
        sets.put(layout.updated_at.as_ref(), "clock_timestamp()");
        Some(format!(
            "update {} as t set {}\n  from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as u (id, mark, was, was_at)\n where {}\nreturning {}::text",
            self.table(),
            sets.text(),
            self.fence(),
            of(&layout.id)
        ))
    }

    /// Renews marks. `$1` keys, `$2` marks. `None`: locks need no renewal.
    #[must_use]
    pub fn renewed(&self) -> Option<String> {
        let (_, _, mark) = self.marking()?;
        Some(format!(
            "update {} as t set {} = clock_timestamp()\n  from unnest($1::text[], $2::text[]) as u (id, mark)\n where {}\nreturning {}::text, {}::text",
            self.table(),
            quote(&mark),
            self.fence(),
            of(&self.layout.id),
            of(&mark)
        ))
    }

    /// Takes rows back whose relay is gone: marked, and the mark is older than `$1` seconds, or missing. No attempt is
    /// counted: a relay that was killed is not the fault of what it had in hand.
    #[must_use]
    pub fn taken_back(&self) -> Option<String> {
        let (status, claimed, mark) = self.marking()?;
        let layout = &self.layout;
        let mut sets = Sets::default();
        let retry = layout.status.as_ref().map(|status| literal(&status.retry)).unwrap_or_default();
        sets.put(Some(&status), &retry);
        sets.put(layout.claimed_at.as_ref(), "null");
        sets.put(layout.claimed_by.as_ref(), "null");
        sets.put(layout.updated_at.as_ref(), "now()");
        let (table, id) = (self.table(), of(&layout.id));
        Some(format!(
            "update {table} as t set {}\n where {id} in (\n  select {id} from {table} as t\n   where {} = {} and ({mark} is null or {mark} < now() - $1 * interval '1 second')\n   limit {} for update of t skip locked)\nreturning {id}::text",
            sets.text(),
            of(&status),
            literal(&claimed),
            layout.batch,
            mark = of(&mark),
        ))
    }

    /// Deletes a chunk of published rows that are older than `$1` seconds. `None`: nothing says when a row was published.
    #[must_use]
    pub fn swept(&self) -> Option<String> {
        let layout = &self.layout;
        let published = layout.published_at.as_ref().filter(|_| !layout.delete_published)?;
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
            let when = ["dead_at", layout.last_error_at.as_deref().unwrap_or("last_error_at")];
            let when = when.into_iter().find(|name| self.dead_columns.iter().any(|column| column == name))?;
            return Some(self.sweep_of(&quoted(dead_letters), &layout.id, "true", when));
        }
        let status = layout.status.as_ref()?;
        let done = format!("{} = {}", of(&status.column), literal(status.dead.as_ref()?));
        let when = [&layout.last_error_at, &layout.updated_at, &layout.last_attempt_at];
        let when = when.into_iter().flatten().next()?;
        Some(self.sweep_of(&self.table(), &layout.id, &done, when))
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

    /// All of them, with what each is for.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![("claim", self.claim(self.layout.batch, &Filter::Everything))];
        all.push(("settle: published", self.delivered()));
        all.extend(self.failed().map(|sql| ("settle: failed, tried again later", sql)));
        all.push(("settle: given up", self.dead()));
        all.extend(self.given_back().map(|sql| ("settle: given back, no attempt counted", sql)));
        all.extend(self.renewed().map(|sql| ("renew what is in hand", sql)));
        all.extend(self.taken_back().map(|sql| ("take back what a dead relay had in hand", sql)));
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

/// The condition of a sink's filter on the topic.
fn filter_condition(filter: &Filter, topic: &str) -> Option<String> {
    let list = |patterns: &[Pattern]| {
        let list: Vec<String> = patterns.iter().map(|pattern| literal(&pattern.to_like())).collect();
        format!("coalesce({topic}, '') like any (array[{}]::text[])", list.join(", "))
    };
    match filter {
        Filter::Everything => None,
        Filter::Any(patterns) => Some(list(patterns)),
        Filter::NoneOf(patterns) if patterns.is_empty() => None,
        Filter::NoneOf(patterns) => Some(format!("not ({})", list(patterns))),
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
