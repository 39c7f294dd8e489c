//! Finding outbox tables in a database that nobody has described yet, and proposing a layout for each.
//!
//! A preset whose columns and words are all there goes first. Otherwise columns are known by their names,
//! written in any way (`next_attempt_at`, `nextAttemptTime`), and words of a status by what they usually
//! mean. Every guess comes with its reason, because the owners decide.

use crate::claim::check::{CatalogTable, fit, table};
use crate::claim::layout::{Layout, StatusWords, TableName, TopicSource};
use crate::claim::presets::{PRESETS, preset};
use crate::claim::statements::quoted;
use crate::error::store_error;
use crate::session::quote;
use posthaste::store::StoreError;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// Tables that are looked at, at most.
const TABLES_MAX: i64 = 200;
/// Rows whose status is looked at.
const SAMPLE_ROWS: u32 = 1_000;

/// A table that looks like an outbox, and what is proposed for it.
#[derive(Debug, Clone)]
pub struct Proposal {
    /// The table.
    pub table: CatalogTable,
    /// The preset that fits, if one does.
    pub preset: Option<&'static str>,
    /// The layout.
    pub layout: Layout,
    /// The reasons, line by line.
    pub reasons: Vec<String>,
    /// Rows, as the server estimates them.
    pub rows: i64,
}

/// Columns by what they usually mean; [`super::role`] has the others. Names are compared in lower case and
/// without underscores.
const PAYLOAD: &[&str] = &[
    "payload",
    "payloadjson",
    "eventdata",
    "data",
    "body",
    "content",
    "message",
    "value",
    "serializedevent",
    "kafkavalue",
];
const TOPIC: &[&str] =
    &["topic", "kafkatopic", "destination", "eventname", "eventtype", "messagetype", "type"];
const STATUS: &[&str] = &["status", "state"];
const FLAG: &[&str] = &[
    "published",
    "processed",
    "sent",
    "delivered",
    "dispatched",
    "completed",
    "done",
    "ispublished",
    "isprocessed",
    "issent",
    "isdelivered",
    "isdispatched",
    "iscompleted",
    "isdone",
];
const PENDING_WORDS: &[&str] = &["pending", "new", "ready", "queued", "unsent", "created"];
const DONE_WORDS: &[&str] =
    &["published", "processed", "sent", "delivered", "completed", "done", "succeeded", "success"];
const DEAD_WORDS: &[&str] = &["deadlettered", "dead", "dlq", "failed", "error", "abandoned"];

fn plain(name: &str) -> String {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

/// The first column whose name is one of these, in the order of these.
fn named(table: &CatalogTable, names: &[&str]) -> Option<String> {
    names
        .iter()
        .find_map(|name| table.columns.iter().find(|(column, _)| plain(column) == *name))
        .map(|(column, _)| column.clone())
}

/// Looks for tables, or at this one.
pub async fn propose(client: &Client, only: Option<&TableName>) -> Result<Vec<Proposal>, StoreError> {
    let mut proposals = Vec::new();
    for (name, rows) in candidates(client, only).await? {
        let Some(found) = table(client, &name).await? else { continue };
        let words = words(client, &found).await?;
        let proposal = by_preset(&found, &words).or_else(|| by_names(&found, &words));
        if let Some((preset, layout, reasons)) = proposal {
            proposals.push(Proposal { table: found, preset, layout, reasons, rows });
        }
    }
    proposals.sort_by_key(|proposal| {
        (!plain(&proposal.table.name.name).contains("outbox"), proposal.preset.is_none())
    });
    Ok(proposals)
}

async fn candidates(client: &Client, only: Option<&TableName>) -> Result<Vec<(TableName, i64)>, StoreError> {
    let sql = "select n.nspname::text, c.relname::text, greatest(c.reltuples, 0)::int8
                 from pg_class c join pg_namespace n on n.oid = c.relnamespace
                where c.relkind in ('r', 'p') and not c.relispartition and ($2::text is null or c.oid = to_regclass($2))
                  and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast', 'posthaste')
                  and exists (select from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                                 and replace(lower(a.attname), '_', '') = any ($1))
                order by (c.relname ilike '%outbox%') desc, n.nspname, c.relname limit $3";
    let payload: Vec<&str> = PAYLOAD.to_vec();
    let name = only.map(quoted);
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
        [(&payload, Type::TEXT_ARRAY), (&name, Type::TEXT), (&TABLES_MAX, Type::INT8)];
    let rows = client.query_typed(sql, &params).await.map_err(store_error)?;
    let named = |row: &tokio_postgres::Row| (TableName { schema: row.get(0), name: row.get(1) }, row.get(2));
    Ok(rows.iter().map(named).collect())
}

/// The words of the status: those of its enum, of its default, and of some rows.
async fn words(client: &Client, found: &CatalogTable) -> Result<Vec<String>, StoreError> {
    let Some(column) = named(found, STATUS) else { return Ok(Vec::new()) };
    let sql = format!(
        "select e.enumlabel::text from pg_attribute a join pg_enum e on e.enumtypid = a.atttypid where a.attrelid = to_regclass($1) and a.attname = $2
         union select substring(pg_get_expr(d.adbin, d.adrelid) from '''([^'']*)''') from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
                where a.attrelid = to_regclass($1) and a.attname = $2
         union (select distinct {column}::text from (select {column} from {table} limit {SAMPLE_ROWS}) as sampled)",
        column = quote(&column),
        table = quoted(&found.name),
    );
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&quoted(&found.name), Type::TEXT), (&column, Type::TEXT)];
    let rows = client.query_typed(&sql, &params).await.map_err(store_error)?;
    Ok(rows.iter().filter_map(|row| row.get::<_, Option<String>>(0)).collect())
}

type Guess = (Option<&'static str>, Layout, Vec<String>);

/// The preset that explains most columns, among those that fit.
fn by_preset(found: &CatalogTable, words: &[String]) -> Option<Guess> {
    let mut best: Option<(usize, &'static str, Layout)> = None;
    for name in PRESETS {
        let Some(preset) = preset(name) else { continue };
        let layout = Layout { table: found.name.clone(), ..preset.layout };
        let Ok(layout) = fit(layout, found) else { continue };
        if !words.iter().all(|word| knows(layout.status.as_ref(), word)) {
            continue;
        }
        let explained = layout.columns().len();
        if best.as_ref().is_none_or(|(most, ..)| explained > *most) {
            best = Some((explained, preset.name, layout));
        }
    }
    let (_, name, layout) = best?;
    let mut reasons = vec![format!("every column of the preset `{name}` is there, with a type that fits")];
    if !words.is_empty() {
        reasons.push(format!("its status knows {}, as the preset says", words.join(", ")));
    }
    Some((Some(name), layout, reasons))
}

fn knows(status: Option<&StatusWords>, word: &String) -> bool {
    status.is_some_and(|status| {
        let others =
            [Some(&status.published), Some(&status.retry), status.dead.as_ref(), status.claimed.as_ref()];
        status.pending.contains(word) || others.contains(&Some(word))
    })
}

/// A layout by the names of columns. `None` means that nothing says what a row's topic or payload is, or when
/// it is done.
fn by_names(found: &CatalogTable, words: &[String]) -> Option<Guess> {
    let payload = named(found, PAYLOAD)?;
    let topic = named(found, TOPIC)?;
    let id =
        found.unique.iter().find(|column| plain(column).ends_with("id")).or(found.unique.first())?.clone();
    let mut reasons =
        vec![format!("`{id}` is unique, `{payload}` looks like the payload, `{topic}` like the topic")];
    let mut layout = Layout::new(found.name.clone(), &id, TopicSource::Column(topic.clone()), &payload);
    for (role, column) in layout.column.roles_mut() {
        let fits = |name: &String| found.type_of(name).is_some_and(|kind| role.kind.fits(kind));
        *column = named(found, role.usual).filter(|name| *name != id && fits(name));
    }
    // Text may hold anything. It is taken for headers only where the owners say so.
    let is_json = |column: &String| found.type_of(column).is_some_and(|kind| kind.starts_with("json"));
    layout.column.headers.take_if(|column| !is_json(column));
    layout.order_by =
        [&layout.column.next_attempt_at, &layout.column.created_at].into_iter().flatten().cloned().collect();
    for column in ["aggregate_type", "aggregate_id", "event_type"] {
        if found.type_of(column).is_some() && column != topic {
            layout.header_columns.push((column.to_owned(), column.to_owned()));
        }
    }
    layout.status = named(found, STATUS).and_then(|column| status(column, words));
    let is_flag = |column: &String| found.type_of(column) == Some("boolean");
    match (named(found, FLAG).filter(is_flag), &layout.status) {
        (Some(column), None) => {
            reasons.push(format!(
                "`{column}` is set to true when a row is done; a row where it is null is left alone"
            ));
            layout.status = Some(flag(column));
        }
        (Some(column), Some(status)) => reasons.push(format!(
            "ATTENTION: `{column}` looks like a flag of rows that are done, and it would NOT be set: only `{}` is. Whoever \
             reads `{column}` would take all rows again",
            status.column
        )),
        (None, _) => {}
    }
    match (&layout.status, &layout.column.published_at) {
        (Some(status), _) => reasons.push(format!(
            "rows wait while `{}` is {}, and are done when it is {}",
            status.column,
            status.pending.join(" or "),
            status.published
        )),
        (None, Some(column)) => reasons.push(format!("a row is done when `{column}` is set")),
        (None, None) => return None,
    }
    if layout.status.as_ref().is_none_or(|status| status.dead.is_none()) {
        let name = format!("{}_dead_letters", found.name.name);
        reasons.push(format!(
            "nothing in the table says that a row is given up: dead rows go to `{name}`, which has to be made"
        ));
        layout.dead_letters = Some(TableName { schema: found.name.schema.clone(), name });
    }
    fit(layout, found).ok().filter(|layout| layout.check().is_ok()).map(|layout| (None, layout, reasons))
}

/// A flag that is false until a row is done. Its words are those of a boolean.
fn flag(column: String) -> StatusWords {
    StatusWords {
        column,
        pending: vec!["false".to_owned()],
        claimed: None,
        retry: "false".to_owned(),
        published: "true".to_owned(),
        dead: None,
    }
}

/// The status by its words.
fn status(column: String, words: &[String]) -> Option<StatusWords> {
    let of = |known: &[&str]| {
        known.iter().find_map(|known| words.iter().find(|word| plain(word) == *known)).cloned()
    };
    let pending = of(PENDING_WORDS)?;
    Some(StatusWords {
        column,
        pending: vec![pending.clone()],
        claimed: None,
        retry: pending,
        published: of(DONE_WORDS)?,
        dead: of(DEAD_WORDS),
    })
}
