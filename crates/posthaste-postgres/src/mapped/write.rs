//! Every statement over mapped tables, made from the mapping: here and nowhere else.
//!
//! A file of `sql/consumer/` marks with `--native{` and `--native}` what is about `inbox`, and with
//! `--mapped:` what of `sql/mapped/` stands there instead. So both kinds of marks have one statement, and one
//! argument why it is right. Identifiers are quoted, names of the consumer are literals, everything that
//! comes from messages is a parameter.
//!
//! These statements are planned each time they are sent: nobody knows when such a table was analysed.

use super::{ID_CHARS_MAX, TableMapping};
use crate::claim::statements::{literal, quoted};
use crate::claim::{TableName, Types};
use crate::session::{Sessions, quote};
use posthaste::store::{StoreCode, StoreError};

/// The statements of one consumer.
pub(crate) struct Mapped {
    pub(crate) mapping: TableMapping,
    consumer: String,
    group: String,
    /// The table with the marks, its key, and whether that is a uuid.
    keys: String,
    key: String,
    is_uuid: bool,
    /// Other columns of a mark, and what goes into them for a message `m`.
    columns: Vec<(String, String)>,
    traceability: Option<String>,
    /// How a mark is looked for, with our own tables in it.
    found: String,
    /// Whether the application makes the marks, and we only look for them.
    pub(crate) is_by_app: bool,
    /// Writes rows of messages.
    pub(crate) traced: Option<String>,
    /// Copies saved positions.
    pub(crate) offsets: Option<String>,
    /// Writes a dead letter.
    pub(crate) letter: Option<String>,
    /// Says what became of dead letters.
    pub(crate) letter_status: Option<String>,
}

macro_rules! text {
    ($name:literal) => {
        include_str!(concat!("../../sql/mapped/", $name, ".sql"))
    };
}

/// Reads a table's name.
pub(super) fn table(name: &str) -> Result<TableName, StoreError> {
    TableName::parse(name).map_err(|why| StoreError::fatal(StoreCode::Layout, why))
}

impl Mapped {
    /// Makes them. `types` are those of the columns beside the marks' key.
    pub(super) fn new(
        mapping: TableMapping,
        types: &Types,
        (consumer, group): (&str, &str),
        sessions: &Sessions,
    ) -> Result<Self, StoreError> {
        let name = |name: Option<&String>| name.map(|name| table(name).map(|name| quoted(&name))).transpose();
        let keys = &mapping.request_keys;
        let kind = |column: &str| types.get(column).map_or("text", String::as_str);
        let column = |(column, text): (&String, &String)| match text.as_str() {
            "{now}" => (quote(column), "now()".to_owned()),
            text => {
                (quote(column), format!("({})::{}", filled(text, (consumer, group), "m.id"), kind(column)))
            }
        };
        let traceability = name(mapping.traceability.as_ref().map(|trace| &trace.table))?;
        let offsets = name(mapping.offsets.as_ref().map(|offsets| &offsets.table))?;
        let letters = name(mapping.dead_letters.as_ref().map(|letters| &letters.table))?;
        let mut mapped = Self {
            consumer: consumer.to_owned(),
            group: group.to_owned(),
            keys: quoted(&table(&keys.table)?),
            key: quote(&keys.key),
            is_uuid: kind(&keys.key) == "uuid",
            columns: keys.columns.iter().map(column).collect(),
            traceability,
            found: sessions.sql(text!("found")),
            is_by_app: false,
            traced: None,
            offsets: None,
            letter: None,
            letter_status: None,
            mapping,
        };
        mapped.traced = mapped.traceability.as_ref().map(|table| mapped.write_traced(table));
        let write = |text: &str, table: &str| put(text, &[("table", table), ("group", &literal(group))]);
        mapped.offsets = offsets.map(|table| write(&sessions.sql(text!("positions")), &table));
        mapped.letter = letters.as_ref().map(|table| write(text!("letter"), table));
        mapped.letter_status =
            letters.map(|table| format!("update {table} set replay_status = $2 where id = any ($1::uuid[])"));
        Ok(mapped)
    }

    /// The statements where the application makes the marks: nothing is written in their place.
    pub(super) fn by_app(consumer: &str, sessions: &Sessions) -> Result<Self, StoreError> {
        let mapping = TableMapping::default();
        let mapped = Self::new(mapping, &Types::default(), (consumer, consumer), sessions)?;
        Ok(Self { found: sessions.sql(text!("found_by_app")), is_by_app: true, ..mapped })
    }

    /// A statement of a file, for these tables.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut is_native = false;
        let mut out = String::with_capacity(text.len() * 2);
        for line in text.lines() {
            match line.trim_end() {
                "--native{" => is_native = true,
                "--native}" => is_native = false,
                _ if is_native => {}
                line => {
                    out += &line.strip_prefix("--mapped: ").map_or_else(|| line.to_owned(), |at| self.at(at));
                    out.push('\n');
                }
            }
        }
        out
    }

    fn at(&self, place: &str) -> String {
        match place {
            "admit" => self.made("n not in (select h from held)") + &self.traced_first(),
            "look" => format!("  left join lateral ({}) k on true", self.found("$1", "m.id")),
            "trace" => {
                let found = self.found("k.consumer", "$1::text");
                format!("  left join lateral (select k.consumer, f.* from ({found}) f) i on true")
            }
            "mark" => self.made("true"),
            "copy" => {
                format!("),\n{},\nmarked as (select message_id from ins", self.made("not $12::boolean"))
            }
            "done" => "select message_id from gone where not repeat".to_owned(),
            "unmark" => self.unmark(),
            // A place that nobody fills makes a statement that the server refuses.
            other => format!("{other} is not mapped"),
        }
    }

    /// Marks of the messages `m` that fulfil a condition.
    fn made(&self, condition: &str) -> String {
        if self.is_by_app {
            let found = self.found("$1", "m.id");
            return put(text!("unmarked"), &[("condition", condition), ("found", &found)]);
        }
        let value = self.value("m.id");
        let columns = || self.columns.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let (names, values): (Vec<&str>, Vec<&str>) =
            [(self.key.as_str(), value.as_str())].into_iter().chain(columns()).unzip();
        put(
            text!("made"),
            &[
                ("keys", &self.keys),
                ("key", &self.key),
                ("names", &names.join(", ")),
                ("values", &values.join(", ")),
                ("value", &value),
                ("condition", condition),
            ],
        )
    }

    fn traced_first(&self) -> String {
        let Some(table) = &self.traceability else { return String::new() };
        let (id, group) = (self.trace_id("m.id"), literal(&self.group));
        put(text!("traced_first"), &[("table", table), ("id", &id), ("group", &group)])
    }

    fn found(&self, consumer: &str, id: &str) -> String {
        let traced = self.traceability.as_ref().map_or_else(
            || text!("untraced").to_owned(),
            |table| format!("{table} t on t.kafka_message_id = {}", self.trace_id(id)),
        );
        put(
            &self.found,
            &[
                ("keys", &self.keys),
                ("key", &self.key),
                ("value", &self.value(id)),
                ("traced", &traced),
                ("consumer", consumer),
                ("id", id),
            ],
        )
    }

    fn unmark(&self) -> String {
        if self.is_by_app {
            return "select".to_owned(); // there is nothing to take back
        }
        let Self { keys, key, traceability, .. } = self;
        let value = self.value("m.id");
        let untraced = traceability.as_ref().map_or_else(String::new, |table| {
            let id = self.trace_id("m.id");
            format!(", untraced as (delete from {table} where kafka_message_id in (select {id} from m))")
        });
        format!(
            "with m as (select unnest($2::text[]) as id){untraced} delete from {keys} where {key} in (select {value} from m)"
        )
    }

    /// The key of a message's mark.
    fn value(&self, id: &str) -> String {
        let value = filled(&self.mapping.request_keys.value, (&self.consumer, &self.group), id);
        if self.is_uuid { as_uuid(&value) } else { as_id(&value) }
    }

    /// The id of a message's row. Two consumers may share the table if theirs differ.
    fn trace_id(&self, id: &str) -> String {
        match &self.mapping.traceability {
            Some(trace) if trace.suffix => {
                as_id(&format!("{id} || {}", literal(&format!("#{}", self.consumer))))
            }
            _ => as_id(id),
        }
    }

    fn write_traced(&self, table: &str) -> String {
        let copy =
            self.trace_id("m.id || '#' || m.topic || '/' || m.partition || '@' || coalesce(m.position, -1)");
        let (own, group) = (self.trace_id("m.id"), literal(&self.group));
        put(text!("traced"), &[("table", table), ("own", &own), ("copy", &copy), ("group", &group)])
    }
}

/// Fills the places `/*name*/` of a text. What is put in is not looked at again.
fn put(text: &str, places: &[(&str, &str)]) -> String {
    let mut parts = text.split("/*");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("*/").unwrap_or((part, ""));
        out += places.iter().find(|(known, _)| *known == name).map_or(name, |(_, value)| *value);
        out += rest;
    }
    out
}

/// Text with places to fill in, as an expression over a message `m`.
fn filled(text: &str, (consumer, group): (&str, &str), id: &str) -> String {
    let (mut parts, mut rest) = (Vec::new(), text);
    let places = [
        ("{consumer}", literal(consumer)),
        ("{group}", literal(group)),
        ("{id}", id.to_owned()),
        ("{topic}", "m.topic".to_owned()),
        ("{partition}", "m.partition::text".to_owned()),
        ("{position}", "coalesce(m.position::text, '')".to_owned()),
    ];
    while !rest.is_empty() {
        let next = places.iter().filter_map(|(name, sql)| Some((rest.find(name)?, name, sql))).min();
        let Some((at, name, sql)) = next else { break };
        if at > 0 {
            parts.push(literal(&rest[..at]));
        }
        parts.push(sql.clone());
        rest = &rest[at + name.len()..];
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(literal(rest));
    }
    parts.join(" || ")
}

/// A text that its column can hold.
fn as_id(text: &str) -> String {
    format!(
        "case when length({text}) > {ID_CHARS_MAX} then 'sha256:' || encode(sha256(convert_to({text}, 'UTF8')), 'hex') else {text} end"
    )
}

/// The uuid that a text is, or one that is made of its hash.
fn as_uuid(text: &str) -> String {
    format!(
        "(case when {text} ~* '^[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$' then {text} else left(encode(sha256(convert_to({text}, 'UTF8')), 'hex'), 32) end)::uuid"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_in_and_names_are_literals() {
        let fill = |text| filled(text, ("o'neil", "g"), "m.id");
        assert_eq!(fill("{consumer}:{id}"), "'o''neil' || ':' || m.id");
        assert_eq!((fill("DONE").as_str(), fill("").as_str()), ("'DONE'", "''"));
        assert_eq!(fill("{topic}@{partition}{"), "m.topic || '@' || m.partition::text || '{'");
    }
}
