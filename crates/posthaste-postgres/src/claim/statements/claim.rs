//! Claiming: what a row is read as, what is due, and how it is taken.

use super::{Sets, Statements, literal, of};
use crate::claim::layout::{TopicPiece, TopicSource};
use crate::session::quote;
use posthaste::route::{Filter, Pattern};

/// Payloads that the server keeps in at most so many bytes are loaded before anybody knows how long they are.
const SHORT: usize = 2_000;

/// Rows of dead relays that are looked at, at most.
const EXPIRED: usize = 2_048;

/// Of rows that were claimed together, one in so many is taken over at once.
const PART: usize = 32;

impl Statements {
    pub(super) fn topic(&self) -> String {
        match &self.layout.topic {
            TopicSource::Column(name) => format!("{}::text", of(name)),
            TopicSource::Fixed(text) => format!("{}::text", literal(text)),
            TopicSource::Template(pieces) => {
                let parts = pieces.iter().map(|piece| match piece {
                    TopicPiece::Text(text) => literal(text),
                    TopicPiece::Column(name) => format!("{}::text", of(name)),
                });
                format!("({})", parts.collect::<Vec<_>>().join(" || "))
            }
        }
    }

    /// The payload as bytes.
    pub(super) fn payload(&self) -> String {
        let column = of(&self.layout.payload);
        match self.type_of(&self.layout.payload) {
            "bytea" => column,
            _ => format!("pg_catalog.convert_to({column}::text, 'UTF8')"),
        }
    }

    /// The media type of the payload.
    #[must_use]
    pub fn content_type(&self) -> Option<String> {
        let json = matches!(self.type_of(&self.layout.payload), "json" | "jsonb");
        self.layout.content_type.clone().or_else(|| json.then(|| "application/json".to_owned()))
    }

    /// The event's id: the row's own where it is a UUID, otherwise a stable one from the table and the row's
    /// key. The same row has the same one at every delivery.
    pub(super) fn event_id(&self) -> String {
        let column = of(&self.layout.id);
        if self.type_of(&self.layout.id) == "uuid" {
            return column;
        }
        let seed = literal(&format!("{}:", self.layout.table));
        format!(
            "pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256(pg_catalog.convert_to({seed} || {column}::text, 'UTF8')), 1, 16), 'hex')::uuid"
        )
    }

    pub(super) fn optional(&self, column: Option<&String>, cast: &str) -> String {
        column.map_or_else(|| format!("null::{cast}"), |name| format!("{}::{cast}", of(name)))
    }

    /// The payload as its column has it, and its length where it was left behind. The size that the server
    /// keeps says little about a payload that is compressed or a tree. So short ones are loaded, and measured
    /// by whoever reads them.
    fn loaded(&self) -> (String, String) {
        let column = of(&self.layout.payload);
        let (short, length) = match self.type_of(&self.layout.payload) {
            "json" | "jsonb" => {
                (format!("pg_column_size({column}) <= {SHORT} or "), format!("octet_length({column}::text)"))
            }
            _ => (String::new(), format!("octet_length({column})")),
        };
        (
            format!("case when {short}{length} <= $1 then {column} end"),
            format!("case when not ({short}{length} <= $1) then {length} end"),
        )
    }

    /// What is read of a row, in the order that [`crate::claim::row`] expects. `$1` is the largest payload
    /// that is loaded.
    fn columns(&self, attempts: &str) -> String {
        let layout = &self.layout;
        let (id, event_id) = (format!("{}::text", of(&layout.id)), self.event_id());
        let (payload, bytes) = self.loaded();
        let extra: Vec<String> =
            layout.header_columns.iter().map(|(_, name)| format!("{}::text", of(name))).collect();
        let created = match &layout.column.created_at {
            Some(name) => format!("coalesce({}::timestamptz, now())", of(name)),
            None => "now()".to_owned(),
        };
        format!(
            "{id} as id, {event_id} as event_id, {} as topic, {} as key,\n       \
             {payload} as payload, {bytes} as bytes,\n       \
             {} as headers, array[{}]::text[] as extra, {created} as created, {attempts} as attempts, {} as idempotency_key",
            self.topic(),
            self.optional(layout.column.key.as_ref(), "text"),
            self.optional(layout.column.headers.as_ref(), "text"),
            extra.join(", "),
            self.optional(layout.column.idempotency_key.as_ref(), "text"),
        )
    }

    fn attempts(&self) -> String {
        match &self.layout.column.attempts {
            Some(name) => format!("coalesce({}, 0)::int4", of(name)),
            None => "null::int4".to_owned(),
        }
    }

    /// What is due. `$2` are keys that are left out, `$3` are topics that are left out, `$4` is the only
    /// topic or null.
    pub(super) fn due(&self, filter: &Filter) -> String {
        let layout = &self.layout;
        let mut conditions = Vec::new();
        match (&layout.status, &layout.column.published_at) {
            (Some(status), _) => {
                let words: Vec<String> = status.pending.iter().map(|word| literal(word)).collect();
                conditions.push(format!("{} in ({})", of(&status.column), words.join(", ")));
            }
            (None, Some(name)) if !layout.delete_published => {
                conditions.push(format!("{} is null", of(name)))
            }
            _ => {}
        }
        if let Some(name) = &layout.column.next_attempt_at {
            conditions.push(format!("{} <= now()", of(name)));
        }
        if let Some(condition) = &layout.condition {
            conditions.push(format!("({condition})"));
        }
        conditions.extend(self.wanted(filter));
        conditions.join("\n   and ")
    }

    /// Which of the due rows this relay wants; see [`Self::due`].
    fn wanted(&self, filter: &Filter) -> Vec<String> {
        let (layout, topic) = (&self.layout, self.topic());
        let mut conditions = vec![
            format!("{} <> all ($2::text[]::{}[])", of(&layout.id), self.type_of(&layout.id)),
            format!("coalesce({topic}, '') <> all ($3::text[])"),
            format!("($4::text is null or {topic} = $4)"),
        ];
        conditions.extend(filter_condition(filter, &topic));
        conditions
    }

    pub(super) fn order(&self) -> String {
        let columns: Vec<String> = self.layout.order_by.iter().map(|name| of(name)).collect();
        if columns.is_empty() { String::new() } else { format!(" order by {}", columns.join(", ")) }
    }

    /// Claims rows. Under [`Style::Marked`](crate::claim::Style::Marked) `$5` is the relay's name, and `$6`
    /// bounds the payloads as the server keeps them. A row that comes behind so many bytes is not taken.
    #[must_use]
    pub fn claim(&self, limit: usize, filter: &Filter) -> String {
        let (table, due, order) = (self.table(), self.due(filter), self.order());
        let columns = self.columns(&self.attempts());
        let Some((status, claimed, mark)) = self.marking() else {
            return format!(
                "select {columns},\n       null::timestamptz as mark, null::text as was, null::timestamptz as was_at, 0::int8 as n\n  from {table} as t\n where {due}\n{order}\n limit {limit} for update of t skip locked"
            );
        };
        let (id, mut sets) = (quote(&self.layout.id), Sets::default());
        sets.put(Some(&status), &literal(&claimed));
        self.put_taken(&mut sets);
        format!(
            "with picked as materialized (\n  select t.{id} as picked_id, {status}::text as was, {mark}::timestamptz as was_at,\n         coalesce(pg_column_size({payload}), 0) as size\n    from {table} as t\n   where {due}\n  {order}\n   limit {limit} for update of t skip locked\n), counted as (\n  select *, row_number() over up_to as n, sum(size) over up_to - size as before\n    from picked window up_to as (rows unbounded preceding)\n)\nupdate {table} as t set {sets}\n  from counted where t.{id} = counted.picked_id and counted.before < $6\nreturning {columns},\n       {mark}::timestamptz as mark, counted.was, counted.was_at, counted.n",
            payload = of(&self.layout.payload),
            status = of(&status),
            mark = of(&mark),
            sets = sets.text(),
        )
    }

    /// Assigns the relay that has a row now: `$5`.
    fn put_taken(&self, sets: &mut Sets) {
        let column = &self.layout.column;
        sets.put(column.claimed_at.as_ref(), "now()");
        sets.put(column.last_attempt_at.as_ref(), "now()");
        sets.put(column.claimed_by.as_ref(), "$5::text");
        sets.put(column.updated_at.as_ref(), "now()");
    }

    /// Takes over at most `$7` rows whose relay is gone: they are marked, and the mark is older than `$6`
    /// seconds or missing. The other parameters are those of [`Self::claim`]. One of the rows may have killed
    /// the relay (F21). Rows that were claimed together have the same mark. Of many only a part is taken, of
    /// few a single one, so that the next death tells more than the last. A row that is taken alone is
    /// charged with an attempt until it comes back. If it does not come back, it was in hand alone when its
    /// relay died. `None` means that rows are only locked.
    #[must_use]
    pub fn taken_over(&self, filter: &Filter) -> Option<String> {
        let (status, claimed, mark) = self.marking()?;
        let layout = &self.layout;
        let (table, id, mark) = (self.table(), quote(&layout.id), of(&mark));
        let expired = format!(
            "{} = {} and ({mark} is null or {mark} < now() - $6 * interval '1 second')",
            of(&status),
            literal(&claimed)
        );
        let mut sets = Sets::default();
        self.put_taken(&mut sets);
        if let Some(attempts) = &layout.column.attempts {
            let charge = format!(
                "case when (select count(*) from picked) = 1 then picked.spent + 1 else {} end",
                of(attempts)
            );
            sets.put(Some(attempts), &charge);
        }
        let retry = layout.status.as_ref().map(|status| literal(&status.retry)).unwrap_or_default();
        Some(format!(
            "with expired as materialized (\n  select t.{id} as expired_id, {mark} as at from {table} as t\n   where {expired}\n   and {wanted}\n   order by {mark} nulls first limit {EXPIRED}\n), few as materialized (\n  select expired_id from expired order by at nulls first limit (\n    select greatest(1, least($7, count(*) / {PART})) from expired\n     where at is not distinct from (select e.at from expired as e order by e.at nulls first limit 1))\n), picked as materialized (\n  select t.{id} as picked_id, {mark}::timestamptz as was_at, {spent} as spent\n    from {table} as t where t.{id} in (select expired_id from few) and {expired}\n    for update of t skip locked\n)\nupdate {table} as t set {sets}\n  from picked where t.{id} = picked.picked_id\nreturning {columns},\n       {mark}::timestamptz as mark, {retry}::text as was, picked.was_at, 0::int8 as n",
            wanted = self.wanted(filter).join("\n   and "),
            spent = self.attempts(),
            sets = sets.text(),
            columns = self.columns("picked.spent"),
        ))
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
