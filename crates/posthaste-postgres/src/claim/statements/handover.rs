//! The trigger that hands rows over to the log, as text.
//!
//! One statement does it, for one row. It marks the row the way its owners see a published one, and appends
//! the event that a claim would have made of it. Neither happens without the other. The event is made of the
//! row as it was before the mark, by the same expressions that a claim reads it with.
//!
//! Rows that a claim would leave alone are not touched. Whatever a claim would take goes, even what no broker
//! can take (no topic, headers that are no object). The log's relay buries that by name, as the claim would
//! have done.
//!
//! The function acts with the rights of its definer, and finds things by a path that others may write to.
//! `start` refuses such a path ([`HandoverTarget::strangers`]). As a second wall, the text here names the
//! server's own functions and operators with their schema, wherever somebody else's could fit better.

mod try_out;

pub(crate) use try_out::{COLUMNS, Column};

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
pub(crate) struct HandoverTarget {
    /// The table, with its schema.
    pub(crate) table: TableName,
    /// The schema of the log.
    pub(crate) log: String,
    /// Schemas in which the table's own triggers look things up.
    pub(crate) path: Vec<String>,
    /// Columns whose values the server compares by itself. Types of extensions bring their own operators.
    pub(crate) plain: Vec<String>,
}

impl HandoverTarget {
    /// The function, with its schema. Its name is made of the table's, so that there is one for each table.
    pub(crate) fn function(&self) -> String {
        let whole = self.table.to_string();
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = whole.bytes().fold(0x811c_9dc5, step);
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        let name: String = self.table.name.chars().map(plain).take(40).collect();
        format!("{}.{}", quote(&self.log), quote(&format!("hand_over_{name}_{hash:08x}")))
    }

    fn search_path(&self) -> String {
        // Temporary objects come last, because anybody can make one.
        self.path
            .iter()
            .map(|schema| quote(schema))
            .chain(["pg_temp".to_owned()])
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// A REVOKE for each role that may create objects in a schema of the path. Left out are the owner of the
    /// schema, the owner of the table (whose triggers run with the same rights anyway) and the role that
    /// asks.
    pub(crate) fn strangers(&self) -> String {
        let path: Vec<String> = self.path.iter().map(|schema| literal(schema)).collect();
        format!(
            "select pg_catalog.format('REVOKE CREATE ON SCHEMA %I FROM %s', n.nspname,\n         \
             case when a.grantee = 0 then 'PUBLIC' else a.grantee::pg_catalog.regrole::text end)\n    \
             from pg_catalog.pg_namespace as n, pg_catalog.aclexplode(n.nspacl) as a\n   \
             where n.nspname::text = any (array[{}]::text[]) and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner\n     \
             and not exists (select from pg_catalog.pg_roles as r where r.oid = a.grantee and (r.rolsuper or r.rolname = current_user))\n     \
             and not exists (select from pg_catalog.pg_class as c where c.oid = {}::pg_catalog.regclass and c.relowner = a.grantee)",
            path.join(", "),
            literal(&quoted(&self.table)),
        )
    }

    /// The same for a script, which ends with the first of them.
    pub(crate) fn no_strangers(&self) -> String {
        format!(
            "do $strangers$\ndeclare\n  posthaste_revoke text;\nbegin\n  for posthaste_revoke in\n  {}\n  loop\n    \
             raise exception 'others may make functions where this one looks them up, and it acts with your rights: %', posthaste_revoke;\n  \
             end loop;\nend $strangers$",
            self.strangers()
        )
    }

    /// A comparison whose operator nobody can replace.
    fn equals(&self, column: &str) -> &'static str {
        if self.plain.iter().any(|name| name == column) { "operator(pg_catalog.=)" } else { "=" }
    }

    /// Makes the function do this. Indexes go before scans, because a session keeps the plan that it made
    /// while the table was small.
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

    /// Nobody else may put the function on a table of theirs, because it acts with the rights of the role
    /// that made it.
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

    /// Puts the trigger on the table. It is deferred, so that it sees the row as it is committed.
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

    /// Drops the function, and with it the trigger, which belongs to it.
    pub(crate) fn take_off(&self) -> String {
        format!("drop function if exists {}() cascade", self.function())
    }
}

impl Statements {
    /// Which rows go to the log. These are the rows that a claim would take now or later.
    fn goes(&self, place: &HandoverTarget) -> String {
        let layout = self.layout();
        let mut conditions = vec!["true".to_owned()];
        match (&layout.status, &layout.column.published_at) {
            (Some(status), _) => {
                let (column, equals) = (of(&status.column), place.equals(&status.column));
                let word = |word: &String| format!("{column} {equals} {}", literal(word));
                let words: Vec<String> = status.pending.iter().map(word).collect();
                conditions.push(format!("({})", words.join(" or ")));
            }
            (None, Some(name)) if !layout.delete_published => {
                conditions.push(format!("{} is null", of(name)));
            }
            _ => {}
        }
        // A claim never takes a row without a time, and one at the end of time is no scheduled event.
        conditions.extend(
            layout.column.next_attempt_at.iter().map(|name| format!("pg_catalog.isfinite({})", of(name))),
        );
        conditions.extend(layout.condition.iter().map(|condition| format!("({condition})")));
        conditions.join("\n            and ")
    }

    /// The headers: the column's, then those made of other columns. What is no object stays what it is.
    fn log_headers(&self, given: &str) -> String {
        let layout = self.layout();
        let pair = |(name, column): (&str, &str)| format!("{}, {}::text", literal(name), of(column));
        let columns = layout.header_columns.iter().map(|(name, column)| (name.as_str(), column.as_str()));
        let pairs: Vec<String> = columns.map(pair).collect();
        let key = layout.column.idempotency_key.as_deref().map(|column| pair(("idempotency-key", column)));
        let object =
            |pairs: &str| format!("pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object({pairs}))");
        let mut parts: Vec<String> = layout.column.headers.iter().map(|_| given.to_owned()).collect();
        parts.extend(pairs.chunks(HEADERS_AT_ONCE).map(|some| object(&some.join(", "))));
        parts.extend(key.as_deref().map(object));
        let whole = format!("nullif({}, '{{}}')", parts.join(" || "));
        match (parts.len(), &layout.column.headers) {
            (0, _) => "null::jsonb".to_owned(),
            (2.., Some(_)) => {
                format!("case when pg_catalog.jsonb_typeof({given}) = 'object' then {whole} else {given} end")
            }
            _ => whole,
        }
    }

    /// The mark of a row that was handed over: as if a relay had published it.
    fn handed_over(&self) -> String {
        let layout = self.layout();
        let mut sets = Sets::default();
        if let Some(status) = &layout.status {
            sets.put(Some(&status.column), &literal(&status.published));
        }
        let now = [&layout.column.published_at, &layout.column.last_attempt_at, &layout.column.updated_at];
        now.into_iter().for_each(|column| sets.put(column.as_ref(), "clock_timestamp()"));
        let nobody = [&layout.column.claimed_at, &layout.column.claimed_by];
        nobody.into_iter().for_each(|column| sets.put(column.as_ref(), "null"));
        sets.text()
    }

    /// Hands one row over. `id` is its key as an expression, `headers` its headers' column as jsonb.
    ///
    /// The row is found by its key alone, and whether it goes is looked at afterwards. A condition on the
    /// status beside the key would let the planner walk the index of what waits, and a session keeps such a
    /// plan while a backlog grows.
    ///
    /// The row that is marked is the very one that was looked at, because tables that inherit do not share
    /// the key's index.
    pub(crate) fn hand_over(&self, place: &HandoverTarget, id: &str, headers: &str) -> String {
        let (layout, table) = (self.layout(), quoted(&place.table));
        let (goes, found) =
            (self.goes(place), format!("{} {} {id}", of(&layout.id), place.equals(&layout.id)));
        let mark = match layout.delete_published {
            true => format!("delete from {table} as t using picked"),
            false => format!("update {table} as t set {} from picked", self.handed_over()),
        };
        let content_type = self.content_type().map_or("null".to_owned(), |text| literal(&text));
        let deliver_at = match &layout.column.next_attempt_at {
            Some(name) => format!("case when {0} > now() then {0}::timestamptz end", of(name)),
            None => "null::timestamptz".to_owned(),
        };
        let columns = "id, topic, key, headers, content_type, payload, deliver_at";
        format!(
            "with picked as materialized (\n    \
             select t.tableoid as at_table, t.ctid as at_row,\n           {event_id} as id, coalesce({topic}, '') as topic, nullif({key}, '') as key,\n           {headers} as headers,\n           \
             {content_type}::text as content_type, {payload} as payload, {deliver_at} as deliver_at,\n           \
             ({goes}) as goes\n      from {table} as t where {found}\n  ), marked as (\n    \
             {mark} where {found}\n       and t.tableoid = picked.at_table and t.ctid = picked.at_row and picked.goes\n    \
             returning picked.at_table, picked.at_row\n  )\n  \
             insert into {log}.outbox ({columns})\n  select {columns} from picked join marked using (at_table, at_row)",
            log = quote(&place.log),
            event_id = self.event_id(),
            topic = self.topic(),
            key = self.optional(layout.column.key.as_ref(), "text"),
            headers = self.log_headers(headers),
            payload = self.payload(),
        )
    }

    /// How many rows wait.
    pub(crate) fn waiting_count(&self, place: &HandoverTarget) -> String {
        format!("select count(*) from {} as t\n  where {}", quoted(&place.table), self.waiting())
    }

    /// Topics of some rows.
    pub(crate) fn some_topics(&self, place: &HandoverTarget) -> String {
        let table = quoted(&place.table);
        format!(
            "select distinct topic from (select {} as topic from {table} as t limit 1000) as sample where topic <> '' limit 50",
            self.topic()
        )
    }

    /// The headers' column as jsonb, where that cannot fail.
    fn safe_headers(&self) -> Option<String> {
        let name = self.layout().column.headers.as_ref()?;
        (self.type_of(name) == "jsonb").then(|| format!("coalesce({}, '{{}}')", of(name)))
    }

    /// The same statement for a try: `$1` is the key as text. Headers that would have to be parsed are left
    /// out.
    pub(crate) fn hand_over_try(&self, place: &HandoverTarget) -> String {
        let headers = self.safe_headers().unwrap_or_else(|| "'{}'::jsonb".to_owned());
        let id = format!("$1::text::{}", self.type_of(&self.layout().id));
        self.hand_over(place, &id, &headers)
    }

    /// What the function does.
    pub(crate) fn hand_over_body(&self, place: &HandoverTarget) -> String {
        let layout = self.layout();
        let id = format!("new.{}", quote(&layout.id));
        let about = format!(
            "\n#variable_conflict use_column\n-- Times without a zone are in {}.\n",
            layout.time_zone
        );
        let (Some(name), None) = (&layout.column.headers, self.safe_headers()) else {
            let headers = self.safe_headers().unwrap_or_default();
            return format!(
                "{about}begin\n  {};\n  return null;\nend ",
                self.hand_over(place, &id, &headers)
            );
        };
        // Text that is no JSON goes as a string, which no relay takes for headers. Only such a layout pays
        // for the block.
        format!(
            "{about}declare\n  posthaste_text text;\n  posthaste_headers jsonb;\nbegin\n  select {}::text into posthaste_text\n    \
             from {} as t where {} {} {id};\n  begin\n    posthaste_headers := coalesce(posthaste_text::jsonb, '{{}}');\n  \
             exception when data_exception then\n    posthaste_headers := pg_catalog.to_jsonb(posthaste_text);\n  end;\n  \
             {};\n  return null;\nend ",
            of(name),
            quoted(&place.table),
            of(&layout.id),
            place.equals(&layout.id),
            self.hand_over(place, &id, "posthaste_headers"),
        )
    }
}
