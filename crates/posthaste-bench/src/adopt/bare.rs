//! The table without Posthaste: a loop that claims and marks, as somebody would write it by hand.

use super::super::Bench;
use super::super::baseline::{PLANS, rate};
use super::super::report::ProgressLine;
use super::table::{AdoptedTable, MARKED};
use anyhow::bail;
use serde_json::{Value as Json, json};
use std::time::Instant;
use tokio_postgres::types::Type;

impl AdoptedTable<'_> {
    /// Rows a second of a loop without Posthaste: one connection, prepared statements, a transaction each.
    pub(super) async fn claim_and_mark(&self, batch: u32) -> anyhow::Result<f64> {
        let client = self.bench.ground.connect().await?;
        client.batch_execute(PLANS).await?;
        let (claim, mark) = bare_sql(&self.name, batch);
        let (claim, mark) = (client.prepare(&claim).await?, client.prepare(&mark).await?);
        let mut progress = ProgressLine::start("baseline: claim + mark", self.rows);
        let (started, mut done) = (Instant::now(), 0);
        loop {
            let claimed = client.query(&claim, &[]).await?;
            let page: Vec<BareRow> = claimed.iter().map(BareRow::of).collect::<Result<_, _>>()?;
            if page.is_empty() {
                break;
            }
            let ids: Vec<uuid::Uuid> = page.iter().map(|row| row.id).collect();
            done += client.execute(&mark, &[&ids]).await?;
            progress.set(done);
        }
        let took = started.elapsed();
        progress.finish();
        if done != self.rows {
            bail!("the claim + mark loop handled {done} of {} rows", self.rows);
        }
        Ok(rate(self.rows, took))
    }
}

/// The bare loop's statements.
fn bare_sql(name: &str, batch: u32) -> (String, String) {
    (
        format!(
            "update {name} set status = 'publishing', last_attempt_at = now() where id = any (array(\
             select id from {name} where status in ('pending', 'failed') and next_attempt_at <= now() \
             order by next_attempt_at limit {batch} for update skip locked)) \
             returning id, topic, key, payload_json, idempotency_key, retry_count, created_at"
        ),
        format!("update {name} set status = 'published', published_at = now() where id = any ($1)"),
    )
}

/// All statements of the bare loop, for the record.
pub(super) fn statements(bench: &Bench<'_>) -> Json {
    let (claim, mark) = bare_sql(&MARKED.table_name(bench).to_string(), 1_000);
    json!({ "claim": claim, "mark": mark, "table": MARKED.columns, "session": PLANS,
            "transactions": "one a statement, synchronous_commit = on" })
}

/// A row as the bare loop reads it.
struct BareRow {
    id: uuid::Uuid,
    _event: (String, Option<String>, bytes::Bytes, String, i32, std::time::SystemTime),
}

impl BareRow {
    fn of(row: &tokio_postgres::Row) -> Result<Self, tokio_postgres::Error> {
        let payload: Jsonb<'_> = row.try_get(3)?;
        let event = (
            row.try_get(1)?,
            row.try_get(2)?,
            bytes::Bytes::copy_from_slice(payload.0),
            row.try_get(4)?,
            row.try_get(5)?,
            row.try_get(6)?,
        );
        Ok(Self { id: row.try_get(0)?, _event: event })
    }
}

/// The text of a `jsonb`.
struct Jsonb<'a>(&'a [u8]);

impl<'a> tokio_postgres::types::FromSql<'a> for Jsonb<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw.get(1..).unwrap_or_default()))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSONB
    }
}
