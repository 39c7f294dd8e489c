//! Appends in a transaction of SeaORM: a rollback leaves nothing, a commit leaves the order and its event.
//!
//! ```sh
//! export DB=postgres://postgres@127.0.0.1/shop
//! cargo run -p posthaste-postgres --features adapter-examples --example append_sea_orm
//! ```

use posthaste::Event;
use sea_orm::{ConnectionTrait, Database, DatabaseTransaction, DbBackend, Statement, TransactionTrait};
use std::error::Error;
use uuid::Uuid;

pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let db = Database::connect(url).await?;
    db.execute_unprepared("create table if not exists orders (id uuid primary key)").await?;

    let tx = db.begin().await?;
    place(&tx, Uuid::now_v7()).await?;
    tx.rollback().await?; // neither the order nor its event

    let tx = db.begin().await?;
    place(&tx, Uuid::now_v7()).await?;
    tx.commit().await?; // both
    Ok(())
}

async fn place(tx: &DatabaseTransaction, order: Uuid) -> Result<(), Box<dyn Error>> {
    let insert = "insert into orders (id) values ($1)";
    tx.execute_raw(Statement::from_sql_and_values(DbBackend::Postgres, insert, [order.into()])).await?;
    let event = Event::json("orders.placed", &serde_json::json!({ "order": order }))?.with_key(order);
    posthaste_postgres::sea_orm::append(tx, &event).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::var("DB")?).await
}
