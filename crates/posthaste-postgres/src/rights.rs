//! What each role must be able to do, as a table.
//!
//! `roles.sql` grants it; this says it once more, so that `migrate up` can see whether anything is left
//! to grant and `doctor` can name the right that is missing. Tests see that a second `up` finds nothing to
//! grant, hence that the file covers the table.

use crate::columns;
use crate::session::{Sessions, quote};
use tokio_postgres::Error;
use tokio_postgres::types::Type;

/// One right on one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Right {
    kind: &'static str,
    object: &'static str,
    /// Of a table, for a right on one column.
    column: &'static str,
    privilege: &'static str,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, object, column, privilege } = self;
        match *kind {
            "column" => write!(f, "{privilege} ({column}) on {object}"),
            "schema" => write!(f, "{privilege} on the schema"),
            _ => write!(f, "{privilege} on {kind} {object}"),
        }
    }
}

const SEGMENTS: [&str; 8] =
    ["outbox_1", "outbox_2", "outbox_3", "outbox_4", "outbox_5", "outbox_6", "outbox_7", "outbox_8"];

/// What relay and admin read.
const READ: [&str; 21] = [
    "outbox",
    "idempotency_keys",
    "ring",
    "segments",
    "state",
    "relays",
    "lanes",
    "lease_tokens",
    "receipts",
    "deferred",
    "dead_letters",
    "controls",
    "audit",
    "inbox",
    "migrations",
    "processes",
    "jobs",
    "gateway_tenants",
    "gateway_keys",
    "gateway_requests",
    "gateway_commits",
];

/// What a consumer keeps: marks, what waits, what is dead, positions.
const INBOX: [&str; 4] = ["inbox", "inbox_deferred", "inbox_dead_letters", "inbox_partitions"];

/// What relay and admin write.
const WRITTEN: [&str; 7] =
    ["state", "relays", "lanes", "lease_tokens", "receipts", "deferred", "dead_letters"];

/// The youngest form of `append`: whoever may call it may call all of them, for they are granted together.
pub(crate) const APPEND_BY_UUID: &str = "append(text, jsonb, uuid, jsonb, uuid, text, timestamptz, text)";

/// What the gateway calls.
const GATEWAY_APPEND: &str = "gateway_append(uuid, integer[], text[], text[], text[], bytea[], bytea[], integer[], uuid[], \
                              text[], text[], text[], text[], bytea[], bigint[])";

/// The functions that a consumer calls.
const LOOKS: [&str; 3] = ["held(text, text[], uuid[])", "marks(text, text[])", "due_heads(text, integer)"];

const READ_AND_WRITE: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

fn on(kind: &'static str, objects: &[&'static str], privileges: &[&'static str]) -> Vec<Right> {
    let each = |object: &&'static str| {
        let object = *object;
        privileges.iter().map(move |privilege| Right { kind, object, column: "", privilege })
    };
    objects.iter().flat_map(each).collect()
}

/// Appending.
fn appending() -> Vec<Right> {
    let column = |(column, _)| Right { kind: "column", object: "outbox", column, privilege: "INSERT" };
    let mut rights = on("schema", &[""], &["USAGE"]);
    rights.extend(columns::WRITTEN.into_iter().map(column));
    rights.extend(on("sequence", &["outbox_seq"], &["USAGE"]));
    rights.extend(on("sequence", &["outbox_segment", "outbox_wakeup"], &["SELECT"]));
    rights
}

/// Appending and marking.
pub(crate) fn app() -> Vec<Right> {
    let mut rights = appending();
    rights.extend(on("table", &["idempotency_keys"], &["SELECT", "INSERT"]));
    rights.extend(on("table", &["inbox"], &["SELECT", "INSERT", "DELETE"]));
    rights.extend(on("function", &[APPEND_BY_UUID], &["EXECUTE"]));
    rights
}

/// Appending for tenants, and remembering their requests.
pub(crate) fn gateway() -> Vec<Right> {
    let mut rights = appending();
    rights.extend(on("table", &["gateway_tenants", "gateway_keys", "state", "migrations"], &["SELECT"]));
    rights.extend(on("table", &["gateway_requests", "gateway_commits"], &["SELECT", "INSERT", "DELETE"]));
    rights.extend(on("table", &["processes"], &READ_AND_WRITE));
    rights.extend(on("function", &[GATEWAY_APPEND], &["EXECUTE"]));
    rights
}

/// Consuming, with all that a handler may append.
pub(crate) fn consumer() -> Vec<Right> {
    let mut rights = app();
    rights.extend(inbox());
    rights.extend(on("table", &["processes"], &READ_AND_WRITE));
    rights.extend(audit());
    rights.extend(on("table", &["controls", "migrations"], &["SELECT"]));
    rights
}

/// Whoever changes what a consumer keeps.
fn inbox() -> Vec<Right> {
    let mut rights = on("table", &INBOX, &READ_AND_WRITE);
    rights.extend(on("sequence", &["inbox_deferred_seq_seq"], &["USAGE"]));
    rights.extend(on("function", &LOOKS, &["EXECUTE"]));
    rights
}

/// Writing down an act, as whoever one says one is.
fn audit() -> Vec<Right> {
    let columns = ["actor", "action", "reason", "detail", "trace_id"];
    let column = |column| Right { kind: "column", object: "audit", column, privilege: "INSERT" };
    columns.into_iter().map(column).collect()
}

fn both() -> Vec<Right> {
    let mut rights = on("schema", &[""], &["USAGE"]);
    rights.extend(on("table", &READ, &["SELECT"]));
    rights.extend(on("table", &SEGMENTS, &["SELECT"]));
    rights.extend(on("sequence", &["outbox_seq"], &["SELECT"]));
    rights.extend(on("sequence", &["outbox_segment", "outbox_wakeup"], &["SELECT", "UPDATE"]));
    rights.extend(on("table", &WRITTEN, &["INSERT", "UPDATE", "DELETE"]));
    rights.extend(on("table", &["ring", "segments"], &["UPDATE"]));
    rights.extend(on("function", &["attempts(jsonb, text)"], &["EXECUTE"]));
    rights.extend(audit());
    rights
}

/// Relaying.
pub(crate) fn relay() -> Vec<Right> {
    let mut rights = both();
    rights.extend(on("table", &SEGMENTS, &["TRUNCATE"]));
    rights.extend(on("table", &["idempotency_keys"], &["DELETE"]));
    rights.extend(on("table", &["processes"], &READ_AND_WRITE));
    rights
}

/// Looking and acting.
pub(crate) fn admin() -> Vec<Right> {
    let mut rights = both();
    rights.extend(on(
        "table",
        &["controls", "jobs", "gateway_tenants", "gateway_keys"],
        &["INSERT", "UPDATE", "DELETE"],
    ));
    rights.extend(on("table", &["audit"], &["INSERT"]));
    rights.extend(inbox());
    rights
}

/// Which of these a role lacks; without a name, the connected one.
pub(crate) async fn missing(
    sessions: &Sessions,
    session: &mut crate::session::Session,
    role: Option<&str>,
    rights: &[Right],
) -> Result<Vec<Right>, Error> {
    let schema = &sessions.config().schema;
    let place = |right: &Right| match right.kind {
        "schema" => schema.clone(),
        _ => format!("{}.{}", quote(schema), right.object),
    };
    let kinds: Vec<&str> = rights.iter().map(|right| right.kind).collect();
    let objects: Vec<String> = rights.iter().map(place).collect();
    let columns: Vec<&str> = rights.iter().map(|right| right.column).collect();
    let privileges: Vec<&str> = rights.iter().map(|right| right.privilege).collect();
    let rows = session
        .query_alone(
            include_str!("../sql/doctor/missing_rights.sql"),
            &[
                (&role, Type::TEXT),
                (&kinds, Type::TEXT_ARRAY),
                (&objects, Type::TEXT_ARRAY),
                (&columns, Type::TEXT_ARRAY),
                (&privileges, Type::TEXT_ARRAY),
            ],
        )
        .await?;
    // The server counts from 1.
    let index = |row: &tokio_postgres::Row| usize::try_from(row.get::<_, i64>(0) - 1).ok();
    Ok(rows.iter().filter_map(|row| rights.get(index(row)?).cloned()).collect())
}

/// Changing the log.
pub(crate) fn forbidden_on_tables() -> Vec<Right> {
    let mut rights = on("table", &["outbox"], &["UPDATE", "DELETE", "TRUNCATE"]);
    rights.extend(on("table", &SEGMENTS, &["INSERT", "UPDATE", "DELETE", "TRUNCATE"]));
    rights
}

/// Supplying what the log's defaults must supply.
pub(crate) fn forbidden_on_columns() -> Vec<Right> {
    let column =
        |column: &'static str| Right { kind: "column", object: "outbox", column, privilege: "INSERT" };
    ["seq", "xid", "segment"].map(column).to_vec()
}

/// Setting numbers back, turning the ring. USAGE on the segments' sequence is nextval: it turns the ring.
pub(crate) fn forbidden_on_sequences() -> Vec<Right> {
    let mut rights = on("sequence", &["outbox_seq"], &["UPDATE"]);
    rights.extend(on("sequence", &["outbox_segment", "outbox_wakeup"], &["USAGE", "UPDATE"]));
    rights
}
