//! The trigger that hands rows over to the log, as text.
//!
//! One statement does it, for one row: the row is marked the way its owners see a published one, and the event that a
//! claim would have made of it is appended. Neither happens without the other. The event is made of the row as it was
//! before the mark, by the same expressions that a claim reads it with.
//!
//! Rows that a claim would leave alone, and rows that the log cannot hold (no topic, headers that are no object), are
//! not touched: they stay with the claim, which buries them by name.

use super::{Sets, Statements, literal, of, quoted};
use crate::claim::layout::TableName;
use crate::session::quote;

/// The trigger's name on the adopted table.
pub(crate) const TRIGGER: &str = "posthaste_hand_over";

/// What the function does once it was switched off.
pub(crate) const OFF: &str = "\n-- Switched off: rows stay in their table.\nbegin\n  return null;\nend ";

/// Headers in one call: a function takes a hundred arguments.
const HEADERS_AT_ONCE: usize = 40;

/// Where the rows of a table go.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The table, with its schema.
    pub(crate) table: TableName,
    /// The schema of the log.
    pub(crate) log: String,
    /// Schemas in which the table's own triggers look things up.
    pub(crate) path: Vec<String>,
}

impl Place {
    /// The function, with its schema. Its name is made of the table's: one for each.
    pub(crate) fn function(&self) -> String {
        let whole = self.table.to_string();
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = whole.bytes().fold(0x811c_9dc5, step);
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        let name: String = self.table.name.chars().map(plain).take(40).collect();
        format!("{}.{}", quote(&self.log), quote(&format!("hand_over_{name}_{hash:08x}")))
    }

    fn search_path(&self) -> String {
        // Temporary objects come last: anybody can make one.
        self.path
            .iter()
            .map(|schema| quote(schema))
            .chain(["pg_temp".to_owned()])
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Makes the function do this. Indexes go before scans: a session keeps the plan that it made while the table was
    /// small.
    pub(crate) fn define(&self, body: &str, time_zone: &str) -> String {
        let mut tag = "$hand_over$".to_owned();
        while body.contains(&tag) {
            tag.insert(1, '_');
        }
        format!(
            "create or replace function {}() returns trigger\n  language plpgsql security definer\n  set search_path = {}\n  \
             set timezone = {}\n  set datestyle = 'ISO, YMD'\n  set standard_conforming_strings = on\n  set enable_seqscan = off\nas {tag}{body}{tag}",
            self.function(),
            self.search_path(),
            literal(time_zone),
        )
    }

    /// Nobody else may put the function on a table of theirs: it acts with the rights of whoever made it.
    pub(crate) fn keep_private(&self) -> String {
        format!("revoke all on function {}() from public", self.function())
    }

    pub(crate) fn describe(&self) -> String {
        let text = format!(
            "Posthaste: rows of {} go to the log in schema {} as they are committed. See: posthaste adopt migrate",
            self.table, self.log
        );
        format!("comment on function {}() is {}", self.function(), literal(&text))
    }

    /// Puts it on the table. Deferred: it sees the row as it is committed.
    pub(crate) fn put_on(&self) -> String {
        format!(
            "create constraint trigger {TRIGGER} after insert on {}\n  deferrable initially deferred for each row execute function {}()",
            quoted(&self.table),
            self.function()
        )
    }

    pub(crate) fn enable(&self) -> String {
        format!("alter table {} enable trigger {TRIGGER}", quoted(&self.table))
    }

    /// Takes function and trigger away: the trigger belongs to the function.
    pub(crate) fn take_off(&self) -> String {
        format!("drop function if exists {}() cascade", self.function())
    }
}

impl Statements {
    /// Which rows go to the log: what a claim would take now or later, if the log can hold it.
    fn goes(&self, headers: &str) -> String {
        let layout = self.layout();
        let mut conditions = vec![format!("coalesce({}, '') <> ''", self.topic())];
        match (&layout.status, &layout.published_at) {
            (Some(status), _) => {
                let words: Vec<String> = status.pending.iter().map(|word| literal(word)).collect();
                conditions.push(format!("{} in ({})", of(&status.column), words.join(", ")));
            }
            (None, Some(name)) if !layout.delete_published => {
                conditions.push(format!("{} is null", of(name)));
            }
            _ => {}
        }
        // A claim never takes a row without a time, and one at the end of time is no scheduled event.
        conditions.extend(layout.next_attempt_at.iter().map(|name| format!("isfinite({})", of(name))));
        conditions.extend(layout.condition.iter().map(|condition| format!("({condition})")));
        if layout.headers.is_some() {
            conditions.push(format!("jsonb_typeof({headers}) = 'object'"));
        }
        conditions.join("\n            and ")
    }

    /// The headers: the column's, then those made of other columns.
    fn log_headers(&self, given: &str) -> String {
        let layout = self.layout();
        let pair = |(name, column): (&str, &str)| format!("{}, {}::text", literal(name), of(column));
        let columns = layout.header_columns.iter().map(|(name, column)| (name.as_str(), column.as_str()));
        let pairs: Vec<String> = columns.map(pair).collect();
        let key = layout.idempotency_key.as_deref().map(|column| pair(("idempotency-key", column)));
        let object = |pairs: &str| format!("jsonb_strip_nulls(jsonb_build_object({pairs}))");
        let mut parts: Vec<String> = layout.headers.iter().map(|_| given.to_owned()).collect();
        parts.extend(pairs.chunks(HEADERS_AT_ONCE).map(|some| object(&some.join(", "))));
        parts.extend(key.as_deref().map(object));
        if parts.is_empty() {
            "null::jsonb".to_owned()
        } else {
            format!("nullif({}, '{{}}')", parts.join(" || "))
        }
    }

    /// The mark of a row that was handed over: as if a relay had published it.
    fn handed_over(&self) -> String {
        let layout = self.layout();
        let mut sets = Sets::default();
        if let Some(status) = &layout.status {
            sets.put(Some(&status.column), &literal(&status.published));
        }
        let now = [&layout.published_at, &layout.last_attempt_at, &layout.updated_at];
        now.into_iter().for_each(|column| sets.put(column.as_ref(), "clock_timestamp()"));
        let nobody = [&layout.claimed_at, &layout.claimed_by];
        nobody.into_iter().for_each(|column| sets.put(column.as_ref(), "null"));
        sets.text()
    }

    /// Hands one row over. `id` is its key as an expression, `headers` its headers' column as jsonb.
    ///
    /// Whether it goes is looked at apart from where it is found: a condition on the status beside the key would let the
    /// planner walk the index of what waits, and a session keeps such a plan while a backlog grows.
    pub(crate) fn hand_over(&self, place: &Place, id: &str, headers: &str) -> String {
        let (layout, table) = (self.layout(), quoted(&place.table));
        let (column, goes) = (of(&layout.id), self.goes(headers));
        let mark = match layout.delete_published {
            true => format!("delete from {table} as t using picked"),
            false => format!("update {table} as t set {} from picked", self.handed_over()),
        };
        let content_type = self.content_type().map_or("null".to_owned(), |text| literal(&text));
        let deliver_at = match &layout.next_attempt_at {
            Some(name) => format!("case when {0} > now() then {0}::timestamptz end", of(name)),
            None => "null::timestamptz".to_owned(),
        };
        let columns = "id, topic, key, headers, content_type, payload, deliver_at";
        format!(
            "with picked as materialized (\n    \
             select {event_id} as id, {topic} as topic, nullif({key}, '') as key,\n           {headers} as headers,\n           \
             {content_type}::text as content_type, {payload} as payload, {deliver_at} as deliver_at,\n           \
             ({goes}) as goes\n      from {table} as t where {column} = {id}\n  ), marked as (\n    \
             {mark} where {column} = {id} and picked.goes returning 1\n  )\n  \
             insert into {log}.outbox ({columns})\n  select {columns} from picked, marked",
            log = quote(&place.log),
            event_id = self.event_id(),
            topic = self.topic(),
            key = self.optional(layout.key.as_ref(), "text"),
            headers = self.log_headers(headers),
            payload = self.payload(),
        )
    }

    /// Topics of some rows.
    pub(crate) fn some_topics(&self, place: &Place) -> String {
        let table = quoted(&place.table);
        format!(
            "select distinct topic from (select {} as topic from {table} as t limit 1000) as sample where topic <> '' limit 50",
            self.topic()
        )
    }

    /// The headers' column as jsonb, where that cannot fail.
    fn safe_headers(&self) -> Option<String> {
        let name = self.layout().headers.as_ref()?;
        (self.type_of(name) == "jsonb").then(|| format!("coalesce({}, '{{}}')", of(name)))
    }

    /// The same statement for a try: `$1` is the key as text. Headers that would have to be parsed are left out.
    pub(crate) fn hand_over_try(&self, place: &Place) -> String {
        let headers = self.safe_headers().unwrap_or_else(|| "'{}'::jsonb".to_owned());
        let id = format!("$1::text::{}", self.type_of(&self.layout().id));
        self.hand_over(place, &id, &headers)
    }

    /// What the function does.
    pub(crate) fn hand_over_body(&self, place: &Place) -> String {
        let layout = self.layout();
        let id = format!("new.{}", quote(&layout.id));
        let about = format!(
            "\n#variable_conflict use_column\n-- Times without a zone are in {}.\n",
            layout.time_zone
        );
        let (Some(name), None) = (&layout.headers, self.safe_headers()) else {
            let headers = self.safe_headers().unwrap_or_default();
            return format!(
                "{about}begin\n  {};\n  return null;\nend ",
                self.hand_over(place, &id, &headers)
            );
        };
        // Text that is no JSON stays with the claim. Only such a layout pays for the block.
        format!(
            "{about}declare\n  posthaste_headers jsonb;\nbegin\n  begin\n    select coalesce({}::text::jsonb, '{{}}') into posthaste_headers\n      \
             from {} as t where {} = {id};\n  exception when data_exception then\n    return null;\n  end;\n  {};\n  return null;\nend ",
            of(name),
            quoted(&place.table),
            of(&layout.id),
            self.hand_over(place, &id, "posthaste_headers"),
        )
    }
}
