//! The ground of a run: a schema of its own in somebody's database.
//!
//! The schema carries a comment that says whose it is. One with that comment was left by an earlier run and
//! is made anew; any other one is somebody's, and refused. A database of its own would be cleaner, but not
//! everybody who may measure may create databases.

use super::child::Product;
use super::load::Load;
use super::report::ProgressLine;
use crate::output::{Usage, remark, scrub};
use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use posthaste::Event;
use posthaste_postgres::{PostgresConfig, connect};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, CopyInSink};

/// Says that a schema is ours to drop.
const MARK: &str = "posthaste bench: made for a measurement, may be dropped";

/// Bytes in one COPY, roughly. Large enough for full speed, small enough to see progress.
const COPY_BYTES: u64 = 16 << 20;

/// Most rows in one COPY, for the same reason.
const COPY_ROWS: u64 = 20_000;

/// An outbox that nobody else uses.
pub(super) struct BenchOutbox {
    pub(super) postgres: PostgresConfig,
    /// Quoted.
    pub(super) schema: String,
    /// For setting up and for looking. It also holds the lock that keeps a second run out.
    pub(super) client: Client,
}

impl BenchOutbox {
    /// Makes the schema, and lets the binary that is measured set up an empty outbox in it.
    pub(super) async fn make(
        postgres: PostgresConfig,
        product: &Product,
        config: &Path,
    ) -> anyhow::Result<Self> {
        let client = connect_to(&postgres).await?;
        let schema = format!("\"{}\"", postgres.schema.replace('"', "\"\""));
        let ground = Self { postgres, schema, client };
        ground.claim().await?;
        match product.ask(&["migrate", "up"], Some(config)).await {
            Ok(_) => Ok(ground),
            Err(error) => {
                ground.drop_schema().await?;
                Err(error.context("the outbox to measure could not be set up"))
            }
        }
    }

    async fn claim(&self) -> anyhow::Result<()> {
        let name = &self.postgres.schema;
        let lock = "select pg_try_advisory_lock(hashtext('posthaste bench'), hashtext($1))";
        if !self.client.query_one(lock, &[name]).await?.get::<_, bool>(0) {
            bail!(
                "another `posthaste-bench` is running in schema {name}: wait for it, or choose another --schema"
            );
        }
        let look =
            "select coalesce(obj_description(oid, 'pg_namespace'), '') from pg_namespace where nspname = $1";
        let found = self.client.query_opt(look, &[name]).await?.map(|row| row.get::<_, String>(0));
        match found.as_deref() {
            None => {}
            Some(MARK) => self.drop_schema().await?,
            Some(_) => {
                return Err(Usage(format!(
                    "schema {name} exists and was not made by `posthaste-bench`. Nothing was changed: choose another --schema"
                ))
                .into());
            }
        }
        let make = format!("create schema {0}; comment on schema {0} is '{MARK}'", self.schema);
        self.client.batch_execute(&make).await.map_err(|error| {
            let why = error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned());
            anyhow!(
                "cannot make the schema {name} to measure in: {why}. Nothing was changed. \
                 Grant CREATE on the database to this role, or measure in a database of its own"
            )
        })
    }

    async fn drop_schema(&self) -> anyhow::Result<()> {
        let sql = format!("set client_min_messages = warning; drop schema if exists {} cascade", self.schema);
        self.client.batch_execute(&sql).await.context("the schema could not be dropped")
    }

    /// Drops the schema, unless somebody wants to look at it.
    pub(super) async fn leave(self, keep: bool) -> anyhow::Result<()> {
        if keep {
            remark(&format!("schema {} is kept; the next run there drops it", self.schema));
            return Ok(());
        }
        self.drop_schema().await
    }

    /// Another connection, with commits as durable as the relay's.
    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        connect_to(&self.postgres).await
    }

    /// A transaction that has an event in the log and does not end before it is dropped.
    pub(super) async fn hold(&self) -> anyhow::Result<Client> {
        let client = self.connect().await?;
        let sql = format!(
            "begin; insert into {}.outbox (topic, payload) values ('never.committed', '')",
            self.schema
        );
        client.batch_execute(&sql).await.context("the transaction to hold open")?;
        Ok(client)
    }

    /// Appends events of the load by COPY, in order.
    pub(super) async fn fill(&self, load: &Load, events: Range<u64>) -> anyhow::Result<()> {
        let mut progress = ProgressLine::start("fill", events.end - events.start);
        let rows = (COPY_BYTES / (load.payload(0).len() as u64 + 100)).clamp(1, COPY_ROWS);
        let sql = copy_sql(&format!("{}.outbox", self.schema));
        let mut from = events.start;
        while from < events.end {
            let to = events.end.min(from + rows);
            let batch: Vec<Event> = (from..to).map(|index| load.event(index)).collect();
            copy(self.client.copy_in(&sql).await?, &batch).await?;
            from = to;
            progress.set(from - events.start);
        }
        progress.finish();
        self.settle_down().await
    }

    /// What the server would do at some time by itself, and then in the middle of a measurement: statistics,
    /// hint bits on the new rows, and a checkpoint where we may ask for one.
    async fn settle_down(&self) -> anyhow::Result<()> {
        let schema = &self.schema;
        let sql = format!("analyze {schema}.outbox; select sum(octet_length(payload)) from {schema}.outbox");
        self.client.batch_execute(&sql).await?;
        let _ = self.client.batch_execute("checkpoint").await;
        Ok(())
    }

    /// The server and its settings that decide about figures.
    pub(super) async fn facts(&self) -> anyhow::Result<Value> {
        let sql = "select current_setting('server_version'), current_setting('fsync'),
                          current_setting('synchronous_commit'), current_setting('full_page_writes'),
                          current_setting('shared_buffers'), current_setting('max_wal_size')";
        let row = self.client.query_one(sql, &[]).await?;
        let text = |n: usize| row.get::<_, String>(n);
        Ok(json!({
            "server_version": text(0), "fsync": text(1), "synchronous_commit": text(2),
            "full_page_writes": text(3), "shared_buffers": text(4), "max_wal_size": text(5),
        }))
    }
}

async fn connect_to(postgres: &PostgresConfig) -> anyhow::Result<Client> {
    let client = connect(postgres).await.with_context(|| {
        format!(
            "cannot measure on {}. Check that the server is up and the URL is right",
            scrub(&postgres.url)
        )
    })?;
    // As the relay does: a figure with weaker commits would compare different things.
    client.batch_execute("set synchronous_commit = on").await?;
    Ok(client)
}

/// COPY BINARY into a table with the columns id, topic, key and payload.
pub(super) fn copy_sql(table: &str) -> String {
    format!("copy {table} (id, topic, key, payload) from stdin binary")
}

/// Writes events into such a COPY and ends it.
pub(super) async fn copy(sink: CopyInSink<Bytes>, events: &[Event]) -> anyhow::Result<()> {
    let writer = BinaryCopyInWriter::new(sink, &[Type::UUID, Type::TEXT, Type::TEXT, Type::BYTEA]);
    tokio::pin!(writer);
    for event in events {
        writer.as_mut().write(&[&event.id, &event.topic, &event.key, &event.payload.as_deref()]).await?;
    }
    writer.finish().await?;
    Ok(())
}
