//! Looking at a table before anything of it is claimed.
//!
//! What the catalog knows is checked first, and told in words: a view, a missing column, a type that does not
//! fit, a status that the enum does not have, row-level security that would hide rows. The rest is rehearsed
//! ([`super::rehearse`]).

use super::layout::{Layout, TableName};
use super::session::ClaimSession;
use super::statements::{Statements, Types, quoted};
use crate::error::store_error;
use posthaste::store::{StoreCode, StoreError};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// A table as the catalog knows it.
#[derive(Debug, Clone)]
pub struct CatalogTable {
    /// Its name, with the schema it was found in.
    pub name: TableName,
    /// `r` and `p` are tables.
    pub kind: char,
    /// Whether row-level security hides rows from us.
    pub hidden_rows: bool,
    /// Columns and their types, in order.
    pub columns: Vec<(String, String)>,
    /// Columns that are unique by themselves.
    pub unique: Vec<String>,
}

impl CatalogTable {
    /// A column's type.
    #[must_use]
    pub fn type_of(&self, column: &str) -> Option<&str> {
        self.columns.iter().find(|(name, _)| name == column).map(|(_, kind)| kind.as_str())
    }

    fn types(&self) -> Types {
        self.columns.iter().cloned().collect()
    }
}

/// Looks a table up. `None` means that there is none of this name.
pub async fn table(client: &Client, name: &TableName) -> Result<Option<CatalogTable>, StoreError> {
    let sql = "select n.nspname::text, c.relname::text, c.relkind::text, row_security_active(c.oid)
                 from pg_class c join pg_namespace n on n.oid = c.relnamespace
                where c.oid = to_regclass($1)";
    let rows = client.query_typed(sql, &[(&quoted(name), Type::TEXT)]).await.map_err(store_error)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let found = TableName { schema: row.get(0), name: row.get(1) };
    let (kind, hidden_rows): (String, bool) = (row.get(2), row.get(3));
    let sql = "select a.attname::text, format_type(a.atttypid, a.atttypmod),
                      exists (select from pg_index i where i.indrelid = a.attrelid and i.indisunique and i.indisvalid
                                 and i.indpred is null and i.indnkeyatts = 1 and i.indkey[0] = a.attnum)
                 from pg_attribute a where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped order by a.attnum";
    let rows = client.query_typed(sql, &[(&quoted(&found), Type::TEXT)]).await.map_err(store_error)?;
    let unique = rows.iter().filter(|row| row.get(2)).map(|row| row.get(0)).collect();
    Ok(Some(CatalogTable {
        name: found,
        kind: kind.chars().next().unwrap_or('?'),
        hidden_rows,
        columns: rows.iter().map(|row| (row.get(0), row.get(1))).collect(),
        unique,
    }))
}

/// Checks the layout against the table, and makes its statements.
pub(super) async fn statements(session: &mut ClaimSession, layout: Layout) -> Result<Statements, StoreError> {
    let client = session.client();
    let found = table(client, &layout.table).await?;
    let found = found.ok_or_else(|| {
        let table = &layout.table;
        let why = format!("there is no table {table} here; check `table` and the database of the URL");
        StoreError::fatal(StoreCode::TableMissing, why)
    })?;
    let unfit = |why| StoreError::fatal(StoreCode::Layout, why);
    let layout = fit(layout, &found).map_err(unfit)?;
    check_words(client, &layout, &found).await?;
    let dead = match &layout.dead_letters {
        None => Vec::new(),
        Some(name) => match table(client, name).await? {
            Some(table) => table.columns,
            None => {
                let why = format!(
                    "there is no dead-letter table {name}; `posthaste adopt sql` prints a CREATE TABLE for it. Nothing was claimed"
                );
                return Err(StoreError::fatal(StoreCode::TableMissing, why));
            }
        },
    };
    let statements = Statements::new(layout, found.types(), dead);
    check_retention(&statements).map_err(unfit)?;
    Ok(statements)
}

/// Refuses a retention that can delete nothing. Somebody would rely on it.
fn check_retention(statements: &Statements) -> Result<(), String> {
    let layout = statements.layout();
    let cases = [
        ("keep_published_days", layout.keep_published, statements.swept(), "published", "`published_at`"),
        (
            "keep_dead_days",
            layout.keep_dead,
            statements.dead_swept(),
            "given up",
            "`last_error_at`, `updated_at` or `last_attempt_at`, or `dead_at` of a dead-letter table",
        ),
    ];
    match cases.into_iter().find(|(_, keep, sql, ..)| keep.is_some() && sql.is_none()) {
        None => Ok(()),
        Some((key, _, _, what, wanted)) => Err(format!(
            "`{key}` cannot be kept: no column of {} says when a row was {what}. It takes {wanted}. Nothing was claimed",
            layout.table
        )),
    }
}

/// The layout without optional columns that the table lacks; or what does not fit.
pub(crate) fn fit(layout: Layout, table: &CatalogTable) -> Result<Layout, String> {
    let name = &layout.table.clone();
    if !matches!(table.kind, 'r' | 'p') {
        let kind = if matches!(table.kind, 'v' | 'm') { "a view" } else { "no ordinary table" };
        return Err(format!(
            "{name} is {kind}: rows are claimed by locking and changing them, which needs the table itself"
        ));
    }
    if table.hidden_rows {
        return Err(format!(
            "row-level security of {name} applies to this role: rows would be passed over without a word. Give the relay a role \
             with BYPASSRLS, or make it the table's owner"
        ));
    }
    let lacking: Vec<String> =
        layout.may_lack.iter().filter(|column| table.type_of(column).is_none()).cloned().collect();
    let layout = layout.without(&lacking);
    for (role, wanted, column) in layout.columns() {
        let Some(kind) = table.type_of(column) else {
            let known: Vec<&str> = table.columns.iter().map(|(name, _)| name.as_str()).collect();
            return Err(format!("{name} has no column {column:?} (`{role}`); it has {}", known.join(", ")));
        };
        if !wanted.fits(kind) {
            return Err(format!(
                "column {column:?} of {name} is {kind}, and `{role}` needs {}",
                wanted.words()
            ));
        }
    }
    if !table.unique.contains(&layout.id) {
        return Err(format!(
            "column {:?} of {name} is not unique by itself: a settlement could touch several rows. Name the primary key as `id`",
            layout.id
        ));
    }
    Ok(layout)
}

/// Words of the status that its enum does not have.
async fn check_words(client: &Client, layout: &Layout, table: &CatalogTable) -> Result<(), StoreError> {
    let Some(status) = &layout.status else { return Ok(()) };
    let sql = "select e.enumlabel::text from pg_attribute a join pg_enum e on e.enumtypid = a.atttypid
                where a.attrelid = to_regclass($1) and a.attname = $2 order by e.enumsortorder";
    let rows = client
        .query_typed(sql, &[(&quoted(&table.name), Type::TEXT), (&status.column, Type::TEXT)])
        .await
        .map_err(store_error)?;
    let known: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let words = status
        .pending
        .iter()
        .chain([&status.retry, &status.published])
        .chain(&status.dead)
        .chain(&status.claimed);
    match words.into_iter().find(|word| !known.is_empty() && !known.contains(word)) {
        None => Ok(()),
        Some(word) => {
            let (table, column, known) = (&layout.table, &status.column, known.join(", "));
            let why = format!("the status {word:?} is none of {table}.{column}: its words are {known}");
            Err(StoreError::fatal(StoreCode::Layout, why))
        }
    }
}
