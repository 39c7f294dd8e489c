//! Looking at mapped tables before anything is taken. What does not fit is said in one sentence.

use super::write::{Mapped, table};
use super::{ID_CHARS_MAX, InboxTables, NAME_CHARS_MAX, TableMapping};
use crate::claim::statements::quoted;
use crate::claim::{self, CatalogTable, Types};
use crate::config::PostgresConfig;
use crate::consumer::columns::{ERROR_BYTES_MAX, STACK_BYTES_MAX};
use crate::error::store_error;
use crate::session::{Session, Sessions, params};
use posthaste::sink::{Finding, Level};
use posthaste::store::{StoreCode, StoreError};

/// Names of the checks that [`examine`] makes.
pub const CHECKS: &[&str] = &["mapped_tables"];

/// Who is about to use the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Writes all of them.
    Consumer,
    /// Learns about a missing right when an act needs it.
    Operator,
}

impl Access {
    fn rights<'a>(self, needed: &'a [&'a str]) -> &'a [&'a str] {
        if self == Self::Consumer { needed } else { &[] }
    }
}

/// What a column must be able to hold.
#[derive(Clone, Copy)]
enum Holds {
    /// So many characters.
    Text(usize),
    /// Text or a uuid.
    Key,
    Integer,
    Bigint,
    Uuid,
    Jsonb,
    Time,
}

impl Holds {
    fn takes(self, kind: &str) -> bool {
        let room = match kind.strip_prefix("character varying") {
            _ if kind == "text" => usize::MAX,
            Some("") => usize::MAX,
            Some(size) => size.trim_matches(['(', ')']).parse().unwrap_or(0),
            None => 0,
        };
        match self {
            Self::Text(chars) => room >= chars,
            Self::Key => room >= ID_CHARS_MAX || kind == "uuid",
            Self::Integer => matches!(kind, "integer" | "bigint"),
            Self::Bigint => kind == "bigint",
            Self::Uuid => kind == "uuid",
            Self::Jsonb => kind == "jsonb",
            Self::Time => kind.starts_with("timestamp"),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Text(chars) => format!("text of {chars} characters"),
            Self::Key => format!("text of {ID_CHARS_MAX} characters, or a uuid"),
            Self::Integer => "an integer".to_owned(),
            Self::Bigint => "a bigint".to_owned(),
            Self::Uuid => "a uuid".to_owned(),
            Self::Jsonb => "jsonb".to_owned(),
            Self::Time => "a timestamp".to_owned(),
        }
    }
}

const NAME: Holds = Holds::Text(NAME_CHARS_MAX);
const TRACEABILITY: &[(&str, Holds)] = &[
    ("kafka_message_id", Holds::Text(ID_CHARS_MAX)),
    ("topic", NAME),
    ("partition", Holds::Integer),
    ("offset", Holds::Bigint),
    ("consumer_group", NAME),
    ("status", Holds::Text("PROCESSED".len())),
    ("processed_at", Holds::Time),
    ("saga_correlation_id", Holds::Uuid),
];
const OFFSETS: &[(&str, Holds)] = &[
    ("consumer_group", NAME),
    ("topic", NAME),
    ("partition", Holds::Integer),
    ("committed_offset", Holds::Bigint),
    ("last_updated", Holds::Time),
];
/// A failure and where it happened, as long as they can be. One that its column cannot hold would stop the
/// consumer at its first letter.
const EXCEPTION_CHARS_MAX: usize = ERROR_BYTES_MAX + 1 + STACK_BYTES_MAX;
const LETTERS: &[(&str, Holds)] = &[
    ("id", Holds::Uuid),
    ("original_topic", NAME),
    ("original_partition", Holds::Integer),
    ("original_offset", Holds::Bigint),
    ("consumer_group", NAME),
    ("exception_class", Holds::Text(200)),
    ("exception_message", Holds::Text(EXCEPTION_CHARS_MAX)),
    ("payload", Holds::Jsonb),
    ("headers", Holds::Jsonb),
    ("replay_status", Holds::Text("REPLAYED".len())),
];

fn unfit(why: impl std::fmt::Display) -> StoreError {
    StoreError::fatal(StoreCode::Layout, format!("{why}. Nothing was taken"))
}

/// Looks at all tables of a consumer, and makes its statements.
pub(crate) async fn open(
    session: &mut Session,
    sessions: &Sessions,
    tables: &InboxTables,
    (consumer, group): (&str, &str),
    access: Access,
) -> Result<Option<Mapped>, StoreError> {
    if *tables == InboxTables::MarkedByApp {
        return Mapped::by_app(consumer, sessions).map(Some);
    }
    let Some(mapping) = tables.mapping() else { return Ok(None) };
    if mapping.has_names() && group.chars().count() > NAME_CHARS_MAX {
        return Err(unfit(too_long("group", group)));
    }
    let value = &mapping.request_keys.value;
    if !value.contains("{id}") {
        return Err(unfit("`value` of the request keys has no `{id}`: all messages would have one mark"));
    }
    // A mark is also found, and taken back, by the id alone.
    if let Some(place) = ["{topic}", "{partition}", "{position}"].iter().find(|place| value.contains(**place))
    {
        return Err(unfit(format!(
            "`value` of the request keys has `{place}`: a mark is known by {{id}}, {{consumer}} and {{group}}"
        )));
    }
    let types = check(session, &mapping, access).await?;
    Mapped::new(mapping, &types, (consumer, group), sessions).map(Some)
}

/// Why a name is refused.
pub(crate) fn too_long(what: &str, name: &str) -> String {
    format!(
        "the {what} `{name}` is longer than {NAME_CHARS_MAX} characters: the mapped tables hold no more, and it is never cut"
    )
}

async fn check(session: &mut Session, mapping: &TableMapping, access: Access) -> Result<Types, StoreError> {
    let keys = &mapping.request_keys;
    let rights = access.rights(&["SELECT", "INSERT", "DELETE"]);
    let (found, required) = look(session, &keys.table, rights, &[&keys.key]).await?;
    let given: Vec<&str> = keys.columns.keys().chain([&keys.key]).map(String::as_str).collect();
    fits(&found, &[(&keys.key, Holds::Key)], &given, &required).map_err(unfit)?;
    // Marks and traces of what did not run are taken back, where a handler ended its transaction.
    let all = &["SELECT", "INSERT", "UPDATE", "DELETE"];
    for (name, columns, key, rights) in [
        (mapping.traceability.as_ref().map(|trace| &trace.table), TRACEABILITY, &TRACEABILITY[..1], &all[..]),
        (mapping.offsets.as_ref().map(|offsets| &offsets.table), OFFSETS, &OFFSETS[..3], &all[..3]),
        (mapping.dead_letters.as_ref().map(|letters| &letters.table), LETTERS, &LETTERS[..1], &all[..3]),
    ] {
        let Some(name) = name else { continue };
        let names =
            |columns: &[(&'static str, Holds)]| columns.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let rights = access.rights(rights);
        let (found, required) = look(session, name, rights, &names(key)).await?;
        fits(&found, columns, &names(columns), &required).map_err(unfit)?;
    }
    Ok(found.columns.into_iter().collect())
}

/// A table that is there, that we may write, and in which what is there already is found.
async fn look(
    session: &mut Session,
    name: &str,
    rights: &[&str],
    key: &[&str],
) -> Result<(CatalogTable, Vec<String>), StoreError> {
    let name = table(name)?;
    let (connection, longest) = session.bounded();
    let Some(found) = connection.within(longest, claim::table(&connection.client, &name)).await? else {
        let why =
            format!("there is no table {name} here; `posthaste consumers sql` prints it. Nothing was taken");
        return Err(StoreError::fatal(StoreCode::TableMissing, why));
    };
    let params = params![TEXT quoted(&found.name), TEXT_ARRAY rights, TEXT_ARRAY key];
    let sql = include_str!("../../sql/mapped/look.sql");
    let rows = session.query_once(sql, params).await.map_err(store_error)?;
    let row = rows.first().ok_or_else(|| unfit("the server said nothing about its tables"))?;
    if let Some(right) = row.get::<_, Vec<&str>>("missing").first() {
        let role: &str = row.get("role");
        let why = format!(
            "the role {role} may not {right} on {name}; `posthaste consumers sql` prints the grants. Nothing was taken"
        );
        return Err(StoreError::fatal(StoreCode::Rights, why));
    }
    let missing = key.iter().any(|column| found.type_of(column).is_none());
    if !missing && !row.get::<_, bool>("is_unique") {
        let key = key.join(", ");
        return Err(unfit(format!(
            "`{key}` is not unique in {name}: what is there already would not be found"
        )));
    }
    Ok((found, row.get("required")))
}

/// Whether the columns are there and hold what is written, and nothing is asked for that is not given.
fn fits(
    found: &CatalogTable,
    columns: &[(&str, Holds)],
    given: &[&str],
    required: &[String],
) -> Result<(), String> {
    let name = &found.name;
    if !matches!(found.kind, 'r' | 'p') {
        return Err(format!("{name} is no table: marks and rows are written to the table itself"));
    }
    if let Some(column) = given.iter().find(|column| found.type_of(column).is_none()) {
        let known: Vec<&str> = found.columns.iter().map(|(name, _)| name.as_str()).collect();
        return Err(format!("{name} has no column `{column}`; it has {}", known.join(", ")));
    }
    for (column, holds) in columns {
        let kind = found.type_of(column).unwrap_or_default();
        if !holds.takes(kind) {
            return Err(format!("column `{column}` of {name} is {kind}, and must hold {}", holds.words()));
        }
    }
    match required.iter().find(|column| !given.contains(&column.as_str())) {
        None => Ok(()),
        Some(column) => Err(format!(
            "column `{column}` of {name} is NOT NULL, has no default and is not mapped: no row could be written. Give it a \
             default, or map it in `columns`"
        )),
    }
}

/// Keeps a second consumer away from a table in which its rows could not be told from ours.
pub(crate) async fn reserve(
    session: &mut Session,
    sessions: &Sessions,
    mapped: &Mapped,
    consumer: &str,
) -> Result<(), StoreError> {
    let mapping = &mapped.mapping;
    let keys = &mapping.request_keys;
    let trace = mapping.traceability.as_ref().filter(|trace| !trace.suffix);
    let traced = trace.map(|trace| (&trace.table, "say `suffix = true` in its `traceability`"));
    let marked = (!keys.value.contains("{consumer}"))
        .then_some((&keys.table, "put `{consumer}` into the `value` of its `request_keys`"));
    for (table, advice) in [traced, marked].into_iter().flatten() {
        let sql = sessions.sql(include_str!("../../sql/mapped/reserve.sql"));
        let rows = session.query_once(&sql, params![TEXT consumer, TEXT table]).await.map_err(store_error)?;
        let owner: Option<String> = rows.first().map(|row| row.get(0));
        if let Some(owner) = owner.filter(|owner| owner != consumer) {
            let schema = &sessions.config().schema;
            return Err(unfit(format!(
                "{table} belongs to the consumer `{owner}`: rows of two could not be told apart. For both of them, {advice}. If \
                 `{owner}` is gone for good: delete from {schema}.processes where process = 'table {table}'"
            )));
        }
    }
    Ok(())
}

/// Compares mapped tables with what a consumer needs of them. Nothing is changed.
pub async fn examine(
    config: &PostgresConfig,
    tables: &InboxTables,
    consumer: &str,
    group: &str,
) -> Vec<Finding> {
    let Some(mapping) = tables.mapping() else { return Vec::new() };
    let sessions = Sessions::plain(config.clone(), true);
    let opened = async {
        let mut session = sessions.session().await?;
        open(&mut session, &sessions, tables, (consumer, group), Access::Consumer).await
    };
    let (level, text) = match opened.await {
        Ok(_) => {
            (Level::Ok, format!("{consumer}: {} and the tables beside it fit", mapping.request_keys.table))
        }
        Err(error) => (Level::Fail, format!("{consumer}: {error}")),
    };
    vec![Finding { check: CHECKS[0].to_owned(), level, text }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_holds_what_is_written_or_is_refused() {
        for (holds, kind, takes) in [
            (Holds::Text(100), "character varying(100)", true),
            (Holds::Text(100), "character varying(99)", false),
            (Holds::Text(100), "character varying", true),
            (Holds::Text(100), "text", true),
            (Holds::Text(100), "integer", false),
            (Holds::Key, "uuid", true),
            (Holds::Key, "character varying(64)", false),
            (Holds::Integer, "bigint", true),
            (Holds::Bigint, "integer", false),
            (Holds::Time, "timestamp with time zone", true),
        ] {
            assert_eq!(holds.takes(kind), takes, "{kind}");
        }
    }
}
