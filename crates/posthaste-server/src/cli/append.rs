//! `posthaste append`: put one event into the outbox, in a transaction of its own.

use super::{Context, explain, time};
use crate::config::Outbox;
use crate::database::Database;
use crate::output::Usage;
use clap::{ArgGroup, Args};
use posthaste::event::TYPE_HEADER;
use posthaste::store::{StoreCode, StoreError};
use posthaste::{Event, Timestamp};
use posthaste_postgres::{AppendError, PostgresConfig};
#[cfg(feature = "sqlite")]
use posthaste_sqlite::SqliteConfig;
use serde_json::json;
use std::io::Read;
use std::process::ExitCode;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

const EXAMPLES: &str = "\
Examples:
  posthaste append orders.placed --key order-7 --payload '{\"total\": 12}'
  posthaste append orders.placed --payload @order.json \\
      --content-type application/json
  generate | posthaste append orders.placed --payload -
  posthaste append reminders.due --payload hello --deliver-at +10m
  posthaste append orders.placed --payload x --idempotency-key order-7-placed
  posthaste append users.deleted --key user-3 --tombstone

Prints the event's id. With an idempotency key that was used before, nothing is
added and the first event's id is printed. A service appends inside its own
transaction instead: from Rust, or from anywhere with SELECT posthaste.append().";

/// Append an event
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("body").required(true))]
pub(crate) struct AppendArgs {
    /// The address that routes match on
    topic: String,
    /// The unit of order: events of one key are delivered in append order
    #[arg(long)]
    key: Option<String>,
    /// The payload: a text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT|@FILE|-", group = "body")]
    payload: Option<String>,
    /// No payload at all: tells a compacting broker to forget the key
    #[arg(long, group = "body")]
    tombstone: bool,
    /// A header; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Media type of the payload
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// The event's type [default: the topic]
    #[arg(long = "type", value_name = "NAME")]
    event_type: Option<String>,
    /// Adds nothing if this topic and key were appended before
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Not before this time: RFC 3339, or +10s
    #[arg(long, value_name = "TIME", value_parser = time::later)]
    deliver_at: Option<Timestamp>,
    /// The event's id [default: a new UUIDv7]
    #[arg(long)]
    id: Option<Uuid>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) async fn run(context: &Context, args: AppendArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    let event = event(args)?;
    outbox
        .database
        .limits()
        .check(&event)
        .map_err(|error| Usage(format!("the event was not appended: {error}")))?;
    let id = append(outbox, &event).await?;
    let answer = json!({ "id": id, "appended": id == event.id });
    context.out().data(&answer, || id.to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn event(args: AppendArgs) -> anyhow::Result<Event> {
    let mut event = match &args.payload {
        Some(payload) => Event::new(args.topic, read_payload(payload)?),
        None => Event::tombstone(args.topic),
    };
    event.id = args.id.unwrap_or(event.id);
    event.key = args.key;
    event.headers = args.headers.into_iter().collect();
    if let Some(event_type) = args.event_type {
        event.headers.set(TYPE_HEADER, event_type);
    }
    event.content_type = args.content_type;
    event.idempotency_key = args.idempotency_key;
    event.deliver_at = args.deliver_at;
    Ok(event)
}

fn read_payload(text: &str) -> anyhow::Result<Vec<u8>> {
    if text == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    match text.strip_prefix('@') {
        Some(file) => {
            std::fs::read(file).map_err(|error| Usage(format!("cannot read {file}: {error}")).into())
        }
        None => Ok(text.as_bytes().to_vec()),
    }
}

async fn append(outbox: &Outbox, event: &Event) -> anyhow::Result<Uuid> {
    match &outbox.database {
        Database::Postgres { config, .. } => to_postgres(outbox, config, event).await,
        Database::Adopted { layout, .. } => {
            let table = &layout.table;
            Err(Usage(format!("{table} is an adopted table: its application writes it; use INSERT")).into())
        }
        #[cfg(feature = "sqlite")]
        Database::Sqlite(config) => to_sqlite(outbox, config, event).await,
    }
}

async fn to_postgres(outbox: &Outbox, config: &PostgresConfig, event: &Event) -> anyhow::Result<Uuid> {
    let mut client = posthaste_postgres::connect(config).await.map_err(|error| explain(outbox, error))?;
    let log = posthaste_postgres::Outbox::new(&config.schema).with_limits(config.limits);
    let failed = |error| explain(outbox, refused(&error, true));
    let mut tx = client.transaction().await.map_err(failed)?;
    let id = match log.append(&mut tx, event).await {
        Ok(id) => id,
        Err(AppendError::Database(error)) => return Err(failed(error)),
        Err(error) => return Err(Usage(format!("the event was not appended: {error}")).into()),
    };
    tx.commit().await.map_err(|error| explain(outbox, refused(&error, false)))?;
    Ok(id)
}

#[cfg(feature = "sqlite")]
async fn to_sqlite(outbox: &Outbox, config: &SqliteConfig, event: &Event) -> anyhow::Result<Uuid> {
    use posthaste_sqlite::writer::{WriteError, Writer};
    let (path, synchronous) = (config.path.clone(), config.synchronous);
    let (log, event) = (posthaste_sqlite::Outbox::with_limits(config.limits), event.clone());
    let appended = async {
        let writer = Writer::open(&path, synchronous)?;
        let id = writer.run(move |tx| log.append(tx, &event).map_err(WriteError::from)).await?;
        writer.close().await;
        Ok(id)
    };
    appended.await.map_err(|error: WriteError| explain(outbox, error.into()))
}

/// What the database said of an append. A connection that is lost at commit leaves the outcome open.
fn refused(error: &tokio_postgres::Error, before_commit: bool) -> StoreError {
    let Some(db) = error.as_db_error() else {
        return StoreError::Transient { message: error.to_string(), outcome_known: before_commit };
    };
    let (code, advice) = match *db.code() {
        SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME | SqlState::UNDEFINED_FUNCTION => (
            StoreCode::SchemaMissing,
            "the outbox is not set up here; run `posthaste migrate up`, or check `schema`",
        ),
        SqlState::INSUFFICIENT_PRIVILEGE => (
            StoreCode::Rights,
            "the role may not append; make it a member of the application's role: GRANT posthaste_app TO it (`outbox.roles.app`)",
        ),
        SqlState::UNIQUE_VIOLATION => (StoreCode::Duplicate, "an event with this id is there already"),
        _ => return StoreError::Transient { message: db.message().to_owned(), outcome_known: true },
    };
    let why = format!("the event was not appended: {}: {advice}. No event was touched", db.message());
    StoreError::fatal(code, why)
}
