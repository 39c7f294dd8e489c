//! Appends in a transaction of tokio-postgres: a rollback leaves nothing, a commit leaves the order and its
//! event. The table is the one of docs/tutorial.md.
//!
//! ```sh
//! DB=postgres://postgres@127.0.0.1:5433/shop cargo run -p posthaste-postgres --example append_tokio_postgres
//! ```

use posthaste::Event;
use std::error::Error;
use tokio_postgres::{NoTls, Transaction};

pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let table =
        "create table if not exists orders (id bigserial primary key, customer text, total int not null)";
    client.batch_execute(table).await?;

    let mut tx = client.transaction().await?;
    place(&mut tx, 990).await?;
    tx.rollback().await?; // neither the order nor its event

    let mut tx = client.transaction().await?;
    place(&mut tx, 4200).await?;
    tx.commit().await?; // both
    Ok(())
}

async fn place(tx: &mut Transaction<'_>, total: i32) -> Result<(), Box<dyn Error>> {
    let insert = "insert into orders (total) values ($1) returning id";
    let order: i64 = tx.query_one(insert, &[&total]).await?.get(0);
    let event = Event::json("orders.placed", &serde_json::json!({ "order": order }))?.with_key(order);
    posthaste_postgres::append(tx, &event).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::var("DB")?).await
}
