//! Statements for people: how much waits, what is dead, and what becomes of it.
//!
//! Counts are bounded (F82). A replay puts a row back the way its owners would: waiting, due now, with no
//! attempt spent.

use super::{Sets, Statements, literal, of, quoted};
use crate::claim::audit;
use crate::dead_rows::ERROR_READ;
use crate::session::quote;

/// Rows that a count looks at, at most.
const COUNT_MAX: u32 = 100_000;
/// Rows that ages are taken from: the first in the order of the claim.
const AGE_ROWS: u32 = 1_000;

/// What is read of a dead row's payload.
enum ListedPayload {
    Whole,
    Size,
    Nothing,
}

impl Statements {
    /// Rows that wait, those that are due now and those that are due later.
    pub(super) fn waiting(&self) -> String {
        let layout = self.layout();
        let mut conditions = Vec::new();
        match (&layout.status, &layout.column.published_at) {
            (Some(status), _) => {
                let words: Vec<String> =
                    status.pending.iter().chain(&status.claimed).map(|word| literal(word)).collect();
                conditions.push(format!("{} in ({})", of(&status.column), words.join(", ")));
            }
            (None, Some(name)) if !layout.delete_published => {
                conditions.push(format!("{} is null", of(name)))
            }
            _ => conditions.push("true".to_owned()),
        }
        conditions.extend(layout.condition.iter().map(|condition| format!("({condition})")));
        conditions.join(" and ")
    }

    /// Backlog, deferred, dead, the oldest and average age of the backlog in seconds, and rows that wait for
    /// no time (it is null or infinity). Nobody ever takes such a row, so it is not deferred.
    pub(crate) fn gauges(&self) -> String {
        let (layout, table) = (self.layout(), self.table());
        let due = layout
            .column
            .next_attempt_at
            .as_ref()
            .map_or("true".to_owned(), |name| format!("{} <= now()", of(name)));
        let never = layout.column.next_attempt_at.as_ref().map_or("false".to_owned(), |name| {
            format!("({0} is null or ({0} > now() and not isfinite({0})))", of(name))
        });
        let age = layout
            .column
            .created_at
            .as_ref()
            .map_or("null::timestamptz".to_owned(), |name| format!("{}::timestamptz", of(name)));
        let waiting = self.waiting();
        let (dead_table, dead) = self.dead_rows();
        format!(
            "select (select count(*) from (select from {table} as t where {waiting} and {due} limit {COUNT_MAX}) as due),
       (select count(*) from (select from {table} as t where {waiting} and not ({due}) and not {never} limit {COUNT_MAX}) as later),
       (select count(*) from (select from {dead_table} as t where {dead} limit {COUNT_MAX}) as dead),
       coalesce(extract(epoch from now() - min(at)), 0)::float8, coalesce(extract(epoch from avg(now() - at)), 0)::float8,
       (select count(*) from (select from {table} as t where {waiting} and {never} limit {COUNT_MAX}) as never)
  from (select {age} as at from {table} as t where {waiting} and {due}{order} limit {AGE_ROWS}) as ages",
            order = self.order(),
        )
    }

    /// The table that has dead rows, and the condition that they are dead.
    fn dead_rows(&self) -> (String, String) {
        let layout = self.layout();
        if let Some(dead_letters) = &layout.dead_letters {
            return (quoted(dead_letters), "true".to_owned());
        }
        let word = layout.status.as_ref().and_then(|status| Some((&status.column, status.dead.as_ref()?)));
        let dead =
            word.map_or("false".to_owned(), |(column, word)| format!("{} = {}", of(column), literal(word)));
        (self.table(), dead)
    }

    fn dead_has(&self, column: Option<&str>) -> Option<String> {
        let column = column?;
        let known = match &self.layout().dead_letters {
            Some(_) => self.dead_columns.iter().any(|(name, _)| name == column),
            None => self.types.contains_key(column),
        };
        known.then(|| of(column))
    }

    /// The type of a dead row's key.
    fn dead_id_type(&self) -> &str {
        let id = &self.layout().id;
        let own = self.dead_columns.iter().find(|(name, _)| name == id).map(|(_, kind)| kind.as_str());
        own.unwrap_or_else(|| self.type_of(id))
    }

    /// When a row died, where the table tells, or this.
    fn died_at_or(&self, unknown: &str) -> String {
        let layout = self.layout();
        let columns = [
            self.layout().dead_letters.as_ref().and_then(|_| self.dead_has(Some("dead_at"))),
            self.dead_has(layout.column.last_error_at.as_deref()),
            self.dead_has(layout.column.updated_at.as_deref()),
            self.dead_has(layout.column.last_attempt_at.as_deref()),
            self.dead_has(layout.column.created_at.as_deref()),
        ];
        let first = columns.into_iter().flatten().next();
        first.map_or_else(
            || unknown.to_owned(),
            |column| format!("coalesce({column}::timestamptz, {unknown})"),
        )
    }

    /// The same as it sorts: what nobody knows does not move while it is looked at.
    fn died_sorted(&self) -> String {
        self.died_at_or("'infinity'::timestamptz")
    }

    /// Which dead rows: `$1` event ids or null, `$2` a LIKE pattern of topics or null, `$3` a key or null,
    /// `$4` an error code or null, `$5` and `$6` seconds of the epoch or null.
    fn dead_filter(&self) -> String {
        let layout = self.layout();
        let key = layout.column.key.as_ref().map_or("null".to_owned(), |name| format!("{}::text", of(name)));
        let error = layout.column.last_error.as_deref().or(Some("last_error"));
        let error = self.dead_has(error).unwrap_or_else(|| "null::text".to_owned());
        let died = self.died_at_or("now()");
        format!(
            "($1::uuid[] is null or {} = any ($1)) and ($2::text is null or coalesce({}, '') like $2)
   and ($3::text is null or {key} = $3) and ($4::text is null or split_part({error}, ':', 1) = $4)
   and ($5::float8 is null or {died} >= to_timestamp($5)) and ($6::float8 is null or {died} < to_timestamp($6))",
            self.event_id(),
            self.topic(),
        )
    }

    /// What is read of dead rows, up to a further condition.
    fn dead_select(&self, payload: &ListedPayload, error_chars: Option<usize>) -> String {
        let (table, dead) = self.dead_rows();
        let layout = self.layout();
        let text = |column: Option<String>| column.unwrap_or_else(|| "null".to_owned());
        let finite = |time: String| format!("case when isfinite({time}) then {time} else now() end");
        let attempts = text(self.dead_has(layout.column.attempts.as_deref().or(Some("attempts"))));
        let error = text(self.dead_has(layout.column.last_error.as_deref().or(Some("last_error"))));
        let error =
            error_chars.map_or(format!("{error}::text"), |chars| format!("left({error}::text, {chars})"));
        let class = text(self.dead_has(layout.column.error_class.as_deref().or(Some("error_class"))));
        let created = text(self.dead_has(layout.column.created_at.as_deref()));
        let payload = match (payload, self.payload()) {
            (ListedPayload::Whole, whole) => format!("{whole} as payload, octet_length({whole})::int8"),
            (ListedPayload::Size, whole) => format!("null::bytea as payload, octet_length({whole})::int8"),
            (ListedPayload::Nothing, _) => "null::bytea as payload, null::int8".to_owned(),
        };
        format!(
            "select {} as event_id, {} as topic, {} as key, {payload} as payload_bytes, {} as created,
       {} as died, {place} as place, {id}::text as place_id, coalesce({attempts}, 0)::int4 as attempts, {error} as error, {class}::text as class
  from {table} as t
 where {dead}",
            self.event_id(),
            self.topic(),
            self.optional(layout.column.key.as_ref(), "text"),
            finite(format!("{created}::timestamptz")),
            finite(self.died_at_or("now()")),
            place = self.died_sorted(),
            id = of(&layout.id),
        )
    }

    /// A page of dead rows by when they died and their key: a row that leaves moves no other. It goes on
    /// behind the place `$7` and `$8`, or null, with `$9` rows. What died nobody knows when is the newest.
    pub(crate) fn dead_page(&self, newest: bool) -> String {
        let (place, id, kind) = (self.died_sorted(), of(&self.layout().id), self.dead_id_type());
        let (behind, order) = if newest { ("<", " desc") } else { (">", "") };
        let (select, filter) = (self.dead_select(&ListedPayload::Size, None), self.dead_filter());
        let behind = format!("($7::timestamptz is null or ({place}, {id}) {behind} ($7, $8::text::{kind}))");
        format!("{select} and {filter}\n   and {behind}\n order by {place}{order}, {id}{order} limit $9")
    }

    /// Fails if a place holds what the table's key cannot be: `$1` and `$2` are those of a page.
    pub(crate) fn dead_place(&self) -> String {
        format!("select $1::timestamptz, $2::text::{}", self.dead_id_type())
    }

    /// The newest `$7` dead rows, and why they died.
    pub(crate) fn dead_reasons(&self) -> String {
        let (place, id) = (self.died_sorted(), of(&self.layout().id));
        let (select, filter) =
            (self.dead_select(&ListedPayload::Nothing, Some(ERROR_READ)), self.dead_filter());
        format!("{select} and {filter}\n order by {place} desc, {id} desc limit $7")
    }

    /// The dead row of the event `$1`, with its payload.
    pub(crate) fn dead_show(&self) -> String {
        let select = self.dead_select(&ListedPayload::Whole, None);
        format!("{select} and {} = $1::uuid limit 10", self.event_id())
    }

    /// How many dead rows there are.
    pub(crate) fn dead_count(&self) -> String {
        let (table, dead) = self.dead_rows();
        format!("select count(*) from {table} as t where {dead} and {}", self.dead_filter())
    }

    /// Removes up to `$7` of them for good.
    pub(crate) fn dead_discard(&self) -> String {
        let (table, id) = (self.dead_rows().0, of(&self.layout().id));
        format!("delete from {table} as t where {id} in ({}) returning {id}::text", self.dead_chunk())
    }

    fn dead_chunk(&self) -> String {
        let ((table, dead), id) = (self.dead_rows(), of(&self.layout().id));
        format!(
            "select {id} from {table} as t where {dead} and {} order by {} limit $7 for update of t skip locked",
            self.dead_filter(),
            self.died_sorted()
        )
    }

    /// Puts up to `$7` of them back.
    pub(crate) fn dead_replay(&self) -> String {
        let (layout, id) = (self.layout(), of(&self.layout().id));
        let mut sets = Sets::default();
        if let Some(status) = &layout.status {
            let word = status.pending.first().map(|word| literal(word)).unwrap_or_default();
            sets.put(Some(&status.column), &word);
        }
        sets.put(layout.column.attempts.as_ref(), "0");
        sets.put(layout.column.next_attempt_at.as_ref(), "now()");
        sets.put(layout.column.updated_at.as_ref(), "now()");
        if layout.dead_letters.is_none() {
            return format!(
                "update {} as t set {} where {id} in ({}) returning {id}::text",
                self.table(),
                sets.text(),
                self.dead_chunk()
            );
        }
        let value = |column: &String| {
            let set = |wanted: &Option<String>, value: &str| {
                (wanted.as_ref() == Some(column)).then(|| value.to_owned())
            };
            let own = set(&layout.column.attempts, "0")
                .or_else(|| set(&layout.column.next_attempt_at, "now()"))
                .or_else(|| set(&layout.column.updated_at, "now()"));
            own.unwrap_or_else(|| format!("gone.{}", quote(column)))
        };
        let shared: Vec<&String> = self
            .dead_columns
            .iter()
            .map(|(column, _)| column)
            .filter(|column| self.types.contains_key(*column))
            .collect();
        let into: Vec<String> = shared.iter().map(|column| quote(column)).collect();
        let from: Vec<String> = shared.iter().map(|column| value(column)).collect();
        format!(
            "with gone as (delete from {} as t where {id} in ({}) returning t.*)\ninsert into {} ({}) select {} from gone returning {}::text",
            self.dead_rows().0,
            self.dead_chunk(),
            self.table(),
            into.join(", "),
            from.join(", "),
            quote(&layout.id),
        )
    }

    fn audited(&self) -> String {
        audit::insert(&audit::beside(self.layout()))
    }

    /// Rows that have waited for more than a day, counted up to a bound. `None` means that the table has no
    /// time to tell it by.
    pub(crate) fn old_rows(&self, count_max: i64) -> Option<String> {
        let layout = self.layout();
        let since = layout.column.created_at.as_ref().or(layout.column.next_attempt_at.as_ref())?;
        Some(format!(
            "select count(*) from (select from {} as t where {} and {} < now() - interval '1 day' limit {count_max}) as old",
            self.table(),
            self.waiting(),
            of(since),
        ))
    }

    /// Statements of our commands, and of retentions that are off, with what each is for. `$1` to `$6` of a
    /// list and an act are its filter, `$7` of an act is the size of a chunk.
    #[must_use]
    pub fn for_people(&self) -> Vec<(&'static str, String)> {
        let layout = self.layout();
        let mut all = vec![
            ("by hand: posthaste dead list", self.dead_page(false)),
            ("by hand: posthaste dead list --newest, and the page of the API", self.dead_page(true)),
            ("by hand: posthaste dead causes", self.dead_reasons()),
            ("by hand: posthaste dead show", self.dead_show()),
            ("by hand: posthaste dead replay", self.dead_replay()),
            ("by hand: posthaste dead discard", self.dead_discard()),
            ("by hand: the audit's line of a replay or discard, in the same transaction", self.audited()),
        ];
        let off = |kept: bool, sql: Option<String>| sql.filter(|_| !kept);
        all.extend(
            off(layout.keep_published.is_some(), self.swept())
                .map(|sql| ("off, unless keep_published_days is set: retention of published rows", sql)),
        );
        all.extend(
            off(layout.keep_dead.is_some(), self.dead_swept())
                .map(|sql| ("off, unless keep_dead_days is set: retention of dead rows", sql)),
        );
        all
    }

    /// The claim as EXPLAIN takes it: with values in place of parameters.
    pub(crate) fn explained(&self) -> String {
        let claim = self.claim(self.layout().batch, &posthaste::route::Filter::Everything);
        let values = [("$1", "0"), ("$2", "'{}'"), ("$3", "'{}'"), ("$4", "null"), ("$5", "''"), ("$6", "1")];
        let claim = values.iter().fold(claim, |sql, (parameter, value)| sql.replace(parameter, value));
        format!("explain (costs off) {claim}")
    }
}
