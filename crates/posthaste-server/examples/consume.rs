//! A consumer inside a service: orders of a topic become invoices, each once, in order of their key.
//!
//! ```sh
//! export DB=postgres://postgres@127.0.0.1:5433/shop BROKER=broker.db
//! cargo run -p posthaste-server --example consume
//! ```
//!
//! `posthaste migrate up` made the tables. The broker is a local one, into which a sink of the type `local`
//! writes. With another broker only the source is another.

use async_trait::async_trait;
use posthaste::clock::SystemClock;
use posthaste::consumer::{self, ConsumerPlan, ConsumerSettings, HandlerError, Message};
use posthaste_postgres::consumer::{Handler, inbox};
use posthaste_postgres::{PostgresConfig, append, connect};
use posthaste_sqlite::broker::{Broker, BrokerConfig, SourceConfig};
use serde::Deserialize;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_postgres::Transaction;

#[derive(Deserialize)]
struct Order {
    id: i64,
    total: i64,
}

struct Book;

#[async_trait]
impl Handler for Book {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        let order: Order = message.json()?; // not JSON: rejected
        if order.total < 0 {
            return Err(HandlerError::reject("order.total", "a negative total")); // dead at once
        }
        let insert = "insert into invoices (order_id, total) values ($1, $2)";
        tx.execute(insert, &[&order.id, &order.total]).await?; // any error: tried again
        append(tx, &message.event("invoices.made", order.id.to_string())).await?;
        Ok(())
    }
}

pub(crate) async fn run(
    database: &str,
    broker: &Path,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let config = PostgresConfig::new(database);
    let table = "create table if not exists invoices (order_id bigint not null, total bigint not null)";
    connect(&config).await?.batch_execute(table).await?;

    let broker = Arc::new(Broker::open(BrokerConfig::new(broker))?);
    let source = Arc::new(broker.source(SourceConfig::new("billing", ["orders.placed"]))?);
    let store = Arc::new(inbox(config, "billing", Book).await?);
    let plan = ConsumerPlan::new("billing", source, store);
    let (_settings, settings) = watch::channel(ConsumerSettings::default());
    let mut consumer = consumer::start(plan, settings, Arc::new(SystemClock));
    tokio::select! {
        () = stop => {}
        why = consumer.failed() => return Err(why.into()),
    }
    consumer.drain().await; // what is open ends, the rest is left to the next one
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (database, broker) = (std::env::var("DB")?, std::env::var("BROKER")?);
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        terminate.recv().await;
    };
    run(&database, Path::new(&broker), stop).await
}
