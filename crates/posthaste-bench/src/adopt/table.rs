//! A table as its owners have it, filled from the log, and the ways to empty it.

use super::super::Bench;
use super::super::child::{Relay, Setup, put, show};
use super::super::field::PATIENCE;
use super::super::report::ProgressLine;
use super::super::sample::ProcessUsage;
use anyhow::{Context as _, bail};
use posthaste::route::{Filter, Order};
use posthaste_postgres::claim::{self, Layout, TableName, claim_index, preset};
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use toml::{Table as Toml, Value};

/// How often the table is looked at. It adds no error: rows carry their own times.
const LOOK: Duration = Duration::from_millis(50);
/// How long the server's statistics may lag behind.
const STATISTICS: Duration = Duration::from_secs(20);
/// How often claims are renewed, where that is measured.
const RENEWALS: i64 = 5;

/// Whose table it is.
pub(super) struct Owner {
    pub(super) preset: &'static str,
    pub(super) columns: &'static str,
    fill: &'static str,
    /// What waits, by words that the claim's index has in its condition: it costs the server next to nothing
    /// to ask.
    waits: &'static str,
    done: &'static str,
    /// When the first row was taken, and the last one was done.
    span: &'static str,
    updates_per_row: u64,
}

/// Claimed by a status and a time.
pub(super) const MARKED: Owner = Owner {
    preset: "talkie",
    columns: "id uuid primary key, topic text not null, key text, payload_json jsonb not null, idempotency_key text not null,
        status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
        next_attempt_at timestamptz not null, published_at timestamptz, created_at timestamptz not null,
        unique (topic, idempotency_key)",
    fill: "(id, topic, key, payload_json, idempotency_key, next_attempt_at, created_at)
        select id, topic, key, jsonb_build_object('text', convert_from(payload, 'UTF8')), id::text, appended_at, appended_at",
    waits: "status in ('pending', 'failed')",
    done: "status = 'published' and published_at is not null and retry_count = 0 and last_error is null",
    span: "select count(*), (extract(epoch from max(published_at) - min(last_attempt_at)))::float8",
    updates_per_row: 2,
};

/// Claimed by row locks.
pub(super) const LOCKED: Owner = Owner {
    preset: "outbox-events",
    columns: "id uuid primary key, aggregate_type varchar(50) not null, aggregate_id text not null, event_type varchar(100) not null,
        payload jsonb not null, occurred_at timestamptz not null, status varchar(20) not null default 'PENDING',
        retry_count int not null default 0, next_attempt_at timestamptz not null, last_error text, processed_at timestamptz",
    fill: "(id, aggregate_type, aggregate_id, event_type, payload, occurred_at, next_attempt_at)
        select id, 'bench', coalesce(key, ''), topic, jsonb_build_object('text', convert_from(payload, 'UTF8')), appended_at, appended_at",
    waits: "status in ('PENDING')",
    done: "status = 'PUBLISHED' and processed_at is not null and retry_count = 0 and last_error is null",
    // Nothing says when the first batch was taken: it is not counted, and the time begins when it is done.
    span: "select count(*) - $1, (extract(epoch from max(processed_at) - (select max(processed_at) from (
        select processed_at from {table} order by processed_at limit $1) as first)))::float8",
    updates_per_row: 1,
};

impl Owner {
    /// The column by which rows are leased.
    pub(super) fn lease_column(owner: &Self) -> &'static str {
        if owner.updates_per_row == 2 { "last_attempt_at" } else { "" }
    }

    pub(super) fn layout(&self, bench: &Bench<'_>) -> anyhow::Result<Layout> {
        let preset = preset(self.preset).context("the preset is gone")?;
        Ok(Layout { table: self.table_name(bench), ..preset.layout })
    }

    pub(super) fn table_name(&self, bench: &Bench<'_>) -> TableName {
        let name = format!("adopted_{}", self.preset.replace('-', "_"));
        TableName { schema: Some(bench.common.schema.clone()), name }
    }
}

/// One drain.
pub(super) struct TableDrain {
    pub(super) rows_per_s: f64,
    pub(super) cpu_us_per_event: f64,
    pub(super) rss_peak_mb: f64,
    pub(super) updates_per_row: f64,
    pub(super) hot_part: f64,
}

/// Rows that a server has changed, all in all and in place.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Updates {
    all: i64,
    hot: i64,
}

/// A filled table.
pub(super) struct AdoptedTable<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) owner: &'a Owner,
    /// Quoted.
    pub(super) name: String,
    pub(super) rows: u64,
}

impl<'a> AdoptedTable<'a> {
    /// Makes it anew, with the first rows of the log and the index that `adopt inspect` advises.
    pub(super) async fn make(bench: &'a Bench<'a>, owner: &'a Owner, rows: u64) -> anyhow::Result<Self> {
        let layout = owner.layout(bench)?;
        let name = format!("{}.\"{}\"", bench.ground.schema, layout.table.name);
        let client = &bench.ground.client;
        let index = claim_index(&layout).context("no index is advised")?.replace(" CONCURRENTLY", "");
        // Without a vacuum in the middle, which would take away from whatever runs: the same for everybody.
        let make = format!(
            "set client_min_messages = warning; drop table if exists {name}; \
             create table {name} ({}) with (autovacuum_enabled = off); {index}",
            owner.columns
        );
        client.batch_execute(&make).await.context("the owners' table")?;
        let fill = format!(
            "insert into {name} {} from {}.outbox order by seq limit $1",
            owner.fill, bench.ground.schema
        );
        let filled = client.execute(&fill, &[&(rows as i64)]).await?;
        if filled != rows {
            bail!("the log has {filled} of {rows} rows");
        }
        client.batch_execute(&format!("vacuum analyze {name}")).await?;
        let _ = client.batch_execute("checkpoint").await;
        Ok(Self { bench, owner, name, rows })
    }

    pub(super) async fn drop(&self) -> anyhow::Result<()> {
        let client = &self.bench.ground.client;
        Ok(client.batch_execute(&format!("drop table if exists {}", self.name)).await?)
    }

    /// Lets a relay drain it to the null sink.
    pub(super) async fn drain(&self, batch: u32) -> anyhow::Result<TableDrain> {
        let path = self.configure("adopted", &null(), batch)?;
        let (mut relay, _) = Relay::start(&self.bench.product, &path, false)?;
        let cpu_s = self.wait(&mut [&mut relay]).await?;
        let usage = ProcessUsage::of(relay.pid())?;
        relay.stop().await?;
        let (rows, seconds) = self.span(batch).await?;
        let updates = self.audit().await?;
        Ok(TableDrain {
            rows_per_s: rows / seconds,
            cpu_us_per_event: cpu_s * 1e6 / self.rows as f64,
            rss_peak_mb: usage.rss_peak_mb,
            updates_per_row: updates.all as f64 / self.rows as f64,
            hot_part: updates.hot as f64 / updates.all.max(1) as f64,
        })
    }

    /// A relay's configuration.
    pub(super) fn configure(
        &self,
        name: &str,
        sink: &Map<String, Json>,
        batch: u32,
    ) -> anyhow::Result<PathBuf> {
        let common = self.bench.common;
        let setup = Setup { sink: "bench", target: "null", options: Some(sink), order: Order::None };
        let mut root: Toml = setup.text(common)?.parse()?;
        let table = Value::String(self.owner.table_name(self.bench).to_string());
        let batch_rows = i64::from(batch);
        let adopt = [
            ("outbox.adopt.preset", Value::String(self.owner.preset.to_owned())),
            ("outbox.adopt.table", table),
            ("outbox.adopt.batch", Value::Integer(batch_rows)),
            // The engine's own bound for what it tries at once.
            ("relay.due_events_max", Value::Integer(batch_rows)),
        ];
        for (path, value) in adopt {
            if !common.config_set.iter().any(|setting| setting.starts_with(&format!("{path}="))) {
                put(&mut root, path, value)?;
            }
        }
        let text = toml::to_string(&root)?;
        show(&text);
        self.bench.scratch.write(name, &text)
    }

    /// Waits until every row is done. Answers with the CPU time of the first relay, its start included.
    pub(super) async fn wait(&self, relays: &mut [&mut Relay]) -> anyhow::Result<f64> {
        let mut progress = ProgressLine::start(format!("relay: {}", self.owner.preset), self.rows);
        let client = &self.bench.ground.client;
        let waits = format!("select exists (select from {} where {})", self.name, self.owner.waits);
        let (mut done, mut moved) = (0, Instant::now());
        loop {
            tokio::time::sleep(LOOK).await;
            for relay in relays.iter_mut() {
                relay.check()?;
            }
            // A count over the table would take from the server what is to be measured: not before the end.
            let waiting: bool = client.query_one(&waits, &[]).await?.get(0);
            if !waiting || moved.elapsed() > PATIENCE / 2 {
                let now = self.done().await?;
                if now > done {
                    (done, moved) = (now, Instant::now());
                    progress.set(done);
                }
            }
            if done >= self.rows {
                progress.finish();
                return Ok(ProcessUsage::of(relays[0].pid())?.cpu_s);
            }
            if moved.elapsed() > PATIENCE {
                bail!(
                    "{done} of {} rows are done, and none for {} s:\n{}",
                    self.rows,
                    PATIENCE.as_secs(),
                    relays[0].last_words()
                );
            }
        }
    }

    /// Rows that are done.
    async fn done(&self) -> anyhow::Result<u64> {
        let sql = format!("select count(*) from {} where {}", self.name, self.owner.done);
        let done: i64 = self.bench.ground.client.query_one(&sql, &[]).await?.get(0);
        Ok(done.unsigned_abs())
    }

    /// Rows, and the seconds they took, by the server's clock.
    pub(super) async fn span(&self, batch: u32) -> anyhow::Result<(f64, f64)> {
        let sql = format!("{} from {}", self.owner.span.replace("{table}", &self.name), self.name);
        let client = &self.bench.ground.client;
        let row = match self.owner.span.contains("$1") {
            true => client.query_typed(&sql, &[(&i64::from(batch), Type::INT8)]).await?.into_iter().next(),
            false => client.query_opt(&sql, &[]).await?,
        };
        let row = row.context("the table is gone")?;
        Ok((row.get::<_, i64>(0) as f64, row.get::<_, f64>(1).max(1e-6)))
    }

    /// Every row is done, and was changed as often as it takes.
    async fn audit(&self) -> anyhow::Result<Updates> {
        let done = self.done().await?;
        let wanted = (self.rows * self.owner.updates_per_row) as i64;
        let updates = self.updates(wanted).await?;
        if done != self.rows {
            bail!("{done} of {} rows are marked as published", self.rows);
        }
        // Marks that were renewed, or went back and were taken again, are few.
        if updates.all > wanted + wanted / 100 {
            bail!("{} updates where {wanted} are enough: rows were marked more than once", updates.all);
        }
        Ok(updates)
    }

    /// What the server has counted, once it has counted at least so many.
    async fn updates(&self, at_least: i64) -> anyhow::Result<Updates> {
        let sql = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = to_regclass($1)";
        let since = Instant::now();
        loop {
            let client = self.bench.ground.connect().await?;
            let row = client.query_typed(sql, &[(&self.name, Type::TEXT)]).await?.into_iter().next();
            let row = row.context("the server counts nothing for this table")?;
            let updates = Updates { all: row.get(0), hot: row.get(1) };
            if updates.all >= at_least {
                return Ok(updates);
            }
            if since.elapsed() > STATISTICS {
                bail!("the server has counted {} updates, and {at_least} are the least", updates.all);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// How many indexes hold a column, in their columns or their condition.
    pub(super) async fn indexes_with(&self, column: &str) -> anyhow::Result<i64> {
        let sql = "select count(*) from pg_indexes i join pg_class c on c.oid = to_regclass($1)
                    where i.tablename = c.relname and i.schemaname = c.relnamespace::regnamespace::text
                      and i.indexdef ~ ('\\m' || $2 || '\\M')";
        let row = self
            .bench
            .ground
            .client
            .query_typed(sql, &[(&self.name, Type::TEXT), (&column, Type::TEXT)])
            .await?;
        Ok(row.first().context("no answer")?.get(0))
    }

    /// Claims rows and renews their marks, as a relay does while a broker is slow. Answers which part of the
    /// renewals was a HOT update.
    pub(super) async fn renew(&self) -> anyhow::Result<f64> {
        let layout = self.owner.layout(self.bench)?;
        let statements = claim::statements_for(&self.bench.ground.postgres, &layout).await?;
        let renew = statements.renewed().context("rows are not marked")?;
        // A row that finds no room in its page moves, and every index learns of that. Owners give room by
        // this setting.
        let room = format!("alter table {} set (fillfactor = 50)", self.name);
        self.bench.ground.client.batch_execute(&room).await?;
        let claimed = {
            let client = self.bench.ground.connect().await?;
            let rows = claim_with(&client, &statements.claim(1_000, &Filter::Everything)).await?;
            let ids: Vec<String> = rows.iter().map(|row| row.get("id")).collect();
            for _ in 0..RENEWALS {
                let marks = format!(
                    "select array_agg(t.last_attempt_at order by k.n) from {} t join unnest($1::text[]) with ordinality k (id, n) on t.id = k.id::uuid",
                    self.name
                );
                let marks: Vec<std::time::SystemTime> =
                    client.query_typed(&marks, &[(&ids, Type::TEXT_ARRAY)]).await?[0].get(0);
                let renewed = client
                    .query_typed(&renew, &[(&ids, Type::TEXT_ARRAY), (&marks, Type::TIMESTAMPTZ_ARRAY)])
                    .await?;
                if renewed.len() != ids.len() {
                    bail!("{} of {} marks were renewed", renewed.len(), ids.len());
                }
            }
            ids.len() as i64
        };
        let updates = self.updates(claimed + claimed * RENEWALS).await?;
        Ok(updates.hot as f64 / (claimed * RENEWALS) as f64)
    }
}

/// Claims with a statement of the relay's.
pub(super) async fn claim_with(client: &Client, sql: &str) -> anyhow::Result<Vec<tokio_postgres::Row>> {
    let (none, only): (Vec<String>, Option<String>) = (Vec::new(), None);
    let rows = client
        .query_typed(
            sql,
            &[
                (&(1_i32 << 20), Type::INT4),
                (&none, Type::TEXT_ARRAY),
                (&none, Type::TEXT_ARRAY),
                (&only, Type::TEXT),
                (&"bench", Type::TEXT),
                (&(4_i64 << 20), Type::INT8),
            ],
        )
        .await?;
    Ok(rows)
}

fn null() -> Map<String, Json> {
    let mut sink = Map::new();
    sink.insert("type".to_owned(), json!("null"));
    sink
}
